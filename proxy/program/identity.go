package program

import (
	"reflect"
	"slices"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Identity is the part of a program that decides who calls.
type Identity struct {
	// APIKeys finds the index in Program.Consumers of an API key. Never nil in a compiled program.
	APIKeys   *auth.KeyTable
	verifiers []*auth.Verifier // by the index in Program.Policies; nil where the policy is no JWT policy
	rules     []*auth.Rule     // by the same; nil where it is no authz policy
	askers    []*auth.Introspector
	sessions  []*auth.Sessions
	clients   []*auth.Certificates
}

// CompileIdentity compiles policies and consumers; both are in the order of the program's lists.
func CompileIdentity(policies []snapshot.Policy, consumers []snapshot.Consumer) (Identity, error) {
	keys, err := auth.NewKeyTable(consumers)
	if err != nil {
		return Identity{}, err
	}
	id := Identity{APIKeys: keys, verifiers: make([]*auth.Verifier, len(policies)), rules: make([]*auth.Rule, len(policies)), askers: make([]*auth.Introspector, len(policies)), sessions: make([]*auth.Sessions, len(policies)), clients: make([]*auth.Certificates, len(policies))}
	var wanted []string
	for i, p := range policies {
		if p.Authz != nil {
			id.rules[i] = auth.NewRule(*p.Authz)
			wanted = append(wanted, id.rules[i].Wants()...)
		}
	}
	slices.Sort(wanted)
	wanted = slices.Compact(wanted)
	for i, p := range policies {
		if p.JWT != nil {
			id.verifiers[i] = auth.NewVerifier(*p.JWT, wanted...)
		}
		if p.Introspection != nil {
			id.askers[i] = auth.NewIntrospector(*p.Introspection, wanted...)
		}
		if p.Session != nil {
			id.sessions[i] = auth.NewSessions(p.ID, *p.Session, wanted...)
		}
		if p.MTLS != nil {
			if id.clients[i], err = auth.NewCertificates(*p.MTLS); err != nil {
				return Identity{}, err
			}
		}
	}
	return id, nil
}

// Permits says why an identified caller may not use a route of the program; reason.None = it may. id is nil when its
// credentials carry no claims.
func (p *Program) Permits(r *Route, id *auth.Identity, consumer string) reason.Reason {
	for _, i := range r.Rules {
		if why := p.Identity.rules[i].Judge(id, consumer); why != reason.None {
			return why
		}
	}
	return reason.None
}

// JudgesAlike says whether two programs ask the same of the callers of two routes.
func JudgesAlike(p *Program, r *Route, q *Program, s *Route) bool {
	if len(r.Rules) != len(s.Rules) || (r.Policy < 0) != (s.Policy < 0) {
		return false
	}
	for i := range r.Rules {
		if !reflect.DeepEqual(p.Policies[r.Rules[i]], q.Policies[s.Rules[i]]) {
			return false
		}
	}
	return r.Policy < 0 || reflect.DeepEqual(p.Policies[r.Policy], q.Policies[s.Policy])
}

// Verifier is that of the policy with the id; nil when there is none or it takes no tokens.
func (p *Program) Verifier(policy string) *auth.Verifier { return of(p, policy, p.Identity.verifiers) }

// Introspector is that of the policy with the id; nil when there is none or it asks nobody about tokens.
func (p *Program) Introspector(policy string) *auth.Introspector {
	return of(p, policy, p.Identity.askers)
}

// Sessions is that of the policy with the id; nil when there is none or it takes no cookies.
func (p *Program) Sessions(policy string) *auth.Sessions { return of(p, policy, p.Identity.sessions) }

// Certificates is that of the policy with the id; nil when there is none or it takes no certificates.
func (p *Program) Certificates(policy string) *auth.Certificates {
	return of(p, policy, p.Identity.clients)
}

// of is what a list by the index of policies holds for the one with the id.
func of[V any](p *Program, policy string, list []*V) *V {
	lo, hi := 0, len(p.Policies)
	for lo < hi {
		if mid := (lo + hi) / 2; p.Policies[mid].ID < policy {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(p.Policies) || p.Policies[lo].ID != policy || lo >= len(list) {
		return nil
	}
	return list[lo]
}
