// Package record is what one exchange came to, as the access log, the metrics and the traces are told.
package record

import (
	"net/netip"
	"time"

	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/reason"
)

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
	Pattern    string // by which the route matches paths; only of a Notable exchange
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
	// Tries are the attempts at the upstream; Attempts counts those that a request left for.
	Tries  []Attempt
	Passed Checks
	// Parts are what the parts of the pipeline took, waits included, of an exchange that was timed: one of 64.
	Timed bool
	Parts [Parts]time.Duration
	// Trace is the exchange's span; Outside what the client sent of one: the span above, if it is of the same trace, else a
	// link. The zero value is none.
	Trace, Outside tracecontext.Context
}

// Slow is how long an exchange takes at least that is notable for it.
const Slow = time.Second

// Notable says whether traces may tell of the exchange: its trace is sampled, it failed, or it was slow.
func (r *Record) Notable() bool { return r.Trace.Sampled() || r.Status >= 500 || r.Total >= Slow }

// Checks are the checks that an exchange has passed.
type Checks uint8

// The checks. Authorized says that nobody who was asked had anything against it.
const (
	Authenticated Checks = 1 << iota
	Authorized
	Admitted // by all limits that count it
)
