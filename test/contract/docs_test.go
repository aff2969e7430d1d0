package contract

import (
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/test/harness"
)

// Every document that the docs show whole is valid as it stands, on the machine that it is meant for.
func TestDocumentsInTheDocsAreValid(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for _, name := range append(files, "../../README.md") {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(raw, -1) {
			seen++
			if out := run(t, "regionctl", "config", "validate", document(t, string(m[1]))); out.Code != 0 {
				t.Errorf("%s:\n%s%s", name, m[1], out.Stdout)
			}
		}
	}
	if seen == 0 {
		t.Error("no document was found")
	}
}

// `proxy example` prints a document that is served as it stands: its routes say who they are for.
func TestProxyServesItsOwnExample(t *testing.T) {
	out := run(t, "proxy", "example")
	doc := document(t, strings.ReplaceAll(out.Stdout, "127.0.0.1:9000", backend(t)))
	if valid := run(t, "regionctl", "config", "validate", doc, "--allow-upstreams", "127.0.0.0/8"); out.Code != 0 || valid.Code != 0 {
		t.Fatalf("%+v %+v", out, valid)
	}
	addr := harness.FreeAddr(t)
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	for _, c := range []struct {
		path, key, reason string
	}{
		{"/hello/world", "", ""},
		{"/v1/orders/7", "", "token_missing"}, {"/v1/orders/7", "cg_wrong", "key_invalid"}, {"/v1/orders/7", "cg_demo", ""}, {"/", "", "no_route"},
	} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+c.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "127.0.0.1:8080"
		if c.key != "" {
			req.Header.Set("X-API-Key", c.key)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.Header.Get("X-Cellgate-Reason"); got != c.reason || (got == "") != (res.StatusCode == 200) {
			t.Errorf("%s with key %q: %d %s, want %s", c.path, c.key, res.StatusCode, got, c.reason)
		}
	}
}
