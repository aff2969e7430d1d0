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
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/cmd/internal/admin"
	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/internal/certfile"
	"github.com/cellgate/cellgate/proxy/agent"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/listen"
	"github.com/cellgate/cellgate/proxy/peer"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/trust"
)

// keyPatience is how long a swap waits for the key sets that only the new program needs.
const keyPatience = time.Second

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
	busy                    busy
	change                  change
}

// serveWorld binds the node's own addresses first, so that a second process with the same name fails before it touches the
// disk; then it serves from disk; the addresses that it shares with its cell are bound when it can
// answer there.
func serveWorld(parent context.Context, file string, stderr io.Writer) error {
	if parent == nil {
		parent = context.Background()
	}
	ctx, stop := signal.NotifyContext(parent, syscall.SIGTERM, os.Interrupt)
	defer stop()
	n, err := newWorldNode(file, slog.New(slog.NewJSONHandler(stderr, nil)))
	if err != nil {
		return err
	}
	own, err := n.bind(ctx, false, n.boot.OwnHTTP, n.boot.OwnHTTPS)
	if err != nil {
		return err
	}
	if err := n.follow(); err != nil {
		return err
	}
	own, err = n.bindPeer(ctx, own)
	if err != nil {
		return err
	}
	adm, err := n.bindAdmin() // after follow: its metrics read the agent
	if err != nil {
		return err
	}
	return n.run(ctx, own, adm)
}

func newWorldNode(file string, log *slog.Logger) (*worldNode, error) {
	boot, err := bootstrap.Load[bootstrap.Proxy](file)
	if err != nil {
		return nil, err
	}
	if err := checkBootstrap(&boot); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	n := &worldNode{boot: boot, first: make(chan struct{})}
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
	if n.core, err = newCore(log.With("node", boot.ID), n.allow, trusted, boot.DataDir, boot.AccessLog, n.tail); err != nil {
		return nil, err
	}
	n.server.SetTail(n.tail)
	o := engine.Options{MaxAge: boot.MaxConnectionAge}
	n.sharedEngine = n.newEngine(boot.Engine, o, runtime.GOMAXPROCS(0))
	n.ownEngine = n.newEngine(boot.Engine, o, 1) // for those who check the node, and its peers
	if n.cert, err = listen.LoadCertificate(boot.EdgeCert, boot.EdgeKey); err != nil {
		return nil, err
	}
	return n, nil
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
	case b.HTTP3 && !b.OwnHTTPS.IsValid():
		return errors.New("http3 is on, and own_https, on whose UDP side it is served, is missing")
	}
	return nil
}

// bind listens on those of the two addresses that are given.
func (n *worldNode) bind(ctx context.Context, shared bool, plain, secure netip.AddrPort) (all []engine.Listener, err error) {
	if plain.IsValid() {
		l, err := listen.TCP(ctx, plain.String(), shared)
		if err != nil {
			return nil, err
		}
		all = append(all, engine.Listener{Listener: l})
	}
	if secure.IsValid() {
		l, err := listen.TCP(ctx, secure.String(), shared)
		if err != nil {
			return nil, err
		}
		if all, err = n.secure(ctx, all, l, n.boot.HTTP3 && !shared); err != nil {
			return nil, err
		}
	}
	return all, nil
}

func (n *worldNode) bindAdmin() (*admin.Server, error) {
	return admin.Listen(admin.Options{
		Addr: n.boot.Admin, CertFile: n.boot.AdminCert, KeyFile: n.boot.AdminKey, TokenHash: n.boot.AdminTokenHash,
		Signer: n.signer, Roots: n.roots, Log: n.log, Ready: n.ready,
		Gatherer: n.metrics(),
		Pages:    map[string]http.Handler{"GET /config": http.HandlerFunc(n.configPage)},
	})
}

func (n *worldNode) ready() error {
	switch {
	case n.server.Program() == nil:
		return errors.New("not ready: no snapshot on disk and none received yet; waiting for a regionctl at " + strings.Join(n.boot.Controllers, ", "))
	case n.server.Draining():
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
	n.agent, err = agent.New(agent.Options{
		ID: n.boot.ID, Dir: filepath.Join(n.boot.DataDir, "config"), Roots: n.roots,
		TLS: trust.ClientTLS(n.signer, n.roots, trust.RoleController), Controllers: n.boot.Controllers,
		Copies: n.cellCopies(), Steer: n.tail.Update, Apply: n.apply, Check: n.check, Reconnect: n.server.Reconnect, Deny: n.deny, Observe: n.observe,
		ReportEvery: time.Second, Log: n.log,
	})
	return err
}

// deny shuts callers and routes out, and lets them in again.
func (n *worldNode) deny(set *denylist.Set) {
	n.callers.Deny(set)
	n.server.Deny(set)
}

// apply gets the key sets of new providers under way, waits a moment for them, and swaps.
func (n *worldNode) apply(p *program.Program, share int) error {
	urls, old := callers.Providers(p.Policies), n.server.Program()
	both := urls
	if old != nil {
		both = slices.Concat(urls, callers.Providers(old.Policies)) // it is asked for a second opinion
	}
	n.keys.Want(both)
	n.awaitKeys(urls)
	asked, witnesses := n.meter.Routes(), n.meter.Witnesses()
	if err := n.server.Apply(p, share); err != nil {
		return err
	}
	n.change.swap(old, p, asked, witnesses)
	n.once.Do(func() { close(n.first) })
	return nil
}

// awaitKeys gives new providers a moment. One that doesn't answer holds nothing up: its routes say auth_unavailable.
func (n *worldNode) awaitKeys(urls []string) {
	for end := time.Now().Add(keyPatience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if !slices.ContainsFunc(urls, func(u string) bool { return n.keys.Keys(u) == nil }) {
			return
		}
	}
	n.log.Warn("serving without the key sets of some providers; their routes answer auth_unavailable until they come")
}

// check refuses a program that this node could only answer errors for: an upstream that it may not connect to.
func (n *worldNode) check(p *program.Program) error {
	for _, u := range p.Upstreams {
		for _, e := range u.Endpoints {
			if at, err := netip.ParseAddrPort(e); err == nil && !n.allow.Permits(at.Addr()) {
				return fmt.Errorf("upstream %s: this node may not connect to %s", u.ID, e)
			}
		}
	}
	return nil
}

// run serves until ctx ends. What the exchanges need, the agent and the admin server outlive the engines.
func (n *worldNode) run(ctx context.Context, own []engine.Listener, adm *admin.Server) error {
	below, end := context.WithCancel(context.Background())
	defer end()
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	var g errgroup.Group
	n.runBelow(below, &g)
	failing := func(run func(context.Context) error) func() error {
		return func() error {
			err := run(below)
			if err != nil {
				fail()
			}
			return err
		}
	}
	g.Go(failing(adm.Run))
	g.Go(failing(n.copies.Run))
	g.Go(failing(n.tail.Run))
	g.Go(func() error { n.signals(below, n.reloadCertificate); return nil })
	g.Go(func() error {
		return certfile.Follow(below, n.log, map[string]certfile.File{"identity": n.signer, "roots": n.roots, "edge": n.cert, "admin": adm})
	})
	n.log.Info("node up", "own_http", n.boot.OwnHTTP, "own_https", n.boot.OwnHTTPS, "admin", n.boot.Admin, "data_dir", n.boot.DataDir)
	g.Go(failing(func(ctx context.Context) error { n.agent.Boot(); return n.agent.Run(ctx) }))
	g.Go(func() error {
		defer end()
		var engines errgroup.Group
		engines.Go(func() error { defer fail(); return n.ownEngine.Run(ctx, own...) })
		engines.Go(func() error { defer fail(); return n.serveShared(ctx) })
		return engines.Wait()
	})
	return g.Wait()
}

// serveShared joins the cell's addresses when there is something to serve.
func (n *worldNode) serveShared(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.first:
	}
	shared, err := n.bind(ctx, true, n.boot.SharedHTTP, n.boot.SharedHTTPS)
	if err != nil {
		return err
	}
	n.log.Info("joined the cell's addresses", "http", n.boot.SharedHTTP, "https", n.boot.SharedHTTPS)
	return n.sharedEngine.Run(ctx, shared...)
}
