package engine_test

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/otlpsink"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/traces"
	"github.com/cellgate/cellgate/snapshot"
)

// exporter keeps spans for a collector, and samples nothing by itself.
func exporter(t testing.TB, url string) *traces.Exporter {
	t.Helper()
	e, err := traces.New(traces.Options{URL: url, Allow: snapshot.Loopback()})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

const tracedDocument = `
version: v1
routes:
  - {id: again, match: {host: a.example, path: /again}, upstream: up, retry: {attempts: 1, conditions: ["503"]}}
  - {id: dead, match: {host: a.example, path: /dead}, upstream: dead}
upstreams:
  - {id: up, endpoints: ["UP"], outlier: off, breaker: off}
  - {id: dead, endpoints: ["127.73.3.9:1"]}
`

// K1 on every engine and protocol: a trace has a span of the exchange and one below it of each attempt, which the upstream knows as
// what it is called by.
func TestTracesHaveTheirSpansOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	asked := map[string]int{}
	up := func(w http.ResponseWriter, r *http.Request) { // every request id is refused once
		mu.Lock()
		defer mu.Unlock()
		id := r.Header.Get("X-Request-Id")
		w.Header().Set("X-Trace", r.Header.Get("Traceparent"))
		if asked[id]++; asked[id] == 1 {
			w.WriteHeader(503)
		}
	}
	trusted, err := hops.Parse([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	for _, over := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run("upstream over "+over, func(t *testing.T) {
			t.Parallel()
			document, addr := tracedDocument, ""
			if over == "HTTP/2" {
				document, addr = over2(tracedDocument), handler2(t, nil, up)
			} else {
				addr = handler(t, up)
			}
			sink := otlpsink.New(t, "127.73.3.1:0")
			e := exporter(t, sink.URL)
			var want []func(t *testing.T)
			s := setup{document: document, silent: true, recorder: e, trusted: trusted}
			fronts(t, addr, s, func(t *testing.T, w *world, c *http.Client, scheme string) {
				want = append(want, traced(t, sink, c, scheme+"://a.example")...)
				w.has(0) // all are recorded
			})
			ctx, cancel := context.WithCancel(t.Context())
			if cancel(); e.Run(ctx) != nil { // sends what is left
				t.Fatal("the exporter has failed")
			}
			for _, check := range want {
				check(t)
			}
		})
	}
}

// traced asks, and gives what must hold of the spans that come of it.
func traced(t *testing.T, sink *otlpsink.Sink, c *http.Client, base string) (checks []func(*testing.T)) {
	t.Helper()
	name := t.Name()
	for i, sampled := range []string{"01", "00"} {
		trace, parent := fmt.Sprintf("%032x", time.Now().UnixNano()+int64(i)), "00f067aa0ba902b7"
		ask := func(path string) *http.Response {
			req, _ := http.NewRequest("GET", base+path+"?token=s3cret", nil)
			req.Header.Set("Traceparent", "00-"+trace+"-"+parent+"-"+sampled)
			res, err := c.Do(req)
			read(t, res, err)
			return res
		}
		again := ask("/again")
		seen := again.Header.Get("X-Trace")
		dead, none := ask("/dead"), ask("/none")
		if again.StatusCode != 200 || dead.StatusCode != 503 || none.StatusCode != 404 {
			t.Fatalf("%d %d %d", again.StatusCode, dead.StatusCode, none.StatusCode)
		}
		checks = append(checks, func(t *testing.T) {
			t.Helper()
			if sampled == "00" {
				if spans := sink.Of(trace); len(spans) > 0 || !strings.HasSuffix(seen, "-00") {
					t.Errorf("%s: %d spans of a trace that isn't sampled, %s", name, len(spans), seen)
				}
				return
			}
			var got []string
			ids := map[string]otlpsink.Span{}
			spans := sink.Of(trace)
			for _, s := range spans {
				ids[s.ID()] = s
			}
			for _, s := range spans {
				above := s.Parent()
				if p, ok := ids[above]; ok {
					above = p.Name
				}
				got = append(got, fmt.Sprint(s.Kind.Number(), " ", s.Name, " < ", above, ": ", s.Number("http.response.status_code"), " ", s.Text("cellgate.result"), " ", s.Text("error.type"), " ", s.Number("http.request.resend_count")))
				if strings.Contains(s.String(), "s3cret") {
					t.Errorf("%s: a query is in %v", name, s.Span)
				}
			}
			slices.Sort(got)
			want := []string{
				"2 GET < " + parent + ": 404   0",
				"2 GET again < " + parent + ": 200   0",
				"2 GET dead < " + parent + ": 503  connect_failed 0",
				"3 GET < GET again: 200 answered  1",
				"3 GET < GET again: 503 answered 503 0",
				"3 GET < GET dead: 0 connect_failed connect_failed 0",
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s:\n%s", name, strings.Join(got, "\n"))
			}
			if s := ids[seen[36:52]]; s.Span == nil || s.Number("http.request.resend_count") != 1 || !strings.HasSuffix(seen, "-01") {
				t.Errorf("%s: the upstream was called by %s", name, seen)
			}
		})
	}
	return checks
}
