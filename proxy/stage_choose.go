package proxy

import (
	"hash/fnv"
	"math/bits"
	"math/rand/v2"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/reason"
)

// choose picks the route's upstream and sets up the machine of attempts.
func choose(x *Exchange) Verdict {
	r := x.match.Route
	x.Pool = x.table.pools[branch(r.Branches, x.splitPoint(r.Sticky))]
	if x.Pool == nil {
		return x.refuse(reason.NoEndpoint)
	}
	on := r.Retry.On
	x.Machine = retry.Machine{
		Rule: retry.Rule{Attempts: r.Retry.Attempts, OnConnectFailure: on&program.OnConnectFailure != 0, OnReset: on&program.OnReset != 0,
			On502: on&program.On502 != 0, On503: on&program.On503 != 0, On504: on&program.On504 != 0},
		Idempotent: idempotent(text(x.Request.Method())),
		Budget:     &x.Pool.Budget,
	}
	x.Pool.Budget.Original(x.Start)
	return Next
}

// idempotent methods may be sent twice (I7).
func idempotent(method string) bool {
	return method == "GET" || method == "HEAD" || method == "OPTIONS"
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
	return stableHash(x.match.Route.ID, id)
}

// stableHash must never change: clients would change sides.
func stableHash(route, id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(route))
	_, _ = h.Write([]byte{0})
	_, _ = h.Write([]byte(id))
	v := h.Sum64() // finalised as in SplitMix64, since FNV leaves the upper bits poor
	v = (v ^ v>>30) * 0xbf58476d1ce4e5b9
	v = (v ^ v>>27) * 0x94d049bb133111eb
	return v ^ v>>31
}

// branch is the upstream whose share of the line holds the point. Shares stand in the author's order, so when the last
// one grows it keeps whom it had.
func branch(all []program.Branch, point uint64) int32 {
	if len(all) == 1 {
		return all[0].Upstream
	}
	var total uint64
	for _, b := range all {
		total += uint64(b.Weight)
	}
	at, _ := bits.Mul64(point, total)
	for _, b := range all {
		if at < uint64(b.Weight) {
			return b.Upstream
		}
		at -= uint64(b.Weight)
	}
	return all[len(all)-1].Upstream
}
