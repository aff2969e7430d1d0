package proxy

import (
	"net/netip"
	"time"

	"github.com/cellgate/cellgate/proxy/program"
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
}

// Credentials are what a request says about its caller, and under which rules to judge it. The byte slices belong to the
// request: they are valid during the call only.
type Credentials struct {
	Program       *program.Program // the program that routed the request
	Policy        *snapshot.Policy // of that program
	Tenant        string           // mandatory part of every key (A10)
	Authorization []byte           // value of the only Authorization header; nil when absent
	APIKey        []byte           // value of the only X-API-Key header; nil when absent
	Peer          netip.Addr       // the source that bad signatures are charged to
	// Fresh is set when they were not known from before and had to be verified.
	Fresh bool
}

// Identity is a verified caller. The zero value is anonymous.
type Identity struct {
	User     string // the token's subject; empty for an API key
	Consumer string // id of the consumer by the token's consumer_claim or the API key; empty when it has none
	Issuer   string
}

// Limiter holds the token buckets of the callers.
type Limiter interface {
	// Take takes one token for every claim or none at all. It returns the index of the claim that refused, or -1.
	// It fills Remaining of all claims, and RetryAfter of the one that refused.
	Take(claims []Claim, now time.Time) int
}

// Claim asks one bucket for one token.
type Claim struct {
	Key   LimitKey
	Rate  float64 // tokens per second, > 0: the node's share, never below 1
	Burst float64 // tokens, ≥ 1

	Remaining  float64       // tokens left after this request
	RetryAfter time.Duration // until one token will be there
}

// LimitKey names a bucket. It is comparable.
type LimitKey struct {
	Tenant string        // mandatory
	Kind   reason.Reason // RateTenant, RateConsumer or RateUser: also the reason of a refusal
	Route  string        // id; empty for a consumer's plan
	Caller string        // user or consumer id; empty for a tenant's limit
}

// Recorder is told of every finished exchange: the access log is one, the metrics are another.
type Recorder interface {
	// Record must not block and must not keep r or anything in it.
	Record(r *Record)
}

// Record is what one exchange came to. Its strings may point into request buffers: valid during the call only.
type Record struct {
	Start     time.Time
	Total     time.Duration // whole exchange as the client saw it; of a tunnel its opening
	Open      time.Duration // how long a tunnel stood
	Upstream  time.Duration // of it, waiting for and reading from the upstream
	RequestID string
	Peer      netip.Addr // the client; not the proxy that it came through
	Protocol  string     // "HTTP/1.1", "HTTP/2.0", "HTTP/3.0"
	TLS       bool
	Method    string
	Host      string
	Path      string // normalised, without query
	// Status as sent; 499 when the client went away before the head. An own answer to a gRPC caller counts by its reason,
	// not by the 200 that was sent.
	Status     int
	Reason     reason.Reason
	Snapshot   uint64 // number of the program that served it
	Tenant     string
	Route      string
	Owner      string
	UpstreamID string
	Endpoint   string // address of the last attempt
	Attempts   int    // requests sent upstream
	User       string
	Consumer   string
	BytesIn    int64 // request body, or what went through a tunnel from the client
	BytesOut   int64 // response body, or what went through a tunnel to the client
	Truncated  bool  // the body ended before its end
	// Handed: another cell had it, named by UpstreamID, and counts it. Stayed: none could be had, so it was served here.
	Handed, Stayed bool
	// Via is the proxy of the evacuated cell that handed it on; empty when it came from the client.
	Via string
	// Service is the upstream that the exchange was for, also when it never got there; empty without a route.
	Service string
	// Cold: it waited for a new connection to the upstream, for keys, or for a credential to be verified the first time.
	Cold bool
}
