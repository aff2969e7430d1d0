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
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/route"
	"github.com/cellgate/cellgate/proxy/transform"
	"github.com/cellgate/cellgate/snapshot"
)

// Program is one compiled snapshot. It is immutable; what outlives it (pools, buckets, breakers) is kept elsewhere by key.
type Program struct {
	Number    uint64
	Checksum  snapshot.Digest
	Upstreams []snapshot.Upstream // sorted by id; Branch.Upstream indexes it
	Fallbacks map[int]int         // upstreams by their number: which one is asked while the breakers of another are open
	Policies  []snapshot.Policy   // sorted by id; Route.Policy indexes it
	Consumers []Consumer          // sorted by id

	IdentityKeys []snapshot.IdentityKey
	Identity     Identity // CompileIdentity over policies and consumers

	applied []Applied        // what Policies come to, by the same numbers
	plans   map[string]*Plan // by consumer
	index   *route.Index
	shards  []*shard // in the order of the index's tables
	tenants []string
	limited map[string]snapshot.TenantLimits // of the tenants that have some
	rates   map[string]*Rule                 // what they come to
	trusts  map[string]*Trust                // by the host of routes that ask for certificates
	all     *Rule                            // of all tenants together; nil = no limit
	tries   bool                             // rates of tenants, or plans of consumers, are in shadow mode
	names   snapshot.Digest                  // of the ids that compiled routes refer to by number
	fresh   [][]byte                         // the memory of what this compilation has made
	callers snapshot.Digest                  // of the policies and consumers that Identity was compiled from
	reused  int
}

// Route is what the pipeline needs to know about the route that took a request. Half a cache line: a request seldom meets the
// route of another one.
type Route struct {
	ID string
	*Terms

	definition uint64 // hash of what the author wrote
}

// Terms are what a route says beside its pattern. Routes of a shard that say the same share them.
type Terms struct {
	Settings
	Branches []Branch // one for a plain upstream; weights as the author wrote them
	Rules    []int32  // indexes into Program.Policies of what is asked of an identified caller

	Tenant, User Rule // what Limits come to

	Shadows []int32 // indexes into Program.Policies of what is only tried

	Edits *transform.Rules // nil = messages pass as they are

	Named string // ids of all policies beside auth, a line each
}

// Settings are the comparable part of terms.
type Settings struct {
	Owner    string
	Sticky   string
	Policy   int32 // index into Program.Policies; -1 = public
	CORS     int32 // the same, of a route's CORS policy; -1 = none
	Decision int32 // the same, of its decision policy
	Timeout  time.Duration
	Retry    Retry
	Limits   snapshot.Limits
	Priority cells.Priority
	Hedge    bool
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

// Rule is the same for the machine of attempts.
func (r Retry) Rule() retry.Rule {
	return retry.Rule{Attempts: r.Attempts, OnConnectFailure: r.On&OnConnectFailure != 0, OnReset: r.On&OnReset != 0,
		On502: r.On&On502 != 0, On503: r.On&On503 != 0, On504: r.On&On504 != 0}
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

	table, number int32 // of the route, by which Pattern finds it
}
