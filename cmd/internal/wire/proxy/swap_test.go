package proxy

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/discovery/consul"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/program/programtest"
	"github.com/cellgate/cellgate/proxy/traces"
	"github.com/cellgate/cellgate/snapshot"
)

// TestTwoThousandSwapsOfAWholeNodeLeaveHeapAndGoroutinesFlat swaps upstreams, providers, policies and routes.
func TestTwoThousandSwapsOfAWholeNodeLeaveHeapAndGoroutinesFlat(t *testing.T) { // CASES G47
	jwks := `{"keys":[{"kty":"EC","crv":"P-256","kid":"k","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}`
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, jwks) }))
	defer idp.Close()
	c, err := newCore(slog.New(slog.DiscardHandler), time.Now(), callers.NewShared(time.Now()), snapshot.Loopback(), snapshot.Locality{}, nil, consul.Options{}, traces.Options{}, t.TempDir(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var g errgroup.Group
	c.runBelow(ctx, &g)
	n := &worldNode{core: c, allow: snapshot.Loopback(), first: make(chan struct{})}
	var snaps []*snapshot.Snapshot
	for i := range uint64(2) {
		snaps = append(snaps, sealed(t, i+1, fmt.Sprintf("%s/?%d", idp.URL, i)))
	}
	var live *program.Program
	swap := func(times int) {
		for i := range times {
			p, err := program.Compile(snaps[i%2], live)
			if err == nil {
				err = n.check(p)
			}
			if err == nil {
				err = n.apply(p, 1+i%3)
			}
			if err != nil {
				t.Fatal(err)
			}
			live = p
		}
	}
	swap(50)
	heap, routines := steady()
	swap(2000)
	if h, r := steady(); r > routines+2 || h > heap+2<<20 {
		t.Errorf("after 2,000 swaps: heap %d → %d bytes, goroutines %d → %d", heap, h, routines, r)
	}
	cancel()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func sealed(t *testing.T, number uint64, jwks string) *snapshot.Snapshot {
	return programtest.Seal(t, number, fmt.Sprintf(`
version: v1
routes:
  - {id: a, match: {host: api.gw.test, path: "/v%d/{id}"}, upstream: u, auth: jwt}
  - {id: b, match: {host: "h%d.gw.test", path_prefix: /v1}, upstream: w}
upstreams: [{id: u, endpoints: ["127.0.0.1:%d"]}, {id: w, endpoints: ["127.0.0.2:80"]}]
policies: [{id: jwt, jwt: {issuer: i, audience: a, jwks: %q}}]
`, number, number, 8000+number, jwks))
}

// steady waits for goroutines that are ending and measures.
func steady() (heap uint64, goroutines int) {
	time.Sleep(700 * time.Millisecond) // the waiters of the last fetches are let go after half a second
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, runtime.NumGoroutine()
}
