// Package engine drives exchanges over connections with the project's own HTTP/1.1, HTTP/2 and HTTP/3, the last over quic-go:
// one goroutine per connection, and for HTTP/2 and HTTP/3 one per stream, all into the same pipeline and the same forwarding.
//
//	e := engine.New(server, engine.Options{Log: log})
//	err := e.Run(ctx, plain, secure)   // until ctx ends and the exchanges under way have ended, or the hard stop
package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/internal/sockclose"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/handshake"
	"github.com/cellgate/cellgate/proxy/http3"
	"github.com/cellgate/cellgate/proxy/relay"
)

// Options of an engine. Zero values are production's.
type Options struct {
	Log *slog.Logger
	// HardStop is how long exchanges may go on after a drain began; 8 s.
	HardStop time.Duration
	// Idle is how long a connection may wait for its next request; 75 s.
	Idle time.Duration
	// HeaderTime is how long a head may take from its first byte, and a TLS handshake as a whole; 10 s.
	HeaderTime time.Duration
	// TakeTime is how long a client may leave waiting what one read of its answer gave, at most 64 KiB, before it is given up;
	// 60 s. The exchange's deadline may come first.
	TakeTime time.Duration
	// MaxAge is the age, give or take a fifth, from which a connection is asked to leave; 5 min.
	MaxAge time.Duration
	// LeaveOver is the time over which the connections of a node that is being left are asked to leave, each at a moment of
	// its own, so that their clients' handshakes don't come all at once; a new connection lives about as long. 2 s.
	LeaveOver time.Duration
	// TunnelIdle is how long a WebSocket connection may pass nothing either way; 5 min. A ping is enough. Once one direction
	// has ended, a tenth of it.
	TunnelIdle time.Duration
	// TunnelAge is the age, give or take a fifth, at which a WebSocket client is asked to connect anew; 1 h.
	TunnelAge time.Duration
	// MaxConnections bounds client connections; a new one beyond it takes the place of an idle one, or is closed at once. 0 is four fifths of the process's
	// descriptors: most clients are idle, and the pools of upstreams, which need the rest, have bounds of their own.
	MaxConnections int64
}

// OrDefault puts production's values in the place of zero ones.
func (o Options) OrDefault() Options {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.HardStop, 8*time.Second)
	set(&o.Idle, 75*time.Second)
	set(&o.HeaderTime, 10*time.Second)
	set(&o.TakeTime, time.Minute)
	set(&o.MaxAge, 5*time.Minute)
	set(&o.LeaveOver, 2*time.Second)
	set(&o.TunnelIdle, 5*time.Minute)
	set(&o.TunnelAge, time.Hour)
	if o.MaxConnections == 0 {
		o.MaxConnections = descriptors() * 4 / 5
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// descriptors is how many files the process may have open.
func descriptors() int64 {
	var r syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r); err != nil || r.Cur == 0 {
		return 1024
	}
	return int64(min(r.Cur, 1<<20))
}

// Listener is a bound socket with how its connections begin; TLS nil means plain.
type Listener struct {
	net.Listener
	TLS *tls.Config
	// UDP takes QUIC connections for HTTP/3, with TLS; there is no Listener then.
	UDP net.PacketConn
	// Secret gives the keys by which processes that answer one UDP address, one after the other or together, know each
	// other's connections to be gone, and addresses to be validated, by their purpose. Nil = keys of the process's own.
	Secret func(purpose string) [32]byte
	// AltSvc is the Alt-Svc field of answers (RFC 7838), such as `h3=":443"; ma=3600`; empty = none.
	AltSvc string
	// Via makes it a listener for proxies of the world, whose word on whom a request comes from is taken: it gives the
	// name in the verified certificate. An error ends the connection. Nil = the other side is the client itself.
	Via func(tls.ConnectionState) (string, error)
	// Other takes connections that have agreed on the protocol of this name (ALPN) over, to their end.
	Other map[string]func(*tls.Conn)
}

// Engine serves connections.
type Engine struct {
	server *proxy.Server
	opts   Options
	h2     h2Front

	full         atomic.Bool  // connections are at their bound, or were lately
	failures     atomic.Int64 // of accepting, since saidFailures
	saidFailures atomic.Int64 // unix nanoseconds

	wg     sync.WaitGroup
	mu     sync.Mutex
	conns  map[*conn]struct{}
	quic   map[*h3Conn]struct{}
	cutOff bool // the hard stop is over

	tunnels map[*tunnel]struct{}
}

// New makes an engine for a server.
func New(s *proxy.Server, o Options) *Engine {
	o = o.OrDefault()
	e := &Engine{server: s, opts: o, conns: map[*conn]struct{}{}, quic: map[*h3Conn]struct{}{}, tunnels: map[*tunnel]struct{}{}}
	e.h2.init(e)
	return e
}

// Run serves until ctx ends, then drains: the node becomes not ready, answers ask to close, what is under way ends,
// idle connections are closed after a while, and after HardStop everything is cut.
func (e *Engine) Run(ctx context.Context, listeners ...Listener) error {
	accepts, err := e.open(listeners)
	if err != nil {
		return err
	}
	failed := make(chan error, len(accepts))
	for _, a := range accepts {
		e.wg.Go(func() { failed <- a.accept() }) // so that none is taken when all others have been waited for
	}
	changed := e.server.Changed()
	for running := true; running; {
		select {
		case <-ctx.Done():
			running = false
		case err = <-failed:
			running = false
		case <-changed:
			changed = e.server.Changed()
			e.leave(relay.LeaveIdle)
		}
	}
	e.drain(accepts)
	return err
}

// acceptor is a listener at work.
type acceptor interface {
	// accept takes connections until close.
	accept() error
	// quiesce makes the kernel take no new connections, so that those which wait can be served.
	quiesce() error
	// close ends taking connections, not those that were taken.
	close()
	// release frees what the connections needed, once they have ended.
	release()
}

// open makes the listeners ready. On an error none of them is left open.
func (e *Engine) open(listeners []Listener) (all []acceptor, err error) {
	for _, l := range listeners {
		if l.UDP == nil {
			if l.TLS != nil && l.Via == nil {
				l.TLS = handshake.Asking(l.TLS, e.server.Program, nil)
			}
			all = append(all, &tcpListener{e, l})
			continue
		}
		h, err := e.listenQUIC(l)
		if err != nil {
			for _, l := range listeners {
				l.shut()
			}
			return nil, err
		}
		all = append(all, h)
	}
	return all, nil
}

func (l Listener) shut() {
	if l.UDP != nil {
		_ = l.UDP.Close()
		return
	}
	_ = l.Close()
}

// tcpListener takes connections of HTTP/1 and HTTP/2.
type tcpListener struct {
	e *Engine
	Listener
}

func (t *tcpListener) quiesce() error { return sockclose.Quiesce(t.Listener.Listener) }
func (t *tcpListener) close()         { _ = t.Close() }
func (t *tcpListener) release()       {}

// drain: not ready first, then a moment in which connections that the kernel has already accepted are served while it takes
// no new ones, then no listener, then the wait.
func (e *Engine) drain(accepts []acceptor) {
	defer func() {
		for _, a := range accepts {
			a.release()
		}
	}()

	end := time.Now().Add(e.opts.HardStop)
	e.server.Drain()
	e.leave(min(relay.DrainIdle, e.opts.HardStop/2))
	for _, a := range accepts {
		if err := a.quiesce(); err != nil {
			e.opts.Log.Warn("drain: connections that wait may be reset", "error", err)
		}
	}
	time.Sleep(min(relay.DrainAccept, e.opts.HardStop/4))
	for _, a := range accepts {
		a.close()
	}
	gone := make(chan struct{})
	go func() { e.wg.Wait(); close(gone) }()
	select {
	case <-gone:
		return
	case <-time.After(time.Until(end)):
	}
	e.opts.Log.Warn("drain: hard stop", "connections", e.server.Connections.Load(), "in_flight", e.server.InFlight.Load())
	e.cut()
	select {
	case <-gone:
	case <-time.After(time.Second):
	}
}

// leave tells the connections that are there: each becomes old within LeaveOver, idle HTTP/1 ones get a short last wait.
// HTTP/2 connections get their GOAWAY with an answer, those without answers once LeaveOver has passed.
func (e *Engine) leave(idle time.Duration) {
	if !e.server.Leaving() {
		return
	}
	over := e.opts.LeaveOver
	if e.server.Draining() {
		over = 0
	}
	now := time.Now()
	e.mu.Lock()
	for c := range e.conns {
		c.ageBy(now.Add(rand.N(over + 1)))
		c.hurry(now.Add(idle))
	}
	for c := range e.quic {
		c.ageBy(now.Add(rand.N(over + 1)))
	}
	for t := range e.tunnels {
		t.leave(e.tunnelEnd(now))
	}
	e.mu.Unlock()
	if over == 0 {
		e.h2.goAway()
		return
	}
	time.AfterFunc(over, func() {
		if e.server.Leaving() {
			e.h2.goAway()
		}
	})
}

func (e *Engine) cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cutOff = true
	for c := range e.conns {
		_ = c.nc.Close()
	}
	for c := range e.quic {
		c.fail(http3.NoError)
	}
	for t := range e.tunnels {
		t.cut()
	}
}

// accept takes connections until the listener is closed. Errors that pass, such as no free descriptor, are waited out.
func (t *tcpListener) accept() error {
	e, l := t.e, t.Listener
	delay := 5 * time.Millisecond
	for {
		nc, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return nil
		}
		if err != nil {
			e.Unaccepted(err)
			e.Evict() // there may be no free descriptor
			time.Sleep(delay)
			delay = min(2*delay, time.Second)
			continue
		}
		delay = 5 * time.Millisecond
		if !e.Room(e.Evict) {
			_ = nc.Close()
			continue
		}
		e.wg.Add(1)
		go e.run(newConn(e, nc), func(c *conn) {
			if l.TLS == nil || c.handshake(l) {
				c.serve()
			}
		})
	}
}

// run serves one connection, within the engine's books.
func (e *Engine) run(c *conn, serve func(*conn)) {
	defer e.wg.Done()
	e.server.Connections.Add(1)
	defer e.server.Connections.Add(-1)
	e.mu.Lock()
	e.conns[c] = struct{}{}
	e.mu.Unlock()
	defer func() {
		e.caught(recover())
		c.landed() // after a panic it hasn't
		e.mu.Lock()
		delete(e.conns, c)
		e.mu.Unlock()
		c.close()
	}()
	serve(c)
}

// caught keeps a fault of ours to the connection that met it.
func (e *Engine) caught(fault any) {
	if fault != nil {
		e.opts.Log.Error("panic on a connection", "panic", fault, "stack", string(debug.Stack()))
	}
}

// age is the moment from which a connection that begins now is asked to leave.
func (e *Engine) age(now time.Time) time.Time {
	return relay.Age(now, e.opts.MaxAge, e.opts.LeaveOver, e.server.Leaving())
}
