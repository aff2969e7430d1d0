package proxy

import (
	"time"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
)

// Shadow is told of exchanges that policies, or limits, in shadow mode are about (J3). It must not block, nor change anything.
type Shadow interface {
	Try(x *Exchange, on *program.Route, as *Identity, now time.Time)
	// Spend takes the claims on limits in shadow mode of the exchange with that id. Id and list are valid during the call only.
	Spend(at *program.Match, id string, from Limiter, list []Claim, now time.Time)
}

// try shows an exchange that what is enforced has let in to what is not.
func try(x *Exchange) Verdict {
	if len(x.match.Route.Shadows) > 0 && x.server.opts.Shadow != nil {
		x.server.opts.Shadow.Try(x, x.match.Route, &x.identity, x.now)
	}
	return Next
}

// Shown is what the exchange says to one of the program's policies; doubled is why it is refused when there are two of a kind.
func (x *Exchange) Shown(policy int32) (c Credentials, doubled reason.Reason) {
	return x.present(x.table.program, &x.table.program.Policies[policy], x.match.Tenant)
}

// spend takes from the buckets that are not enforced yet, for an exchange that those that are have let pass.
func (x *Exchange) spend() {
	x.server.opts.Shadow.Spend(&x.match, x.ID(), x.server.opts.Limits, x.claim(true), x.now)
}
