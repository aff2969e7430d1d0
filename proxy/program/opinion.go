package program

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/reason"
)

// Opinion is that of the program that was served before on what the present one refuses (D2): a request that was let through
// before and is refused now is evidence that needs no statistics. Only refused requests pay for it.
type Opinion struct {
	Old     *Program
	removed map[string]bool // routes that the author took away by name: that they are gone is no contradiction
	until   time.Time
	asked   atomic.Int64

	mu      sync.Mutex
	refused map[string]uint64 // requests by the route that the old program had for them
}

// Bounds of an opinion: so many requests, and routes by name. It lasts for OpinionLasts, or shorter than a bake's judge of
// memory waits, if the old program's tables are large.
const (
	MaxAsked, maxNamed  = 1000, 64
	OpinionLasts, brief = time.Hour, 45 * time.Second
	heavy               = 16 << 20
)

// NewOpinion is nil when there is nothing to compare.
func NewOpinion(old, p *Program, now time.Time) *Opinion {
	if old == nil || old.Checksum == p.Checksum {
		return nil
	}
	s := &Opinion{Old: old, removed: Compare(old, p).Removed, until: now.Add(OpinionLasts), refused: map[string]uint64{}}
	if old.Own(p) > heavy {
		s.until = now.Add(brief)
	}
	return s
}

// Had finds the route that the old program has for a request, unless it was taken away by name or enough was asked.
func (s *Opinion) Had(req *Request, m *Match) bool {
	return s != nil && s.asked.Add(1) <= MaxAsked && s.Old.Lookup(req, m) == reason.None && !s.removed[m.Route.ID]
}

// Count notes a request that the old program would have let through by the route.
func (s *Opinion) Count(route string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.refused[route]; known || len(s.refused) < maxNamed {
		s.refused[route]++
	}
}

// Refused are the requests that were counted, by route; nil for a nil opinion.
func (s *Opinion) Refused() map[string]uint64 {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.refused)
}

// Over says that the old program may be forgotten.
func (s *Opinion) Over(now time.Time) bool { return s != nil && now.After(s.until) }
