package proxy

import (
	"cmp"

	"github.com/cellgate/cellgate/proxy/claims"
	"github.com/cellgate/cellgate/proxy/identity"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/reason"
)

// buckets names the buckets that count the caller.
func buckets(x *Exchange) Verdict {
	r, user := x.match.Route, ""
	if !r.User.None() {
		user = x.caller()
	}
	list := claims.Of(x.claims[:0], x.table.program, x.match.Tenant, r, x.identity.Consumer, user)
	if x.claimed = len(list); x.claimed == 0 {
		return Next
	}
	x.server.opts.Limits.Aim(list)
	return Soon
}

// limits takes one request out of every bucket, or out of none.
func limits(x *Exchange) Verdict {
	list := x.claims[:x.claimed]
	if len(list) == 0 {
		return Next
	}
	i, wait := x.server.opts.Limits.Take(list, x.waits, x.now)
	if wait != nil {
		x.wait, x.waits = wait, x.waits+1
		return Park
	}
	if i >= 0 {
		x.retryAfter = list[i].RetryAfter
		return x.refuse(list[i].Key.Kind)
	}
	x.passed |= record.Admitted
	return Next
}

// caller is whom a user limit counts: the verified user, else the consumer, else the address (H5).
func (x *Exchange) caller() string {
	if id := cmp.Or(x.identity.User, x.identity.Consumer); id != "" {
		return id
	}
	return identity.Address(x.from.Client, x.from.Text)
}

// MaxBody bounds a request body (F5).
const MaxBody = 10 << 20

// payload refuses a body whose announced length is too large; one without a length is counted as it comes.
func payload(x *Exchange) Verdict {
	if x.Request.Length > MaxBody {
		return x.refuse(reason.BodyTooLarge)
	}
	return Next
}
