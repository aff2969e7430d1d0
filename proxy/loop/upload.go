//go:build linux

package loop

import (
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/reason"
)

// upload is the state of a request body: how much of it has been read, and, of one that is streamed beside the answer,
// how much of it has gone on. Nothing is read while the upstream has not taken what was read before.
type upload struct {
	done    bool // read to its end
	chunked bool
	expect  bool // the client waits for 100 Continue
	left    int64
	got     int64
	start   time.Time // of the first wait for it
	chunks  http1.Chunks

	streaming bool // it is sent on as it comes
	ended     bool // no more of it will be sent on
	whole     bool // all of it was
}

func (q *upload) begin(r *http1.Request) {
	q.done, q.chunked, q.expect, q.left, q.got = !r.HasBody(), r.Chunked, r.Expect, max(r.Length, 0), 0
	q.start, q.streaming, q.ended, q.whole = time.Time{}, false, false, false
	if q.chunked {
		q.chunks.Reset()
	}
}

// next takes the next piece of body from b, which is not empty.
func (q *upload) next(b []byte) (piece []byte, used int, err error) {
	if q.chunked {
		piece, used, q.done, err = q.chunks.Next(b)
	} else {
		used = int(min(int64(len(b)), q.left))
		piece = b[:used]
		q.left -= int64(used)
		q.done = q.left == 0
	}
	q.got += int64(len(piece))
	return piece, used, err
}

// by is when more of the body must have come.
func (q *upload) by(end time.Time) time.Time {
	if q.start.IsZero() {
		return end
	}
	return relay.BodyDeadline(q.start, q.got, end)
}

func (f *flight) streaming() bool { return f.upload.streaming && !f.upload.ended }

// starved says whether the client is what the upload waits for.
func (f *flight) starved() bool {
	return f.streaming() && !f.upload.done && f.conn != nil && len(f.conn.out) == 0
}

// passOver passes over the body as far as it is at hand, and says whether that was all of it.
func (f *flight) passOver() bool {
	c, q := f.client, &f.upload
	for !q.done && c.r < c.w {
		_, used, err := q.next(c.in[c.r:c.w])
		if c.r += used; err != nil {
			return false
		}
	}
	return q.done
}

// collect reads a short counted body to its end.
func (f *flight) collect() {
	c, q := f.client, &f.upload
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

// wantBody answers the expectation of a client that waits for it, once, and starts the body's clock.
func (f *flight) wantBody() bool {
	q := &f.upload
	if q.start.IsZero() {
		q.start = f.l.clock()
	}
	if q.expect {
		q.expect = false
		if !f.client.send([]byte(relay.Continue), nil) {
			f.clientGone()
			return false
		}
	}
	return true
}

// turns is how often one connection reads in a row while others wait.
const turns = 8

// pump sends on what the client has sent of its body.
func (f *flight) pump() {
	c := f.client
	for n := 0; f.streaming() && len(f.conn.out) == 0; {
		switch {
		case f.upload.done:
			f.uploaded()
		case c.r < c.w:
			used, alive := f.push(c.in[c.r:c.w])
			if !alive {
				return
			}
			c.r += used
		case n == turns:
			f.l.later(c)
			return
		default:
			n++
			if !f.pull() {
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
func (f *flight) pull() bool {
	c, q := f.client, &f.upload
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
	used, alive := f.push(into[:n])
	if alive && used < n { // the next request has begun
		if len(c.in)-c.w < n-used {
			c.grow(c.w - c.r + n - used)
		}
		c.w += copy(c.in[c.w:], into[used:n])
	}
	return alive
}

// push sends the body on that b holds, of which it has used so much. alive is false when the flight has ended by it.
func (f *flight) push(b []byte) (used int, alive bool) {
	q := &f.upload
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

// uploaded ends an upload that was read whole.
func (f *flight) uploaded() {
	q := &f.upload
	if q.chunked && !f.write(http1.AppendLastChunk(f.l.out[:0], &q.chunks.Trailer)) {
		return
	}
	q.whole, q.ended = !q.ended, true // it has ended already if that write failed
}

// uploadFailed ends an exchange whose request can't be sent whole, for the client's own fault.
func (f *flight) uploadFailed(why reason.Reason) {
	if f.phase == relaying {
		f.truncate()
		return
	}
	f.failed(retryFatal, why)
}

func appendChunk(out, piece []byte) []byte {
	return append(append(http1.AppendChunkHead(out, len(piece)), piece...), "\r\n"...)
}
