package proxy

import (
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// authenticate asks who calls. Doubled credentials are no credentials: which of them an upstream would take is unknown.
func authenticate(x *Exchange) Verdict {
	policy := x.match.Route.Policy
	if policy < 0 {
		return Next
	}
	var ok bool
	if x.credentials, ok = x.present(x.table.program, &x.table.program.Policies[policy], x.match.Tenant); !ok {
		return x.refuse(reason.TokenInvalid)
	}
	why, wait := x.server.opts.Auth.Authenticate(&x.credentials, &x.identity, x.server.now())
	if wait != nil {
		x.wait = wait
		return Park
	}
	if why != reason.None {
		x.doubt()
		return x.refuse(why)
	}
	return Next
}

// present takes the credentials out of the request; ok is false when there are two of a kind.
func (x *Exchange) present(p *program.Program, policy *snapshot.Policy, tenant string) (c Credentials, ok bool) {
	auth, n := x.Request.Only(http1.Authorization)
	key, m := x.Request.Only(http1.APIKey)
	return Credentials{Program: p, Policy: policy, Tenant: tenant, Authorization: auth, APIKey: key, Peer: x.client}, n <= 1 && m <= 1
}
