package proxy

import (
	"net/netip"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/reply"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
)

// Tail knows where requests go that still come to an evacuated cell, and whether there is room for those of others.
// It is called on the request path, from many goroutines, and never blocks.
type Tail interface {
	// Pool leads to the cell that the client of the host belongs to now; nil means here.
	Pool(host string, client netip.Addr) *upstream.Pool
	// Room says whether one more request of another cell's client can be taken.
	Room(p cells.Priority) bool
}

// pastStages is where an exchange stands that skips the rest of the pipeline.
const pastStages = 1 << 10

// SetTail makes the server take part in forwarding between cells. Call it before serving.
func (s *Server) SetTail(t Tail) { s.tail.Store(&t) }

// tail hands a client's request on to the cell that its client belongs to, ahead of everything that counts it: the cell
// that executes it authenticates, limits and counts it, once. What another proxy has handed on stays here, so there is
// one hop at most.
func tail(x *Exchange) Verdict {
	t := x.server.tail.Load()
	if t == nil {
		return Next
	}
	if x.Via != "" {
		if !(*t).Room(x.match.Route.Priority) {
			return x.refuse(reason.ForwardRefused)
		}
		return Next
	}
	pool := (*t).Pool(x.host, x.from.Client)
	if pool == nil || x.table.program.Certified(x.match.Route, x.Certificates) { // nobody but this node has seen the client's certificate
		return Next
	}
	x.Pool, x.handed, x.resume = pool, true, x.at+1
	x.Machine = retry.Machine{Rule: retry.Rule{Attempts: 1, OnConnectFailure: true, OnReset: true},
		Reads: true, Idempotent: http1.Idempotent(text(x.Request.Method())), Budget: pool.Budget}
	pool.Budget.Original(x.Start)
	x.at = pastStages
	return Next
}

// Handed says whether the exchange is on its way to another cell.
func (x *Exchange) Handed() bool { return x.handed }

// Stay takes an exchange back that could not be handed on; it goes on in the pipeline as if it had never been.
// The caller vouches that nothing of it was executed elsewhere, or that it may be executed twice.
func (x *Exchange) Stay() {
	x.Pool, x.Machine, x.handed, x.Endpoint, x.Tried, x.at = nil, retry.Machine{}, false, -1, balance.Tried{}, x.resume
	x.Stayed = true
}

// TurnedAway says whether the answer is that of a proxy that has done nothing with the request it was handed.
func (x *Exchange) TurnedAway(res *http1.Response) bool {
	why, _ := res.Find("x-cellgate-reason")
	return x.handed && (string(why) == reason.ForwardRefused.String() || string(why) == reason.Draining.String())
}

// passReason gives the client the reason for which the cell that has the request answered itself. From an upstream the
// field never passes.
func passReason(x *Exchange) {
	if !x.handed || x.Upstream == nil {
		return
	}
	if why, ok := x.Upstream.Find("x-cellgate-reason"); ok {
		reply.Add(&x.own, "X-Cellgate-Reason", why)
	}
}
