package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/discovery/consul"
	"github.com/cellgate/cellgate/internal/certfile"
	"github.com/cellgate/cellgate/internal/heap"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/accesslog"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/decide"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/jwks"
	"github.com/cellgate/cellgate/proxy/listen"
	"github.com/cellgate/cellgate/proxy/meter"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/proxy/shadow"
	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/proxy/traces"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/snapshot"
)

// core is what every mode of the node consists of beneath its sockets.
type core struct {
	log       *slog.Logger
	keys      *jwks.Pool
	asked     *ask.Services // identity providers and the like
	secrets   *secrets.Store
	shadow    *shadow.Watcher
	decisions *decide.Decisions
	access    *accesslog.Log // nil = none
	meter     *meter.Meter
	traces    *traces.Exporter    // nil = none
	cert      *listen.Certificate // nil = no TLS
	tickets   *listen.Tickets     // nil = the process has keys of its own
	server    *proxy.Server
	cores     int // to serve on; Go has more processors than these once there are loops
	callers   *callers.Authenticator
	limits    *callers.Limiter
	loops     []func() time.Duration // lags of the loops; written before anything runs
	lags
	heap    heap.Keeper
	applied time.Time
	place   *place
}

// newCore makes everything that needs no socket. dir is where what others have told is kept over restarts; empty names stand
// for nothing of the kind. Start is what limits counts time from.
func newCore(log *slog.Logger, start time.Time, limits *callers.Limiter, allow snapshot.Allow, here snapshot.Locality, trusted hops.Trusted, agent consul.Options, otlp traces.Options, dir, secretsDir, accessLog string, more ...proxy.Recorder) (c *core, err error) {
	keysDir, namesFile, endpointsFile := "", "", ""
	if dir != "" {
		keysDir, namesFile, endpointsFile = filepath.Join(dir, "jwks"), filepath.Join(dir, "upstream-names.json"), filepath.Join(dir, "upstream-endpoints.json")
	}
	c = &core{log: log, asked: ask.New(ask.Options{Allow: allow, Log: log}), secrets: secrets.New(secretsDir, log), cores: runtime.GOMAXPROCS(0), limits: limits, meter: meter.New(), keys: jwks.New(jwks.Options{Allow: allow, Log: log, Dir: keysDir})}
	recorders := append([]proxy.Recorder{c.meter}, more...)
	if accessLog != "" {
		if c.access, err = accesslog.Open(accessLog, log); err != nil {
			return nil, err
		}
		recorders = append(recorders, c.access)
	}
	sample := tracecontext.Ratio(0)
	if otlp.URL != "" {
		otlp.Allow, otlp.Log = allow, log
		if c.traces, err = traces.New(otlp); err != nil {
			return nil, fmt.Errorf("otlp: %w", err)
		}
		recorders, sample = append(recorders, c.traces), c.traces.Sample()
	}
	c.callers = callers.NewAuthenticator(callers.Sources{Keys: c.keys, Services: c.asked, Secrets: c.secrets}, start)
	c.decisions = decide.New(c.asked, c.secrets)
	c.shadow = shadow.New(c.callers, c.decisions, log)
	c.server = proxy.New(proxy.Options{
		Shadow:    c.shadow,
		Decisions: c.decisions,
		Voucher:   callers.NewTokens(c.secrets),
		Auth:      c.callers,
		Limits:    limits,
		Recorders: recorders,
		Sample:    sample,
		Trusted:   trusted,
		Upstream:  upstream.Options{Allow: allow, Here: here, NamesFile: namesFile, EndpointsFile: endpointsFile, Finder: newFinder(log, agent), Log: log},
	})
	return c, nil
}

// runBelow runs what the exchanges need, until ctx ends.
func (c *core) runBelow(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return c.server.Run(ctx) })
	g.Go(func() error { return newGuard(c).run(ctx) })
	g.Go(func() error { return c.keys.Run(ctx) })
	g.Go(func() error { return c.secrets.Run(ctx) })
	g.Go(func() error { return c.shadow.Run(ctx) })
	if c.access != nil {
		g.Go(func() error { return c.access.Run(ctx) })
	}
	if c.tickets != nil {
		g.Go(func() error {
			return certfile.Follow(ctx, c.log, map[string]certfile.File{"ticket secrets": c.tickets})
		})
	}
	if c.traces != nil {
		g.Go(func() error { return c.traces.Run(ctx) })
	}
}

// keyPatience is how long a swap waits for the key sets that only the new program needs.
const keyPatience = time.Second

// awaitKeys gives new providers a moment. One that doesn't answer holds nothing up: its routes say auth_unavailable.
func (c *core) awaitKeys(urls []string) {
	for end := time.Now().Add(keyPatience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if !slices.ContainsFunc(urls, func(u string) bool { return c.keys.Keys(u) == nil }) {
			return
		}
	}
	c.log.Warn("serving without the key sets of some providers; their routes answer auth_unavailable until they come")
}

// node is what one document's server consists of.
type node struct {
	flags
	*core
	engine serving
	number uint64
}

// serve compiles, then binds, then serves: a port is open only when there is something to answer with.
func serve(parent context.Context, f flags, stdout, stderr io.Writer) error {
	if parent == nil {
		parent = context.Background()
	}
	if f.workers > 0 {
		runtime.GOMAXPROCS(f.workers)
	}
	ctx, stop := signal.NotifyContext(parent, syscall.SIGTERM, os.Interrupt)
	defer stop()
	place, err := newPlace(ctx, f.state, f.takeover)
	if err != nil {
		return err
	}
	n := &node{flags: f}
	listeners, admin, err := n.prepare(ctx, place, slog.New(slog.NewTextHandler(stderr, nil)))
	if err != nil {
		return place.failed(err)
	}
	said := map[string]bool{}
	for _, l := range listeners {
		addr := ""
		if l.UDP != nil {
			addr = l.UDP.LocalAddr().String() + " (UDP)"
		} else {
			addr = l.Addr().String()
		}
		if !said[addr] {
			said[addr] = true
			fmt.Fprintln(stdout, "serving on", addr)
		}
	}
	return n.run(ctx, listeners, admin)
}

// prepare makes everything that is needed to serve.
func (n *node) prepare(ctx context.Context, place *place, log *slog.Logger) (all []engine.Listener, admin net.Listener, err error) {
	first, err := load(n.document, 1, time.Now(), nil)
	if err != nil {
		return nil, nil, err
	}
	if err := n.build(log, place, first); err != nil {
		return nil, nil, err
	}
	if all, err = n.bind(ctx); err == nil {
		admin, err = n.bindAdmin(ctx)
	}
	place.sockets.Settle()
	return all, admin, err
}

// build makes everything that needs no socket.
func (n *node) build(log *slog.Logger, place *place, first *program.Program) (err error) {
	if err := place.own(); err != nil {
		return err
	}
	start := time.Now()
	if n.core, err = newCore(log, start, callers.NewLimiter(start), snapshot.Loopback(), snapshot.Locality{Region: n.region, Zone: n.zone}, n.believed, consul.Options{Address: n.consul, TokenFile: n.consulToken},
		traces.Options{URL: n.otlp, HeadersFile: n.otlpHeaders, CAFile: n.otlpCA, Ratio: n.otlpRatio, Region: n.region}, n.state, n.secretsDir, n.accessLog); err != nil {
		return err
	}
	n.place = place
	if n.https != "" {
		if n.core.cert, err = listen.LoadCertificate(n.flags.cert, n.key); err != nil {
			return err
		}
	}
	if err := n.shareTickets(n.ticketSecrets, ""); err != nil {
		return err
	}
	n.engine = n.newEngine(n.flags.engine, engine.Options{MaxAge: n.maxAge}, n.cores)
	return n.apply(first)
}

func (n *node) apply(p *program.Program) error {
	if err := n.secrets.Want(callers.Needs(p.Policies, p.IdentityKeys...)); err != nil {
		return err
	}
	n.keys.Want(callers.Providers(p.Policies))
	if err := n.server.Apply(p); err != nil {
		return err
	}
	n.heap.Swapped()
	n.number, n.applied = p.Number, time.Now()
	n.log.Info("applied", "snapshot", p.Number, "checksum", p.Checksum)
	return nil
}

func (n *node) bind(ctx context.Context) (all []engine.Listener, err error) {
	count := sockets(n.flags.engine, n.cores)
	if n.http != "" {
		if all, err = n.listen(ctx, all, edge{name: "http", addr: n.http, count: count}); err != nil {
			return nil, err
		}
	}
	if n.https != "" {
		return n.listen(ctx, all, edge{name: "https", addr: n.https, count: count, tls: true, h3: n.h3})
	}
	return all, nil
}

// edge is an address that clients come to.
type edge struct {
	name, addr      string
	shared, tls, h3 bool // h3: with the UDP side of the address for HTTP/3
	count           int  // of its sockets
}

// listen adds the sockets of an address.
func (c *core) listen(ctx context.Context, to []engine.Listener, e edge) ([]engine.Listener, error) {
	all, err := c.place.sockets.TCP(ctx, e.name, e.addr, e.shared, e.count)
	if err != nil {
		return nil, err
	}
	l := engine.Listener{}
	if e.tls {
		l.TLS = c.cert.Config()
		c.tickets.Keep(l.TLS, e.name)
	}
	if e.h3 {
		udp, err := c.place.sockets.UDP(ctx, e.name, all[0].Addr().String(), e.shared)
		if err != nil {
			return nil, err
		}
		quic := c.cert.Config()
		c.tickets.Keep(quic, e.name+" quic")
		to = append(to, engine.Listener{UDP: udp, TLS: quic, Secret: c.cert.Secret})
		_, port, _ := net.SplitHostPort(all[0].Addr().String())
		l.AltSvc = `h3=":` + port + `"; ma=3600`
	}
	for _, s := range all {
		l.Listener = s
		to = append(to, l)
	}
	return to, nil
}

// shareTickets makes clients go on with their TLS sessions at every node of the cell that has the same file; none = at this process.
func (c *core) shareTickets(file, cell string) (err error) {
	if file != "" {
		c.tickets, err = listen.LoadTickets(file, cell)
	}
	return err
}

// one binds an address for what needs a single socket.
func (c *core) one(ctx context.Context, name, addr string) (net.Listener, error) {
	all, err := c.place.sockets.TCP(ctx, name, addr, false, 1)
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

func (n *node) bindAdmin(ctx context.Context) (net.Listener, error) {
	if n.admin == "" {
		return nil, nil
	}
	return n.one(ctx, "admin", n.admin)
}

// run serves until ctx ends. What the exchanges need outlives the engine: it ends last.
func (n *node) run(ctx context.Context, listeners []engine.Listener, admin net.Listener) error {
	below, end := context.WithCancel(context.Background())
	defer end()
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	seen, hide := context.WithCancel(below)
	defer hide()
	var g errgroup.Group
	n.runBelow(below, &g)
	if err := n.succeed(ctx); err != nil {
		end()
		_ = g.Wait()
		return n.place.failed(err)
	}
	g.Go(func() error { n.signals(below, n.reload); return nil })
	g.Go(func() error {
		defer end()
		return n.engine.Run(ctx, listeners...)
	})
	if err := n.place.confirm(&holder{core: n.core, place: n.place, leave: func() { hide(); leave() }}, n.log); err != nil {
		leave()
		return errors.Join(err, g.Wait())
	}
	if admin != nil {
		g.Go(func() error { return n.serveAdmin(seen, admin) })
	}
	g.Go(func() error { return n.place.serve(ctx) })
	return g.Wait()
}

// succeed waits until the process before has yielded, if there is one, once this one could serve.
func (n *node) succeed(ctx context.Context) error {
	if n.place.taken == nil {
		return nil
	}
	n.awaitKeys(callers.Providers(n.server.Program().Policies))
	_, err := n.place.taken.Ready(ctx)
	return err
}

func (n *node) serveAdmin(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: adminHandler(n.server, n.registry(n.origin)), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Shutdown(context.Background()) })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

// origin is where the served configuration comes from; a file is as old as its last reading.
func (n *node) origin() origin { return origin{known: n.number, since: n.applied, heard: n.applied} }

// signals reloads on SIGHUP and reopens the access log on SIGUSR1.
func (c *core) signals(ctx context.Context, reload func()) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGHUP, syscall.SIGUSR1)
	defer signal.Stop(ch)
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-ch:
			if s == syscall.SIGHUP {
				reload()
			} else if c.access != nil {
				c.access.Reopen()
			}
		}
	}
}

// reload takes the document as the next snapshot, whole or not at all; the certificate goes its own way.
func (n *node) reload() {
	n.reloadCertificate()
	p, err := load(n.document, n.number+1, time.Now(), n.server.Program())
	if err == nil {
		err = n.apply(p)
	}
	if err != nil {
		n.log.Error("document refused, the old one stays", "snapshot", n.number, "error", err)
	}
}

func (c *core) reloadCertificate() {
	if c.cert == nil {
		return
	}
	if _, err := c.cert.Reload(time.Now()); err != nil {
		c.log.Error("certificate refused, the old one stays", "error", err)
	}
}
