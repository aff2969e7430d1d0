# cellgate: `make up` runs a world on this machine, `make test` proves it. Only Go is needed.
GO       ?= go
BIN      := bin
DIR      ?= .cellgate
# Further flags of `cellgate up`.
UP       ?=
FUZZTIME ?= 10s
# What `make drills` runs, on a world of its own.
DRILLS   ?= gateway-process cell region control-plane quota-store bad-config identity-provider leaked-key slow-upstream discovery key-rotation hot-key handshake-storm backend
DRILLDIR ?= .cellgate-drills
DRILLNET ?= 127.12.0.0/16

# The race detector needs a C compiler.
CC_FOUND := $(shell command -v $$($(GO) env CC) 2>/dev/null)
RACE     := $(if $(CC_FOUND),-race,)
UNIT      = $(shell $(GO) list ./... | grep -v '/test/')
# Judgement has no goroutines (internal/archtest), so the race detector finds nothing where it takes longest.
PURE      = $(shell $(GO) list ./regionctl/rollout/... ./globalrouter/steer ./quota)
# What measures time on real connections has the machine to itself.
ALONE     = $(shell $(GO) list ./proxy/engine ./proxy/loop ./regionctl)

# What fails runs once more, and its first failure stays printed: some tests of time measure a machine that is busy. What passed does not run again.
TWICE = $(1) || { echo "make $@: once more: what failed above may have measured the machine"; $(1); }

.PHONY: all build up down test unit unit-long e2e e2e-contract e2e-worlds e2e-long e2e-idle e2e-partitions e2e-judge conformance conformance-tools consul redis e2e-resilience h2spec h3smoke connect interop check lint fuzz bench bench-http bench-dns simulate soak drills pgo clean

# Where the proxy's time goes (`make pgo`): the compiler inlines and lays out by it.
PGO := cmd/proxy/default.pgo

# Where the suites of `make conformance` are built.
SUITES := $(BIN)/conformance

# What `make soak` does to a world is its seed's (0 = a new one), for SOAK_TIME.
SOAK_SEED ?= 0
SOAK_TIME ?= 1h

all: build

build:
	@mkdir -p $(BIN)
	$(GO) build -o $(BIN)/ ./cmd/...

# Worth a new run when the pipeline of a request has changed much; a profile that is a little old does no harm.
pgo:
	@mkdir -p $(BIN)
	$(GO) test ./proxy -run '^$$' -bench Exchange -benchtime 2000000x -cpuprofile $(BIN)/pipeline.prof -o $(BIN)/proxy.test
	$(GO) test ./proxy/loop -run '^$$' -bench Plain -benchtime 400000x -cpuprofile $(BIN)/loop.prof -o $(BIN)/loop.test
	$(GO) tool pprof -proto -output $(PGO) $(BIN)/pipeline.prof $(BIN)/loop.prof

up: build
	$(BIN)/cellgate up --detach --dir $(DIR) $(UP)

down:
	@test ! -x $(BIN)/cellgate || test ! -d $(DIR) || $(BIN)/cellgate down --dir $(DIR)

test: build
	$(GO) vet ./...
	@$(MAKE) --no-print-directory unit
	@$(MAKE) --no-print-directory e2e

unit:
	@test -n "$(RACE)" || echo "make test: no C compiler ($$($(GO) env CC)), so unit tests run without the race detector"
	$(call TWICE,$(GO) test $(PURE))
	$(call TWICE,$(if $(RACE),CGO_ENABLED=1) $(GO) test $(RACE) $(filter-out $(ALONE) $(PURE),$(UNIT)))
	$(call TWICE,$(if $(RACE),CGO_ENABLED=1) $(GO) test $(RACE) -p 1 $(ALONE))

E2E = CELLGATE_TEST_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1

# Beside each other; what fails runs once more by itself.
e2e:
	@$(MAKE) --no-print-directory -j2 e2e-contract e2e-worlds

e2e-contract: OF = ./test/conformance/... ./test/contract/... ./test/harness/... ./test/soak/...
e2e-worlds: OF = ./test/e2e/...
e2e-contract e2e-worlds:
	$(E2E) -timeout 14m -p 1 $(OF) || { echo "make $@: once more: what failed above may have measured the machine"; $(E2E) -timeout 10m -p 1 $(OF); }

# Losses without a leader, the tail of an evacuated cell, orders without the global store, limits: worlds of their own. And steering
# at its full size, with many more random worlds.
e2e-long: build
	$(GO) test -tags long ./globalrouter/steer
	$(GO) test -tags long -run PlanOf200 ./regionctl
	$(GO) test -tags long ./quota
	$(GO) test -tags long -run WrongPlace ./proxy/program
	$(E2E) -timeout 10m -tags long -run 'Losses|Operators|TailOf|ALimit|ADailyQuota' ./test/e2e

# 15,000 idle connections to one proxy, about four minutes; needs 20,000 descriptors for each of two processes.
e2e-idle: build
	$(E2E) -timeout 10m -tags long -v -run FifteenThousand ./test/contract

# Partitions of a world whose regions are network namespaces, about four minutes; needs root and iproute2.
e2e-partitions: build
	$(E2E) -timeout 10m -tags long -v -run Partitions ./test/e2e

# The suites of others (docs/conformance.md), on every engine, and one table: h2spec, connectrpc, gRPC interoperability, HTTP/3 with
# two clients. Needs the module proxy once, and gtlsclient (Debian: ngtcp2-client).
# CONFORMANCE narrows it: make conformance CONFORMANCE="--suite connect --engine loop --version 3"
conformance: conformance-tools
	$(SUITES)/conformance $(CONFORMANCE)

h2spec h3smoke connect interop: conformance-tools
	$(SUITES)/conformance --suite $(@:h3smoke=h3) $(CONFORMANCE)

# The suites are pinned in a module of their own, the product has nothing of them.
conformance-tools: $(SUITES)/.built
	$(GO) build -o $(BIN)/ ./cmd/proxy
	$(GO) build -o $(SUITES)/ ./test/conformance

$(SUITES)/.built: tools/conformance/go.mod tools/conformance/go.sum
	@mkdir -p $(SUITES)
	cd tools/conformance && $(GO) build -o $(CURDIR)/$(SUITES)/ tool
	@touch $@

# A real Consul agent, pinned in a module of its own; building it takes about eight minutes of CPU
# time; and the proxy that follows it.
consul: build $(BIN)/consul/consul
	CELLGATE_TEST_CONSUL=$(CURDIR)/$(BIN)/consul/consul CELLGATE_TEST_BIN=$(CURDIR)/$(BIN) $(GO) test -count=1 -timeout 10m -tags consul -v -run Consul ./test/contract

$(BIN)/consul/consul: tools/consul/go.mod tools/consul/go.sum
	@mkdir -p $(BIN)/consul
	cd tools/consul && nice -n 19 $(GO) build -o $(CURDIR)/$(BIN)/consul/ tool

# Limits whose buckets lie in a Redis server, which is killed and started again, a whole world's too; needs redis-server.
redis: build
	$(GO) test -count=1 -timeout 5m -tags redis -v -run 'Script|Server' ./regionctl/quota/redis
	$(E2E) -timeout 10m -tags long -v -run LimitsInRedis ./test/e2e

# Figures of a node while what is behind it or before it goes wrong (docs/resilience.md), about eight minutes. They are of phases that
# take turns, but the machine has to have time: beside other work, run it as chrt -r 1 make e2e-resilience.
e2e-resilience: build
	$(E2E) -timeout 20m -tags long -v -run Resilience ./test/e2e

# Bad and good versions on real processes, each of which the judge must stop at its canary or let pass: about twenty minutes.
e2e-judge: build
	$(E2E) -timeout 30m -tags long -v -run JudgeStops ./test/e2e

# Every point at which a leader may die, and more worlds and rollouts than `make unit` plays: a few minutes.
unit-long:
	$(GO) test -count=1 -timeout 30m -tags long ./regionctl/rollout ./sim/rollout

check: lint test fuzz

lint:
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt: $$out"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...

# Every fuzz target for FUZZTIME. They are found in the source: to ask the packages, each would have to be built.
fuzz:
	@all=$$(git grep -Eo '^func Fuzz\w+' -- '*_test.go') || exit 1; echo "$$all" | sed 's|\(.*\)/[^/]*:func |./\1 |' | sort | while read -r pkg f; do \
	  echo "fuzz $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) "$$pkg" </dev/null || exit 1; \
	done

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

# Every drill once on a world of its own, about nine minutes; the records stay in DRILLDIR/drills.
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
