package proxy

import (
	"net/netip"
	"time"
	"unsafe"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/proxy/claims"
	decisions "github.com/cellgate/cellgate/proxy/decide"
	"github.com/cellgate/cellgate/proxy/hops"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/reply"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/shed"
	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/proxy/websocket"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Exchange is one request and its answer. It is pooled: nothing in it outlives Finish.
// Strings in it may point into the request's buffer, which the engine keeps still until Finish.
type Exchange struct {
	server *Server

	// Written by: the engine, before Run. Peer and TLS are of the connection.
	Request      http1.Request
	Start        time.Time
	Peer         netip.Addr
	PeerText     string
	Protocol     string
	TLS          bool
	Certificates *auth.Shown // by the client of a TLS connection; nil = it isn't one, or a proxy of the world is there
	// Via is the proxy that handed the request on, from its certificate; empty when the client itself is at the other end.
	Via string
	// AltSvc tells the client where HTTP/3 is served (RFC 7838); empty = nowhere, or the client is there.
	AltSvc string
	// Scratch is the exchange's own buffer for heads that don't come as bytes. A head that does lies in its connection's.
	Scratch []byte

	// Written by: Run.
	now    time.Time
	at     int
	wait   <-chan struct{}
	Parked bool // at least once
	watch  record.Watch
	passed record.Checks

	ahead program.Ahead // by aim and foresee
	// Written by: buckets and limits.
	claimed, waits int

	// Written by: admit.
	id [32]byte
	// Trace is the exchange's own span; Outside the client's: the one above if it is of the same trace, else a link (G7).
	Trace, Outside tracecontext.Context
	table          *table
	// Tunnel: the client asks for WebSocket, and gets it if the upstream agrees.
	Tunnel    bool
	WebSocket websocket.Handshake
	Deadline  time.Time // of the whole exchange; routing sets it

	// Written by: clientDeadline.
	asked       time.Duration // the client's own limit; 0 = none
	grpcTimeout bool          // it was given in gRPC's form

	// Written by: admit. Who sent the request, and how, by the word of trusted proxies in between.
	from hops.Sender

	// Written by: target.
	host  string
	path  path.Clean
	query string
	room  [1024]byte

	// Written by: matchRoute.
	match     program.Match
	preflight bool // a browser asks, and the route's CORS policy answers

	// Written by: tail and Stay.
	handed bool // it goes to another cell, with nothing counted here
	resume int  // the stage after tail

	// Written by: deniedRoute and Revoked.
	denied *denylist.Set // the list that the exchange was last held against

	// Written by: authenticate.
	credentials Credentials
	identity    Identity
	decision    decisions.Case // by decide

	// Written by: rewrite.
	rewritten []byte // the path that the upstream gets; empty = the client's

	// Written by: choose.
	Pool    *upstream.Pool
	Machine retry.Machine
	Key     uint64      // what balancing by a key goes by
	limit   *shed.Limit // that the exchange counts in; nil = none

	// Written by: the engine, while it forwards.
	Endpoint  int // of the last attempt; -1 before the first
	Tried     balance.Tried
	Trail     record.Trail // of all attempts; relay keeps it
	Attempts  int
	Waited    time.Duration // on the upstream
	Cold      bool          // a connection was made for it
	BytesIn   int64
	BytesOut  int64
	Truncated bool
	Opened    time.Time // when the connection left HTTP for a tunnel
	// Stayed: it was to go to another cell, which could not be had, and is served here.
	Stayed bool

	// Written by: Fail and Answered, read by the answer stages.
	Reason   reason.Reason
	Status   int
	given    int             // the upstream's status; what a transform makes of it is Status
	Upstream *http1.Response // nil when the gateway answers itself
	// Closing tells the client to make a new connection after this answer. The engine may set it until the head is written.
	Closing bool

	// Written by: the answer stages.
	retryAfter time.Duration
	own        reply.Reply // what the gateway itself says

	// Written by: matchRoute, limits and Finish, here so that neither allocates.
	lookup program.Request
	claims [claims.Most]Claim
	rec    Record
}

// reset forgets the last request but keeps buffers.
func (x *Exchange) reset() {
	x.at, x.wait, x.claimed, x.waits, x.Parked, x.watch, x.passed = 0, nil, 0, 0, false, record.Watch{}, 0
	x.Trail.Reset()
	x.table, x.Tunnel, x.WebSocket, x.Opened, x.denied = nil, false, websocket.Handshake{}, time.Time{}, nil
	x.Deadline, x.asked, x.grpcTimeout = time.Time{}, 0, false
	x.host, x.path, x.query = "", "", ""
	x.ahead = program.Ahead{}
	x.match, x.credentials, x.identity, x.decision, x.preflight = program.Match{}, Credentials{}, Identity{}, decisions.Case{}, false
	x.Pool, x.Machine = nil, retry.Machine{}
	x.Endpoint, x.Tried, x.Attempts, x.Waited, x.Cold, x.BytesIn, x.BytesOut, x.Truncated = -1, balance.Tried{}, 0, 0, false, 0, 0, false
	x.Reason, x.Status, x.Upstream, x.Closing, x.retryAfter, x.rewritten, x.given = reason.None, 0, nil, false, 0, x.rewritten[:0], 0
	x.handed, x.Stayed, x.resume, x.Trace, x.Outside = false, false, 0, tracecontext.Context{}, tracecontext.Context{}
	x.own.Reset()
}

// ID is the request id, 32 hex digits.
func (x *Exchange) ID() string { return unsafe.String(&x.id[0], len(x.id)) }

// Head says whether the method is HEAD, whose answers have no body.
func (x *Exchange) Head() bool { return string(x.Request.Method()) == "HEAD" }

// Fail makes the gateway answer itself for this reason.
func (x *Exchange) Fail(why reason.Reason) {
	x.Reason, x.Status, x.Upstream = why, why.Status(), nil
	x.runAnswer()
}

// Refuse answers a request whose head could not be read. Nothing of the head is used.
func (x *Exchange) Refuse(why reason.Reason) {
	x.newID()
	x.from.Direct(x.Peer, x.PeerText, x.TLS)
	x.table, x.Closing = x.server.table.Load(), true
	x.Deadline = x.Start.Add(snapshot.DefaultTimeout)
	x.Request.Blank()
	x.Fail(why)
}

// Answered takes the upstream's answer for the client.
func (x *Exchange) Answered(res *http1.Response) {
	x.Reason, x.Status, x.Upstream, x.given = reason.None, x.WebSocket.Status(res), res, res.Status
	if !x.WebSocket.Agreed(res) {
		x.Status = x.rules().Status(x.Status)
	}
	x.runAnswer()
}

// text is a string over bytes that stay as they are while the exchange lasts.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// headers lets routing see the request's fields.
type headers Exchange

func (h *headers) Get(name string) (string, bool) {
	v, ok := h.Request.Find(name)
	return text(v), ok
}
