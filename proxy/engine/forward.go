package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
)

// forwarding takes one exchange to its upstream and back: the acting half of retry.Machine. It is pooled.
type forwarding struct {
	x    *proxy.Exchange
	cl   client
	conn *upstream.Conn
	out  []byte
	body []byte // of the request when it is whole
	full bool   // body is the whole request body
	sent bool   // a byte of this attempt may have reached the upstream
	up   upload
	took time.Time // start of the attempt
	by   time.Time // when the answer's head must be there; zero while the request is under way
	now  time.Time // the clock as it was last read: what takes no time needs no new reading
}

var forwardings = sync.Pool{New: func() any { return &forwarding{out: make([]byte, 0, 8<<10)} }}

// forward carries the exchange out. It reports whether both sides of the client's connection are in order afterwards:
// the request read whole, the answer written whole.
func forward(x *proxy.Exchange, cl client) (clean bool) {
	f := forwardings.Get().(*forwarding)
	defer f.recycle()
	f.x, f.cl = x, cl
	var err error
	if f.body, f.full, err = cl.whole(); err != nil {
		return f.fail(bodyReason(err))
	}
	if f.full {
		x.BytesIn = int64(len(f.body))
	}
	if x.Tunnel && !leavesHTTP(cl) {
		return f.fail(reason.UpgradeRefused)
	}
	f.now = time.Now() // the head may have come slowly, which is no time of the upstream's
	for {
		x.Machine.Replayable = f.full
		clean, here := f.attempts()
		if !here {
			return clean
		}
		if judge(x, cl) != proxy.Next {
			return answer(x, cl, f.full)
		}
		f.now = time.Now()
	}
}

// staysHere takes an exchange back that was to go to another cell, if that harms nobody: nothing of it has left, or it may
// be executed twice, and there is time. It is judged and served here then.
func (f *forwarding) staysHere(result retry.Result) bool {
	x := f.x
	if !x.Handed() || result == retry.Fatal && f.sent || f.sent && !(x.Machine.Idempotent && f.full) || !x.UpstreamDeadline(f.now).After(f.now) {
		return false
	}
	x.Stay()
	return true
}

// turnedAway takes the answer of a proxy that did nothing with the request as none. Its connection stays in use.
func (f *forwarding) turnedAway() bool {
	res := &f.conn.Response
	if !f.full || !f.x.TurnedAway(res) {
		return false
	}
	whole := res.Length >= 0 && res.Length <= int64(len(f.conn.Buffered()))
	if whole {
		f.conn.Use(int(res.Length))
	}
	f.x.Pool.Release(f.conn, whole && !res.Close, f.now)
	f.conn = nil
	f.x.Stay()
	return true
}

func (f *forwarding) recycle() {
	f.x, f.cl, f.conn, f.body, f.full, f.sent = nil, nil, nil, nil, false, false
	forwardings.Put(f)
}

// attempts is pick → send → judge → retry. here says that the exchange was to go to another cell and stays.
func (f *forwarding) attempts() (clean, here bool) {
	var tried uint64
	fresh := false
	for {
		i := f.x.Pool.Set.Pick(rand.Uint64(), tried, f.now)
		if i < 0 {
			if i = f.x.Pool.Set.Pick(rand.Uint64(), 0, f.now); i < 0 {
				return f.fail(reason.NoEndpoint), false
			}
		}
		if !f.x.UpstreamDeadline(f.now).After(f.now) {
			return f.fail(f.x.Expired()), false
		}
		result, why := f.attempt(i, fresh)
		f.now = time.Now()
		f.settle(result, f.now)
		status := 0
		if result == retry.Answered {
			status = f.conn.Response.Status
		}
		again := f.x.Machine.Again(retry.Attempt{Result: result, Status: status, Sent: f.sent}, f.now)
		if !again && result == retry.Answered {
			if f.turnedAway() {
				return false, true
			}
			return f.deliver(), false
		}
		f.giveUp()
		if !again {
			if f.staysHere(result) {
				return false, true
			}
			return f.fail(why), false
		}
		if fresh = result == retry.Stale; fresh { // the next pooled connection is probably as old
			continue
		}
		if f.x.Endpoint < 64 {
			tried |= 1 << f.x.Endpoint
		}
		f.backOff()
	}
}

func (f *forwarding) backOff() {
	if wait := relay.BackOff(f.x, f.now); wait > 0 {
		time.Sleep(wait)
		f.now = time.Now()
	}
}

// attempt sends the request to one endpoint and waits for the head of an answer. why is the reason if nothing follows.
func (f *forwarding) attempt(i int, fresh bool) (retry.Result, reason.Reason) {
	f.took, f.by, f.sent = f.now, time.Time{}, false
	f.x.Endpoint = i
	pool, deadline := f.x.Pool, f.x.UpstreamDeadline(f.took)
	pool.Set.Begin(i)
	c, err := pool.Acquire(i, fresh, f.took, deadline)
	if err != nil {
		return noConnection(err)
	}
	if c.Endpoint != i { // it was waited for
		pool.Set.Cancel(i)
		pool.Set.Begin(c.Endpoint)
		f.x.Endpoint = c.Endpoint
	}
	f.conn = c
	f.x.Cold = f.x.Cold || !c.Reused
	f.x.Attempts++
	if err := f.send(deadline); err != nil {
		return f.broken(err)
	}
	return f.await(deadline)
}

// noConnection judges an error of Acquire. Nothing was sent.
func noConnection(err error) (retry.Result, reason.Reason) {
	switch {
	case errors.Is(err, upstream.ErrPoolFull), errors.Is(err, upstream.ErrNoTime):
		return retry.Fatal, reason.PoolFull
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), timedOut(err):
		return retry.ConnectTimeout, reason.ConnectTimeout
	}
	return retry.ConnectFailed, reason.ConnectFailed
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// send writes the head, with the body when that is whole; otherwise it starts the upload.
func (f *forwarding) send(deadline time.Time) error {
	length := int64(len(f.body))
	if !f.full {
		length = relay.UploadLength(&f.x.Request)
	}
	f.out = f.x.AppendRequest(f.out[:0], length, f.took)
	f.conn.ArmWrite(deadline)
	if f.full {
		f.out = append(f.out, f.body...)
		f.conn.ArmRead(f.took, relay.LookAfter, f.headBy(f.took, deadline))
		n, err := f.conn.Send(f.out)
		f.sent = n > 0
		return err
	}
	n, err := f.conn.Write(f.out)
	if f.sent = n > 0; err == nil {
		f.up.start(f.x, f.cl, f.conn, length < 0)
	}
	return err
}

// headBy is when the answer's head must be there: the response-header time after the request was sent, at most deadline.
func (f *forwarding) headBy(now, deadline time.Time) time.Time {
	if f.by.IsZero() && f.up.finished() {
		f.by = now.Add(f.x.Pool.Timeouts.ResponseHeader)
	}
	if f.by.IsZero() || deadline.Before(f.by) {
		return deadline
	}
	return f.by
}

// await waits for the final head. It looks now and then whether the client is still there, and whether the upload has
// failed; an upstream that answers early and stops reading is heard first (CASES G23).
func (f *forwarding) await(deadline time.Time) (retry.Result, reason.Reason) {
	interims := 0
	for now := f.took; ; now = time.Now() { // the first round only takes what Send has found
		by := f.headBy(now, deadline)
		if !now.Before(by) {
			return f.late()
		}
		f.conn.ArmRead(now, relay.LookAfter, by)
		err := f.conn.ReadHead()
		switch {
		case err == nil && f.conn.Response.Status >= 200:
			if relay.Surplus(f.x, &f.conn.Response, f.conn.Reused, len(f.conn.Buffered())) {
				return retry.Stale, reason.UpstreamInvalid
			}
			return retry.Answered, reason.None
		case err == nil && f.x.Switched(&f.conn.Response):
			return retry.Answered, reason.None
		case err == nil:
			if interims++; interims > relay.MaxInterims || f.conn.Response.Status == 101 {
				return retry.Invalid, reason.UpstreamInvalid
			}
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return f.broken(err)
		case f.up.failed() != reason.None:
			return retry.Fatal, f.up.failed()
		case f.cl.gone():
			return retry.Fatal, reason.ClientGone
		}
	}
}

func (f *forwarding) late() (retry.Result, reason.Reason) { return relay.Late(f.up.starved()) }

// broken judges a connection that failed before the answer's head was whole.
func (f *forwarding) broken(err error) (retry.Result, reason.Reason) {
	if why := f.up.failed(); why != reason.None {
		return retry.Fatal, why
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return f.late()
	}
	return relay.Broken(err, f.conn.Reused, f.conn.Started())
}

// settle tells the balancer what became of the attempt.
func (f *forwarding) settle(r retry.Result, now time.Time) {
	took, status := now.Sub(f.took), 0
	f.x.Waited += took
	if r == retry.Answered {
		status = f.conn.Response.Status
	}
	relay.Settle(f.x, r, status, f.up.starved(), took, now)
}

// giveUp closes the attempt's connection; what it may still carry belongs to nobody.
func (f *forwarding) giveUp() {
	if f.conn == nil {
		return
	}
	f.up.stop(f.cl, f.conn)
	f.x.Pool.Release(f.conn, false, f.now)
	f.conn = nil
}

// fail answers in the gateway's own name.
func (f *forwarding) fail(why reason.Reason) bool {
	f.x.Fail(why)
	if why == reason.ClientGone {
		f.cl.abort()
		return false
	}
	return answer(f.x, f.cl, f.full)
}

// answer sends an own answer. read says whether the request was read whole; if not, the connection can't go on.
func answer(x *proxy.Exchange, cl client, read bool) bool {
	if !read {
		x.Closing = true
	}
	b := x.Body()
	cl.head(int64(len(b)), x.Head())
	if !x.Head() {
		if cl.data(b) != nil {
			return false
		}
		x.BytesOut = int64(len(b))
	}
	return cl.end(nil) == nil && read
}

// deliver streams the upstream's answer to the client.
func (f *forwarding) deliver() bool {
	res := &f.conn.Response
	f.x.Answered(res)
	if res.Status == 101 {
		return f.tunnel()
	}
	kind, length, none := relay.Answer(res, f.x.Head())
	f.x.Closing = f.x.Closing || !f.full && !f.up.soon()
	f.cl.head(length, none)
	toClient, err := f.copy(kind)
	if err == nil && toClient == nil {
		var trailer *http1.Head
		if kind == http1.InChunks {
			trailer = &f.conn.Chunks.Trailer
		}
		toClient = f.cl.end(trailer)
	} else {
		f.cl.abort()
		f.x.Truncated = true
	}
	written := f.full || f.up.complete()
	f.up.stop(f.cl, f.conn)
	reusable := err == nil && toClient == nil && written && !res.Close && kind != http1.UntilClose && !relay.Doubtful(res, kind, f.x.Head())
	f.x.Pool.Release(f.conn, reusable, f.now)
	f.conn = nil
	return err == nil && toClient == nil && written
}

// copy passes the body on piece by piece: nothing is read from the upstream before the client has taken the piece before.
func (f *forwarding) copy(kind http1.Body) (toClient, fromUpstream error) {
	left := f.conn.Response.Length
	for kind != http1.NoBody {
		if b := f.conn.Buffered(); len(b) > 0 {
			piece, used, done := b, len(b), false
			switch kind {
			case http1.Counted:
				piece = b[:min(int64(len(b)), left)]
				used = len(piece)
				left -= int64(used)
				done = left == 0
			case http1.InChunks:
				if piece, used, done, fromUpstream = f.conn.Chunks.Next(b); fromUpstream != nil {
					return nil, fromUpstream
				}
			}
			f.x.BytesOut += int64(len(piece))
			if len(piece) > 0 {
				toClient = f.cl.data(piece)
			}
			if f.conn.Use(used); toClient != nil || done {
				return toClient, nil
			}
			continue
		}
		if toClient = f.cl.flush(); toClient != nil {
			return toClient, nil
		}
		if err := f.more(); err != nil {
			if kind == http1.UntilClose && cleanEnd(err) {
				return nil, nil
			}
			return nil, err
		}
	}
	return nil, nil
}

// more waits for the next piece of the upstream's body: at most the idle time of a stream and not past the deadline.
// Meanwhile it looks whether the client is still there and whether the request's body has failed.
func (f *forwarding) more() error {
	begin := time.Now()
	limit := begin.Add(f.x.Pool.Timeouts.Idle)
	if f.x.Deadline.Before(limit) {
		limit = f.x.Deadline
	}
	for now := begin; ; now = time.Now() {
		f.conn.ArmRead(now, lookStream, limit)
		if f.up.failed() != reason.None {
			return errClientGone
		}
		err := f.conn.More()
		if !errors.Is(err, os.ErrDeadlineExceeded) || !now.Before(limit) {
			f.now = time.Now()
			f.x.Waited += f.now.Sub(begin)
			return err
		}
		if f.cl.gone() {
			return errClientGone
		}
	}
}

// cleanEnd: over TLS an end without close_notify is a truncation.
func cleanEnd(err error) bool {
	var alert tls.AlertError
	return errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.As(err, &alert)
}
