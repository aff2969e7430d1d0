package auth

import (
	"hash/maphash"
	"sync/atomic"
	"time"
)

const (
	cacheWays   = 4
	maxCacheRAM = 32 << 20 // bytes of tokens kept, and of what they say
)

// Cache remembers what verified tokens came to, until they expire or the policy's content or the provider's keys change.
// Only tokens with a right signature are kept, so that strangers can't fill it. It is safe for any number of goroutines.
//
// At the bound a new token takes a place of its set: an empty, outdated or expired one, else one by the token's own hash.
// Beyond maxCacheRAM bytes of tokens, a token that would add to the sum is not kept; it is verified each time.
type Cache struct {
	seed  maphash.Seed
	mask  uint64
	sets  []set
	bytes atomic.Int64
}

type set [cacheWays]atomic.Pointer[entry]

// entry is immutable. The whole token is compared, so two tokens with one hash never pass for each other.
type entry struct {
	hash   uint64
	tenant string
	token  string
	print  [32]byte
	keys   [32]byte
	until  int64 // Unix ns
	result Result
	weight int64
}

// NewCache makes a cache of at least capacity tokens.
func NewCache(capacity int) *Cache {
	n := uint64(16)
	for int(n)*cacheWays < capacity && n < 1<<20 {
		n *= 2
	}
	return &Cache{seed: maphash.MakeSeed(), mask: n - 1, sets: make([]set, n)}
}

// Get is the result of the token under the policy for the tenant (A10), when it is known and still holds at now.
func (c *Cache) Get(tenant string, v *Verifier, keys *Keys, token []byte, now time.Time) (Result, bool) {
	a := c.Ahead(token)
	return a.Get(tenant, v, keys, token, now)
}

// Get is the cache's, of the token that the way has begun with.
func (a *Ahead) Get(tenant string, v *Verifier, keys *Keys, token []byte, now time.Time) (Result, bool) {
	for i := range a.set {
		e := a.set[i].Load()
		if e != nil && e.hash == a.hash && e.token == string(token) && e.is(tenant, v, keys) && now.UnixNano() < e.until {
			return e.result, true
		}
	}
	return Result{}, false
}

func (e *entry) is(tenant string, v *Verifier, keys *Keys) bool {
	return e.tenant == tenant && e.print == v.print && e.keys == keys.digest
}

// Put remembers the result; one without an identity is not kept.
func (c *Cache) Put(tenant string, v *Verifier, keys *Keys, token string, r Result, now time.Time) {
	if r.Identity == nil {
		return
	}
	e := &entry{weight: int64(len(token) + r.Identity.weight()), hash: maphash.String(c.seed, token), tenant: tenant, token: token, print: v.print, keys: keys.digest,
		until: r.Identity.Until.UnixNano(), result: r}
	place, old := c.victim(e, now.UnixNano())
	grows := e.weight
	if old != nil {
		grows -= old.weight
	}
	if grows > 0 && c.bytes.Load()+grows > maxCacheRAM {
		return
	}
	if place.CompareAndSwap(old, e) {
		c.bytes.Add(grows)
	}
}

// Forget drops what is remembered of the identities that drop names.
func (c *Cache) Forget(drop func(*Identity) bool) {
	for i := range c.sets {
		for j := range c.sets[i] {
			place := &c.sets[i][j]
			if e := place.Load(); e != nil && drop(e.result.Identity) && place.CompareAndSwap(e, nil) {
				c.bytes.Add(-e.weight)
			}
		}
	}
}

// victim chooses the place for e: the one that holds the same token, else an unused or expired one, else one by hash.
func (c *Cache) victim(e *entry, now int64) (*atomic.Pointer[entry], *entry) {
	set := c.at(e.hash)
	choice := &set[(e.hash>>60)%cacheWays]
	old := choice.Load()
	for i := range set {
		held := set[i].Load()
		if held != nil && held.hash == e.hash && held.token == e.token && held.tenant == e.tenant && held.print == e.print {
			return &set[i], held
		}
		if held == nil || held.until <= now {
			choice, old = &set[i], held
		}
	}
	return choice, old
}
