package http2

import (
	"encoding/binary"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
)

// Client is the client's end of one connection. Answers come into the streams that it opens; nothing else is taken: pushes
// are refused.
//
//	c.Out(buffer); c.Start(now, http2.Times{})
//	if c.Vacant() > 0 { c.Open(s, false); c.PutBlock(…); c.EndHead(s, -1, false) }   // :method and its like are fields
//	n = c.Write(s, body); c.End(s)                                                   // as a server does
//	n, ev := c.Feed(b, nil, now)                                                     // Answered, Readable, Writable, Ended
//	c.Finish(s, now)                                                                 // what is not complete is cancelled
//
// It is not for concurrent use. The zero value is ready for Start.
type Client struct{ conn }

// The limits of a client's connection, beside those of both.
const (
	maxInterims = 16 // answers ahead of the final one
	// clientWindow lets no stream that isn't read take the window of another.
	clientWindow = maxHeld * StreamWindow
)

// Start begins the connection: the preface with our settings is the first thing that is sent. Of the times Idle is nothing
// to a client, whose owner knows when it needs no connection.
func (c *Client) Start(now time.Time, t Times) {
	c.client, c.at = true, inFrameHead
	c.times = t
	c.times.fill()
	c.sendWindow, c.peerWindow, c.peerFrame, c.peerStreams = firstWindow, firstWindow, maxFrame, MaxStreams
	c.room, c.recv = clientWindow, clientWindow
	c.account.start(now)
	c.clock.start(now)
	c.out = append(c.out, preface...)
	at := len(c.out)
	c.out = appendFrame(c.out, 0, frameSettings, 0, 0)
	c.out = appendSetting(c.out, settingPush, 0)
	c.out = appendSetting(c.out, settingWindow, StreamWindow)
	c.out = appendSetting(c.out, settingListSize, http1.MaxHead)
	c.out[at+2] = byte(len(c.out) - at - frameHead)
	c.out = appendWindow(c.out, 0, clientWindow-firstWindow)
}

// Settled says whether the server has shown that it speaks HTTP/2: its settings have come.
func (c *Client) Settled() bool { return c.settled }

// Most is how many streams may be open at once: none before the server's settings have come, and while it reads nothing.
func (c *Client) Most() int {
	if !c.settled || c.Ending() || len(c.out) >= stuck {
		return 0
	}
	return int(min(c.peerStreams, MaxStreams))
}

// Vacant is how many streams may be opened now.
func (c *Client) Vacant() int { return max(0, min(c.Most()-c.open, maxHeld-c.streams.n)) }

// Ending says whether no stream can be opened any more, ever.
func (c *Client) Ending() bool {
	return c.failed || c.leaving.heard || c.leaving.said || c.last >= maxStreamID
}

// Skip makes id, which is odd, the next stream's. Ids only go up.
func (c *Client) Skip(id uint32) {
	if id > c.last+1 {
		c.last = id - 2
	}
}

// Leave says that no more streams follow. The connection may be closed when none is left.
func (c *Client) Leave() {
	if !c.leaving.said && !c.failed {
		c.leaving.said = true
		c.out = appendGoAway(c.out, 0, NoError)
	}
}

// Open begins a request on a stream of its own: its fields follow with PutBlock, pseudo-header fields first, then EndHead.
// bare says that the method is HEAD. It is false when Vacant is 0.
func (c *Client) Open(s *Stream, bare bool) bool {
	if c.Vacant() == 0 {
		return false
	}
	c.last = (c.last + 1) | 1
	s.begin(c.last, c.peerWindow)
	s.bare, s.interims = bare, 0
	c.open++
	c.streams.add(s)
	c.account.earn(costState)
	c.beginHead(s)
	return true
}

// Connects says whether the server takes extended CONNECT (RFC 8441, section 3).
func (c *Client) Connects() bool { return c.connects }

// Connect begins an extended CONNECT, as Open does another request. After a success what comes is no body: it has no length
// and no trailers, and either side ends its direction by itself.
func (c *Client) Connect(s *Stream) bool {
	if !c.connects || !c.Open(s, false) {
		return false
	}
	s.state |= connected
	return true
}

// Answered says whether the head of the answer is there.
func (s *Stream) Answered() bool { return s.is(answered) }

// Begun says whether any head of an answer has come, be it an interim one.
func (s *Stream) Begun() bool { return s.is(answered) || s.interims > 0 }

// Refused says whether the server has vouched that it did nothing with the request (RFC 9113, section 8.7).
func (s *Stream) Refused() bool {
	return s.is(theirs) && s.Code == RefusedStream && !s.Begun()
}

// Malformed says whether what came was no answer, so that the stream was given up.
func (s *Stream) Malformed() bool { return s.is(ours) && s.Code != Cancel }

// answer takes a head: the stream's Response, which an interim one is until the next comes.
func (c *conn) answer(block []byte, s *Stream) Event {
	r := s.Response
	r.SetStatus(0)
	to := fieldSink{head: &r.Head, response: r}
	if !c.decode(block, &to) {
		return Event{}
	}
	interim := r.Status < 200
	if interim {
		s.interims++
	}
	switch {
	case to.malformed || to.err != nil || to.pseudo != pseudoStatus || r.Status == 101:
		return c.fault(s, ProtocolError)
	case interim && (c.contEnds || s.interims > maxInterims):
		return c.fault(s, ProtocolError)
	case interim:
		return Event{Kind: Interim, Stream: s}
	}
	none := s.bare || r.Status == 204 || r.Status == 304
	if opens := s.is(connected) && r.Status < 300; opens { // a length means nothing then (RFC 9110, section 9.3.6)
		r.Length, none = -1, false
	} else {
		s.state &^= connected
	}
	if c.contEnds && !none && r.Length > 0 {
		return c.fault(s, ProtocolError)
	}
	s.state |= answered
	c.account.earn(costState)
	if s.expect = r.Length; none {
		s.expect = 0
	}
	if c.contEnds && !none {
		r.Length = 0
	}
	r.Chunked, r.Trails = r.Length < 0 && !none, r.Length >= 0 && !none && !c.contEnds
	if c.contEnds {
		c.hear(s)
	}
	return Event{Kind: Answered, Stream: s}
}

// takeStatus takes the only pseudo-header field of an answer (section 8.3.2).
func (t *fieldSink) takeStatus(f Field) bool {
	if string(f.Name) != ":status" || t.pseudo != 0 {
		return false
	}
	t.pseudo = pseudoStatus
	return t.response.PutStatus(f.Value)
}

// goneAway is the server's word that it takes no more streams, and which it has not looked at and never will
// (section 6.8). A later word may only take back more.
func (c *conn) goneAway(p []byte) Event {
	switch {
	case c.frame.stream != 0:
		return c.fail(ProtocolError)
	case len(p) < 8:
		return c.fail(FrameSizeError)
	case !c.spend(costState):
		return Event{}
	}
	upTo := binary.BigEndian.Uint32(p) & maxStreamID
	if c.leaving.heard && upTo > c.leaving.upTo {
		return c.fail(ProtocolError)
	}
	c.leaving.heard, c.leaving.upTo, c.leaving.code = true, upTo, Code(binary.BigEndian.Uint32(p[4:]))
	for _, e := range c.streams.slots {
		if s := e.s; s != nil && s.ID > upTo && !s.is(ours|theirs) {
			s.state |= theirs
			s.Code = RefusedStream
			c.uncount(s)
		}
	}
	return Event{Kind: Ended}
}

// Farewell is the code that the server gave when it said that it takes no more streams; ok is false before.
func (c *Client) Farewell() (code Code, ok bool) { return c.leaving.code, c.leaving.heard }
