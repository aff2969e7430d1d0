package proxy

import (
	"github.com/cellgate/cellgate/proxy/claims"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/reason"
)

// buckets names the buckets that count the caller.
func buckets(x *Exchange) Verdict {
	list := x.claim(false)
	if x.claimed = len(list); x.claimed == 0 {
		return Next
	}
	x.server.opts.Limits.Aim(list)
	return Soon
}

// limits takes one request out of every bucket, or out of none.
func limits(x *Exchange) Verdict {
	if list := x.claims[:x.claimed]; len(list) > 0 {
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
	}
	if x.server.opts.Shadow != nil && x.table.program.Tries(x.match.Route) {
		x.spend()
	}
	return Next
}

// claim lists the claims of the exchange on limits that are enforced, or on those that are only tried.
func (x *Exchange) claim(tried bool) []Claim {
	r := x.match.Route
	return claims.Of(x.claims[:0], tried, x.table.program, x.match.Tenant, r, x.identity.Consumer, x.counted(&r.User))
}

// counted is whom a limit of users counts; empty if there is none.
func (x *Exchange) counted(by *program.Rule) string {
	if by.None() {
		return ""
	}
	return x.identity.Counted(x.from.Client, x.from.Text)
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
