package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/internal/sockpeek"
	"github.com/cellgate/cellgate/internal/sockturn"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/handshake"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/reason"
)

// conn is one client connection that speaks HTTP/1, or has not said yet what it speaks. All fields but waits and the
// deadlines that hurry sets belong to the connection's goroutine.
type conn struct {
	e       *Engine
	nc      net.Conn
	x       *proxy.Exchange
	buf     *[]byte
	r, w    int // unread bytes are buf[r:w]
	headEnd int // the head in use lies before it in buf, or in headBuf
	headBuf *[]byte
	out     *[]byte // borrowed while an answer is being made
	peek    sockpeek.Peeker
	turn    sockturn.Turn
	secure  bool
	peer    netip.Addr
	text    string       // peer as text
	altSvc  string       // of the listener
	shown   *auth.Shown  // by a client over TLS
	via     string       // the proxy at the other end, from its certificate; empty for a client
	old     atomic.Int64 // unix nanoseconds from which the client is asked to leave
	waits   atomic.Int64 // unix nanoseconds since when it waits for a request of HTTP/1; 0 = it doesn't

	flying          bool      // an exchange counts as under way
	last            time.Time // when the connection began to wait
	readBy, writeBy time.Time
	body            body
	answer          h1Answer
	inviting        sync.Mutex // held by the upload's goroutine while it answers the client's expectation
}

// The sizes of buffers: what an idle connection keeps, what a request body passes through, what an answer is made in.
// Heads up to http1.MaxHead grow the first.
const (
	inSize   = 4 << 10
	bodySize = 32 << 10
	outSize  = 20 << 10
)

var (
	inBuffers   = sync.Pool{New: func() any { b := make([]byte, inSize); return &b }}
	bodyBuffers = sync.Pool{New: func() any { b := make([]byte, bodySize); return &b }}
	outBuffers  = sync.Pool{New: func() any { b := make([]byte, 0, outSize); return &b }}
)

// putBack returns a buffer to where it came from; those that were grown are left to the garbage collector.
func putBack(b *[]byte) {
	switch len(*b) {
	case inSize:
		inBuffers.Put(b)
	case bodySize:
		bodyBuffers.Put(b)
	}
}

func newConn(e *Engine, nc net.Conn) *conn {
	c := &conn{e: e, nc: nc, x: e.server.Acquire(), buf: inBuffers.Get().(*[]byte)}
	c.peek.Reset(rawConn(nc))
	c.turn.Reset(nc)
	c.turn.Ahead = true // a client may send its next request whenever it likes
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.peer = a.AddrPort().Addr().Unmap()
	}
	c.text = c.peer.String()
	c.last = time.Now()
	c.old.Store(e.age(c.last).UnixNano())
	c.prepare()
	return c
}

// rawConn is what lies below TLS.
func rawConn(nc net.Conn) net.Conn {
	if tc, ok := nc.(*tls.Conn); ok {
		return tc.NetConn()
	}
	return nc
}

// prepare writes what every exchange of the connection has in common.
func (c *conn) prepare() {
	c.x.Peer, c.x.PeerText, c.x.TLS, c.x.Protocol, c.x.Via = c.peer, c.text, c.secure, "HTTP/1.1", c.via
	c.x.AltSvc, c.x.Certificates = c.altSvc, c.shown
}

func (c *conn) close() {
	_ = c.nc.Close()
	c.e.server.Release(c.x)
	putBack(c.buf)
}

// handshake turns the connection into TLS within the header time. It is false when nothing is left to serve here.
func (c *conn) handshake(l Listener) bool {
	ctx, cancel := context.WithTimeout(context.Background(), c.e.opts.HeaderTime)
	defer cancel()
	tc := tls.Server(c.nc, l.TLS)
	if tc.HandshakeContext(ctx) != nil {
		return false
	}
	c.e.mu.Lock()
	c.nc = tc
	c.turn.Reset(tc)
	c.e.mu.Unlock()
	c.secure, c.altSvc = true, l.AltSvc
	state := tc.ConnectionState()
	if l.Via != nil {
		var err error
		if c.via, err = l.Via(state); err != nil {
			return false
		}
	} else {
		c.shown = handshake.Shown(state, tc, c.e.server.Program())
	}
	if other := l.Other[state.NegotiatedProtocol]; other != nil {
		other(tc)
		return false
	}
	c.prepare()
	return true
}

// serve runs exchanges until the connection ends.
func (c *conn) serve() {
	if tc, ok := c.nc.(*tls.Conn); ok && tc.ConnectionState().NegotiatedProtocol == "h2" {
		c.e.h2.serve(c, nil)
		return
	}
	c.waits.Store(c.last.UnixNano())
	for {
		n, err := c.readHead()
		if err == errPreface {
			c.e.h2.serve(c, (*c.buf)[c.r:c.w])
			return
		}
		if err != nil {
			c.refuse(err)
			return
		}
		c.r += n
		if !c.exchange(drive) {
			return
		}
		c.waits.Store(c.last.UnixNano())
		c.compact()
	}
}

var (
	errPreface    = errors.New("engine: HTTP/2 with prior knowledge")
	errQuiet      = errors.New("engine: the connection ended between requests")
	errHeaderTime = errors.New("engine: the head took too long")
)

// readHead reads until a whole head is there. The first byte may take the idle time, the rest the header time.
func (c *conn) readHead() (int, error) {
	if c.w == c.r {
		c.armRead(c.last, c.idle())
		if err := c.turnOver(); err != nil {
			return 0, errQuiet
		}
	}
	if c.w > c.r {
		c.begin(time.Now())
	}
	for {
		if c.w > c.r {
			b := (*c.buf)[c.r:c.w]
			if !c.secure && http1.Preface(b) {
				return 0, errPreface
			}
			if n, err := c.x.Request.Parse(b); n > 0 || err != nil {
				return n, err
			}
			if c.w == len(*c.buf) {
				c.grow()
			}
		}
		first := c.w == c.r
		n, err := c.nc.Read((*c.buf)[c.w:])
		c.w += n
		if n == 0 && err != nil {
			return 0, c.endOfHead(first, err)
		}
		if first {
			c.begin(time.Now())
		}
	}
}

// turnOver sends an answer that was left for now, together with the wait for the next request.
func (c *conn) turnOver() error {
	if c.out == nil {
		return nil
	}
	out := *c.out
	wrote, n, err := c.turn.Do(out, (*c.buf)[c.w:])
	if wrote < len(out) && err == nil {
		_, err = c.nc.Write(out[wrote:])
	}
	c.w += n
	c.answer.finish(c)
	return err
}

// begin marks the arrival of a head's first byte.
func (c *conn) begin(now time.Time) {
	c.waits.Store(0)
	c.x.Start = now
	c.armHead(now)
}

// armHead bounds the rest of the head. It is exact only when the head is not here at once, which readHead's second
// read shows: most heads come in one piece and need no timer of their own.
func (c *conn) armHead(now time.Time) {
	if c.readBy.Sub(now) <= c.e.opts.HeaderTime && c.readBy.Sub(now) > c.e.opts.HeaderTime/2 {
		return
	}
	if c.w > c.r && headEnds((*c.buf)[c.r:c.w]) {
		return
	}
	c.readBy = now.Add(c.e.opts.HeaderTime)
	_ = c.nc.SetReadDeadline(c.readBy)
}

// headEnds is a guess that saves a timer: bytes that end in an empty line.
func headEnds(b []byte) bool { return len(b) > 3 && string(b[len(b)-4:]) == "\r\n\r\n" }

func (c *conn) endOfHead(first bool, err error) error {
	if first {
		return errQuiet
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return errHeaderTime
	}
	return errQuiet
}

func (c *conn) idle() time.Duration {
	if c.e.server.Draining() {
		return relay.DrainIdle
	}
	if c.e.server.Leaving() {
		return relay.LeaveIdle
	}
	return c.e.opts.Idle
}

// armRead sets the read deadline to about now + d; one that lies within the last fifth of it is left alone.
func (c *conn) armRead(now time.Time, d time.Duration) {
	if left := c.readBy.Sub(now); left > d-d/5 && left <= d {
		return
	}
	c.readBy = now.Add(d)
	_ = c.nc.SetReadDeadline(c.readBy)
}

func (c *conn) isOld(now time.Time) bool { return now.UnixNano() > c.old.Load() }

// ageBy makes the connection old at t at the latest.
func (c *conn) ageBy(t time.Time) {
	if t.UnixNano() < c.old.Load() {
		c.old.Store(t.UnixNano())
	}
}

// hurry gives an idle connection until by. It is called from another goroutine: a connection that becomes busy in the
// same moment gets its own deadline again with its next read.
func (c *conn) hurry(by time.Time) {
	if c.waits.Load() != 0 {
		_ = c.nc.SetReadDeadline(by)
	}
}

func (c *conn) grow() {
	bigger := make([]byte, min(2*len(*c.buf), http1.MaxHead+inSize))
	c.w = copy(bigger, (*c.buf)[c.r:c.w])
	c.r = 0
	putBack(c.buf)
	c.buf = &bigger
}

// compact moves what the next request has already sent to the front, of a small buffer again if it fits.
func (c *conn) compact() {
	if c.headBuf != nil {
		putBack(c.headBuf)
		c.headBuf = nil
	}
	to := c.buf
	if len(*c.buf) > inSize && c.w-c.r <= inSize/2 {
		to = inBuffers.Get().(*[]byte)
	}
	c.w = copy(*to, (*c.buf)[c.r:c.w])
	c.r = 0
	if to != c.buf {
		putBack(c.buf)
		c.buf = to
	}
}

// refuse answers a head that could not be read, and closes.
func (c *conn) refuse(err error) {
	if errors.Is(err, errQuiet) || errors.Is(err, http1.ErrForeign) {
		return
	}
	c.x.Refuse(headReason(err))
	c.answer.begin(c)
	answer(c.x, c, false)
	c.answer.finish(c)
	c.x.Finish(time.Now())
	c.linger()
}

// headReason is the reason of a head that could not be read.
func headReason(err error) reason.Reason {
	if errors.Is(err, errHeaderTime) {
		return reason.HeaderTimeout
	}
	return relay.HeadReason(err)
}

// exchange runs one request whose head has been parsed. It says whether the connection can carry another.
func (c *conn) exchange(drive func(*proxy.Exchange, client) bool) bool {
	c.e.server.InFlight.Add(1)
	c.flying = true
	x := c.x
	c.body.begin(c)
	c.answer.begin(c)
	x.Closing = x.Closing || x.Request.Close || c.isOld(x.Start)
	clean := drive(x, c)
	if c.body.interrupted.Load() {
		c.readBy = time.Time{}
	}
	going := clean && !c.answer.Closing && !c.answer.broken && c.body.done
	if c.answer.left && !going {
		_ = c.flush()
	}
	if !c.answer.left || !going {
		c.answer.finish(c)
	}
	c.last = time.Now()
	x.Finish(c.last)
	c.landed()
	c.prepare()
	if !going && !c.answer.broken && !(c.answer.aborted && c.answer.Bare) {
		c.linger()
	}
	return going
}

// landed takes the exchange out of the books, if it is in them.
func (c *conn) landed() {
	if c.flying {
		c.flying = false
		c.e.server.InFlight.Add(-1)
	}
}

// drive takes an exchange through the pipeline and, where it leads there, upstream.
func drive(x *proxy.Exchange, cl client) bool {
	switch judge(x, cl) {
	case proxy.Next:
		return forward(x, cl)
	case proxy.Reply:
		return answer(x, cl, cl.discard())
	}
	return answer(x, cl, false)
}

// judge takes an exchange through the pipeline to its end. Park is what it waited for in vain.
func judge(x *proxy.Exchange, cl client) proxy.Verdict {
	for {
		if v := x.Run(time.Now()); v != proxy.Park {
			return v
		}
		if !park(x, cl) {
			return proxy.Park
		}
	}
}

// park waits for what the pipeline waits for, at most until the deadline.
func park(x *proxy.Exchange, cl client) bool {
	t := time.NewTimer(time.Until(x.Deadline))
	defer t.Stop()
	select {
	case <-x.Wait():
		return true
	case <-t.C:
		x.Fail(reason.TotalTimeout)
		return false
	}
}

// linger lets the client read its answer before the connection is closed.
func (c *conn) linger() {
	if cw, ok := c.nc.(interface{ CloseWrite() error }); ok {
		_ = cw.CloseWrite()
	}
	room := pieces.Get().(*[]byte)
	defer pieces.Put(room)
	now := time.Now()
	end := now.Add(relay.LingerTime)
	for left := relay.LingerBytes; left > 0 && now.Before(end); now = time.Now() {
		by := now.Add(relay.LingerQuiet)
		if end.Before(by) {
			by = end
		}
		_ = c.nc.SetReadDeadline(by)
		n, err := c.nc.Read(*room)
		if left -= n; err != nil {
			return
		}
	}
}
