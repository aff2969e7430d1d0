// Package limit is a bounded, lock-free table of token buckets: may this caller make one more request now?
//
//	t := limit.New(1 << 16)
//	k := t.Key(limit.User, tenant, routeID, subject)
//	d := t.Take(k, limit.PerSecond(rate, burst), now) // 0 allocations
//	if !d.OK { 429, Retry-After: d.RetryAfter }
//
// A bucket is one number, the theoretical arrival time of GCRA (ITU-T I.371; boulder ratelimits/gcra.go): a full bucket
// is one whose number lies in the past, so a bucket that has been idle carries no memory and may be forgotten.
//
// At the bound: a key has one set of seven places. A new key takes an empty place or that of a full bucket, whose caller
// loses nothing. When all seven are in use, the key is served by its group's overflow bucket, which all such keys of
// one tenant and kind share at the rate of a single caller: a flood of made-up keys neither grows the table, nor pushes
// anyone's spent bucket out, nor gets a fresh bucket each.
package limit

import (
	"hash/maphash"
	"math"
	"math/bits"
	"time"
)

// Kind keeps the buckets of one id apart by what is limited.
type Kind uint8

// The kinds of buckets.
const (
	Tenant Kind = 1 + iota
	Consumer
	User
	Forgery // bad signatures of a source
	Daily   // a consumer's day
	Lookup  // questions to a service
)

// Key names a bucket by hash; the caller's id itself is not kept. Only Table.Key makes one. Two callers share a bucket if
// their ids are the same: among a hundred thousand keys that happens once in a thousand million processes.
type Key struct {
	id    uint64 // never 0, which marks an empty place
	group uint64
}

// Hash is as good as random, and differs from process to process.
func (k Key) Hash() uint64 { return k.id >> 1 }

// Limit is a rate with its burst in GCRA's terms. The zero value is no limit.
type Limit struct {
	interval int64 // ns between two requests at the rate, at least 1
	depth    int64 // ns: burst × interval
	Burst    uint64
}

// None says whether nothing is limited.
func (l Limit) None() bool { return l.interval == 0 }

// PerSecond is the limit of rate requests a second, which may be less than one, with a burst of at least one.
// A rate that is not above 0 is no limit.
func PerSecond(rate, burst float64) Limit {
	if !(rate > 0) {
		return Limit{}
	}
	interval := int64(min(max(math.Ceil(float64(time.Second)/rate), 1), math.MaxInt64/8))
	b := uint64(min(max(burst, 1), float64(math.MaxInt64/4/interval)))
	return Limit{interval: interval, depth: interval * int64(b), Burst: b}
}

// Decision is what became of one request.
type Decision struct {
	OK         bool
	Remaining  uint64        // requests that would be admitted at once after this one
	RetryAfter time.Duration // until the next one is admitted; 0 when OK
	Overflow   bool          // decided by the overflow bucket of the key's group
}

// Key hashes the bucket's name; the hash is keyed with the table's own random seed. The tenant is part of every key (A10).
// Scope is what the limit is written on (the route's id; empty for a plan's rate), id is whose requests are counted.
func (t *Table) Key(kind Kind, tenant, scope, id string) Key {
	return KeyOf(kind, t.Hash(tenant), t.Hash(scope), t.Hash(id))
}

// KeyOf is the key of names of which a table has made hashes.
func KeyOf(kind Kind, tenant, scope, id uint64) Key {
	group := mix(tenant+uint64(kind), scope)
	return Key{group: group, id: mix(group, id) | 1}
}

// Hash is the table's of a name that stands in several keys.
func (t *Table) Hash(name string) uint64 {
	if name == "" {
		return t.empty
	}
	return maphash.String(t.seed, name)
}

// mix makes one hash of two, which are to differ in their order as well: the halves of a product, folded (wyhash).
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0xa0761d6478bd642f, b^0xe7037ed1a0b428db)
	return hi ^ lo
}

// admit is GCRA: the bucket's number after one more request at now, and whether that request is admitted.
// A number further away than the depth comes from a limit that has been raised since; it counts as an empty bucket.
func (l Limit) admit(tat, now int64) (next int64, d Decision) {
	tat = min(max(tat, now), now+l.depth)
	next = tat + l.interval
	if over := next - now - l.depth; over > 0 {
		return tat, Decision{RetryAfter: time.Duration(over)}
	}
	return next, Decision{OK: true, Remaining: uint64((now + l.depth - next) / l.interval)}
}
