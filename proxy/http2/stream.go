package http2

import (
	"sync"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
)

// Stream is one request and its answer. It is its owner's: a server's Feed takes the spare one that it is given when a
// request comes, a client's Open the one that it gets, and Finish ends the connection's interest in it.
type Stream struct {
	// Written by: the owner, before it offers the stream.
	Request  *http1.Request  // takes the head, at a server
	Scratch  []byte          // is the head's buffer
	Response *http1.Response // takes the head, at a client
	Owner    any

	// Written by: the connection.
	ID      uint32
	Trailer *http1.Head // of what comes; nil until it has come
	Code    Code        // for which the stream was reset, by whomever

	state  state
	send   int64 // what we may still send; negative when the client has shrunk it
	recv   int   // what the client may still send
	owed   int   // bytes that were used but not given back
	expect int64 // length of the body that the head gave; -1 = none
	got    int64 // of the body so far
	left   int64 // of the body that we send; -1 = not known
	in     []byte
	r      int // unread body is in[r:]
	small  []byte
	room   *[StreamWindow]byte // borrowed while the body doesn't fit into small
	trail  *http1.Head

	// At a client.
	bare     bool  // the method is HEAD
	interims uint8 // answers before the final one
}

// state of a stream; open is none of them.
type state uint8

const (
	heard     state = 1 << iota // the other side has ended its own
	said                        // we have ended ours
	ours                        // reset by us
	theirs                      // reset by the other side
	blocked                     // Write could not take everything
	counted                     // among the open ones
	answered                    // the final head of the answer has come
	connected                   // by CONNECT: nothing but DATA may come (RFC 9113, section 8.5)
)

func (s *Stream) is(any state) bool { return s.state&any != 0 }

// Gone says whether the stream was given up: nothing that is written to it goes anywhere.
func (s *Stream) Gone() bool { return s.is(ours | theirs) }

// Complete says whether the other side has ended its message.
func (s *Stream) Complete() bool { return s.is(heard) }

// Ended says whether both sides have ended it.
func (s *Stream) Ended() bool { return s.is(heard) && s.is(said) }

// Buffered is the body that has come and was not used, in one piece, which stays until the next Feed, Use or Finish.
func (s *Stream) Buffered() []byte { return s.in[s.r:] }

// Stalled says whether the client's window for this stream is what Write waits for.
func (s *Stream) Stalled() bool { return s.send <= 0 }

const smallBody = 4 << 10

var rooms = sync.Pool{New: func() any { return new([StreamWindow]byte) }}

// begin makes a spare stream the one with this id.
func (s *Stream) begin(id uint32, send int64) {
	s.ID, s.Trailer, s.Code, s.state = id, nil, NoError, counted
	s.send, s.recv, s.owed = send, StreamWindow, 0
	s.expect, s.got, s.left = -1, 0, -1
	s.in, s.r = s.small[:0], 0
}

// take keeps a piece of the body. Flow control bounds what is unread by StreamWindow.
func (s *Stream) take(b []byte) {
	if len(s.in)+len(b) > cap(s.in) {
		s.grow(len(b))
	}
	s.in = append(s.in, b...)
}

func (s *Stream) grow(n int) {
	unread := s.in[s.r:]
	need := len(unread) + n
	switch {
	case need <= cap(s.in):
		s.in = append(s.in[:0], unread...)
	case need <= smallBody:
		s.small = append(make([]byte, 0, min(smallBody, 2*need)), unread...)
		s.in = s.small
	default:
		s.room = rooms.Get().(*[StreamWindow]byte)
		s.in = append(s.room[:0], unread...)
	}
	s.r = 0
}

// release gives the memory back.
func (s *Stream) release() {
	if s.room != nil {
		rooms.Put(s.room)
		s.room = nil
	}
	s.in, s.r = nil, 0
}

// Use marks n bytes of Buffered as used. Only now does the client get their room back.
func (c *conn) Use(s *Stream, n int) {
	if s.r += n; s.r == len(s.in) {
		s.in, s.r = s.in[:0], 0
	}
	c.giveBack(n)
	if s.owed += n; s.owed >= StreamWindow/2 && !s.is(heard|ours|theirs) && c.control(frameHead+4) {
		c.out = appendWindow(c.out, s.ID, s.owed)
		s.recv, s.owed = s.recv+s.owed, 0
	}
}

// giveBack opens the connection's window again.
func (c *conn) giveBack(n int) {
	if c.owed += n; c.owed >= c.room/2 && c.control(frameHead+4) {
		c.out = appendWindow(c.out, 0, c.owed)
		c.recv, c.owed = c.recv+c.owed, 0
	}
}

// Reset gives the stream up so that the client sees that the answer is not whole.
func (c *conn) Reset(s *Stream, code Code) {
	if s.is(ours | theirs) {
		return
	}
	s.state |= ours
	s.Code = code
	c.uncount(s)
	if !c.failed {
		c.out = appendReset(c.out, s.ID, code)
	}
}

// fault resets a stream for a fault of the client's (RFC 9113, section 5.4.2).
func (c *conn) fault(s *Stream, code Code) Event {
	if s.is(ours | theirs) {
		return Event{}
	}
	if !c.control(frameHead+4) || !c.spend(costState) {
		return Event{}
	}
	c.Reset(s, code)
	return Event{Kind: Ended, Stream: s}
}

// faultID resets a stream that nobody holds.
func (c *conn) faultID(id uint32, code Code) Event {
	if c.control(frameHead+4) && c.spend(costState) {
		c.out = appendReset(c.out, id, code)
		c.memory.add(id, ours)
	}
	return Event{}
}

// uncount takes the stream out of those that are open in the client's eyes.
func (c *conn) uncount(s *Stream) {
	if s.is(counted) {
		s.state &^= counted
		c.open--
	}
}

// Finish ends the connection's interest in the stream. What was not ended is given up; who is still sending
// is told to stop (RFC 9113, section 8.1).
func (c *conn) Finish(s *Stream, now time.Time) {
	switch {
	case c.client && s.state&(said|heard) != said|heard:
		c.Reset(s, Cancel)
	case !s.is(said):
		c.Reset(s, InternalError)
	case !s.is(heard):
		c.Reset(s, NoError)
	}
	if s.is(said) && !s.is(theirs) {
		c.account.earn(earnAnswer)
		c.unread++
	}
	if c.to == s { // the owner may have the stream for another message before the rest of the frame is here
		c.drop()
	}
	c.giveBack(len(s.in) - s.r)
	c.uncount(s)
	s.release()
	c.memory.add(s.ID, s.state)
	if c.streams.remove(s.ID); c.streams.n == 0 {
		c.clock.idle = now
	}
}

// table finds the streams that are held. It grows with them, up to twice maxHeld.
type table struct {
	slots []slot
	n     int
}

type slot struct {
	id uint32
	s  *Stream
}

const firstSlots = 8

// find looks from the place where the id belongs; ids count up, so it is mostly the first look.
func (t *table) find(id uint32) *Stream {
	if t.n == 0 {
		return nil
	}
	mask := len(t.slots) - 1
	for i := range t.slots {
		if e := &t.slots[(int(id>>1)+i)&mask]; e.id == id {
			return e.s
		}
	}
	return nil
}

func (t *table) add(s *Stream) {
	if 2*t.n >= len(t.slots) {
		old := t.slots
		t.slots = make([]slot, max(firstSlots, 2*len(old)))
		for _, e := range old {
			if e.id != 0 {
				t.put(e)
			}
		}
	}
	t.put(slot{s.ID, s})
	t.n++
}

func (t *table) put(e slot) {
	mask := len(t.slots) - 1
	i := int(e.id>>1) & mask
	for t.slots[i].id != 0 {
		i = (i + 1) & mask
	}
	t.slots[i] = e
}

func (t *table) remove(id uint32) {
	mask := len(t.slots) - 1
	for i := range t.slots {
		if e := &t.slots[(int(id>>1)+i)&mask]; e.id == id {
			*e = slot{}
			t.n--
			return
		}
	}
}

const remembered = 64

// memory knows how the last streams ended: what may still come for them depends on it.
type memory struct {
	ids  [remembered]uint32
	how  [remembered]state
	next uint8
}

func (m *memory) add(id uint32, how state) {
	i := m.next % uint8(len(m.ids))
	m.ids[i], m.how[i] = id, how&(ours|theirs)|heard
	m.next++
}

// how a stream ended; 0 = not remembered, or it never was.
func (m *memory) of(id uint32) state {
	for i, v := range m.ids {
		if v == id {
			return m.how[i]
		}
	}
	return 0
}
