// Package quota holds a node's leases of the limits that it keeps together with other nodes.
//
//	l := quota.New(clock)
//	go l.Watch(ctx)                        // and l.Serve for every connection to the region's controller
//	d := l.Take(name, key, limit, now, 0)  // 0 allocations, nothing remote
//
// A key without room in the table, which is bounded, is served at the node's own part of its limit.
package quota

import (
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/proxy/limit"
	"github.com/cellgate/cellgate/quota"
)

// Keys is how many keys a node holds leases of at most.
const Keys = 1 << 17

// Fleet is how many nodes keep a limit of each scope together; 0 is not known and counts as 100.
type Fleet struct{ World, Region, Cell int }

const unknownFleet = 100

// Leases are a node's. They are safe for concurrent use.
type Leases struct {
	*nodeapi.Leases[limit.Key, quota.Lease, *quota.Lease]
	clock func() int64
	crowd *limit.Table // keys without room
	fleet atomic.Pointer[Fleet]
}

// New makes an empty table for about most keys. Clock is monotonic, in ns, and the one that Take's now is of.
func New(most int, clock func() int64) *Leases {
	l := &Leases{Leases: nodeapi.NewLeases[limit.Key, quota.Lease](quota.OfNodes(), most, clock), clock: clock, crowd: limit.New(most / 16)}
	l.fleet.Store(&Fleet{})
	return l
}

// SetFleet says how many nodes there are.
func (l *Leases) SetFleet(f Fleet) { l.fleet.Store(&f) }

// weight is the node's part of all that keep the limit.
func (f *Fleet) weight(s quota.Scope) float64 {
	n := f.World
	switch s {
	case quota.Region:
		n = f.Region
	case quota.Cell:
		n = f.Cell
	}
	if n <= 0 {
		n = unknownFleet
	}
	return 1 / float64(n)
}

// Name says what a key stands for, in words that mean the same on every node.
type Name struct{ Kind, Tenant, Route, Caller string }

// Decision is what became of one request. Wait is not nil if it is to wait and ask again.
type Decision struct {
	OK         bool
	Spent      bool // there is a token to give back
	Remaining  uint64
	RetryAfter time.Duration
	Over       bool // a daily quota is spent
	Wait       <-chan struct{}
}

// Take asks for one request at now. Waits is how often it has waited.
func (l *Leases) Take(name Name, k limit.Key, to quota.Limit, now int64, waits int) Decision {
	s := l.Table.Shard(k.Hash())
	s.Lock()
	defer s.Unlock()
	e := s.Find(k)
	if e == nil {
		if e = s.Add(k, quota.Name(name.Kind, name.Tenant, name.Route, name.Caller), now); e == nil {
			return l.squeezed(k, to, now)
		}
	}
	if e.Value.Limit != to {
		e.Value.Limit = to
	}
	verdict := e.Value.Take(now, l.Lost(now), l.fleet.Load().weight(to.Scope), waits)
	if s.Used(e) {
		l.Wake()
	}
	switch verdict {
	case quota.Admit, quota.Alone:
		return Decision{OK: true, Spent: verdict == quota.Admit, Remaining: uint64(e.Value.Spare(now))}
	case quota.Wait:
		s.Press(e)
		l.Press()
		return Decision{Wait: e.Wait(l.clock())} // patience counts from here, however long ago the request was read
	}
	return Decision{RetryAfter: time.Duration(e.Value.RetryAfter(now)), Over: e.Value.Over()}
}

// squeezed decides for a key that has no room, by the node's own part.
func (l *Leases) squeezed(k limit.Key, to quota.Limit, now int64) Decision {
	if to.Strict {
		return Decision{RetryAfter: time.Second}
	}
	w := l.fleet.Load().weight(to.Scope)
	d := l.crowd.Take(k, limit.PerSecond(to.Rate*w, to.Burst*w), now)
	return Decision{OK: d.OK, Remaining: d.Remaining, RetryAfter: d.RetryAfter}
}

// GiveBack returns the token that Take has just spent, for a request that another limit refused.
func (l *Leases) GiveBack(k limit.Key) {
	s := l.Table.Shard(k.Hash())
	s.Lock()
	defer s.Unlock()
	if e := s.Find(k); e != nil {
		e.Value.GiveBack()
	}
}
