package retry

import (
	"sync"
	"time"
)

// The budget per upstream and node (I7): retries of the last 10 s ≤ max(10% of the originals of the last 10 s, 3/s).
const (
	windowSeconds = 10
	share         = 10 // one retry per this many originals
	floor         = 3 * windowSeconds
	hedgeShare    = 20 // one hedge per this many originals (I8)
)

// Budget counts original requests and retries over the last ten seconds. It is shared by all exchanges of an upstream.
// The zero value is ready; a nil budget refuses.
type Budget struct {
	mu      sync.Mutex
	buckets [windowSeconds]bucket
}

type bucket struct {
	second             int64
	originals, retries uint32
	hedges             uint32 // which count among the retries as well
}

// Original counts a first attempt.
func (b *Budget) Original(now time.Time) {
	b.mu.Lock()
	b.at(now.Unix()).originals++
	b.mu.Unlock()
}

// Take takes one retry, or says that the budget is used up.
func (b *Budget) Take(now time.Time) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if originals, retries, _ := b.sum(now); retries >= max(originals/share, floor) {
		return false
	}
	b.at(now.Unix()).retries++
	return true
}

// Hedge takes one hedge, or says that the budget, or the part of it that hedges may have, is used up.
func (b *Budget) Hedge(now time.Time) bool {
	if b == nil {
		return false
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	originals, retries, hedges := b.sum(now)
	if retries >= max(originals/share, floor) || hedges >= originals/hedgeShare {
		return false
	}
	k := b.at(now.Unix())
	k.retries++
	k.hedges++
	return true
}

// Recent are the original requests, and what was sent beside them, of the last ten seconds. b may be nil.
func (b *Budget) Recent(now time.Time) (originals, repeats uint32) {
	if b == nil {
		return 0, 0
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	originals, repeats, _ = b.sum(now)
	return originals, repeats
}

func (b *Budget) sum(now time.Time) (originals, retries, hedges uint32) {
	for i := range b.buckets {
		if k := &b.buckets[i]; k.second > now.Unix()-windowSeconds && k.second <= now.Unix() {
			originals += k.originals
			retries += k.retries
			hedges += k.hedges
		}
	}
	return originals, retries, hedges
}

func (b *Budget) at(second int64) *bucket {
	k := &b.buckets[uint64(second)%windowSeconds]
	if k.second != second {
		*k = bucket{second: second}
	}
	return k
}
