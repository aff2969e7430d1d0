package engine_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"log"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/hops"
)

const toldDocument = `
version: v1
routes:
  - {id: plain, match: {host: a.example, path: /plain}, upstream: plain, auth: jwt}
  - {id: told, match: {host: a.example, path: /told}, upstream: told, auth: jwt}
  - {id: mutual, match: {host: a.example, path: /mutual}, upstream: mutual, auth: jwt}
  - {id: public, match: {host: a.example, path: /public}, upstream: mutual}
upstreams:
  - {id: plain, endpoints: ["UP"]}
  - {id: told, endpoints: ["UP"], allow_plaintext_identity: true}
  - {id: mutual, endpoints: ["SECURE"], tls: {server_name: a.example, ca: CERT, client_cert: PAIR}}
policies: [{id: jwt, jwt: {issuer: i, audience: a, jwks: "https://i.example/keys", consumer_claim: azp}}]
`

// mutual is an upstream that takes clients with one certificate alone; pair is that with its key, and its own certificate.
func mutual(t testing.TB, h http.HandlerFunc) (addr, pair, ca string) {
	var cert tls.Certificate
	var pool *x509.CertPool
	for pair = "UP"; strings.Contains(pair, "UP"); { // which stands for something else in a document
		cert, pool = selfSigned(t)
		key, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
		if err != nil {
			t.Fatal(err)
		}
		ca = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
		pair = ca + string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}))
	}
	l := listen(t)
	s := &http.Server{Handler: h, ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert}}
	go func() { _ = s.ServeTLS(l, "", "") }()
	t.Cleanup(func() { s.Close() })
	return l.Addr().String(), pair, ca
}

// G7 and F7 on every engine and protocol: who calls is told where the upstream knows the gateway, or its author wants it; what
// clients say of it never passes, nor does their trace, unless a trusted proxy sends it.
func TestUpstreamsAreToldWhoCallsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	tell := func(w http.ResponseWriter, r *http.Request) { _ = json.NewEncoder(w).Encode(r.Header) }
	secure, pair, ca := mutual(t, tell)
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	document := strings.NewReplacer("SECURE", secure, "CERT", quote(ca), "PAIR", quote(pair)).Replace(toldDocument)
	idp := newIssuer(t)
	token := idp.tokenOf(t, map[string]any{"sub": "alice", "azp": "acme", "scope": "read write"})
	const outside = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	trusted, err := hops.Parse([]string{"127.0.0.0/8"})
	if err != nil {
		t.Fatal(err)
	}
	for _, trust := range []hops.Trusted{nil, trusted} {
		fronts(t, handler(t, tell), setup{document: document, auth: callers.NewAuthenticator(callers.Sources{Keys: idp}, time.Now()), trusted: trust, silent: true},
			func(t *testing.T, w *world, c *http.Client, scheme string) {
				for target, want := range map[string]string{"/plain": "", "/told": "alice", "/mutual": "alice", "/public": ""} {
					req, _ := http.NewRequest("GET", scheme+"://a.example"+target, nil)
					req.Header = http.Header{"Authorization": {"Bearer " + token}, "X-Caller": {"root"}, "X-Caller-Scopes": {"all"}, "X_caller_scopes": {"all"}, "X-Caller-Token": {"x"},
						"Traceparent": {outside}, "Tracestate": {"a=1"}}
					res, err := c.Do(req)
					var seen http.Header
					if body := read(t, res, err); res.StatusCode != 200 || json.Unmarshal([]byte(body), &seen) != nil {
						t.Fatalf("%s: %d %s", target, res.StatusCode, body)
					}
					wanted := map[string]string{"X-Caller": want, "X-Caller-User": want, "X-Caller-Token": "", "X_caller_scopes": "", "X-Caller-Scopes": "", "X-Caller-Consumer": "", "X-Caller-Client": "", "X-Caller-Issuer": "",
						"X-Request-Id": res.Header.Get("X-Request-Id"), "Tracestate": ""}
					if want != "" {
						wanted["X-Caller-Scopes"], wanted["X-Caller-Consumer"], wanted["X-Caller-Client"], wanted["X-Caller-Issuer"] = "read write", "acme", "acme", "i"
					}
					if trust != nil {
						wanted["Tracestate"] = "a=1"
					}
					for name, value := range wanted {
						if got := strings.Join(seen.Values(name), ","); got != value {
							t.Errorf("%s: %s is %q, not %q", target, name, got, value)
						}
					}
					trace := seen.Get("Traceparent")
					if len(seen["Traceparent"]) != 1 || len(trace) != len(outside) || trace[36:52] == outside[36:52] {
						t.Fatalf("%s: traceparent %q", target, trace)
					}
					if trace[3:35] != map[bool]string{false: res.Header.Get("X-Request-Id"), true: outside[3:35]}[trust != nil] {
						t.Errorf("%s: trace %q", target, trace)
					}
				}
			})
	}
}
