package contract

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/testpki"
	"github.com/cellgate/cellgate/test/harness"
)

func mtlsDocument(backend string, ca *testpki.Authority) string {
	return fmt.Sprintf(`version: v1
routes:
  - {id: orders, match: {host: edge.example, path: /v1/orders}, upstream: orders, auth: partners, policies: [only-acme]}
  - {id: public, match: {host: open.example, path: /v1/orders}, upstream: orders}
upstreams: [{id: orders, endpoints: [%q]}]
policies:
  - {id: partners, mtls: {ca: %q, names: [{spiffe: spiffe://partner.example/orders, consumer: acme}, {spiffe: "spiffe://partner.example/*", consumer: other}]}}
  - {id: only-acme, authz: {consumers: [acme]}}
consumers: [{id: acme}, {id: other}]
`, backend, ca.PEM)
}

// A certificate that its authority's list names is refused, from the node's next look at the file on and on connections that stay.
func TestProxyRefusesRevokedCertificates(t *testing.T) {
	addr := harness.FreeAddr(t)
	cert, key := edgeFiles(t)
	ca, soon := testpki.New(t, "Partners"), time.Now().Add(time.Hour)
	pair := ca.Issue(t, testpki.Leaf{URIs: []string{"spiffe://partner.example/orders"}})
	text := strings.Replace(mtlsDocument(backend(t), ca), "mtls: {", "mtls: {crl_files: [partners.crl], ", 1)
	doc, dir := harness.WriteFile(t, "doc.yaml", text), secretsDir(t, map[string]string{"partners.crl": ca.Revoke(t, soon, nil)})
	bad := run(t, "proxy", "serve", "--document", doc, "--https", addr, "--cert", cert, "--key", key, "--secrets", secretsDir(t, map[string]string{"partners.crl": ca.PEM}))
	if bad.Code != 1 || !strings.Contains(bad.Stderr, "partners.crl: not certificate revocation lists") {
		t.Errorf("exit %d, %s", bad.Code, bad.Stderr)
	}
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--https", addr, "--cert", cert, "--key", key, "--secrets", dir)
	d.WaitHTTP("https://"+addr+"/.well-known/cellgate/ready", 200)
	cfg := &tls.Config{InsecureSkipVerify: true, ServerName: "edge.example", Certificates: []tls.Certificate{*pair}}
	tr := &http.Transport{DialTLSContext: func(_ context.Context, network, _ string) (net.Conn, error) { return tls.Dial(network, addr, cfg) }}
	t.Cleanup(tr.CloseIdleConnections)
	says := func() string {
		res, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Get("https://edge.example/v1/orders")
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return fmt.Sprint(res.StatusCode, " ", res.Header.Get("X-Cellgate-Reason"))
	}
	if got := says(); got != "200 " {
		t.Fatal(got)
	}
	for _, step := range []struct{ list, want string }{
		{ca.Revoke(t, soon, nil, pair), "401 certificate_revoked"}, {ca.Revoke(t, soon, nil), "200 "}, {ca.Revoke(t, time.Now().Add(-time.Hour), nil), "503 auth_unavailable"},
	} {
		if err := os.WriteFile(filepath.Join(dir, "partners.crl"), []byte(step.list), 0o600); err != nil {
			t.Fatal(err)
		}
		harness.Eventually(t, 15*time.Second, step.want, func() bool { return says() == step.want })
	}
	out := run(t, "regionctl", "config", "explain", "GET", "https://edge.example/v1/orders", "--document", doc, "--allow-upstreams", "127.0.0.0/8")
	if out.Code != 0 || !strings.Contains(out.Stdout, "no revocation list in force: refuses with 503 auth_unavailable") {
		t.Errorf("%d %s %s", out.Code, out.Stdout, out.Stderr)
	}
	if r := d.Stop(15 * time.Second); !strings.Contains(r.Stderr, "out of date") {
		t.Errorf("the log doesn't say that a list is out of date: %s", r.Stderr)
	}
}

// A partner's certificate lets him in over TLS, where the route asks for one and nowhere else; another document trusts another
// authority at once, on connections that stay as well.
func TestProxyTakesCallersFromTheirCertificates(t *testing.T) {
	addr, plain := harness.FreeAddr(t), harness.FreeAddr(t)
	cert, key := edgeFiles(t)
	ca, next := testpki.New(t, "Partners"), testpki.New(t, "Partners")
	up := backend(t)
	doc, file := harness.WriteFile(t, "doc.yaml", mtlsDocument(up, ca)), harness.WriteFile(t, "access.log", "")
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--https", addr, "--http", plain, "--cert", cert, "--key", key, "--access-log", file)
	d.WaitHTTP("https://"+addr+"/.well-known/cellgate/ready", 200)
	asked := false
	as := func(proto string, pair *tls.Certificate) *http.Client {
		cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{proto}, GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if asked = true; pair == nil {
				return &tls.Certificate{}, nil
			}
			return pair, nil
		}}
		dial := func(_ context.Context, network, host string) (net.Conn, error) {
			c := cfg.Clone()
			c.ServerName, _, _ = net.SplitHostPort(host)
			return tls.Dial(network, addr, c)
		}
		tr := &http.Transport{DialTLSContext: dial, ForceAttemptHTTP2: proto == "h2"}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Transport: tr, Timeout: 10 * time.Second}
	}
	holds := func(c *http.Client, url string, status int, reason string) {
		t.Helper()
		res, err := c.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != status || res.Header.Get("X-Cellgate-Reason") != reason {
			t.Errorf("%s: %d %s, not %d %s", url, res.StatusCode, res.Header.Get("X-Cellgate-Reason"), status, reason)
		}
	}
	good := ca.Issue(t, testpki.Leaf{URIs: []string{"spiffe://partner.example/orders"}})
	for _, proto := range []string{"h2", "http/1.1"} {
		holds(as(proto, nil), "https://open.example/v1/orders", 200, "")
		if asked {
			t.Error("a host that needs no certificate asks for one")
		}
		holds(as(proto, good), "https://edge.example/v1/orders", 200, "")
		holds(as(proto, nil), "https://edge.example/v1/orders", 401, "certificate_missing")
		holds(as(proto, ca.Issue(t, testpki.Leaf{URIs: []string{"spiffe://partner.example/stock"}})), "https://edge.example/v1/orders", 403, "consumer_refused")
		holds(as(proto, next.Issue(t, testpki.Leaf{URIs: []string{"spiffe://partner.example/orders"}})), "https://edge.example/v1/orders", 401, "certificate_invalid")
		asked = false
	}
	holds(http.DefaultClient, "http://"+plain+"/v1/orders", 404, "no_route")
	harness.Eventually(t, 3*time.Second, "the log names the consumer", func() bool {
		b, _ := os.ReadFile(file)
		return bytes.Contains(b, []byte(`"consumer":"acme"`))
	})
	stays := as("h2", good)
	holds(stays, "https://edge.example/v1/orders", 200, "")
	if err := os.WriteFile(doc, []byte(mtlsDocument(up, next)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Signal(syscall.SIGHUP)
	harness.Eventually(t, 5*time.Second, "the connection's caller is trusted no more", func() bool {
		res, err := stays.Get("https://edge.example/v1/orders")
		if err == nil {
			res.Body.Close()
		}
		return err == nil && res.StatusCode == 421
	})
	holds(as("h2", good), "https://edge.example/v1/orders", 401, "certificate_invalid")
	if out := run(t, "regionctl", "config", "explain", "GET", "https://edge.example/v1/orders", "--document", doc, "--allow-upstreams", "127.0.0.0/8"); out.Code != 0 || !strings.Contains(out.Stdout, "partners") {
		t.Errorf("%d %s %s", out.Code, out.Stdout, out.Stderr)
	}
	bad := harness.WriteFile(t, "bad.yaml", "version: v1\npolicies:\n  - id: p\n    mtls:\n      ca: x\n      names: []\n")
	if out := run(t, "regionctl", "config", "validate", bad); out.Code != 1 || !strings.Contains(out.Stdout, "bad.yaml:5: policies[0].mtls.ca: holds 0 certificates") || !strings.Contains(out.Stdout, "bad.yaml:6: policies[0].mtls.names: names nobody") {
		t.Errorf("%d %s", out.Code, out.Stdout)
	}
}
