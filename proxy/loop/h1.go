//go:build linux

package loop

import (
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/reason"
)

// A client of HTTP/1 is itself its only flight's side.
var _ side = (*client)(nil)

// ready is called when the client of a flight has sent something, or has ended its side.
func (c *client) ready() {
	f := c.flight
	switch {
	case c.broken:
		f.clientGone()
		return
	case f.phase == collecting:
		c.collect()
		return
	case f.streaming():
		c.pump()
		if c.flight != f {
			return
		}
	}
	if c.ended && c.goneBy.IsZero() && !c.asked { // it may only have ended its sending
		c.goneBy = c.l.now.Add(relay.LookAfter)
		f.arm()
	}
}

// left says whether a client that has ended its sending is gone. TCP tells only once something is sent: to one that is gone
// that comes back as a reset. An answer under way is enough, unless there is none of it for a while; ahead of it, it is
// 100 Continue, which means nothing to a client that hasn't asked for it (RFC 9110, section 15.2.1).
func (c *client) left() bool {
	f := c.flight
	c.goneBy = c.l.now.Add(relay.LookAfter)
	switch {
	case c.broken:
		return true
	case c.secure == nil && (c.ahead.there || !c.l.gone(c.fd)): // what it has sent is still to be read
	case f.answered:
		c.goneBy = c.l.now.Add(relay.LookStream)
		still := len(c.out) > 0 || f.x.BytesOut > c.seen
		c.seen = f.x.BytesOut
		return !still
	case f.x.Request.Minor == 0:
		return true
	case c.asked:
		c.goneBy = time.Time{}
	default:
		c.asked = true
		return !c.send([]byte(relay.Continue), nil)
	}
	return false
}

func (c *client) passOver() bool {
	q := &c.flight.upload
	for !q.done && c.r < c.w {
		_, used, err := q.next(c.in[c.r:c.w])
		if c.r += used; err != nil {
			return false
		}
	}
	return q.done
}

// collect reads a short counted body to its end.
func (c *client) collect() {
	f, q := c.flight, &c.flight.upload
	if q.chunked || q.left > relay.SmallBody {
		f.start()
		return
	}
	f.phase = collecting
	for int64(c.w-c.r) < q.left {
		if !c.canRead || q.expect {
			if !f.wantBody() {
				return
			}
			if !c.canRead {
				f.arm()
				return
			}
		}
		if missing := int(q.left) - (c.w - c.r); len(c.in)-c.w < missing {
			c.grow(c.w - c.r + missing)
		}
		n, more := c.read(c.in[c.w:])
		if !more {
			f.fail(reason.ClientGone)
			return
		}
		c.w += n
		q.got = int64(c.w - c.r)
	}
	f.body = c.in[c.r : c.r+int(q.left)]
	c.r += int(q.left)
	q.got, q.left, q.done, f.full = q.left, 0, true, true
	f.phase = judged
	f.start()
}

func (c *client) invite() bool { return c.send([]byte(relay.Continue), nil) }

func (c *client) pump() {
	f := c.flight
	for n := 0; f.streaming() && !f.conn.blocked(); {
		switch {
		case f.upload.done:
			f.uploaded(&f.upload.chunks.Trailer)
		case c.r < c.w:
			used, alive := c.push(c.in[c.r:c.w])
			if !alive {
				return
			}
			c.r += used
		case n == turns:
			c.later()
			return
		default:
			n++
			if !c.pull() {
				return
			}
		}
	}
	if c.flight == f {
		f.headBy()
		f.arm()
	}
}

// pull reads once from the client. It is false when nothing was there, or the flight has ended by it.
func (c *client) pull() bool {
	f, q := c.flight, &c.flight.upload
	if (q.expect || !c.canRead) && !f.wantBody() {
		return false
	}
	if !c.canRead {
		f.arm()
		return false
	}
	into := f.l.in
	if !q.chunked && q.left < int64(len(into)) {
		into = into[:q.left]
	}
	n, more := c.read(into)
	if !more {
		f.uploadFailed(reason.ClientGone)
		return false
	}
	used, alive := c.push(into[:n])
	if alive && used < n { // the next request has begun
		if len(c.in)-c.w < n-used {
			c.grow(c.w - c.r + n - used)
		}
		c.w += copy(c.in[c.w:], into[used:n])
	}
	return alive
}

// push sends the body on that b holds, of which it has used so much. alive is false when the flight has ended by it.
func (c *client) push(b []byte) (used int, alive bool) {
	f, q := c.flight, &c.flight.upload
	out := f.l.out[:0]
	for used < len(b) && !q.done {
		piece, n, err := q.next(b[used:])
		used += n
		f.x.BytesIn += int64(len(piece))
		switch {
		case err != nil:
			f.uploadFailed(reason.BadFraming)
			return used, false
		case f.x.BytesIn > proxy.MaxBody:
			f.uploadFailed(reason.BodyTooLarge)
			return used, false
		case !q.chunked:
			return used, f.write(piece)
		case len(piece) > 0:
			out = appendChunk(out, piece)
		}
	}
	f.l.out = out[:0]
	return used, len(out) == 0 || f.write(out)
}

// copied is what is copied behind what else is to be written; more is written from where it lies.
const copied = 8 << 10

func (c *client) putHint(int, *http1.Head) {}

func (c *client) putHead(length int64, none bool) {
	c.l.out, c.framing = relay.AppendHead(c.l.out[:0], c.flight.x, length, none)
}

func (c *client) room() int {
	if c.blocked() {
		return 0
	}
	return readSize
}

func (c *client) putBody(p []byte) {
	l := c.l
	switch {
	case c.framing.Chunked:
		l.out = appendChunk(l.out, p)
	case len(p) <= copied:
		l.out = append(l.out, p...)
	default:
		c.send(l.out, p)
		l.out = l.out[:0]
	}
}

func (c *client) putEnd(trailer *http1.Head) {
	if c.framing.Chunked {
		c.l.out = http1.AppendLastChunk(c.l.out, trailer)
	}
}

func (c *client) sendOut() bool {
	if out := c.l.out; len(out) > 0 {
		c.l.out = out[:0]
		c.send(out, nil)
	}
	return !c.broken
}

func (c *client) allSent() bool { return len(c.out) == 0 }

func (c *client) later() { c.l.later(c) }

// finished goes on with the connection, lingers, or closes it. After half an answer it lingers too: those before it may be on their
// way still, and a reset because of requests that nobody has read would take them.
func (c *client) finished(goes, aborted bool) {
	c.flight, c.goneBy, c.asked, c.seen = nil, time.Time{}, false, 0
	switch {
	case c.broken || c.mute || aborted && (c.framing.Bare || len(c.out) > 0):
		if c.framing.Bare { // nothing else tells that something is missing
			reset(c.fd)
		}
		c.drop()
	case goes && !c.framing.Closing:
		c.next()
	default:
		c.linger()
	}
}
