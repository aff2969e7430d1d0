// Package http2 is a strict HTTP/2 codec (RFC 9113, RFC 7541) without I/O: the server's end of a connection is a value that
// takes the bytes that came and gives the bytes to send. Stream states, flow control both ways, limits, floods and the
// connection's times are inside, so that no engine writes them again.
//
//	c.Out(buffer); c.Start(now, http2.Times{})        // what is to be sent goes into buffer
//	n, ev := c.Feed(b, spare, now)                    // until ev.Kind is None: then all of b is used
//	switch ev.Kind { case http2.Opened: /* ev.Stream is the spare one; give another from now on */ … }
//	if c.BeginHead(s, 200) { http2.PutField(&c, "server", "x"); c.EndHead(s, false) }
//	n = c.Write(s, body); c.End(s); c.Finish(s, now)  // as much as the windows take; the rest after a Writable event
//	b = c.Out(next)                                   // everything to be sent, in order
//
// Frames, HPACK, windows and the account of floods know no role; Server is the server's.
package http2

import (
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
)

// The limits of a connection.
const (
	MaxStreams   = 100     // open at once, as the client sees it
	maxHeld      = 128     // held by the owner at once, among them those that the client has given up
	StreamWindow = 1 << 16 // of request body, per stream and unread
	ConnWindow   = 1 << 20 // and of all streams together
	maxBlock     = 2 * http1.MaxHead
	maxQueued    = 32 << 10 // bytes of control frames that wait to be sent
	// HighWater is the amount of waiting output from which Write takes no more.
	HighWater = 64 << 10
)

// Kind is what an event is about.
type Kind uint8

// The kinds of events.
const (
	None     Kind = iota
	Opened        // Stream is the spare one, and its Request is complete; Err is why it must be refused all the same
	Readable      // Stream has more body, or its end
	Ended         // Stream was given up, by the client or for a fault of the client's; only Finish is left to do
	Writable      // Stream, or any stream when it is nil, may take more now
)

// Event is what Feed found.
type Event struct {
	Kind   Kind
	Stream *Stream
	Err    error // one of http1's
}

// Server is the server's end of one connection. It is not for concurrent use. The zero value is ready for Start.
type Server struct {
	times Times
	now   time.Time
	spare *Stream

	// What is being read.
	at       place
	frame    frame
	left     int // bytes of the frame that have not come
	pad      int // of them, padding at the end
	some     int // bytes of the preface or of a frame's head that have come
	begun    [frameHead]byte
	gathered []byte // a payload that came in pieces
	to       *Stream
	block    []byte // header block of several frames
	cont     uint32 // the stream whose block must go on
	contEnds bool   // its HEADERS ended the stream
	selfish  bool   // and made it depend on itself
	settled  bool   // the client's settings have come
	fresh    bool   // this call of Feed has completed something
	hpack    Decoder

	// What is being sent.
	out     []byte
	queued  int  // bytes of control frames in out
	headAt  int  // where the frame of the head lies that is being written
	shrunk  bool // the client's table is smaller than we may think
	waiting bool // Write found the connection's window too small

	streams table
	open    int    // streams as the client counts them
	last    uint32 // highest stream of the client's
	memory  memory

	sendWindow int64
	peerWindow int64 // first window of a stream, as the client set it
	peerFrame  int
	recv       int // what the client may still send
	owed       int // bytes that have been used but not given back

	account account
	clock   clock
	leaving leaving
	failed  bool
	code    Code
}

// place is where in the byte stream Feed stands.
type place uint8

const (
	inPreface place = iota
	inFrameHead
	inPayload
	inData
	inSkipped
)

// Start begins the connection: our settings are the first thing that is sent.
func (c *Server) Start(now time.Time, t Times) {
	c.times = t
	c.times.fill()
	c.sendWindow, c.peerWindow, c.peerFrame = firstWindow, firstWindow, maxFrame
	c.recv = ConnWindow
	c.account.start(now)
	c.clock.start(now)
	at := len(c.out)
	c.out = appendFrame(c.out, 0, frameSettings, 0, 0)
	c.out = appendSetting(c.out, settingStreams, MaxStreams)
	c.out = appendSetting(c.out, settingWindow, StreamWindow)
	c.out = appendSetting(c.out, settingListSize, http1.MaxHead)
	c.out[at+2] = byte(len(c.out) - at - frameHead)
	c.out = appendWindow(c.out, 0, ConnWindow-firstWindow)
}

// Out gives everything that is to be sent, in order. What follows goes into next, emptied; nil makes a new buffer.
func (c *Server) Out(next []byte) []byte {
	b := c.out
	c.out, c.queued = next[:0], 0
	return b
}

// Pending is how many bytes wait for Out.
func (c *Server) Pending() int { return len(c.out) }

// Streams is how many streams the owner has to finish.
func (c *Server) Streams() int { return c.streams.n }

// Held gives every stream that the owner has to finish.
func (c *Server) Held(yield func(*Stream) bool) {
	for _, e := range c.streams.slots {
		if e.s != nil && !yield(e.s) {
			return
		}
	}
}

// Failed says whether the connection is over for a fault of the client's, and which. Nothing more is read or answered:
// once what Out gives is sent, the connection is to be closed.
func (c *Server) Failed() (Code, bool) { return c.code, c.failed }

// Over says whether the connection may be closed once what Out gives is sent: it has failed, or both sides have said that
// there will be no more streams and none is left.
func (c *Server) Over() bool {
	return c.failed || c.streams.n == 0 && (c.leaving.said || c.leaving.heard)
}

// fail ends the connection (RFC 9113, section 5.4.1).
func (c *Server) fail(code Code) Event {
	if !c.failed {
		c.failed, c.code = true, code
		c.out = appendGoAway(c.out, c.last, code)
	}
	return Event{}
}

// control says whether one more control frame may wait. A client that makes us answer and doesn't read is let go.
func (c *Server) control(n int) bool {
	if c.queued += n; c.queued > maxQueued {
		c.fail(EnhanceYourCalm)
	}
	return !c.failed
}

// spend charges the client for what brings nothing.
func (c *Server) spend(n int) bool {
	if !c.account.spend(n, c.now) {
		c.fail(EnhanceYourCalm)
	}
	return !c.failed
}
