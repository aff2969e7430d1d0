package meter

import (
	"hash/maphash"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// table numbers the first keys that come, 1 … max; the others are number 0. Reading takes no lock.
type table struct {
	max  int
	seed maphash.Seed
	mu   sync.Mutex // guards the replacement of keys, and free
	keys atomic.Pointer[directory]
	free []int
	full atomic.Bool // no number is free: newcomers needn't ask for the lock
}

// directory is the keys that have numbers, as a map and for the requests' look-ups. It is immutable but for the places' seen.
type directory struct {
	all   map[pair]*place
	slots []*place // by hash: open addressing, linear probing, at most half full; their number is a power of two
}

// place is one number in use. Seen is when it was last asked for, in Unix seconds.
type place struct {
	key    pair
	hash   uint64
	number int
	seen   atomic.Int64
}

func newTable(most int) *table {
	t := &table{max: most, seed: maphash.MakeSeed()}
	for n := most; n > 0; n-- {
		t.free = append(t.free, n)
	}
	t.keys.Store(newDirectory(map[pair]*place{}))
	return t
}

func newDirectory(all map[pair]*place) *directory {
	n := 2
	for n < 2*len(all) {
		n *= 2
	}
	d := &directory{all, make([]*place, n)}
	for _, p := range all {
		at := p.hash
		for d.slots[at%uint64(n)] != nil {
			at++
		}
		d.slots[at%uint64(n)] = p
	}
	return d
}

func (d *directory) find(hash uint64, k pair) *place {
	for at := hash; ; at++ {
		p := d.slots[at&uint64(len(d.slots)-1)]
		if p == nil || p.hash == hash && p.key == k {
			return p
		}
	}
}

func (t *table) hash(k pair) uint64 {
	h := maphash.String(t.seed, k.name)
	if k.tenant != "" {
		h = h*0x9E3779B97F4A7C15 ^ maphash.String(t.seed, k.tenant)
	}
	return h
}

// number is that of the key, which may point into a request's buffer.
func (t *table) number(k pair, now time.Time) int {
	hash := t.hash(k)
	p := t.keys.Load().find(hash, k)
	if p == nil {
		if t.full.Load() {
			return 0
		}
		return t.add(hash, k, now)
	}
	if at := now.Unix(); p.seen.Load() != at {
		p.seen.Store(at)
	}
	return p.number
}

// find is the number of a key that has one, else 0.
func (t *table) find(k pair) int {
	if p := t.keys.Load().find(t.hash(k), k); p != nil {
		return p.number
	}
	return 0
}

func (t *table) add(hash uint64, k pair, now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := t.keys.Load()
	if p := old.all[k]; p != nil {
		return p.number
	}
	if len(t.free) == 0 { // it may have been taken in this moment
		return 0
	}
	p := &place{key: pair{strings.Clone(k.tenant), strings.Clone(k.name)}, hash: hash, number: t.free[len(t.free)-1]}
	p.seen.Store(now.Unix())
	t.free = t.free[:len(t.free)-1]
	t.full.Store(len(t.free) == 0)
	next := maps.Clone(old.all)
	next[p.key] = p
	t.keys.Store(newDirectory(next))
	return p.number
}

// expire takes the keys away that were last seen before the time, and gives their numbers. The caller clears what it
// counted under them, and then hands them back with release.
func (t *table) expire(before time.Time) (numbers []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := maps.Clone(t.keys.Load().all)
	for k, p := range next {
		if p.seen.Load() < before.Unix() {
			delete(next, k)
			numbers = append(numbers, p.number)
		}
	}
	if len(numbers) > 0 {
		t.keys.Store(newDirectory(next))
	}
	return numbers
}

func (t *table) release(numbers []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, numbers...)
	t.full.Store(len(t.free) == 0)
}
