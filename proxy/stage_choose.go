package proxy

import (
	"cmp"
	"math/rand/v2"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/shed"
	"github.com/cellgate/cellgate/proxy/split"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
)

// choose picks the route's upstream and sets up the machine of attempts.
func choose(x *Exchange) Verdict {
	r := x.match.Route
	i := x.branch(r)
	x.Pool = x.table.pools[i]
	if x.Pool == nil {
		return x.refuse(reason.NoEndpoint)
	}
	if to := x.table.instead[i]; to != nil && x.Pool.Shut(x.now) {
		x.Pool = to
	}
	if !x.Pool.Limit.Enter(shed.Of(r.Priority)) {
		return x.refuse(reason.PoolFull)
	}
	x.limit = x.Pool.Limit
	x.Machine = retry.Machine{Rule: r.Retry.Rule(), Reads: http1.Idempotent(text(x.Request.Method())), Budget: x.Pool.Budget}
	if x.Machine.Idempotent = x.Machine.Reads; !x.Machine.Reads && x.Pool.Idempotent() {
		_, x.Machine.Idempotent = x.Request.Find("idempotency-key")
	}
	x.Pool.Budget.Original(x.Start)
	if h := x.Pool.Hashed(); h.On != upstream.ByNothing {
		x.Key = cmp.Or(h.Key(x.from.Client, cmp.Or(x.identity.Consumer, x.identity.User), &x.Request.Head), rand.Uint64())
	}
	return Next
}

// Hedged says whether the exchange is sent once more, elsewhere, when its answer is late (I8).
func (x *Exchange) Hedged() bool {
	r := x.match.Route
	return r != nil && r.Hedge && !x.handed && !x.Tunnel && string(x.Request.Method()) != "OPTIONS" && x.Machine.Reads
}

// branch is the upstream that the request falls to.
func (x *Exchange) branch(r *program.Route) int32 {
	if len(r.Branches) == 1 {
		return r.Branches[0].Upstream
	}
	i := split.Pick(len(r.Branches), func(i int) uint32 { return r.Branches[i].Weight }, split.PointOf(r.ID, r.Sticky, x.identity.User, x.identity.Consumer, rand.Uint64()))
	return r.Branches[i].Upstream
}
