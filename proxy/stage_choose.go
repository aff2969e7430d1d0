package proxy

import (
	"math/rand/v2"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/split"
	"github.com/cellgate/cellgate/reason"
)

// choose picks the route's upstream and sets up the machine of attempts.
func choose(x *Exchange) Verdict {
	r := x.match.Route
	x.Pool = x.table.pools[x.branch(r)]
	if x.Pool == nil {
		return x.refuse(reason.NoEndpoint)
	}
	on := r.Retry.On
	x.Machine = retry.Machine{
		Rule: retry.Rule{Attempts: r.Retry.Attempts, OnConnectFailure: on&program.OnConnectFailure != 0, OnReset: on&program.OnReset != 0,
			On502: on&program.On502 != 0, On503: on&program.On503 != 0, On504: on&program.On504 != 0},
		Idempotent: idempotent(text(x.Request.Method())),
		Budget:     x.Pool.Budget,
	}
	x.Pool.Budget.Original(x.Start)
	return Next
}

// idempotent methods may be sent twice (I7).
func idempotent(method string) bool {
	return method == "GET" || method == "HEAD" || method == "OPTIONS"
}

// branch is the upstream that the request falls to.
func (x *Exchange) branch(r *program.Route) int32 {
	if len(r.Branches) == 1 {
		return r.Branches[0].Upstream
	}
	i := split.Pick(len(r.Branches), func(i int) uint32 { return r.Branches[i].Weight }, x.splitPoint(r.Sticky))
	return r.Branches[i].Upstream
}

// splitPoint is where in the split the request falls: by a stable hash of a verified identity when the route is sticky,
// the same on every node (A6), else anywhere.
func (x *Exchange) splitPoint(sticky string) uint64 {
	id := ""
	switch sticky {
	case "user":
		id = x.identity.User
		if id == "" {
			id = x.identity.Consumer
		}
	case "consumer":
		id = x.identity.Consumer
	}
	if id == "" {
		return rand.Uint64()
	}
	return split.Point(x.match.Route.ID, id)
}
