package http2

import "time"

// conn is what both ends of a connection have in common.
type conn struct {
	client bool // this is the client's end

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
	unread  int  // streams that were finished since Out was last called
	headAt  int  // where the frame of the head lies that is being written
	heading bool // one is
	shrunk  bool // the client's table is smaller than we may think
	waiting bool // Write found the connection's window too small

	streams table
	open    int    // streams as the other side counts them
	last    uint32 // highest stream that the client has opened
	memory  memory

	sendWindow  int64
	peerWindow  int64 // first window of a stream, as the other side set it
	peerFrame   int
	peerStreams uint32 // open at once, as the server set it
	connects    bool   // the server takes extended CONNECT
	room        int    // our window of the whole connection
	recv        int    // what the other side may still send
	owed        int    // bytes that have been used but not given back

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

// Out gives everything that is to be sent, in order. What follows goes into next, emptied; nil makes a new buffer.
func (c *conn) Out(next []byte) []byte {
	b := c.out
	c.out, c.queued, c.unread = next[:0], 0, 0
	return b
}

// Pending is how many bytes wait for Out.
func (c *conn) Pending() int { return len(c.out) }

// Streams is how many streams the owner has to finish.
func (c *conn) Streams() int { return c.streams.n }

// Held gives every stream that the owner has to finish.
func (c *conn) Held(yield func(*Stream) bool) {
	for _, e := range c.streams.slots {
		if e.s != nil && !yield(e.s) {
			return
		}
	}
}

// Sound says whether what waits for Out is whole frames. Between BeginHead and EndHead it isn't.
func (c *conn) Sound() bool { return !c.heading }

// Failed says whether the connection is over for a fault of the client's, and which. Nothing more is read or answered:
// once what Out gives is sent, the connection is to be closed.
func (c *conn) Failed() (Code, bool) { return c.code, c.failed }

// Over says whether the connection may be closed once what Out gives is sent: it has failed, or both sides have said that
// there will be no more streams and none is left.
func (c *conn) Over() bool {
	return c.failed || c.streams.n == 0 && (c.leaving.said || c.leaving.heard)
}

// fail ends the connection (RFC 9113, section 5.4.1).
func (c *conn) fail(code Code) Event {
	if !c.failed {
		c.failed, c.code = true, code
		c.out = appendGoAway(c.out, c.seen(), code)
	}
	return Event{}
}

// seen is the highest stream of the other side's; servers open none.
func (c *conn) seen() uint32 {
	if c.client {
		return 0
	}
	return c.last
}

// control says whether one more control frame may wait. A client that makes us answer and doesn't read is let go.
func (c *conn) control(n int) bool {
	if c.queued += n; c.queued > maxQueued {
		c.fail(EnhanceYourCalm)
	}
	return !c.failed
}

// spend charges the client for what brings nothing.
func (c *conn) spend(n int) bool {
	if !c.account.spend(n, c.now) {
		c.fail(EnhanceYourCalm)
	}
	return !c.failed
}
