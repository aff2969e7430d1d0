package proxy

import (
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
)

// authenticate asks who calls. Doubled credentials are no credentials: which of them an upstream would take is unknown.
func authenticate(x *Exchange) Verdict {
	policy := x.match.Route.Policy
	if policy < 0 {
		return Next
	}
	auth, n := x.Request.Only(http1.Authorization)
	key, m := x.Request.Only(http1.APIKey)
	if n > 1 || m > 1 {
		return x.refuse(reason.TokenInvalid)
	}
	x.credentials = Credentials{Program: x.table.program, Policy: &x.table.program.Policies[policy],
		Tenant: x.match.Tenant, Authorization: auth, APIKey: key, Peer: x.client}
	why, wait := x.server.opts.Auth.Authenticate(&x.credentials, &x.identity, x.server.now())
	if wait != nil {
		x.wait = wait
		return Park
	}
	if why != reason.None {
		return x.refuse(why)
	}
	return Next
}
