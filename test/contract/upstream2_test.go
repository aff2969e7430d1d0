package contract

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/cellgate/cellgate/test/harness"
)

// backends2 are an upstream over HTTP/2 without TLS and one with it, which also asks for our certificate.
func backends2(t *testing.T, clients *x509.CertPool) (plain, secure *httptest.Server) {
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who := "nobody"
		if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			who = r.TLS.PeerCertificates[0].DNSNames[0]
		}
		w.Header().Set("X-Seen", fmt.Sprint(r.Proto, " ", r.Host, r.RequestURI, " ", who))
		w.Header().Set("Trailer", "X-Sum")
		n, _ := io.Copy(w, r.Body)
		w.Header().Set("X-Sum", fmt.Sprint(n))
	})
	plain = httptest.NewUnstartedServer(h)
	plain.Config.Protocols = new(http.Protocols)
	plain.Config.Protocols.SetUnencryptedHTTP2(true)
	plain.Start()
	t.Cleanup(plain.Close)
	secure = httptest.NewUnstartedServer(h)
	secure.EnableHTTP2 = true
	secure.TLS = &tls.Config{ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients}
	secure.StartTLS()
	t.Cleanup(secure.Close)
	return plain, secure
}

func TestProxyReachesUpstreamsOverHTTP2(t *testing.T) {
	cert, key := edgeFiles(t)
	certPEM, keyPEM := read(t, cert), read(t, key)
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM([]byte(certPEM))
	plain, secure := backends2(t, clients)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	doc := harness.WriteFile(t, "doc.yaml", fmt.Sprintf(`version: v1
routes:
  - {id: plain, match: {host: api.example.com, path: /plain}, upstream: plain}
  - {id: secure, match: {host: api.example.com, path: /secure}, upstream: secure}
  - {id: wrong, match: {host: api.example.com, path: /wrong}, upstream: wrong}
upstreams:
  - {id: plain, endpoints: [%q], protocol: h2c}
  - {id: secure, endpoints: [%q], protocol: h2, tls: {server_name: example.com, ca: %q, client_cert: %q}}
  - {id: wrong, endpoints: [%q], protocol: h2c}
`, plain.Listener.Addr(), secure.Listener.Addr(), ca, certPEM+keyPEM, backend(t)))
	for _, engine := range []string{"loop", "goroutine", "nethttp"} {
		t.Run(engine, func(t *testing.T) {
			addr := harness.FreeAddr(t)
			d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--engine", engine)
			d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
			for path, want := range map[string]string{"/plain": "HTTP/2.0 api.example.com/plain nobody", "/secure": "HTTP/2.0 api.example.com/secure edge.example"} {
				for range 3 {
					req, _ := http.NewRequest("POST", "http://"+addr+path, strings.NewReader(strings.Repeat("x", 100_000)))
					req.Host = "api.example.com"
					res, err := http.DefaultClient.Do(req)
					if err != nil {
						t.Fatal(err)
					}
					b, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || res.StatusCode != 200 || len(b) != 100_000 || res.Header.Get("X-Seen") != want || res.Trailer.Get("X-Sum") != "100000" {
						t.Fatalf("%s: %d %q, %d bytes, %v, %v", path, res.StatusCode, res.Header, len(b), res.Trailer, err)
					}
				}
			}
			if res := ask(t, http.DefaultClient, "GET", "http://"+addr+"/wrong"); res.StatusCode != 503 || res.Header.Get("X-Cellgate-Reason") != "upstream_protocol" {
				t.Fatalf("%d %v", res.StatusCode, res.Header)
			}
		})
	}
}

func read(t *testing.T, file string) string {
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
