//go:build linux

package loop

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/sockclose"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/relay"
)

// Options of an engine.
type Options struct {
	engine.Options
	// Loops is how many there are; 0 = one for each core that Go uses.
	Loops int
}

// Engine serves connections.
type Engine struct {
	server *proxy.Server
	opts   Options
	rest   *engine.Engine // serves what the loops don't
	loops  []*loop
	pulses []pulse
	// sockets listen. They are the loops', and open until drain tells those to end.
	sockets []int32

	refusing atomic.Bool
	over     chan struct{}  // closed at the end
	helpers  sync.WaitGroup // goroutines that wait for something on a loop's behalf
}

// New makes an engine for a server.
func New(s *proxy.Server, o Options) *Engine {
	o.Options = o.Options.OrDefault()
	if o.Loops <= 0 {
		o.Loops = runtime.GOMAXPROCS(0)
	}
	return &Engine{server: s, opts: o, rest: engine.New(s, o.Options), pulses: make([]pulse, o.Loops), over: make(chan struct{})}
}

// Run serves until ctx ends, then drains, as engine.Engine does. It is called once.
func (e *Engine) Run(ctx context.Context, listeners ...engine.Listener) error {
	var others []engine.Listener
	var own []engine.Listener
	for _, l := range listeners {
		if l.UDP != nil || l.Via != nil || l.Other != nil {
			others = append(others, l)
		} else {
			own = append(own, l)
		}
	}
	if err := e.open(own); err != nil {
		return err
	}
	return e.serve(ctx, others)
}

// serve runs the loops that are open, and the other engine beside them.
func (e *Engine) serve(ctx context.Context, others []engine.Listener) error {
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	rest := make(chan error, 1)
	release := e.rest.Hold()
	go func() {
		defer fail()
		rest <- e.rest.Run(ctx, others...)
	}()
	var running sync.WaitGroup
	for _, l := range e.loops {
		running.Go(l.run)
	}
	e.helpers.Go(e.watchLag)
	e.watch(ctx)
	gone := make(chan struct{})
	go func() { running.Wait(); close(gone) }()
	e.drain(gone)
	release()
	err := <-rest
	e.helpers.Wait()
	return err
}

// open makes the loops with their sockets. On an error nothing is left behind.
func (e *Engine) open(own []engine.Listener) (err error) {
	defer func() {
		if err != nil {
			for _, l := range e.loops {
				l.end()
				l.close()
			}
		}
	}()
	for i := range e.pulses {
		l, err := newLoop(e, &e.pulses[i])
		if err != nil {
			return fmt.Errorf("loop: %w", err)
		}
		e.loops = append(e.loops, l)
	}
	for _, from := range own {
		fds, err := spread(from.Listener, len(e.loops))
		for i, fd := range fds {
			if err == nil {
				err = e.loops[i].listen(&listener{fd, from.TLS, from.AltSvc})
			}
			if err != nil {
				unix.Close(int(fd))
			} else {
				e.sockets = append(e.sockets, fd)
			}
		}
		if err != nil {
			return fmt.Errorf("loop: listen on %s: %w", from.Addr(), err)
		}
	}
	return nil
}

// spread makes n sockets of a bound one, among which the kernel shares connections out, and closes it. Whoever bound it
// alone keeps the address alone: another process's first socket there is still refused.
func spread(from net.Listener, n int) (fds []int32, err error) {
	sc, ok := from.(syscall.Conn)
	if !ok {
		return nil, errors.New("it has no descriptor")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { fds, failed = siblings(int(fd), n) })
	if err == nil {
		err = failed
	}
	if err == nil {
		err = from.Close() // its first sibling is the same socket
	}
	return fds, err
}

func siblings(of, n int) (fds []int32, err error) {
	first, err := unix.FcntlInt(uintptr(of), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	fds = append(fds, int32(first))
	if err := prepare(first); err != nil || n == 1 {
		return fds, err
	}
	if err := unix.SetsockoptInt(first, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return fds, err
	}
	at, err := unix.Getsockname(first)
	if err != nil {
		return fds, err
	}
	family := unix.AF_INET
	if _, six := at.(*unix.SockaddrInet6); six {
		family = unix.AF_INET6
	}
	only6, _ := unix.GetsockoptInt(first, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY)
	for range n - 1 {
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fds, err
		}
		fds = append(fds, int32(fd))
		if family == unix.AF_INET6 {
			_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, only6)
		}
		for _, set := range []func() error{
			func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) },
			func() error { return unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) },
			func() error { return unix.Bind(fd, at) },
			func() error { return prepare(fd) },
			func() error { return unix.Listen(fd, backlog) },
		} {
			if err := set(); err != nil {
				return fds, err
			}
		}
	}
	return fds, nil
}

// backlog is bounded by net.core.somaxconn.
const backlog = 4096

// prepare sets what accepted connections inherit: no delay of small writes, probes of silent peers.
func prepare(fd int) error {
	for _, o := range [][3]int{
		{unix.IPPROTO_TCP, unix.TCP_NODELAY, 1}, {unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1},
		{unix.IPPROTO_TCP, unix.TCP_KEEPIDLE, 15}, {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL, 15},
	} {
		if err := unix.SetsockoptInt(fd, o[0], o[1], o[2]); err != nil {
			return err
		}
	}
	return nil
}

// full says whether connections are at their bound. It logs the change, not every connection.
func (e *Engine) full() bool {
	over := e.server.Connections.Load() >= e.opts.MaxConnections
	if over != e.refusing.Load() && e.refusing.Swap(over) != over {
		e.opts.Log.Warn("connections at their bound", "refusing", over, "bound", e.opts.MaxConnections)
	}
	return over
}

// watch tells the loops of changes until ctx ends.
func (e *Engine) watch(ctx context.Context) {
	changed := e.server.Changed()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
			changed = e.server.Changed()
			e.leave(relay.LeaveIdle)
		}
	}
}

// leave makes clients old within LeaveOver, each at a moment of its own; idle ones get a short last wait.
func (e *Engine) leave(idle time.Duration) {
	if !e.server.Leaving() {
		return
	}
	over := e.opts.LeaveOver
	if e.server.Draining() {
		over = 0
	}
	e.all(func(l *loop) {
		now := l.clock()
		l.each(func(c *client) { c.leave(now.Add(rand.N(over+1)), now.Add(idle)) })
	})
}

// all leaves a message at every loop.
func (e *Engine) all(do func(*loop)) {
	for _, l := range e.loops {
		l.post(func() { do(l) })
	}
}

// drain follows the order of engine.Engine: not ready, a moment for what the kernel has accepted, no listener, the wait.
func (e *Engine) drain(gone <-chan struct{}) {
	hard := time.NewTimer(e.opts.HardStop)
	defer hard.Stop()
	defer close(e.over)
	e.server.Drain()
	e.leave(min(relay.DrainIdle, e.opts.HardStop/2))
	for _, fd := range e.sockets {
		if err := sockclose.QuiesceFD(int(fd)); err != nil {
			e.opts.Log.Warn("drain: connections that wait may be reset", "error", err)
		}
	}
	time.Sleep(min(relay.DrainAccept, e.opts.HardStop/4))
	e.all((*loop).end)
	select {
	case <-gone:
		return
	case <-hard.C:
	}
	e.opts.Log.Warn("drain: hard stop", "connections", e.server.Connections.Load(), "in_flight", e.server.InFlight.Load())
	e.all(func(l *loop) { l.each((*client).drop) })
	<-gone
}

// A loop that serves one turn for so long keeps all its other clients waiting.
const (
	lagWarning = 250 * time.Millisecond
	lagLook    = 250 * time.Millisecond
)

// watchLag reports loops that don't come back, until all have ended.
func (e *Engine) watchLag() {
	tick := time.NewTicker(lagLook)
	defer tick.Stop()
	late := make([]bool, len(e.pulses))
	for {
		select {
		case <-e.over:
			return
		case now := <-tick.C:
			for i := range e.pulses {
				since := e.pulses[i].busySince.Load()
				is := since != 0 && now.UnixNano()-since > int64(lagWarning)
				if is && !late[i] {
					e.opts.Log.Warn("a loop is stuck in one turn", "loop", i, "since", time.Duration(now.UnixNano()-since))
				}
				late[i] = is
			}
		}
	}
}

// Lag is the longest that a loop took for one turn since the last call: how long what arrived had to wait at most.
func (e *Engine) Lag() (longest time.Duration) {
	now := time.Now().UnixNano()
	for i := range e.pulses {
		p := &e.pulses[i]
		longest = max(longest, time.Duration(p.longest.Swap(0)))
		if since := p.busySince.Load(); since != 0 {
			longest = max(longest, time.Duration(now-since))
		}
	}
	return longest
}
