package upstream

import (
	"net"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/sockpeek"
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
	born time.Time
	idle time.Time // when it was put back
	peek sockpeek.Peeker
}

// bufSize holds most response heads with the beginning of their bodies.
const bufSize = 16 << 10

var buffers = sync.Pool{New: func() any { b := make([]byte, bufSize); return &b }}

func (c *Conn) take() {
	c.buf = buffers.Get().(*[]byte)
	c.r, c.w = 0, 0
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

// Started says whether any byte of an answer has come.
func (c *Conn) Started() bool { return c.w > 0 }

// fill reads once behind the unread bytes; a head larger than the buffer gets a larger one, up to the codec's limit.
func (c *Conn) fill() error {
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

// Alive looks whether an idle connection is still open and quiet. It costs a system call.
func (c *Conn) Alive() bool { return c.peek.Look() == sockpeek.Quiet }
