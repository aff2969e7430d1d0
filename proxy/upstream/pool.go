// Package upstream is a node's side of the connections to what it forwards to: one bounded pool per upstream (a
// bulkhead), dialling with a check of the resolved address, TLS, and the registry that keeps pools over snapshots.
package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/snapshot"
)

// Why no connection could be had.
var (
	ErrPoolFull  = errors.New("upstream: the pool and its queue are full")
	ErrNoTime    = errors.New("upstream: no connection became free in time")
	ErrForbidden = errors.New("upstream: the address may not be dialled")
)

// Timers of connections that carry no exchange.
const (
	idleTimeout = 55 * time.Second
	maxAge      = 5 * time.Minute
)

// Pool holds the connections to one upstream. At most max are open, idle ones included; at most maxPending exchanges
// wait for one, first come first served; beyond that Acquire fails at once.
type Pool struct {
	ID     string
	Set    *balance.Set
	Budget *retry.Budget
	// Timeouts bound the phases of an attempt (I6).
	Timeouts snapshot.Timeouts

	names  []string // endpoints as the document spells them
	places []*place
	tls    *tls.Config // nil: plain
	mutual bool
	auto   bool // plain on loopback, TLS elsewhere
	opts   *Options
	lookup *names

	max, maxPending int

	mu      sync.Mutex
	open    int
	idle    [][]*Conn // per endpoint, the most recently used last
	idles   int
	waiting []*Ticket
	shares  []*Share

	queued  atomic.Int32 // len(waiting)
	retired atomic.Bool
}

var waiters = sync.Pool{New: func() any { return &Ticket{ready: make(chan *Conn, 1)} }}

// Options are what all pools share.
type Options struct {
	Allow snapshot.Allow
	// Lookup resolves names; nil means the system's resolver.
	Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	// NamesFile keeps what names resolved to over restarts; empty means nowhere.
	NamesFile string
	Log       *slog.Logger // nil = none
}

func newPool(u snapshot.Upstream, opts *Options, names *names) (*Pool, error) {
	p := &Pool{ID: u.ID, Budget: new(retry.Budget), Timeouts: u.Timeouts.OrDefault(), names: u.Endpoints, opts: opts, lookup: names, max: u.Pool.MaxConnections, maxPending: u.Pool.MaxPending}
	if len(p.names) == 0 && u.Discovery.DNS != "" {
		p.names = []string{u.Discovery.DNS}
	}
	if p.max == 0 {
		p.max = snapshot.DefaultPool().MaxConnections
	}
	if p.maxPending == 0 {
		p.maxPending = snapshot.DefaultPool().MaxPending
	}
	for _, e := range p.names {
		place, err := parsePlace(e)
		if err != nil {
			return nil, err
		}
		p.places = append(p.places, place)
	}
	p.Set, p.idle = balance.New(balance.Parse(u.Balance), len(p.places)), make([][]*Conn, len(p.places))
	var err error
	p.tls, p.auto, err = tlsConfig(u.TLS)
	p.mutual = u.TLS.ClientCert != ""
	return p, err
}

// adopt takes over what old, a pool of the same upstream under another definition, knows of the endpoints that both have,
// and its budget. Connections stay with old: they may be of another kind.
func (p *Pool) adopt(old *Pool) {
	p.Budget = old.Budget
	at := make(map[string]int, len(old.names))
	for j, name := range old.names {
		at[name] = j
	}
	for i, name := range p.names {
		if j, ok := at[name]; ok {
			p.Set.Adopt(i, old.Set, j)
		}
	}
}

// Name is the endpoint as the document spells it.
func (p *Pool) Name(endpoint int) string { return p.names[endpoint] }

// Mutual says whether the upstream knows us by certificate.
func (p *Pool) Mutual() bool { return p.mutual }

// Acquire gets a connection, preferably an idle one to endpoint; when it had to wait it may be one to another endpoint.
// fresh asks for a new one. A reused connection is looked at right before it is given out, so write to it at once.
func (p *Pool) Acquire(endpoint int, fresh bool, now, deadline time.Time) (*Conn, error) {
	p.mu.Lock()
	for !fresh {
		c := p.pop(endpoint)
		if c == nil {
			break
		}
		if now.Sub(c.idle) > idleTimeout || !c.quiet() {
			p.open--
			c.Conn.Close()
			continue
		}
		p.mu.Unlock()
		c.take()
		c.Reused = true
		return c, nil
	}
	if p.open >= p.max && !p.evict() {
		return p.wait(endpoint, deadline) // unlocks
	}
	p.open++
	p.mu.Unlock()
	return p.dial(endpoint, now, deadline)
}

func (p *Pool) pop(endpoint int) *Conn {
	l := p.idle[endpoint]
	if len(l) == 0 {
		return nil
	}
	c := l[len(l)-1]
	p.idle[endpoint] = l[:len(l)-1]
	p.idles--
	return c
}

// evict closes the idle connection of some endpoint to make room.
func (p *Pool) evict() bool {
	if p.idles == 0 {
		return false
	}
	for i := range p.idle {
		if c := p.pop(i); c != nil {
			p.open--
			c.Conn.Close()
			return true
		}
	}
	return false
}

// wait queues for a connection. It is entered with the lock held.
func (p *Pool) wait(endpoint int, deadline time.Time) (*Conn, error) {
	if len(p.waiting) >= p.maxPending {
		p.mu.Unlock()
		return nil, ErrPoolFull
	}
	w := waiters.Get().(*Ticket)
	p.enqueue(w)
	p.mu.Unlock()
	p.askShares()
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case c := <-w.ready:
		waiters.Put(w)
		return p.given(c, endpoint, deadline)
	case <-timer.C:
	}
	if !p.Withdraw(w) { // it was served in the same instant
		c := <-w.ready
		waiters.Put(w)
		return p.given(c, endpoint, deadline)
	}
	return nil, ErrNoTime
}

func (p *Pool) given(c *Conn, endpoint int, deadline time.Time) (*Conn, error) {
	if c != nil && !c.quiet() {
		c.Conn.Close()
		c = nil
	}
	if c == nil {
		return p.dial(endpoint, time.Now(), deadline)
	}
	c.take()
	c.Reused = true
	return c, nil
}

// dial opens a connection in a slot that is already counted.
func (p *Pool) dial(endpoint int, now, deadline time.Time) (*Conn, error) {
	if limit := now.Add(p.Timeouts.Connect); limit.Before(deadline) {
		deadline = limit
	}
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	nc, err := p.connect(ctx, p.places[endpoint], now)
	if err != nil {
		p.freeSlot()
		return nil, err
	}
	c := &Conn{Conn: nc, Endpoint: endpoint, pool: p, born: now}
	c.peek.Reset(rawConn(nc))
	c.turn.Reset(nc)
	c.take()
	return c, nil
}

func (p *Pool) connect(ctx context.Context, at *place, now time.Time) (net.Conn, error) {
	addr, err := at.address(ctx, p.lookup, now)
	if err != nil {
		return nil, err
	}
	if !p.opts.Allow.Permits(addr.Addr()) {
		return nil, ErrForbidden
	}
	var d net.Dialer
	nc, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil || p.tls == nil || p.auto && addr.Addr().IsLoopback() {
		return nc, err
	}
	cfg := p.tls
	if cfg.ServerName == "" {
		cfg = cfg.Clone()
		cfg.ServerName = at.host
	}
	tc := tls.Client(nc, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return tc, nil
}

func rawConn(c net.Conn) net.Conn {
	if tc, ok := c.(*tls.Conn); ok {
		return tc.NetConn()
	}
	return c
}

// Release gives the connection back. reusable must be false unless the request was written whole and the answer read
// whole, and neither side announced a close (CASES G7).
func (p *Pool) Release(c *Conn, reusable bool, now time.Time) {
	clean := reusable && c.r == c.w && now.Sub(c.born) < maxAge
	c.drop()
	if !clean {
		c.Conn.Close()
		p.freeSlot()
		return
	}
	c.idle = now
	p.mu.Lock()
	if p.retired.Load() {
		p.open--
		p.mu.Unlock()
		c.Conn.Close()
		return
	}
	if w := p.first(); w != nil {
		p.mu.Unlock()
		if w.ready != nil {
			w.ready <- c
			return
		}
		c.Conn.Close()
		w.granted()
		return
	}
	p.idle[c.Endpoint] = append(p.idle[c.Endpoint], c)
	p.idles++
	p.mu.Unlock()
}

// freeSlot passes a closed connection's slot on to the first in the queue.
func (p *Pool) freeSlot() {
	p.mu.Lock()
	w := p.first()
	if w == nil {
		p.open--
	}
	p.mu.Unlock()
	w.grant()
}

func (p *Pool) enqueue(w *Ticket) {
	p.waiting = append(p.waiting, w)
	p.queued.Store(int32(len(p.waiting)))
}

func (p *Pool) first() *Ticket {
	if len(p.waiting) == 0 {
		return nil
	}
	w := p.waiting[0]
	p.waiting = append(p.waiting[:0], p.waiting[1:]...)
	p.queued.Store(int32(len(p.waiting)))
	return w
}

// sweep closes connections that were idle for too long, or all idle ones.
func (p *Pool) sweep(now time.Time, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, l := range p.idle {
		old := 0
		for old < len(l) && (all || now.Sub(l[old].idle) > idleTimeout) {
			l[old].Conn.Close()
			old++
		}
		p.open -= old
		p.idles -= old
		p.idle[i] = append(l[:0], l[old:]...)
	}
}

// Stats are a pool's numbers at one moment.
type Stats struct {
	ID                  string
	Open, Idle, Pending int
	Ejected             int
	Endpoints           int
}

func (p *Pool) stats(now time.Time) Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{ID: p.ID, Open: p.open, Idle: p.idles, Pending: len(p.waiting), Endpoints: len(p.places)}
	for _, o := range p.shares {
		s.Idle += int(o.Idle.Load())
	}
	for i := range p.places {
		if p.Set.Ejected(i, now) {
			s.Ejected++
		}
	}
	return s
}
