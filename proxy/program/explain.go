package program

import (
	"github.com/cellgate/cellgate/proxy/route"
	"github.com/cellgate/cellgate/reason"
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
	Upstreams  []Share      `json:"upstreams,omitempty"`
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

// Share is one upstream of the route with its weight.
type Share struct {
	Upstream string `json:"upstream"`
	Weight   uint32 `json:"weight"`
}

// Explain shows how Lookup comes to its result.
func (p *Program) Explain(req *Request) Explanation {
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
	e.Route, e.Owner = m.Route.ID, m.Route.Owner
	if m.Route.Policy >= 0 {
		e.Auth = p.Policies[m.Route.Policy].ID
	}
	for _, b := range m.Route.Branches {
		e.Upstreams = append(e.Upstreams, Share{p.Upstreams[b.Upstream].ID, b.Weight})
	}
	return e
}
