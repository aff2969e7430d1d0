//lint:file-ignore SA1019 the test speaks HTTP/2 with prior knowledge over a connection of its own.

package contract

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"
	"golang.org/x/net/http2"
	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/test/harness"
)

// backend is an upstream on loopback that says what it was asked.
func backend(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/slow" {
			time.Sleep(700 * time.Millisecond)
		}
		w.Header().Set("X-Seen", r.Method+" "+r.Host+r.RequestURI)
		_, _ = io.Copy(w, r.Body)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func proxyDocument(up, path string) string {
	return fmt.Sprintf(`version: v1
routes:
  - {id: orders, match: {host: api.example.com, path: %q}, upstream: orders}
  - {id: keyed, match: {host: api.example.com, path: /v1/keyed}, upstream: orders, auth: key}
  - {id: read-only, match: {host: api.example.com, path: /v1/read, methods: [GET]}, upstream: orders}
  - {id: limited, match: {host: api.example.com, path: /v1/limited}, upstream: orders, limits: {tenant: 1/second}}
upstreams: [{id: orders, endpoints: [%q]}]
policies: [{id: key, api_key: {}}]
consumers: [{id: acme, api_key_hashes: ["sha256:b5d1da3fd7c57e3d4d7f3b3c36a76bbd0e2bd2c5bbf1b1d4f7a9b36d3a1a0c11"]}]
`, path, up)
}

type answered struct {
	*http.Response
	body string
}

func ask(t *testing.T, c *http.Client, method, url string) answered {
	t.Helper()
	return askAs(t, c, method, url)
}

// askAs asks with fields, given as name and value in turn.
func askAs(t *testing.T, c *http.Client, method, url string, fields ...string) answered {
	t.Helper()
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "api.example.com"
	for i := 0; i < len(fields); i += 2 {
		req.Header.Add(fields[i], fields[i+1])
	}
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answered{res, string(b)}
}

func TestProxyServesADocument(t *testing.T) {
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}"))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	h2c := &http.Client{Transport: &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, a string, _ *tls.Config) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, a)
	}}}
	for name, c := range map[string]*http.Client{"h1": {}, "h2c": h2c} {
		for _, want := range []struct {
			method, path string
			status       int
			reason       string
		}{
			{"GET", "/v1/orders/7?x=1", 200, ""},
			{"GET", "/none", 404, "no_route"},
			{"POST", "/v1/read", 405, "method_not_allowed"},
			{"GET", "/v1/keyed", 401, "token_missing"},
		} {
			res := ask(t, c, want.method, "http://"+addr+want.path)
			if res.StatusCode != want.status || res.Header.Get("X-Cellgate-Reason") != want.reason || len(res.Header.Get("X-Request-Id")) == 0 {
				t.Errorf("%s %s: %d %v %s", name, want.path, res.StatusCode, res.Header, res.body)
			}
			if want.reason == "" {
				continue
			}
			var doc struct {
				Reason string
				Status int
			}
			if json.Unmarshal([]byte(res.body), &doc) != nil || doc.Reason != want.reason || doc.Status != want.status || res.Header.Get("Content-Type") != "application/problem+json" {
				t.Errorf("%s %s: %q", name, want.path, res.body)
			}
			if want.status == 405 && res.Header.Get("Allow") != "GET" || want.status == 401 && res.Header.Get("WWW-Authenticate") == "" {
				t.Errorf("%s %s: %v", name, want.path, res.Header)
			}
		}
	}
	limited := 0
	for range 6 {
		if res := ask(t, http.DefaultClient, "GET", "http://"+addr+"/v1/limited"); res.StatusCode == 429 {
			limited++
			if res.Header.Get("Retry-After") == "" || res.Header.Get("RateLimit") == "" || res.Header.Get("X-RateLimit-Remaining") != "0" {
				t.Errorf("429 with %v", res.Header)
			}
		}
	}
	if limited == 0 {
		t.Error("a limit of 1/second took 6 requests at once")
	}
}

func TestProxyRefusesWrongCommandLines(t *testing.T) {
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument("127.0.0.1:1", "/x"))
	bad := harness.WriteFile(t, "bad.yaml", "version: v1\nroutes:\n  - {id: a, match: {host: a.example, path: /a}, upstream: none, colour: red}\n")
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no document":      {[]string{"--http", addr}, 2, "--document"},
		"no listener":      {[]string{"--document", doc}, 2, "--http"},
		"no certificate":   {[]string{"--document", doc, "--https", addr}, 2, "--cert"},
		"h3":               {[]string{"--document", doc, "--http", addr, "--h3"}, 2, "--h3 needs --https"},
		"unknown engine":   {[]string{"--document", doc, "--http", addr, "--engine", "steam"}, 2, "goroutine"},
		"workers":          {[]string{"--document", doc, "--http", addr, "--workers", "-1"}, 2, "--workers"},
		"address":          {[]string{"--document", doc, "--http", "8080"}, 2, "HOST:PORT"},
		"port":             {[]string{"--document", doc, "--http", "127.0.0.1:99999"}, 2, "65535"},
		"public admin":     {[]string{"--document", doc, "--http", addr, "--admin", "0.0.0.0:9901"}, 2, "loopback"},
		"trusted proxies":  {[]string{"--document", doc, "--http", addr, "--trusted-proxies", "10.0.0.0/8,0.0.0.0/0"}, 2, "everybody"},
		"stray argument":   {[]string{"--document", doc, "--http", addr, "extra"}, 2, "extra"},
		"missing document": {[]string{"--document", doc + ".none", "--http", addr}, 1, "no such file"},
		"endless document": {[]string{"--document", "/dev/zero", "--http", addr}, 1, "/dev/zero: is longer than"},
		"bad document":     {[]string{"--document", bad, "--http", addr}, 1, bad + ":3:"},
		"missing cert":     {[]string{"--document", doc, "--https", addr, "--cert", "none.pem", "--key", "none.key"}, 1, "none.pem"},
		"access log":       {[]string{"--document", doc, "--http", addr, "--access-log", "/nowhere/x.log"}, 1, "/nowhere/x.log"},
	} {
		res := run(t, append([]string{"proxy", "serve"}, c.args...)...)
		if res.Code != c.code || !strings.Contains(res.Stderr, c.says) {
			t.Errorf("%s: exit %d, stderr %q; want %d and %q", name, res.Code, res.Stderr, c.code, c.says)
		}
	}
	if res := run(t, "proxy", "serve", "--help"); res.Code != 0 || !strings.Contains(res.Stdout, "proxy serve --document routes.yaml") {
		t.Errorf("help has no example: %q", res.Stdout)
	}
}

// A socket with SO_REUSEPORT of someone else's is refused as well: the first bind is exclusive.
func TestProxySaysAddressInUse(t *testing.T) {
	cfg := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	}}
	l, err := cfg.Listen(context.Background(), "tcp", harness.FreeAddr(t))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument("127.0.0.1:1", "/x"))
	for _, args := range [][]string{{"--http", l.Addr().String()}, {"--http", harness.FreeAddr(t), "--admin", l.Addr().String()}} {
		res := run(t, append([]string{"proxy", "serve", "--document", doc}, args...)...)
		if res.Code != 1 || !strings.Contains(res.Stderr, "address in use") {
			t.Errorf("%v: exit %d, stderr %q", args, res.Code, res.Stderr)
		}
	}
}

func TestProxyReloadsOnSIGHUPAndKeepsTheOldDocumentWhenTheNewOneIsBad(t *testing.T) {
	addr, up := harness.FreeAddr(t), backend(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(up, "/v1/old"))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	status := func(path string) int { return ask(t, http.DefaultClient, "GET", "http://"+addr+path).StatusCode }
	rewrite := func(s string) {
		if err := os.WriteFile(doc, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
		d.Signal(syscall.SIGHUP)
	}
	rewrite("version: v1\nroutes: [{id: a}]\n")
	d.WaitOutput("the old one stays", 5*time.Second)
	if status("/v1/old") != 200 {
		t.Fatal("a bad document took the old one away")
	}
	rewrite(proxyDocument(up, "/v1/new"))
	harness.Eventually(t, 5*time.Second, "the new document is served", func() bool { return status("/v1/new") == 200 })
	if status("/v1/old") != 404 {
		t.Fatal("the old document is still there")
	}
}

func TestProxyAdminServer(t *testing.T) {
	addr, admin := harness.FreeAddr(t), harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}"))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--admin", admin)
	d.WaitHTTP("http://"+admin+"/readyz", 200)
	ask(t, http.DefaultClient, "GET", "http://"+addr+"/v1/orders/7")
	for path, want := range map[string]string{"/healthz": "ok", "/readyz": "ready", "/metrics": "cellgate_proxy_", "/config": `"orders"`} {
		if res := ask(t, http.DefaultClient, "GET", "http://"+admin+path); res.StatusCode != 200 || !strings.Contains(res.body, want) {
			t.Errorf("%s: %d %q", path, res.StatusCode, res.body)
		}
	}
}

func TestProxyAccessLogIsAppendedToAndReopened(t *testing.T) {
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}"))
	file := harness.WriteFile(t, "access.log", "before\n")
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--access-log", file)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	lines := func() int { b, _ := os.ReadFile(file); return bytes.Count(b, []byte("\n")) }
	ask(t, http.DefaultClient, "GET", "http://"+addr+"/v1/orders/7")
	harness.Eventually(t, 3*time.Second, "a line is appended", func() bool { return lines() >= 2 })
	if err := os.Rename(file, file+".1"); err != nil {
		t.Fatal(err)
	}
	d.Signal(syscall.SIGUSR1)
	harness.Eventually(t, 3*time.Second, "a new file is opened", func() bool { _, err := os.Stat(file); return err == nil })
	res := ask(t, http.DefaultClient, "GET", "http://"+addr+"/v1/orders/7")
	harness.Eventually(t, 3*time.Second, "the new file has the line", func() bool { return lines() >= 1 })
	b, _ := os.ReadFile(file)
	var line map[string]any
	if err := json.Unmarshal(bytes.SplitN(b, []byte("\n"), 2)[0], &line); err != nil || line["id"] != res.Header.Get("X-Request-Id") || line["route"] != "orders" {
		t.Fatalf("%v: %s", err, b)
	}
}

func TestProxyBelievesTrustedProxiesAboutTheirClients(t *testing.T) {
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}"))
	file := harness.WriteFile(t, "access.log", "")
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--access-log", file, "--trusted-proxies", "10.0.0.0/8,127.0.0.0/8")
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	req, _ := http.NewRequest("GET", "http://"+addr+"/v1/orders/7", nil)
	req.Host = "api.example.com"
	req.Header.Set("X-Forwarded-For", "198.51.100.1, 192.0.2.7, 10.1.1.1")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	harness.Eventually(t, 3*time.Second, "the log names the client", func() bool {
		b, _ := os.ReadFile(file)
		return bytes.Contains(b, []byte(`"peer":"192.0.2.7"`))
	})
}

func TestProxyDrainsOnSIGTERM(t *testing.T) {
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/slow"))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	done := make(chan answered, 1)
	go func() { done <- ask(t, http.DefaultClient, "GET", "http://"+addr+"/v1/slow") }()
	time.Sleep(200 * time.Millisecond)
	d.Signal(syscall.SIGTERM)
	if res := <-done; res.StatusCode != 200 || !res.Close {
		t.Fatalf("under way at SIGTERM: %d, close %v", res.StatusCode, res.Close)
	}
	if res := d.Wait(9 * time.Second); res.Code != 0 {
		t.Fatalf("exit %d", res.Code)
	}
}

// edgeFiles are a certificate for edge.example and its key.
func edgeFiles(t *testing.T) (cert, key string) {
	dir := t.TempDir()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "edge"}, DNSNames: []string{"edge.example"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	secret, _ := x509.MarshalPKCS8PrivateKey(k)
	cert, key = filepath.Join(dir, "c.pem"), filepath.Join(dir, "k.pem")
	_ = os.WriteFile(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600)
	_ = os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600)
	return cert, key
}

func TestProxyServesAnySNIWithItsCertificate(t *testing.T) {
	addr := harness.FreeAddr(t)
	cert, keyFile := edgeFiles(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}"))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--https", addr, "--cert", cert, "--key", keyFile)
	d.WaitHTTP("https://"+addr+"/.well-known/cellgate/ready", 200)
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, proto := range []string{"h2", "http/1.1"} {
			c, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, ServerName: "other.example", MinVersion: version, MaxVersion: version, NextProtos: []string{proto}})
			if err != nil {
				t.Fatal(err)
			}
			if st := c.ConnectionState(); st.NegotiatedProtocol != proto || st.PeerCertificates[0].Subject.CommonName != "edge" {
				t.Errorf("TLS %x: %q", version, st.NegotiatedProtocol)
			}
			c.Close()
		}
	}
	if _, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS11}); err == nil {
		t.Error("TLS 1.1 was taken")
	}
}

// HTTP/3 on every engine, and a client of a node that was restarted learns at once that its connection is gone.
func TestProxyServesHTTP3(t *testing.T) {
	cert, key := edgeFiles(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}"))
	for _, engine := range []string{"goroutine", "loop", "nethttp"} {
		addr := harness.FreeAddr(t)
		args := []string{"serve", "--document", doc, "--https", addr, "--cert", cert, "--key", key, "--h3", "--engine", engine}
		d := harness.Start(t, "proxy", args...)
		d.WaitHTTP("https://"+addr+"/.well-known/cellgate/ready", 200)
		tr := &http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true, ServerName: "edge.example"}}
		ask := func() (*http.Response, error) {
			req, _ := http.NewRequest("GET", "https://"+addr+"/v1/orders/7", nil)
			req.Host = "api.example.com"
			res, err := (&http.Client{Transport: tr, Timeout: 5 * time.Second}).Do(req)
			if err == nil {
				_, _ = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			return res, err
		}
		if res, err := ask(); err != nil || res.Proto != "HTTP/3.0" || res.StatusCode != 200 {
			t.Fatalf("%s: %v %v", engine, res, err)
		}
		d.Signal(syscall.SIGKILL)
		d.Wait(5 * time.Second)
		d = harness.Start(t, "proxy", args...)
		d.WaitHTTP("https://"+addr+"/.well-known/cellgate/ready", 200)
		began := time.Now()
		for res, err := ask(); err != nil; res, err = ask() {
			if time.Since(began) > 4*time.Second {
				t.Fatalf("%s: %v %v", engine, res, err)
			}
		}
		tr.Close()
	}
}

// ioCalls is how many read and write system calls a process has made.
func ioCalls(t *testing.T, pid int) (n int) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(b), "\n") {
		var v int
		if k, _ := fmt.Sscanf(line, "syscr: %d", &v); k == 1 {
			n += v
		}
		if k, _ := fmt.Sscanf(line, "syscw: %d", &v); k == 1 {
			n += v
		}
	}
	return n
}

// DESIGN section 8: read, write, read, write. The kernel counts those of the goroutine engine; loops receive and send, which it
// doesn't count here (proxy/loop counts them in a test of its own): then nothing may be left but the process's own housekeeping.
// So isn't the look at a reused upstream connection ahead of the write (docs/adr/0012).
func TestProxyNeedsFourSystemCallsPerPlainRequest(t *testing.T) {
	for engine, want := range map[string][2]float64{"goroutine": {3.9, 4.3}, "loop": {0, 0.3}, "epoll": {0, 0.3}} {
		t.Run(engine, func(t *testing.T) {
			addr := harness.FreeAddr(t)
			doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}"))
			d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--engine", engine)
			d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
			c := &http.Client{Transport: &http.Transport{}}
			load := func(n int) {
				for range n {
					if res := ask(t, c, "GET", "http://"+addr+"/v1/orders/7"); res.StatusCode != 200 {
						t.Fatal(res.StatusCode)
					}
				}
			}
			load(100)
			const n = 2000
			before := ioCalls(t, d.PID())
			load(n)
			if per := float64(ioCalls(t, d.PID())-before) / n; per < want[0] || per > want[1] {
				t.Fatalf("%.2f read and write calls per request", per)
			}
		})
	}
}

// Clients with connections of their own and clients that make a new one for each request are served until the node is gone,
// which then refuses: no exchange fails, none is reset (F8).
func TestProxyDrainsUnderLoadWithoutAFailedRequest(t *testing.T) {
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", proxyDocument(backend(t), "/v1/orders/{id}"))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	var clients sync.WaitGroup
	var served atomic.Int64
	for i := range 12 {
		clients.Add(1)
		go func() {
			defer clients.Done()
			var rt http.RoundTripper = &http.Transport{DisableKeepAlives: i%3 == 0}
			if i%3 == 1 {
				rt = &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, addr string, _ *tls.Config) (net.Conn, error) {
					return new(net.Dialer).DialContext(ctx, network, addr)
				}}
			}
			for {
				err := oneOrder(rt, addr)
				if errors.Is(err, syscall.ECONNREFUSED) {
					return
				}
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				served.Add(1)
			}
		}()
	}
	time.Sleep(300 * time.Millisecond)
	d.Signal(syscall.SIGTERM)
	clients.Wait()
	if served.Load() < 100 {
		t.Fatalf("only %d requests", served.Load())
	}
}

func oneOrder(rt http.RoundTripper, addr string) error {
	req, err := http.NewRequest("GET", "http://"+addr+"/v1/orders/7", nil)
	if err != nil {
		return err
	}
	req.Host = "api.example.com"
	res, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != 200 {
		return fmt.Errorf("status %d", res.StatusCode)
	}
	return nil
}
