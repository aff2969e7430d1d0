//go:build linux

package loop

import (
	"time"

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

// streaming says whether more of the body is to be sent on. It isn't any more once the attempt has let go of its connection, though
// the exchange may wait for its answer to go out.
func (f *flight) streaming() bool { return f.conn != nil && f.upload.streaming && !f.upload.ended }

// starved says whether the client is what the upload waits for.
func (f *flight) starved() bool {
	return f.streaming() && !f.upload.done && !f.conn.blocked()
}

// turns is how often one connection reads in a row while others wait.
const turns = 8

// wantBody invites the client to send its body, and starts the body's clock.
func (f *flight) wantBody() bool {
	q := &f.upload
	if q.start.IsZero() {
		q.start = f.l.clock()
	}
	if q.expect {
		q.expect = false
		if !f.answered && !f.side.invite() {
			f.clientGone()
			return false
		}
	}
	return true
}

// uploaded ends an upload that was read whole, with its trailers or nil.
func (f *flight) uploaded(trailer *http1.Head) {
	q := &f.upload
	if q.chunked && !f.write(http1.AppendLastChunk(f.l.out[:0], f.x.TrimRequest(trailer))) {
		return
	}
	q.whole, q.ended = !q.ended, true // it has ended already if that write failed
}

// uploadFailed ends an exchange whose request can't be sent whole, for the client's own fault.
func (f *flight) uploadFailed(why reason.Reason) {
	if f.phase == relaying {
		f.truncate(why)
		return
	}
	f.failed(retryFatal, why)
}

func appendChunk(out, piece []byte) []byte {
	return append(append(http1.AppendChunkHead(out, len(piece)), piece...), "\r\n"...)
}
