package contract

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// The whole way of a session: a key is made, claims are sealed, a node opens the cookie, the key is rotated.
func TestSessionsAreSealedOpenedAndRotated(t *testing.T) {
	key := run(t, "regionctl", "session", "key", "--id", "first")
	if key.Code != 0 {
		t.Fatal(key.Stderr)
	}
	dir := secretsDir(t, map[string]string{"session.keys": key.Stdout})
	file := filepath.Join(dir, "session.keys")
	claims := harness.WriteFile(t, "claims.json", fmt.Sprintf(`{"sub": "alice", "iat": %d, "exp": %d}`, time.Now().Unix()-10, time.Now().Unix()+3600))
	seal := func() string {
		t.Helper()
		out := run(t, "regionctl", "session", "seal", "--keys", file, "--policy", "web", "--tenant", "shop", "--cookie", "__Host-s", "--claims", claims)
		if out.Code != 0 {
			t.Fatal(out.Stderr)
		}
		return strings.TrimSpace(out.Stdout)
	}
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintf(w, "cookies %q", r.Header["Cookie"]) }))
	t.Cleanup(up.Close)
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", fmt.Sprintf(`version: v1
routes: [{id: orders, match: {host: api.example.com, path: /v1/orders}, upstream: orders, auth: web}]
upstreams: [{id: orders, endpoints: [%q]}]
policies: [{id: web, session: {cookie: __Host-s, keys_file: session.keys}}]
tenants: [{id: shop, hosts: [api.example.com]}]
`, strings.TrimPrefix(up.URL, "http://")))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--secrets", dir)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	holds := func(method, cookie string, status int, reason string, fields ...string) {
		t.Helper()
		res := askAs(t, http.DefaultClient, method, "http://"+addr+"/v1/orders", append(fields, "Cookie", "__Host-s="+cookie)...)
		if res.StatusCode != status || res.Header.Get("X-Cellgate-Reason") != reason {
			t.Errorf("%s %v: %d %s", method, fields, res.StatusCode, res.body)
		}
	}
	first := seal()
	if res := askAs(t, http.DefaultClient, "GET", "http://"+addr+"/v1/orders", "Cookie", "a=b; __Host-s="+first+"; c=d"); res.body != `cookies ["a=b; c=d"]` {
		t.Errorf("the upstream gets %s", res.body)
	}
	holds("GET", first, 200, "")
	holds("POST", first, 200, "")
	holds("POST", first, 403, "cross_site", "Origin", "https://evil.example")
	holds("GET", first[:len(first)-3], 401, "token_invalid")
	next := run(t, "regionctl", "session", "key", "--id", "second", "--keys", file)
	if next.Code != 0 || strings.Count(next.Stdout, `"id"`) != 2 {
		t.Fatal(next.Stdout, next.Stderr)
	}
	if err := os.WriteFile(file, []byte(next.Stdout), 0o600); err != nil {
		t.Fatal(err)
	}
	second := seal()
	harness.Eventually(t, 15*time.Second, "the node takes the new key", func() bool {
		return askAs(t, http.DefaultClient, "GET", "http://"+addr+"/v1/orders", "Cookie", "__Host-s="+second).StatusCode == 200
	})
	holds("GET", first, 200, "")
	if out := run(t, "regionctl", "session", "key"); out.Code != 2 || !strings.Contains(out.Stderr, "--id is required") {
		t.Errorf("%d %s", out.Code, out.Stderr)
	}
	for _, wrong := range []string{"session seal --keys x", "session key --id a.b", "session key --id first --keys " + file + " -o xml"} {
		if out := run(t, append([]string{"regionctl"}, strings.Fields(wrong)...)...); out.Code != 2 || out.Stdout != "" {
			t.Errorf("%s: exit %d %q", wrong, out.Code, out.Stdout)
		}
	}
}
