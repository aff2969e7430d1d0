package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
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
	x        *proxy.Exchange
	cl       client
	way      way // of the attempt; nil between attempts
	over     connWay
	on       streamWay
	out      []byte
	body     []byte // of the request when it is whole
	full     bool   // body is the whole request body
	sent     bool   // a byte of this attempt may have reached the upstream
	up       upload
	took     time.Time // start of the attempt
	by       time.Time // when the answer's head must be there; zero while the request is under way
	rival    *rival    // of a hedged exchange; nil = none runs
	hedgeAt  time.Time // when one is due; zero = never
	observed bool      // the latency of the first attempt is known
	now      time.Time // the clock as it was last read: what takes no time needs no new reading
	end      relay.Ending
}

var forwardings = sync.Pool{New: func() any { return &forwarding{out: make([]byte, 0, 8<<10)} }}

// forward carries the exchange out. It reports whether both sides of the client's connection are in order afterwards:
// the request read whole, the answer written whole.
func forward(x *proxy.Exchange, cl client) (clean bool) {
	f := forwardings.Get().(*forwarding)
	defer f.recycle()
	f.x, f.cl = x, cl
	if x.Tunnel { // what the client sends is no body
		if f.full = true; !leavesHTTP(cl) {
			return f.fail(reason.UpgradeRefused)
		}
	} else if err := f.request(); err != nil {
		return f.fail(bodyReason(err))
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

// request takes the body in, if it is short.
func (f *forwarding) request() (err error) {
	if f.body, f.full, err = f.cl.whole(); f.full {
		f.x.BytesIn = int64(len(f.body))
	}
	return err
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
	res := f.way.answer()
	if !f.full || !f.x.TurnedAway(res) {
		return false
	}
	whole := res.Length >= 0 && res.Length <= int64(len(f.way.Buffered()))
	if whole {
		f.way.Use(int(res.Length))
	}
	f.release(whole)
	f.x.Stay()
	return true
}

func (f *forwarding) recycle() {
	f.giveUp() // after a panic there is something to give up
	if f.rival != nil {
		f.leave()
	}
	f.x, f.cl, f.way, f.body, f.full, f.sent, f.rival, f.observed = nil, nil, nil, nil, false, false, nil, false
	forwardings.Put(f)
}

// attempts is pick → send → judge → retry. here says that the exchange was to go to another cell and stays.
func (f *forwarding) attempts() (clean, here bool) {
	fresh := false
	for {
		if why := relay.Choose(f.x, f.now); why != reason.None {
			return f.fail(why), false
		}
		result, why := f.attempt(fresh)
		f.now = time.Now()
		f.settle(result, f.now)
		status := 0
		if result == retry.Answered {
			status = f.way.answer().Status
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
		f.x.Tried.Add(f.x.Endpoint)
		f.backOff()
	}
}

func (f *forwarding) backOff() {
	if wait := relay.BackOff(f.x, f.now); wait > 0 {
		time.Sleep(wait)
		f.now = time.Now()
	}
}

// attempt sends the request to the endpoint that was chosen and waits for the head of an answer. why is the reason if nothing follows.
func (f *forwarding) attempt(fresh bool) (retry.Result, reason.Reason) {
	f.took, f.by, f.sent = f.now, time.Time{}, false
	deadline := f.x.UpstreamDeadline(f.took)
	if err := f.acquire(fresh, deadline); err != nil {
		return noConnection(err)
	}
	if time.Since(f.took) >= relay.LookAfter && f.cl.gone() { // it left while it waited for its turn
		return retry.Fatal, reason.ClientGone
	}
	f.x.Cold = f.x.Cold || !f.way.reused()
	f.x.Attempts++
	f.hedgeAt = time.Time{}
	if f.full && len(f.body) == 0 && f.x.Hedged() {
		if after, ok := f.x.Pool.Hedges.Tail().After(f.took); ok {
			f.hedgeAt = f.took.Add(after)
		}
	}
	if err := f.send(deadline); err != nil {
		return f.broken(err)
	}
	result, why := f.await(deadline)
	if f.rival != nil {
		return f.against(result, why, deadline)
	}
	return result, why
}

// look is how long a read may wait before something else is looked after.
func (f *forwarding) look(now time.Time) time.Duration {
	switch {
	case f.rival != nil:
		return rivalLook
	case !f.hedgeAt.IsZero():
		return max(time.Microsecond, min(relay.LookAfter, f.hedgeAt.Sub(now)))
	}
	return relay.LookAfter
}

// acquire gets a way to the endpoint; when it had to wait it may be one to another.
func (f *forwarding) acquire(fresh bool, deadline time.Time) (err error) {
	pool := f.x.Pool
	if pool.Multiplexed() {
		if f.on.Stream, err = pool.Open(f.x.Endpoint, f.took, deadline); err == nil {
			f.way = &f.on
		}
		return err
	}
	c, err := pool.Acquire(f.x.Endpoint, fresh, f.took, deadline)
	if err != nil {
		return err
	}
	if c.Endpoint != f.x.Endpoint {
		relay.Moved(f.x, c.Endpoint)
	}
	f.over.Conn, f.way = c, &f.over
	return nil
}

// noConnection judges an error of acquire. Nothing was sent.
func noConnection(err error) (retry.Result, reason.Reason) {
	switch {
	case errors.Is(err, upstream.ErrPoolFull), errors.Is(err, upstream.ErrNoTime):
		return retry.Fatal, reason.PoolFull
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), timedOut(err):
		return retry.ConnectTimeout, reason.ConnectTimeout
	case errors.Is(err, upstream.ErrProtocol):
		return retry.ConnectFailed, reason.UpstreamProtocol
	}
	return relay.Unconnected(err)
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
	f.way.ArmWrite(deadline)
	left, err := f.way.send(f, length, deadline)
	if f.sent = left; err == nil && !f.full {
		f.up.start(f.x, f.cl, f.way)
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
		f.way.ArmRead(now, f.look(now), by)
		err := f.way.ReadHead()
		switch {
		case err == nil && f.way.answer().Status >= 200:
			if f.way.surplus(f.x) {
				return retry.Stale, reason.UpstreamInvalid
			}
			return retry.Answered, reason.None
		case err == nil && f.way.opens(f.x):
			return retry.Answered, reason.None
		case err == nil:
			res := f.way.answer()
			if interims++; interims > relay.MaxInterims || res.Status == 101 {
				return retry.Invalid, reason.UpstreamInvalid
			}
			if relay.Hints(res.Status) {
				f.cl.hint(res.Status, f.x.Hint(res))
			}
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return f.broken(err)
		case f.up.failed() != reason.None:
			return retry.Fatal, f.up.failed()
		case f.rival != nil:
			if f.overtaken() {
				f.takeOver(retry.Fatal, time.Now())
				return retry.Answered, reason.None
			}
		case !f.hedgeAt.IsZero() && !time.Now().Before(f.hedgeAt):
			f.challenge(time.Now(), deadline)
		}
		if err != nil && f.cl.gone() {
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
	if errors.Is(err, upstream.ErrNoConnect) {
		return retry.Fatal, reason.UpgradeRefused
	}
	switch { // the endpoint vouches that it did nothing; but what was streamed to it is gone
	case errors.Is(err, upstream.ErrLeft):
		f.sent = f.sent && !f.full
		return retry.Stale, reason.UpstreamReset
	case errors.Is(err, upstream.ErrRefused):
		f.sent = f.sent && !f.full
		return retry.Refused, reason.UpstreamReset
	}
	return relay.Broken(err, f.way.reused(), f.way.Started())
}

// settle tells the balancer what became of the attempt.
func (f *forwarding) settle(r retry.Result, now time.Time) {
	took, status := now.Sub(f.took), 0
	f.x.Waited += took
	if r == retry.Answered {
		status = f.way.answer().Status
	}
	if !f.observed && f.x.Hedged() {
		f.observed = true
		f.x.Pool.Hedges.Tail().Observe(took, now)
	}
	relay.Settle(f.x, r, status, f.up.starved(), took, now)
}

// giveUp closes the attempt's connection; what it may still carry belongs to nobody.
func (f *forwarding) giveUp() {
	if f.way == nil {
		return
	}
	f.up.stop(f.cl, f.way)
	f.release(false)
}

func (f *forwarding) release(reusable bool) {
	f.way.release(f.x.Pool, reusable, f.now)
	f.way = nil
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
	res := f.way.answer()
	opened := f.way.opens(f.x)
	if !opened && f.x.WebSocket.Mistakable(res) {
		f.giveUp()
		return f.fail(reason.UpgradeRefused)
	}
	if f.x.Answered(res); opened {
		return f.tunnel()
	}
	kind, length, none := relay.Answer(res, f.x.Head())
	f.x.Closing = f.x.Closing || !f.full && !f.up.soon()
	f.cl.head(length, none)
	f.end.Begin(f.x, length)
	toClient, err := f.copy(f.way.framing(kind, none))
	if err == nil && toClient == nil {
		toClient = f.cl.end(f.x.Trim(f.way.trailers(kind)))
	} else {
		if toClient != nil || !f.told(err) {
			f.cl.abort()
		}
		f.x.Truncated = true
	}
	written := f.full || f.up.complete()
	f.up.stop(f.cl, f.way)
	f.release(err == nil && toClient == nil && written && kind != http1.UntilClose && !relay.Doubtful(res, kind, f.x.Head()))
	return err == nil && toClient == nil && written
}

// told ends an answer that is not whole with a status, if its caller knows such.
func (f *forwarding) told(err error) bool {
	why := relay.BrokenOff(!time.Now().Before(f.x.Deadline), errors.Is(err, os.ErrDeadlineExceeded))
	if b := (*bodyError)(nil); errors.As(err, &b) && why != reason.TotalTimeout {
		why = b.why
	}
	if errors.Is(err, errClientGone) {
		return false
	}
	body, trailer, ok := f.end.Say(why)
	return ok && f.cl.data(body) == nil && f.cl.end(trailer) == nil
}

// copy passes the body on piece by piece: nothing is read from the upstream before the client has taken the piece before.
func (f *forwarding) copy(kind http1.Body) (toClient, fromUpstream error) {
	left := f.way.answer().Length
	for kind != http1.NoBody {
		if b := f.way.Buffered(); len(b) > 0 {
			piece, used, done := b, len(b), false
			switch kind {
			case http1.Counted:
				piece = b[:min(int64(len(b)), left)]
				used = len(piece)
				left -= int64(used)
				done = left == 0
			case http1.InChunks:
				if piece, used, done, fromUpstream = f.over.Chunks.Next(b); fromUpstream != nil {
					return nil, fromUpstream
				}
			}
			f.x.BytesOut += int64(len(piece))
			if len(piece) > 0 {
				f.end.Gave(piece)
				toClient = f.cl.data(piece)
			}
			if f.way.Use(used); toClient != nil || done {
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
		f.way.ArmRead(now, relay.LookStream, limit)
		if why := f.up.failed(); why != reason.None {
			return &bodyError{why}
		}
		err := f.way.More()
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
