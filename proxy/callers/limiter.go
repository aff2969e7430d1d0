package callers

import (
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/hugepage"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/limit"
	"github.com/cellgate/cellgate/proxy/quota"
	core "github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/reason"
)

// Buckets is how many callers of a node can be short of a full bucket at once before newcomers share one bucket
// (see package limit).
const Buckets = 1 << 17

// Limiter keeps the buckets of the node's callers across snapshots: its own, or the leases that it holds of those that it
// keeps together with other nodes.
type Limiter struct {
	table  *limit.Table
	leases *quota.Leases // nil = the node is alone
	start  time.Time

	mu   sync.Mutex
	days map[limit.Key]day // of a node that is alone
}

var _ proxy.Limiter = (*Limiter)(nil)

// NewLimiter makes the limiter of a node that is alone. Its monotonic clock counts from start.
func NewLimiter(start time.Time) *Limiter {
	l := &Limiter{table: limit.New(Buckets), start: start, days: map[limit.Key]day{}}
	hugepage.Collapse(l.table.Memory())
	return l
}

// NewShared makes the limiter of a node that keeps its limits together with others.
func NewShared(start time.Time) *Limiter {
	l := &Limiter{table: limit.New(0), start: start}
	l.leases = quota.New(quota.Keys, func() int64 { return time.Since(start).Nanoseconds() })
	return l
}

// Leases are what the node holds; nil of a node that is alone.
func (l *Limiter) Leases() *quota.Leases { return l.leases }

// Take implements proxy.Limiter. It takes from the last claim first, which is the narrowest: a caller that is over its own
// limit leaves the tenant's and the platform's buckets untouched. Every claim is asked before a request waits, so that one wait serves all.
func (l *Limiter) Take(claims []proxy.Claim, waits int, now time.Time) (refused int, wait <-chan struct{}) {
	at := now.Sub(l.start).Nanoseconds()
	var taken [6]bool
	refused = -1
	for i := len(claims) - 1; i >= 0 && refused < 0; i-- {
		c := &claims[i]
		d := l.take(c, waits, now, at)
		c.RetryAfter = d.RetryAfter
		switch taken[i] = d.Spent; {
		case d.Wait != nil:
			wait = d.Wait
		case !d.OK:
			refused = i
			if d.Over {
				c.RetryAfter = untilMidnight(now)
			}
		}
	}
	if refused < 0 && wait == nil {
		return -1, nil
	}
	for i := range claims {
		if taken[i] {
			l.giveBack(&claims[i], now)
		}
	}
	if refused >= 0 {
		wait = nil
	}
	return refused, wait
}

func (l *Limiter) take(c *proxy.Claim, waits int, now time.Time, at int64) quota.Decision {
	k := c.Bucket
	switch {
	case l.leases != nil:
		return l.leases.Take(quota.Name{Kind: c.Key.Kind.String(), Tenant: c.Key.Tenant, Route: c.Key.Route, Caller: c.Key.Caller}, k, c.Limit, at, waits)
	case c.Limit.Day > 0:
		return l.spendDay(k, c.Limit.Day, now)
	}
	d := l.table.Take(k, c.Alone, at)
	return quota.Decision{OK: d.OK, Spent: d.OK, Remaining: d.Remaining, RetryAfter: d.RetryAfter}
}

func (l *Limiter) giveBack(c *proxy.Claim, now time.Time) {
	k := c.Bucket
	switch {
	case l.leases != nil:
		l.leases.GiveBack(k)
	case c.Limit.Day > 0:
		l.spendDay(k, 0, now)
	default:
		l.table.Refund(k, c.Alone, limit.Decision{OK: true})
	}
}

// Aim implements proxy.Limiter. The claims of a request are of the platform and of one tenant, and those of a route of one route.
func (l *Limiter) Aim(claims []proxy.Claim) {
	var tenant, route string
	ofTenant, ofRoute, ofNone := l.table.Hash(""), l.table.Hash(""), l.table.Hash("")
	for i := range claims {
		c := &claims[i]
		if c.Key.Tenant != tenant {
			tenant, ofTenant = c.Key.Tenant, l.table.Hash(c.Key.Tenant)
		}
		scope := ofNone
		if c.Key.Route != "" {
			if c.Key.Route != route {
				route, ofRoute = c.Key.Route, l.table.Hash(c.Key.Route)
			}
			scope = ofRoute
		}
		c.Bucket = limit.KeyOf(kindOf(c.Key.Kind), ofTenant, scope, l.table.Hash(c.Key.Caller))
		l.table.Foresee(c.Bucket)
		if c.Alone.None() {
			c.Alone = limit.PerSecond(c.Limit.Rate, c.Limit.Burst)
		}
	}
}

func kindOf(k reason.Reason) limit.Kind {
	switch k {
	case reason.RateConsumer:
		return limit.Consumer
	case reason.RateUser:
		return limit.User
	case reason.QuotaConsumer:
		return limit.Daily
	}
	return limit.Tenant
}

// day is what a consumer has spent of one.
type day struct {
	date int64 // days since 1970
	used uint64
}

// spendDay takes one of the day's quota of a node that is alone, which remembers it as long as it runs; a quota of 0 gives
// one back. Consumers are those of the document, so the map is bounded.
func (l *Limiter) spendDay(k limit.Key, quotaOf uint64, now time.Time) quota.Decision {
	l.mu.Lock()
	defer l.mu.Unlock()
	d := l.days[k]
	if today := core.Day(now, d.date); d.date != today {
		d = day{date: today}
	}
	switch {
	case quotaOf == 0:
		d.used -= min(d.used, 1)
	case d.used >= quotaOf:
		return quota.Decision{Over: true}
	default:
		d.used++
	}
	l.days[k] = d
	return quota.Decision{OK: true, Spent: true, Remaining: quotaOf - min(d.used, quotaOf)}
}

// early is how long after midnight a quota may still be told to be spent that isn't: by leases that have not heard of the new day,
// and by controllers whose clocks are behind.
const early = 5 * time.Second

// untilMidnight is how long it is until quotas are new, at 00:00 UTC.
func untilMidnight(now time.Time) time.Duration {
	const day = 24 * time.Hour
	past := now.Sub(now.UTC().Truncate(day))
	if past < early {
		return time.Second
	}
	return day - past
}
