package shed

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// Rule says how many exchanges may be under way.
type Rule struct {
	// Most is the bound; with Adaptive the highest that it may come to.
	Most int
	// Adaptive finds the bound between Least and Most by how long exchanges take.
	Adaptive bool
	Least    int
}

// Limit bounds the exchanges under way at one upstream. The adaptive bound is moved once a window: down when
// exchanges take longer than usual, which says that they queue, or when they fail, and up otherwise.
//
// The zero value with a Rule is ready; an adaptive one begins low.
type Limit struct {
	Rule Rule

	under atomic.Int64
	bound atomic.Int64 // thousandths; 0 = not begun
	shed  [Classes]atomic.Uint64

	// The window.
	begun          atomic.Int64 // unix nanoseconds
	calls, bad     atomic.Int64
	total, deepest atomic.Int64 // nanoseconds, exchanges

	mu      sync.Mutex
	usual   float64 // nanoseconds that an exchange takes when nothing queues
	windows int
	kept    float64 // the bound, while a look is taken below it
}

// How an adaptive bound moves.
const (
	firstBound  = 20
	windowTime  = 100 * time.Millisecond
	windowCalls = 20
	tolerance   = 1.5 // latency may be this many times the usual
	deepestCut  = 0.5 // of a bound, in one window
	// Every so many windows the bound is halved for two of them, the second of which shows what is usual now.
	lookEvery = 100
)

// Enter lets an exchange in. Leave must follow if it did.
func (l *Limit) Enter(c Class) bool {
	if n := l.under.Add(1); n > (l.Bound()*upTo(c)+99)/100 {
		l.under.Add(-1)
		l.shed[c].Add(1)
		return false
	}
	return true
}

// Leave ends an exchange that has taken so long with the upstream; ok unless the upstream failed. What took no time says nothing.
func (l *Limit) Leave(took time.Duration, ok bool, now time.Time) {
	depth := l.under.Add(-1) + 1
	if !l.Rule.Adaptive || took <= 0 {
		return
	}
	if l.calls.Add(1); !ok {
		l.bad.Add(1)
	}
	l.total.Add(int64(took))
	if depth > l.deepest.Load() {
		l.deepest.Store(depth)
	}
	begun := l.begun.Load()
	if begun == 0 {
		l.begun.CompareAndSwap(0, now.UnixNano())
	} else if now.UnixNano()-begun >= int64(windowTime) && l.calls.Load() >= windowCalls && l.begun.CompareAndSwap(begun, now.UnixNano()) {
		l.turn()
	}
}

// turn ends a window.
func (l *Limit) turn() {
	l.mu.Lock()
	defer l.mu.Unlock()
	calls, bad, total, deepest := l.calls.Swap(0), l.bad.Swap(0), l.total.Swap(0), l.deepest.Swap(0)
	if calls == 0 {
		return
	}
	mean := float64(total) / float64(calls)
	bound := l.exact()
	switch l.windows++; {
	case l.windows == lookEvery:
		l.kept = bound
		bound /= 2
	case l.windows == lookEvery+1: // what began before is still coming in
	case l.windows > lookEvery+1:
		l.usual, bound, l.windows = mean, l.kept, 0
	default:
		if l.usual == 0 || mean < l.usual {
			l.usual = mean
		}
		bound = next(bound, mean/l.usual, float64(bad)/float64(calls), deepest, l.Rule)
	}
	l.bound.Store(int64(1000 * min(float64(l.Rule.Most), max(float64(l.Rule.Least), 1, bound))))
}

// next is the bound after one of these: latency over the usual one, the part of failures, and the most that were under way.
// A bound that was not used to the half says nothing when it holds: it doesn't grow.
func next(bound, slower, failing float64, deepest int64, r Rule) float64 {
	cut := max(deepestCut, min(1, tolerance/max(slower, 1e-9)))
	after := bound*cut + math.Sqrt(bound)
	if failing > 0.1 {
		after = bound * 0.9
	}
	if after > bound && float64(deepest) < bound/2 {
		after = bound
	}
	after = 0.8*bound + 0.2*after // one window is no proof
	return min(float64(r.Most), max(float64(r.Least), after))
}

// Bound is how many may be under way.
func (l *Limit) Bound() int64 {
	if !l.Rule.Adaptive {
		return int64(l.Rule.Most)
	}
	return int64(l.exact())
}

func (l *Limit) exact() float64 {
	if b := l.bound.Load(); b > 0 {
		return float64(b) / 1000
	}
	return float64(min(l.Rule.Most, max(l.Rule.Least, firstBound)))
}

// Under is how many are under way.
func (l *Limit) Under() int64 { return l.under.Load() }

// Shed is how many of a class were not let in.
func (l *Limit) Shed(c Class) uint64 { return l.shed[c].Load() }
