package engine_test

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/retry"
)

const hedgeDocument = `
version: v1
routes:
  - {id: hedged, match: {host: a.example, path_prefix: /hedged}, upstream: two, hedge: true, timeout: 1s}
  - {id: written, match: {host: a.example, path_prefix: /written}, upstream: two, hedge: true, timeout: 300ms}
  - {id: plain, match: {host: a.example, path_prefix: /plain}, upstream: two}
upstreams:
  - {id: two, endpoints: ["UP"], balance: round_robin, slow_start: off, outlier: off, breaker: off}
`

// stalling are two endpoints. Of the requests for a path that ends in a digit the first stalls until the gateway gives it up; all
// others are answered, those for 9 with a failure, after which the one that stalls is answered well.
type stalling struct {
	asked, left [10]atomic.Int32
	failed      chan struct{}
}

func (s *stalling) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n := int(r.URL.Path[len(r.URL.Path)-1] - '0')
	switch {
	case n < 0 || n > 9:
	case strings.HasPrefix(r.URL.Path, "/plain"):
		fmt.Fprintf(w, "asked=%d left=%d", s.asked[n].Load(), s.left[n].Load())
	case s.asked[n].Add(1) == 1:
		_, _ = io.Copy(io.Discard, r.Body) // a server sees its client leave once it has read everything
		select {
		case <-s.failed:
		case <-r.Context().Done():
			s.left[n].Add(1)
		}
	case n == 9:
		w.WriteHeader(500)
		_ = http.NewResponseController(w).Flush()
		close(s.failed)
	}
}

// I8 on every engine and protocol: an answer that doesn't come is asked for elsewhere, and whoever is late is cancelled. A fast
// failure doesn't win, and what is no read is never sent twice.
func TestHedgingHoldsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	t.Run("upstream over HTTP/1.1", func(t *testing.T) { hedging(t, handler, hedgeDocument) })
	t.Run("upstream over HTTP/2", func(t *testing.T) {
		hedging(t, func(t testing.TB, h http.HandlerFunc) string { return handler2(t, nil, h) }, over2(hedgeDocument))
	})
}

func hedging(t *testing.T, handler func(testing.TB, http.HandlerFunc) string, document string) {
	up := func() (string, chan string) {
		s := &stalling{failed: make(chan struct{})}
		return handler(t, s.ServeHTTP) + `", "` + handler(t, s.ServeHTTP), nil
	}
	for name, to := range worlds(t, up, setup{document: document}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			get := func(target string) string { return to.ask(sample{method: "GET", target: target}) }
			c, base := to.http1(), "http://a.example"
			if to.roots != nil {
				c.Transport.(*http.Transport).TLSClientConfig, base = &tls.Config{RootCAs: to.roots}, "https://a.example"
			}
			warm := func() { // slow answers may have used the budget up
				for range 60 {
					res, err := c.Get(base + "/hedged")
					if body := read(t, res, err); res.StatusCode != 200 {
						t.Fatalf("%d %s", res.StatusCode, body)
					}
				}
			}
			try, hedged := 0, false
			for ; try < 6 && !hedged; try++ {
				warm()
				for len(to.logged) > 0 {
					<-to.logged
				}
				count := fmt.Sprint("/plain/", try)
				got := get(fmt.Sprint("/hedged/", try))
				for hedged = strings.HasPrefix(got, "200"); hedged && !strings.Contains(get(count), "left=1"); {
					time.Sleep(10 * time.Millisecond) // the loser is cancelled soon
				}
				if hedged && !strings.Contains(get(count), "asked=2") {
					t.Fatalf("%s after %s", got, get(count))
				}
				if hedged {
					hedgedOnce(t, to.logged, fmt.Sprint("/hedged/", try))
				}
			}
			if !hedged {
				t.Fatal("nobody else was asked in six tries")
			}
			if got := to.ask(sample{method: "POST", target: "/written/8", body: "x"}); !strings.HasPrefix(got, "504") || !strings.Contains(get("/plain/8"), "asked=1") {
				t.Errorf("a POST: %s, %s", got, get("/plain/8"))
			}
			warm()
			if got := get("/hedged/9"); !strings.HasPrefix(got, "200") && !strings.Contains(get("/plain/9"), "asked=1") {
				t.Errorf("a fast failure: %s", got)
			}
		})
	}
}

// I8 in a pool that is full: a hedge that has lost while it waited for a connection isn't sent.
func TestAHedgeThatLostInTheQueueIsNotSent(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var asked atomic.Int32
		serve := func(_ http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/hedged/slow" {
				asked.Add(1)
				time.Sleep(150 * time.Millisecond)
			}
		}
		document := strings.Replace(hedgeDocument, "balance:", "pool: {max_connections: 1}, balance:", 1)
		w := start(t, handler(t, serve)+`", "`+handler(t, serve), setup{silent: true, document: document})
		c := w.dial()
		ask := func(path string) {
			if res, _, err := c.send(get(path)).answer("GET"); err != nil || res.StatusCode != 200 {
				t.Fatal(path, res, err)
			}
		}
		for try := range int32(6) { // others may have used the budget up
			for range 60 {
				ask("/hedged")
			}
			before := w.server.Snapshot().Upstreams[0].Hedges
			ask("/hedged/slow")
			ask("/plain") // waits behind the hedge
			time.Sleep(10 * time.Millisecond)
			if n := asked.Load(); n != try+1 {
				t.Fatalf("%d requests for %d", n, try+1)
			}
			if w.server.Snapshot().Upstreams[0].Hedges > before {
				return
			}
		}
		t.Fatal("no hedge in six tries")
	})
}

// hedgedOnce looks at the attempts of the exchange for a path: one was sent beside the first, and one of the two was given up. On a busy
// machine the endpoint may hear of the hedge first.
func hedgedOnce(t *testing.T, logged <-chan proxy.Record, path string) {
	t.Helper()
	for late := time.After(soon); ; {
		select {
		case r := <-logged:
			if r.Path != path {
				continue
			}
			a := slices.Clone(r.Tries) // in the order of their ends
			slices.SortFunc(a, func(a, b record.Attempt) int { return int(a.Number) - int(b.Number) })
			if len(a) != 2 || a[0].Hedge || a[0].Number != 1 || !a[1].Hedge || a[1].Number != 2 || a[0].Endpoint == a[1].Endpoint {
				t.Fatalf("%+v", a)
			}
			won, lost := a[1], a[0]
			if won.Result != retry.Answered {
				won, lost = lost, won
			}
			if won.Result != retry.Answered || won.Endpoint != r.Endpoint || lost.Result != retry.Fatal {
				t.Errorf("%+v", a)
			}
			return
		case <-late:
			t.Fatal("no record of the exchange")
		}
	}
}
