//go:build linux

package loop

import (
	"slices"
	"time"

	"github.com/cellgate/cellgate/proxy/http2"
)

// h2conn is what a client connection that speaks HTTP/2 has besides: the codec, and which streams have something left to do.
// What its streams have to say in one turn of the loop goes out together at the turn's end.
type h2conn struct {
	c     *client
	codec http2.Server
	open  bool // the codec has a buffer to write into
	due   bool // it is among those that are looked at at the turn's end
	ended bool // the codec has failed, and its streams are given up
	held  int  // turns for which output was held back

	fed    []*h2stream // got more of their body with the read at hand, or its end
	eager  []*h2stream // have more to do than was their turn
	line   []*h2stream // wait for the connection's window, or for the output to become shorter: first come, first served
	sendBy time.Time   // when the client must have read what waits
}

// sendPatience is how long a client may take to read what one turn has sent.
const sendPatience = 30 * time.Second

// speakHTTP2 goes on in HTTP/2, with what has been read.
func (c *client) speakHTTP2() {
	if f := c.flight; f != nil {
		c.flight = nil
		f.breakOff(false)
	}
	h := &h2conn{c: c}
	c.h2, c.state = h, framed
	h.touch()
	h.codec.Start(c.l.now, http2.Times{Idle: c.l.e.opts.Idle, Head: c.l.e.opts.HeaderTime})
	if c.r < c.w {
		h.feed(c.in[c.r:c.w])
	}
	c.rest()
	h.read()
}

// touch must go before any use of the codec that may have something to send.
func (h *h2conn) touch() {
	l := h.c.l
	if !h.due {
		h.due = true
		l.due = append(l.due, ref{h.c.slot, l.slots[h.c.slot].gen})
	}
	if !h.open {
		h.open = true
		h.codec.Out(l.buffers.out(bigSize))
	}
}

// read feeds the codec with what has come.
func (h *h2conn) read() {
	c, l := h.c, h.c.l
	for n := 0; c.canRead; n++ {
		if n == turns {
			l.later(c)
			return
		}
		got, more := c.read(l.in)
		if !more {
			if c.canRead = false; !c.mute || c.broken {
				c.drop()
				return
			}
			h.hungUp()
			return
		}
		if got > 0 {
			l.clock()
			h.feed(l.in[:got])
		}
	}
}

// hungUp goes on for a client that has ended its sending, and may be there still.
func (h *h2conn) hungUp() {
	h.touch()
	h.codec.HungUp(h.c.l.clock())
	for s := range h.codec.Held {
		if s.Gone() {
			s.Owner.(*h2stream).gone()
		}
	}
}

// feed gives the codec what was read, which lies in a buffer of the loop's: what an event asks for must not read anything.
func (h *h2conn) feed(b []byte) {
	l := h.c.l
	h.touch()
	for len(b) > 0 {
		if l.spareStream == nil {
			l.spareStream = l.takeStream()
		}
		n, ev := h.codec.Feed(b, &l.spareStream.Stream, l.now)
		b = b[n:]
		switch ev.Kind {
		case http2.Opened:
			s := l.spareStream
			l.spareStream = nil
			s.begin(h, ev.Err)
		case http2.Readable:
			h.more(ev.Stream.Owner.(*h2stream))
		case http2.Ended:
			ev.Stream.Owner.(*h2stream).gone()
		case http2.Writable:
			if ev.Stream != nil {
				ev.Stream.Owner.(*h2stream).later()
			} else {
				h.widened()
			}
		}
	}
	for len(h.fed) > 0 {
		s := h.fed[0]
		h.fed = slices.Delete(h.fed, 0, 1)
		s.isFed = false
		s.ready()
	}
}

// more notes that a stream has more of its body. It goes on once all that was read has been taken in: frames of a byte each would
// cost a write to the upstream each.
func (h *h2conn) more(s *h2stream) {
	if !s.isFed {
		s.isFed = true
		h.fed = append(h.fed, s)
	}
}

// widened puts the streams into line that may have been waiting for a window which all of them share.
func (h *h2conn) widened() {
	for s := range h.codec.Held {
		if s := s.Owner.(*h2stream); !s.Stalled() && s.waits() {
			h.lineUp(s)
		}
	}
	h.c.l.later(h.c)
}

func (h *h2conn) lineUp(s *h2stream) {
	if !s.inLine {
		s.inLine = true
		h.line = append(h.line, s)
	}
}

// goOn is another turn of those that have more to do, and then of those that wait, while there is room.
func (h *h2conn) goOn() {
	for n := len(h.eager); n > 0 && len(h.eager) > 0; n-- {
		s := h.eager[0]
		h.eager = slices.Delete(h.eager, 0, 1)
		s.isEager = false
		s.goOn()
	}
	for n := len(h.line); n > 0 && len(h.line) > 0 && h.codec.Pending() < http2.HighWater; n-- {
		s := h.line[0]
		h.line = slices.Delete(h.line, 0, 1)
		s.inLine, s.quota = false, fairShare
		s.goOn()
		s.quota = 0
	}
	if h.c.canRead {
		h.read()
	}
}

// A little output is held back for a few turns while others of the connection's streams may have an answer soon: the write
// costs more than a turn.
const (
	mostHeld = 4
	enough   = 16 << 10 // what one TLS record takes
)

// hold says whether the output is to wait for another turn.
func (h *h2conn) hold() bool {
	if p := h.codec.Pending(); h.held == mostHeld || p == 0 || p >= enough || h.codec.Streams() == 0 {
		return false
	}
	h.held++
	return true
}

// flush sends what the turn has brought, and sees to what comes next.
func (h *h2conn) flush() {
	c, l := h.c, h.c.l
	h.due, h.held = false, 0
	if code, failed := h.codec.Failed(); failed && !h.ended {
		h.ended = true
		l.e.server.Faults[code].Add(1)
		for s := range h.codec.Held {
			s.Owner.(*h2stream).gone()
		}
	}
	if len(c.out) == 0 && !h.send() {
		return
	}
	if len(c.out) == 0 && h.codec.Pending() == 0 && h.codec.Over() {
		h.close()
		c.linger()
		return
	}
	l.wheel.set(&c.timer, h.wakeBy())
}

// send writes what waits in the codec. It is false when the connection is gone by it.
func (h *h2conn) send() bool {
	c, l := h.c, h.c.l
	if !h.open {
		return true
	}
	out := h.codec.Out(nil)
	h.open = false
	ok := len(out) == 0 || c.send(out, nil)
	l.buffers.put(out)
	switch {
	case !ok:
		c.drop()
	case len(c.out) > 0:
		h.sendBy = l.now.Add(sendPatience)
	case len(out) > 0:
		h.drained()
	}
	return ok
}

// drained is called when all that was sent is on its way: those in line may have room.
func (h *h2conn) drained() {
	if len(h.line) > 0 {
		h.c.l.later(h.c)
	}
}

// wakeBy is when there is something to do although nothing comes. Once the connection is over, only what was sent is waited for.
func (h *h2conn) wakeBy() time.Time {
	if h.codec.Over() {
		return h.sendBy
	}
	by := h.codec.Due()
	if old := time.Unix(0, h.c.old); !h.codec.Leaving() && old.Before(by) {
		by = old
	}
	if len(h.c.out) > 0 && h.sendBy.Before(by) {
		by = h.sendBy
	}
	return by
}

// expired does what the time asks for.
func (h *h2conn) expired() {
	now := h.c.l.clock()
	if h.c.blocked() && !now.Before(h.sendBy) {
		h.c.drop()
		return
	}
	h.touch()
	if h.codec.Tick(now); now.UnixNano() > h.c.old {
		h.codec.Leave(now)
	}
	h.flush() // not at the turn's end: thousands may have the same time, at a drain all, and each would hold a buffer until then
}

// close lets go of the streams and of all that the connection holds of the loop.
func (h *h2conn) close() {
	for s := range h.codec.Held {
		s.Owner.(*h2stream).breakOff()
	}
	if h.open {
		h.c.l.buffers.put(h.codec.Out(nil))
	}
	h.c.h2 = nil
}
