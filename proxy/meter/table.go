package meter

import (
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// table numbers the first keys that come, 1 … max; the others are number 0. Reading takes no lock.
type table[K comparable] struct {
	max  int
	mu   sync.Mutex // guards the replacement of keys, and free
	keys atomic.Pointer[map[K]*place]
	free []int
	full atomic.Bool // no number is free: newcomers needn't ask for the lock
}

// place is one number in use. Seen is when it was last asked for, in Unix seconds.
type place struct {
	number int
	seen   atomic.Int64
}

func newTable[K comparable](most int) *table[K] {
	t := &table[K]{max: most}
	for n := most; n > 0; n-- {
		t.free = append(t.free, n)
	}
	t.keys.Store(&map[K]*place{})
	return t
}

// number is that of the key, which may point into a request's buffer.
func (t *table[K]) number(k K, now time.Time) int {
	p := (*t.keys.Load())[k]
	if p == nil {
		if t.full.Load() {
			return 0
		}
		return t.add(k, now)
	}
	if at := now.Unix(); p.seen.Load() != at {
		p.seen.Store(at)
	}
	return p.number
}

// find is the number of a key that has one, else 0.
func (t *table[K]) find(k K) int {
	if p := (*t.keys.Load())[k]; p != nil {
		return p.number
	}
	return 0
}

func (t *table[K]) add(k K, now time.Time) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	old := *t.keys.Load()
	if p := old[k]; p != nil {
		return p.number
	}
	if len(t.free) == 0 { // it may have been taken in this moment
		return 0
	}
	p := &place{number: t.free[len(t.free)-1]}
	p.seen.Store(now.Unix())
	t.free = t.free[:len(t.free)-1]
	t.full.Store(len(t.free) == 0)
	next := maps.Clone(old)
	next[own(k)] = p
	t.keys.Store(&next)
	return p.number
}

// own copies the strings of a key out of whatever buffer they point into.
func own[K comparable](k K) K {
	if p, ok := any(&k).(*pair); ok {
		p.tenant, p.name = strings.Clone(p.tenant), strings.Clone(p.name)
	}
	return k
}

// expire takes the keys away that were last seen before the time, and gives their numbers. The caller clears what it
// counted under them, and then hands them back with release.
func (t *table[K]) expire(before time.Time) (numbers []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	next := maps.Clone(*t.keys.Load())
	for k, p := range next {
		if p.seen.Load() < before.Unix() {
			delete(next, k)
			numbers = append(numbers, p.number)
		}
	}
	if len(numbers) > 0 {
		t.keys.Store(&next)
	}
	return numbers
}

func (t *table[K]) release(numbers []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.free = append(t.free, numbers...)
	t.full.Store(len(t.free) == 0)
}
