//go:build linux

package loop

import (
	"slices"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/reason"
)

// h2stream is one request over HTTP/2 and the side of its flight. It is used again for another when it has ended.
type h2stream struct {
	http2.Stream
	h       *h2conn
	flight  *flight // or else
	errand  *errand
	timer   timer
	quota   int // of body that it may put although others wait in line
	isFed   bool
	isEager bool
	inLine  bool
}

var _ side = (*h2stream)(nil)

// fairShare is the body that a stream gives in its turn while others of its connection wait.
const fairShare = 16 << 10

// takeStream gives a stream with a flight, for a request that may come on any connection.
func (l *loop) takeStream() *h2stream {
	var s *h2stream
	if n := len(l.streams); n > 0 {
		s = l.streams[n-1]
		l.streams = l.streams[:n-1]
	} else {
		s = &h2stream{}
		s.Owner, s.timer.fire = s, s.expired
	}
	s.flight = l.takeFlight()
	s.Request, s.Scratch = &s.flight.x.Request, s.flight.x.Scratch
	return s
}

// free ends the codec's interest in the stream and makes it ready for another request.
func (s *h2stream) free() {
	h, l := s.h, s.h.c.l
	h.codec.Finish(&s.Stream, l.now)
	l.wheel.stop(&s.timer)
	forget := func(all []*h2stream) []*h2stream {
		return slices.DeleteFunc(all, func(o *h2stream) bool { return o == s })
	}
	if s.isFed {
		h.fed = forget(h.fed)
	}
	if s.isEager {
		h.eager = forget(h.eager)
	}
	if s.inLine {
		h.line = forget(h.line)
	}
	s.h, s.flight, s.errand, s.Request, s.Scratch, s.isFed, s.isEager, s.inLine, s.quota = nil, nil, nil, nil, nil, false, false, false, 0
	if len(l.streams) < keepFlights {
		l.streams = append(l.streams, s)
	}
}

// begin takes up the request; refused is why it must be.
func (s *h2stream) begin(h *h2conn, refused error) {
	f := s.flight
	s.h = h
	f.of(h.c, s, &s.timer, "HTTP/2.0")
	f.x.Scratch = f.x.Request.Scratch() // it may have grown
	if refused != nil {
		f.refuse(relay.HeadReason(refused))
		return
	}
	f.begin()
}

// ready is called when more of the body is there, or its end.
func (s *h2stream) ready() {
	switch f := s.flight; {
	case f == nil:
		s.giveBody()
	case f.phase == collecting:
		s.collect()
	case f.streaming():
		s.pump()
	}
}

// gone is called when the client has given the stream up.
func (s *h2stream) gone() {
	if s.flight != nil {
		s.flight.clientGone()
		return
	}
	s.errand.Leave()
	s.finished(false, true)
}

// breakOff gives the stream up with its connection.
func (s *h2stream) breakOff() {
	if s.flight != nil {
		s.flight.breakOff(true)
	} else {
		s.errand.Leave()
	}
	s.free()
}

func (s *h2stream) expired() {
	l := s.h.c.l
	l.attend(s.h.c.slot)
	if l.serving = s.flight; s.flight != nil {
		s.flight.expired()
	} else {
		s.gone()
	}
}

// waits says whether the client doesn't take what there is for it.
func (s *h2stream) waits() bool {
	if s.flight != nil {
		return s.flight.stuck
	}
	return len(s.errand.answer.Body) > 0
}

func (s *h2stream) goOn() {
	if s.flight != nil {
		s.flight.goOn()
	} else {
		s.goOnErrand()
	}
}

// passOver: a stream's unread body hinders nobody.
func (s *h2stream) passOver() bool { return true }

// collect waits for the end of a short body, which stays where it is. One without a length isn't waited for.
func (s *h2stream) collect() {
	f, q, b := s.flight, &s.flight.upload, s.Buffered()
	f.phase = judged
	switch {
	case q.chunked && !s.Complete(), s.Trailer != nil, max(q.left, int64(len(b))) > relay.SmallBody:
	case s.Complete():
		f.body, f.full, q.done = b, true, true
	default:
		f.phase, q.got = collecting, int64(len(b))
		f.wantBody()
		f.arm()
		return
	}
	f.start()
}

func (s *h2stream) invite() bool {
	s.putFirst(100, -1, false, func(dst []byte) []byte { return dst })
	return true
}

func (s *h2stream) pump() {
	f, q := s.flight, &s.flight.upload
	for f.streaming() && !f.conn.blocked() {
		b := s.Buffered()
		switch {
		case len(b) > 0:
			if !s.push(b) {
				return
			}
		case s.Complete():
			q.done = true
			f.uploaded(s.Trailer)
		default:
			f.wantBody()
			f.arm()
			return
		}
	}
	f.headBy()
	f.arm()
}

// push sends a piece of the body on. It is false when the flight has ended by it.
func (s *h2stream) push(b []byte) bool {
	f, q := s.flight, &s.flight.upload
	q.got += int64(len(b))
	if f.x.BytesIn += int64(len(b)); f.x.BytesIn > proxy.MaxBody {
		f.uploadFailed(reason.BodyTooLarge)
		return false
	}
	if q.chunked {
		f.write(appendChunk(f.l.out[:0], b))
	} else {
		f.write(b)
	}
	s.h.touch()
	s.h.codec.Use(&s.Stream, len(b))
	return true
}

func (s *h2stream) putHint(status int, fields *http1.Head) {
	s.putInterim(status, func(dst []byte) []byte { return relay.AppendFields(dst, fields) })
}

// putInterim puts a head that may be left out.
func (s *h2stream) putInterim(status int, fields func(dst []byte) []byte) {
	if s.h.codec.Pending() < http2.HighWater {
		s.putFirst(status, -1, false, fields)
	}
}

func (s *h2stream) putHead(length int64, none bool) {
	x := s.flight.x
	s.putFirst(x.Status, length, none, func(dst []byte) []byte { return relay.AppendBlock(dst, x, length) })
}

// putFirst begins the answer with a head whose fields a function appends.
func (s *h2stream) putFirst(status int, length int64, none bool, fields func(dst []byte) []byte) {
	h := s.h
	h.touch()
	if h.codec.BeginHead(&s.Stream, status) {
		h.codec.PutBlock(fields)
		h.codec.EndHead(&s.Stream, length, none)
	}
}

// room is fair: while others wait in line, a stream gets more only when it is its turn.
func (s *h2stream) room() int {
	n := s.h.codec.Room(&s.Stream)
	switch {
	case n == 0 && s.Stalled():
		return 0
	case n > 0 && len(s.h.line) == 0:
		return n
	case n > 0 && s.quota > 0:
		return min(n, s.quota)
	}
	s.h.lineUp(s)
	return 0
}

func (s *h2stream) putBody(p []byte) {
	s.h.touch()
	s.h.codec.Write(&s.Stream, p)
	s.quota -= len(p)
}

func (s *h2stream) putEnd(trailer *http1.Head) {
	s.putLast(relay.AppendFields(s.h.c.l.out[:0], trailer))
}

// putLast ends the answer, with a block of trailers if it isn't empty.
func (s *h2stream) putLast(block []byte) {
	h := s.h
	h.touch()
	if len(block) == 0 || !h.codec.BeginHead(&s.Stream, 0) {
		h.codec.End(&s.Stream)
		return
	}
	h.codec.PutBlock(func(dst []byte) []byte { return append(dst, block...) })
	h.codec.EndHead(&s.Stream, -1, true)
}

// sendOut leaves the sending to the turn's end.
func (s *h2stream) sendOut() bool { return true }

func (s *h2stream) allSent() bool { return true }

func (s *h2stream) later() {
	if !s.isEager {
		s.isEager = true
		s.h.eager = append(s.h.eager, s)
	}
	s.h.c.l.later(s.h.c)
}

func (s *h2stream) finished(_, aborted bool) {
	s.h.touch()
	if aborted {
		s.h.codec.Reset(&s.Stream, http2.InternalError)
	}
	s.free()
}
