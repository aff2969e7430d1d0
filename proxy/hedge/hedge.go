// Package hedge decides when a read is sent a second time because its answer is late (I8): after the time that 95 of 100
// answers take.
//
//	t.Observe(took, now)                        // of every first attempt
//	if after, ok := t.After(now); ok { … }      // wait for so long, then ask another endpoint
//
// How many may be sent is the budget's matter (package retry).
package hedge

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// The latencies that count are those of the last five to ten seconds.
const (
	part     = 5 * time.Second
	enough   = 50 // answers; who knows less doesn't hedge
	rank     = 95 // percent
	judgedBy = 100 * time.Millisecond
	// Least is the earliest moment of a hedge: below it a second request costs more than it saves.
	Least = time.Millisecond
)

// Buckets: eight an octave, from 64 µs to over a minute.
const (
	steps   = 8
	first   = 16 // 2^16 ns
	buckets = 21 * steps
)

// Tail keeps the latencies of an upstream. The zero value is ready. Its methods may be called from many goroutines.
type Tail struct {
	number atomic.Int64 // of the part that now counts
	counts [2][buckets]atomic.Uint32
	judged atomic.Int64 // unix nanoseconds
	after  atomic.Int64 // nanoseconds; 0 = not known
}

// Observe takes in how long a first attempt took, or how long it had taken when it was given up for its hedge.
func (t *Tail) Observe(took time.Duration, now time.Time) {
	n := now.UnixNano() / int64(part)
	if old := t.number.Load(); old != n && t.number.CompareAndSwap(old, n) {
		fresh := &t.counts[n&1]
		for i := range fresh {
			fresh[i].Store(0)
		}
		if old != n-1 {
			stale := &t.counts[(n+1)&1]
			for i := range stale {
				stale[i].Store(0)
			}
		}
	}
	t.counts[n&1][bucket(took)].Add(1)
}

// bucket is the number of the bucket that holds d.
func bucket(d time.Duration) int {
	v := uint64(max(d, 1))
	octave := bits.Len64(v) - 1
	if octave < first {
		return 0
	}
	step := v >> (octave - 3) & (steps - 1)
	return min((octave-first)*steps+int(step), buckets-1)
}

// upper is the upper end of a bucket.
func upper(i int) time.Duration {
	octave, step := i/steps+first, i%steps
	return time.Duration(uint64(steps+step+1) << (octave - 3))
}

// After is how long to wait for an answer; ok is false as long as too little is known.
func (t *Tail) After(now time.Time) (after time.Duration, ok bool) {
	at := now.UnixNano()
	if was := t.judged.Load(); at-was >= int64(judgedBy) && t.judged.CompareAndSwap(was, at) {
		t.after.Store(int64(t.judge()))
	}
	after = time.Duration(t.after.Load())
	return after, after > 0
}

func (t *Tail) judge() time.Duration {
	total, n := uint64(0), [buckets]uint64{}
	for i := range n {
		n[i] = uint64(t.counts[0][i].Load()) + uint64(t.counts[1][i].Load())
		total += n[i]
	}
	if total < enough {
		return 0
	}
	seen := uint64(0)
	for i, one := range n {
		if seen += one; seen*100 >= total*rank {
			return max(upper(i), Least)
		}
	}
	return 0
}
