// Package archtest holds the drawing of DESIGN section 2 against the code: floors, rooms, homes of libraries, what judgement
// may touch, and what each binary is made of. When a rule stops a change, either the change or the drawing is wrong.
package archtest

import "strings"

// Floors, lowest first. Imports go down only.
const (
	words = iota
	judgement
	hands
	wiring
	beside // internal and test: no domain word, see besideMayImport
)

// floorOf is the floor of a package by its path within the module; ok is false for a room that the drawing doesn't have.
// A longer entry wins over a shorter one; an entry holds for everything below it.
func floorOf(pkg string) (floor int, ok bool) {
	for at := pkg; ; {
		if f, found := floors()[at]; found {
			return f, true
		}
		cut := strings.LastIndexByte(at, '/')
		if cut < 0 {
			return 0, false
		}
		at = at[:cut]
	}
}

func floors() map[string]int {
	return map[string]int{
		"cells": words, "snapshot": words, "report": words, "problem": words, "reason": words, "denylist": words, "apikey": words,

		"health": judgement, "capacity": judgement, "cells/placement": judgement, "regionctl/rollout": judgement,
		"globalrouter/locate": judgement, "globalrouter/steer": judgement, "globalrouter/answer": judgement, "globalrouter/view": judgement,
		"proxy/route": judgement, "proxy/path": judgement, "proxy/auth": judgement, "proxy/limit": judgement, "proxy/split": judgement,
		"proxy/balance": judgement, "proxy/breaker": judgement, "proxy/retry": judgement, "proxy/shed": judgement, "proxy/cache": judgement,
		"proxy/tail": judgement, "proxy/transform": judgement, "proxy/http1": judgement, "proxy/http2": judgement, "proxy/http3": judgement, "proxy/program": judgement, "proxy/rpc": judgement,
		"proxy/websocket": judgement, "proxy/hops": judgement, "proxy/deadline": judgement, "proxy/tracecontext": judgement, "proxy/identity": judgement, "proxy/door": judgement, "proxy/hedge": judgement, "proxy/prefetch": judgement, "quota": judgement,
		"proxy/claims": judgement, "proxy/cors": judgement, "proxy/reply": judgement, "proxy/record": judgement, "proxy/tally": judgement, "proxy/memo": judgement, "proxy/session": judgement,

		"store": hands, "trust": hands, "nodeapi": hands, "proxy": hands, "globalrouter": hands, "regionctl": hands,
		"health/probe": hands, "capacity/planner": hands, "proxy/program/programtest": hands, "discovery": hands, "certs": hands, "console": hands,

		"cmd": wiring, "sim": wiring, "bench": wiring,
		"internal": beside, "test": beside,
	}
}

// sameFloor lists the imports between packages of the two pure floors that the drawing has. Among hands the domains decide.
func sameFloor() map[string][]string {
	return map[string][]string{
		"report":              {"cells"},
		"denylist":            {"cells"},
		"snapshot":            {"apikey", "cells", "problem"},
		"capacity":            {},
		"regionctl/rollout":   {"health", "regionctl/rollout/judge"},
		"globalrouter/steer":  {"health", "capacity"},
		"globalrouter/answer": {"globalrouter/steer", "globalrouter/locate"},
		"globalrouter/view":   {"globalrouter/steer", "health"},
		"proxy/route":         {"proxy/path", "proxy/prefetch"},
		"proxy/auth":          {"proxy/prefetch"},
		"proxy/limit":         {"proxy/prefetch"},
		"proxy/tail":          {"globalrouter/steer", "globalrouter/locate", "globalrouter/answer"},
		"proxy/http1":         {"proxy/path"},
		"proxy/http2":         {"proxy/http1"},
		"proxy/websocket":     {"proxy/http1"},
		"proxy/tracecontext":  {"proxy/http1"},
		"proxy/identity":      {"proxy/http1", "proxy/auth"},
		"proxy/hops":          {"proxy/http1"},
		"proxy/record":        {"proxy/retry", "proxy/tracecontext"},
		"proxy/tally":         {"proxy/http2", "proxy/http3", "proxy/shed"},
		"proxy/session":       {"proxy/http1"},
		"proxy/http3":         {"proxy/http1"},
		"proxy/reply":         {"proxy/http1"},
		"proxy/deadline":      {"proxy/http1"},
		"proxy/cors":          {"proxy/http1", "proxy/reply"},
		"proxy/transform":     {"proxy/http1"},
		"proxy/claims":        {"proxy/limit", "proxy/program", "quota"},
		"proxy/program":       {"proxy/auth", "proxy/cors", "proxy/http1", "proxy/path", "proxy/route", "proxy/split", "proxy/limit", "proxy/prefetch", "proxy/retry", "proxy/transform", "quota"},
	}
}

// sharedHands are what hands of every domain may import. Other hands of different domains meet in the wiring.
func sharedHands() []string { return []string{"store", "trust", "nodeapi"} }

// library is a third-party module or a part of it, with the packages that may import it and why it is there.
type library struct {
	path  string
	homes []string // packages with all below them; "*" = any package of floor hands or wiring
	why   string
}

func libraries() []library {
	return []library{
		{"go.etcd.io/etcd", []string{"store/etcd"}, "the store"},
		{"go.uber.org/zap", []string{"store/etcd"}, "etcd's logger"},
		{"github.com/hashicorp/consul", []string{"discovery/consul"}, "endpoints"},
		{"github.com/miekg/dns", []string{"globalrouter", "discovery/dns", "health/probe"}, "the DNS slow path"},
		{"github.com/quic-go/quic-go", []string{"proxy/engine", "proxy/listen", "proxy/upstream", "globalrouter", "health/probe", "test/conformance"}, "QUIC: a connection lives as long as the engine that serves it; its socket and its ids may outlive that"},
		{"github.com/quic-go/qpack", []string{"proxy/http3"}, "field sections of HTTP/3"},
		{"google.golang.org/grpc", []string{"nodeapi", "regionctl", "proxy/peer", "store/etcd", "test/conformance"}, "the node protocol; a server behind the gateway in tests"},
		{"google.golang.org/protobuf", []string{"nodeapi", "regionctl"}, "the node protocol"},
		{"google.golang.org/protobuf/encoding/protowire", []string{"proxy/traces", "test/conformance"}, "spans, written as they are sent; messages of a suite"},
		{"google.golang.org/protobuf/proto", []string{"nodeapi", "regionctl", "internal/otlpsink"}, "what a collector gets, in tests"},
		{"go.opentelemetry.io/proto/otlp", []string{"internal/otlpsink"}, "the same"},
		{"github.com/klauspost/compress", []string{"nodeapi", "regionctl", "proxy"}, "zstd"},
		{"github.com/spf13/cobra", []string{"cmd"}, "command lines"},
		{"github.com/spf13/pflag", []string{"cmd"}, "command lines"},
		{"github.com/prometheus/client_golang", []string{"*"}, "metrics"},
		{"github.com/go-jose/go-jose", []string{"proxy/auth", "proxy/jwks", "cmd/internal/wire/cellgate"}, "JWS and keys: parsing and verifying without I/O; the sample identity provider"},
		{"go.yaml.in/yaml", []string{"snapshot", "cmd"}, "authors' documents: nodes with line and column"},
		{"golang.org/x/net/dns/dnsmessage", []string{"internal/dnsask"}, "what ordinary clients ask: readiness of a world, loads"},
		{"golang.org/x/net/ipv4", []string{"proxy/listen"}, "datagrams in batches, as quic-go reads them"},
		{"golang.org/x/net/idna", []string{"snapshot", "proxy/path"}, "host names"},
		{"golang.org/x/net/publicsuffix", []string{"snapshot"}, "wildcard hosts"},
		{"golang.org/x/sync", []string{"*"}, "errgroup, singleflight"},
		{"golang.org/x/sys", []string{"*", "internal"}, "system calls"},
		{"golang.org/x/term", []string{"cmd"}, "terminals"},
	}
}

// pureMayImport are the third-party libraries of floors 0 and 1, each with the reason that it is pure.
func pureMayImport() map[string]string {
	return map[string]string{
		"go.yaml.in/yaml":               "bytes to nodes, no I/O",
		"github.com/go-jose/go-jose":    "bytes to verified claims, no I/O",
		"golang.org/x/net/idna":         "a table",
		"golang.org/x/net/publicsuffix": "a table",
		"github.com/quic-go/qpack":      "a codec",
	}
}

// impureImports are the parts of the standard library that judgement may not touch, with all below them,
// except for the pure packages among them.
func impureImports() (impure, pure []string) {
	return []string{"os", "net", "log", "syscall", "io/ioutil", "path/filepath", "runtime", "plugin", "database", "crypto/rand", "crypto/tls", "expvar", "testing"},
		[]string{"net/netip", "net/url", "net/textproto", "runtime/debug"}
}

// socketlessNames of package net are plain string work, so the package itself may be imported for them.
func socketlessNames() []string { return []string{"SplitHostPort", "JoinHostPort"} }

// clockNames of package time read or wait for the clock.
func clockNames() []string {
	return []string{"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker", "Timer", "Ticker"}
}

// seededNames of package math/rand/v2 are fine in judgement: everything else there is the global source.
func seededNames() []string {
	return []string{"New", "NewPCG", "NewChaCha8", "NewZipf", "Rand", "PCG", "ChaCha8", "Source", "Zipf"}
}

// neverIn says what a binary must not be made of: module-relative packages or third-party modules.
func neverIn() map[string][]string {
	control := []string{"go.etcd.io/etcd", "regionctl"}
	return map[string][]string{
		"proxy": append(control, "globalrouter"), "globalrouter": append(control, "proxy"),
		"healthd": append(control, "proxy", "globalrouter"), "capacityd": append(control, "proxy", "globalrouter"),
	}
}

// exceptNever are parts of what neverIn names that are words or judgement, which anybody may use.
func exceptNever() []string {
	return []string{"regionctl/rollout", "globalrouter/steer", "globalrouter/locate", "globalrouter/answer", "globalrouter/view", "proxy/path"}
}

// longFunctions may have more than maxFunction lines: one main switch or straight-line wiring each.
func longFunctions() map[string]string { return map[string]string{} }

const (
	maxMain     = 40   // lines of a main.go
	maxFunction = 100  // lines of a function
	maxRoot     = 1500 // lines of the proxy root, without tests
)

// within says whether pkg is root or below it.
func within(pkg, root string) bool { return pkg == root || strings.HasPrefix(pkg, root+"/") }
