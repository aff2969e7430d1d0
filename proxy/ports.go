package proxy

import (
	"net/netip"
	"time"

	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/claims"
	"github.com/cellgate/cellgate/proxy/identity"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/session"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Authenticator decides who calls. It is called on the request path, from many goroutines, and never blocks or allocates
// when it has seen the credentials before.
type Authenticator interface {
	// Authenticate judges c at now and, for reason.None, fills id. A non-nil wait means that the answer needs something
	// that is on its way (a key set, a look-up): the exchange parks and asks again when the channel is closed.
	// Scopes belong to the policy, so ScopeMissing is given here too.
	Authenticate(c *Credentials, id *Identity, now time.Time) (why reason.Reason, wait <-chan struct{})
	// Foresee asks the memory for what Authenticate will look up, a step further each time. Only Authorization is known yet.
	Foresee(c *Credentials)
}

// Credentials are what a request says about its caller, and under which rules to judge it. The byte slices belong to the
// request: they are valid during the call only.
type Credentials struct {
	Program       *program.Program         // the program that routed the request
	Policy        *snapshot.Policy         // of that program
	Tenant        string                   // mandatory part of every key (A10)
	Authorization []byte                   // value of the only Authorization header; nil when absent
	APIKey        []byte                   // value of the only X-API-Key header; nil when absent
	Session       session.Shown            // of a session policy
	Certificate   *auth.Shown              // by the connection's client; nil = nothing
	Peer          netip.Addr               // the source that bad signatures are charged to
	Ahead         auth.Ahead               // how far Foresee is
	Fresh         bool                     // they were not known from before and had to be verified
	Asked         *ask.Flight[auth.Result] // the question to a provider that the exchange has waited for
	Caller        *auth.Identity           // whom they came to; given again, only the denylist is asked
}

// Identity is a verified caller. The zero value is anonymous.
type Identity = identity.Told

// Limiter holds the token buckets of the callers, and is asked for a token of each that counts the request.
type (
	Limiter  = claims.Limiter
	Claim    = claims.Claim
	LimitKey = claims.Key
)

// Recorder is told of every finished exchange, by its record.
type (
	Recorder = record.Recorder
	Record   = record.Record
)
