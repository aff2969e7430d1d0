package proxy

import (
	"maps"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
)

// second gives the opinion of the program that was served before on what the present one refuses (D2): a request that was
// let through before and is refused now is evidence that needs no statistics. Only refused requests pay for it.
type second struct {
	old     *program.Program
	removed map[string]bool // routes that the author took away by name: that they are gone is no contradiction
	until   time.Time
	asked   atomic.Int64

	mu      sync.Mutex
	refused map[string]uint64 // requests by the route that the old program had for them
}

// Bounds of a second opinion: so many requests, and routes by name. It lives for an hour, or shorter than a bake's judge of
// memory waits, if the old program's tables are large.
const maxAsked, maxOpinion, opinion, heavy, brief = 1000, 64, time.Hour, 16 << 20, 45 * time.Second

// newSecond is nil when there is nothing to compare.
func newSecond(old, p *program.Program, now time.Time) *second {
	if old == nil || old.Checksum == p.Checksum {
		return nil
	}
	s := &second{old: old, removed: program.Compare(old, p).Removed, until: now.Add(opinion), refused: map[string]uint64{}}
	if old.Own(p) > heavy {
		s.until = now.Add(brief)
	}
	return s
}

// doubt puts a request that is about to be refused to the program before.
func (x *Exchange) doubt() {
	s := x.table.second
	if s == nil || s.asked.Add(1) > maxAsked {
		return
	}
	var was program.Match
	if s.old.Lookup(&x.lookup, &was) != reason.None || s.removed[was.Route.ID] || !x.wasLetIn(s.old, &was) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, known := s.refused[was.Route.ID]; known || len(s.refused) < maxOpinion {
		s.refused[was.Route.ID]++
	}
}

// wasLetIn says whether the old program took the caller. Where its policy was the same, it is not asked: it would say the
// same. Nor is it about API keys that are refused now, which are taken away on purpose, one by one.
func (x *Exchange) wasLetIn(old *program.Program, was *program.Match) bool {
	if was.Route.Policy < 0 {
		return true
	}
	policy := &old.Policies[was.Route.Policy]
	if r := x.match.Route; r != nil && (policy.JWT == nil || reflect.DeepEqual(*policy, x.table.program.Policies[r.Policy])) {
		return false
	}
	c, ok := x.present(old, policy, was.Tenant)
	var id Identity
	why, wait := x.server.opts.Auth.Authenticate(&c, &id, x.server.now())
	return ok && why == reason.None && wait == nil
}

// Refused are the requests that were refused since the last swap to other contents and that the program before would have
// let through, by the route that it had for them; nil = none, or nobody is left to ask.
func (s *Server) Refused() map[string]uint64 {
	t := s.table.Load()
	if t == nil || t.second == nil {
		return nil
	}
	t.second.mu.Lock()
	defer t.second.mu.Unlock()
	return maps.Clone(t.second.refused)
}

// forget lets the program before go when its time is over.
func (s *Server) forget(now time.Time) {
	s.apply.Lock()
	defer s.apply.Unlock()
	if t := s.table.Load(); t != nil && t.second != nil && now.After(t.second.until) {
		next := *t
		next.second = nil
		s.table.Store(&next)
	}
}
