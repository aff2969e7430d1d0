// Package balance chooses one endpoint of a set: near ones first, then by load and latency, in turn, or by a key; and it
// takes endpoints out that fail where others don't.
//
//	s := balance.New(balance.Spec{Method: balance.P2C}, members)
//	i := s.Pick(balance.Ask{Now: now, Random: random})   // -1: the set is empty or all were tried
//	s.Begin(i); …; s.End(i, ok, took, now)
//
// Time and chance are the caller's. Endpoints have numbers, which stay as long as the set lives: one that leaves keeps its
// number, and gets it again when it comes back.
package balance

import (
	"sync"
	"sync/atomic"
	"time"
)

// Method is how Pick chooses among endpoints that are equally near.
type Method uint8

// The methods. The zero value is P2C.
const (
	P2C           Method = iota // the better of two at random, by load times latency (smoothed)
	P2CPeak                     // the same with a latency that jumps up at once and sinks slowly
	RoundRobin                  // in turn
	LeastRequests               // the one with the fewest exchanges under way
	Hash                        // by the key, within a bound on each one's load
)

// Spec is how a set chooses. The zero value is P2C without slow start and spilling, with the default rules of ejection.
type Spec struct {
	Method Method
	// Bound is the most that hashing gives one endpoint, in percent of the mean; 0 = 125.
	Bound int
	// SlowStart is how long an endpoint that is new, or in again, gets less than its part; 0 = not at all.
	SlowStart time.Duration
	// Places are how many exchanges all endpoints together are good for at a time, each for its part. A tier that fills up
	// spills to the next; 0 = never.
	Places int
	// Outlier are the rules of ejection.
	Outlier Outlier
}

// Member is what a set knows of an endpoint from outside.
type Member struct {
	// ID is the same on every node: keys are hashed with it.
	ID uint64
	// Tier is how far it is: 0 near, Tiers-1 far.
	Tier int
	// Slice is the part of the set that it belongs to, of at most Slices.
	Slice int
}

// Bounds of a set.
const (
	Tiers  = 3
	Slices = 64
	// MaxMembers are the numbers that a set can give.
	MaxMembers = 4096
)

// Set is the live state of an upstream's endpoints. Its methods may be called from many goroutines; the counters are
// approximate under races, which a choice by comparison tolerates.
type Set struct {
	spec      Spec
	next      atomic.Uint64
	load      [Tiers]atomic.Int64 // exchanges under way
	bars      [Slices]atomic.Int64
	ejections atomic.Uint64
	news      *atomic.Uint64 // counts what makes a view old; shared with the sets that share endpoints
	now       atomic.Pointer[view]
	mu        sync.Mutex // of changes to the view
}

// endpoint is what is known of one. Sets of one upstream share it. What every exchange touches lies on one cache line.
type endpoint struct {
	inflight atomic.Int32
	failing  atomic.Int32 // moving failure ratio, 0…fixedOne
	streak   atomic.Int32 // consecutive failures
	recent   window
	latency  atomic.Int64 // nanoseconds, moving average of successes
	told     atomic.Int64 // unix nanoseconds of the last result
	since    atomic.Int64 // unix nanoseconds; it is being started slowly from then
	until    atomic.Int64 // unix nanoseconds; ejected before that

	out    ejection
	before window // the five seconds ahead of recent
	down   atomic.Bool
	_      [40]byte // endpoints don't share a line: an allocation of 128 bytes is aligned to them
}

// New makes a set of these endpoints, all in. They are not new in the sense of SlowStart: a set that begins has no others.
func New(spec Spec, members []Member) *Set {
	s := &Set{spec: spec, news: new(atomic.Uint64)}
	s.spec.Outlier = spec.Outlier.orDefault()
	v := &view{}
	for _, m := range members {
		v.add(m, new(endpoint))
	}
	s.now.Store(v.judge(s, 0))
	return s
}

// Adopt makes endpoint i of s and endpoint j of from the same one: what is known of it, and its requests in flight, are
// shared from then on. Call it before s is used.
func (s *Set) Adopt(i int, from *Set, j int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.now.Load().clone()
	v.all[i] = from.now.Load().all[j]
	s.news = from.news
	s.now.Store(v.judge(s, 0))
}

// Grow adds an endpoint, at now, and gives its number; -1 = there are no more numbers.
func (s *Set) Grow(m Member, now time.Time) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.now.Load()
	if len(v.all) >= MaxMembers {
		return -1
	}
	v = v.clone()
	e := new(endpoint)
	e.since.Store(now.UnixNano())
	v.add(m, e)
	s.now.Store(v.judge(s, now.UnixNano()))
	return len(v.all) - 1
}

// Replace adds an endpoint, at now, under the number of one that has left for so long, with nothing under way, and that free
// doesn't object to. put is called before anybody hears of the number; -1 = there is none.
func (s *Set) Replace(m Member, gone time.Duration, now time.Time, free func(i int) bool, put func(i int)) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.now.Load()
	before := now.Add(-gone).UnixNano()
	for i, e := range v.all {
		if v.seats[i].in || v.seats[i].left > before || e.inflight.Load() != 0 || e.told.Load() > before || !free(i) {
			continue
		}
		put(i)
		v = v.clone()
		v.all[i], v.seats[i] = new(endpoint), seat{clamp(m), true, 0}
		v.all[i].since.Store(now.UnixNano())
		s.now.Store(v.judge(s, now.UnixNano()))
		return i
	}
	return -1
}

// In says whether the endpoint belongs to the set.
func (s *Set) In(i int) bool { return s.now.Load().seats[i].in }

// Have says which endpoints belong to the set, by number. One that comes back is started slowly.
func (s *Set) Have(in func(i int) bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.now.Load().clone()
	for i := range v.seats {
		was := v.seats[i].in
		v.seats[i].in = in(i)
		switch {
		case v.seats[i].in && !was:
			v.all[i].since.Store(now.UnixNano())
		case was && !v.seats[i].in:
			v.seats[i].left = now.UnixNano()
		}
	}
	s.now.Store(v.judge(s, now.UnixNano()))
}

// Begin counts an attempt at i as in flight.
func (s *Set) Begin(i int) {
	v := s.now.Load()
	v.all[i].inflight.Add(1)
	s.load[v.seats[i].Tier].Add(1)
}

// Cancel takes an attempt back that says nothing about the endpoint: the client left, or the gateway had no room.
func (s *Set) Cancel(i int) { s.leave(i) }

func (s *Set) leave(i int) *endpoint {
	v := s.now.Load()
	v.all[i].inflight.Add(-1)
	s.load[v.seats[i].Tier].Add(-1)
	return v.all[i]
}

// End finishes an attempt at i that began took ago: ok unless the connection failed or the answer was a 5xx. It says whether
// the endpoint was ejected by it.
func (s *Set) End(i int, ok bool, took time.Duration, now time.Time) (ejected bool) {
	e, at := s.leave(i), now.UnixNano()
	e.count(ok, at)
	if !ok {
		e.fail(fixedOne)
		e.told.Store(at)
		e.streak.Add(1)
		return s.convict(i, e, at)
	}
	if e.readmit(at, int64(took)) {
		e.since.Store(at)
		s.news.Add(1)
	}
	if e.streak.Load() != 0 {
		e.streak.Store(0)
	}
	e.fail(0)
	e.learn(s.spec.Method == P2CPeak, int64(took), at)
	e.told.Store(at)
	return false
}

const (
	fixedOne = 1 << 16 // failure ratios are in 1/65536
	ewmaBits = 4       // each result weighs 1/16
	// memory is how fast old results lose their weight: after this time without a new one, half of it.
	memory = 10 * time.Second
)

func (e *endpoint) fail(v int32) {
	old := e.failing.Load()
	if next := old + (v-old)>>ewmaBits; next != old { // a store that says nothing new costs as much as another
		e.failing.Store(next)
	}
}

// learn takes in how long a success took. By the peak rule a slower one counts at once, and a faster one by the time that
// has passed, so that an endpoint which begins to stall is left alone after its first slow answer.
func (e *endpoint) learn(peak bool, took, now int64) {
	old := e.latency.Load()
	switch {
	case old == 0, peak && took > old:
		e.latency.Store(took)
	case peak:
		e.latency.Store(old + int64(float64(took-old)*(1-faded(now-e.told.Load()))))
	default:
		e.latency.Store(old + (took-old)>>ewmaBits)
	}
}

// faded is what is left of the weight of something that is so old, in nanoseconds.
func faded(age int64) float64 {
	if age <= 0 {
		return 1
	}
	return float64(memory) / float64(int64(memory)+age)
}

// cost is expected waiting: load times latency, less the longer nothing was heard, so that who was slow once is tried again.
// Failing makes an endpoint dearer, up to 16-fold, so that one that fails fast does not attract traffic; a run of failures
// halves its weight on top (I3), and so does starting slowly.
func (s *Set) cost(e *endpoint, now int64) float64 {
	left := faded(now - e.told.Load())
	cost := float64(e.inflight.Load()+1) * max(float64(e.latency.Load())*left, float64(time.Millisecond))
	cost *= 1 + 15*left*float64(e.failing.Load())/fixedOne
	return cost / s.weight(e, now)
}

// weight is the part that an endpoint gets of what it would get otherwise: from a tenth up to 1 while it starts slowly, half
// after a run of failures.
func (s *Set) weight(e *endpoint, now int64) float64 {
	w := 1.0
	if since := e.since.Load(); since > 0 && s.spec.SlowStart > 0 {
		if age := now - since; age < int64(s.spec.SlowStart) {
			w = max(0.1, float64(age)/float64(s.spec.SlowStart))
		}
	}
	if int(e.streak.Load()) >= s.spec.Outlier.Consecutive {
		w /= 2
	}
	return w
}

// Failing says for how many endpoints of the slice the last result was a failure, and how many it has. One that is out counts
// as failing.
func (s *Set) Failing(slice int, now time.Time) (failing, all int) {
	v := s.now.Load()
	for i, seat := range v.seats {
		if !seat.in || seat.Slice != slice {
			continue
		}
		all++
		if e := v.all[i]; e.streak.Load() > 0 || e.until.Load() > now.UnixNano() {
			failing++
		}
	}
	return failing, all
}

// Slice is the slice of i.
func (s *Set) Slice(i int) int { return s.now.Load().seats[i].Slice }

// Len is how many numbers were given.
func (s *Set) Len() int { return len(s.now.Load().all) }
