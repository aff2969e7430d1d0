package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/cmd/internal/admin"
	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/discovery/consul"
	"github.com/cellgate/cellgate/internal/certfile"
	"github.com/cellgate/cellgate/proxy/agent"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/listen"
	"github.com/cellgate/cellgate/proxy/peer"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/quota"
	"github.com/cellgate/cellgate/proxy/traces"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/trust"
)

// worldNode is a node of a world.
type worldNode struct {
	*core
	boot   bootstrap.Proxy
	allow  snapshot.Allow
	signer *trust.Signer
	roots  *trust.Roots
	agent  *agent.Agent
	copies *peer.Service // for the peers of the cell
	tail   *peer.Forwarder
	first  chan struct{} // closed when there is something to serve
	once   sync.Once
	used   usage

	ownEngine, sharedEngine serving // for the node's addresses and for those of its cell
	lend                    chan loan
	lentOut                 loan // owned by the holder's calls
	busy                    busy
	fleet                   fleet // who keeps limits together
	change                  change
}

// serveWorld binds the node's own addresses first, so that a second process with the same name fails before it touches the
// disk; then it serves from disk; the addresses that it shares with its cell are bound when it can
// answer there.
func serveWorld(parent context.Context, file string, takeover bool, stderr io.Writer) error {
	if parent == nil {
		parent = context.Background()
	}
	ctx, stop := signal.NotifyContext(parent, syscall.SIGTERM, os.Interrupt)
	defer stop()
	boot, err := loadBootstrap(file)
	if err != nil {
		return err
	}
	place, err := newPlace(ctx, boot.DataDir, takeover)
	if err != nil {
		return err
	}
	n, err := newWorldNode(file, boot, place, slog.New(slog.NewJSONHandler(stderr, nil)))
	if err != nil {
		return place.failed(err)
	}
	own, adm, err := n.prepare(ctx)
	if err != nil {
		return place.failed(err)
	}
	return n.run(ctx, own, adm)
}

// prepare binds what is the node's own and opens its disk.
func (n *worldNode) prepare(ctx context.Context) (own []engine.Listener, adm *admin.Server, err error) {
	if own, err = n.bind(ctx, "own", false, n.boot.OwnHTTP, n.boot.OwnHTTPS); err != nil {
		return nil, nil, err
	}
	if err := n.follow(); err != nil {
		return nil, nil, err
	}
	if own, err = n.bindPeer(ctx, own); err != nil {
		return nil, nil, err
	}
	adm, err = n.bindAdmin(ctx) // after follow: its metrics read the agent
	return own, adm, err
}

func loadBootstrap(file string) (boot bootstrap.Proxy, err error) {
	if boot, err = bootstrap.Load[bootstrap.Proxy](file); err != nil {
		return boot, err
	}
	if err := checkBootstrap(&boot); err != nil {
		return boot, fmt.Errorf("%s: %w", file, err)
	}
	return boot, nil
}

func newWorldNode(file string, boot bootstrap.Proxy, place *place, log *slog.Logger) (n *worldNode, err error) {
	n = &worldNode{boot: boot, first: make(chan struct{}), lend: make(chan loan)}
	if boot.PermitLoopback {
		n.allow = snapshot.Loopback()
	}
	if n.signer, err = trust.LoadSigner(boot.Identity.Cert, boot.Identity.Key); err != nil {
		return nil, err
	}
	if id := n.signer.Identity(); id.ID != boot.ID || id.Role != trust.RoleProxy || id.World != boot.World {
		return nil, fmt.Errorf("%s: the certificate is %s's, not that of proxy %s of world %s", file, id, boot.ID, boot.World)
	}
	if n.roots, err = trust.LoadRoots(boot.Identity.CA); err != nil {
		return nil, err
	}
	n.tail = peer.NewForwarder(peer.ForwarderOptions{ID: boot.ID, TLS: n.toCell, Finished: func() uint64 { return n.server.Requests.Load() }})
	trusted, err := hops.Parse(boot.TrustedProxies)
	if err != nil {
		return nil, fmt.Errorf("%s: trusted_proxies: %w", file, err)
	}
	start, here := time.Now(), snapshot.Locality{Region: string(boot.Cell.Region()), Zone: boot.Zone}
	if n.core, err = newCore(log.With("node", boot.ID), start, callers.NewShared(start), n.allow, here, trusted, consul.Options{Address: boot.Consul.Address, TokenFile: boot.Consul.TokenFile},
		otlpOf(boot), boot.DataDir, boot.Secrets, boot.AccessLog, n.tail); err != nil {
		return nil, err
	}
	n.core.place = place
	n.server.SetTail(n.tail)
	o := engine.Options{MaxAge: boot.MaxConnectionAge}
	n.sharedEngine = n.newEngine(boot.Engine, o, n.cores)
	n.ownEngine = n.newEngine(boot.Engine, o, 1) // for those who check the node, and its peers
	if n.cert, err = listen.LoadCertificate(boot.EdgeCert, boot.EdgeKey); err != nil {
		return nil, err
	}
	return n, n.shareTickets(boot.TicketSecrets, string(boot.Cell))
}

// otlpOf is where the node's traces go.
func otlpOf(b bootstrap.Proxy) traces.Options {
	o := traces.Options{URL: b.OTLP.URL, HeadersFile: b.OTLP.HeadersFile, CAFile: b.OTLP.CAFile, Ratio: defaultRatio, Node: string(b.ID), Cell: string(b.Cell), Region: string(b.Cell.Region())}
	if b.OTLP.Ratio != nil {
		o.Ratio = *b.OTLP.Ratio
	}
	return o
}

// checkBootstrap says what is missing or contradicts itself.
func checkBootstrap(b *bootstrap.Proxy) error {
	switch {
	case b.Form != bootstrap.Form:
		return fmt.Errorf("form is %d, this binary reads %d", b.Form, bootstrap.Form)
	case b.ID == "" || b.ID.Cell() != b.Cell || b.Cell.Region() == "" || strings.Count(string(b.ID), "/") != 2:
		return fmt.Errorf("id %q is not that of a node of cell %q", b.ID, b.Cell)
	case b.DataDir == "":
		return errors.New("data_dir is missing")
	case !b.OwnHTTP.IsValid() && !b.OwnHTTPS.IsValid():
		return errors.New("own_http and own_https are both missing")
	case !b.Admin.IsValid():
		return errors.New("admin is missing")
	case b.Engine != "" && !slices.Contains(engines(), b.Engine):
		return fmt.Errorf("engine %q is none of %s", b.Engine, strings.Join(engines(), ", "))
	case b.MaxConnectionAge < 0:
		return errors.New("max_connection_age_ns is negative")
	case b.OTLP.URL == "" && b.OTLP != bootstrap.OTLP{}:
		return errors.New("otlp has no url")
	case b.HTTP3 && !b.OwnHTTPS.IsValid():
		return errors.New("http3 is on, and own_https, on whose UDP side it is served, is missing")
	}
	return nil
}

// bind listens on those of the two addresses that are given.
func (n *worldNode) bind(ctx context.Context, whose string, shared bool, plain, secure netip.AddrPort) (all []engine.Listener, err error) {
	e := edge{name: whose + " http", addr: plain.String(), shared: shared, count: sockets(n.boot.Engine, 1)}
	if shared {
		e.count = sockets(n.boot.Engine, n.cores)
	}
	if plain.IsValid() {
		if all, err = n.listen(ctx, all, e); err != nil {
			return nil, err
		}
	}
	if secure.IsValid() {
		e.name, e.addr, e.tls, e.h3 = whose+" https", secure.String(), true, n.boot.HTTP3 && (!shared || listen.SharesUDP)
		return n.listen(ctx, all, e)
	}
	return all, nil
}

func (n *worldNode) bindAdmin(ctx context.Context) (*admin.Server, error) {
	l, err := n.one(ctx, "admin", n.boot.Admin.String())
	if err != nil {
		return nil, err
	}
	return admin.Listen(admin.Options{
		Listener: l, CertFile: n.boot.AdminCert, KeyFile: n.boot.AdminKey, TokenHash: n.boot.AdminTokenHash,
		Signer: n.signer, Roots: n.roots, Log: n.log, Ready: n.ready,
		Gatherer: n.metrics(),
		Pages:    map[string]http.Handler{"GET /config": http.HandlerFunc(n.configPage)},
	})
}

func (n *worldNode) ready() error {
	switch {
	case n.server.Program() == nil:
		return errors.New("not ready: no snapshot on disk and none received yet; waiting for a regionctl at " + strings.Join(n.boot.Controllers, ", "))
	case !n.server.Ready():
		return errors.New("not ready: shutting down")
	}
	return nil
}

func (n *worldNode) configPage(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(struct { // the client went away
		configView
		agent.Status
	}{config(n.server), n.agent.Status()})
}

func (n *worldNode) origin() origin {
	st := n.agent.Status()
	return origin{known: st.Snapshot.Known, since: st.Snapshot.Since, heard: st.Heard, denied: st.Denied, deniedAge: st.DeniedAge}
}

// follow opens the node's disk and makes its agent.
func (n *worldNode) follow() (err error) {
	if err := n.place.own(); err != nil {
		return err
	}
	n.agent, err = agent.New(agent.Options{
		ID: n.boot.ID, Dir: filepath.Join(n.boot.DataDir, "config"), Roots: n.roots,
		TLS: trust.ClientTLS(n.signer, n.roots, trust.RoleController), Controllers: n.boot.Controllers,
		Copies: n.cellCopies(), Steer: n.steer, Leases: n.limits.Leases().Serve, Apply: n.apply, Check: n.check, Reconnect: n.server.Reconnect, Deny: n.deny, Issue: n.callers.Issue, Observe: n.observe,
		Lent: n.place.taken != nil, ReportEvery: time.Second, Log: n.log,
	})
	if err == nil {
		n.callers.AskRegion(n.agent)
	}
	return err
}

// deny shuts callers and routes out, and lets them in again.
func (n *worldNode) deny(set *denylist.Set) {
	n.callers.Deny(set)
	n.server.Deny(set)
	n.decisions.Purge()
}

// apply gets the key sets of new providers under way, waits a moment for them, and swaps.
func (n *worldNode) apply(p *program.Program, share int) error {
	urls, old := callers.Providers(p.Policies), n.server.Program()
	both := urls
	if old != nil {
		both = slices.Concat(urls, callers.Providers(old.Policies)) // it is asked for a second opinion
	}
	needs := callers.Needs(p.Policies, p.IdentityKeys...)
	if old != nil {
		needs = append(needs, callers.Needs(old.Policies, old.IdentityKeys...)...)
	}
	if err := n.secrets.Want(needs); err != nil {
		return err
	}
	n.keys.Want(both)
	n.awaitKeys(urls)
	asked, witnesses := n.meter.Routes(), n.meter.Witnesses()
	if err := n.server.Apply(p); err != nil {
		return err
	}
	n.heap.Swapped()
	n.tellFleet(func(f *quota.Fleet) { f.Cell = share })
	n.change.swap(old, p, asked, witnesses)
	n.once.Do(func() { close(n.first) })
	return nil
}

// check refuses a program that this node could only answer errors for: an upstream that it may not connect to, a secret that it
// doesn't have.
func (n *worldNode) check(p *program.Program) error {
	for _, u := range p.Upstreams {
		for _, e := range u.Endpoints {
			if at, err := netip.ParseAddrPort(e); err == nil && !n.allow.Permits(at.Addr()) {
				return fmt.Errorf("upstream %s: this node may not connect to %s", u.ID, e)
			}
		}
	}
	return n.secrets.Check(callers.Needs(p.Policies, p.IdentityKeys...))
}

// run serves until ctx ends. What the exchanges need, the agent and the admin server outlive the engines.
func (n *worldNode) run(ctx context.Context, own []engine.Listener, adm *admin.Server) error {
	below, end := context.WithCancel(context.Background())
	defer end()
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	seen, hide := context.WithCancel(below)
	defer hide()
	var g errgroup.Group
	n.runBelow(below, &g)
	failing := func(ctx context.Context, run func(context.Context) error) func() error {
		return func() error {
			err := run(ctx)
			if err != nil {
				fail()
			}
			return err
		}
	}
	g.Go(failing(below, n.limits.Leases().Watch))
	g.Go(failing(below, n.copies.Run))
	g.Go(failing(below, n.tail.Run))
	g.Go(func() error { n.signals(below, n.reloadCertificate); return nil })
	g.Go(func() error {
		return certfile.Follow(below, n.log, map[string]certfile.File{"identity": n.signer, "roots": n.roots, "edge": n.cert, "admin": adm})
	})
	if err := n.succeed(ctx); err != nil {
		end()
		_ = g.Wait()
		return n.place.failed(err)
	}
	n.log.Info("node up", "own_http", n.boot.OwnHTTP, "own_https", n.boot.OwnHTTPS, "admin", n.boot.Admin, "data_dir", n.boot.DataDir)
	g.Go(func() error {
		defer end()
		var engines errgroup.Group
		engines.Go(func() error { defer fail(); return n.ownEngine.Run(ctx, own...) })
		engines.Go(func() error { defer fail(); return n.serveShared(ctx) })
		return engines.Wait()
	})
	h := &holder{core: n.core, place: n.place, lend: n.lendDisk, back: n.takeBack, leave: func() { hide(); fail() }}
	if err := n.place.confirm(h, n.log); err != nil {
		fail()
		return errors.Join(err, g.Wait())
	}
	g.Go(failing(seen, adm.Run))
	g.Go(failing(below, n.runAgent))
	g.Go(func() error { return n.place.serve(ctx) })
	return g.Wait()
}

// succeed takes over from the process before, if there is one, once this one could serve what its disk says.
func (n *worldNode) succeed(ctx context.Context) error {
	if n.place.taken == nil {
		return nil
	}
	n.agent.Boot()
	if err := n.ready(); err != nil {
		return err
	}
	note, err := n.place.taken.Ready(ctx)
	if err != nil {
		return err
	}
	var last *agent.Life
	if err := json.Unmarshal(note, &last); note != nil && err != nil {
		return fmt.Errorf("takeover: %w", err)
	}
	n.used.since() // what the start has cost is no word about the requests
	return n.agent.Own(last)
}

// loan is the node's disk in a successor's hands, until it comes back, if it does.
type loan struct{ lent, back chan struct{} }

// runAgent serves what the disk says and follows the controllers while the disk is this process's.
func (n *worldNode) runAgent(ctx context.Context) error {
	if n.place.taken == nil {
		n.agent.Boot()
	}
	for ctx.Err() == nil {
		turn, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- n.agent.Run(turn) }()
		select {
		case err := <-ended:
			stop()
			return err
		case l := <-n.lend:
			stop()
			if err := <-ended; err != nil {
				return err
			}
			close(l.lent)
			n.settle(ctx, l.back)
		}
	}
	return nil
}

// settle waits for the disk; requests go on meanwhile.
func (n *worldNode) settle(ctx context.Context, back <-chan struct{}) {
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() { defer close(ended); n.agent.Settle(ctx) }()
	select {
	case <-back:
	case <-ctx.Done():
	}
	stop()
	<-ended
}

// lendDisk stops the agent, which is the only one that writes what must have one writer.
func (n *worldNode) lendDisk() (json.RawMessage, error) {
	l := loan{make(chan struct{}), make(chan struct{})}
	late := time.After(5 * time.Second)
	select {
	case n.lend <- l:
	case <-late:
		return nil, errors.New("the node's disk is not free")
	}
	n.lentOut = l
	select {
	case <-l.lent:
	case <-late:
		close(l.back)
		return nil, errors.New("the node's disk is not free")
	}
	return json.Marshal(n.agent.Life())
}

func (n *worldNode) takeBack() { close(n.lentOut.back) }

// serveShared joins the cell's addresses when there is something to serve.
func (n *worldNode) serveShared(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.first:
	}
	shared, err := n.bind(ctx, "shared", true, n.boot.SharedHTTP, n.boot.SharedHTTPS)
	if err != nil {
		return err
	}
	n.place.sockets.Settle()
	n.log.Info("joined the cell's addresses", "http", n.boot.SharedHTTP, "https", n.boot.SharedHTTPS)
	return n.sharedEngine.Run(ctx, shared...)
}
