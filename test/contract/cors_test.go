package contract

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/test/harness"
)

// A document with such policies, served: the browser's question is answered ahead of the key, the request behind it needs one; the
// upstream gets another path and other fields than the client sent.
func TestProxyAnswersPreflightsAndTransforms(t *testing.T) {
	seen := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "inside")
		w.Header().Set("X-Seen", r.URL.Path+" "+r.Header.Get("X-New")+r.Header.Get("X-Old")+r.Header.Get("Cookie"))
		w.WriteHeader(500)
	}))
	t.Cleanup(seen.Close)
	doc := harness.WriteFile(t, "doc.yaml", `version: v1
routes:
  - {id: r, match: {host: api.example.com, path: /v1, methods: [PUT]}, upstream: u, policies: [key, web]}
  - {id: old, match: {host: api.example.com, path_prefix: /old}, upstream: seen, policies: [inner]}
upstreams: [{id: u, endpoints: ["`+backend(t)+`"]}, {id: seen, endpoints: ["`+strings.TrimPrefix(seen.URL, "http://")+`"]}]
policies:
  - {id: inner, transform: {request: {path_prefix: /new, rename: {x-old: x-new}, remove: [cookie]}, response: {set: {x-version: "2"}, status: {500: 503}}}}
  - {id: key, api_key: {}}
  - {id: web, cors: {origins: ["https://app.example.com"], headers: [x-api-key], max_age: 1h}}
`)
	addr := harness.FreeAddr(t)
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	ask := func(method, path string, fields ...string) *http.Response {
		req, _ := http.NewRequest(method, "http://"+addr+path, nil)
		req.Host = "api.example.com"
		for i := 0; i < len(fields); i += 2 {
			req.Header.Set(fields[i], fields[i+1])
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res
	}
	const app = "https://app.example.com"
	res := ask("OPTIONS", "/v1", "Origin", app, "Access-Control-Request-Method", "PUT", "Access-Control-Request-Headers", "x-api-key")
	if h := res.Header; res.StatusCode != 204 || h.Get("Access-Control-Allow-Origin") != app || h.Get("Access-Control-Max-Age") != "3600" || !strings.Contains(h.Get("Vary"), "Origin") {
		t.Errorf("%d %v", res.StatusCode, h)
	}
	if res := ask("PUT", "/v1", "Origin", app); res.StatusCode != 401 || res.Header.Get("Access-Control-Allow-Origin") != app {
		t.Errorf("without a key: %d %v", res.StatusCode, res.Header)
	}
	if res := ask("OPTIONS", "/v1", "Origin", "https://evil.example", "Access-Control-Request-Method", "PUT"); res.StatusCode != 403 || res.Header.Get("X-Cellgate-Reason") != "cors_refused" {
		t.Errorf("from elsewhere: %d %v", res.StatusCode, res.Header)
	}
	res = ask("GET", "/old/a", "X-Old", "v", "Cookie", "c=1")
	if h := res.Header; res.StatusCode != 503 || h.Get("X-Seen") != "/new/a v" || h.Get("X-Version") != "2" || h.Get("Server") != "" || h.Get("X-Cellgate-Reason") != "" {
		t.Errorf("transformed: %d %v", res.StatusCode, h)
	}
}
