package proxy

import (
	"github.com/cellgate/cellgate/proxy/cors"
	"github.com/cellgate/cellgate/reason"
)

// preflighted looks for the route of the request that a browser is going to make, instead of the one of the OPTIONS in which it
// asks for it: that route's CORS policy answers, whether it takes OPTIONS or not. false = this is no preflight, or no such route.
func (x *Exchange) preflighted() bool {
	ask, ok := cors.Asks(&x.Request)
	if !ok {
		return false
	}
	asked := x.lookup
	asked.Method = text(ask.Method)
	x.preflight = x.table.program.Lookup(&asked, &x.match) == reason.None && x.cors() != nil
	return x.preflight
}

// preflight answers a browser that asks whether its script may ask, ahead of everything that knows callers, who don't show
// themselves here. Nothing of it goes further.
func preflight(x *Exchange) Verdict {
	if !x.preflight {
		return Next
	}
	ask, p := cors.Read(&x.Request), x.cors()
	if p.Preflight(&ask).Refused() {
		return x.refuse(reason.CORSRefused)
	}
	x.plain(204)
	p.PutPreflight(&x.own, &ask)
	return Reply
}

// share says which other origins' scripts may read the answer, the gateway's own as well. What another cell has answered has
// passed there, and a preflight that is allowed says more.
func share(x *Exchange) {
	if p := x.cors(); p != nil && !(x.handed && x.Upstream != nil) && !(x.preflight && x.Reason == reason.None) {
		p.Share(&x.own, x.Upstream, cors.Read(&x.Request))
	}
}

// cors is the policy of the exchange's route; nil = none.
func (x *Exchange) cors() *cors.Policy {
	if x.match.Route == nil {
		return nil
	}
	return x.table.program.CORS(x.match.Route)
}
