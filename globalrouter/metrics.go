package globalrouter

import "sync/atomic"

// rcodes are the response codes that are counted one by one; others count as the last.
var rcodes = [...]string{"noerror", "formerr", "servfail", "nxdomain", "notimp", "refused", "other"}

// counters belong to one worker; readers only load. Padded, so that two workers never share a cache line.
type counters struct {
	answers   [len(rcodes)]atomic.Uint64
	slow      atomic.Uint64
	dropped   atomic.Uint64
	truncated atomic.Uint64
	_         [64]byte
}

// count notes one answer, nil for one that was dropped. Only the owner writes, so a load and a store are enough.
func (c *counters) count(answer []byte, slow bool) {
	if len(answer) < 12 {
		bump(&c.dropped)
		return
	}
	bump(&c.answers[min(int(answer[3]&15), len(rcodes)-1)])
	if answer[2]&2 != 0 {
		bump(&c.truncated)
	}
	if slow {
		bump(&c.slow)
	}
}

// countTCP counts for all connections together; they are few.
func (s *Server) countTCP(answer []byte, slow bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tcp == nil {
		s.tcp = new(counters)
		s.workers = append(s.workers, s.tcp)
	}
	s.tcp.count(answer, slow)
}

func bump(v *atomic.Uint64) { v.Store(v.Load() + 1) }

// Stats are the sums over all workers since the start.
type Stats struct {
	Answers   map[string]uint64 // by response code
	Slow      uint64            // of these, by the slow path
	Truncated uint64
	Dropped   uint64
	TCP       uint64 // connections accepted
	Refused   uint64 // connections closed at the bound
}

// Stats reads the counters.
func (s *Server) Stats() Stats {
	out := Stats{Answers: map[string]uint64{}, TCP: s.accepted.Load(), Refused: s.refused.Load()}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.workers {
		for i := range c.answers {
			out.Answers[rcodes[i]] += c.answers[i].Load()
		}
		out.Slow += c.slow.Load()
		out.Truncated += c.truncated.Load()
		out.Dropped += c.dropped.Load()
	}
	return out
}
