package engine

import (
	"io"
	"time"

	"github.com/cellgate/cellgate/internal/sockpeek"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
)

// h1Answer is the state of an HTTP/1 answer.
type h1Answer struct {
	relay.Framing
	broken  bool // the client could not be written to
	aborted bool
	left    bool // whole in out, to be sent by turnOver
	begun   bool
	asked   bool  // the client was sent something to see whether it is there
	seen    int64 // of the body, when it was last looked whether it is
}

func (a *h1Answer) begin(c *conn) {
	*a = h1Answer{}
	c.out = outBuffers.Get().(*[]byte)
	*c.out = (*c.out)[:0]
}

func (a *h1Answer) finish(c *conn) {
	if c.out == nil {
		return
	}
	if cap(*c.out) == outSize {
		outBuffers.Put(c.out)
	}
	c.out = nil
}

func (c *conn) hint(int, *http1.Head) {}

// head writes the status line, the fields, and the framing that this client understands.
func (c *conn) head(length int64, none bool) {
	*c.out, c.answer.Framing = relay.AppendHead((*c.out)[:0], c.x, length, none)
	c.inviting.Lock() // from here on the upload's goroutine writes nothing
	c.answer.begun = true
	c.inviting.Unlock()
}

// data appends body. What doesn't fit behind what is waiting goes out in a write of its own.
func (c *conn) data(p []byte) error {
	if len(p) == 0 {
		return nil
	}
	if len(*c.out) > 0 && len(*c.out)+len(p)+http1.MaxChunkHead+2 > outSize {
		if err := c.flush(); err != nil {
			return err
		}
	}
	out := *c.out
	if c.answer.Chunked {
		out = append(append(http1.AppendChunkHead(out, len(p)), p...), "\r\n"...)
	} else {
		out = append(out, p...)
	}
	*c.out = out
	return nil
}

func (c *conn) flush() error {
	if len(*c.out) == 0 {
		return nil
	}
	c.armWrite(c.takeBy())
	_, err := c.nc.Write(*c.out)
	*c.out = (*c.out)[:0]
	c.answer.broken = c.answer.broken || err != nil
	return err
}

// takeBy is when what is written now must have been taken. Most exchanges end sooner, and need no clock for it.
func (c *conn) takeBy() time.Time {
	if most := c.e.opts.TakeTime; c.x.Deadline.Sub(c.x.Start) > most {
		return relay.TakeBy(time.Now(), most, c.x.Deadline)
	}
	return c.x.Deadline
}

// armWrite makes writes fail at the deadline or a few seconds later.
func (c *conn) armWrite(by time.Time) {
	if c.writeBy.Before(by) || c.writeBy.Sub(by) > 5*time.Second {
		c.writeBy = by.Add(3 * time.Second)
		_ = c.nc.SetWriteDeadline(c.writeBy)
	}
}

func (c *conn) end(trailers *http1.Head) error {
	if c.answer.Chunked {
		*c.out = http1.AppendLastChunk(*c.out, trailers)
	}
	if c.mayLeave() {
		c.armWrite(c.x.Deadline)
		c.answer.left = true
		return nil
	}
	return c.flush()
}

// mayLeave says whether the rest of the answer can go out with the wait for the next request: nothing else is to be done
// before that wait, no upload runs, and nothing of the next request is here yet.
func (c *conn) mayLeave() bool {
	return c.turn.Usable() && !c.answer.Closing && c.x.Machine.Replayable && c.r == c.w && c.body.done
}

// abort sends what there is and breaks off. Where only the end of the connection ends the body, a reset tells.
func (c *conn) abort() {
	_ = c.flush()
	c.answer.aborted = true
	if l, ok := c.nc.(interface{ SetLinger(int) error }); ok && c.answer.Bare {
		_ = l.SetLinger(0)
	}
}

func (c *conn) gone() bool {
	return c.peek.Look() == sockpeek.Gone && (c.peek.Dead() || !c.listens())
}

// listens says whether a client that has ended its sending is there. TCP tells only once something is sent: to one that is
// gone that comes back as a reset. An answer under way is enough, unless there was none of it since the last look; ahead of
// it, it is 100 Continue, which means nothing to a client that hasn't asked for it (RFC 9110, section 15.2.1).
func (c *conn) listens() bool {
	a := &c.answer
	switch {
	case a.begun:
		more := c.x.BytesOut > a.seen
		a.seen = c.x.BytesOut
		return more
	case c.x.Request.Minor == 0:
		return false
	case !a.asked:
		a.asked = true
		_, err := io.WriteString(c.nc, relay.Continue)
		return err == nil
	}
	return true
}
