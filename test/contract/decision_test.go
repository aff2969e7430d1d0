package contract

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/test/harness"
)

// A service decides by the declared inputs; when it is gone nobody passes, and the answer says when to come back.
func TestDecisionsAreAskedFor(t *testing.T) {
	pdp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"allow":%v}`, string(body) == `{"header:x-purpose":["work"],"method":"GET"}`)
	}))
	defer pdp.Close()
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", fmt.Sprintf(`version: v1
routes: [{id: orders, match: {host: api.example.com, path: /v1/orders}, upstream: orders, policies: [pdp]}]
upstreams: [{id: orders, endpoints: [%q]}]
policies: [{id: pdp, decision: {url: %q, inputs: [method, "header:X-Purpose"], timeout: 1s}}]
`, backend(t), pdp.URL))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	holds := func(method, purpose string, status int, reason string) {
		t.Helper()
		res := askAs(t, http.DefaultClient, method, "http://"+addr+"/v1/orders", "X-Purpose", purpose, "X-Other", "x")
		if res.StatusCode != status || res.Header.Get("X-Cellgate-Reason") != reason || status == 503 && res.Header.Get("Retry-After") == "" {
			t.Errorf("%s %s: %d %v %s", method, purpose, res.StatusCode, res.Header, strings.TrimSpace(res.body))
		}
	}
	holds("GET", "work", 200, "")
	holds("GET", "play", 403, "decision_denied")
	holds("POST", "work", 403, "decision_denied")
	pdp.Close()
	holds("GET", "work", 503, "decision_unavailable")
}
