package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/trust"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const node = cells.NodeID("eu-west/a/1")

// world is a CA with a controller that speaks the node protocol over mutual TLS, and nodes that attach to it.
type world struct {
	t     testing.TB
	ca    *trust.CA
	roots *trust.Roots
	ctl   *controller
}

func newWorld(t testing.TB) *world {
	ca, err := trust.NewCA("gw.test", time.Now().Add(-3*time.Hour))
	must(t, err)
	roots, err := trust.NewRoots(ca.CertPEM())
	must(t, err)
	w := &world{t: t, ca: ca, roots: roots}
	w.ctl = &controller{world: w, signer: w.signer(trust.RoleController, "eu-west/1"), blobs: map[string][]byte{}, news: make(chan struct{})}
	return w
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// endedSigner held a controller's certificate for the hour that ended an hour ago.
func (w *world) endedSigner() *trust.Signer {
	cert, key, err := w.ca.Issue(trust.Identity{World: "gw.test", Role: trust.RoleController, ID: "eu-west/1"}, nil, nil, time.Now().Add(-2*time.Hour), time.Hour)
	must(w.t, err)
	s, err := trust.NewSigner(cert, key)
	must(w.t, err)
	return s
}

func (w *world) signer(role trust.Role, id cells.NodeID) *trust.Signer {
	cert, key, err := w.ca.Issue(trust.Identity{World: "gw.test", Role: role, ID: id}, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil, time.Now(), time.Hour)
	must(w.t, err)
	s, err := trust.NewSigner(cert, key)
	must(w.t, err)
	return s
}

// controller is an in-process regionctl: it shows its newest messages to whoever attaches or polls, and serves blobs.
type controller struct {
	nodeapi.UnimplementedControllerServer
	world  *world
	signer *trust.Signer
	addr   string

	mu      sync.Mutex
	blobs   map[string][]byte
	show    []*nodeapi.Down
	news    chan struct{} // closed and replaced when show changes
	silent  bool          // streams show nothing: only polls do
	acks    []*nodeapi.Ack
	reports []report.Node
	fetched []string
	hellos  []*nodeapi.Hello
}

func (c *controller) start(t testing.TB) {
	if c.addr == "" {
		c.addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", c.addr)
	must(t, err)
	c.addr = l.Addr().String()
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(trust.ServerTLS(c.signer, c.world.roots, trust.RoleProxy))))
	nodeapi.RegisterControllerServer(s, c)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Stop(); <-done })
}

func (c *controller) Attach(stream grpc.BidiStreamingServer[nodeapi.Up, nodeapi.Down]) error {
	go func() {
		for {
			up, err := stream.Recv()
			if err != nil {
				return
			}
			c.note(up)
		}
	}()
	for {
		c.mu.Lock()
		show, news := c.show, c.news
		if c.silent {
			show = nil
		}
		c.mu.Unlock()
		for _, m := range show {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-news:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (c *controller) note(up *nodeapi.Up) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := up.GetAck(); a != nil {
		c.acks = append(c.acks, a)
	}
	if h := up.GetHello(); h != nil {
		c.hellos = append(c.hellos, h)
	}
	if raw := up.GetReport(); raw != nil {
		if n, err := report.DecodeNode(raw); err == nil {
			c.reports = append(c.reports, n)
		}
	}
}

func (c *controller) Poll(_ context.Context, h *nodeapi.Hello) (*nodeapi.PollReply, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hellos = append(c.hellos, h)
	return &nodeapi.PollReply{Messages: c.show}, nil
}

func (c *controller) Fetch(r *nodeapi.FetchRequest, stream grpc.ServerStreamingServer[nodeapi.Chunk]) error {
	for _, d := range r.Digests {
		c.mu.Lock()
		blob, ok := c.blobs[d]
		c.fetched = append(c.fetched, d)
		c.mu.Unlock()
		if !ok {
			return fmt.Errorf("no blob %s", d)
		}
		if err := nodeapi.SendBlob(stream.Send, d, blob); err != nil {
			return err
		}
	}
	return nil
}

// publish seals a configuration of n routes whose owners are named by content, signs it and keeps its blobs.
func (c *controller) publish(number uint64, content string, hosts int) rollout.Version {
	return c.sealed(number, content, hosts, c.signer)
}

func (c *controller) sealed(number uint64, content string, hosts int, by *trust.Signer) rollout.Version {
	return c.signed(c.world.seal(number, content, hosts), by)
}

func (c *controller) signed(s *snapshot.Snapshot, by *trust.Signer) rollout.Version {
	raw, err := snapshot.EncodeManifest(&s.Manifest)
	must(c.world.t, err)
	envelope, err := by.Sign(trust.KindManifest, raw)
	must(c.world.t, err)
	c.mu.Lock()
	defer c.mu.Unlock()
	for d, b := range s.Blobs {
		c.blobs[string(d)] = b
	}
	digest := snapshot.Sum(envelope)
	c.blobs[string(digest)] = envelope
	return rollout.Version{Number: s.Manifest.Number, Manifest: digest}
}

func (w *world) seal(number uint64, content string, hosts int) *snapshot.Snapshot {
	return w.sealAt(number, content, hosts, time.Unix(1_800_000_000, 0))
}

func (w *world) sealAt(number uint64, content string, hosts int, created time.Time) *snapshot.Snapshot {
	cfg := &snapshot.Config{Upstreams: []snapshot.Upstream{{ID: "u", Endpoints: []string{"127.0.0.1:1"}}}}
	for i := range hosts {
		owner := ""
		if i == 0 {
			owner = content
		}
		cfg.Routes = append(cfg.Routes, snapshot.Route{ID: fmt.Sprintf("r%04d", i), Upstream: "u", Owner: owner,
			Match: snapshot.Match{Host: fmt.Sprintf("h%d.example.com", i), PathPrefix: "/v1"}})
	}
	s, err := snapshot.Seal(cfg, snapshot.Meta{Number: number, Created: created})
	must(w.t, err)
	return s
}

// target gives the envelope of a target for the whole region.
func (c *controller) target(epoch, number uint64, v rollout.Version, change ...func(*rollout.Target)) []byte {
	t := &rollout.Target{Form: rollout.TargetForm, Region: "eu-west", Epoch: epoch, Number: number, Cells: map[cells.CellID]rollout.Version{"eu-west/a": v},
		Share: map[cells.CellID]int{"eu-west/a": 2}}
	for _, f := range change {
		f(t)
	}
	return c.sign(c.signer, trust.KindTarget, t)
}

func (c *controller) sign(by *trust.Signer, kind string, v any) []byte {
	raw, err := json.Marshal(v)
	must(c.world.t, err)
	envelope, err := by.Sign(kind, raw)
	must(c.world.t, err)
	return envelope
}

func target(envelope []byte) *nodeapi.Down {
	return &nodeapi.Down{Message: &nodeapi.Down_Target{Target: &nodeapi.Signed{Envelope: envelope}}}
}

func overrides(envelope []byte) *nodeapi.Down {
	return &nodeapi.Down{Message: &nodeapi.Down_Overrides{Overrides: &nodeapi.Signed{Envelope: envelope}}}
}

// post shows exactly these messages from now on.
func (c *controller) post(messages ...*nodeapi.Down) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.show = messages
	close(c.news)
	c.news = make(chan struct{})
}

// ack waits for the answer to a target.
func (c *controller) ack(epoch, number uint64) *nodeapi.Ack {
	c.world.t.Helper()
	var found *nodeapi.Ack
	c.world.eventually("an answer", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, a := range c.acks {
			if a.Epoch == epoch && a.Number == number {
				found = a
			}
		}
		return found != nil
	})
	return found
}

func (c *controller) forget() (fetched []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fetched, c.fetched, c.acks = c.fetched, nil, nil
	return fetched
}

func (w *world) eventually(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// proxy is a node under test: what it was told to serve and to do.
type proxy struct {
	*Agent
	mu        sync.Mutex
	served    []uint64
	share     int
	reconnect bool
	refuse    error // of the next Apply
	stop      func()
}

func (w *world) node(dir string, change ...func(*Options)) *proxy {
	w.t.Helper()
	p := &proxy{}
	opt := Options{
		ID: node, Dir: dir, Roots: w.roots, TLS: trust.ClientTLS(w.signer(trust.RoleProxy, node), w.roots, trust.RoleController),
		Controllers: []string{w.ctl.addr}, ReportEvery: 10 * time.Millisecond, Retry: 20 * time.Millisecond, Log: slog.New(slog.NewTextHandler(w.t.Output(), nil)),
		Apply: func(prog *program.Program, share int) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.refuse != nil {
				return p.refuse
			}
			p.served, p.share = append(p.served, prog.Number), share
			return nil
		},
		Reconnect: func(on bool) { p.mu.Lock(); defer p.mu.Unlock(); p.reconnect = on },
	}
	if w.ctl.addr == "" {
		opt.Controllers = nil
	}
	for _, f := range change {
		f(&opt)
	}
	a, err := New(opt)
	must(w.t, err)
	p.Agent = a
	a.Boot()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
	w.t.Cleanup(p.stop)
	return p
}

func (p *proxy) serving() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.served) == 0 {
		return 0
	}
	return p.served[len(p.served)-1]
}

func (p *proxy) leaving() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reconnect
}
