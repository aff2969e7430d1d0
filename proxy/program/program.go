// Package program compiles a snapshot into the machinery that a node runs: one immutable value behind one pointer.
// Validation is its dry run, explain is its look-up with the working shown.
//
//	p, err := program.Compile(snap, previous)          // shards that did not change are taken over from previous
//	why := p.Lookup(&program.Request{Host: …, Method: …, Path: …}, &m)
//	if why == reason.None { m.Route, m.Tenant … }
package program

import (
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy/route"
	"github.com/cellgate/cellgate/snapshot"
)

// Program is one compiled snapshot. It is immutable; what outlives it (pools, buckets, breakers) is kept elsewhere by key.
type Program struct {
	Number    uint64
	Checksum  snapshot.Digest
	Upstreams []snapshot.Upstream // sorted by id; Branch.Upstream indexes it
	Policies  []snapshot.Policy   // sorted by id; Route.Policy indexes it
	Consumers []Consumer          // sorted by id
	Identity  Identity            // CompileIdentity over policies and consumers

	rates   map[string]uint64 // of the consumers' plans, by consumer
	index   *route.Index
	shards  []*shard // in the order of the index's tables
	tenants []string
	names   snapshot.Digest // of the ids that compiled routes refer to by number
	callers snapshot.Digest // of the policies and consumers that Identity was compiled from
	reused  int
}

// Route is what the pipeline needs to know about the route that took a request.
type Route struct {
	ID       string
	Owner    string
	Branches []Branch // one for a plain upstream; weights as the author wrote them
	Sticky   string
	Policy   int32 // index into Program.Policies; -1 = public
	Timeout  time.Duration
	Retry    Retry
	Limits   snapshot.Limits
	Priority cells.Priority

	definition uint64 // hash of what the author wrote
}

// Branch is one destination of a route.
type Branch struct {
	Upstream int32
	Weight   uint32
}

// Retry is the compiled form of snapshot.Retry.
type Retry struct {
	Attempts int
	On       Condition
}

// Condition is a set of retry conditions.
type Condition uint8

// The retry conditions.
const (
	OnConnectFailure Condition = 1 << iota
	OnReset
	On502
	On503
	On504
)

// Consumer is a client organisation.
type Consumer struct{ ID string }

// Request is what routing looks at. Host is in the form of path.Host. Headers may be nil.
type Request = route.Request

// Headers looks a request header up by its lower-case name; ok is false when it is absent.
type Headers = route.Headers

// Match is the result of a look-up; Lookup overwrites it whole.
type Match struct {
	Route  *Route
	Tenant string // id of the tenant that owns the host
	Allow  string // with MethodNotAllowed: the value of the Allow header
}
