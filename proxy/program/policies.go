package program

import (
	"fmt"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/cors"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Applied is what a policy comes to that the pipeline applies itself; of each kind one is set.
type Applied struct {
	CORS *cors.Policy
}

// applied compiles the policies, in their order. Routes refer to them by number, so that a shard that is taken over from an earlier
// program gets the new ones.
func applied(policies []snapshot.Policy) []Applied {
	all := make([]Applied, len(policies))
	for i := range policies {
		if c := policies[i].CORS; c != nil {
			all[i].CORS = cors.Compile(c)
		}
	}
	return all
}

// CORS is the policy of a route; nil if it has none.
func (p *Program) CORS(r *Route) *cors.Policy {
	if r == nil || r.CORS < 0 {
		return nil
	}
	return p.applied[r.CORS].CORS
}

// Decision is the policy of a route that a service is asked by; nil if it has none.
func (p *Program) Decision(r *Route) *snapshot.Decision {
	if r.Decision < 0 {
		return nil
	}
	return p.Policies[r.Decision].Decision
}

// Withheld is the cookie that upstreams of a route don't get; empty = they get all.
func (p *Program) Withheld(r *Route) string {
	if r.Policy < 0 {
		return ""
	}
	if s := p.Policies[r.Policy].Session; s != nil && !s.ForwardCookie {
		return s.Cookie
	}
	return ""
}

// PoliciesDigest differs between programs of other policies or consumers.
func (p *Program) PoliciesDigest() string { return string(p.callers) }

// policies sorts out what a route names beside its auth. Rewritten is the route's path where a transform goes by it.
func (s *Settings) policies(r *snapshot.Route, names *resolver) (rules, shadows []int32, transforms []*snapshot.Transform, rewritten string, err error) {
	for _, id := range r.Policies {
		n := names.policy(id)
		if n < 0 {
			return nil, nil, nil, "", fmt.Errorf("%w: there is no policy %q", errProgram, id)
		}
		switch p := &names.shared.Policies[n]; {
		case p.Shadow():
			shadows = append(shadows, n)
		case p.CORS != nil:
			s.CORS = n
		case p.Decision != nil:
			s.Decision = n
		case p.Authz != nil && r.Auth != "":
			rules = append(rules, n)
		case p.Transform != nil:
			transforms = append(transforms, p.Transform)
			if t := p.Transform.Request; t.Path != "" || t.PathPrefix != "" {
				rewritten = r.Match.Path + r.Match.PathPrefix
			}
		default:
			return nil, nil, nil, "", fmt.Errorf("%w: policy %q can't be enforced here", errProgram, id)
		}
	}
	return rules, shadows, transforms, rewritten, nil
}

// Try says what a policy in shadow mode would have made of a request that has come this far: its identified caller, if it has one,
// and the script behind it. Policies that identify callers are the Authenticator's to try.
func (p *Program) Try(n int32, r *http1.Request, id *auth.Identity, consumer string) reason.Reason {
	if p.Policies[n].Authz != nil {
		return p.Identity.rules[n].Judge(id, consumer)
	}
	if c := p.applied[n].CORS; c != nil {
		if ask := cors.Read(r); ask.Preflight && c.Preflight(&ask).Refused() || !ask.Preflight && c.Judge(&ask).Refused() {
			return reason.CORSRefused
		}
	}
	return reason.None
}
