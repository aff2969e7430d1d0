//go:build linux

package loop

import (
	"time"

	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/relay"
)

// errand is what a stream has whose exchange the other engine carries out.
type errand struct {
	*engine.Errand
	answer engine.Answer // what was taken and could not be put yet
	expect bool          // the client waits for 100 Continue
	by     time.Time     // the exchange's deadline; a tunnel has one from its end on
	tunnel bool
	last   time.Time // when the client must have taken the end of the answer; zero = nothing waits
}

// takeBy is when the client must have taken the end of the answer, which waits for it from now on.
func (e *errand) takeBy(l *loop) time.Time {
	if e.last.IsZero() {
		e.last = relay.TakeBy(l.now, l.e.opts.TakeTime, e.by.Add(writeGrace))
	}
	return e.last
}

// depart sends the exchange on an errand. The stream goes on without its flight.
func (s *h2stream) depart() {
	f, l, c := s.flight, s.flight.l, s.h.c
	e := &errand{expect: f.upload.expect, by: f.x.Deadline}
	e.Errand = l.e.rest.Carry(f.x, func() {
		l.post(func() {
			if s.errand == e {
				l.attend(c.slot)
				s.goOn()
			}
		})
	})
	f.x, s.flight, s.errand = nil, nil, e
	f.recycle()
	l.wheel.stop(&s.timer)
	s.giveBody()
}

// goOnErrand passes on what there is, both ways.
func (s *h2stream) goOnErrand() {
	s.giveBody()
	e := s.errand
	for {
		a := &e.answer
		room := 0
		if len(a.Body) > 0 {
			if room = s.room(); room == 0 {
				s.holdUp(e)
				return
			}
		}
		switch n := min(room, len(a.Body)); {
		case n > 0:
			s.putBody(a.Body[:n])
			a.Body = a.Body[n:]
		case a.Aborted && e.tunnel:
			s.cancel()
			return
		case a.Aborted:
			s.finished(false, true)
			return
		case a.Last:
			a.Last = false
			s.putLast(nil)
		case a.End:
			s.putLast(a.Trailers)
			s.finished(true, false)
			return
		default:
			e.answer = e.Take()
			if a.Tunnel {
				e.tunnel, e.by = true, time.Time{}
			}
			for _, h := range a.Hints {
				s.putInterim(h.Status, func(dst []byte) []byte { return append(dst, h.Block...) })
			}
			if a.Status > 0 {
				s.putFirst(a.Status, a.Length, a.None, func(dst []byte) []byte { return append(dst, a.Block...) })
			} else if len(a.Body) == 0 && !a.End && !a.Aborted && !a.Last {
				return
			}
		}
	}
}

// holdUp is for a client that takes nothing. Once the errand has ended, nobody else looks at the time any more.
func (s *h2stream) holdUp(e *errand) {
	l := s.h.c.l
	ended, aborted := e.Over()
	switch {
	case aborted && e.tunnel:
		s.cancel()
	case ended || aborted:
		if e.by.IsZero() {
			e.by = l.now.Add(sendPatience)
		}
		l.wheel.set(&s.timer, e.takeBy(l))
	}
}

// cancel ends a tunnel's stream as a reset of its connection.
func (s *h2stream) cancel() {
	if s.h.touch(); !s.Ended() {
		s.h.codec.Reset(&s.Stream, http2.Cancel)
	}
	s.free()
}

// giveBody gives what has come of the request's body.
func (s *h2stream) giveBody() {
	e := s.errand
	for b := s.Buffered(); len(b) > 0; b = s.Buffered() {
		n := e.Give(b)
		if n == 0 {
			return
		}
		s.h.touch()
		s.h.codec.Use(&s.Stream, n)
	}
	switch {
	case s.Complete():
		e.GiveEnd(s.Trailer)
	case e.expect && e.Waits():
		e.expect = false
		s.invite()
	}
}
