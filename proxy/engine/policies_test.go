package engine_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/shed"
	"github.com/cellgate/cellgate/snapshot"
)

const upstreamsDocument = `
version: v1
routes:
  - {id: near, match: {host: a.example, path: /near}, upstream: near}
  - {id: keyed, match: {host: a.example, path: /keyed}, upstream: keyed}
  - {id: cookie, match: {host: a.example, path: /cookie}, upstream: cookie}
  - {id: critical, match: {host: a.example, path: /critical}, upstream: up, priority: critical}
  - {id: normal, match: {host: a.example, path: /normal}, upstream: up}
  - {id: background, match: {host: a.example, path: /background}, upstream: up, priority: background}
  - {id: broken, match: {host: a.example, path: /broken}, upstream: broken}
  - {id: saved, match: {host: a.example, path: /saved}, upstream: saved}
upstreams:
  - {id: near, endpoints: [{address: "127.46.0.9:1", zone: b}, {address: "UP", zone: a}, {address: "127.46.0.9:2", region: r}]}
  - {id: keyed, endpoints: ["127.46.0.9:1", "UP"], balance: hash, hash: {on: "header:X-Session"}, outlier: off, breaker: off}
  - {id: cookie, endpoints: ["127.46.0.9:1", "UP"], balance: hash, hash: {on: "cookie:s"}, outlier: off, breaker: off}
  - {id: broken, endpoints: ["UP"], breaker: {calls: 5}}
  - {id: saved, endpoints: ["127.46.0.9:1"], breaker: {calls: 5}, fallback: up}
  - {id: up, endpoints: ["UP"]}
`

// I9 on every engine and protocol: five failures open the breaker, and nobody is sent on; or elsewhere, where there is a fallback.
func TestBreakersHoldOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	up := func() (string, chan string) {
		seen := make(chan string, 10)
		return handler(t, func(w http.ResponseWriter, r *http.Request) {
			if seen <- ""; r.URL.Path == "/broken" {
				w.WriteHeader(500)
			}
		}), seen
	}
	for name, ask := range ways(t, up, setup{document: upstreamsDocument, silent: true}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holds := func(target, want string) {
				t.Helper()
				if got := ask(sample{method: "GET", target: target}); !strings.HasPrefix(got, want[:3]) || !strings.Contains(got, want[4:]) {
					t.Fatalf("%s, not %s", got, want)
				}
			}
			for range 5 {
				holds("/broken", "500 ")
				holds("/saved", "503 connect_failed")
			}
			for range 3 {
				holds("/broken", "503 breaker_open")
				holds("/saved", "200 upstream")
			}
		})
	}
}

// lives is a finder that finds one address for everything.
type lives string

func (at lives) Follow(ctx context.Context, _ snapshot.Discovery, found func([]snapshot.Endpoint)) {
	found([]snapshot.Endpoint{{Address: string(at)}, {Address: "169.254.169.254:80"}})
	<-ctx.Done()
}

// I1 on every engine and protocol: what discovery finds is used, but for addresses that may not be dialled.
func TestDiscoveredEndpointsServeOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	seen := make(chan string, 1000)
	addr := handler(t, func(http.ResponseWriter, *http.Request) { seen <- "" })
	up := func() (string, chan string) { return addr, make(chan string) }
	document := "version: v1\nroutes: [{id: r, match: {host: a.example, path: /found}, upstream: u}]\nupstreams: [{id: u, discovery: {dns: \"orders.internal:80\"}, tls: off}]\n"
	for name, ask := range ways(t, up, setup{document: document, finder: lives(addr), silent: true}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 5 {
				if got := ask(sample{method: "GET", target: "/found"}); !strings.HasPrefix(got, "200") {
					t.Fatal(got)
				}
			}
		})
	}
}

const writesDocument = `
version: v1
routes:
  - {id: once, match: {host: a.example, path: /once}, upstream: once, retry: {attempts: 2, conditions: [connect-failure, reset-before-headers, "502", "503", "504"]}}
  - {id: keyed, match: {host: a.example, path: /keyed}, upstream: keyed, retry: {attempts: 2}}
  - {id: owned, match: {host: a.example, path: /owned}, upstream: owned}
upstreams:
  - {id: once, endpoints: ["UP"], outlier: off, breaker: off}
  - {id: keyed, endpoints: ["UP"], outlier: off, breaker: off, idempotency: supported}
  - {id: owned, endpoints: [{address: "UP", region: there}, {address: "127.46.0.9:1", region: here}], owner_region: there}
`

// I7 and I11 on every engine and protocol: what is no read reaches the upstream once, unless the upstream knows it by its key; and it
// goes to the region that owns it.
func TestWritesAreSentOnceToTheirOwnerOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	up := func() (string, chan string) {
		seen := make(chan string, 100)
		return handler(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			if seen <- "asked"; r.URL.Path != "/owned" {
				panic(http.ErrAbortHandler) // without an answer
			}
		}), seen
	}
	for name, ask := range ways(t, up, setup{document: writesDocument, here: snapshot.Locality{Region: "here"}, silent: true}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holds := func(method, target, status string, times int, fields ...string) {
				t.Helper()
				s := sample{method: method, target: target, fields: fields}
				if method == "POST" {
					s.body = "x"
				}
				if got := ask(s); !strings.HasPrefix(got, status) || strings.Count(got, "asked") != times {
					t.Errorf("%s %s %v: not %s after %d times:\n%s", method, target, fields, status, times, got)
				}
			}
			holds("GET", "/once", "503", 3)
			holds("POST", "/once", "503", 1)
			holds("POST", "/once", "503", 1, "Idempotency-Key", "k")
			holds("POST", "/keyed", "503", 1)
			holds("POST", "/keyed", "503", 3, "Idempotency-Key", "k")
			holds("POST", "/owned", "200", 1)
			holds("GET", "/owned", "503", 0)
		})
	}
}

// I10 on every engine and protocol: at half the scale background is shed, then normal; critical never but to stay alive.
func TestSheddingHoldsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	up := func() (string, chan string) {
		seen := make(chan string, 10)
		return handler(t, func(http.ResponseWriter, *http.Request) { seen <- "" }), seen
	}
	for _, level := range []shed.Level{0, 1000, 2000, 3000} {
		for name, ask := range ways(t, up, setup{document: upstreamsDocument, level: level, silent: true}) {
			t.Run(fmt.Sprint(level, ", ", name), func(t *testing.T) {
				t.Parallel()
				for class, target := range []string{"/background", "/normal", "/critical"} {
					want, got := "200 upstream", ask(sample{method: "GET", target: target})
					if level > shed.Level(class)*1000 {
						want = "503 overloaded"
					}
					if !strings.HasPrefix(got, want[:3]) || !strings.Contains(got, want[4:]) {
						t.Errorf("%s: %s, not %s", target, got, want)
					}
				}
			})
		}
	}
}

// What counts at an upstream is taken back however an exchange ends: answered, shed, refused, or left by its client.
func TestEveryExchangeLeavesItsUpstreamsCounts(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		up := handler(t, func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/critical" {
				<-r.Context().Done()
			}
		})
		w := start(t, up, setup{document: strings.Replace(upstreamsDocument, `id: up, endpoints`, `id: up, concurrency: 40, endpoints`, 1), silent: true})
		var all []*raw
		for range 60 {
			for _, target := range []string{"/normal", "/broken", "/critical", "/saved"} {
				c := w.dial()
				fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: a.example\r\n\r\n", target)
				if target != "/critical" {
					_, _ = c.r.ReadByte()
				}
				all = append(all, c)
			}
		}
		if under, _, shed := w.counts(); under == 0 || shed == 0 {
			t.Fatalf("%d under way, %d shed", under, shed)
		}
		for _, c := range all {
			c.Close()
		}
		w.countsNothing()
	})
}

// H6 over every protocol: a caller that cancels what it asked for, on a connection that stays, gives its place back too.
func TestCancelledExchangesLeaveTheirUpstreamsCountsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	up := handler(t, func(_ http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/critical" {
			<-r.Context().Done()
		}
	})
	document := strings.Replace(upstreamsDocument, `id: up, endpoints`, `id: up, concurrency: 30, endpoints`, 1)
	t.Run("ways", func(t *testing.T) { // the upstream outlives them all
		fronts(t, up, setup{document: document, silent: true}, func(t *testing.T, w *world, c *http.Client, scheme string) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			var all sync.WaitGroup
			ask := func(ctx context.Context, target string) {
				req, _ := http.NewRequestWithContext(ctx, "GET", scheme+"://a.example"+target, nil)
				if res, err := c.Do(req); err == nil {
					_, _ = io.Copy(io.Discard, res.Body)
					res.Body.Close()
				}
			}
			for range 40 {
				all.Go(func() { ask(ctx, "/critical") })
			}
			w.until("the upstream is full", func() bool { under, _, shed := w.counts(); return under == 30 && shed == 10 })
			for _, target := range []string{"/normal", "/broken", "/saved"} {
				ask(t.Context(), target)
			}
			cancel()
			all.Wait()
			w.countsNothing()
			if ask(t.Context(), "/normal"); w.server.Connections.Load() == 0 && scheme == "https" {
				t.Error("the connection has ended with its exchanges")
			}
		})
	})
}

// counts are the exchanges and attempts that count as under way at upstreams, and those that found no room.
func (w *world) counts() (under, load int, shed uint64) {
	for _, u := range w.server.Snapshot().Upstreams {
		under += u.Under
		for i, n := range u.Load {
			load, shed = load+n, shed+u.Shed[i]
		}
	}
	return under, load, shed
}

// countsNothing waits until nothing counts any more.
func (w *world) countsNothing() {
	w.t.Helper()
	w.until("nothing counts", func() bool { under, load, _ := w.counts(); return under == 0 && load == 0 })
}

// until waits for what must come.
func (w *world) until(what string, is func() bool) {
	w.t.Helper()
	for end := time.Now().Add(patience); !is(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatal("never: ", what)
		}
	}
}

// I2 on every engine and protocol: near endpoints alone are asked, and a key goes to one endpoint, here either the one that
// lives or the one that doesn't.
func TestBalancingHoldsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	up := func() (string, chan string) {
		seen := make(chan string, 10)
		return handler(t, func(http.ResponseWriter, *http.Request) { seen <- "" }), seen
	}
	for name, ask := range ways(t, up, setup{document: upstreamsDocument, here: snapshot.Locality{Region: "here", Zone: "a"}, silent: true}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			status := func(target string, fields ...string) string {
				return strings.Fields(ask(sample{method: "GET", target: target, fields: fields}))[0]
			}
			for range 6 {
				if got := status("/near"); got != "200" {
					t.Fatalf("a far endpoint was asked: %s", got)
				}
			}
			came := map[string]bool{}
			for key := range 12 {
				session := fmt.Sprint("session-", key)
				first := status("/keyed", "X-Session", session)
				came[first] = true
				if again := status("/keyed", "X-Session", session); again != first {
					t.Fatalf("one key went two ways: %s, then %s", first, again)
				}
				if by := status("/cookie", "Cookie", "a=b; s="+session); by != first {
					t.Fatalf("%s by the cookie, %s by the header", by, first)
				}
			}
			if !came["200"] || !came["503"] {
				t.Fatalf("all keys went one way: %v", came)
			}
		})
	}
}
