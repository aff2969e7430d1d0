package ask

import (
	"net/netip"
	"time"

	"github.com/cellgate/cellgate/proxy/limit"
)

// take takes a question out of the budgets that count it, or out of none.
func (s *Service[V]) take(q Question, now time.Time) bool {
	at, t := now.Sub(s.in.start).Nanoseconds(), s.in.budget
	rate := float64(s.rule.PerSecond)
	all := limit.PerSecond(rate, rate)
	var source, strangers limit.Limit
	if !q.Known {
		strangers = limit.PerSecond(rate*4/5, rate*4/5)
		if q.Source.IsValid() && !q.Source.Unmap().IsLoopback() {
			source = limit.PerSecond(rate*2/5, rate*2/5)
		}
	}
	from := t.Key(limit.Lookup, "", s.id, Prefix(q.Source))
	one := t.Take(from, source, at)
	if !one.OK {
		return false
	}
	two := t.Take(s.keys[1], strangers, at)
	if !two.OK {
		t.Refund(from, source, one)
		return false
	}
	if three := t.Take(s.keys[0], all, at); !three.OK {
		t.Refund(from, source, one)
		t.Refund(s.keys[1], strangers, two)
		return false
	}
	return true
}

// Prefix is what one source is charged as: an IPv4 address or an IPv6 /64.
func Prefix(peer netip.Addr) string {
	peer = peer.Unmap().WithZone("")
	bits := 64
	if peer.Is4() {
		bits = 32
	}
	p, err := peer.Prefix(bits)
	if err != nil {
		return ""
	}
	b := p.Addr().As16()
	return string(b[:])
}

// Stats are the numbers of the services of one kind at one host.
type Stats struct {
	Name     string
	Asked    uint64 // questions that were sent
	Answered uint64
	Failed   uint64 // that had no answer
	Joined   uint64 // that had the answer of another one under way
	Refused  uint64 // that were not asked for want of budget
	InFlight int
}

// Add adds another service's.
func (s *Stats) Add(o Stats) {
	s.Asked, s.Answered, s.Failed = s.Asked+o.Asked, s.Answered+o.Answered, s.Failed+o.Failed
	s.Joined, s.Refused, s.InFlight = s.Joined+o.Joined, s.Refused+o.Refused, s.InFlight+o.InFlight
}

func (s *Service[V]) stats() Stats {
	s.mu.Lock()
	under := s.under
	s.mu.Unlock()
	return Stats{s.name, s.asked.Load(), s.answered.Load(), s.failed.Load(), s.joined.Load(), s.refused.Load(), under}
}

func (s *Service[V]) lastUsed() time.Time { return time.Unix(0, s.used.Load()) }

// Stats are those of all services that were asked lately.
func (s *Services) Stats() (all []Stats) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := map[string]int{}
	for _, one := range s.all {
		st := one.stats()
		i, known := at[st.Name]
		if !known {
			at[st.Name], all = len(all), append(all, st)
			continue
		}
		all[i].Add(st)
	}
	return all
}
