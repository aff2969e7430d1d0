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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/sockclose"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/handshake"
	"github.com/cellgate/cellgate/proxy/relay"
)

// Options of an engine.
type Options struct {
	engine.Options
	// Loops is how many there are; 0 = one for each core that Go uses.
	Loops int
	// NoRing makes each send and receive a system call of its own, as it is where the kernel gives no ring (package uring).
	NoRing bool
}

// Engine serves connections.
type Engine struct {
	server  *proxy.Server
	opts    Options
	rest    *engine.Engine // serves what the loops don't
	loops   []*loop
	pulses  []pulse
	sockets []net.Listener // that the loops take connections from

	over    chan struct{}  // closed at the end
	helpers sync.WaitGroup // goroutines that wait for something on a loop's behalf
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
			for _, l := range own {
				_ = l.Close()
			}
		}
	}()
	for i := range e.pulses {
		l, err := newLoop(e, &e.pulses[i])
		if err != nil {
			return fmt.Errorf("loop: %w", err)
		}
		e.loops = append(e.loops, l)
		if !e.opts.NoRing {
			if err := l.openRing(); err != nil {
				e.opts.NoRing = true
				e.opts.Log.Info("each send and receive is a system call of its own: the kernel gives no ring to bundle them with", "error", err)
			}
		}
	}
	for _, sockets := range byAddress(own) {
		for i, from := range sockets {
			if err := e.listen(from, i, len(sockets)); err != nil {
				return fmt.Errorf("loop: listen on %s: %w", from.Addr(), err)
			}
			e.sockets = append(e.sockets, from.Listener)
		}
	}
	return nil
}

// byAddress puts together the sockets among which the kernel shares an address's connections out.
func byAddress(all []engine.Listener) (groups [][]engine.Listener) {
	at := map[string]int{}
	for _, l := range all {
		addr := l.Addr().String()
		if _, known := at[addr]; !known {
			at[addr] = len(groups)
			groups = append(groups, nil)
		}
		groups[at[addr]] = append(groups[at[addr]], l)
	}
	return groups
}

// listen gives the i-th of an address's n sockets to its loop, and, where there are more loops than sockets, to more of them.
func (e *Engine) listen(from engine.Listener, i, n int) error {
	fd, err := descriptor(from.Listener)
	if err == nil {
		err = prepare(fd)
	}
	if from.TLS != nil {
		from.TLS = handshake.Asking(from.TLS, e.server.Program, nil)
	}
	on := &listener{fd: int32(fd), tls: from.TLS, altSvc: from.AltSvc, close: from.Close}
	var of []*loop
	for ; i < max(n, len(e.loops)); i += n {
		of = append(of, e.loops[i%len(e.loops)])
	}
	on.loops.Store(int32(len(of)))
	for _, l := range of {
		if err == nil {
			err = l.listen(on)
		}
	}
	return err
}

// descriptor is a listener's, good until it is closed.
func descriptor(of net.Listener) (fd int, err error) {
	if own, ok := of.(interface{ FD() int }); ok {
		return own.FD(), nil
	}
	sc, ok := of.(syscall.Conn)
	if !ok {
		return -1, errors.New("it has no descriptor")
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	return fd, raw.Control(func(of uintptr) { fd = int(of) })
}

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
	for _, l := range e.sockets {
		if err := sockclose.Quiesce(l); err != nil {
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
