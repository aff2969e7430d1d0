package regionctl

import (
	"bytes"
	"context"
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
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
	"github.com/cellgate/cellgate/trust"
)

const testToken = "operator-secret"

// world is two regions of two cells with two nodes each, in one process: real gRPC and HTTPS on loopback, stores in memory.
type world struct {
	t        *testing.T
	block    *loopback.Block
	ports    uint16 // given out
	ca       *trust.CA
	roots    *trust.Roots
	topology cells.Topology
	global   *mem.Store
	regions  map[cells.RegionID]*region
	pool     *x509.CertPool
	reader   *http.Client // keeps its connections, for those who poll
	cert     tls.Certificate
	nodes    []*node
	// globalGate stands before the global store of controllers started from now on; nil = none.
	globalGate *gated
	// openGlobal gives the global store of controllers started from now on; nil = the one in memory.
	openGlobal func() store.Store
	log        *slog.Logger
}

type region struct {
	id       cells.RegionID
	regional *mem.Store
	gate     *gated // before regional; nil = none
	nodeAPI  string
	api      string
	stop     context.CancelFunc
	done     chan error
	c        *Controller
}

func newWorld(t *testing.T) *world {
	t.Helper()
	now := time.Now()
	ca, err := trust.NewCA("gw.test", now)
	must(t, err)
	roots, err := trust.NewRoots(ca.CertPEM())
	must(t, err)
	w := &world{t: t, block: loopback.For(t), ca: ca, roots: roots, global: mem.New(), regions: map[cells.RegionID]*region{}, pool: x509.NewCertPool()}
	w.pool.AppendCertsFromPEM(ca.CertPEM())
	w.reader = &http.Client{Timeout: 2 * time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.pool}}}
	t.Cleanup(w.reader.CloseIdleConnections)
	w.log = slog.New(slog.NewTextHandler(testWriter{t}, nil))
	certPEM, keyPEM, err := ca.Issue(trust.Identity{World: "gw.test", Role: trust.RoleController, ID: "api/1"}, []netip.Addr{w.block.Addr(0, 1)}, nil, now, time.Hour)
	must(t, err)
	w.cert, err = tls.X509KeyPair(certPEM, keyPEM)
	must(t, err)
	for i, r := range []cells.RegionID{"eu-west", "us-east"} {
		reg := cells.Region{ID: r, Clients: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("5.%d.0.0/16", i+1))}}
		for j, name := range []string{"a", "b"} {
			cell := cells.Cell{ID: cells.CellID(string(r) + "/" + name), Addresses: []netip.Addr{w.block.Addr(byte(i+1), byte(j+1))}, HTTPS: 8443, Limit: 100_000}
			for n := 1; n <= 2; n++ {
				cell.Nodes = append(cell.Nodes, cells.Node{ID: cells.NodeID(fmt.Sprintf("%s/%d", cell.ID, n))})
			}
			reg.Cells = append(reg.Cells, cell)
		}
		w.topology.Regions = append(w.topology.Regions, reg)
		w.regions[r] = &region{id: r, regional: mem.New(), nodeAPI: w.freeAddr().String(), api: w.freeAddr().String()}
	}
	return w
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	if testing.Verbose() {
		fmt.Print(string(b))
	}
	return len(b), nil
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// freeAddr is an address that nobody else wants while the test runs.
func (w *world) freeAddr() netip.AddrPort {
	w.ports++
	return netip.AddrPortFrom(w.block.Addr(0, 1), 7000+w.ports)
}

func (w *world) signer(role trust.Role, id cells.NodeID) *trust.Signer {
	certPEM, keyPEM, err := w.ca.Issue(trust.Identity{World: "gw.test", Role: role, ID: id}, nil, nil, time.Now(), time.Hour)
	must(w.t, err)
	s, err := trust.NewSigner(certPEM, keyPEM)
	must(w.t, err)
	return s
}

// start runs the region's controller until the test ends or stop is called.
func (w *world) start(id cells.RegionID) *region {
	r := w.regions[id]
	nodes, err := net.Listen("tcp", r.nodeAPI)
	must(w.t, err)
	api, err := net.Listen("tcp", r.api)
	must(w.t, err)
	peers := map[cells.RegionID]string{}
	for other, o := range w.regions {
		if other != id {
			peers[other] = o.nodeAPI
		}
	}
	hash := sha256.Sum256([]byte(testToken))
	var global store.Store = w.global.Join()
	if w.globalGate != nil {
		global = w.globalGate
	}
	if w.openGlobal != nil {
		global = w.openGlobal()
	}
	var regional store.Store = r.regional.Join()
	if r.gate != nil {
		regional = r.gate
	}
	r.c, err = New(Options{
		World: "gw.test", ID: cells.NodeID(string(id) + "/1"), Region: id, Topology: w.topology, Zone: "gw.test", SteeredNames: []string{"api.gw.test"},
		PermitLoopback: true, AdminTokenHash: "sha256:" + hex.EncodeToString(hash[:]),
		Beat: 50 * time.Millisecond, DenyBeat: 500 * time.Millisecond, TTL: time.Second, Bake: 300 * time.Millisecond, Ramp: time.Second, DownAfter: time.Second, UpAfter: time.Second, FlapCap: 2 * time.Second,
		OnInsufficient: rollout.OnInsufficientProceed,
		Global:         global, Regional: regional,
		Signer: w.signer(trust.RoleController, cells.NodeID(string(id)+"/1")), Roots: w.roots, APICert: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &w.cert, nil },
		NodeAPI: nodes, API: api, Peers: peers, Now: time.Now, Log: w.log.With("region", string(id)),
	})
	must(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	r.done = make(chan error, 1)
	go func() { r.done <- r.c.Run(ctx) }()
	r.stop = sync.OnceFunc(func() {
		w.reader.CloseIdleConnections()
		cancel()
		select {
		case err := <-r.done:
			if err != nil {
				w.t.Errorf("controller of %s: %v", id, err)
			}
		case <-time.After(slack * 10 * time.Second):
			w.t.Errorf("controller of %s does not stop", id)
		}
	})
	w.t.Cleanup(r.stop)
	return r
}

func (w *world) startAll() {
	for _, r := range w.topology.Regions {
		w.start(r.ID)
	}
	for _, c := range w.topology.Cells() {
		for _, n := range c.Nodes {
			w.startNode(n.ID)
		}
	}
	for _, r := range w.topology.Regions {
		w.startProber(r.ID)
	}
}

// node is a proxy that applies every target it gets, unless its store went back: fetch, verify, serve, report.
type node struct {
	id     cells.NodeID
	w      *world
	client *nodeapi.Client

	mu     sync.Mutex
	seq    uint64
	target rollout.Target
	served uint64
	sum    snapshot.Digest
	refuse uint64 // version that it NACKs
	orders []cells.Evacuation
	denied []denylist.Entry
	keys   *apikey.List
	beat   time.Time
	plans  int // got while the cell is evacuated
}

func (w *world) controllers(own cells.RegionID) []string {
	out := []string{w.regions[own].nodeAPI}
	for id, r := range w.regions {
		if id != own {
			out = append(out, r.nodeAPI)
		}
	}
	return out
}

func (w *world) startNode(id cells.NodeID) *node {
	n := &node{id: id, w: w}
	n.client = nodeapi.NewClient(nodeapi.Options{
		Controllers: w.controllers(id.Region()), TLS: trust.ClientTLS(w.signer(trust.RoleProxy, id), w.roots, trust.RoleController),
		Hello: func() *nodeapi.Hello {
			n.mu.Lock()
			defer n.mu.Unlock()
			return &nodeapi.Hello{Boot: "b", TargetEpoch: n.target.Epoch, TargetNumber: n.target.Number}
		},
		Receive: n.receive,
	})
	w.background(n.client.Run)
	w.background(func(ctx context.Context) error {
		for pause.For(ctx, 100*time.Millisecond) {
			n.report()
		}
		return nil
	})
	w.nodes = append(w.nodes, n)
	return n
}

// background runs a part until the test ends.
func (w *world) background(run func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	w.t.Cleanup(func() { cancel(); <-done })
}

func (n *node) receive(d *nodeapi.Down) {
	switch m := d.Message.(type) {
	case *nodeapi.Down_Overrides:
		raw, _, err := n.w.roots.Verify(trust.KindOverrides, m.Overrides.Envelope, time.Now(), trust.RoleController)
		var list []cells.Evacuation
		if err != nil || json.Unmarshal(raw, &list) != nil {
			n.w.t.Errorf("%s: overrides: %v", n.id, err)
		}
		n.mu.Lock()
		if m.Overrides.Adds {
			list = cells.Unite(n.orders, list)
		}
		n.orders = list
		n.mu.Unlock()
	case *nodeapi.Down_Denylist:
		raw, _, err := n.w.roots.Verify(trust.KindDenylist, m.Denylist.Envelope, time.Now(), trust.RoleController)
		list, err2 := denylist.Decode(raw)
		if err != nil || err2 != nil || list.Region != n.id.Region() {
			n.w.t.Errorf("%s: denylist of %q: %v %v", n.id, list.Region, err, err2)
		}
		n.mu.Lock()
		n.denied = denylist.Unite(n.denied, list.Entries)
		n.beat = list.At
		n.mu.Unlock()
	case *nodeapi.Down_Keys:
		raw, _, err := n.w.roots.Verify(trust.KindKeys, m.Keys.Envelope, time.Now(), trust.RoleController)
		list, err2 := apikey.Decode(raw)
		if err != nil || err2 != nil {
			n.w.t.Errorf("%s: keys: %v %v", n.id, err, err2)
		}
		n.mu.Lock()
		if n.keys == nil || list.Number() > n.keys.Number() {
			n.keys = list
		}
		n.mu.Unlock()
	case *nodeapi.Down_Target:
		go n.apply(m.Target.Envelope)
	case *nodeapi.Down_Topology:
	case *nodeapi.Down_Plan:
		n.mu.Lock()
		n.plans++
		n.mu.Unlock()
	default:
		n.w.t.Errorf("%s got a %T, which is not for proxies", n.id, m)
	}
}

func (n *node) apply(envelope []byte) {
	raw, _, err := n.w.roots.Verify(trust.KindTarget, envelope, time.Now(), trust.RoleController)
	var target rollout.Target
	if err != nil || json.Unmarshal(raw, &target) != nil || target.Region != n.id.Region() {
		n.w.t.Errorf("%s: target of %s: %v", n.id, target.Region, err)
		return
	}
	v, ok := target.For(n.id)
	if !ok {
		return
	}
	if had := n.highest(); target.Head != 0 && target.Head < had.Head { // as the agent of proxies does
		n.client.Send(&nodeapi.Up{Message: &nodeapi.Up_Ack{Ack: &nodeapi.Ack{Epoch: target.Epoch, Number: target.Number, Nack: "the global store went back"}}})
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), slack*5*time.Second)
	defer cancel()
	m, err := n.fetch(ctx, v)
	n.mu.Lock()
	defer n.mu.Unlock()
	ack := &nodeapi.Ack{Epoch: target.Epoch, Number: target.Number, Version: v.Number}
	switch {
	case err != nil:
		ack.Nack = err.Error()
	case v.Number == n.refuse:
		ack.Nack = "my own checks fail"
		n.target = target
	default:
		n.target, n.served, n.sum = target, v.Number, m.Checksum
	}
	n.client.Send(&nodeapi.Up{Message: &nodeapi.Up_Ack{Ack: ack}})
}

func (n *node) fetch(ctx context.Context, v rollout.Version) (*snapshot.Manifest, error) {
	got, err := n.client.Fetch(ctx, []string{string(v.Manifest)})
	if err != nil {
		return nil, err
	}
	raw, _, err := n.w.roots.Verify(trust.KindManifest, got[string(v.Manifest)], time.Now(), trust.RoleController)
	if err != nil {
		return nil, err
	}
	m, err := snapshot.DecodeManifest(raw)
	if err != nil {
		return nil, err
	}
	var want []string
	for _, s := range m.Shards {
		want = append(want, string(s.Digest))
	}
	blobs, err := n.client.Fetch(ctx, want)
	if err != nil {
		return nil, err
	}
	snap := &snapshot.Snapshot{Manifest: *m, Blobs: map[snapshot.Digest][]byte{}}
	for d, b := range blobs {
		snap.Blobs[snapshot.Digest(d)] = b
	}
	return m, snap.Verify()
}

func (n *node) report() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.seq++
	v, _ := n.target.For(n.id)
	r := report.Node{ID: n.id, Boot: "b", Seq: n.seq, Window: 100 * time.Millisecond, Ready: true, Counts: report.Counts{Requests: 2}}
	r.Snapshot = report.Snapshot{Known: v.Number, Stored: n.served, Served: n.served, Checksum: string(n.sum), Source: report.SourcePush}
	if v.Number != n.served {
		r.Snapshot.Nack = "my own checks fail"
	}
	raw, err := report.EncodeNode(r)
	must(n.w.t, err)
	n.client.Send(&nodeapi.Up{Message: &nodeapi.Up_Report{Report: raw}})
}

func (n *node) serves() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.served
}

// startProber runs a prober that finds every cell well.
func (w *world) startProber(id cells.RegionID) {
	c := nodeapi.NewClient(nodeapi.Options{
		Controllers: w.controllers(id), TLS: trust.ClientTLS(w.signer(trust.RoleProber, cells.NodeID(string(id)+"/1")), w.roots, trust.RoleController),
		Hello: func() *nodeapi.Hello { return &nodeapi.Hello{Boot: "p"} }, Receive: func(*nodeapi.Down) {},
	})
	w.background(c.Run)
	w.background(func(ctx context.Context) error {
		for pause.For(ctx, 200*time.Millisecond) {
			var ps []report.Probe
			for _, cell := range w.topology.Cells() {
				ps = append(ps, report.Probe{From: id, Cell: cell.ID, OK: true})
			}
			raw, err := report.EncodeProbes(ps)
			must(w.t, err)
			c.Send(&nodeapi.Up{Message: &nodeapi.Up_Probes{Probes: raw}})
		}
		return nil
	})
}

// ask calls a region's API. It returns the status and decodes the answer into out when out is not nil. As operators do, it
// gives an order again that nobody has kept: on a busy machine a store may be slow to take it.
func (w *world) ask(id cells.RegionID, method, path string, in, out any) (code int, f *Fault) {
	w.t.Helper()
	for end := time.Now().Add(slack * 10 * time.Second); ; {
		if code, f = w.send(w.request(id, method, path, in), out); f == nil || f.Reason != "not_kept" || time.Now().After(end) {
			return code, f
		}
	}
}

// request is an authenticated request; in is a document, or bytes that are sent as they are.
func (w *world) request(id cells.RegionID, method, path string, in any) *http.Request {
	w.t.Helper()
	var body io.Reader
	if in != nil {
		raw, ok := in.([]byte)
		if !ok {
			raw, _ = json.Marshal(in)
		}
		body = bytes.NewReader(raw)
	}
	req, err := http.NewRequest(method, "https://"+w.regions[id].api+path, body)
	must(w.t, err)
	req.Header.Set("Authorization", "Bearer "+testToken)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req
}

func (w *world) transport(cert *tls.Certificate) *http.Transport {
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.pool}, DisableKeepAlives: true}
	if cert != nil {
		t.TLSClientConfig.Certificates = []tls.Certificate{*cert}
	}
	return t
}

func (w *world) clientCert(role string) tls.Certificate {
	certPEM, keyPEM, err := w.ca.Issue(trust.Identity{World: "gw.test", Role: trust.Role(role), ID: "eu-west/9"}, nil, nil, time.Now(), time.Hour)
	must(w.t, err)
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	must(w.t, err)
	return cert
}

func (w *world) send(req *http.Request, out any) (int, *Fault) {
	w.t.Helper()
	client := &http.Client{Timeout: 2 * time.Minute, Transport: w.transport(nil)}
	if req.Method == http.MethodGet {
		client = w.reader
	}
	resp, err := client.Do(req)
	must(w.t, err)
	defer resp.Body.Close()
	raw, err := io.ReadAll(resp.Body)
	must(w.t, err)
	if resp.StatusCode != http.StatusOK {
		f := &Fault{}
		if err := json.Unmarshal(raw, f); err != nil || f.Reason == "" || f.Status != resp.StatusCode || resp.Header.Get("Content-Type") != "application/problem+json" {
			w.t.Errorf("%s %s: %d is no problem document: %s", req.Method, req.URL.Path, resp.StatusCode, raw)
		}
		return resp.StatusCode, f
	}
	if out != nil {
		must(w.t, json.Unmarshal(raw, out))
	}
	return resp.StatusCode, nil
}

// slack is how many times longer than promised anything may take here: promises are made for a machine that does nothing
// else, and tests run side by side, also on slow and busy ones.
const slack = 10

// eventually waits for ok; limit is for a machine that does nothing else.
func (w *world) eventually(what string, limit time.Duration, ok func() bool) {
	w.t.Helper()
	limit *= slack
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if ok() {
			return
		}
	}
	w.t.Fatalf("not within %s: %s", limit, what)
}

func (w *world) status(id cells.RegionID) Status {
	w.t.Helper()
	var s Status
	if code, f := w.ask(id, "GET", "/v1/status", nil, &s); code != http.StatusOK {
		w.t.Fatalf("status: %d %v", code, f)
	}
	return s
}

// document is a configuration with n routes.
func routesDocument(n int) string {
	doc := "version: v1\nupstreams:\n  - {id: u, endpoints: [\"127.0.0.1:9000\"]}\nroutes:\n"
	for i := range n {
		doc += fmt.Sprintf("  - {id: r%d, match: {host: api.gw.test, path: /v1/r%d}, upstream: u, owner: team-%d}\n", i, i, i%2)
	}
	return doc
}

func (w *world) publish(id cells.RegionID, req PublishRequest) (Published, *Fault) {
	w.t.Helper()
	var p Published
	_, f := w.ask(id, "POST", "/v1/config/versions", req, &p)
	return p, f
}

func (w *world) publishRoutes(id cells.RegionID, n int) Published {
	w.t.Helper()
	p, f := w.publish(id, PublishRequest{Files: []PublishFile{{Name: "a.yaml", Data: routesDocument(n)}}, Confirm: true})
	if f != nil {
		w.t.Fatalf("publish: %v", f)
	}
	return p
}
