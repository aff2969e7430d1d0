//go:build linux

package loop

import (
	"context"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
)

const (
	retryFatal          = retry.Fatal
	retryConnectTimeout = retry.ConnectTimeout
)

// attempt picks an endpoint and gets a connection to it: the first beat of pick → send → judge → retry.
func (f *flight) attempt() {
	x, now := f.x, f.l.now
	if why := relay.Choose(x, now); why != reason.None {
		f.fail(why)
		return
	}
	f.took, f.deadline, f.by, f.sent = now, x.UpstreamDeadline(now), time.Time{}, false
	f.trying, f.lane, f.phase = true, f.l.lane(x.Pool), sending
	f.l.sending = append(f.l.sending, sender{f, f.gen})
}

// get takes a connection from the lane, opens one, or waits in line.
func (f *flight) get() {
	f.serve()
	if !f.fresh {
		if u := f.lane.pop(f.x.Endpoint); u != nil {
			f.use(u)
			return
		}
	}
	if f.lane.enter() {
		f.connect(f.x.Endpoint)
		return
	}
	f.queue()
}

// queue waits for a place in the pool.
func (f *flight) queue() {
	w := &wish{f: f, gen: f.gen, lane: f.lane}
	w.ticket = upstream.NewTicket(f.lane.share, w, w.granted)
	f.phase, f.wish = queued, w
	if f.x.Pool.Queue(w.ticket) != nil {
		f.wish = nil
		f.failed(retry.Fatal, reason.PoolFull)
		return
	}
	f.arm()
}

// connect opens a connection in a place that is taken.
func (f *flight) connect(endpoint int) {
	pool := f.x.Pool
	at, literal, err := pool.Literal(endpoint)
	if f.by = f.l.now.Add(pool.Timeouts.Connect); !literal {
		f.resolve(endpoint)
		return
	}
	f.resolved(at, err)
}

// resolve asks for the endpoint's address.
func (f *flight) resolve(endpoint int) {
	f.phase = resolving
	f.arm()
	l, gen, pool, now, until := f.l, f.gen, f.x.Pool, f.l.now, f.limit()
	l.e.helpers.Go(func() {
		ctx, cancel := context.WithDeadline(context.Background(), until)
		defer cancel()
		at, err := pool.Resolve(ctx, endpoint, now)
		l.post(func() {
			if f.gen == gen && f.phase == resolving {
				f.serve()
				f.resolved(at, err)
			}
		})
	})
}

func (f *flight) resolved(at netip.AddrPort, err error) {
	f.phase = resolving
	if err != nil {
		f.failed(retry.ConnectFailed, reason.ConnectFailed)
		return
	}
	fd, done, err := dial(at)
	if exhausted(err) && f.l.makeRoom() {
		fd, done, err = dial(at)
	}
	if err != nil {
		f.failed(relay.Unconnected(err))
		return
	}
	l := f.l
	u := &conn{socket: socket{fd: fd, polled: true}, lane: f.lane, endpoint: f.x.Endpoint, born: l.now, flight: f}
	u.slot = l.take(slot{conn: u, fd: fd})
	f.conn, f.phase = u, connecting
	if l.watch(unix.EPOLL_CTL_ADD, fd, allEvents, u.slot, l.slots[u.slot].gen) != nil {
		f.failed(retry.ConnectFailed, reason.ConnectFailed)
		return
	}
	if done {
		f.use(u)
		return
	}
	f.arm()
}

// connected judges a connect that has ended.
func (f *flight) connected() {
	switch err := connected(f.conn.fd); err {
	case nil:
		f.l.clock()
		f.use(f.conn)
	case syscall.ETIMEDOUT:
		f.failed(retry.ConnectTimeout, reason.ConnectTimeout)
	default:
		f.failed(retry.ConnectFailed, reason.ConnectFailed)
	}
}

// use sends the request on a connection: the head, with the body when that is whole; otherwise the upload begins.
func (f *flight) use(u *conn) {
	x, l := f.x, f.l
	f.conn, u.flight, u.started = u, f, false
	f.phase, f.by, f.interims = awaiting, time.Time{}, 0
	x.Cold = x.Cold || !u.reused
	x.Attempts++
	f.res.Restart()
	f.chunks.Reset()
	length := int64(len(f.body))
	if !f.full {
		length = relay.UploadLength(&x.Request)
	}
	out := append(x.AppendRequest(l.out[:0], length, f.took), f.body...)
	l.out = out[:0]
	// The head of an upload isn't posted: should it not go out, none of the body has been taken, and another attempt may follow.
	f.upload.streaming, f.upload.ended = false, false
	posting := l.posting
	l.posting = posting && f.full
	ok := f.write(out)
	if l.posting = posting; !ok {
		return
	}
	if f.upload.streaming = !f.full; !f.full {
		f.side.pump()
		if f.conn != u {
			return
		}
	}
	f.headBy()
	f.arm()
	if u.canRead && f.phase == awaiting && !u.posted {
		f.readAnswer()
	}
}

// write sends b upstream, or keeps what doesn't go out at once. It is false when the attempt has ended by it.
func (f *flight) write(b []byte) bool {
	n, ok := f.l.send(&f.conn.socket, nil, b)
	f.sent = f.sent || n > 0
	return ok || f.writeFailed()
}

// writeFailed leaves a failure of an upload, of its last piece too, to whoever reads the answer: there may be one already
// (CASES G23), or it is under way.
func (f *flight) writeFailed() bool {
	if f.upload.streaming || f.phase == relaying {
		f.upload.ended, f.upload.whole = true, false
		f.conn.ended, f.conn.canRead = true, true
		f.conn.unsend(f.l)
		f.side.later()
		return true
	}
	f.failed(relay.Broken(nil, f.conn.reused, f.conn.started))
	return false
}

// wrote takes in what became of a write of what waited for the upstream, and goes on with the upload.
func (f *flight) wrote(n int, e syscall.Errno) {
	u := f.conn
	f.sent = f.sent || n > 0
	switch {
	case !f.l.wrote(&u.socket, n, e):
		f.writeFailed()
	case len(u.out) > 0:
	case f.streaming():
		f.side.pump()
	default:
		f.headBy()
		f.arm()
	}
}

// headBy starts the response-header time once the request has been sent.
func (f *flight) headBy() {
	if f.phase == awaiting && f.by.IsZero() && !f.streaming() && len(f.conn.out) == 0 {
		f.by = f.l.now.Add(f.x.Pool.Timeouts.ResponseHeader)
	}
}

// upstreamReady is called when the upstream has sent something, has ended, or can be written to.
func (f *flight) upstreamReady(writable bool) {
	u := f.conn
	if f.phase == connecting {
		if writable || u.ended {
			f.connected()
		}
		return
	}
	if writable && len(u.out) > 0 {
		if f.wrote(f.l.write(u.fd, u.out[u.sent:])); f.conn != u {
			return
		}
	}
	if u.canRead {
		f.hear()
	}
}

// hear reads what the upstream says.
func (f *flight) hear() {
	switch f.phase {
	case awaiting:
		f.readAnswer()
	case relaying:
		f.more()
	}
}

// readAnswer reads until the final head is there.
func (f *flight) readAnswer() {
	u, l := f.conn, f.l
	for u.canRead {
		into := l.in
		if u.in != nil {
			if len(u.in) == cap(u.in) { // the codec refuses a head that outgrows its limit
				u.in = append(u.in, make([]byte, len(u.in))...)[:len(u.in)]
			}
			into = u.in[len(u.in):cap(u.in)]
		}
		n, e := u.read(into)
		if n == 0 {
			if e != syscall.EAGAIN {
				f.failed(relay.Broken(nil, u.reused, u.started))
				return
			}
			break
		}
		b := into[:n]
		if u.in != nil {
			u.in = u.in[:len(u.in)+n]
			b = u.in
		}
		if f.heads(b) {
			return
		}
	}
	f.arm()
}

// heads takes in what has come of heads, interim ones and the final one. It is false when more is needed.
func (f *flight) heads(b []byte) (judged bool) {
	for {
		n, err := f.res.Parse(b)
		switch {
		case err != nil:
			f.failed(relay.Broken(err, f.conn.reused, true))
			return true
		case n == 0:
			f.holdHead(b)
			return false
		case f.res.Status >= 200:
			f.head(b[n:])
			return true
		}
		if f.interims++; f.interims > relay.MaxInterims || f.res.Status == 101 {
			f.failed(retry.Invalid, reason.UpstreamInvalid)
			return true
		}
		if relay.Hints(f.res.Status) {
			f.side.putHint(f.res.Status, f.x.Hint(&f.res))
		}
		if b = b[n:]; len(b) == 0 {
			f.dropHead()
			return false
		}
	}
}

// holdHead keeps the beginning of a head until the rest comes.
func (f *flight) holdHead(b []byte) {
	u := f.conn
	if len(u.in) > 0 && len(b) == len(u.in) && &b[0] == &u.in[0] {
		return
	}
	old := u.in
	u.in = append(f.l.buffers.out(2*len(b)), b...)
	if old != nil {
		f.l.buffers.put(old)
	}
}

func (f *flight) dropHead() {
	f.l.buffers.put(f.conn.in)
	f.conn.in = nil
}

// head judges an answer: it is delivered, or asked for again. rest is what has come of its body.
func (f *flight) head(rest []byte) {
	x := f.x
	f.l.clock()
	if relay.Surplus(x, &f.res, f.conn.reused, len(rest)) {
		f.failed(retry.Stale, reason.UpstreamInvalid)
		return
	}
	f.settle(retry.Answered)
	if x.Machine.Again(retry.Attempt{Result: retry.Answered, Status: f.res.Status, Sent: f.sent}, f.l.now) {
		f.giveUp()
		f.again(false)
		return
	}
	f.deliver(rest)
}

// settle tells the balancer what became of the attempt.
func (f *flight) settle(r retry.Result) {
	took := f.l.now.Sub(f.took)
	f.x.Waited += took
	f.trying = false
	relay.Settle(f.x, r, f.res.Status, f.starved(), took, f.l.now)
}

// failed ends an attempt without an answer: another follows, or why is the client's answer.
func (f *flight) failed(r retry.Result, why reason.Reason) {
	f.l.clock()
	f.settle(r)
	again := f.x.Machine.Again(retry.Attempt{Result: r, Sent: f.sent}, f.l.now)
	f.giveUp()
	if !again {
		f.fail(why)
		return
	}
	f.again(r == retry.Stale)
}

// again begins another attempt, on a new connection at once when a pooled one was stale, since the next is probably as old.
func (f *flight) again(stale bool) {
	if f.fresh = stale; stale {
		f.attempt()
		return
	}
	f.x.Tried.Add(f.x.Endpoint)
	if wait := relay.BackOff(f.x, f.l.now); wait > 0 {
		f.phase, f.deadline, f.by = backingOff, f.l.now.Add(wait), time.Time{}
		f.arm()
		return
	}
	f.attempt()
}

// giveUp lets go of all that the attempt holds; what its connection may still carry belongs to nobody.
func (f *flight) giveUp() {
	f.gen++
	if f.trying {
		f.settle(retry.Fatal)
	}
	if w := f.wish; w != nil {
		f.wish = nil
		w.lane.pool.Withdraw(w.ticket) // if it was served in the same instant, place gives it back
	}
	switch {
	case f.conn != nil:
		f.conn.close()
		f.conn = nil
	case f.phase == resolving:
		f.lane.exit()
	}
	f.phase = judged
}

// deliver begins to stream the upstream's answer to the client.
func (f *flight) deliver(rest []byte) {
	x, res := f.x, &f.res
	x.Answered(res)
	var length int64
	var none bool
	f.kind, length, none = relay.Answer(res, x.Head())
	x.Closing = x.Closing || !f.full && !f.upload.whole
	side := f.side
	side.putHead(length, none)
	f.ending.Begin(x, length)
	x.Upstream = nil // its fields lie in a buffer that the next read overwrites
	f.answered, f.left = true, res.Length
	f.phase, f.since = relaying, f.l.now
	f.by, f.deadline = f.idleBy(), x.Deadline
	f.pass(rest, f.kind == http1.NoBody)
	if f.side == side && f.phase == relaying {
		f.more()
	}
}

func (f *flight) idleBy() time.Time { return f.l.now.Add(f.x.Pool.Timeouts.Idle) }
