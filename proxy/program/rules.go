package program

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/cellgate/cellgate/snapshot"
)

// rules says in words what holds of an upstream, defaults included.
func rules(u *snapshot.Upstream) map[string]string {
	all := map[string]string{"balance": u.Balance}
	if u.Hash.On != "" {
		all["balance"] = fmt.Sprintf("hash of %s, at most %d%% of the mean an endpoint", u.Hash.On, cmp.Or(u.Hash.Bound, 125))
	}
	if all["slow_start"] = offOr(u.SlowStart, snapshot.DefaultSlowStart); len(u.Where) > 0 {
		all["near"] = "zone first, then region; from 70% of a tier's room on a growing part spills, at 95% all that comes more"
	}
	if o := u.Outlier.OrDefault(); o.Off {
		all["outlier"] = "off"
	} else {
		all["outlier"] = fmt.Sprintf("out for %s × n after %d failures in a row, or %d%% of at least %d; at most %d%% of the endpoints", snapshot.Duration(o.For), o.Consecutive, o.Rate, o.Calls, o.Most)
	}
	if h := u.Health.OrDefault(); h.Path != "" {
		all["health"] = fmt.Sprintf("GET %s every %s within %s; down after %d, up after %d", h.Path, snapshot.Duration(h.Interval), snapshot.Duration(h.Timeout), h.Down, h.Up)
	}
	if b := u.Breaker.OrDefault(); b.Off {
		all["breaker"] = "off"
	} else {
		all["breaker"] = fmt.Sprintf("a zone: open for %s when more than %d%% of at least %d calls in %s fail; then %d probes, restored over %s", snapshot.Duration(b.For), b.Failures, b.Calls, snapshot.Duration(b.Window), b.Probes, snapshot.Duration(b.Restore))
	}
	if u.Fallback != "" {
		all["fallback"] = u.Fallback
	}
	if u.OwnerRegion != "" {
		all["writes"] = strings.Join(append([]string{"to " + u.OwnerRegion}, u.FailoverRegions...), ", else ")
	}
	if t := u.IdentityToken; t != nil {
		all["identity"] = fmt.Sprintf("a token signed by the gateway, for %s, as %s", cmp.Or(t.Audience, u.ID), cmp.Or(t.Issuer, snapshot.DefaultIdentityIssuer))
	}
	if u.Idempotency {
		all["idempotency"] = "writes with an Idempotency-Key are retried when they may not have arrived"
	}
	all["concurrency"] = concurrency(u.Concurrency) + "; background up to 70%, normal up to 90%, critical all"
	all["pool"] = fmt.Sprintf("%d connections and %d waiting a node; beyond: 503 pool_full", u.Pool.MaxConnections, u.Pool.MaxPending)
	return all
}

func concurrency(c snapshot.Concurrency) string {
	switch {
	case c.Adaptive && c.Most > 0:
		return fmt.Sprintf("%d to %d under way, by latency", cmp.Or(c.Least, snapshot.DefaultLeast), c.Most)
	case c.Adaptive:
		return fmt.Sprintf("%d under way and more, by latency", cmp.Or(c.Least, snapshot.DefaultLeast))
	case c.Most > 0:
		return fmt.Sprintf("%d under way", c.Most)
	}
	return "as many as the pool has places"
}

func offOr(d, usual time.Duration) string {
	if d == snapshot.Never {
		return "off"
	}
	return snapshot.Duration(cmp.Or(d, usual))
}
