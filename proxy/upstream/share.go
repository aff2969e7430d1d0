package upstream

import (
	"context"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"
)

// Share is what an owner outside of the pool holds of its places: an engine that keeps its connections itself. The bound
// and the queue are the pool's, over all owners.
//
//	s := p.Join(ask)                              // ask must not block: somebody wants what s holds idle, or the pool is retired
//	if p.Enter() { …open a connection… p.Exit() } // a place per open connection, idle ones included
//	t := NewTicket(s, holder, granted)
//	err := p.Queue(t)                             // granted is called once a place is t's, or never after Withdraw said true
//	if p.Wanted() { t, passed := p.Pass(s) … }    // ahead of laying a connection aside
type Share struct {
	// Idle is how many of the owner's connections lie idle. Written by: the owner.
	Idle atomic.Int64
	ask  func()
}

// Ticket is a place in a pool's queue. Its holder gets a connection, or the right to open one.
type Ticket struct {
	// Holder is the owner's own.
	Holder any

	ready   chan *Conn // of an exchange that waits in Acquire; nil for an owner's
	share   *Share
	granted func()
}

// NewTicket makes a ticket for one wait. granted is called by whoever frees a place, so it must not block.
func NewTicket(s *Share, holder any, granted func()) *Ticket {
	return &Ticket{Holder: holder, share: s, granted: granted}
}

// grant gives the holder the right to open a connection.
func (t *Ticket) grant() {
	switch {
	case t == nil:
	case t.ready != nil:
		t.ready <- nil
	default:
		t.granted()
	}
}

// Join takes an owner in, until Leave.
func (p *Pool) Join(ask func()) *Share {
	s := &Share{ask: ask}
	p.mu.Lock()
	p.shares = append(p.shares, s)
	p.mu.Unlock()
	return s
}

// Leave lets an owner go that holds nothing any more.
func (p *Pool) Leave(s *Share) {
	p.mu.Lock()
	p.shares = slices.DeleteFunc(p.shares, func(o *Share) bool { return o == s })
	p.mu.Unlock()
}

// askShares makes the owners look whether they can give something up.
func (p *Pool) askShares() {
	p.mu.Lock()
	all := slices.Clone(p.shares)
	p.mu.Unlock()
	for _, s := range all {
		s.ask()
	}
}

// Enter takes a place if one is free, or can be made free by closing an idle connection of the pool's own.
func (p *Pool) Enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open >= p.max && !p.evict() {
		return false
	}
	p.open++
	return true
}

// Exit gives a place back, to the first in the queue if there is one.
func (p *Pool) Exit() { p.freeSlot() }

// Queue waits in line for a place: ErrPoolFull when the line is full.
func (p *Pool) Queue(t *Ticket) error {
	p.mu.Lock()
	if len(p.waiting) >= p.maxPending {
		p.mu.Unlock()
		return ErrPoolFull
	}
	p.enqueue(t)
	p.mu.Unlock()
	p.askShares()
	return nil
}

// Withdraw leaves the line. It is false when the ticket has been served: then its holder has a place.
func (p *Pool) Withdraw(t *Ticket) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.waiting, t)
	if i < 0 {
		return false
	}
	p.waiting = slices.Delete(p.waiting, i, i+1)
	p.queued.Store(int32(len(p.waiting)))
	return true
}

// Wanted says whether anybody waits in line.
func (p *Pool) Wanted() bool { return p.queued.Load() > 0 }

// Retired says whether no program names the pool any more.
func (p *Pool) Retired() bool { return p.retired.Load() }

// Pass serves the first in line with a connection that its owner has no use for. A ticket of that owner is given back: the
// connection goes to its holder. Otherwise passed says that the place is somebody else's now, and the connection is to be
// closed without Exit. Neither means that nobody waits.
func (p *Pool) Pass(s *Share) (own *Ticket, passed bool) {
	p.mu.Lock()
	t := p.first()
	p.mu.Unlock()
	switch {
	case t == nil:
		return nil, false
	case t.share == s:
		return t, false
	}
	t.grant()
	return nil, true
}

// Endpoints is how many endpoints the pool has.
func (p *Pool) Endpoints() int { return len(p.places) }

// Plain says whether every connection of the pool is plain TCP that carries one exchange at a time, whatever its names
// resolve to.
func (p *Pool) Plain() bool {
	if p.multi {
		return false
	}
	if p.tls == nil {
		return true
	}
	return p.auto && p.discovery == nil && !slices.ContainsFunc(p.places, func(at *place) bool { return !at.addr.IsLoopback() })
}

// Literal is the address of an endpoint that needs no resolver. ErrForbidden: it may not be dialled.
func (p *Pool) Literal(endpoint int) (at netip.AddrPort, ok bool, err error) {
	e := p.places[endpoint]
	if !e.addr.IsValid() {
		return netip.AddrPort{}, false, nil
	}
	at = netip.AddrPortFrom(e.addr, e.port)
	if !p.opts.Allow.Permits(at.Addr()) {
		return at, true, ErrForbidden
	}
	return at, true, nil
}

// Resolve is the next address of an endpoint. It may wait for the resolver.
func (p *Pool) Resolve(ctx context.Context, endpoint int, now time.Time) (netip.AddrPort, error) {
	at, err := p.places[endpoint].address(ctx, p.lookup, now)
	if err == nil && !p.opts.Allow.Permits(at.Addr()) {
		err = ErrForbidden
	}
	return at, err
}

// The times of connections that lie idle, for owners outside of the pool: an idle one is closed after IdleTimeout, and one
// of MaxAge is not laid aside.
const (
	IdleTimeout = idleTimeout
	MaxAge      = maxAge
)
