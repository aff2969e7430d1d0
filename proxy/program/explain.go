package program

import (
	"cmp"
	"strings"
	"time"

	"github.com/cellgate/cellgate/proxy/route"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Explanation is a look-up with the working shown.
type Explanation struct {
	Host   string `json:"host"`
	Method string `json:"method"`
	Path   string `json:"path"` // as normalised
	Tenant string `json:"tenant"`
	// Considered are the routes that fit host and path, in the order in which they were tried.
	Considered []Considered `json:"considered"`
	Route      string       `json:"route,omitempty"`
	Owner      string       `json:"owner,omitempty"`
	Auth       string       `json:"auth,omitempty"`
	Policies   []string     `json:"policies,omitempty"`
	// Verdicts say what each policy and limit makes of the request, in the order in which a node asks them.
	Verdicts []Verdict `json:"verdicts,omitempty"`
	Limits   *Limits   `json:"limits,omitempty"`
	// Priority says who is shed first; Hedge that late reads are sent once more.
	Priority string `json:"priority,omitempty"`
	Hedge    bool   `json:"hedge,omitempty"`
	// TenantRate is what all requests of the tenant share; empty = no limit.
	TenantRate string  `json:"tenant_rate,omitempty"`
	Upstreams  []Share `json:"upstreams,omitempty"`
	// Reason and Status are set when no route takes the request.
	Reason string `json:"reason,omitempty"`
	Status int    `json:"status,omitempty"`
	Allow  string `json:"allow,omitempty"`
}

// Considered is one route and what became of it: "taken", "method" or "predicate", the latter two naming what failed.
type Considered struct {
	Route   string `json:"route"`
	Owner   string `json:"owner,omitempty"`
	Outcome string `json:"outcome"`
}

// Limits are the route's, as documents write them; a consumer's plan comes on top.
type Limits struct {
	Tenant      string `json:"tenant,omitempty"`
	User        string `json:"user,omitempty"`
	Scope       string `json:"scope"`
	OnStoreLoss string `json:"on_store_loss"`
	Mode        string `json:"mode,omitempty"` // "shadow" = they are only tried
}

// Share is one upstream of the route with its weight, and the rules of its use by name.
type Share struct {
	Upstream string            `json:"upstream"`
	Weight   uint32            `json:"weight"`
	Rules    map[string]string `json:"rules"`
}

// Explain shows how Lookup comes to its result, and what the policies of the route make of the request.
func (p *Program) Explain(req *Request, who Caller, now time.Time) Explanation {
	e := Explanation{Host: req.Host, Method: req.Method, Path: string(req.Path), Considered: []Considered{}}
	var hit route.Hit
	p.index.Explain(req, &hit, func(table int32, s route.Step) {
		r := &p.shards[table].routes[s.Route]
		e.Considered = append(e.Considered, Considered{r.ID, r.Owner, s.Outcome})
	})
	var m Match
	why := p.Lookup(req, &m)
	e.Tenant = m.Tenant
	if why != reason.None {
		e.Reason, e.Status, e.Allow = why.String(), why.Status(), m.Allow
		return e
	}
	e.Route, e.Owner, e.Priority, e.Hedge = m.Route.ID, m.Route.Owner, string(m.Route.Priority), m.Route.Hedge
	if m.Route.Policy >= 0 {
		e.Auth = p.Policies[m.Route.Policy].ID
	}
	if m.Route.Named != "" {
		e.Policies = strings.Split(m.Route.Named, "\n")
	}
	e.Verdicts = p.verdicts(req, &m, who, now)
	if l := m.Route.Limits; l != (snapshot.Limits{}) {
		e.Limits = &Limits{l.Tenant.String(), l.User.String(), cmp.Or(l.Scope, "global"), cmp.Or(l.OnStoreLoss, "local_share"), l.Mode}
	}
	e.TenantRate = p.TenantLimits(m.Tenant).Rate.String()
	for _, b := range m.Route.Branches {
		e.Upstreams = append(e.Upstreams, Share{p.Upstreams[b.Upstream].ID, b.Weight, rules(&p.Upstreams[b.Upstream])})
	}
	return e
}
