package proxy

import (
	"sort"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/limit"
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
	auth, n := x.Request.Only(http1.Authorization)
	key, m := x.Request.Only(http1.APIKey)
	if n > 1 || m > 1 {
		return x.refuse(reason.TokenInvalid)
	}
	x.credentials = Credentials{Program: x.table.program, Policy: &x.table.program.Policies[policy],
		Tenant: x.match.Tenant, Authorization: auth, APIKey: key, Peer: x.Peer}
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

// limits takes one request out of every bucket that counts the caller.
func limits(x *Exchange) Verdict {
	r := x.match.Route
	if l := r.Limits.Tenant; l.Requests > 0 && !x.take(limit.Tenant, l, r.ID, x.match.Tenant) {
		return x.refuse(reason.RateTenant)
	}
	if c := x.identity.Consumer; c != "" {
		if rate := consumerRate(x.table.program.Consumers, c); rate > 0 &&
			!x.take(limit.Consumer, snapshot.Rate{Requests: rate, Per: time.Second}, "", c) {
			return x.refuse(reason.RateConsumer)
		}
	}
	if l := r.Limits.User; l.Requests > 0 && !x.take(limit.User, l, r.ID, x.caller()) {
		return x.refuse(reason.RateUser)
	}
	return Next
}

func (x *Exchange) take(k limit.Kind, r snapshot.Rate, scope, id string) bool {
	t := x.server.opts.Limits
	d := t.Take(t.Key(k, x.match.Tenant, scope, id), limit.Of(r, x.table.share), x.server.mono())
	x.retryAfter = d.RetryAfter
	return d.OK
}

// caller is whom a user limit counts: the verified user, else the consumer, else the address.
func (x *Exchange) caller() string {
	switch {
	case x.identity.User != "":
		return x.identity.User
	case x.identity.Consumer != "":
		return x.identity.Consumer
	}
	return x.PeerText
}

func consumerRate(all []program.Consumer, id string) uint64 {
	i := sort.Search(len(all), func(i int) bool { return all[i].ID >= id })
	if i < len(all) && all[i].ID == id {
		return all[i].RatePerSec
	}
	return 0
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
