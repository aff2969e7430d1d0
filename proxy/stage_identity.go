package proxy

import (
	decisions "github.com/cellgate/cellgate/proxy/decide"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/session"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// authenticate asks who calls, and whether he may. Doubled credentials are no credentials: which of them an upstream would take is unknown.
func authenticate(x *Exchange) Verdict {
	policy := x.match.Route.Policy
	if policy < 0 {
		return Next
	}
	c, doubled := x.present(x.table.program, &x.table.program.Policies[policy], x.match.Tenant)
	c.Ahead, c.Asked = x.credentials.Ahead, x.credentials.Asked
	if x.credentials = c; doubled != reason.None {
		return x.refuse(doubled)
	}
	why, wait := x.server.opts.Auth.Authenticate(&x.credentials, &x.identity, x.now)
	if x.wait = wait; wait != nil {
		return Park
	}
	if why == reason.None {
		why = x.table.program.Permits(x.match.Route, x.identity.Facts, x.identity.Consumer)
	}
	if why != reason.None {
		x.doubt()
		why = x.table.program.Misdirected(why, x.host, x.Certificates)
		x.Closing = x.Closing || why == reason.Misdirected // to HTTP/2 and HTTP/3 it means nothing
		return x.refuse(why)
	}
	x.passed |= record.Authenticated | record.Authorized
	return Next
}

// decide asks the service that the route names, if it does, whether the request may pass (G6).
func decide(x *Exchange) Verdict {
	p, asked := x.table.program.Decision(x.match.Route), x.decision.Asked
	if p == nil {
		return Next
	}
	x.decision = x.Case(p)
	x.decision.Asked = asked
	why, wait := x.server.opts.Decisions.Decide(&x.decision, x.now)
	if x.wait = wait; wait != nil {
		return Park
	} else if why != reason.None {
		return x.refuse(why)
	}
	x.passed |= record.Authorized
	return Next
}

// withhold keeps the session's cookie from the upstream: whoever has it is its user.
func withhold(x *Exchange) Verdict {
	x.Request.DropCookie(x.table.program.Withheld(x.match.Route))
	return Next
}

// Case is the exchange as a service sees it that decides about it.
func (x *Exchange) Case(p *snapshot.Decision) decisions.Case {
	return decisions.Case{Policy: p, Policies: x.table.program.PoliciesDigest(), Head: &x.Request.Head, Peer: x.from.Client, Tenant: x.match.Tenant, Route: x.match.Route.ID,
		Method: text(x.Request.Method()), Host: x.host, Path: string(x.path), Query: x.query, Client: x.from.Text, User: x.identity.User,
		Consumer: x.identity.Consumer, Issuer: x.identity.Issuer, Facts: x.identity.Facts}
}

// present takes the credentials out of the request; doubled says that there are two of a kind.
func (x *Exchange) present(p *program.Program, policy *snapshot.Policy, tenant string) (c Credentials, doubled reason.Reason) {
	token, n := x.Request.Only(http1.Authorization)
	key, m := x.Request.Only(http1.APIKey)
	c = Credentials{Program: p, Policy: policy, Tenant: tenant, Authorization: token, APIKey: key, Peer: x.from.Client, Certificate: x.Certificates}
	if s := policy.Session; s != nil {
		c.Session = session.Read(&x.Request, s.Cookie, s.Origins)
	}
	return c, reason.Doubled(n, m)
}
