package engine_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/snapshot"
)

const vouchedDocument = `
version: v1
routes:
  - {id: one, match: {host: a.example, path: /one}, upstream: one, auth: jwt}
  - {id: two, match: {host: a.example, path: /two}, upstream: two, auth: jwt}
  - {id: none, match: {host: a.example, path: /none}, upstream: none, auth: jwt}
  - {id: public, match: {host: a.example, path: /public}, upstream: one}
upstreams:
  - {id: one, endpoints: ["UP"], identity_token: {}}
  - {id: two, endpoints: ["UP"], identity_token: {audience: second}}
  - {id: none, endpoints: ["UP"]}
policies: [{id: jwt, jwt: {issuer: i, audience: a, jwks: "https://i.example/keys"}}]
identity_keys: [{id: k, file: k}]
`

// vouching signs with a key called k.
func vouching(t testing.TB) *callers.Tokens {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "k"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	store := secrets.New(dir, slog.New(slog.DiscardHandler))
	if err := store.Want(callers.Needs(nil, snapshot.IdentityKey{ID: "k", File: "k"})); err != nil {
		t.Fatal(err)
	}
	return callers.NewTokens(store)
}

// G7 on every engine and protocol: an upstream that wants it gets a token of its own about every known caller, by a key that any node
// gives; what clients send under that name never passes.
func TestSignedTokensReachUpstreamsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	idp := newIssuer(t)
	bearer := idp.tokenOf(t, map[string]any{"sub": "alice"})
	up := handler(t, func(w http.ResponseWriter, r *http.Request) {
		_ = json.NewEncoder(w).Encode(r.Header["X-Caller-Token"])
	})
	s := setup{document: vouchedDocument, auth: callers.NewAuthenticator(callers.Sources{Keys: idp}, time.Now()), vouch: vouching(t), silent: true}
	fronts(t, up, s, func(t *testing.T, w *world, c *http.Client, scheme string) {
		ask := func(path string) string {
			t.Helper()
			req, _ := http.NewRequest("GET", scheme+"://a.example"+path, nil)
			req.Header = http.Header{"Authorization": {"Bearer " + bearer}, "X-Caller-Token": {"made.up.token"}, "X_caller_token": {"x"}}
			res, err := c.Do(req)
			body := read(t, res, err)
			if res.StatusCode != 200 {
				t.Fatalf("%s: %d %s", path, res.StatusCode, body)
			}
			return body
		}
		var set jose.JSONWebKeySet
		if err := json.Unmarshal([]byte(ask("/.well-known/cellgate/jwks.json")), &set); err != nil || len(set.Keys) != 1 {
			t.Fatal(set, err)
		}
		for path, audience := range map[string]string{"/one": "one", "/two": "second", "/none": "", "/public": ""} {
			var tokens []string
			if err := json.Unmarshal([]byte(ask(path)), &tokens); err != nil || len(tokens) > 1 || (len(tokens) == 1) != (audience != "") {
				t.Fatalf("%s: %v %v", path, tokens, err)
			}
			if audience == "" {
				continue
			}
			signed, err := jose.ParseSignedCompact(tokens[0], []jose.SignatureAlgorithm{jose.ES256})
			if err != nil {
				t.Fatal(err)
			}
			claims, err := signed.Verify(set.Keys[0])
			if want := fmt.Sprintf(`"aud":%q,"sub":"alice"`, audience); err != nil || !strings.Contains(string(claims), want) {
				t.Errorf("%s: %s %v", path, claims, err)
			}
		}
	})
}
