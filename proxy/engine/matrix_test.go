package engine_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/reason"
)

const matrixDocument = `
version: v1
routes:
  - {id: ok, match: {host: a.example, path: /ok}, upstream: up}
  - {id: user, match: {host: a.example, path: /user}, upstream: up, auth: jwt}
  - {id: limited, match: {host: a.example, path: /limited}, upstream: up, limits: {tenant: 1/hour}}
  - {id: off, match: {host: a.example, path: /off}, upstream: up}
  - {id: echo, match: {host: a.example, path: /echo, methods: [TRACE]}, upstream: up}
  - {id: total, match: {host: a.example, path: /total}, upstream: up, timeout: 300ms}
  - {id: first, match: {host: a.example, path: /first}, upstream: hasty}
  - {id: dead, match: {host: a.example, path: /dead}, upstream: dead}
  - {id: narrow, match: {host: a.example, path: /narrow}, upstream: narrow}
  - {id: nowhere, match: {host: a.example, path: /nowhere}, upstream: gone}
upstreams:
  - {id: up, endpoints: ["UP"]}
  - {id: hasty, endpoints: ["UP"], timeouts: {response_header: 100ms}}
  - {id: dead, endpoints: ["127.46.0.9:1"]}
  - {id: narrow, endpoints: ["UP"], pool: {max_connections: 1, max_pending: 1}}
  - {id: gone, discovery: {consul: gone}}
policies: [{id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}]
`

// onlyIn lets in who shows the one token.
type onlyIn struct{}

func (onlyIn) Foresee(*proxy.Credentials) {}

func (onlyIn) Authenticate(c *proxy.Credentials, _ *proxy.Identity, _ time.Time) (reason.Reason, <-chan struct{}) {
	switch string(c.Authorization) {
	case "":
		return reason.TokenMissing, nil
	case "Bearer in":
		return reason.None, nil
	}
	return reason.TokenInvalid, nil
}

// ways gives every engine with every protocol that it serves, each in a world of its own.
func ways(t *testing.T, up func() (addr string, seen chan string), s setup) map[string]func(sample) string {
	all := map[string]func(sample) string{}
	for name, to := range worlds(t, up, s) {
		all[name] = to.ask
	}
	return all
}

// way is one engine's world, asked over one protocol, on a connection of its own each time.
type way struct {
	*world
	ask func(sample) string
}

func worlds(t *testing.T, up func() (addr string, seen chan string), s setup) map[string]way {
	all := map[string]way{}
	kinds := engines()
	kinds["nethttp"] = standard
	for name, kind := range kinds {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2", "HTTP/1.1 over TLS", "HTTP/2 over TLS", "HTTP/3"} {
			addr, seen := up()
			s := s
			protocol, overTLS := strings.CutSuffix(protocol, " over TLS")
			s.h3 = overTLS || protocol == "HTTP/3"
			w := start(t, kind, addr, s)
			w.server.Deny(denylist.Compile([]denylist.Entry{{Kind: denylist.Route, ID: "off"}}))
			ask := func(s sample) string { return overHTTP1(t, w, s, seen) }
			switch protocol {
			case "HTTP/2":
				ask = func(s sample) string { return overHTTP2(w, s, seen) }
			case "HTTP/3":
				ask = func(s sample) string { return overHTTP3(w.h3Dial(control), s, seen) }
			}
			if name := name + ", " + protocol; overTLS {
				w.trust = &tls.Config{RootCAs: w.roots, ServerName: "a.example", NextProtos: []string{map[string]string{"HTTP/1.1": "http/1.1", "HTTP/2": "h2"}[protocol]}}
				all[name+" over TLS"] = way{w, ask}
			} else {
				all[name] = way{w, ask}
			}
		}
	}
	return all
}

// G77: no policy holds on one engine or protocol only.
func TestEveryPolicyHoldsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	trusted, err := hops.Parse([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("upstream over HTTP/1.1", func(t *testing.T) { everyPolicy(t, handler, matrixDocument, trusted) })
	t.Run("upstream over HTTP/2", func(t *testing.T) {
		everyPolicy(t, func(t testing.TB, h http.HandlerFunc) string { return handler2(t, nil, h) }, over2(matrixDocument), trusted)
	})
}

func everyPolicy(t *testing.T, handler func(testing.TB, http.HandlerFunc) string, document string, trusted hops.Trusted) {
	up := func() (string, chan string) {
		seen := make(chan string, 10)
		var opens sync.Once
		opened := make(chan struct{})
		return handler(t, func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/ok":
				if r.URL.RawQuery == "open" {
					opens.Do(func() { close(opened) })
				}
			case "/narrow":
				<-opened
			case "/total", "/first":
				select {
				case <-r.Context().Done():
				case <-time.After(time.Second):
				}
			}
			seen <- fmt.Sprint(r.Header.Get("X-Forwarded-For"), " ", r.Header.Get("X-Forwarded-Proto"), " ", r.Header.Get("X-Caller"))
			w.Header()["Date"] = nil
		}), seen
	}
	with := func(target string, fields ...string) sample {
		return sample{method: "GET", target: target, fields: fields}
	}
	for name, ask := range ways(t, up, setup{document: document, auth: onlyIn{}, trusted: trusted, silent: true}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holds := func(what string, s sample, want string) {
				t.Helper()
				if got := ask(s); !strings.HasPrefix(got, want[:3]) || !strings.Contains(got, want[4:]) || strings.Contains(got, "root") {
					t.Errorf("%s: %s\nwant %s", what, got, want)
				}
			}
			holds("nobody", with("/user"), "401 token_missing")
			holds("somebody else", with("/user", "Authorization", "Bearer out"), "401 token_invalid")
			holds("two tokens", with("/user", "Authorization", "Bearer in", "Authorization", "Bearer in"), "401 token_invalid")
			holds("two keys", with("/user", "X-API-Key", "cg_in", "X-API-Key", "cg_in"), "401 key_invalid")
			holds("a known caller", with("/user", "Authorization", "Bearer in", "X-Caller", "root"), "200 upstream: 127.")
			holds("a client of a trusted proxy", with("/ok", "X-Forwarded-For", "192.0.2.9, 192.0.2.1, 127.0.0.7", "X-Forwarded-Proto", "https"), "200 upstream: 192.0.2.1 https")
			holds("within the limit", with("/limited"), "200 ")
			holds("over the limit", with("/limited"), "429 rate_tenant")
			holds("a route that is switched off", with("/off"), "503 route_denied")
			holds("no route", with("/none"), "404 no_route")
			holds("TRACE that no route names", sample{method: "TRACE", target: "/ok"}, "405 method_not_allowed")
			holds("TRACE that one names", sample{method: "TRACE", target: "/echo"}, "200 upstream")
			holds("TRACK", sample{method: "TRACK", target: "/ok"}, "405 method_not_allowed")
			holds("OPTIONS for the node", sample{method: "OPTIONS", target: "*"}, "204 ")
			holds("a deadline that is none", with("/ok", "X-Request-Timeout-Ms", "soon"), "400 deadline_invalid")
			holds("a deadline that is past", with("/ok", "X-Request-Timeout-Ms", "0"), "504 deadline_expired")
			holds("the client's deadline", with("/total", "X-Request-Timeout-Ms", "150"), "504 upstream_timeout")
			holds("the route's timeout", with("/total"), "504 upstream_timeout")
			holds("the upstream's timeout", with("/first"), "504 upstream_timeout")
			holds("no upstream", with("/dead"), "503 connect_failed")
			holds("no endpoint", with("/nowhere"), "503 no_endpoint") // CASES G55
			holds("a body that is announced too large", sample{method: "POST", target: "/ok", fields: []string{"Content-Length", "10485761"}, open: true}, "413 body_too_large")
			for _, call := range []struct{ what, target, code, why, field, value string }{ // CASES G15
				{"nobody", "/user", "16", "token_missing", "X", "y"},
				{"somebody else", "/user", "16", "token_invalid", "Authorization", "Bearer out"},
				{"over the limit", "/limited", "8", "rate_tenant", "X", "y"},
				{"a route that is switched off", "/off", "14", "route_denied", "X", "y"},
				{"no route", "/none", "12", "no_route", "X", "y"},
				{"a method that the route hasn't", "/echo", "12", "method_not_allowed", "X", "y"},
				{"a deadline that is none", "/ok", "13", "deadline_invalid", "Grpc-Timeout", "5s"},
				{"a deadline of too many digits", "/ok", "13", "deadline_invalid", "Grpc-Timeout", "123456789S"},
				{"a deadline that is past", "/ok", "4", "deadline_expired", "Grpc-Timeout", "0n"},
				{"the caller's deadline", "/total", "4", "", "Grpc-Timeout", "150000u"},
				{"the upstream's timeout", "/first", "4", "", "Grpc-Timeout", "99999999H"},
				{"no endpoint", "/nowhere", "14", "no_endpoint", "X", "y"},
				{"no upstream", "/dead", "14", "connect_failed", "X", "y"},
			} {
				got := ask(sample{method: "POST", target: call.target, body: "\x00\x00\x00\x00\x00",
					fields: []string{"Content-Type", "application/grpc+x", "Te", "trailers", call.field, call.value}})
				for _, part := range []string{`"content-type: application/grpc+x"`, `"grpc-status: ` + call.code + `"`, call.why + `" cut=false`} {
					if !strings.HasPrefix(got, "200 ") || !strings.Contains(got, part) {
						t.Errorf("gRPC, %s: %s\nwant %s", call.what, got, part)
						break
					}
				}
			}
			bulkhead(t, ask)
		})
	}
}

// bulkhead holds a pool of one connection and one that waits against four requests at once: two are refused, before the
// others are even answered.
func bulkhead(t *testing.T, ask func(sample) string) {
	t.Helper()
	came := make(chan string, 4)
	for range 4 {
		go func() { came <- ask(sample{method: "GET", target: "/narrow"}) }()
	}
	for i := range 4 {
		want := "503 pool_full"
		if i == 2 {
			ask(sample{method: "GET", target: "/ok?open"})
		}
		if i >= 2 {
			want = "200 "
		}
		select {
		case got := <-came:
			if !strings.HasPrefix(got, want[:3]) || !strings.Contains(got, want[4:]) {
				t.Errorf("the bulkhead, answer %d: %s", i, got)
			}
		case <-time.After(patience):
			t.Errorf("the bulkhead: answer %d doesn't come", i)
		}
	}
}
