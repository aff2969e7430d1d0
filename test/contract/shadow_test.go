package contract

import (
	"crypto/sha256"
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

// J3: limits in shadow mode are counted and change nothing, within those that are enforced; without the mode they refuse.
func TestLimitsAreTriedBeforeTheyAreEnforced(t *testing.T) {
	addr, admin := harness.FreeAddr(t), harness.FreeAddr(t)
	shadows := strings.Replace(oneRoute(`match: {host: api.example.com, path: /v1/tried}, limits: {tenant: 2/hour, mode: shadow}`, `endpoints: ["`+backend(t)+`"]`),
		"\nupstreams:", "\ntenants: [{id: acme, hosts: [api.example.com], limits: {rate: 4/hour}}]\nupstreams:", 1)
	doc := harness.WriteFile(t, "doc.yaml", shadows)
	if out := run(t, "regionctl", "config", "explain", "https://api.example.com/v1/tried", "--document", doc, "--allow-upstreams", "127.0.0.0/8"); !strings.Contains(out.Stdout, "tenant acme on this route (limit, shadow): depends: 2/hour") {
		t.Errorf("%+v", out)
	}
	bad := harness.WriteFile(t, "bad.yaml", strings.Replace(shadows, "mode: shadow", "mode: dark", 1))
	if out := run(t, "proxy", "serve", "--document", bad, "--http", addr); out.Code == 0 || !strings.Contains(out.Stderr, "bad.yaml:3") || !strings.Contains(out.Stderr, `routes[0].limits.mode: "dark" is not known`) {
		t.Errorf("%+v", out)
	}
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--admin", admin)
	d.WaitHTTP("http://"+admin+"/readyz", 200)
	tried := func() answered { return ask(t, http.DefaultClient, "GET", "http://"+addr+"/v1/tried") }
	for i := range 5 {
		res, want := tried(), 200
		if i == 4 {
			want = 429 // by the tenant's own limit, which is enforced
		}
		if res.StatusCode != want || (res.Header.Get("RateLimit") != "" || res.Header.Get("Retry-After") != "") != (want == 429) {
			t.Errorf("request %d: %d %v", i, res.StatusCode, res.Header)
		}
	}
	for _, want := range []string{`reason="",verdict="allow"} 2`, `reason="rate_tenant",verdict="refuse"} 2`} {
		harness.Eventually(t, 5*time.Second, want, func() bool {
			return strings.Contains(ask(t, http.DefaultClient, "GET", "http://"+admin+"/metrics").body, `cellgate_proxy_shadow_verdicts_total{policy="limits:r",`+want)
		})
	}
	enforced := strings.NewReplacer(", mode: shadow", "", "rate: 4/hour", "rate: 1000/hour").Replace(shadows)
	if err := os.WriteFile(doc, []byte(enforced), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Signal(syscall.SIGHUP)
	harness.Eventually(t, 5*time.Second, "the limit is enforced", func() bool { return tried().StatusCode == 429 })
}

// J3: rates of tenants and plans, too.
func TestRatesOfTenantsAndPlansAreTriedBeforeTheyAreEnforced(t *testing.T) {
	addr, admin := harness.FreeAddr(t), harness.FreeAddr(t)
	const key = "cg_tried"
	shadows := oneRoute(`match: {host: api.example.com, path: /v1/tried}, auth: key`, `endpoints: ["`+backend(t)+`"]`) + `policies: [{id: key, api_key: {}}]
plans: [{id: free, quota_per_day: 2, mode: shadow}]
consumers: [{id: ada, plan: free, api_key_hashes: [` + fmt.Sprintf(`"sha256:%x"`, sha256.Sum256([]byte(key))) + `]}]
tenants: [{id: acme, hosts: [api.example.com], limits: {rate: 1/hour, mode: shadow}}]
`
	doc := harness.WriteFile(t, "doc.yaml", shadows)
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--admin", admin)
	d.WaitHTTP("http://"+admin+"/readyz", 200)
	tried := func() answered {
		return askAs(t, http.DefaultClient, "GET", "http://"+addr+"/v1/tried", "X-API-Key", key)
	}
	for range 3 {
		if res := tried(); res.StatusCode != 200 || res.Header.Get("RateLimit") != "" {
			t.Errorf("a shadow is seen: %d %v", res.StatusCode, res.Header)
		}
	}
	for _, want := range []string{`policy="plan:free",reason="",verdict="allow"} 2`, `policy="plan:free",reason="quota_consumer",verdict="refuse"} 1`, `policy="tenant:acme",reason="rate_tenant",verdict="refuse"} 2`} {
		harness.Eventually(t, 5*time.Second, want, func() bool {
			return strings.Contains(ask(t, http.DefaultClient, "GET", "http://"+admin+"/metrics").body, "cellgate_proxy_shadow_verdicts_total{"+want)
		})
	}
	if err := os.WriteFile(doc, []byte(strings.ReplaceAll(shadows, ", mode: shadow", "")), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Signal(syscall.SIGHUP)
	harness.Eventually(t, 5*time.Second, "what was spent in shadow mode is spent", func() bool { return tried().StatusCode == 429 })
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
