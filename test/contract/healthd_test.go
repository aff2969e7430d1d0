package contract

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/test/harness"
	"github.com/cellgate/cellgate/trust"
)

// realm is a trust domain in a directory, from which a daemon's bootstrap file is made.
type realm struct {
	t   *testing.T
	dir string
	ca  *trust.CA
}

func newRealm(t *testing.T) *realm {
	ca, err := trust.NewCA("gw.test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &realm{t: t, dir: t.TempDir(), ca: ca}
	r.write("ca.pem", ca.CertPEM())
	return r
}

func (r *realm) write(name string, data []byte) string {
	path := filepath.Join(r.dir, name)
	if err := os.WriteFile(path, data, 0o600); err != nil {
		r.t.Fatal(err)
	}
	return path
}

func (r *realm) issue(role trust.Role, id cells.NodeID, names ...string) (certFile, keyFile string) {
	cert, key, err := r.ca.Issue(trust.Identity{World: "gw.test", Role: role, ID: id}, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, names, time.Now(), time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	name := strings.ReplaceAll(string(role)+"-"+string(id), "/", "-")
	return r.write(name+".pem", cert), r.write(name+".key", key)
}

// bootstrap writes a daemon's bootstrap file: what every daemon needs, its admin server, and more.
func (r *realm) bootstrap(role trust.Role, id cells.NodeID, admin netip.AddrPort, more map[string]any) string {
	cert, key := r.issue(role, id)
	adminCert, adminKey := r.issue(trust.RoleOperator, "admin/server")
	file := map[string]any{
		"form": 1, "world": "gw.test", "id": id, "data_dir": r.dir,
		"identity": map[string]string{"cert": cert, "key": key, "ca": filepath.Join(r.dir, "ca.pem")},
		"admin":    admin, "admin_cert": adminCert, "admin_key": adminKey, "admin_token_hash": hashOf(adminToken),
	}
	maps.Copy(file, more)
	raw, err := json.Marshal(file)
	if err != nil {
		r.t.Fatal(err)
	}
	return r.write("bootstrap.json", raw)
}

const adminToken = "let me in"

func (r *realm) pair(role trust.Role, id cells.NodeID, names ...string) tls.Certificate {
	certFile, keyFile := r.issue(role, id, names...)
	pair, err := tls.LoadX509KeyPair(certFile, keyFile)
	if err != nil {
		r.t.Fatal(err)
	}
	return pair
}

func (r *realm) pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(r.ca.CertPEM())
	return p
}

func hashOf(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// ask gets a page of an admin server with a token ("" = none) or certificates.
func (r *realm) ask(url, token string, certs ...tls.Certificate) (status int, body string) {
	r.t.Helper()
	c := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: r.pool(), Certificates: certs}}}
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer res.Body.Close()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res.StatusCode, string(raw)
}

// listener collects what probers send.
type listener struct {
	nodeapi.UnimplementedControllerServer
	mu   sync.Mutex
	seen map[cells.CellID]report.Probe
}

func (l *listener) Attach(s grpc.BidiStreamingServer[nodeapi.Up, nodeapi.Down]) error {
	for {
		up, err := s.Recv()
		if err != nil {
			return nil
		}
		probes, err := report.DecodeProbes(up.GetProbes())
		if err != nil {
			continue // a Hello
		}
		l.mu.Lock()
		for _, p := range probes {
			if p.Node == "" {
				l.seen[p.Cell] = p
			}
		}
		l.mu.Unlock()
	}
}

func (l *listener) probe(cell cells.CellID) (report.Probe, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.seen[cell]
	return p, ok
}

func (r *realm) controller() (*listener, string) {
	certFile, keyFile := r.issue(trust.RoleController, "eu-west/1")
	signer, err := trust.LoadSigner(certFile, keyFile)
	if err != nil {
		r.t.Fatal(err)
	}
	roots, err := trust.NewRoots(r.ca.CertPEM())
	if err != nil {
		r.t.Fatal(err)
	}
	l := &listener{seen: map[cells.CellID]report.Probe{}}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(trust.ServerTLS(signer, roots, trust.RoleProber))))
	nodeapi.RegisterControllerServer(srv, l)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(socket) }()
	r.t.Cleanup(func() { srv.Stop(); <-done })
	return l, socket.Addr().String()
}

// frontDoor serves readiness under the edge name until its context ends.
func (r *realm) frontDoor(pair tls.Certificate) netip.AddrPort {
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	if err != nil {
		r.t.Fatal(err)
	}
	srv := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.Host != "api.gw.test" || q.URL.Path != "/.well-known/cellgate/ready" {
			w.WriteHeader(http.StatusNotFound)
		}
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	r.t.Cleanup(func() { srv.Close(); <-done })
	return netip.MustParseAddrPort(l.Addr().String())
}

func TestHealthdProbesFrontDoorsAndTellsItsController(t *testing.T) {
	t.Parallel()
	r := newRealm(t)
	l, controller := r.controller()
	up := r.frontDoor(r.pair(trust.RoleProxy, "eu-west/a/1", "api.gw.test"))
	cell := func(id cells.CellID, a netip.AddrPort) cells.Cell {
		return cells.Cell{ID: id, Addresses: []netip.Addr{a.Addr()}, HTTPS: a.Port()}
	}
	addr := netip.MustParseAddrPort(harness.FreeAddr(t))
	world := cells.Topology{Regions: []cells.Region{
		{ID: "eu-west", Cells: []cells.Cell{cell("eu-west/a", up)}},
		{ID: "us-east", Cells: []cells.Cell{cell("us-east/a", netip.MustParseAddrPort(harness.FreeAddr(t)))}},
	}}
	admin := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), addr.Port())
	file := r.bootstrap(trust.RoleProber, "eu-west/1", admin, map[string]any{
		"controllers": []string{controller}, "region": "eu-west", "topology": world,
		"edge_ca": filepath.Join(r.dir, "ca.pem"), "probe_host": "api.gw.test",
	})
	d := harness.Start(t, "healthd", "serve", "--bootstrap", file)
	harness.Eventually(t, 10*time.Second, "one cell up, one down", func() bool {
		a, one := l.probe("eu-west/a")
		b, two := l.probe("us-east/a")
		return one && two && a.OK && a.From == "eu-west" && !b.OK && b.Why == "https: connection refused"
	})

	base := "https://" + admin.String()
	if status, _ := r.ask(base+"/readyz", adminToken); status != 200 {
		t.Errorf("/readyz with the token: %d", status)
	}
	if status, body := r.ask(base+"/metrics", adminToken); status != 200 || !strings.Contains(body, `cellgate_probe_success{cell="us-east/a",node=""} 0`) {
		t.Errorf("/metrics: %d %s", status, body)
	}
	if status, _ := r.ask(base+"/healthz", ""); status != 401 {
		t.Errorf("/healthz without anything: %d", status)
	}
	if status, _ := r.ask(base+"/healthz", "wrong"); status != 401 {
		t.Errorf("/healthz with a wrong token: %d", status)
	}
	if status, body := r.ask(base+"/healthz", "", r.pair(trust.RoleOperator, "ops/1")); status != 200 {
		t.Errorf("/healthz with an operator's certificate: %d %s", status, body)
	}
	if status, _ := r.ask(base+"/healthz", "", r.pair(trust.RoleProxy, "eu-west/a/9")); status == 200 {
		t.Error("/healthz let a proxy's certificate in")
	}
	if strings.Contains(d.Stderr(), adminToken) {
		t.Error("the token is in the log")
	}
	if got := d.Stop(5 * time.Second); got.Code != 0 {
		t.Errorf("SIGTERM: exit %d", got.Code)
	}
}

func TestHealthdSaysWhatIsWrongWithItsStart(t *testing.T) {
	t.Parallel()
	r := newRealm(t)
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no file":      {[]string{"serve"}, 2, "--bootstrap FILE is missing"},
		"absent file":  {[]string{"serve", "--bootstrap", "/nowhere.json"}, 1, "no such file"},
		"broken file":  {[]string{"serve", "--bootstrap", r.write("broken.json", []byte("{"))}, 1, "broken.json"},
		"unknown key":  {[]string{"serve", "--bootstrap", r.write("key.json", []byte(`{"colour":"red"}`))}, 1, "colour"},
		"empty world":  {[]string{"serve", "--bootstrap", r.write("empty.json", []byte(`{}`))}, 1, "no region"},
		"unknown word": {[]string{"probe"}, 2, "unknown command"},
		"extra word":   {[]string{"serve", "now"}, 2, "unknown command"},
	} {
		got := harness.Run(t, "healthd", c.args...)
		if got.Code != c.code || !strings.Contains(got.Stderr, c.says) {
			t.Errorf("%s: exit %d, %q; want %d with %q", name, got.Code, got.Stderr, c.code, c.says)
		}
	}
}

// Evidence under another region's name would be refused by every controller, so it is refused at the start.
func TestHealthdRefusesACertificateOfAnotherRegion(t *testing.T) {
	t.Parallel()
	r := newRealm(t)
	file := r.bootstrap(trust.RoleProber, "us-east/1", netip.MustParseAddrPort("127.0.0.1:1"), map[string]any{
		"controllers": []string{"127.0.0.1:1"}, "region": "eu-west", "edge_ca": filepath.Join(r.dir, "ca.pem"), "probe_host": "api.gw.test",
		"topology": cells.Topology{Regions: []cells.Region{{ID: "eu-west"}}},
	})
	if got := harness.Run(t, "healthd", "serve", "--bootstrap", file); got.Code != 1 || !strings.Contains(got.Stderr, `not that of a healthd of region "eu-west"`) {
		t.Fatalf("exit %d, %q", got.Code, got.Stderr)
	}
}

func TestHealthdSaysThatItsAdminPortIsInUse(t *testing.T) {
	t.Parallel()
	r := newRealm(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	file := r.bootstrap(trust.RoleProber, "eu-west/1", netip.MustParseAddrPort(l.Addr().String()), map[string]any{
		"controllers": []string{"127.0.0.1:1"}, "region": "eu-west", "edge_ca": filepath.Join(r.dir, "ca.pem"), "probe_host": "api.gw.test",
		"topology": cells.Topology{Regions: []cells.Region{{ID: "eu-west"}}},
	})
	if got := harness.Run(t, "healthd", "serve", "--bootstrap", file); got.Code != 1 || !strings.Contains(got.Stderr, "address already in use") {
		t.Fatalf("exit %d, %q", got.Code, got.Stderr)
	}
}
