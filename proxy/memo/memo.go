// Package memo remembers answers by the hash of what was asked, in a bounded table that strangers can't grow.
//
//	known := memo.New[Answer](1<<14, 16<<20)
//	h := memo.NewHash(tenant)
//	key := h.Text(policy).Bytes(token).Key()                     // the token itself is not kept
//	if a, holds := known.Get(key, now); holds { … }              // 0 allocations
//	known.Put(key, answer, size, until, now)                     // times in Unix ns
//	known.Forget(func(a *Answer) bool { return … })
//
// An answer holds from when it was put until its time is over. What was put at a time that has not come yet is asked for again: a
// clock that is set back, by however much, makes an answer hold for as long again at most.
//
// At the bound: a key has one set of four places. A new answer takes the place of its own key, an empty one, one whose time is
// over, or else one by the key's hash, whose answer is asked for again when it is needed. Beyond the bytes that all answers
// together may have, an answer that would add to them is not kept.
package memo

import (
	"crypto/sha256"
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

const ways = 4

// early is how much sooner than it was put an answer may be found, in ns: the time of a request is read before it waits, and clocks
// are set back a little now and then.
const early = 10e9

// Key is the SHA-256 of everything that an answer depends on.
type Key [sha256.Size]byte

// Hash collects the parts of a key. Each is preceded by its length, so that no two lists of parts have one key.
type Hash struct {
	buf [256]byte // how often it was folded, then the hash of what it held before, if it was, then parts
	n   int
}

// NewHash begins a key with the tenant, which is part of every key (A10).
func NewHash(tenant string) (h Hash) {
	h.n = 1
	h.Text(tenant)
	return h
}

// Text adds a part.
func (h *Hash) Text(s string) *Hash { return h.Bytes(unsafe.Slice(unsafe.StringData(s), len(s))) }

// Bytes adds a part. A long one stands there as its own hash.
func (h *Hash) Bytes(b []byte) *Hash {
	n := uint64(len(b))
	if len(b) <= sha256.Size {
		return h.add(0, n, b)
	}
	sum := sha256.Sum256(b)
	return h.add(1, n, sum[:])
}

// None adds a part that is not there, which is something else than an empty one.
func (h *Hash) None() *Hash { return h.add(2, 0, nil) }

func (h *Hash) add(kind byte, n uint64, b []byte) *Hash {
	if h.n+9+len(b) > len(h.buf) {
		sum := h.Key()
		h.buf[0]++
		h.n = 1 + copy(h.buf[1:], sum[:])
	}
	h.buf[h.n] = kind
	binary.LittleEndian.PutUint64(h.buf[h.n+1:], n)
	h.n += 9 + copy(h.buf[h.n+9:], b)
	return h
}

// Key is the key of the parts so far. At most some 1,000 parts have one, which no caller comes near.
func (h *Hash) Key() Key { return sha256.Sum256(h.buf[:h.n]) }

// Table is safe for any number of goroutines.
type Table[V any] struct {
	mask  uint64
	most  int64
	sets  []set[V]
	bytes atomic.Int64
}

type set[V any] [ways]atomic.Pointer[entry[V]]

// entry is immutable.
type entry[V any] struct {
	key   Key
	since int64
	until int64 // exclusive
	size  int64
	value V
}

// New makes a table of at least capacity places whose answers have most bytes together.
func New[V any](capacity int, most int64) *Table[V] {
	n := uint64(16)
	for int(n)*ways < capacity && n < 1<<20 {
		n *= 2
	}
	return &Table[V]{mask: n - 1, most: most, sets: make([]set[V], n)}
}

// Get is the answer and whether it holds at now; nil = not known. An answer that doesn't hold is given too, as long as nothing has
// taken its place: it says what was right.
func (t *Table[V]) Get(k Key, now int64) (v *V, holds bool) {
	s := t.at(k)
	for i := range s {
		if e := s[i].Load(); e != nil && e.key == k {
			return &e.value, e.since-early <= now && now < e.until
		}
	}
	return nil, false
}

// Put remembers the answer, of size bytes, for the key, from now until then; kept says whether there was room.
func (t *Table[V]) Put(k Key, v V, size int, until, now int64) (kept bool) {
	e := &entry[V]{key: k, since: now, until: until, size: int64(size), value: v}
	place, old := t.victim(k, now)
	grows := e.size
	if old != nil {
		grows -= old.size
	}
	if grows > 0 && t.bytes.Load()+grows > t.most {
		return false
	}
	if kept = place.CompareAndSwap(old, e); kept {
		t.bytes.Add(grows)
	}
	return kept
}

// Drop forgets the answer for the key.
func (t *Table[V]) Drop(k Key) {
	s := t.at(k)
	for i := range s {
		if e := s[i].Load(); e != nil && e.key == k {
			t.clear(&s[i], e)
		}
	}
}

// Forget drops the answers that drop names; nil = all of them.
func (t *Table[V]) Forget(drop func(*V) bool) {
	for i := range t.sets {
		for j := range t.sets[i] {
			if e := t.sets[i][j].Load(); e != nil && (drop == nil || drop(&e.value)) {
				t.clear(&t.sets[i][j], e)
			}
		}
	}
}

func (t *Table[V]) clear(place *atomic.Pointer[entry[V]], e *entry[V]) {
	if place.CompareAndSwap(e, nil) {
		t.bytes.Add(-e.size)
	}
}

func (t *Table[V]) at(k Key) *set[V] { return &t.sets[binary.LittleEndian.Uint64(k[:])&t.mask] }

// victim chooses the place for the key: its own, else an empty or outdated one, else one by hash.
func (t *Table[V]) victim(k Key, now int64) (*atomic.Pointer[entry[V]], *entry[V]) {
	s := t.at(k)
	choice := &s[k[8]%ways]
	old := choice.Load()
	for i := range s {
		held := s[i].Load()
		if held != nil && held.key == k {
			return &s[i], held
		}
		if held == nil || held.until <= now {
			choice, old = &s[i], held
		}
	}
	return choice, old
}
