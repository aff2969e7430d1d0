// Package claims says which buckets count a request: everybody's, its tenant's, its consumer's plan and day, its user's.
//
//	list := claims.Of(list[:0], false, program, tenant, route, consumer, user)
package claims

import (
	"time"

	"github.com/cellgate/cellgate/proxy/limit"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Limiter holds the token buckets of the callers.
type Limiter interface {
	// Take takes one token for every claim or none at all. It returns the index of the claim that refused, or -1.
	// It fills RetryAfter of the one that refused. A non-nil wait means that nothing is decided
	// yet: the exchange parks and asks again when the channel is closed, with the number of times that it has.
	Take(claims []Claim, waits int, now time.Time) (refused int, wait <-chan struct{})
	// Aim fills Bucket of the claims, and asks the memory for what Take will look up in them.
	Aim(claims []Claim)
}

// Claim asks one bucket for one token.
type Claim struct {
	Key   Key
	Limit quota.Limit // of all nodes that keep it together
	Alone limit.Limit // of a node that is alone; zero = what Limit's rate and burst come to
	Plan  string      // whose limit it is, if a plan's

	Bucket     limit.Key
	RetryAfter time.Duration // until one token will be there
}

// Key names a bucket. It is comparable.
type Key struct {
	Tenant string        // mandatory; snapshot.Platform = all
	Kind   reason.Reason // RatePlatform, RateTenant, RateConsumer, RateUser or QuotaConsumer: also the reason of a refusal
	Route  string        // id; empty for a consumer's plan and a tenant's own limit
	Caller string        // user or consumer id; empty for a tenant's limit
}

// Most is how many buckets may count one request.
const Most = 6

// Of adds the claims of a request to a list: those of limits that are enforced, or, tried, those of limits in shadow mode, by the
// names that they would have if they were enforced. The latter are to be taken once the former have been: what is only tried is no
// reason for anything. user is whom the route's user limit counts; consumer may be empty.
func Of(list []Claim, tried bool, p *program.Program, tenant string, r *program.Route, consumer, user string) []Claim {
	list = add(list, tried, reason.RatePlatform, snapshot.Platform, p.PlatformRate(), "", "")
	list = add(list, tried, reason.RateTenant, tenant, p.TenantRate(tenant), "", "")
	list = add(list, tried, reason.RateTenant, tenant, &r.Tenant, r.ID, "")
	if consumer != "" {
		if plan := p.Plan(consumer); plan != nil {
			before := len(list)
			list = add(list, tried, reason.QuotaConsumer, tenant, &plan.Day, "", consumer)
			list = add(list, tried, reason.RateConsumer, tenant, &plan.Rate, "", consumer)
			for i := before; i < len(list); i++ {
				list[i].Plan = plan.ID
			}
		}
	}
	return add(list, tried, reason.RateUser, tenant, &r.User, r.ID, user)
}

func add(list []Claim, tried bool, kind reason.Reason, tenant string, rule *program.Rule, route, caller string) []Claim {
	if rule == nil || rule.None() || rule.Tried != tried {
		return list
	}
	return append(list, Claim{Key: Key{Tenant: tenant, Kind: kind, Route: route, Caller: caller}, Limit: rule.Limit, Alone: rule.Alone})
}
