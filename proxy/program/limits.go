package program

import (
	"time"

	"github.com/cellgate/cellgate/proxy/limit"
	"github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/snapshot"
)

// Rule is a limit as requests ask it: of all nodes that keep it together, and of a node that is alone. The zero value is none.
type Rule struct {
	quota.Limit
	Alone limit.Limit
	Tried bool // it is in shadow mode: nobody is refused by it
}

// None says whether nothing is limited.
func (r *Rule) None() bool { return r.Rate == 0 && r.Day == 0 }

// Plan is what a consumer's plan comes to.
type Plan struct {
	ID        string
	Day, Rate Rule
}

func planOf(p snapshot.Plan) *Plan {
	c := Plan{ID: p.ID}
	if p.QuotaPerDay > 0 {
		c.Day = newRule(quota.PerDay(p.QuotaPerDay), "", p.OnStoreLoss, p.Mode)
	}
	if p.RatePerSec > 0 {
		c.Rate = newRule(quota.Per(p.RatePerSec, time.Second), p.Scope, p.OnStoreLoss, p.Mode)
	}
	return &c
}

// Tries says whether any limit that may count requests of the route is in shadow mode.
func (p *Program) Tries(r *Route) bool { return p.tries || r.Tenant.Tried || r.User.Tried }

func rateOf(r snapshot.Rate, scope, onLoss, mode string) Rule {
	if r.Requests == 0 {
		return Rule{}
	}
	return newRule(quota.Per(r.Requests, r.Per), scope, onLoss, mode)
}

func newRule(l quota.Limit, scope, onLoss, mode string) Rule {
	switch scope {
	case snapshot.ScopeRegion:
		l.Scope = quota.Region
	case snapshot.ScopeCell:
		l.Scope = quota.Cell
	}
	l.Strict = onLoss == snapshot.LossDeny
	return Rule{Limit: l, Alone: limit.PerSecond(l.Rate, l.Burst), Tried: mode == snapshot.ModeShadow}
}
