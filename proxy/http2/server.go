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
// Frames, HPACK, windows and the account of floods know no role; Server is the server's, Client the client's.
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
	// stuck is the amount of waiting output from which no more streams are opened: the other side doesn't read.
	stuck = 4 * HighWater
)

// Kind is what an event is about.
type Kind uint8

// The kinds of events.
const (
	None     Kind = iota
	Opened        // Stream is the spare one, and its Request is complete; Err is why it must be refused all the same
	Readable      // Stream has more body, or its end
	Ended         // Stream, or any that is Gone when it is nil, was given up, by the other side or for a fault of its own; only Finish is left to do
	Writable      // Stream, or any stream when it is nil, may take more now
	Answered      // Stream's Response is complete; clients have no Opened
	Interim       // Stream's Response is an answer ahead of the final one, until the next Feed
)

// Event is what Feed found.
type Event struct {
	Kind   Kind
	Stream *Stream
	Err    error // one of http1's
}

// Server is the server's end of one connection. It is not for concurrent use. The zero value is ready for Start.
type Server struct{ conn }

// Start begins the connection: our settings are the first thing that is sent.
func (c *Server) Start(now time.Time, t Times) {
	c.times = t
	c.times.fill()
	c.sendWindow, c.peerWindow, c.peerFrame = firstWindow, firstWindow, maxFrame
	c.room, c.recv = ConnWindow, ConnWindow
	c.account.start(now)
	c.clock.start(now)
	at := len(c.out)
	c.out = appendFrame(c.out, 0, frameSettings, 0, 0)
	c.out = appendSetting(c.out, settingStreams, MaxStreams)
	c.out = appendSetting(c.out, settingWindow, StreamWindow)
	c.out = appendSetting(c.out, settingListSize, http1.MaxHead)
	c.out = appendSetting(c.out, settingConnectProtocol, 1)
	c.out[at+2] = byte(len(c.out) - at - frameHead)
	c.out = appendWindow(c.out, 0, ConnWindow-firstWindow)
}

// heedless says whether the client opens streams without reading the answers of others: one that keeps to MaxStreams never has
// so many whose ends are still here. Answers without a body wait for no window.
func (c *conn) heedless() bool { return len(c.out) >= stuck && c.unread >= 2*MaxStreams }

// request opens a stream.
func (c *conn) request(block []byte, id uint32) Event {
	s := c.spare
	s.Request.Build(s.Scratch)
	to := fieldSink{request: s.Request, head: &s.Request.Head}
	if !c.decode(block, &to) {
		return Event{}
	}
	switch {
	case c.leaving.said: // above the last stream, which was named
		c.memory.add(id, ours)
		return Event{}
	case c.open >= MaxStreams || c.streams.n >= maxHeld || c.heedless():
		return c.faultID(id, RefusedStream)
	case c.selfish || to.malformed || to.err == nil && !to.complete():
		return c.faultID(id, ProtocolError)
	}
	if to.err == nil {
		to.err = s.Request.Built(!c.contEnds)
	}
	s.begin(id, c.peerWindow)
	if !c.contEnds {
		s.expect = s.Request.Length
	}
	if to.connect {
		s.state |= connected
	}
	c.open++
	c.streams.add(s)
	if c.contEnds {
		c.hear(s)
	}
	return Event{Kind: Opened, Stream: s, Err: to.err}
}
