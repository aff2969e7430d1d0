package engine

import (
	"errors"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
)

// body is the state of an HTTP/1 request body. Read may be called from the upload's goroutine; the connection's own
// goroutine touches nothing of it until that has ended.
type body struct {
	done    bool // read to its end
	chunked bool
	expect  bool  // the client waits for 100 Continue
	left    int64 // of a counted body
	got     int64
	start   time.Time
	chunks  http1.Chunks

	interrupted atomic.Bool // the answer is over: nobody wants the rest
}

func (b *body) begin(c *conn) {
	r := &c.x.Request
	b.done, b.chunked, b.expect, b.left, b.got = !r.HasBody(), r.Chunked, r.Expect, max(r.Length, 0), 0
	b.start = time.Time{}
	b.interrupted.Store(false)
	c.headEnd = c.r
	if b.chunked {
		b.chunks.Reset()
	}
}

// Read reads request body.
func (c *conn) Read(p []byte) (int, error) {
	b := &c.body
	for !b.done {
		if c.r == c.w {
			if err := c.fillBody(); err != nil {
				return 0, err
			}
		}
		n, err := c.takeBody(p)
		if b.got += int64(n); n > 0 || err != nil {
			return n, err
		}
	}
	return 0, io.EOF
}

// takeBody takes what is buffered: all of it that p has room for, since chunks of a byte each would cost a write to the upstream
// each.
func (c *conn) takeBody(p []byte) (n int, err error) {
	b := &c.body
	if !b.chunked {
		have := (*c.buf)[c.r:c.w]
		n = copy(p, have[:min(int64(len(have)), b.left)])
		c.r += n
		b.left -= int64(n)
		b.done = b.left == 0
		return n, nil
	}
	for n < len(p) && c.r < c.w && !b.done {
		have := (*c.buf)[c.r:min(c.w, c.r+len(p)-n)] // Next gives at most what fits then
		data, used, done, err := b.chunks.Next(have)
		c.r += used
		n += copy(p[n:], data)
		if b.done = done; err != nil {
			return n, errBodyFraming
		}
	}
	return n, nil
}

// fillBody reads once behind the head, which stays where it is.
func (c *conn) fillBody() error {
	c.roomForBody(minRoom)
	return c.readBody(c.body.got)
}

// readBody reads once behind the unread bytes; got says how much of the body has come so far.
func (c *conn) readBody(got int64) error {
	if err := c.sayContinue(); err != nil {
		return err
	}
	now := time.Now()
	if c.body.start.IsZero() {
		c.body.start = now
	}
	by := relay.BodyDeadline(c.body.start, got, c.x.Deadline)
	if !by.After(now) {
		return errBodyTimeout
	}
	c.armRead(now, by.Sub(now))
	if c.body.interrupted.Load() {
		return errClientGone
	}
	n, err := c.nc.Read((*c.buf)[c.w:])
	c.w += n
	switch {
	case n > 0:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errBodyTimeout
	}
	return errClientGone
}

// minRoom is the least that a read of body gets.
const minRoom = 4 << 10

// roomForBody makes space for n bytes behind the head and the unread bytes, in another buffer if need be.
func (c *conn) roomForBody(n int) {
	if c.r == c.w {
		c.r, c.w = c.headEnd, c.headEnd
	}
	if len(*c.buf)-c.w >= n {
		return
	}
	room := bodyBuffers.Get().(*[]byte)
	if need := n + c.w - c.r; need > bodySize {
		b := make([]byte, need)
		room = &b
	}
	c.w = copy(*room, (*c.buf)[c.r:c.w])
	if c.r, c.headEnd = 0, 0; c.headBuf == nil {
		c.headBuf = c.buf // until the exchange ends
	}
	c.buf = room
}

// sayContinue answers the expectation of a client that waits for it, once, before its body is read for the first time, unless the
// answer itself has begun.
func (c *conn) sayContinue() error {
	if !c.body.expect {
		return nil
	}
	c.body.expect = false
	c.inviting.Lock()
	defer c.inviting.Unlock()
	if c.answer.begun {
		return nil
	}
	c.armWrite(c.x.Deadline)
	if _, err := io.WriteString(c.nc, relay.Continue); err != nil {
		return errClientGone
	}
	return nil
}

// whole reads a short counted body to its end.
func (c *conn) whole() ([]byte, bool, error) {
	b := &c.body
	if b.done {
		return nil, true, nil
	}
	if b.chunked || b.left > relay.SmallBody {
		return nil, false, nil
	}
	for int64(c.w-c.r) < b.left {
		if missing := int(b.left) - (c.w - c.r); len(*c.buf)-c.w < missing {
			c.roomForBody(missing)
		}
		if err := c.readBody(int64(c.w - c.r)); err != nil {
			return nil, false, err
		}
	}
	p := (*c.buf)[c.r : c.r+int(b.left)]
	c.r += int(b.left)
	b.got, b.left, b.done = b.left, 0, true
	return p, true, nil
}

// discard passes over the body as far as it is buffered, and says whether that was all.
func (c *conn) discard() bool {
	var hole [512]byte
	for !c.body.done && c.r < c.w {
		if _, err := c.takeBody(hole[:]); err != nil {
			return false
		}
	}
	return c.body.done
}

func (c *conn) trailers() *http1.Head {
	if !c.body.chunked {
		return nil
	}
	return &c.body.chunks.Trailer
}

// interrupt makes a Read of the upload's goroutine return. The flag covers the moment between arming and reading.
// readBy belongs to that goroutine still; exchange forgets it afterwards.
func (c *conn) interrupt() {
	c.body.interrupted.Store(true)
	_ = c.nc.SetReadDeadline(time.Unix(1, 0))
}
