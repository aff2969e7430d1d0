package proxy

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/ask"
	decisions "github.com/cellgate/cellgate/proxy/decide"
	"github.com/cellgate/cellgate/snapshot"
)

const decidedDocument = `
version: v1
routes: [{id: r, match: {host: a.example, path: /r}, upstream: up, policies: [pdp]}]
upstreams: [{id: up, endpoints: ["127.0.0.1:1"]}]
policies: [{id: pdp, decision: {url: "PDP", inputs: [method, path, "header:X-Purpose"], max_stale: 5m, timeout: 1s}}]
`

// The stage allocates nothing for an answer that is known, as every other one.
func TestAKnownDecisionAllocatesNothing(t *testing.T) {
	pdp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"allow":true}`)
	}))
	asked := ask.New(ask.Options{Allow: snapshot.Loopback()})
	t.Cleanup(func() { asked.Close(); pdp.Close() })
	s := serverWith(t, &script{refuse: -1}, strings.Replace(decidedDocument, "PDP", pdp.URL, 1))
	s.opts.Decisions = decisions.New(asked, nil)
	x := exchangeOf(t, s, get("/r", "X-Purpose: work"))
	if x.Run(time.Now()) != Park {
		t.Fatal("nobody is asked")
	}
	<-x.Wait()
	if x.Run(time.Now()) != Next {
		t.Fatal(x.Reason)
	}
	if n := testing.AllocsPerRun(1000, func() {
		if x.reset(); x.Run(time.Now()) != Next {
			t.Fatal(x.Reason)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
