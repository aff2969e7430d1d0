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
}

// None says whether nothing is limited.
func (r *Rule) None() bool { return r.Rate == 0 && r.Day == 0 }

// Tried are the limits of a route in shadow mode.
type Tried struct{ Tenant, User Rule }

// limit takes over what the limits come to, which is enforced or only tried.
func (t *Terms) limit(l *snapshot.Limits) {
	tenant, user := rateOf(l.Tenant, l.Scope, l.OnStoreLoss), rateOf(l.User, l.Scope, l.OnStoreLoss)
	if l.Shadow() {
		t.Tried = &Tried{tenant, user}
		return
	}
	t.Tenant, t.User = tenant, user
}

// Plan is what a consumer's plan comes to.
type Plan struct{ Day, Rate Rule }

func planOf(p snapshot.Plan) (c Plan) {
	if p.QuotaPerDay > 0 {
		c.Day = newRule(quota.PerDay(p.QuotaPerDay), "", p.OnStoreLoss)
	}
	if p.RatePerSec > 0 {
		c.Rate = newRule(quota.Per(p.RatePerSec, time.Second), p.Scope, p.OnStoreLoss)
	}
	return c
}

func rateOf(r snapshot.Rate, scope, onLoss string) Rule {
	if r.Requests == 0 {
		return Rule{}
	}
	return newRule(quota.Per(r.Requests, r.Per), scope, onLoss)
}

func newRule(l quota.Limit, scope, onLoss string) Rule {
	switch scope {
	case snapshot.ScopeRegion:
		l.Scope = quota.Region
	case snapshot.ScopeCell:
		l.Scope = quota.Cell
	}
	l.Strict = onLoss == snapshot.LossDeny
	return Rule{Limit: l, Alone: limit.PerSecond(l.Rate, l.Burst)}
}
