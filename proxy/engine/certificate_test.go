//lint:file-ignore SA1019 the tests speak HTTP/2 over connections of their own.

package engine_test

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	qhttp3 "github.com/quic-go/quic-go/http3"
	"golang.org/x/net/http2"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/internal/testpki"
	"github.com/cellgate/cellgate/proxy/callers"
)

// showing is a client that speaks one protocol over TLS, names a host in its handshakes whatever it asks for, and shows a pair. It
// calls resumed with every handshake that goes on with a session.
func (w *world) showing(protocol, host string, pair *tls.Certificate, resumed ...func()) *http.Client {
	w.t.Helper()
	verify := func(s tls.ConnectionState) error {
		for _, call := range resumed {
			if s.DidResume {
				call()
			}
		}
		return nil
	}
	cfg := &tls.Config{InsecureSkipVerify: true, ServerName: host, ClientSessionCache: tls.NewLRUClientSessionCache(4), VerifyConnection: verify, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if pair == nil {
			return &tls.Certificate{}, nil
		}
		return pair, nil
	}}
	dial := func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&tls.Dialer{Config: cfg}).DialContext(ctx, network, w.addr)
	}
	switch protocol {
	case "HTTP/3":
		pc, err := net.ListenPacket("udp", "127.71.0.2:0")
		if err != nil {
			w.t.Fatal(err)
		}
		via := &quic.Transport{Conn: pc}
		tr := &qhttp3.Transport{TLSClientConfig: cfg, Dial: func(ctx context.Context, _ string, c *tls.Config, qc *quic.Config) (*quic.Conn, error) {
			c.ServerName = host
			return via.Dial(ctx, w.udp, c, qc)
		}}
		w.t.Cleanup(func() { tr.Close(); via.Close(); pc.Close() })
		return &http.Client{Transport: tr, Timeout: patience}
	case "HTTP/2":
		cfg.NextProtos = []string{"h2"}
		tr := &http2.Transport{DialTLSContext: func(ctx context.Context, network, _ string, _ *tls.Config) (net.Conn, error) {
			return dial(ctx, network, "")
		}}
		w.t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: patience}
	}
	tr := &http.Transport{DialTLSContext: dial}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

func certifiedDocument(partners, others string) string {
	quote := func(s string) string { b, _ := json.Marshal(s); return string(b) }
	return strings.NewReplacer("PARTNERS", quote(partners), "OTHERS", quote(others)).Replace(`
version: v1
routes:
  - {id: orders, match: {host: a.example, path: /orders}, upstream: up, auth: partners}
  - {id: public, match: {host: a.example, path: /public}, upstream: up}
  - {id: same, match: {host: same.example, path: /orders}, upstream: up, auth: partners}
  - {id: other, match: {host: other.example, path: /orders}, upstream: up, auth: others}
upstreams: [{id: up, endpoints: ["ADDRESS"], allow_plaintext_identity: true}]
policies:
  - {id: partners, mtls: {ca: PARTNERS, names: [{spiffe: "spiffe://p.example/*", consumer: acme}]}}
  - {id: others, mtls: {ca: OTHERS, names: [{dns: "*.other.example"}]}}
consumers: [{id: acme}]
`)
}

// G4 on every engine and protocol: a certificate says who calls, to the hosts that trust its authority, and on no connection that was
// made for others.
func TestCertificatesHoldOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	partners, others := testpki.New(t, "Partners"), testpki.New(t, "Others")
	up := handler(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, r.Header.Get("X-Caller"), " ", r.Header.Get("X-Caller-Consumer"), " ", r.Header.Get("X-Caller-Issuer"))
	})
	at := func(partners *testpki.Authority) string {
		return strings.ReplaceAll(certifiedDocument(partners.PEM, others.PEM), "ADDRESS", up)
	}
	orders := testpki.Leaf{URIs: []string{"spiffe://p.example/orders"}}
	good, wrong := partners.Issue(t, orders), others.Issue(t, testpki.Leaf{DNS: []string{"x.other.example"}})
	old := orders
	old.Until = time.Now().Add(-time.Minute)
	over := partners.Issue(t, old)
	const known = "200  spiffe://p.example/orders acme CN=Partners"
	kinds := engines()
	kinds["nethttp"] = standard
	for name, kind := range kinds {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2", "HTTP/3"} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				t.Parallel()
				judge := callers.NewAuthenticator(callers.Sources{}, time.Now())
				w := start(t, kind, "UP", setup{document: at(partners), auth: judge, silent: true, h3: true})
				says := func(c *http.Client, url, want string) {
					t.Helper()
					res, err := c.Get("https://" + url)
					body := read(t, res, err)
					if res.StatusCode >= 400 {
						body = ""
					}
					if got := fmt.Sprint(res.StatusCode, " ", res.Header.Get("X-Cellgate-Reason"), " ", strings.TrimSpace(body)); strings.TrimSpace(got) != want {
						t.Errorf("%s: %s, not %s", url, got, want)
					}
				}
				first := w.showing(protocol, "a.example", good)
				for range 3 {
					says(first, "a.example/orders", known)
				}
				says(first, "a.example/public", "200")
				says(first, "same.example/orders", known)
				says(first, "other.example/orders", "421 misdirected")
				var again atomic.Int32
				back := w.showing(protocol, "a.example", good, func() { again.Add(1) })
				for end := time.Now().Add(patience); again.Load() == 0; back.CloseIdleConnections() { // who comes back with a ticket is known by it
					if says(back, "a.example/orders", known); time.Now().After(end) {
						t.Fatal("no session goes on")
					}
				}
				says(back, "other.example/orders", "421 misdirected")
				for what, pair := range map[string]*tls.Certificate{"401 certificate_missing": nil, "401 certificate_invalid": wrong, "401 certificate_expired": over} {
					c := w.showing(protocol, "a.example", pair)
					says(c, "a.example/orders", what)
					says(c, "a.example/orders", what)
					says(c, "a.example/public", "200")
				}
				says(w.showing(protocol, "unknown.example", good), "a.example/orders", "421 misdirected")
				other := w.showing(protocol, "other.example", wrong)
				says(other, "other.example/orders", "200  x.other.example  CN=Others")
				says(other, "a.example/orders", "421 misdirected")

				for _, denied := range []denylist.Entry{{Kind: denylist.User, ID: "spiffe://p.example/orders"}, {Kind: denylist.Token, ID: fmt.Sprintf("sha256:%x", sha256.Sum256(good.Leaf.Raw))}} {
					judge.Deny(denylist.Compile([]denylist.Entry{denied}))
					says(first, "a.example/orders", "401 denied")
					judge.Deny(nil)
				}
				says(first, "a.example/orders", known)

				if err := w.server.Apply(compile(t, 2, at(others), "UP")); err != nil { // who was trusted is not any more
					t.Fatal(err)
				}
				says(first, "a.example/orders", "421 misdirected")
				says(w.showing(protocol, "a.example", good), "a.example/orders", "401 certificate_invalid")
			})
		}
	}
}

// RFC 8705 on every engine and protocol: who shows a token that is bound to a certificate needs that certificate, of whatever authority,
// on this connection.
func TestTokensThatAreBoundToACertificateNeedIt(t *testing.T) {
	t.Parallel()
	provider, ca := newIssuer(t), testpki.New(t, "Anybody")
	own, other := ca.Issue(t, testpki.Leaf{Name: "own"}), ca.Issue(t, testpki.Leaf{Name: "other"})
	sum := sha256.Sum256(own.Leaf.Raw)
	bound := provider.tokenOf(t, map[string]any{"sub": "alice", "cnf": map[string]any{"x5t#S256": base64.RawURLEncoding.EncodeToString(sum[:])}})
	free := provider.tokenOf(t, map[string]any{"sub": "alice"})
	document := strings.ReplaceAll(`
version: v1
routes:
  - {id: must, match: {host: a.example, path: /must}, upstream: up, auth: must}
  - {id: may, match: {host: a.example, path: /may}, upstream: up, auth: may}
  - {id: elsewhere, match: {host: b.example, path: /may}, upstream: up, auth: may}
upstreams: [{id: up, endpoints: ["ADDRESS"], allow_plaintext_identity: true}]
policies:
  - {id: must, jwt: {issuer: i, audience: a, jwks: "http://127.0.0.1:1/keys", certificate_bound: true}}
  - {id: may, jwt: {issuer: i, audience: a, jwks: "http://127.0.0.1:1/keys"}}
`, "ADDRESS", handler(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.Header.Get("X-Caller")) }))
	kinds := engines()
	kinds["nethttp"] = standard
	for name, kind := range kinds {
		for _, protocol := range []string{"HTTP/1.1", "HTTP/2", "HTTP/3"} {
			t.Run(name+", "+protocol, func(t *testing.T) {
				t.Parallel()
				w := start(t, kind, "UP", setup{document: document, auth: callers.NewAuthenticator(callers.Sources{Keys: provider}, time.Now()), silent: true, h3: true})
				says := func(c *http.Client, url, token, want string) {
					t.Helper()
					req, _ := http.NewRequest("GET", "https://"+url, nil)
					req.Header.Set("Authorization", "Bearer "+token)
					res, err := c.Do(req)
					body := read(t, res, err)
					if res.StatusCode >= 400 {
						body = res.Header.Get("X-Cellgate-Reason")
					}
					if got := fmt.Sprint(res.StatusCode, " ", body); got != want {
						t.Errorf("%s: %s, not %s", url, got, want)
					}
				}
				holder := w.showing(protocol, "a.example", own)
				for range 2 { // once verified, once remembered
					says(holder, "a.example/must", bound, "200 alice")
					says(holder, "a.example/may", bound, "200 alice")
				}
				says(holder, "a.example/may", free, "200 alice")
				says(holder, "a.example/must", free, "401 token_invalid")
				for _, pair := range []*tls.Certificate{nil, other} {
					thief := w.showing(protocol, "a.example", pair)
					says(thief, "a.example/must", bound, "401 token_unproven")
					says(thief, "a.example/may", bound, "401 token_unproven")
					says(thief, "a.example/may", free, "200 alice")
				}
				unasked := w.showing(protocol, "b.example", own)
				says(unasked, "b.example/may", bound, "401 token_unproven")
				says(unasked, "a.example/must", bound, "421 misdirected")
			})
		}
	}
}

// Without TLS nobody has shown a certificate, whatever he says.
func TestCertificatesAreNotTakenFromFields(t *testing.T) {
	t.Parallel()
	ca := testpki.New(t, "Partners")
	up := handler(t, echo)
	s := setup{document: strings.ReplaceAll(certifiedDocument(ca.PEM, ca.PEM), "ADDRESS", up), auth: callers.NewAuthenticator(callers.Sources{}, time.Now()), silent: true}
	plainKinds := engines()
	plainKinds["nethttp"] = standard
	for name, kind := range plainKinds {
		t.Run(name, func(t *testing.T) {
			w := start(t, kind, "UP", s)
			for _, c := range []*http.Client{w.h2c(nil), {Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, n, _ string) (net.Conn, error) {
				return (&net.Dialer{}).DialContext(ctx, n, w.addr)
			}}}} {
				req, _ := http.NewRequest("GET", "http://a.example/orders", nil)
				req.Header = http.Header{"X-Forwarded-Client-Cert": {"URI=spiffe://p.example/orders"}, "X-Caller": {"spiffe://p.example/orders"}, "Client-Cert": {":AAAA:"}}
				res, err := c.Do(req)
				if read(t, res, err); res.StatusCode != 401 || res.Header.Get("X-Cellgate-Reason") != "certificate_missing" || res.Header.Get("WWW-Authenticate") != "ClientCertificate" {
					t.Errorf("%d %v", res.StatusCode, res.Header)
				}
			}
		})
	}
}

// Only the node that the client is connected to has seen its certificate, so an evacuated cell serves such requests itself.
func TestRequestsThatGoByCertificatesAreNotHandedOn(t *testing.T) {
	t.Parallel()
	ca := testpki.New(t, "Partners")
	document := strings.ReplaceAll(certifiedDocument(ca.PEM, ca.PEM), "ADDRESS", "127.71.0.3:1")
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, document)
		c := p.here.dial()
		for target, handed := range map[string]bool{"/orders": false, "/public": true} {
			c.send("GET " + target + " HTTP/1.1\r\nHost: a.example\r\n\r\n").answer("GET")
			if entry := <-p.here.logged; entry.Handed != handed {
				t.Errorf("%s: handed on %v", target, entry.Handed)
			}
		}
	})
}

// The whole way of a request whose caller is known by its certificate, and told by a token.
func TestACertifiedRequestAllocatesNothing(t *testing.T) {
	ca := testpki.New(t, "Partners")
	pair := ca.Issue(t, testpki.Leaf{URIs: []string{"spiffe://p.example/orders"}})
	eachOf(t, "over TLS", func(*testing.T) {}, overTLS(t), func(t *testing.T, start starter) {
		document := strings.Replace(certifiedDocument(ca.PEM, ca.PEM), "allow_plaintext_identity: true", "identity_token: {}", 1) + "identity_keys: [{id: k, file: k}]\n"
		w := start(t, "UP", setup{silent: true, auth: callers.NewAuthenticator(callers.Sources{}, time.Now()), vouch: vouching(t), document: strings.ReplaceAll(document, "ADDRESS", quickly(t))})
		w.trust.Certificates = []tls.Certificate{*pair}
		w.allocatesNothing("GET /orders HTTP/1.1\r\nHost: a.example\r\n\r\n")
	})
}
