package contract

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"github.com/quic-go/quic-go/http3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/test/harness"
	"github.com/cellgate/cellgate/trust"
)

const theNode = cells.NodeID("eu-west/a/1")

// proxyBoot is the bootstrap file of a proxy.
type proxyBoot struct {
	Form           int               `json:"form"`
	World          string            `json:"world"`
	ID             cells.NodeID      `json:"id"`
	DataDir        string            `json:"data_dir"`
	Identity       map[string]string `json:"identity"`
	Controllers    []string          `json:"controllers"`
	Cell           cells.CellID      `json:"cell"`
	SharedHTTP     netip.AddrPort    `json:"shared_http"`
	SharedHTTPS    netip.AddrPort    `json:"shared_https"`
	OwnHTTP        netip.AddrPort    `json:"own_http"`
	OwnHTTPS       netip.AddrPort    `json:"own_https"`
	Admin          netip.AddrPort    `json:"admin"`
	EdgeCert       string            `json:"edge_cert"`
	EdgeKey        string            `json:"edge_key"`
	AdminCert      string            `json:"admin_cert"`
	AdminKey       string            `json:"admin_key"`
	AdminTokenHash string            `json:"admin_token_hash"`
	AccessLog      string            `json:"access_log"`
	PermitLoopback bool              `json:"permit_loopback"`
	Peer           netip.AddrPort    `json:"peer,omitzero"`
	Peers          []netip.AddrPort  `json:"peers,omitempty"`
	ObjectStore    string            `json:"object_store,omitempty"`
	MaxAge         time.Duration     `json:"max_connection_age_ns,omitempty"`
	HTTP3          bool              `json:"http3,omitempty"`
	OTLP           map[string]any    `json:"otlp,omitempty"`
}

func (b proxyBoot) encode() []byte {
	raw, _ := json.Marshal(b)
	return raw
}

// gateway is one node of a world with everything that it needs around it: a controller, a provider, a backend.
type gateway struct {
	*realm
	t        *testing.T
	file     string
	boot     proxyBoot
	board    *fleet.Board
	evidence *fleet.Evidence
	blobs    map[string][]byte
	target   []byte // signed, of the newest version
	signer   *trust.Signer
	key      *ecdsa.PrivateKey
	idp      *httptest.Server
	fetches  atomic.Int64 // of the provider's keys
	down     atomic.Bool  // the provider answers 500
	owners   sync.Map     // consumers by the hash of a key that the controller knows
	lookups  atomic.Int64 // of keys
	backend  *httptest.Server
	client   *http.Client
}

func newGateway(t *testing.T) *gateway {
	g := &gateway{realm: newRealm(t), t: t, board: fleet.NewBoard(), blobs: map[string][]byte{}}
	g.evidence = fleet.NewEvidence("eu-west", time.Now)
	g.key, _ = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	jwks, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &g.key.PublicKey, KeyID: "k"}}})
	g.idp = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		g.fetches.Add(1)
		if g.down.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(jwks)
	}))
	g.backend = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(g.idp.Close)
	t.Cleanup(g.backend.Close)

	ctlCert, ctlKey := g.issue(trust.RoleController, "eu-west/1")
	g.signer, _ = trust.LoadSigner(ctlCert, ctlKey)
	cert, key := g.issue(trust.RoleProxy, theNode, "api.gw.test")
	addr := func() netip.AddrPort { return netip.MustParseAddrPort(harness.FreeAddr(t)) }
	sum := sha256.Sum256([]byte("admin-token"))
	g.boot = proxyBoot{
		Form: 1, World: "gw.test", ID: theNode, DataDir: filepath.Join(g.dir, "data"),
		Identity:    map[string]string{"cert": cert, "key": key, "ca": filepath.Join(g.dir, "ca.pem")},
		Controllers: []string{harness.FreeAddr(t)}, Cell: "eu-west/a",
		SharedHTTP: addr(), SharedHTTPS: addr(), OwnHTTP: addr(), OwnHTTPS: addr(), Admin: addr(),
		EdgeCert: cert, EdgeKey: key, AdminCert: cert, AdminKey: key, AdminTokenHash: "sha256:" + hex.EncodeToString(sum[:]),
		AccessLog: filepath.Join(g.dir, "access.log"), PermitLoopback: true, HTTP3: true,
	}
	g.file = g.write("proxy.json", g.boot.encode())
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(g.ca.CertPEM())
	g.client = &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: "api.gw.test"}, DisableKeepAlives: true}}
	return g
}

// control starts the controller and gives a function that ends it.
func (g *gateway) control() (stop func()) {
	roots, _ := trust.NewRoots(g.ca.CertPEM())
	l, err := net.Listen("tcp", g.boot.Controllers[0])
	if err != nil {
		g.t.Fatal(err)
	}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(trust.ServerTLS(g.signer, roots, trust.RoleProxy))))
	fl := fleet.NewServer(fleet.Config{
		World: "gw.test", Region: "eu-west", Board: g.board, Evidence: g.evidence, Leader: func() bool { return true }, Now: time.Now,
		Log: slog.New(slog.DiscardHandler),
		FindKey: func(hashes []string) (string, error) {
			g.lookups.Add(1)
			owner, _ := g.owners.Load(hashes[0])
			consumer, _ := owner.(string)
			return consumer, nil
		},
		Blobs: func(_ context.Context, d string) ([]byte, error) {
			if b, ok := g.blobs[d]; ok {
				return b, nil
			}
			return nil, fmt.Errorf("no blob %s", d)
		},
		Identify: func(ctx context.Context) (trust.Identity, error) {
			p, _ := peer.FromContext(ctx)
			return trust.PeerIdentity(p.AuthInfo.(credentials.TLSInfo).State)
		},
	})
	fl.Register(srv)
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(l) }()
	return func() { fl.Close(); srv.Stop(); <-done }
}

// publish puts version n on the board: a protected route and a public one.
func (g *gateway) publish(n uint64) {
	doc := fmt.Sprintf(`
version: v1
routes:
  - {id: orders, match: {host: api.gw.test, path_prefix: /v1}, upstream: u, auth: jwt}
  - {id: open, match: {host: api.gw.test, path: /open%d}, upstream: u}
  - {id: keyed, match: {host: api.gw.test, path: /keyed}, upstream: u, auth: key}
upstreams: [{id: u, endpoints: [%q]}]
policies: [{id: jwt, jwt: {issuer: "i", audience: a, jwks: %q}}, {id: key, api_key: {}}]
consumers: [{id: acme}]
`, n, strings.TrimPrefix(g.backend.URL, "http://"), g.idp.URL)
	cfg, problems := snapshot.Decode([]snapshot.File{{Name: "doc.yaml", Data: []byte(doc)}}, snapshot.Loopback())
	if len(problems) > 0 {
		g.t.Fatal(problems)
	}
	s, err := snapshot.Seal(cfg, snapshot.Meta{Number: n, Created: time.Now()})
	if err != nil {
		g.t.Fatal(err)
	}
	for d, b := range s.Blobs {
		g.blobs[string(d)] = b
	}
	raw, _ := snapshot.EncodeManifest(&s.Manifest)
	manifest := g.sign(trust.KindManifest, raw)
	g.blobs[string(snapshot.Sum(manifest))] = manifest
	raw, _ = json.Marshal(rollout.Target{Form: rollout.TargetForm, Region: "eu-west", Epoch: 1, Number: n,
		Cells: map[cells.CellID]rollout.Version{"eu-west/a": {Number: n, Manifest: snapshot.Sum(manifest)}}, Share: map[cells.CellID]int{"eu-west/a": 1}})
	g.target = g.sign(trust.KindTarget, raw)
	g.board.PostTo("eu-west", fleet.Mail{Kind: fleet.KindTarget, Epoch: 1, Number: n, Envelope: g.target})
}

func (g *gateway) sign(kind string, payload []byte) []byte {
	envelope, err := g.signer.Sign(kind, payload)
	if err != nil {
		g.t.Fatal(err)
	}
	return envelope
}

func (g *gateway) token() string { return g.tokenOf("k") }

func (g *gateway) tokenOf(kid string) string {
	s, _ := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: g.key, KeyID: kid}}, nil)
	payload, _ := json.Marshal(map[string]any{"iss": "i", "aud": "a", "sub": "alice", "exp": time.Now().Add(time.Hour).Unix()})
	jws, _ := s.Sign(payload)
	token, _ := jws.CompactSerialize()
	return token
}

// get asks for a URL as host api.gw.test; status 0 means that nobody answered.
func (g *gateway) get(url, token string) (status int, body string, h http.Header) {
	req, _ := http.NewRequest(http.MethodGet, url, nil)
	req.Host = "api.gw.test"
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := g.client.Do(req)
	if err != nil {
		return 0, err.Error(), nil
	}
	defer resp.Body.Close()
	raw, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(raw), resp.Header
}

func (g *gateway) shared(path string) string { return "http://" + g.boot.SharedHTTP.String() + path }
func (g *gateway) admin(path string) string  { return "https://" + g.boot.Admin.String() + path }

func (g *gateway) becomes(what, url, token string, want int, within time.Duration) {
	g.t.Helper()
	harness.Eventually(g.t, within, what, func() bool { status, _, _ := g.get(url, token); return status == want })
}

func TestANodeOfAWorldServesFromDiskWhenEverythingElseIsDead(t *testing.T) {
	g := newGateway(t)
	first := harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("an empty node to say that it is not ready", g.admin("/readyz"), "admin-token", 503, 5*time.Second)
	if _, body, _ := g.get(g.admin("/readyz"), "admin-token"); !strings.Contains(body, "waiting for a regionctl at "+g.boot.Controllers[0]) {
		t.Errorf("readyz says %q", body)
	}
	if status, _, _ := g.get("http://"+g.boot.OwnHTTP.String()+proxy.ReadyPath, ""); status != 503 {
		t.Errorf("own address of an empty node: %d", status)
	}
	if status, _, _ := g.get(g.shared("/open1"), ""); status != 0 {
		t.Errorf("the cell's address of an empty node: %d", status)
	}

	stop := g.control()
	g.publish(1)
	token := g.token()
	g.becomes("version 1 to be served", g.shared("/v1/orders"), token, 200, 10*time.Second)
	if status, _, h := g.get(g.shared("/v1/orders"), ""); status != 401 || h.Get("WWW-Authenticate") == "" {
		t.Errorf("without a token: %d", status)
	}
	if status, _, _ := g.get("https://"+g.boot.OwnHTTPS.String()+"/v1/orders", token); status != 200 {
		t.Errorf("https on the own address: %d", status)
	}
	g.servesHTTP3(token)
	g.publish(2)
	g.becomes("version 2 to be served", g.shared("/open2"), "", 200, 10*time.Second)

	first.Signal(syscall.SIGKILL)
	first.Wait(5 * time.Second)
	stop()
	g.idp.Close()
	began := time.Now()
	second := harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("the node to serve from disk", g.shared("/v1/orders"), token, 200, 5*time.Second)
	if took := time.Since(began); took > harness.Slack*3*time.Second {
		t.Errorf("serving again took %v", took)
	}
	_, body, _ := g.get(g.admin("/config"), "admin-token")
	var config struct {
		Version  uint64
		Snapshot struct{ Served, Known, Stored uint64 }
	}
	if err := json.Unmarshal([]byte(body), &config); err != nil || config.Version != 2 || config.Snapshot.Served != 2 || !strings.Contains(body, `"source":"disk"`) {
		t.Errorf("config: %s, %v", body, err)
	}
	if r := second.Stop(15 * time.Second); r.Code != 0 {
		t.Errorf("SIGTERM: exit %d", r.Code)
	}
}

// servesHTTP3 checks that the node's own address does, and that it and the cell's announce it.
func (g *gateway) servesHTTP3(token string) {
	for _, addr := range []netip.AddrPort{g.boot.OwnHTTPS, g.boot.SharedHTTPS} {
		if _, _, h := g.get("https://"+addr.String()+"/v1/orders", token); h.Get("Alt-Svc") != fmt.Sprintf(`h3=":%d"; ma=3600`, addr.Port()) {
			g.t.Errorf("%s: Alt-Svc is %q", addr, h.Get("Alt-Svc"))
		}
	}
	tr := &http3.Transport{TLSClientConfig: g.client.Transport.(*http.Transport).TLSClientConfig.Clone()}
	defer tr.Close()
	req, _ := http.NewRequest(http.MethodGet, "https://"+g.boot.OwnHTTPS.String()+"/v1/orders", nil)
	req.Host = "api.gw.test"
	req.Header.Set("Authorization", "Bearer "+token)
	resp, err := (&http.Client{Transport: tr, Timeout: 3 * time.Second}).Do(req)
	if err != nil {
		g.t.Error(err)
		return
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != 200 || resp.ProtoMajor != 3 {
		g.t.Errorf("over HTTP/3: %s %v", resp.Status, err)
	}
}

func TestANodeOfAWorldGuardsItsAdminServerAndItsName(t *testing.T) {
	g := newGateway(t)
	defer g.control()()
	g.publish(1)
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("readiness", g.admin("/readyz"), "admin-token", 200, 10*time.Second)
	for _, path := range []string{"/healthz", "/readyz", "/metrics", "/config"} {
		for token, want := range map[string]int{"": 401, "admin-tokem": 401, "admin-token": 200} {
			if status, _, _ := g.get(g.admin(path), token); status != want {
				t.Errorf("%s with %q: %d", path, token, status)
			}
		}
	}
	g.get(g.shared("/open1"), "")
	if _, body, _ := g.get(g.admin("/metrics"), "admin-token"); !strings.Contains(body, `cellgate_proxy_requests_total{code="200",route="open",tenant="default"} 1`) ||
		!strings.Contains(body, "cellgate_proxy_snapshot 1\n") || !strings.Contains(body, "cellgate_proxy_config_age_seconds ") {
		t.Errorf("metrics:\n%s", body)
	}
	if r := harness.Run(t, "proxy", "serve", "--bootstrap", g.file); r.Code != 1 || !strings.Contains(r.Stderr, "address in use") {
		t.Errorf("a second process: exit %d, %s", r.Code, r.Stderr)
	}
	harness.Eventually(t, 5*time.Second, "a report of the node", func() bool {
		for _, n := range g.evidence.Nodes() {
			if n.Report.ID == theNode && n.Report.Snapshot.Served == 1 && n.Report.Ready && n.Report.RSS > 0 {
				return true
			}
		}
		return false
	})
}

func TestAnEvacuatedCellsNodeTellsClientsToReconnect(t *testing.T) {
	g := newGateway(t)
	defer g.control()()
	g.publish(1)
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("readiness", g.shared("/open1"), "", 200, 10*time.Second)
	g.client.Transport.(*http.Transport).DisableKeepAlives = false
	closing := func() bool {
		req, _ := http.NewRequest(http.MethodGet, g.shared("/open1"), nil)
		req.Host = "api.gw.test"
		resp, err := g.client.Do(req)
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		_, _ = io.Copy(io.Discard, resp.Body)
		return resp.Close
	}
	if closing() {
		t.Fatal("an active cell's node closes connections")
	}
	now := time.Now()
	order := cells.Evacuation{Form: cells.EvacuationForm, Cell: "eu-west/a", Reason: "drill", Started: now, Over: time.Minute, Expires: now.Add(time.Hour)}
	raw, _ := json.Marshal([]cells.Evacuation{order})
	g.board.Post(fleet.Mail{Kind: fleet.KindOverrides, Envelope: g.sign(trust.KindOverrides, raw)})
	harness.Eventually(t, 5*time.Second, "Connection: close", closing)
	if status, _, _ := g.get("http://"+g.boot.OwnHTTP.String()+proxy.ReadyPath, ""); status != 200 {
		t.Errorf("an evacuated cell's node is not ready: %d", status)
	}
	order.Restored = time.Now()
	raw, _ = json.Marshal([]cells.Evacuation{order})
	g.board.Post(fleet.Mail{Kind: fleet.KindOverrides, Envelope: g.sign(trust.KindOverrides, raw)})
	harness.Eventually(t, 5*time.Second, "connections to stay", func() bool { return !closing() })
}

func TestAWrongBootstrapFileIsRefusedInClearWords(t *testing.T) {
	g := newGateway(t)
	for want, change := range map[string]func(*proxyBoot){
		"form is 7":                       func(b *proxyBoot) { b.Form = 7 },
		"is not that of a node of cell":   func(b *proxyBoot) { b.Cell = "eu-west/b" },
		"data_dir is missing":             func(b *proxyBoot) { b.DataDir = "" },
		"http3 is on, and own_https":      func(b *proxyBoot) { b.OwnHTTPS = netip.AddrPort{} },
		"own_http and own_https are both": func(b *proxyBoot) { b.OwnHTTP, b.OwnHTTPS = netip.AddrPort{}, netip.AddrPort{} },
		"the certificate is spiffe://":    func(b *proxyBoot) { b.ID = "eu-west/a/2" },
		"no such file":                    func(b *proxyBoot) { b.EdgeCert = "/nonexistent.pem" },
		"not sha256:<64 hex digits>":      func(b *proxyBoot) { b.AdminTokenHash = "secret" },
		"state directory: mkdir":          func(b *proxyBoot) { b.DataDir = g.file },
	} {
		b := g.boot
		change(&b)
		file := g.write("wrong.json", b.encode())
		if r := harness.Run(t, "proxy", "serve", "--bootstrap", file); r.Code != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit %d, %s", want, r.Code, r.Stderr)
		}
	}
	if r := harness.Run(t, "proxy", "serve", "--bootstrap", g.file, "--http", ":0"); r.Code != 2 {
		t.Errorf("--bootstrap with --http: exit %d, %s", r.Code, r.Stderr)
	}
}

func TestMissingKeysAre503AndRandomKidsCauseNoFlood(t *testing.T) { // CASES G73
	g := newGateway(t)
	defer g.control()()
	g.down.Store(true)
	g.publish(1)
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("readiness without the provider", g.shared("/open1"), "", 200, 10*time.Second)
	status, body, h := g.get(g.shared("/v1/orders"), g.token())
	if status != 503 || h.Get("Retry-After") == "" || !strings.Contains(body, "auth_unavailable") {
		t.Errorf("no keys: %d, Retry-After %q, %s", status, h.Get("Retry-After"), body)
	}
	if status, _, _ := g.get(g.shared("/v1/orders"), ""); status != 401 {
		t.Errorf("no keys and no token: %d", status)
	}
	g.down.Store(false)
	g.becomes("the keys", g.shared("/v1/orders"), g.token(), 200, 10*time.Second)
	before := g.fetches.Load()
	for i := range 300 {
		began := time.Now()
		if status, body, _ := g.get(g.shared("/v1/orders"), g.tokenOf(fmt.Sprint("random-", i))); status != 401 || !strings.Contains(body, "token_invalid") {
			t.Fatalf("unknown kid: %d %s", status, body)
		}
		if took := time.Since(began); took > harness.Slack*800*time.Millisecond {
			t.Errorf("a request with an unknown kid waited %v", took)
		}
		if status, _, _ := g.get(g.shared("/v1/orders"), g.token()); status != 200 {
			t.Fatalf("a known kid in the flood: %d", status)
		}
	}
	if n := g.fetches.Load() - before; n > 1 {
		t.Errorf("300 random kids caused %d fetches", n)
	}
}

func TestProbesAreNobodysRequests(t *testing.T) {
	g := newGateway(t)
	defer g.control()()
	g.publish(1)
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("readiness", g.shared("/open1"), "", 200, 10*time.Second)
	for range 5 {
		g.get("http://"+g.boot.OwnHTTP.String()+proxy.ReadyPath, "")
	}
	g.get(g.shared("/open1"), "")
	_, body, _ := g.get(g.admin("/metrics"), "admin-token")
	if strings.Contains(body, `route=""`) {
		t.Errorf("probes have series of their own:\n%s", body)
	}
	harness.Eventually(t, 5*time.Second, "the access log", func() bool {
		raw, err := os.ReadFile(g.boot.AccessLog)
		return err == nil && strings.Contains(string(raw), `"path":"/open1"`) && !strings.Contains(string(raw), proxy.ReadyPath)
	})
}
