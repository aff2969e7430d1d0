package proxy

import (
	"net/netip"
	"time"
	"unsafe"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Exchange is one request and its answer. It is pooled: nothing in it outlives Finish.
// Strings in it may point into the request's buffer, which the engine keeps still until Finish.
type Exchange struct {
	server *Server

	// Written by: the engine, before Run. Peer and TLS are of the connection.
	Request  http1.Request
	Start    time.Time
	Peer     netip.Addr
	PeerText string
	Protocol string
	TLS      bool
	// Via is the proxy that handed the request on, from its certificate; empty when the client itself is at the other end.
	Via string
	// AltSvc tells the client where HTTP/3 is served (RFC 7838); empty = nowhere, or the client is there.
	AltSvc string
	// Scratch is the exchange's own buffer for heads that don't come as bytes. A head that does lies in its connection's.
	Scratch []byte

	// Written by: Run.
	at     int
	wait   <-chan struct{}
	Parked bool // at least once

	// Written by: admit.
	id    [32]byte
	table *table
	// Tunnel: the client asks for WebSocket, and gets it if the upstream agrees.
	Tunnel   bool
	Deadline time.Time // of the whole exchange; routing sets it

	// Written by: clientDeadline.
	asked       time.Duration // the client's own limit; 0 = none
	grpcTimeout bool          // it was given in gRPC's form

	// Written by: admit. Who sent the request, and how, by the word of trusted proxies in between.
	client     netip.Addr
	clientText string
	https      bool
	clientRoom [45]byte

	// Written by: target.
	host    string
	path    path.Clean
	query   string
	rewrite [1024]byte

	// Written by: matchRoute.
	match program.Match

	// Written by: tail and Stay.
	handed bool // it goes to another cell, with nothing counted here
	resume int  // the stage after tail

	// Written by: deniedRoute and Revoked.
	denied *denylist.Set // the list that the exchange was last held against

	// Written by: authenticate.
	credentials Credentials
	identity    Identity

	// Written by: choose.
	Pool    *upstream.Pool
	Machine retry.Machine

	// Written by: the engine, while it forwards.
	Endpoint  int // of the last attempt; -1 before the first
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
	Upstream *http1.Response // nil when the gateway answers itself
	// Closing tells the client to make a new connection after this answer. The engine may set it until the head is written.
	Closing bool

	// Written by: the answer stages.
	retryAfter time.Duration
	extra      [maxExtra]extraField
	extras     int
	text       []byte // values of extra fields and the problem document
	body       span

	// Written by: matchRoute, limits and Finish, here so that neither allocates.
	lookup program.Request
	claims [3]Claim
	rec    Record
}

type span struct{ start, end int }

// extraField is a field that the gateway adds to an answer.
type extraField struct {
	name  string
	value span
}

// maxExtra is the most that the answer stages add: each of them adds a fixed few.
const maxExtra = 12

// reset forgets the last request but keeps buffers.
func (x *Exchange) reset() {
	x.at, x.wait, x.Parked = 0, nil, false
	x.table, x.Tunnel, x.Opened, x.denied = nil, false, time.Time{}, nil
	x.Deadline, x.asked, x.grpcTimeout = time.Time{}, 0, false
	x.host, x.path, x.query = "", "", ""
	x.match, x.credentials, x.identity = program.Match{}, Credentials{}, Identity{}
	x.Pool, x.Machine = nil, retry.Machine{}
	x.Endpoint, x.Attempts, x.Waited, x.Cold, x.BytesIn, x.BytesOut, x.Truncated = -1, 0, 0, false, 0, 0, false
	x.Reason, x.Status, x.Upstream, x.Closing = reason.None, 0, nil, false
	x.handed, x.Stayed, x.resume = false, false, 0
	x.retryAfter, x.extras, x.text, x.body = 0, 0, x.text[:0], span{}
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
	x.direct()
	x.table, x.Closing = x.server.table.Load(), true
	x.Deadline = x.Start.Add(snapshot.DefaultTimeout)
	x.Request.Blank()
	x.Fail(why)
}

// Answered takes the upstream's answer for the client.
func (x *Exchange) Answered(res *http1.Response) {
	x.Reason, x.Status, x.Upstream = reason.None, res.Status, res
	x.runAnswer()
}

// text is a string over bytes that stay as they are while the exchange lasts.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// add appends a field to the answer.
func (x *Exchange) add(name string, value []byte) {
	at := len(x.text)
	x.text = append(x.text, value...)
	x.addSpan(name, span{at, len(x.text)})
}

func (x *Exchange) addString(name, value string) {
	x.add(name, unsafe.Slice(unsafe.StringData(value), len(value)))
}

func (x *Exchange) addSpan(name string, s span) {
	x.extra[x.extras] = extraField{name, s}
	x.extras++
}

// headers lets routing see the request's fields.
type headers Exchange

func (h *headers) Get(name string) (string, bool) {
	v, ok := h.Request.Find(name)
	return text(v), ok
}
