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
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/accesslog"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/jwks"
	"github.com/cellgate/cellgate/proxy/listen"
	"github.com/cellgate/cellgate/proxy/meter"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/snapshot"
)

// core is what every mode of the node consists of beneath its sockets.
type core struct {
	log     *slog.Logger
	keys    *jwks.Pool
	access  *accesslog.Log // nil = none
	meter   *meter.Meter
	cert    *listen.Certificate // nil = no TLS
	server  *proxy.Server
	callers *callers.Authenticator
	lags    []func() time.Duration // of the loops; written before anything runs
	applied time.Time
}

// newCore makes everything that needs no socket. dir is where what others have told is kept over restarts; empty names stand
// for nothing of the kind.
func newCore(log *slog.Logger, allow snapshot.Allow, trusted hops.Trusted, dir, accessLog string, more ...proxy.Recorder) (c *core, err error) {
	start, keysDir, namesFile := time.Now(), "", ""
	if dir != "" {
		keysDir, namesFile = filepath.Join(dir, "jwks"), filepath.Join(dir, "upstream-names.json")
	}
	c = &core{log: log, meter: meter.New(), keys: jwks.New(jwks.Options{Allow: allow, Log: log, Dir: keysDir})}
	recorders := append([]proxy.Recorder{c.meter}, more...)
	if accessLog != "" {
		if c.access, err = accesslog.Open(accessLog, log); err != nil {
			return nil, err
		}
		recorders = append(recorders, c.access)
	}
	c.callers = callers.NewAuthenticator(c.keys, start)
	c.server = proxy.New(proxy.Options{
		Auth:      c.callers,
		Limits:    callers.NewLimiter(start),
		Recorders: recorders,
		Trusted:   trusted,
		Upstream:  upstream.Options{Allow: allow, NamesFile: namesFile, Log: log},
	})
	return c, nil
}

// runBelow runs what the exchanges need, until ctx ends.
func (c *core) runBelow(ctx context.Context, g *errgroup.Group) {
	g.Go(func() error { return c.server.Run(ctx) })
	g.Go(func() error { return c.keys.Run(ctx) })
	if c.access != nil {
		g.Go(func() error { return c.access.Run(ctx) })
	}
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
	n := &node{flags: f}
	first, err := load(f.document, 1, time.Now(), nil)
	if err != nil {
		return err
	}
	if err := n.build(slog.New(slog.NewTextHandler(stderr, nil)), first); err != nil {
		return err
	}
	listeners, err := n.bind(ctx)
	if err != nil {
		return err
	}
	admin, err := n.bindAdmin(ctx)
	if err != nil {
		return err
	}
	for _, l := range listeners {
		if l.UDP != nil {
			fmt.Fprintf(stdout, "serving on %s (UDP)\n", l.UDP.LocalAddr())
			continue
		}
		fmt.Fprintf(stdout, "serving on %s\n", l.Addr())
	}
	return n.run(ctx, listeners, admin)
}

// build makes everything that needs no socket.
func (n *node) build(log *slog.Logger, first *program.Program) (err error) {
	if n.core, err = newCore(log, snapshot.Loopback(), n.believed, "", n.accessLog); err != nil {
		return err
	}
	if n.https != "" {
		if n.core.cert, err = listen.LoadCertificate(n.flags.cert, n.key); err != nil {
			return err
		}
	}
	n.engine = n.newEngine(n.flags.engine, engine.Options{MaxAge: n.maxAge}, runtime.GOMAXPROCS(0))
	return n.apply(first)
}

func (n *node) apply(p *program.Program) error {
	n.keys.Want(callers.Providers(p.Policies))
	if err := n.server.Apply(p, 1); err != nil {
		return err
	}
	n.number, n.applied = p.Number, time.Now()
	n.log.Info("applied", "snapshot", p.Number, "checksum", p.Checksum)
	return nil
}

func (n *node) bind(ctx context.Context) (all []engine.Listener, err error) {
	if n.http != "" {
		l, err := listen.TCP(ctx, n.http, false)
		if err != nil {
			return nil, err
		}
		all = append(all, engine.Listener{Listener: l})
	}
	if n.https != "" {
		l, err := listen.TCP(ctx, n.https, false)
		if err != nil {
			return nil, err
		}
		if all, err = n.secure(ctx, all, l, n.h3); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// secure adds a TCP socket with TLS, and the UDP side of its address for HTTP/3.
func (c *core) secure(ctx context.Context, to []engine.Listener, l net.Listener, h3 bool) ([]engine.Listener, error) {
	cfg := c.cert.Config()
	if !h3 {
		return append(to, engine.Listener{Listener: l, TLS: cfg}), nil
	}
	udp, err := listen.UDP(ctx, l.Addr().String())
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return append(to,
		engine.Listener{Listener: l, TLS: cfg, AltSvc: `h3=":` + port + `"; ma=3600`},
		engine.Listener{UDP: udp, TLS: cfg, Secret: c.cert.Secret}), nil
}

func (n *node) bindAdmin(ctx context.Context) (net.Listener, error) {
	if n.admin == "" {
		return nil, nil
	}
	return listen.TCP(ctx, n.admin, false)
}

// run serves until ctx ends. What the exchanges need outlives the engine: it ends last.
func (n *node) run(ctx context.Context, listeners []engine.Listener, admin net.Listener) error {
	below, end := context.WithCancel(context.Background())
	defer end()
	var g errgroup.Group
	n.runBelow(below, &g)
	if admin != nil {
		g.Go(func() error { return n.serveAdmin(below, admin) })
	}
	g.Go(func() error { n.signals(below, n.reload); return nil })
	g.Go(func() error {
		defer end()
		return n.engine.Run(ctx, listeners...)
	})
	return g.Wait()
}

func (n *node) serveAdmin(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: adminHandler(n.server, n.registry(n.origin)), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
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
