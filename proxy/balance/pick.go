package balance

import (
	"math/bits"
	"time"
)

// Ask is what a choice depends on.
type Ask struct {
	Now time.Time
	// Random is any 64 random bits.
	Random uint64
	// Key is what Hash goes by.
	Key uint64
	// Tried are endpoints not to be chosen.
	Tried Tried
	// Closed are slices not to be chosen, a bit each.
	Closed uint64
	// Strict leaves out ejected ones and such as are down, even if nothing else is left.
	Strict bool
}

// Tried are the endpoints that an exchange has been at: the first four, which are as many as it may have.
type Tried struct {
	n  int8
	at [4]int16
}

// Add notes another.
func (t *Tried) Add(i int) {
	if int(t.n) < len(t.at) {
		t.at[t.n] = int16(i)
		t.n++
	}
}

// Has says whether i was tried.
func (t *Tried) Has(i int) bool {
	for _, at := range t.at[:t.n] {
		if int(at) == i {
			return true
		}
	}
	return false
}

// Pick chooses an endpoint that is in, neither ejected nor down, untried and of no slice that is barred or closed. When only
// ejected ones and such as are down are left, it chooses among those, since all down is as good as all up. -1 means that
// nothing is left.
func (s *Set) Pick(a Ask) int {
	v, now := s.view(a.Now.UnixNano()), a.Now.UnixNano()
	for skip := 0; skip < Tiers; {
		t := s.tier(v, &a, skip)
		if t < 0 {
			break
		}
		if i := s.among(v, v.tiers[t], t, &a, now); i >= 0 {
			return i
		}
		skip = t + 1
	}
	for t := range Tiers { // what was spilled past
		if i := s.among(v, v.tiers[t], t, &a, now); i >= 0 {
			return i
		}
	}
	if n := uint64(len(v.rest)); n > 0 && !a.Strict {
		hi, _ := bits.Mul64(a.Random, n)
		return v.from(v.rest, hi, &a)
	}
	return -1
}

// Where a tier begins to spill and where all that comes more goes to the next, in parts of its room.
const (
	spillFrom = 0.70
	spillAll  = 0.95
)

// tier is the nearest tier from skip on that takes the exchange: one that fills up passes a growing part of them on, well
// before it is full. By Hash always the same keys are passed on. When all are full, the emptiest.
func (s *Set) tier(v *view, a *Ask, skip int) int {
	emptiest, least := -1, 0.0
	dice := a.Random
	if s.spec.Method == Hash {
		dice = a.Key
	}
	for t := skip; t < Tiers; t++ {
		n := len(v.tiers[t])
		if n == 0 {
			continue
		}
		if s.spec.Places == 0 {
			return t
		}
		full := float64(s.load[t].Load()) * float64(v.in) / float64(s.spec.Places*n)
		if full <= spillFrom {
			return t
		}
		if emptiest < 0 || full < least {
			emptiest, least = t, full
		}
		dice = mix(dice + uint64(t))
		if part := (full - spillFrom) / (spillAll - spillFrom); float64(dice>>11)/(1<<53) >= part {
			return t
		}
	}
	return emptiest
}

func (s *Set) among(v *view, list []int32, tier int, a *Ask, now int64) int {
	n := uint64(len(list))
	if n == 0 {
		return -1
	}
	switch s.spec.Method {
	case RoundRobin:
		return s.inTurn(v, list, a, now)
	case LeastRequests:
		return s.least(v, list, a, now)
	case Hash:
		return s.byKey(v, list, tier, a, now)
	}
	hi, lo := bits.Mul64(a.Random, n)
	one := v.from(list, hi, a)
	if one < 0 || n == 1 {
		return one
	}
	step, _ := bits.Mul64(lo, n-1)
	other := v.from(list, (hi+1+step)%n, a)
	if other < 0 || s.cost(v.all[other], now) >= s.cost(v.all[one], now) {
		return one
	}
	return other
}

// from is the first of the list, at or after its place i, that the exchange may have.
func (v *view) from(list []int32, i uint64, a *Ask) int {
	n := uint64(len(list))
	for range n {
		if at := int(list[i]); v.may(at, a) {
			return at
		}
		i = (i + 1) % n
	}
	return -1
}

func (v *view) may(i int, a *Ask) bool { return !a.Tried.Has(i) && a.Closed>>v.seats[i].Slice&1 == 0 }

// inTurn passes over one that starts slowly as often as its weight says.
func (s *Set) inTurn(v *view, list []int32, a *Ask, now int64) int {
	n := uint64(len(list))
	dice := a.Random
	for range n {
		i := v.from(list, s.next.Add(1)%n, a)
		if i < 0 {
			return -1
		}
		w := s.weight(v.all[i], now)
		if w >= 1 || float64(dice>>11)/(1<<53) < w {
			return i
		}
		dice = mix(dice)
	}
	return v.from(list, s.next.Add(1)%n, a)
}

func (s *Set) least(v *view, list []int32, a *Ask, now int64) int {
	n := uint64(len(list))
	start, _ := bits.Mul64(a.Random, n)
	best, fewest := -1, 0.0
	for k := range n {
		i := int(list[(start+k)%n])
		if !v.may(i, a) {
			continue
		}
		if load := float64(v.all[i].inflight.Load()+1) / s.weight(v.all[i], now); best < 0 || load < fewest {
			best, fewest = i, load
		}
	}
	return best
}

const usualBound = 125

// byKey is rendezvous hashing with bounded loads: of those that have room, the one that ranks highest for the key. An endpoint
// that comes or goes moves only its own keys, and one that is full passes its keys on to each one's own second choice.
func (s *Set) byKey(v *view, list []int32, tier int, a *Ask, now int64) int {
	bound := s.spec.Bound
	if bound == 0 {
		bound = usualBound
	}
	share := float64(s.load[tier].Load()+1) * float64(bound) / 100 / float64(len(list))
	best, first := -1, -1
	var bestRank, firstRank uint64
	for _, at := range list {
		i := int(at)
		if !v.may(i, a) {
			continue
		}
		rank := mix(a.Key ^ v.seats[i].ID)
		if first < 0 || rank > firstRank {
			first, firstRank = i, rank
		}
		if best >= 0 && rank <= bestRank {
			continue
		}
		if e := v.all[i]; e.inflight.Load() == 0 || float64(e.inflight.Load()) < share*s.weight(e, now) {
			best, bestRank = i, rank
		}
	}
	if best < 0 {
		return first
	}
	return best
}

// mix is the finaliser of SplitMix64.
func mix(v uint64) uint64 {
	v += 0x9e3779b97f4a7c15
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// KeyOf is the number of a key or of an endpoint's name, the same on every node. It must never change while nodes of two
// versions serve one cell: they would send a key to different endpoints.
func KeyOf(b []byte) uint64 {
	v := uint64(0xcbf29ce484222325) // FNV-1a, whose upper bits are poor until mixed
	for _, c := range b {
		v = (v ^ uint64(c)) * 0x100000001b3
	}
	return mix(v)
}
