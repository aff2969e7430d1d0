# cellgate: `make up` runs a world on this machine, `make test` proves it. Only Go is needed.
GO       ?= go
BIN      := bin
UP       ?= --detach
DIR      ?= .cellgate
FUZZTIME ?= 10s
# What `make drills` runs, on a world of its own.
DRILLS   ?= gateway-process cell region control-plane bad-config identity-provider leaked-key slow-upstream
DRILLDIR ?= .cellgate-drills
DRILLNET ?= 127.12.0.0/16

# The race detector needs a C compiler.
CC_FOUND := $(shell command -v $$($(GO) env CC) 2>/dev/null)
RACE     := $(if $(CC_FOUND),-race,)
UNIT      = $(shell $(GO) list ./... | grep -v '/test/')

.PHONY: all build up down test unit unit-long e2e e2e-long e2e-partitions e2e-judge h2spec h3smoke check lint fuzz bench bench-http bench-dns simulate soak drills clean

# What `make soak` does to a world is its seed's (0 = a new one), for SOAK_TIME.
SOAK_SEED ?= 0
SOAK_TIME ?= 1h

all: build

build:
	@mkdir -p $(BIN)
	$(GO) build -o $(BIN)/ ./cmd/...

up: build
	$(BIN)/cellgate up --dir $(DIR) $(UP)

down:
	@test ! -x $(BIN)/cellgate || test ! -d $(DIR) || $(BIN)/cellgate down --dir $(DIR)

test: build
	$(GO) vet ./...
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory e2e

unit:
	@test -n "$(RACE)" || echo "make test: no C compiler ($$($(GO) env CC)), so unit tests run without the race detector"
	$(if $(RACE),CGO_ENABLED=1) $(GO) test $(RACE) -timeout 5m $(UNIT)

e2e:
	CELLGATE_TEST_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 14m -p 2 ./test/...

# Losses without a leader, the tail of an evacuated cell, orders without the global store: worlds of their own. And steering
# at its full size, with many more random worlds.
e2e-long: build
	$(GO) test -tags long ./globalrouter/steer
	$(GO) test -tags long -run PlanOf200 ./regionctl
	CELLGATE_TEST_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 10m -tags long -run 'Losses|Operators|TailOf' ./test/e2e

# Partitions of a world whose regions are network namespaces, about four minutes; needs root and iproute2.
e2e-partitions: build
	CELLGATE_TEST_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 10m -tags long -v -run Partitions ./test/e2e

# The conformance suite of HTTP/2, over TLS and with prior knowledge; needs openssl and curl, and the module proxy for h2spec.
h2spec:
	test/h2spec/run.sh

# HTTP/3 with a client of other hands; needs gtlsclient (Debian: ngtcp2-client), openssl and curl.
h3smoke:
	test/h3smoke/run.sh

# Bad and good versions on real processes, each of which the judge must stop at its canary or let pass: about ten minutes.
e2e-judge: build
	CELLGATE_TEST_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 30m -tags long -v -run JudgeStops ./test/e2e

# Every point at which a leader may die, and more worlds and rollouts than `make unit` plays: a few minutes.
unit-long:
	$(GO) test -count=1 -timeout 30m -tags long ./regionctl/rollout ./sim/rollout

check: lint test fuzz

lint:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

# Every fuzz target for FUZZTIME.
fuzz:
	@$(GO) list -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}' ./... | while read -r pkg; do \
	  for f in $$($(GO) test -list '^Fuzz' "$$pkg" | grep '^Fuzz'); do \
	    echo "fuzz $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) "$$pkg" || exit 1; \
	  done; done

bench:
	$(GO) test -run '^$$' -bench . -benchmem $(UNIT)

# What the canary judge is worth: false alarms and detection times (docs/rollout-judge.md). About 20 minutes of CPU time.
simulate:
	nice -n 19 $(GO) run ./sim/simulate

# Random faults on a world under load; what must never happen is watched throughout.
soak: build
	@mkdir -p $(BIN)/soak
	$(GO) build -o $(BIN)/soak/ ./test/soak
	$(BIN)/soak/soak --bin $(BIN) --seed $(SOAK_SEED) --time $(SOAK_TIME)

# Every drill once on a world of its own, about five minutes; the records stay in DRILLDIR/drills.
drills: build
	@$(BIN)/cellgate up --detach --dir $(DRILLDIR) --net $(DRILLNET) || exit 1; code=0; \
	for d in $(DRILLS); do echo "== $$d"; $(BIN)/regionctl drill run $$d --world $(DRILLDIR) || code=1; done; \
	$(BIN)/regionctl drill list --world $(DRILLDIR); $(BIN)/cellgate down --dir $(DRILLDIR); exit $$code

# CPU time per request and per answer beside peers; needs nginx, haproxy, wrk, h2load and dnsperf, knot, nsd.
# BENCH narrows it: make bench-http BENCH="--rows plain,tls --rounds 10"
bench-http:
	$(GO) run ./bench/http $(BENCH)

bench-dns:
	bench/dns/run.sh

clean:
	rm -rf $(BIN)
