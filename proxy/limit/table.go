package limit

import (
	"hash/maphash"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/cellgate/cellgate/proxy/prefetch"
)

const (
	ways   = 7
	groups = 1 << 10 // overflow buckets
	tries  = 64      // rounds of contention before the overflow bucket decides
	tick   = 1e6     // ns

	busy = math.MaxInt64 // a place whose key is being replaced; an empty place's is 0, a bucket that has always been full
)

// Table holds the buckets of one node. It is safe for any number of goroutines and never allocates after New.
type Table struct {
	seed     maphash.Seed
	empty    uint64 // hash of no name
	mask     uint64
	latest   atomic.Int64 // the latest now that a caller has brought, to within a tick
	sets     []set
	overflow [groups]atomic.Int64
}

// set holds the places of the keys that hash to it. A place's tat is the only word that changes in place.
// Invariant: while a place's tat is t ≠ busy, its key is the one for which t was written; a replacement writes busy,
// then the key, then a t larger than the one it found. So a compare-and-swap from t succeeds only for the right key.
// (A refund lowers t; for it to matter, the place would have to change hands and come to the same nanosecond again
// between two instructions of another goroutine, and one token would be charged to the wrong key.)
//
// The places of a set fill two cache lines, so that a bucket that nobody has asked for lately costs two misses.
type set struct {
	key    [ways]atomic.Uint64
	insert atomic.Bool // held by the one goroutine that adds a key to this set
	_      [4]byte
	tat    [ways]atomic.Int64
	_      [8]byte
}

// New makes a table of at least capacity places, 18 bytes each; the number of its sets is a power of two, at least 16.
// Nothing is written: memory is filled as callers come.
func New(capacity int) *Table {
	n := uint64(16)
	for int(n)*ways < capacity && n < 1<<24 {
		n *= 2
	}
	t := &Table{seed: maphash.MakeSeed(), mask: n - 1, sets: make([]set, n)}
	t.empty = maphash.String(t.seed, "")
	return t
}

// at is now, or a later time that is known: whoever was held up after reading the clock must not ask a bucket that others
// have used meanwhile as if from the past, where it looks empty. It is called after the bucket has been read.
func (t *Table) at(now int64) int64 {
	last := t.latest.Load()
	if now > last+tick {
		t.latest.CompareAndSwap(last, now) // whoever was faster brought about the same
	}
	return max(now, last)
}

// Take asks for one request under the limit. Now is in nanoseconds of a monotonic clock that all callers share, from 0.
// Promise: over any time T, the requests admitted for one key are at most rate·T + burst.
func (t *Table) Take(k Key, l Limit, now int64) Decision {
	if l.None() {
		return Decision{OK: true, Remaining: math.MaxUint64}
	}
	s := t.set(k)
	for range tries {
		place := s.find(k)
		if place < 0 {
			if d, done := s.add(k, l, t.at(now)); done {
				return d
			}
			if s.crowded(t.at(now)) {
				break
			}
			continue
		}
		if d, done := t.spend(s, place, k, l, now); done {
			return d
		}
	}
	return t.spill(k, l, now)
}

// Refuses says whether Take would refuse the key now. It takes nothing.
func (t *Table) Refuses(k Key, l Limit, now int64) bool {
	s := t.set(k)
	i := s.find(k)
	if l.None() || i < 0 {
		return false
	}
	tat := s.tat[i].Load()
	if tat == busy || s.key[i].Load() != k.id {
		return false
	}
	_, d := l.admit(tat, t.at(now))
	return !d.OK
}

// Refund gives back what Take has just admitted, for a request that another limit refused.
func (t *Table) Refund(k Key, l Limit, d Decision) {
	if l.None() || !d.OK {
		return
	}
	if d.Overflow {
		t.overflow[k.group%groups].Add(-l.interval)
		return
	}
	s := t.set(k)
	i := s.find(k)
	if i < 0 {
		return
	}
	tat := s.tat[i].Load()
	if tat != busy && tat >= l.interval && s.key[i].Load() == k.id {
		s.tat[i].CompareAndSwap(tat, tat-l.interval) // lost only when the bucket is in use at this instant: stricter, never looser
	}
}

// Memory is what the table's places fill, for nobody to look at: its pages may be asked to be large.
func (t *Table) Memory() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(t.sets))), len(t.sets)*int(unsafe.Sizeof(set{})))
}

// Foresee asks the memory for the key's bucket, for a Take that comes soon.
func (t *Table) Foresee(k Key) {
	s := t.set(k)
	prefetch.Line(unsafe.Pointer(&s.key))
	prefetch.Line(unsafe.Pointer(&s.tat))
}

// set is where the key has its place. The lowest bit of every id is set, so the highest ones choose.
func (t *Table) set(k Key) *set { return &t.sets[k.id>>40&t.mask] }

func (s *set) find(k Key) int {
	for i := range ways {
		if s.key[i].Load() == k.id {
			return i
		}
	}
	return -1
}

// spend takes from the bucket at the place; done is false when another goroutine was faster.
func (t *Table) spend(s *set, i int, k Key, l Limit, now int64) (d Decision, done bool) {
	tat := s.tat[i].Load()
	if tat == busy || s.key[i].Load() != k.id {
		return Decision{}, false
	}
	next, d := l.admit(tat, t.at(now))
	if next == tat {
		return d, true
	}
	return d, s.tat[i].CompareAndSwap(tat, next)
}

// add gives the key a place that is empty or whose bucket is full; done is false when there was none or the set was held.
func (s *set) add(k Key, l Limit, now int64) (d Decision, done bool) {
	if !s.insert.CompareAndSwap(false, true) {
		return Decision{}, false
	}
	defer s.insert.Store(false)
	if s.find(k) >= 0 {
		return Decision{}, false
	}
	for i := range ways {
		old := s.tat[i].Load()
		if old > now || !s.tat[i].CompareAndSwap(old, busy) {
			continue
		}
		s.key[i].Store(k.id)
		next, d := l.admit(now, now)
		s.tat[i].Store(next)
		return d, true
	}
	return Decision{}, false
}

// crowded says that no place of the set is free at now.
func (s *set) crowded(now int64) bool {
	for i := range ways {
		if s.tat[i].Load() <= now {
			return false
		}
	}
	return true
}

// spill decides by the overflow bucket that the keys of a group without a place share.
func (t *Table) spill(k Key, l Limit, now int64) Decision {
	cell := &t.overflow[k.group%groups]
	for {
		tat := cell.Load()
		next, d := l.admit(tat, t.at(now))
		d.Overflow = true
		if !d.OK || cell.CompareAndSwap(tat, next) {
			return d
		}
	}
}
