package proxy

import (
	"math"
	"time"

	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// limits takes one request out of every bucket that counts the caller, or out of none.
func limits(x *Exchange) Verdict {
	r := x.match.Route
	claims := x.claims[:0]
	if l := r.Limits.Tenant; l.Requests > 0 {
		claims = append(claims, x.claim(reason.RateTenant, l, r.ID, ""))
	}
	if c := x.identity.Consumer; c != "" {
		if rate := x.table.program.Rate(c); rate > 0 {
			claims = append(claims, x.claim(reason.RateConsumer, snapshot.Rate{Requests: rate, Per: time.Second}, "", c))
		}
	}
	if l := r.Limits.User; l.Requests > 0 {
		claims = append(claims, x.claim(reason.RateUser, l, r.ID, x.caller()))
	}
	if len(claims) == 0 {
		return Next
	}
	if i := x.server.opts.Limits.Take(claims, x.server.now()); i >= 0 {
		x.retryAfter = claims[i].RetryAfter
		return x.refuse(claims[i].Key.Kind)
	}
	return Next
}

// claim is one bucket's question: the author's rate divided among the nodes, yet never below one request a second (or the
// rate itself where that is lower), with a burst of a fifth of a period or 20 requests, never below one.
func (x *Exchange) claim(kind reason.Reason, r snapshot.Rate, route, caller string) Claim {
	whole := float64(r.Requests) / max(r.Per.Seconds(), 1e-9)
	n := float64(r.Requests) / float64(x.table.share)
	return Claim{
		Key:   LimitKey{Tenant: x.match.Tenant, Kind: kind, Route: route, Caller: caller},
		Rate:  max(whole/float64(x.table.share), min(whole, 1)),
		Burst: max(1, math.Floor(max(n/5, min(n, 20)))),
	}
}

// caller is whom a user limit counts: the verified user, else the consumer, else the address. Whoever has one IPv6 address
// has its whole /64, so all of that is one caller (H5).
func (x *Exchange) caller() string {
	switch {
	case x.identity.User != "":
		return x.identity.User
	case x.identity.Consumer != "":
		return x.identity.Consumer
	}
	if x.client.Is6() {
		if p, err := x.client.WithZone("").Prefix(64); err == nil {
			return p.String()
		}
	}
	return x.clientText
}

// MaxBody bounds a request body (F5).
const MaxBody = 10 << 20

// payload refuses a body whose announced length is too large; one without a length is counted as it comes.
func payload(x *Exchange) Verdict {
	if x.Request.Length > MaxBody {
		return x.refuse(reason.BodyTooLarge)
	}
	return Next
}
