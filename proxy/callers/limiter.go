package callers

import (
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/limit"
	"github.com/cellgate/cellgate/reason"
)

// Buckets is how many callers of a node can be short of a full bucket at once before newcomers share one bucket
// (see package limit).
const Buckets = 1 << 17

// Limiter keeps the buckets of the node's callers across snapshots.
type Limiter struct {
	table *limit.Table
	start time.Time
}

var _ proxy.Limiter = (*Limiter)(nil)

// NewLimiter counts its monotonic clock from start.
func NewLimiter(start time.Time) *Limiter { return &Limiter{table: limit.New(Buckets), start: start} }

// Take implements proxy.Limiter. It takes from the last claim first, which is the narrowest: a caller that is over its own
// limit leaves the tenant's bucket untouched.
func (l *Limiter) Take(claims []proxy.Claim, now time.Time) int {
	at := now.Sub(l.start).Nanoseconds()
	for i := len(claims) - 1; i >= 0; i-- {
		c := &claims[i]
		d := l.table.Take(l.key(c), limit.PerSecond(c.Rate, c.Burst), at)
		c.Remaining, c.RetryAfter = float64(d.Remaining), d.RetryAfter
		if !d.OK {
			l.refund(claims[i+1:])
			return i
		}
	}
	return -1
}

func (l *Limiter) refund(claims []proxy.Claim) {
	for i := range claims {
		c := &claims[i]
		l.table.Refund(l.key(c), limit.PerSecond(c.Rate, c.Burst), limit.Decision{OK: true})
		c.Remaining++
	}
}

func (l *Limiter) key(c *proxy.Claim) limit.Key {
	kind := limit.Tenant
	switch c.Key.Kind {
	case reason.RateConsumer:
		kind = limit.Consumer
	case reason.RateUser:
		kind = limit.User
	}
	return l.table.Key(kind, c.Key.Tenant, c.Key.Route, c.Key.Caller)
}
