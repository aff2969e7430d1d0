// Package relay is the judgement that every engine shares about an exchange's two connections: how an answer is framed for
// its client, what became of an attempt at an upstream, whether a connection can carry another exchange, and how long each
// wait may last. It does no I/O and reads no clock; engines act.
package relay

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/reason"
)

// The rules of connections and bodies in motion.
const (
	SmallBody   = 8 << 10                // is read whole ahead of forwarding, so that it can be sent again
	LookAfter   = 200 * time.Millisecond // how long a client that sends no more may be gone unnoticed, waiting for a head
	LookStream  = time.Second            // and waiting for more of a body
	MaxInterims = 16                     // 1xx answers before the final one

	// While clients are asked to leave, an idle connection gets this long for one more request, which is answered with the
	// request to close: closing it at once could hit a request that is on its way.
	LeaveIdle   = 10 * time.Second
	DrainIdle   = 1500 * time.Millisecond
	DrainAccept = 100 * time.Millisecond

	// Lingering close (RFC 9112, section 9.6): a close while unread bytes wait, or come, would reset the connection and take
	// the answer with it. Many clients look for their answer only when they have sent all: what comes is passed over as long as
	// it comes, and as much as the largest body in the smallest chunks that make sense. A client that was told to close, and
	// sends nothing, is gone long before the silence is over.
	LingerQuiet = time.Second
	LingerTime  = 10 * time.Second
	LingerBytes = proxy.MaxBody + proxy.MaxBody/4

	bodyGrace   = 10 * time.Second       // ahead of any rate
	bodyRate    = 1 << 10                // bytes per second that a request body must reach after the grace
	patience    = 500 * time.Millisecond // a client that asks for less time than this says nothing about the upstream by giving up
	mostBackOff = 25 * time.Millisecond
)

// Continue answers the expectation of a client that waits before it sends its body (RFC 9110, section 15.2.1).
const Continue = "HTTP/1.1 100 Continue\r\n\r\n"

// BodyDeadline is when a body of which n bytes have come must have given more: the exchange's end at the latest.
func BodyDeadline(start time.Time, n int64, end time.Time) time.Time {
	by := start.Add(bodyGrace + time.Duration(n)*time.Second/bodyRate)
	if end.Before(by) {
		return end
	}
	return by
}

// TakeBy is when a client must have taken what it is given now: within most, and not after its exchange has ended. Who takes
// less, whatever time its route has, holds a connection to an upstream for nothing.
func TakeBy(now time.Time, most time.Duration, end time.Time) time.Time {
	if by := now.Add(most); by.Before(end) {
		return by
	}
	return end
}

// Age is the moment from which a connection that begins now is asked to leave: after most, give or take a fifth, or
// about as long as leaveOver when the node is being left already.
func Age(now time.Time, most, leaveOver time.Duration, leaving bool) time.Time {
	if leaving {
		return now.Add(leaveOver/2 + rand.N(leaveOver+1))
	}
	fifth := int64(most / 5)
	return now.Add(most + time.Duration(rand.Int64N(2*fifth+1)-fifth))
}

// BackOff is the wait before another attempt: up to 25 ms, or a tenth of what is left, so that what failed together isn't
// retried together.
func BackOff(x *proxy.Exchange, now time.Time) time.Duration {
	if most := min(mostBackOff, x.Deadline.Sub(now)/10); most > 0 {
		return rand.N(most)
	}
	return 0
}

// HeadReason is the reason of a head that is no HTTP.
func HeadReason(err error) reason.Reason {
	switch {
	case errors.Is(err, http1.ErrFraming):
		return reason.BadFraming
	case errors.Is(err, http1.ErrURL):
		return reason.URLTooLong
	case errors.Is(err, http1.ErrTooLarge):
		return reason.HeaderTooLarge
	case errors.Is(err, http1.ErrTooMany):
		return reason.TooManyHeaders
	}
	return reason.BadRequest
}

// Malformed says whether an error is the codec's: what came is no HTTP.
func Malformed(err error) bool {
	return errors.Is(err, http1.ErrSyntax) || errors.Is(err, http1.ErrFraming) || errors.Is(err, http1.ErrTooLarge) || errors.Is(err, http1.ErrTooMany)
}

// Framing is how an HTTP/1 answer ends.
type Framing struct {
	Chunked bool
	Closing bool // the head said so, or the end of the connection ends the body
	Bare    bool // the end of the connection ends the body
}

// AppendHead appends the status line, the fields, and the framing that this client understands. length is the body's, -1
// when it is not known ahead; none says that no body follows whatever length says.
func AppendHead(dst []byte, x *proxy.Exchange, length int64, none bool) ([]byte, Framing) {
	f := Framing{Closing: x.Closing}
	dst = x.AppendFields(http1.AppendStatusLine(dst, x.Status))
	switch {
	case x.Status == 204: // ends with its head, whoever makes it, and frames nothing (RFC 9112, sections 6.1 and 6.3)
	case length >= 0 && !InChunks(x, none):
		dst = append(dst, "Content-Length: "...)
		dst = strconv.AppendInt(dst, length, 10)
		dst = append(dst, "\r\n"...)
	case none:
	case x.Request.Minor == 0:
		f.Closing, f.Bare = true, true
	default:
		f.Chunked = true
		dst = append(dst, "Transfer-Encoding: chunked\r\n"...)
	}
	if f.Closing {
		dst = append(dst, "Connection: close\r\n"...)
	} else if x.Request.Minor == 0 {
		dst = append(dst, "Connection: keep-alive\r\n"...)
	}
	return append(dst, "\r\n"...), f
}

// Trails says whether trailers may follow a body of known length, be it empty, as they may from an HTTP/2 upstream (CASES G11).
func Trails(x *proxy.Exchange, none bool) bool {
	return !none && x.Upstream != nil && x.Upstream.Trails
}

// InChunks says whether an HTTP/1.1 client gets such a body in chunks, behind which alone there are trailers: those that were
// announced (CASES G19).
func InChunks(x *proxy.Exchange, none bool) bool {
	if x.Request.Minor == 0 || !Trails(x, none) {
		return false
	}
	_, announced := x.Upstream.Find("trailer")
	return announced
}

// Answer says what AppendHead needs to know of an upstream's answer: the length to announce, and whether none follows.
func Answer(res *http1.Response, head bool) (kind http1.Body, length int64, none bool) {
	kind, length = res.Body(head), res.Length
	if kind == http1.InChunks || kind == http1.UntilClose {
		length = -1
	}
	return kind, length, kind == http1.NoBody && (head || res.Status == 204 || res.Status == 304)
}

// UploadLength is the length that a streamed request body is announced with upstream; -1 = in chunks.
func UploadLength(r *http1.Request) int64 {
	if r.Chunked {
		return -1
	}
	return r.Length
}

// Late judges an attempt whose time is up. An upstream that still waits for the client's body is not to blame.
func Late(starved bool) (retry.Result, reason.Reason) {
	if starved {
		return retry.Fatal, reason.BodyTimeout
	}
	return retry.TimedOut, reason.UpstreamTimeout
}

// Unconnected judges a connection that could not be made. What the node itself has run out of is no evidence against the
// endpoint, and there is no more of it for the next one.
func Unconnected(err error) (retry.Result, reason.Reason) {
	for _, ours := range [...]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM} {
		if errors.Is(err, ours) {
			return retry.Fatal, reason.Overloaded
		}
	}
	return retry.ConnectFailed, reason.ConnectFailed
}

// Broken judges a connection that failed before the answer's head was whole. started says that a byte of it had come.
func Broken(err error, reused, started bool) (retry.Result, reason.Reason) {
	switch {
	case Malformed(err):
		return retry.Invalid, reason.UpstreamInvalid
	case reused && !started:
		return retry.Stale, reason.UpstreamReset
	}
	return retry.Reset, reason.UpstreamReset
}

// Hints says whether an interim answer is one for the client: 100 was asked for by nobody but the gateway, and 101 is none
// (RFC 9110, section 15.2).
func Hints(status int) bool { return status > 101 && status < 200 }

// Settle tells the balancer, and keeps for the record, what became of an attempt that took so long. status is that of an answer; starved says that the
// upstream was waiting for the client's body.
func Settle(x *proxy.Exchange, r retry.Result, status int, starved bool, took time.Duration, now time.Time) {
	x.Trail.End(record.Attempt{Result: r, Status: uint16(status), Endpoint: x.Pool.Name(x.Endpoint), Start: now.Add(-took), Took: took})
	hurried := (r == retry.TimedOut || r == retry.ConnectTimeout) && x.Hurried() && took < patience
	switch { // an upstream that gives up on a body that doesn't come isn't to blame either
	case r == retry.Fatal, r == retry.Stale, hurried, r == retry.Reset && starved:
		x.Pool.Cancel(x.Endpoint)
	case r == retry.Answered:
		x.Pool.End(x.Endpoint, status < 500, took, now)
	default:
		x.Pool.End(x.Endpoint, false, took, now)
	}
}

// Doubtful says whether a body may follow that must not: the head announces one, or says nothing where a GET's answer
// would end with the connection. An upstream that sends it all the same would answer the next request with it, and when
// it comes can't be known (CASES G37).
func Doubtful(res *http1.Response, kind http1.Body, head bool) bool {
	if kind != http1.NoBody {
		return false
	}
	return res.Length > 0 || res.Chunked || res.Length < 0 && head && res.Status != 204 && res.Status != 304
}

// Surplus says whether more than the answer came at once on a connection that had carried an exchange before; buffered is
// what lies behind the head. Which of it answers this request can't be known: one that may be repeated asks again on a new
// connection, which has no past.
func Surplus(x *proxy.Exchange, res *http1.Response, reused bool, buffered int) bool {
	m := &x.Machine
	if !reused || !m.Idempotent || !m.Replayable || x.Head() || res.Length < 0 || res.Status == 204 || res.Status == 304 {
		return false
	}
	return int64(buffered) > res.Length
}
