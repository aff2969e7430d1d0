package upstream

import (
	"time"

	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/proxy/shed"
)

// Stats are a pool's numbers at one moment.
type Stats struct {
	ID                  string
	Open, Idle, Pending int
	Max                 int    // open connections that there may be; of an upstream that speaks HTTP/2, exchanges on them
	Originals, Repeats  uint32 // of the last ten seconds: requests, and what retries and hedges added to them
	Endpoints           int
	Ejected, Down       int                // of the endpoints: out for failing, down by active probes
	Ejections           uint64             // so far
	Load                [balance.Tiers]int // exchanges under way, by how far the endpoint is
	Breakers            []BreakerStats
	Hedges, HedgesWon   uint64
	Discovered          bool
	Heard               time.Time            // when discovery last changed the endpoints; zero = never
	Refused             uint64               // addresses that discovery told and that may not be dialled
	Under, Bound        int                  // exchanges under way, and how many there may be
	Shed                [shed.Classes]uint64 // those that were not let in, by class
}

func (p *Pool) stats(now time.Time) Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := Stats{ID: p.ID, Open: p.open, Idle: p.idles, Pending: len(p.waiting), Ejections: p.Set.Ejections()}
	if p.multi {
		s.Open, s.Idle = p.wires, p.restingLines()
	}
	s.Max = p.max
	s.Originals, s.Repeats = p.Budget.Recent(now)
	for _, o := range p.shares {
		s.Idle += int(o.Idle.Load())
	}
	s.Under, s.Bound = int(p.Limit.Under()), int(p.Limit.Bound())
	for c := range s.Shed {
		s.Shed[c] = p.Limit.Shed(shed.Class(c))
	}
	s.Hedges, s.HedgesWon = p.Hedges.Sent.Load(), p.Hedges.Won.Load()
	s.Breakers = p.breakerStats(now)
	if d := p.discovery; d != nil {
		s.Discovered, s.Refused = true, d.refused.Load()
		if at := d.heard.Load(); at > 0 {
			s.Heard = time.Unix(0, at)
		}
	}
	s.Endpoints, s.Ejected, s.Down = p.Set.Count(now)
	for t := range s.Load {
		s.Load[t] = p.Set.Load(t)
	}
	return s
}

// Add adds the numbers of another pool.
func (s *Stats) Add(o Stats) {
	s.Open, s.Idle, s.Pending, s.Max = s.Open+o.Open, s.Idle+o.Idle, s.Pending+o.Pending, s.Max+o.Max
	s.Originals, s.Repeats = s.Originals+o.Originals, s.Repeats+o.Repeats
	s.Endpoints, s.Ejected, s.Down, s.Ejections = s.Endpoints+o.Endpoints, s.Ejected+o.Ejected, s.Down+o.Down, s.Ejections+o.Ejections
	s.Hedges, s.HedgesWon = s.Hedges+o.Hedges, s.HedgesWon+o.HedgesWon
	s.Refused += o.Refused
	s.Under, s.Bound = s.Under+o.Under, s.Bound+o.Bound
	for t := range s.Load {
		s.Load[t] += o.Load[t]
	}
	for c := range s.Shed {
		s.Shed[c] += o.Shed[c]
	}
}
