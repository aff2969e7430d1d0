package upstream

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/sockpeek"
	"github.com/cellgate/cellgate/internal/sockturn"
	"github.com/cellgate/cellgate/proxy/http1"
)

// Conn is one connection to an endpoint. Between Acquire and Release it belongs to one exchange.
type Conn struct {
	net.Conn
	Endpoint int
	Reused   bool           // it has carried an exchange before
	Response http1.Response // of the exchange that holds the connection
	Chunks   http1.Chunks

	pool *Pool
	buf  *[]byte // borrowed while acquired
	r, w int     // unread bytes are buf[r:w]
	some bool    // a byte of the answer has come
	born time.Time
	idle time.Time // when it was put back
	peek sockpeek.Peeker
	turn sockturn.Turn
	late error // of a read that Send has done ahead

	readBy, writeBy time.Time // the deadlines that are set
}

// bufSize holds most response heads with the beginning of their bodies.
const bufSize = 16 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, bufSize); return &b }}

func (c *Conn) take() {
	c.buf = buffers.Get().(*[]byte)
	c.r, c.w, c.some, c.late = 0, 0, false, nil
	c.Response.Restart()
	c.Chunks.Reset()
}

func (c *Conn) drop() {
	if c.buf != nil && len(*c.buf) == bufSize {
		buffers.Put(c.buf)
	}
	c.buf = nil
}

// ReadHead reads on until a whole response head is there. Deadlines are the caller's: after a timeout it may be called again.
func (c *Conn) ReadHead() error {
	for {
		if c.w > c.r {
			n, err := c.Response.Parse((*c.buf)[c.r:c.w])
			if err != nil {
				return err
			}
			if n > 0 {
				c.r += n
				return nil
			}
		}
		if err := c.fill(); err != nil {
			return err
		}
	}
}

// Send writes a whole request. On a plain connection it also waits for the beginning of the answer, which saves a read
// that would come too early; an error of that read is kept for ReadHead. Arm both deadlines before. n is what was written.
func (c *Conn) Send(b []byte) (n int, err error) {
	if !c.turn.Usable() {
		return c.Write(b)
	}
	n, got, err := c.turn.Do(b, *c.buf)
	switch {
	case n == len(b):
		c.w, c.some, c.late = got, got > 0, err
		return n, nil
	case err != nil:
		return n, err
	}
	m, err := c.Write(b[n:])
	return n + m, err
}

// Started says whether any byte of an answer has come.
func (c *Conn) Started() bool { return c.some }

// fill reads once behind the unread bytes; a head larger than the buffer gets a larger one, up to the codec's limit.
func (c *Conn) fill() error {
	if err := c.late; err != nil {
		c.late = nil
		return err
	}
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	if c.w == len(*c.buf) {
		bigger := make([]byte, 2*len(*c.buf))
		c.w = copy(bigger, (*c.buf)[c.r:c.w])
		c.r = 0
		c.drop()
		c.buf = &bigger
	}
	n, err := c.Conn.Read((*c.buf)[c.w:])
	c.w += n
	if n > 0 {
		c.some = true
		return nil
	}
	return err
}

// More reads body bytes once when none are buffered, over the space of those already used.
// The response's head must not be looked at after it.
func (c *Conn) More() error {
	if c.r < c.w {
		return nil
	}
	c.r, c.w = 0, 0
	n, err := c.Conn.Read(*c.buf)
	c.w = n
	if n > 0 {
		return nil
	}
	return err
}

// Buffered is what has been read and not used.
func (c *Conn) Buffered() []byte { return (*c.buf)[c.r:c.w] }

// Use marks n buffered bytes as used.
func (c *Conn) Use(n int) { c.r += n }

// ArmRead sets the read deadline to about now + after, at most limit. One that lies close enough is left alone, because
// setting deadlines costs more than looking at them.
func (c *Conn) ArmRead(now time.Time, after time.Duration, limit time.Time) {
	want := now.Add(after)
	if want.After(limit) {
		want = limit
	} else if c.readBy.After(now.Add(after/2)) && !c.readBy.After(want) {
		return
	}
	c.readBy = want
	_ = c.SetReadDeadline(want)
}

// ArmWrite makes writes fail at some time after by, at most a few seconds later.
func (c *Conn) ArmWrite(by time.Time) {
	if c.writeBy.Before(by) || c.writeBy.Sub(by) > 5*time.Second {
		c.writeBy = by.Add(3 * time.Second)
		_ = c.SetWriteDeadline(c.writeBy)
	}
}

// CloseWrite tells the endpoint that nothing more comes; what it sends can still be read.
func (c *Conn) CloseWrite() error {
	if h, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return c.Conn.Close()
}

// quiet looks whether a connection that carries no exchange is open and has nothing to say. Bytes that came before the
// request was written are no answer to it: taken for one, they would give a client what belongs to another.
// It costs a system call. Over TLS what was decrypted, or read together with an earlier record, counts too.
func (c *Conn) quiet() bool {
	if c.peek.Look() != sockpeek.Quiet {
		return false
	}
	tc, ok := c.Conn.(*tls.Conn)
	if !ok {
		return true
	}
	c.readBy = time.Unix(1, 0)
	_ = tc.SetReadDeadline(c.readBy)
	var one [1]byte
	n, err := tc.Read(one[:])
	return n == 0 && errors.Is(err, os.ErrDeadlineExceeded)
}
