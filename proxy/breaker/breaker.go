// Package breaker keeps exchanges from a part of an upstream that answers none of them (I9), and lets them back little by
// little.
//
//	if !b.Allow(&rule, random, now) { … 503, until b.Until() }
//	…
//	if b.Done(&rule, ok, took, now) && widespread { b.Open(&rule, now) }    // or b.Cancel()
//
//	        too many failures          time is up           all probes are well        time is up
//	closed ───────────────────▶ open ─────────────▶ probing ──────────────────▶ restoring ────────▶ closed
//	                             ▲◀──── a probe fails ──┘                           │
//	                             └◀──────────────── too many failures ──────────────┘
package breaker

import (
	"sync"
	"sync/atomic"
	"time"
)

// Rule says when a breaker opens and how it closes again.
type Rule struct {
	Off bool
	// More than Failures percent of at least Calls in Window open it.
	Failures int
	Calls    int
	Window   time.Duration
	// For is how long nobody passes then.
	For time.Duration
	// Probes are the exchanges that pass after that; all of them must be well.
	Probes int
	// Restore is the time over which the part of exchanges that pass grows from a tenth to all.
	Restore time.Duration
}

// State is where a breaker stands.
type State uint8

// The states.
const (
	Closed State = iota
	Open
	Probing
	Restoring
)

func (s State) String() string {
	return [...]string{"closed", "open", "probing", "restoring"}[s]
}

const parts = 10

// Breaker is one breaker. The zero value is closed. Its methods may be called from many goroutines; while it is closed they take
// no lock, and counts are approximate under races.
type Breaker struct {
	state  atomic.Uint32
	until  atomic.Int64 // unix nanoseconds: of Open and Restoring their end, of Probing the patience with its probes
	window [parts]part
	opened atomic.Uint64

	mu    sync.Mutex
	since int64 // of the state; unix nanoseconds
	sent  int   // probes under way or answered
	well  int
}

type part struct {
	number atomic.Int64
	counts atomic.Uint64 // calls in the upper half, failures in the lower
}

// Allow says whether an exchange passes. It is a probe then if the breaker is probing, so one of Done and Cancel must follow.
func (b *Breaker) Allow(r *Rule, random uint64, now time.Time) bool {
	if r.Off || State(b.state.Load()) == Closed {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(r, now.UnixNano())
	switch State(b.state.Load()) {
	case Open:
		return false
	case Probing:
		if b.sent >= r.Probes {
			return false
		}
		b.sent++
	case Restoring:
		part := max(0.1, float64(now.UnixNano()-b.since)/float64(r.Restore))
		return float64(random>>11)/(1<<53) < part
	}
	return true
}

// apart is how much earlier a probe may seem to have begun than its breaker began to probe: the wall's clock, which since goes by, and
// the monotonic one, which times are measured with, are read one after the other, and loops read theirs once a turn. A breaker is
// open for longer than that, so nobody else can have begun within it.
const apart = int64(10 * time.Millisecond)

// advance goes on to the state that time has brought. Probes that were never heard of again are taken for lost.
func (b *Breaker) advance(r *Rule, now int64) {
	if now < b.until.Load() {
		return
	}
	switch State(b.state.Load()) {
	case Open, Probing:
		b.enter(Probing, now, r.For)
	case Restoring:
		b.enter(Closed, now, 0)
	}
}

func (b *Breaker) enter(s State, now int64, lasts time.Duration) {
	b.since, b.sent, b.well = now, 0, 0
	b.until.Store(now + int64(lasts))
	b.state.Store(uint32(s))
}

// Done takes in the result of an exchange that took so long. over says that too many have failed: whoever knows that it is not
// the fault of a single endpoint opens the breaker. What began before the breaker's state did says nothing about it.
func (b *Breaker) Done(r *Rule, ok bool, took time.Duration, now time.Time) (over bool) {
	if r.Off {
		return false
	}
	at := now.UnixNano()
	if State(b.state.Load()) == Closed {
		b.count(r, ok, at)
		return !ok && b.over(r, at)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if at-int64(took) < b.since-apart {
		return false
	}
	switch State(b.state.Load()) {
	case Probing:
		if !ok {
			b.open(r, at)
			return false
		}
		if b.well++; b.well >= r.Probes {
			b.clear()
			b.enter(Restoring, at, r.Restore)
		}
	case Restoring, Closed:
		b.count(r, ok, at)
		return !ok && b.over(r, at)
	}
	return false
}

// Cancel takes back an exchange that said nothing.
func (b *Breaker) Cancel() {
	if State(b.state.Load()) != Probing {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sent = max(b.well, b.sent-1)
}

// Open opens the breaker at now.
func (b *Breaker) Open(r *Rule, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := State(b.state.Load()); s == Closed || s == Restoring {
		b.open(r, now.UnixNano())
	}
}

func (b *Breaker) open(r *Rule, now int64) {
	b.opened.Add(1)
	b.enter(Open, now, r.For)
}

func (b *Breaker) count(r *Rule, ok bool, now int64) {
	number := now / (int64(r.Window) / parts)
	p := &b.window[uint64(number)%parts]
	if old := p.number.Load(); old != number && p.number.CompareAndSwap(old, number) {
		p.counts.Store(0)
	}
	if ok {
		p.counts.Add(1 << 32)
	} else {
		p.counts.Add(1<<32 | 1)
	}
}

func (b *Breaker) over(r *Rule, now int64) bool {
	oldest := now/(int64(r.Window)/parts) - parts
	var calls, failures uint64
	for i := range b.window {
		if p := &b.window[i]; p.number.Load() > oldest {
			n := p.counts.Load()
			calls += n >> 32
			failures += n & (1<<32 - 1)
		}
	}
	return calls >= uint64(r.Calls) && failures*100 > calls*uint64(r.Failures)
}

func (b *Breaker) clear() {
	for i := range b.window {
		b.window[i].number.Store(0)
	}
}

// State is where the breaker stands at now.
func (b *Breaker) State(r *Rule, now time.Time) State {
	if r.Off || State(b.state.Load()) == Closed {
		return Closed
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.advance(r, now.UnixNano())
	return State(b.state.Load())
}

// Until is when an open breaker lets its first probe pass; the zero Time when it isn't open.
func (b *Breaker) Until() time.Time {
	if State(b.state.Load()) != Open {
		return time.Time{}
	}
	return time.Unix(0, b.until.Load())
}

// Opened is how often it has opened.
func (b *Breaker) Opened() uint64 { return b.opened.Load() }
