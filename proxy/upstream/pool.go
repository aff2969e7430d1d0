// Package upstream is a node's side of the connections to what it forwards to: one bounded pool per upstream (a
// bulkhead), dialling with a check of the resolved address, TLS, and the registry that keeps pools over snapshots.
package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/proxy/breaker"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/shed"
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
	Limit  *shed.Limit // of exchanges under way, queued ones included
	Hedges Hedges
	// Timeouts bound the phases of an attempt (I6).
	Timeouts snapshot.Timeouts

	hashed Hashed
	health snapshot.Health
	rule   breaker.Rule
	zones  atomic.Pointer[[]zone] // the slices by their number

	// Endpoints by their number. Of a discovered upstream there is room for maxFound, and an entry is written before anybody
	// has its number.
	names  []string // as the document spells them, or discovery
	where  []snapshot.Locality
	places []*place

	owners []string // the region that has the writes, then those that stand in for it; none = any
	once   bool     // a request is executed once, however often its key comes

	discovery *discovery  // nil = the endpoints are the document's
	probes    *probes     // nil = none; written by: the registry, before the pool is used and when it retires
	tls       *tls.Config // nil: plain
	tells     bool        // who calls
	vouched   *snapshot.Upstream
	auto      bool // plain on loopback, TLS elsewhere
	opts      *Options
	lookup    *names

	max, maxPending int

	mu      sync.Mutex
	open    int
	idle    [][]*Conn // per endpoint, the most recently used last
	idles   int
	waiting []*Ticket
	shares  []*Share

	lines  [][]*line // per endpoint, the oldest first; of an upstream that speaks HTTP/2. Then open counts exchanges
	offers []int     // per endpoint, the streams that its last line took at once; 0 = not known
	wires  int       // open lines
	multi  bool      // it speaks HTTP/2

	patience patience // with its lines
	firstID  uint32   // of their streams; tests don't count to 2³¹

	queued  atomic.Int32 // len(waiting)
	retired atomic.Bool
}

var waiters = sync.Pool{New: func() any { return &Ticket{ready: make(chan *Conn, 1)} }}

// Options are what all pools share.
type Options struct {
	Allow snapshot.Allow
	// Here is where the node is: near endpoints come first. The zero value takes all for near.
	Here snapshot.Locality
	// Lookup resolves names; nil means the system's resolver.
	Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	// NamesFile keeps what names resolved to over restarts; empty means nowhere.
	NamesFile string
	// Finder knows where the endpoints of discovered upstreams are; nil = they have none.
	Finder Finder
	// EndpointsFile keeps what it told over restarts; empty means nowhere.
	EndpointsFile string
	Log           *slog.Logger // nil = none
}

func (o *Options) log() *slog.Logger {
	if o.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return o.Log
}

func newPool(u snapshot.Upstream, opts *Options, names *names) (*Pool, error) {
	p := &Pool{ID: u.ID, Budget: new(retry.Budget), Timeouts: u.Timeouts.OrDefault(), names: u.Endpoints, opts: opts, lookup: names, max: u.Pool.MaxConnections, maxPending: u.Pool.MaxPending}
	p.zones.Store(new([]zone))
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
	p.where = make([]snapshot.Locality, len(p.names))
	copy(p.where, u.Where)
	p.Set = balance.New(spec(u, p.max), p.members())
	if u.Discovery != (snapshot.Discovery{}) {
		p.discovery = &discovery{of: u.Discovery, first: make(chan struct{})}
		p.names, p.where, p.places = make([]string, maxFound), make([]snapshot.Locality, maxFound), make([]*place, maxFound)
	}
	p.rule, p.Limit = breakerRule(u.Breaker), &shed.Limit{Rule: limitRule(u.Concurrency, p.max+p.maxPending)}
	p.hashed, p.health, p.idle = hashed(u), u.Health, make([][]*Conn, len(p.places))
	var err error
	p.tls, p.auto, err = tlsConfig(u.TLS)
	if p.tells, p.once = u.TLS.ClientCert != "" || u.AllowPlaintextIdentity, u.Idempotency; u.OwnerRegion != "" {
		p.owners = append([]string{u.OwnerRegion}, u.FailoverRegions...)
	}
	if u.IdentityToken != nil {
		p.vouched = &u
	}
	if p.multi = u.Multiplexed(); p.multi {
		p.multiplex(u.Protocol)
	}
	return p, err
}

// adopt takes over what old, a pool of the same upstream under another definition, knows of the endpoints and zones that both
// have, and its budget. Connections stay with old: they may be of another kind.
func (p *Pool) adopt(old *Pool) {
	p.Budget = old.Budget
	if p.discovery != nil && old.discovery != nil && old.discovery.of == p.discovery.of {
		old.discovery.mu.Lock()
		all := old.discovery.last
		old.discovery.mu.Unlock()
		if len(all) > 0 {
			p.found(all)
		}
	}
	if p.alike(old) { // what other endpoints have closed or narrowed says nothing about these: a rollback must not suffer for it
		p.adoptBreakers(old)
		if p.Limit.Rule == old.Limit.Rule {
			p.Limit = old.Limit
		}
	}
	at := make(map[string]int, old.Set.Len())
	for j, name := range old.names[:old.Set.Len()] {
		at[name] = j
	}
	for i, name := range p.names[:p.Set.Len()] {
		if j, ok := at[name]; ok {
			if p.Set.Adopt(i, old.Set, j); p.health.Path == "" {
				p.Set.Mark(i, false, time.Now()) // nobody would ever say so
			}
		}
	}
}

func (p *Pool) adoptBreakers(old *Pool) {
	all := slices.Clone(*p.zones.Load())
	for i, z := range all {
		if j := slices.IndexFunc(*old.zones.Load(), func(o zone) bool { return o.at == z.at }); j >= 0 {
			all[i].Breaker = old.breaker(j)
		}
	}
	p.zones.Store(&all)
	for i := range all {
		p.bar(i)
	}
}

// alike says whether the pools have the same endpoints and speak to them alike.
func (p *Pool) alike(old *Pool) bool {
	if p.multi != old.multi || (p.tls == nil) != (old.tls == nil) {
		return false
	}
	if p.discovery != nil && old.discovery != nil {
		return p.discovery.of == old.discovery.of
	}
	sorted := func(p *Pool) []string { return slices.Sorted(slices.Values(p.names[:p.Set.Len()])) }
	return (p.discovery == nil) == (old.discovery == nil) && slices.Equal(sorted(p), sorted(old))
}

// Name is the endpoint as the document spells it.
func (p *Pool) Name(endpoint int) string { return p.names[endpoint] }

// Scheme is that of the pool's requests, where they name one.
func (p *Pool) Scheme() string {
	if p.tls == nil {
		return "http"
	}
	return "https"
}

// Vouched is the upstream's definition if it gets signed tokens of who calls, else nil.
func (p *Pool) Vouched() *snapshot.Upstream { return p.vouched }

// Tells says whether the upstream is told who calls: it knows us by certificate, or its author wants it in plain text.
func (p *Pool) Tells() bool { return p.tells }

// Acquire gets a connection, preferably an idle one to endpoint; when it had to wait it may be one to another that StandsIn.
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
		c, err := p.wait(deadline) // unlocks
		if err != nil {
			return nil, err
		}
		return p.given(c, endpoint, deadline)
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

// wait queues for a connection, or for a place to open one in, which is nil. It is entered with the lock held.
func (p *Pool) wait(deadline time.Time) (*Conn, error) {
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
		return c, nil
	case <-timer.C:
	}
	if !p.Withdraw(w) { // it was served in the same instant
		c := <-w.ready
		waiters.Put(w)
		return c, nil
	}
	return nil, ErrNoTime
}

func (p *Pool) given(c *Conn, endpoint int, deadline time.Time) (*Conn, error) {
	if c != nil && !(p.StandsIn(c.Endpoint, endpoint) && c.quiet()) {
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
	tc := tls.Client(below{nc.(*net.TCPConn)}, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		nc.Close()
		return nil, err
	}
	return tc, nil
}

// below is the socket below TLS. Its end is an error: crypto/tls calls it io.EOF between two records, as it does the end that
// TLS itself has said, and anybody on the way can cut a connection there (RFC 9112, section 9.8).
type below struct{ *net.TCPConn }

var errCut = fmt.Errorf("upstream: the connection ended and TLS did not: %w", io.ErrUnexpectedEOF)

func (b below) Read(p []byte) (int, error) {
	n, err := b.TCPConn.Read(p)
	if errors.Is(err, io.EOF) {
		err = errCut
	}
	return n, err
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
	p.sweepLines(now, all)
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
