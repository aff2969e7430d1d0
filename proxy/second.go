package proxy

import (
	"time"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
)

// doubt puts a request that is about to be refused to the program before.
func (x *Exchange) doubt() {
	var was program.Match
	if s := x.table.second; s.Had(&x.lookup, &was) && x.wasLetIn(s.Old, &was) {
		s.Count(was.Route.ID)
	}
}

// wasLetIn says whether the old program took the caller. Where its policy was the same, it is not asked: it would say the
// same. Nor is it about API keys that are refused now, which are taken away on purpose, one by one.
func (x *Exchange) wasLetIn(old *program.Program, was *program.Match) bool {
	if was.Route.Policy < 0 {
		return true
	}
	policy := &old.Policies[was.Route.Policy]
	if r := x.match.Route; r != nil && (policy.JWT == nil || program.JudgesAlike(old, was.Route, x.table.program, r)) {
		return false
	}
	c, doubled := x.present(old, policy, was.Tenant)
	var id Identity
	why, wait := x.server.opts.Auth.Authenticate(&c, &id, x.now)
	return doubled == reason.None && why == reason.None && wait == nil && old.Permits(was.Route, id.Facts, id.Consumer) == reason.None
}

// Refused are the requests that were refused since the last swap to other contents and that the program before would have
// let through, by the route that it had for them; nil = none, or nobody is left to ask.
func (s *Server) Refused() map[string]uint64 {
	if t := s.table.Load(); t != nil {
		return t.second.Refused()
	}
	return nil
}

// forget lets the program before go when its time is over.
func (s *Server) forget(now time.Time) {
	s.apply.Lock()
	defer s.apply.Unlock()
	if t := s.table.Load(); t != nil && t.second.Over(now) {
		next := *t
		next.second = nil
		s.table.Store(&next)
	}
}
