package answer

import (
	"encoding/binary"
	"net/netip"

	"github.com/cellgate/cellgate/globalrouter/steer"
)

// The buckets that a slot is chosen by: clients of one /24 or /48 go to one cell.
const bucket4, bucket6 = 24, 48

// client is an address in two halves, IPv4 in the upper 32 bits of hi.
type client struct {
	hi, lo uint64
	four   bool
	ecs    bool
}

func from(a netip.Addr) client {
	if a = a.Unmap(); a.Is4() {
		b := a.As4()
		return client{hi: uint64(binary.BigEndian.Uint32(b[:])) << 32, four: true}
	}
	if !a.IsValid() {
		return client{four: true}
	}
	b := a.As16()
	return client{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

// golden is 2^64 divided by the golden ratio: its multiples fill the circle as evenly as any sequence.
const golden = 0x9e3779b97f4a7c15

// slot is the slot of the client's bucket, its locality, and the prefix length for which the answer is the same.
// Queries without ECS from no known place stand for many clients, so that each takes the next slot of a sequence.
func (t *Table) slot(s *Scratch, set int, c client) (slot int, loc uint16, scope uint8) {
	width := uint8(bucket4)
	if c.four {
		loc, scope = t.locate.Lookup4(uint32(c.hi >> 32))
	} else {
		loc, scope = t.locate.Lookup6(c.hi, c.lo)
		width = bucket6
	}
	if int(loc) >= len(t.plan.Localities) {
		loc = 0
	}
	if !t.even[set*len(t.plan.Localities)+int(loc)] {
		scope = max(scope, width)
	}
	if loc == 0 && !c.ecs {
		s.weyl += golden
		return int(s.weyl >> 56), loc, scope
	}
	return c.hash(t.plan.Sets[set].Salt), loc, scope
}

// Slot is the slot of a known client, one whose query carries ECS or comes from a place of the plan: for explanations
// and for requests that still come to an evacuated cell.
func Slot(set steer.Set, a netip.Addr) int { return from(a).hash(set.Salt) }

// hash is the finaliser of splitmix64 over the bucket and the set's salt; routers of every version must agree on it.
func (c client) hash(salt uint64) int {
	z := c.hi >> (64 - bucket4)
	if !c.four {
		z = c.hi>>(64-bucket6) | 1<<63
	}
	z ^= salt
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return int((z ^ z>>31) & (steer.Slots - 1))
}
