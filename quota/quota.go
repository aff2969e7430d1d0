// Package quota is the arithmetic of limits that many nodes keep together: who holds how many tokens of one bucket, for how
// long, and what is owed. A token that is on lease has been debited already, so what all holders may admit never passes the
// bucket, whatever the network does: partition, death and delay only burn tokens.
//
//	grant := bucket.Grant(now, limit, ask, chance) // the grantor: one bucket a key, no state per holder
//	switch lease.Take(now, lost, weight, 0) {}     // the holder: Admit, Refuse, or Wait for the grant that is due
//	ask, due := lease.Due(now)                     // about every Interval
//	lease.Granted(now, sent, grant)
//
// A Branch is both: a holder towards the region that owns a worldwide limit, the grantor of its own region's nodes.
// Promise: over any time T, admitted ≤ Rate·T + Burst + tokens on lease at its start + overdraft unpaid at its end.
// The overdraft of holders that died counts as unpaid, and so does the half burst that a grantor has each time it starts.
//
// Instants are nanoseconds of the caller's own monotonic clock; no instant ever crosses from one process to another.
package quota

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"time"
)

// Key names what is counted, alike on every node. A flood of collisions would have to be found in 128 bits of SHA-256.
type Key [16]byte

// Name hashes the parts of a name, each with its length.
func Name(parts ...string) (k Key) {
	h := sha256.New()
	var n [8]byte
	for _, p := range parts {
		binary.LittleEndian.PutUint64(n[:], uint64(len(p)))
		h.Write(n[:])
		h.Write([]byte(p))
	}
	var sum [sha256.Size]byte
	copy(k[:], h.Sum(sum[:0]))
	return k
}

// Scope is how far one bucket reaches.
type Scope uint8

// The scopes; the zero value is the world.
const (
	World Scope = iota
	Region
	Cell
	scopes
)

// Limit is what a bucket holds.
type Limit struct {
	Rate  float64 // tokens a second; of a daily quota its mean, which counts only while its grantor is lost
	Burst float64 // tokens, at least 1; of a daily quota what is admitted ahead of a first answer that is late
	Day   uint64  // tokens a day, from 00:00 UTC; 0 = a rate
	// Strict admits nothing that was not granted, also while the grantor is lost.
	Strict bool
	Scope  Scope
}

// Per is the limit of so many requests in every such period. Its burst is a fifth of them or 20, never below one.
func Per(requests uint64, period time.Duration) Limit {
	n := float64(requests)
	return Limit{Rate: n / max(period.Seconds(), 1e-9), Burst: max(1, math.Floor(max(n/5, min(n, 20))))}
}

// PerDay is the limit of so many requests from 00:00 UTC to the next.
func PerDay(requests uint64) Limit {
	n := float64(requests)
	return Limit{Rate: n / (24 * 60 * 60), Burst: math.Floor(max(min(8, n), min(n/64, 64))), Day: requests}
}

// Day is the date of an instant, in days since 1970, UTC. Last is the date that was counted on before: a clock that is set back over
// midnight goes on with it, or a quota would be given out twice. A clock that has been days ahead is followed back.
func Day(now time.Time, last int64) int64 {
	if day := now.Unix() / (24 * 60 * 60); day != last-1 {
		return day
	}
	return last
}

// Bounds of what comes from outside.
const (
	maxTokens = 1 << 53
	maxPause  = 1 << 53 // ns
)

// Valid says whether a limit that another process sent can be worked with.
func (l Limit) Valid() bool {
	return l.Rate > 0 && l.Rate <= maxTokens && l.Burst >= 1 && l.Burst <= maxTokens && l.Day <= maxTokens && l.Scope < scopes
}

// Ask is what a holder says of one key, about once an interval.
type Ask struct {
	Tries   int64 // requests that asked since the last Ask
	Elapsed int64 // ns since then, by the holder's clock
	Want    int64 // tokens to have beside those that are kept
	Back    int64 // tokens that are given back
	Debt    int64 // tokens spent without a grant
	Day     int64 // of a daily quota: the date that Back is of, as the grantor said it; 0 = it never has
}

// Valid says whether an Ask that another process sent can be worked with.
func (a Ask) Valid() bool {
	for _, n := range []int64{a.Tries, a.Want, a.Back, a.Debt} {
		if n < 0 || n > maxTokens {
			return false
		}
	}
	return a.Elapsed >= 0
}

// back is what comes back of a day's tokens: those of another day were spent on that one, and are no gift to this.
func (a Ask) back(day int64) int64 {
	if a.Day != 0 && a.Day != day {
		return 0
	}
	return a.Back
}

// Grant is the answer to an Ask.
type Grant struct {
	Tokens int64   // on lease for Terms.TTL from the moment the Ask was sent
	Share  float64 // the holder's part of all demand, 0…1
	Calm   bool    // there is enough for everybody: up to Credit may be spent in advance
	Credit int64
	Left   int64 // of a daily quota: what is left for everybody
	Day    int64 // of a daily quota: the date that all of this is of, in days since 1970; 0 = the grantor doesn't say
	Pause  int64 // ns until a token may be there for somebody; 0 = now
}

// Valid says whether a Grant that another process sent can be worked with.
func (g Grant) Valid() bool {
	return g.Tokens >= 0 && g.Tokens <= maxTokens && g.Share >= 0 && g.Share <= 1 && g.Credit >= 0 && g.Credit <= maxTokens &&
		g.Left >= 0 && g.Left <= maxTokens && g.Pause >= 0 && g.Pause <= maxPause
}

// Terms are how leases are held. Every duration is measured by the holder, from sending: delay only shortens a lease.
type Terms struct {
	Interval int64 // ns between two Asks of one key
	TTL      int64 // ns that a lease lives without an answer; after half of it without one the grantor is lost
	Asks     int   // Asks of one key that may be on their way at once
}

// OfNodes are the terms between a node and its region.
func OfNodes() Terms { return Terms{100 * ms, 250 * ms, 1} }

// OfRegions are the terms between a region and the one that owns a worldwide limit. A lease outlives three round trips
// around the world, so that a late answer doesn't stop a region.
func OfRegions() Terms { return Terms{100 * ms, 1000 * ms, 8} }

const (
	ms = int64(time.Millisecond)
	// overdraft is the part of a second's rate that all holders together may spend in advance while a bucket is calm.
	overdraft = 0.2
	// ownPart is the part of a lost grantor's limit that is divided by the demand last known, beside the equal division of
	// the whole: together at most 1.5 times the limit (H4).
	ownPart = 0.5
	// fade halves it as the knowledge ages.
	fade = 10 * time.Second
)

func seconds(ns int64) float64 { return float64(ns) / float64(time.Second) }

// local is the rate at which a holder goes on that can't reach its grantor: lost is for how long, share what it last had of
// the demand, weight its part of all holders.
func (l Limit) local(lost int64, share, weight float64) float64 {
	return l.Rate * max(weight, ownPart*share*math.Exp2(-float64(lost)/float64(fade)))
}
