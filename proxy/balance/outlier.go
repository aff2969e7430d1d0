package balance

import (
	"sync/atomic"
	"time"
)

// Outlier are the rules by which an endpoint is taken out for a time (I3). Zero values are the defaults.
type Outlier struct {
	Off bool
	// Consecutive failures eject; 5.
	Consecutive int
	// Rate of failures, in percent of at least Calls in the last five to ten seconds, ejects as well, unless the others fail
	// more often than one time in ten; 50.
	Rate  int
	Calls int // 20
	// For is how long the first ejection lasts; the n-th n times as long, up to ten times. Every two For
	// without another take one back. 30 s.
	For time.Duration
	// Most is the share of the set, in percent, that may be out, counted with the one to be ejected; 50.
	Most int
}

// The defaults.
const (
	FailuresToEject = 5
	EjectFor        = 30 * time.Second
	rateToEject     = 50
	callsToEject    = 20
	mostEjected     = 50

	maxEjections = 10
	// When the rest of the set fails too, it isn't the endpoint: then only a run this much longer convicts.
	stormFactor = 5
	stormShare  = fixedOne / 20
)

func (o Outlier) orDefault() Outlier {
	usual := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	usual(&o.Consecutive, FailuresToEject)
	usual(&o.Rate, rateToEject)
	usual(&o.Calls, callsToEject)
	usual(&o.Most, mostEjected)
	if o.For == 0 {
		o.For = EjectFor
	}
	return o
}

// ejection is how an endpoint's time out came about. Written by: whoever holds the set's lock.
type ejection struct {
	count atomic.Int64 // ejections in a row
	begun atomic.Int64 // unix nanoseconds
}

// expel ejects at now.
func (e *endpoint) expel(now int64, each time.Duration) {
	n := e.out.count.Load()
	if good := (now - e.until.Load()) / (2 * int64(each)); good > 0 {
		n = max(0, n-good)
	}
	n = min(n+1, maxEjections)
	e.out.count.Store(n)
	e.out.begun.Store(now)
	e.until.Store(now + n*int64(each))
}

// readmit ends an ejection when an attempt that began during it has succeeded: with the rest of the set failing, it was the
// last resort, and there is nothing to wait for.
func (e *endpoint) readmit(now, took int64) bool {
	until := e.until.Load()
	return until > now && now-took >= e.out.begun.Load() && e.until.CompareAndSwap(until, now)
}

// window counts the results of five seconds.
type window struct {
	part       atomic.Int32 // number of the five seconds
	calls, bad atomic.Int32
}

const windowPart = int64(5 * time.Second)

// count takes in a result.
func (e *endpoint) count(ok bool, now int64) {
	w := &e.recent
	if part := int32(now / windowPart); part != w.part.Load() {
		e.before.calls.Store(w.calls.Swap(0))
		e.before.bad.Store(w.bad.Swap(0))
		e.before.part.Store(w.part.Swap(part))
	}
	w.calls.Add(1)
	if !ok {
		w.bad.Add(1)
	}
}

// rate is the share of failures in percent in the last five to ten seconds, once there are enough calls.
func (e *endpoint) rate(calls int) (percent int, enough bool) {
	n, bad := int(e.recent.calls.Load()), int(e.recent.bad.Load())
	if e.before.part.Load() == e.recent.part.Load()-1 {
		n += int(e.before.calls.Load())
		bad += int(e.before.bad.Load())
	}
	if n < calls {
		return 0, false
	}
	return bad * 100 / n, true
}

// convict ejects an endpoint that has failed once more, if the rules say so and there is room.
func (s *Set) convict(i int, e *endpoint, now int64) bool {
	o := &s.spec.Outlier
	if o.Off || e.until.Load() > now {
		return false
	}
	run := int(e.streak.Load())
	others := s.others(i, now)
	guilty := run >= o.Consecutive && (others <= stormShare || run >= stormFactor*o.Consecutive)
	if rate, enough := e.rate(o.Calls); !guilty && enough && rate >= o.Rate {
		guilty = others <= 2*stormShare
	}
	return guilty && s.eject(i, now)
}

// others is how the rest of the set fails, as a ratio.
func (s *Set) others(but int, now int64) int64 {
	v := s.now.Load()
	var sum, n int64
	for i, e := range v.all {
		if i == but || !v.seats[i].in || e.until.Load() > now {
			continue // who is out has been judged, and hears nothing more
		}
		n++
		sum += int64(e.failing.Load())
	}
	if n == 0 {
		return 0
	}
	return sum / n
}

// eject takes i out unless too many would be out then.
func (s *Set) eject(i int, now int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := s.now.Load()
	out, n := 1, 0
	for j, e := range v.all {
		if !v.seats[j].in {
			continue
		}
		n++
		if j != i && e.until.Load() > now {
			out++
		}
	}
	e := v.all[i]
	if out*100 > n*s.spec.Outlier.Most || e.until.Load() > now {
		return false
	}
	e.expel(now, s.spec.Outlier.For)
	e.since.Store(e.until.Load())
	e.streak.Store(0)
	s.ejections.Add(1)
	s.news.Add(1)
	return true
}

// Ejected says whether i is out at now.
func (s *Set) Ejected(i int, now time.Time) bool {
	return s.now.Load().all[i].until.Load() > now.UnixNano()
}

// Ejections is how many there were.
func (s *Set) Ejections() uint64 { return s.ejections.Load() }

// Count says how many endpoints there are, how many of them are out for failing, and how many down.
func (s *Set) Count(now time.Time) (all, ejected, down int) {
	v := s.now.Load()
	for i, e := range v.all {
		if !v.seats[i].in {
			continue
		}
		all++
		if e.until.Load() > now.UnixNano() {
			ejected++
		}
		if e.down.Load() {
			down++
		}
	}
	return all, ejected, down
}

// Load is how many exchanges are under way in a tier.
func (s *Set) Load(tier int) int { return int(s.load[tier].Load()) }

// Mark takes in what active probes say of i: down, or up again. What is down counts against no share of ejected ones.
func (s *Set) Mark(i int, down bool, now time.Time) {
	e := s.now.Load().all[i]
	if e.down.Swap(down) == down {
		return
	}
	if !down {
		e.since.Store(now.UnixNano())
		e.until.Store(min(e.until.Load(), now.UnixNano()))
	}
	s.news.Add(1)
}

// Down says what active probes said last.
func (s *Set) Down(i int) bool { return s.now.Load().all[i].down.Load() }

// Bar keeps every exchange from a slice until then.
func (s *Set) Bar(slice int, until time.Time) {
	s.bars[slice].Store(until.UnixNano())
	s.news.Add(1)
}
