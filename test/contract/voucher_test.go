package contract

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/test/harness"
)

func privateKey(t *testing.T) string {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

// An upstream gets a signed token about each caller, fetches the keys from the node, and goes on verifying while they are rotated: the
// new key is there to be fetched before it signs.
func TestUpstreamsVerifyCallersTokensWhileKeysRotate(t *testing.T) {
	dir := secretsDir(t, map[string]string{"first.key": privateKey(t), "second.key": privateKey(t)})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Header.Get("X-Caller-Token")) }))
	t.Cleanup(up.Close)
	addr := harness.FreeAddr(t)
	document := func(second string) string {
		return fmt.Sprintf(`version: v1
routes: [{id: orders, match: {host: api.example.com, path: /v1/orders}, upstream: orders, auth: keys}]
upstreams: [{id: orders, endpoints: [%q], identity_token: {issuer: "https://gw.example.com"}}]
policies: [{id: keys, api_key: {}}]
consumers: [{id: acme, api_key_hashes: ["sha256:%x"]}]
identity_keys: [{id: first, file: first.key}%s]
`, up.Listener.Addr(), sha256.Sum256([]byte("cg_acme")), second)
	}
	doc := harness.WriteFile(t, "doc.yaml", document(""))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--secrets", dir)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	verified := func() (kid string, kids int) {
		t.Helper()
		req, _ := http.NewRequest("GET", "http://"+addr+"/v1/orders", nil)
		req.Host, req.Header = "api.example.com", http.Header{"X-Api-Key": {"cg_acme"}, "X-Caller-Token": {"a.b.c"}}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		token, _ := io.ReadAll(res.Body)
		res.Body.Close()
		signed, err := jose.ParseSignedCompact(string(token), []jose.SignatureAlgorithm{jose.EdDSA})
		if err != nil {
			t.Fatalf("%q: %v", token, err)
		}
		if res, err = http.Get("http://" + addr + "/.well-known/cellgate/jwks.json"); err != nil {
			t.Fatal(err)
		}
		var set jose.JSONWebKeySet
		err = json.NewDecoder(res.Body).Decode(&set)
		res.Body.Close()
		kid = signed.Signatures[0].Header.KeyID
		if err != nil || res.Header.Get("Content-Type") != "application/jwk-set+json" || len(set.Key(kid)) != 1 {
			t.Fatalf("%v %v %+v", err, res.Header, set)
		}
		body, err := signed.Verify(set.Key(kid)[0])
		var c struct {
			Iss, Aud, Sub, Consumer string
			Iat, Exp                int64
		}
		if err != nil || json.Unmarshal(body, &c) != nil || c.Iss != "https://gw.example.com" || c.Aud != "orders" || c.Sub != "acme" || c.Consumer != "acme" || c.Exp-c.Iat != 60 || c.Exp < time.Now().Unix() {
			t.Fatalf("%s %v", body, err)
		}
		return kid, len(set.Keys)
	}
	if kid, n := verified(); kid != "first" || n != 1 {
		t.Errorf("%s of %d", kid, n)
	}
	publish := func(text string) {
		t.Helper()
		if err := os.WriteFile(doc, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		d.Signal(syscall.SIGHUP)
	}
	publish(document(`, {id: second, file: second.key, sign_from: "2100-01-01T00:00:00Z"}`))
	harness.Eventually(t, 10*time.Second, "both keys are there, and the first signs", func() bool { kid, n := verified(); return n == 2 && kid == "first" })
	publish(document(`, {id: second, file: second.key, sign_from: "2020-01-01T00:00:00Z"}`))
	harness.Eventually(t, 10*time.Second, "the second signs, and both are there", func() bool { kid, n := verified(); return n == 2 && kid == "second" })

	publish(document(`, {id: third, file: third.key}`)) // there is no such file: the document is refused whole
	time.Sleep(100 * time.Millisecond)
	if kid, n := verified(); kid != "second" || n != 2 {
		t.Errorf("%s of %d", kid, n)
	}
	if out := run(t, "regionctl", "config", "validate", harness.WriteFile(t, "bad.yaml", "version: v1\nupstreams:\n  - id: u\n    endpoints: ['10.0.0.1:80']\n    identity_token: {}\n")); out.Code != 1 || !strings.Contains(out.Stdout, "bad.yaml:3: upstreams[0].identity_token: has nobody to sign it") {
		t.Errorf("%d %s", out.Code, out.Stdout)
	}
	if out := run(t, "regionctl", "config", "explain", "GET", "http://api.example.com/v1/orders", "--document", doc, "--allow-upstreams", "127.0.0.0/8"); out.Code != 0 || !strings.Contains(out.Stdout, "a token signed by the gateway, for orders") {
		t.Errorf("%d %s %s", out.Code, out.Stdout, out.Stderr)
	}
}
