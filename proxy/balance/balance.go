// Package balance chooses one endpoint of a set: power of two choices by load and latency, round robin, or least
// requests, with passive ejection of endpoints that fail.
//
//	s := balance.New(balance.P2C, n)
//	i := s.Pick(random, tried, now)   // -1: the set is empty or all were tried
//	s.Begin(i); …; s.End(i, ok, took, now)
package balance

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Method is how Pick chooses.
type Method uint8

// The methods. The zero value is P2C.
const (
	P2C Method = iota
	RoundRobin
	LeastRequests
)

// Parse reads a document's balance; empty is p2c.
func Parse(s string) Method {
	switch s {
	case "round_robin":
		return RoundRobin
	case "least_requests":
		return LeastRequests
	}
	return P2C
}

// The rules of passive ejection (I3).
const (
	FailuresToEject = 5
	EjectFor        = 30 * time.Second
	maxEjections    = 10 // 30 s × n, n ≤ 10
	// When the rest of the set fails too, it isn't the endpoint: then only a run this long convicts.
	failuresInStorm = 25
	stormShare      = fixedOne / 20
)

const (
	fixedOne = 1 << 16 // failure ratios are in 1/65536
	ewmaBits = 4       // each result weighs 1/16
)

// Set is the live state of an upstream's endpoints. Its methods may be called from many goroutines; the counters are
// approximate under races, which a choice by comparison tolerates.
type Set struct {
	method Method
	next   atomic.Uint64
	all    []*endpoint
}

type endpoint struct {
	inflight  atomic.Int64
	latency   atomic.Int64 // nanoseconds, moving average of successes
	failing   atomic.Int64 // moving failure ratio, 0…fixedOne
	streak    atomic.Int64 // consecutive failures
	ejections atomic.Int64
	until     atomic.Int64 // unix nanoseconds; ejected before that
	_         [16]byte     // endpoints don't share a cache line: an allocation of 64 bytes is aligned to them
}

// New makes a set of n endpoints, all in.
func New(m Method, n int) *Set {
	s := &Set{method: m, all: make([]*endpoint, n)}
	for i := range s.all {
		s.all[i] = new(endpoint)
	}
	return s
}

// Adopt makes endpoint i of s and endpoint j of from the same one: what is known of it, and its requests in flight, are
// shared from then on. Call it before s is used.
func (s *Set) Adopt(i int, from *Set, j int) { s.all[i] = from.all[j] }

// Pick chooses an endpoint that is neither ejected nor in tried (a bit per index, the first 64); random is any 64 random
// bits. When all untried ones are ejected it chooses among those. -1 means that nothing is left.
func (s *Set) Pick(random, tried uint64, now time.Time) int {
	if i := s.pick(random, tried, now.UnixNano()); i >= 0 {
		return i
	}
	return s.pick(random, tried, 1<<62)
}

func (s *Set) pick(random, tried uint64, now int64) int {
	n := uint64(len(s.all))
	if n == 0 {
		return -1
	}
	switch s.method {
	case RoundRobin:
		return s.from(s.next.Add(1)%n, tried, now)
	case LeastRequests:
		return s.least(random%n, tried, now)
	}
	hi, lo := bits.Mul64(random, n)
	a := s.from(hi, tried, now)
	if a < 0 || n == 1 {
		return a
	}
	step, _ := bits.Mul64(lo, n-1)
	b := s.from((uint64(a)+1+step)%n, tried, now)
	if b < 0 || s.score(b) >= s.score(a) {
		return a
	}
	return b
}

// from is the first usable endpoint at or after i.
func (s *Set) from(i, tried uint64, now int64) int {
	n := uint64(len(s.all))
	for range n {
		if (i >= 64 || tried>>i&1 == 0) && s.all[i].until.Load() <= now {
			return int(i)
		}
		i = (i + 1) % n
	}
	return -1
}

func (s *Set) least(start, tried uint64, now int64) int {
	best, n := -1, uint64(len(s.all))
	for k := range n {
		i := (start + k) % n
		if i < 64 && tried>>i&1 == 1 || s.all[i].until.Load() > now {
			continue
		}
		if best < 0 || s.all[i].inflight.Load() < s.all[best].inflight.Load() {
			best = int(i)
		}
	}
	return best
}

// score is expected waiting: load times latency. Failing makes an endpoint dearer, up to 64-fold, so that one that
// fails fast does not attract traffic; a run of failures counts as half the weight and less.
func (s *Set) score(i int) float64 {
	e := s.all[i]
	cost := float64(e.inflight.Load()+1) * float64(max(e.latency.Load(), int64(time.Millisecond)))
	cost *= 1 + 15*float64(e.failing.Load())/fixedOne
	if e.streak.Load() >= FailuresToEject {
		cost *= 4
	}
	return cost
}

// Begin counts an attempt at i as in flight.
func (s *Set) Begin(i int) { s.all[i].inflight.Add(1) }

// Cancel takes an attempt back that says nothing about the endpoint: the client left, or the gateway had no room.
func (s *Set) Cancel(i int) { s.all[i].inflight.Add(-1) }

// End finishes an attempt at i that began took ago: ok unless the connection failed or the answer was a 5xx. It says whether
// the endpoint was ejected by it.
func (s *Set) End(i int, ok bool, took time.Duration, now time.Time) (ejected bool) {
	e := s.all[i]
	e.inflight.Add(-1)
	if ok {
		e.readmit(now.UnixNano(), int64(took))
		e.streak.Store(0)
		average(&e.failing, 0)
		if e.latency.Load() == 0 {
			e.latency.Store(int64(took))
		}
		average(&e.latency, int64(took))
		return false
	}
	average(&e.failing, fixedOne)
	if run := e.streak.Add(1); run < FailuresToEject || run < failuresInStorm && s.storm(i) {
		return false
	}
	return s.eject(i, now.UnixNano())
}

func average(a *atomic.Int64, v int64) {
	old := a.Load()
	a.Store(old + (v-old)>>ewmaBits)
}

// storm says whether the rest of the set fails as well.
func (s *Set) storm(but int) bool {
	var sum int64
	for i := range s.all {
		if i != but {
			sum += s.all[i].failing.Load()
		}
	}
	return sum > stormShare*int64(len(s.all)-1)
}

// eject takes i out unless more than half of the set would be out then.
func (s *Set) eject(i int, now int64) bool {
	out := 1
	for j := range s.all {
		if j != i && s.all[j].until.Load() > now {
			out++
		}
	}
	e := s.all[i]
	if out*2 > len(s.all) || e.until.Load() > now {
		return false
	}
	n := min(e.ejections.Add(1), maxEjections)
	e.until.Store(now + n*int64(EjectFor))
	e.streak.Store(0)
	return true
}

// readmit ends an ejection when an attempt that began during it has succeeded: with the rest of the set failing, it was the
// last resort, and there is nothing to wait for.
func (e *endpoint) readmit(now, took int64) {
	until := e.until.Load()
	ejected := until - min(e.ejections.Load(), maxEjections)*int64(EjectFor)
	if until > now && now-took >= ejected {
		e.until.CompareAndSwap(until, now)
	}
}

// Ejected says whether i is out at now.
func (s *Set) Ejected(i int, now time.Time) bool { return s.all[i].until.Load() > now.UnixNano() }
