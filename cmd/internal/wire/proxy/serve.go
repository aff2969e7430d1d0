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
	"runtime"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/accesslog"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/jwks"
	"github.com/cellgate/cellgate/proxy/listen"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/snapshot"
)

// node is what one document's server consists of.
type node struct {
	flags
	log    *slog.Logger
	keys   *jwks.Pool
	access *accesslog.Log
	cert   *listen.Certificate
	server *proxy.Server
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
	n := &node{flags: f, log: slog.New(slog.NewTextHandler(stderr, nil))}
	first, err := load(f.document, 1, time.Now(), nil)
	if err != nil {
		return err
	}
	if err := n.build(first); err != nil {
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
		fmt.Fprintf(stdout, "serving on %s\n", l.Addr())
	}
	return n.run(ctx, listeners, admin)
}

// build makes everything that needs no socket.
func (n *node) build(first *program.Program) (err error) {
	allow, start := snapshot.Loopback(), time.Now()
	n.keys = jwks.New(jwks.Options{Allow: allow, Log: n.log})
	var recorders []proxy.Recorder
	if n.accessLog != "" {
		if n.access, err = accesslog.Open(n.accessLog, n.log); err != nil {
			return err
		}
		recorders = append(recorders, n.access)
	}
	if n.https != "" {
		if n.cert, err = listen.LoadCertificate(n.flags.cert, n.key); err != nil {
			return err
		}
	}
	n.server = proxy.New(proxy.Options{
		Auth:      callers.NewAuthenticator(n.keys, start),
		Limits:    callers.NewLimiter(start),
		Recorders: recorders,
		Upstream:  upstream.Options{Allow: allow},
	})
	return n.apply(first)
}

func (n *node) apply(p *program.Program) error {
	n.keys.Want(callers.Providers(p.Policies))
	if err := n.server.Apply(p, 1); err != nil {
		return err
	}
	n.number = p.Number
	n.log.Info("serving", "snapshot", p.Number, "checksum", p.Checksum)
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
		all = append(all, engine.Listener{Listener: l, TLS: n.cert.Config()})
	}
	return all, nil
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
	g.Go(func() error { return n.server.Run(below) })
	g.Go(func() error { return n.keys.Run(below) })
	if n.access != nil {
		g.Go(func() error { return n.access.Run(below) })
	}
	if admin != nil {
		g.Go(func() error { return n.serveAdmin(below, admin) })
	}
	g.Go(func() error { n.signals(below); return nil })
	g.Go(func() error {
		defer end()
		return engine.New(n.server, engine.Options{Log: n.log}).Run(ctx, listeners...)
	})
	return g.Wait()
}

func (n *node) serveAdmin(ctx context.Context, l net.Listener) error {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{n.server}, prometheus.NewGoCollector(), prometheus.NewProcessCollector(prometheus.ProcessCollectorOpts{}))
	srv := &http.Server{Handler: adminHandler(n.server, reg), ReadHeaderTimeout: 5 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

// signals reloads on SIGHUP and reopens the access log on SIGUSR1.
func (n *node) signals(ctx context.Context) {
	ch := make(chan os.Signal, 4)
	signal.Notify(ch, syscall.SIGHUP, syscall.SIGUSR1)
	defer signal.Stop(ch)
	for {
		select {
		case <-ctx.Done():
			return
		case s := <-ch:
			if s == syscall.SIGHUP {
				n.reload()
			} else if n.access != nil {
				n.access.Reopen()
			}
		}
	}
}

// reload takes the document as the next snapshot, whole or not at all; the certificate goes its own way.
func (n *node) reload() {
	if n.cert != nil {
		if err := n.cert.Reload(); err != nil {
			n.log.Error("certificate refused, the old one stays", "error", err)
		}
	}
	p, err := load(n.document, n.number+1, time.Now(), n.server.Program())
	if err == nil {
		err = n.apply(p)
	}
	if err != nil {
		n.log.Error("document refused, the old one stays", "snapshot", n.number, "error", err)
	}
}
