package contract

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// J3: a policy in shadow mode is counted and changes nothing; without the mode the same policy is enforced.
func TestAPolicyIsTriedBeforeItIsEnforced(t *testing.T) {
	addr, admin := harness.FreeAddr(t), harness.FreeAddr(t)
	idp := httptest.NewServer(&introspected{answer: map[string]string{}})
	pdp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"allow":true}`)
	}))
	t.Cleanup(func() { idp.Close(); pdp.Close() })
	key := run(t, "regionctl", "session", "key", "--id", "first")
	document := `version: v1
routes:
  - {id: tried, match: {host: api.example.com, path: /v1/tried}, upstream: up, policies: [web, SHADOW]}
  - {id: other, match: {host: api.example.com, path: /v1/other}, upstream: up}
upstreams: [{id: up, endpoints: ["` + backend(t) + `"]}]
policies:
  - {id: key, api_key: {}MODE}
  - {id: web, cors: {origins: ["https://app.test"]}MODE}
`
	shadows := strings.NewReplacer("MODE", ", mode: shadow", "SHADOW", "key").Replace(document)
	shadows = strings.Replace(shadows, "policies: [web, key]", "policies: [web, key, opaque, cookie, pdp]", 1) + fmt.Sprintf(`  - {id: opaque, mode: shadow, introspection: {url: %q, client_id: gw, client_secret_file: idp, timeout: 1s}}
  - {id: cookie, mode: shadow, session: {cookie: __Host-s, keys_file: keys}}
  - {id: pdp, mode: shadow, decision: {url: %q, inputs: [method], timeout: 1s}}
`, idp.URL, pdp.URL)
	doc := harness.WriteFile(t, "doc.yaml", shadows)
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--admin", admin, "--secrets", secretsDir(t, map[string]string{"idp": "s3cret/", "keys": key.Stdout}))
	d.WaitHTTP("http://"+admin+"/readyz", 200)
	tried := func() answered {
		return askAs(t, http.DefaultClient, "GET", "http://"+addr+"/v1/tried", "Origin", "https://evil.test", "X-API-Key", "cg_none", "Authorization", "Bearer gone", "Cookie", "__Host-s=bad")
	}
	for range 3 {
		if res := tried(); res.StatusCode != 200 || res.Header.Get("Vary") != "" || res.Header.Get("X-Cellgate-Reason") != "" {
			t.Errorf("a shadow is seen: %d %v", res.StatusCode, res.Header)
		}
	}
	ask(t, http.DefaultClient, "GET", "http://"+addr+"/v1/other")
	for _, want := range []string{`{policy="key",reason="key_invalid",verdict="refuse"} 3`, `{policy="web",reason="cors_refused",verdict="refuse"} 3`, `{policy="cookie",reason="token_invalid",verdict="refuse"} 3`,
		`{policy="opaque",reason="token_invalid",verdict="refuse"} 3`, `{policy="pdp",reason="",verdict="allow"} 3`} {
		harness.Eventually(t, 5*time.Second, want, func() bool {
			return strings.Contains(ask(t, http.DefaultClient, "GET", "http://"+admin+"/metrics").body, "cellgate_proxy_shadow_verdicts_total"+want)
		})
	}
	enforced := strings.NewReplacer("MODE", "", ", SHADOW]", "], auth: key").Replace(document)
	if err := os.WriteFile(doc, []byte(enforced), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Signal(syscall.SIGHUP)
	harness.Eventually(t, 5*time.Second, "the policy is enforced", func() bool { return tried().StatusCode == 401 })
}

// H1: the platform's limit holds for every tenant together, and is no caller's fault.
func TestThePlatformHasALimit(t *testing.T) {
	addr, admin := harness.FreeAddr(t), harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}")+`tenants: [{id: "*", limits: {rate: 1/hour}}]`+"\n")
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--admin", admin)
	d.WaitHTTP("http://"+admin+"/readyz", 200)
	url := "http://" + addr + "/v1/orders/7"
	if res := ask(t, http.DefaultClient, "GET", url); res.StatusCode != 200 {
		t.Fatalf("%d %s", res.StatusCode, res.body)
	}
	res := ask(t, http.DefaultClient, "GET", url)
	if res.StatusCode != 503 || res.Header.Get("X-Cellgate-Reason") != "platform_rate" || res.Header.Get("Retry-After") == "" || res.Header.Get("RateLimit") != "" {
		t.Errorf("%d %v %s", res.StatusCode, res.Header, res.body)
	}
	page := ""
	harness.Eventually(t, 5*time.Second, "both are counted", func() bool {
		page = ask(t, http.DefaultClient, "GET", "http://"+admin+"/metrics").body
		return strings.Contains(page, `cellgate_proxy_checks_total{check="limits",verdict="refused"} 1`) && strings.Contains(page, `cellgate_proxy_checks_total{check="limits",verdict="passed"} 1`)
	})
	if strings.Contains(page, "cellgate_proxy_limited_total{") {
		t.Errorf("a consumer is said to be at fault:\n%s", page)
	}
}
