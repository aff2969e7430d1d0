package program

import (
	"slices"
	"strings"

	"github.com/cellgate/cellgate/proxy/route"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Lookup finds the route and the tenant of a request: reason.None, NoRoute or MethodNotAllowed. Match is overwritten
// whole; Tenant is set in every case. It does not allocate, except for Allow.
func (p *Program) Lookup(req *Request, m *Match) reason.Reason {
	var hit route.Hit
	verdict := p.index.Lookup(req, &hit)
	*m = Match{Tenant: p.tenant(hit.Tenant)}
	switch verdict {
	case route.Found:
		m.Route, m.table, m.number = &p.shards[hit.Table].routes[hit.Route], hit.Table, int32(hit.Route)
		return reason.None
	case route.MethodNotAllowed:
		m.Allow = hit.Allow()
		return reason.MethodNotAllowed
	}
	return reason.NoRoute
}

func (p *Program) tenant(n int32) string {
	if n < 0 {
		return snapshot.DefaultTenant
	}
	return p.tenants[n]
}

// Consumer finds a consumer's index by its id. It doesn't allocate.
func (p *Program) Consumer(id string) (index int, ok bool) {
	return slices.BinarySearchFunc(p.Consumers, id, func(c Consumer, id string) int { return strings.Compare(c.ID, id) })
}

// Plan is the consumer's; nil if it has none.
func (p *Program) Plan(consumer string) *Plan { return p.plans[consumer] }

// PlatformRate is that of all tenants together; nil if there is none.
func (p *Program) PlatformRate() *Rule { return p.all }

// TenantRate is the tenant's own; nil if it has none.
func (p *Program) TenantRate(tenant string) *Rule { return p.rates[tenant] }

// TenantLimits are the tenant's own; zero if it has none.
func (p *Program) TenantLimits(tenant string) snapshot.TenantLimits { return p.limited[tenant] }

// Routes is the number of routes.
func (p *Program) Routes() int {
	n := 0
	for _, sh := range p.shards {
		n += len(sh.routes)
	}
	return n
}

// Shards says how many host shards the program has and how many of them were taken over from the previous program.
func (p *Program) Shards() (all, reused int) { return len(p.shards), p.reused }

// TableBytes is the memory of the route tables and the host index.
func (p *Program) TableBytes() int { return p.index.Bytes() }
