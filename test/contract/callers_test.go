package contract

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/test/harness"
)

// provider is an identity provider on loopback: a key set, and tokens of it.
type provider struct {
	t   *testing.T
	key *ecdsa.PrivateKey
	url string
}

func newProvider(t *testing.T) *provider {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	set, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k"}}})
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(set) }))
	t.Cleanup(s.Close)
	return &provider{t, key, s.URL}
}

func (p *provider) token(claims map[string]any) string {
	claims["iss"], claims["aud"], claims["exp"] = "i", "a", time.Now().Add(time.Hour).Unix()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "k"}}, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	payload, _ := json.Marshal(claims)
	jws, err := s.Sign(payload)
	if err != nil {
		p.t.Fatal(err)
	}
	token, _ := jws.CompactSerialize()
	return token
}

// askWith asks as host api.example.com with one more field.
func askWith(t *testing.T, c *http.Client, url, name, value string) (status int, reason string, h http.Header) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "api.example.com"
	req.Header.Set(name, value)
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	return res.StatusCode, res.Header.Get("X-Cellgate-Reason"), res.Header
}

func TestProxyAsksForRolesAndClaims(t *testing.T) {
	idp, addr := newProvider(t), harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", fmt.Sprintf(`version: v1
routes: [{id: admin, match: {host: api.example.com, path: /admin}, upstream: up, auth: jwt, policies: [admins, eu]}]
upstreams: [{id: up, endpoints: [%q]}]
policies:
  - {id: jwt, jwt: {issuer: i, audience: a, jwks: %q}}
  - {id: admins, authz: {roles: [admin], roles_claim: realm_access.roles}}
  - {id: eu, authz: {claims: {region: eu}}}
`, backend(t), idp.url))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	roles := func(names ...string) map[string]any { return map[string]any{"roles": names} }
	for _, c := range []struct {
		claims map[string]any
		status int
		reason string
	}{
		{map[string]any{"realm_access": roles("user", "admin"), "region": "eu"}, 200, ""},
		{map[string]any{"realm_access": roles("user"), "region": "eu"}, 403, "role_missing"},
		{map[string]any{"realm_access": roles("admin"), "region": "us"}, 403, "claim_refused"},
	} {
		if status, reason, _ := askWith(t, http.DefaultClient, "http://"+addr+"/admin", "Authorization", "Bearer "+idp.token(c.claims)); status != c.status || reason != c.reason {
			t.Errorf("%v: %d %s", c.claims, status, reason)
		}
	}
}

func TestProxyTellsUpstreamsWhoCallsAndNothingElseDoes(t *testing.T) {
	idp, addr := newProvider(t), harness.FreeAddr(t)
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"X-Caller", "X-Caller-Scopes", "X-Caller-Client", "Traceparent", "Tracestate", "X-Request-Id"} {
			w.Header()["Seen-"+name] = r.Header.Values(name)
		}
	}))
	t.Cleanup(up.Close)
	doc := harness.WriteFile(t, "doc.yaml", fmt.Sprintf(`version: v1
routes:
  - {id: told, match: {host: api.example.com, path: /told}, upstream: told, auth: jwt}
  - {id: plain, match: {host: api.example.com, path: /plain}, upstream: plain, auth: jwt}
upstreams:
  - {id: told, endpoints: [%q], allow_plaintext_identity: true}
  - {id: plain, endpoints: [%q]}
policies: [{id: jwt, jwt: {issuer: i, audience: a, jwks: %q}}]
`, up.Listener.Addr(), up.Listener.Addr(), idp.url))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	token := idp.token(map[string]any{"sub": "alice", "scope": "read write", "client_id": "web"})
	for path, want := range map[string][3]string{"/told": {"alice", "read write", "web"}, "/plain": {}} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Host = "api.example.com"
		for name, value := range map[string]string{"Authorization": "Bearer " + token, "X-Caller": "root", "X-Caller-Scopes": "all", "X-Caller-Client": "evil",
			"Traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "Tracestate": "a=1"} {
			req.Header.Set(name, value)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		h := res.Header
		if got := [3]string{h.Get("Seen-X-Caller"), h.Get("Seen-X-Caller-Scopes"), h.Get("Seen-X-Caller-Client")}; res.StatusCode != 200 || got != want {
			t.Errorf("%s: %d, the upstream is told %q", path, res.StatusCode, got)
		}
		id, trace := h.Get("X-Request-Id"), h.Get("Seen-Traceparent")
		if len(id) != 32 || h.Get("Seen-X-Request-Id") != id || len(trace) != 55 || trace[3:35] != id || h.Get("Seen-Tracestate") != "" {
			t.Errorf("%s: request %s, trace %q %q", path, id, trace, h.Get("Seen-Tracestate"))
		}
	}
}
