package http2

import (
	"encoding/binary"
	"time"
)

// Feed takes bytes that came, up to the first event or to the end of b, and says how many. spare is a stream that
// the owner has no other use for; an Opened event takes it.
func (c *conn) Feed(b []byte, spare *Stream, now time.Time) (n int, ev Event) {
	c.spare, c.now, c.clock.read = spare, now, now
	begun := c.begunFrame()
	c.fresh = false
	for n < len(b) && !c.failed && ev.Kind == None {
		var m int
		switch c.at {
		case inFrameHead:
			m, ev = c.frameHead(b[n:])
		case inPayload:
			m, ev = c.payload(b[n:])
		case inData:
			m, ev = c.data(b[n:])
		case inSkipped:
			m = c.skip(b[n:])
		case inPreface:
			m = c.preface(b[n:])
		}
		n += m
	}
	c.clock.ping = time.Time{}
	if c.begunFrame() && (!begun || c.fresh) {
		c.clock.head = now
	}
	if c.spare = nil; c.failed {
		return len(b), Event{}
	}
	return n, ev
}

// begunFrame says whether the client owes the rest of something that it can't take long for: a frame other than data, a
// header block, the beginning of the connection.
func (c *conn) begunFrame() bool {
	return c.cont != 0 || !c.settled || c.at == inPayload || c.at == inFrameHead && c.some > 0
}

func (c *conn) preface(b []byte) int {
	n := min(len(b), len(preface)-c.some)
	if string(b[:n]) != preface[c.some:c.some+n] {
		c.fail(ProtocolError)
		return n
	}
	if c.some += n; c.some == len(preface) {
		c.some, c.at = 0, inFrameHead
	}
	return n
}

// frameHead reads a frame's head, and does what needs no payload.
func (c *conn) frameHead(b []byte) (n int, ev Event) {
	if c.some == 0 && len(b) >= frameHead {
		c.frame, n = parseFrame(b), frameHead
	} else {
		n = copy(c.begun[c.some:], b)
		if c.some += n; c.some < frameHead {
			return n, ev
		}
		c.frame, c.some = parseFrame(c.begun[:]), 0
	}
	f := &c.frame
	c.left = f.length
	switch {
	case f.length > maxFrame:
		return n, c.fail(FrameSizeError)
	case !c.settled && (f.kind != frameSettings || f.has(flagAck)):
		return n, c.fail(ProtocolError)
	case (c.cont != 0) != (f.kind == frameContinuation) || c.cont != 0 && f.stream != c.cont:
		return n, c.fail(ProtocolError)
	case f.kind == frameData:
		return n, c.dataHead()
	case f.kind > frameContinuation:
		c.at = inSkipped
		c.spend(costFrame)
	default:
		c.at = inPayload
	}
	if c.left == 0 {
		_, ev = c.payload(nil)
	}
	return n, ev
}

// skip passes over what nobody needs.
func (c *conn) skip(b []byte) int {
	n := min(len(b), c.left)
	if c.left -= n; c.left == 0 {
		c.at = inFrameHead
	}
	return n
}

// payload collects a whole payload, in place when it came in one piece.
func (c *conn) payload(b []byte) (n int, ev Event) {
	n = min(len(b), c.left)
	if c.left -= n; c.left > 0 {
		c.gathered = append(c.gathered, b[:n]...)
		return n, ev
	}
	c.at = inFrameHead
	if len(c.gathered) == 0 {
		ev = c.whole(b[:n])
		c.fresh = c.fresh || c.cont == 0
		return n, ev
	}
	c.gathered = append(c.gathered, b[:n]...)
	ev = c.whole(c.gathered)
	c.fresh = c.fresh || c.cont == 0
	if c.gathered = c.gathered[:0]; cap(c.gathered) > keepScratch {
		c.gathered = nil
	}
	return n, ev
}

// whole does what a frame other than data asks for.
func (c *conn) whole(p []byte) Event {
	switch c.frame.kind {
	case frameHeaders:
		return c.headers(p)
	case frameContinuation:
		return c.continuation(p)
	case frameWindow:
		return c.window(p)
	case frameReset:
		return c.reset(p)
	case frameSettings:
		return c.settings(p)
	case framePing:
		return c.ping(p)
	case framePriority:
		return c.priority(p)
	case frameGoAway:
		if c.client {
			return c.goneAway(p)
		}
		return c.goAway(p)
	case framePush:
		return c.fail(ProtocolError)
	}
	return Event{} // an unknown one that is empty
}

// never says whether the stream has not been opened, by anyone.
func (c *conn) never(id uint32) bool { return id > c.last || id&1 == 0 }

// dataHead is the beginning of a DATA frame. Whatever becomes of its bytes, they count (RFC 9113, section 6.9.1).
func (c *conn) dataHead() Event {
	f := &c.frame
	if c.never(f.stream) {
		return c.fail(ProtocolError)
	}
	if f.length > c.recv {
		return c.fail(FlowControlError)
	}
	c.recv -= f.length
	if f.length == 0 && !f.has(flagEndStream) && !c.spend(costFrame) {
		return Event{}
	}
	c.to, c.pad, c.at = c.streams.find(f.stream), -1, inData
	if !f.has(flagPadded) {
		c.pad = 0
	} else if f.length == 0 {
		return c.fail(FrameSizeError)
	}
	ev := c.mayCome(c.to, f)
	if c.failed || c.to == nil {
		return ev
	}
	if c.left == 0 {
		return c.endData()
	}
	return ev
}

// mayCome says what becomes of data for a stream. Without a stream to go to it is passed over.
func (c *conn) mayCome(s *Stream, f *frame) (ev Event) {
	how := c.fate(s, f.stream)
	switch {
	case c.client && s != nil && how&(answered|ours|theirs) == 0:
		ev = c.fault(s, ProtocolError)
	case how&ours != 0: // it was on its way when we gave the stream up
	case how&theirs != 0 || s == nil:
		c.faultID(f.stream, StreamClosed)
	case how&heard != 0:
		ev = c.fault(s, StreamClosed)
	case f.length > s.recv:
		ev = c.fault(s, FlowControlError)
	default:
		s.recv -= f.length
		return ev
	}
	c.drop()
	return ev
}

// drop passes over the rest of a DATA frame and gives its room back.
func (c *conn) drop() {
	c.to, c.at = nil, inSkipped
	if c.left == 0 {
		c.at = inFrameHead
	}
	c.giveBack(c.left - max(c.pad, 0)) // padding has been given back as soon as it was known
}

// fate is how a stream that is held stands, or how another one ended.
func (c *conn) fate(s *Stream, id uint32) state {
	if s != nil {
		return s.state
	}
	how := c.memory.of(id)
	if how == 0 && c.client { // given up long ago: a client may give up many at once
		return ours
	}
	return how
}

// data takes what there is of a DATA frame.
func (c *conn) data(b []byte) (n int, ev Event) {
	if c.pad < 0 {
		c.pad = int(b[0])
		n, c.left = 1, c.left-1
		if c.pad > c.left {
			return n, c.fail(ProtocolError)
		}
		if c.pad == c.left && !c.frame.has(flagEndStream) && !c.spend(costFrame) {
			return n, ev
		}
		c.unused(1 + c.pad)
	}
	if m := min(len(b)-n, c.left-c.pad); m > 0 {
		if ev = c.piece(b[n : n+m]); c.to == nil {
			return n, ev
		}
		n, c.left = n+m, c.left-m
	} else if m := min(len(b)-n, c.left); m > 0 && c.left <= c.pad {
		n, c.left, c.pad = n+m, c.left-m, c.pad-m
	}
	if c.left == 0 {
		if end := c.endData(); end.Kind != None {
			ev = end
		}
	}
	return n, ev
}

// unused gives back the room of bytes that are no body.
func (c *conn) unused(n int) {
	c.giveBack(n)
	c.to.owed += n
}

// piece gives the stream some of its body. More than the head announced is a fault of the message.
func (c *conn) piece(b []byte) Event {
	s := c.to
	if s.got += int64(len(b)); s.expect >= 0 && s.got > s.expect {
		ev := c.fault(s, ProtocolError)
		c.drop()
		return ev
	}
	s.take(b)
	return Event{Kind: Readable, Stream: s}
}

// endData is the end of a DATA frame.
func (c *conn) endData() Event {
	s := c.to
	c.to, c.at = nil, inFrameHead
	if !c.frame.has(flagEndStream) {
		return Event{}
	}
	return c.ended(s)
}

// ended is the end of a request: its body is as long as it was said to be, or the message is malformed (section 8.1.1).
func (c *conn) ended(s *Stream) Event {
	if s.expect >= 0 && s.got != s.expect {
		return c.fault(s, ProtocolError)
	}
	c.hear(s)
	return Event{Kind: Readable, Stream: s}
}

func (c *conn) hear(s *Stream) {
	if s.state |= heard; s.is(said) {
		c.uncount(s)
	}
}

func (c *conn) priority(p []byte) Event {
	id := c.frame.stream
	switch {
	case id == 0:
		return c.fail(ProtocolError)
	case len(p) != priorityData:
		return c.faultAny(id, FrameSizeError)
	case dependsOn(p) == id:
		return c.faultAny(id, ProtocolError)
	}
	c.spend(costFrame)
	return Event{}
}

func dependsOn(p []byte) uint32 { return binary.BigEndian.Uint32(p) & maxStreamID }

func (c *conn) faultAny(id uint32, code Code) Event {
	if s := c.streams.find(id); s != nil {
		return c.fault(s, code)
	}
	if c.client && c.never(id) { // nothing may be said about it either
		return c.fail(code)
	}
	return c.faultID(id, code)
}

func (c *conn) reset(p []byte) Event {
	id := c.frame.stream
	if len(p) != 4 {
		return c.fail(FrameSizeError)
	}
	if c.never(id) {
		return c.fail(ProtocolError)
	}
	s := c.streams.find(id)
	free := c.client && s != nil && !s.is(ours|theirs) // what we have opened has paid for it
	if !free && !c.spend(costState) || s == nil || s.is(ours|theirs) {
		return Event{}
	}
	s.state |= theirs
	s.Code = Code(binary.BigEndian.Uint32(p))
	c.uncount(s)
	return Event{Kind: Ended, Stream: s}
}

func (c *conn) ping(p []byte) Event {
	switch {
	case len(p) != 8:
		return c.fail(FrameSizeError)
	case c.frame.stream != 0:
		return c.fail(ProtocolError)
	case !c.frame.has(flagAck):
		if c.spend(costFrame) && c.control(frameHead+8) {
			c.out = appendPing(c.out, flagAck, [8]byte(p))
		}
	default:
		if c.spend(costFrame) && [8]byte(p) == leavePing {
			c.sayLast()
		}
	}
	return Event{}
}

func (c *conn) goAway(p []byte) Event {
	if c.frame.stream != 0 {
		return c.fail(ProtocolError)
	}
	if len(p) < 8 {
		return c.fail(FrameSizeError)
	}
	c.leaving.heard = true
	c.spend(costState)
	return Event{}
}

// window opens a window of ours.
func (c *conn) window(p []byte) Event {
	if len(p) != 4 {
		return c.fail(FrameSizeError)
	}
	id, n := c.frame.stream, int64(binary.BigEndian.Uint32(p)&maxStreamID)
	if !c.spend(costFrame) {
		return Event{}
	}
	if id == 0 {
		return c.connWindow(n)
	}
	if c.never(id) {
		return c.fail(ProtocolError)
	}
	s := c.streams.find(id)
	switch {
	case n == 0:
		return c.faultAny(id, ProtocolError)
	case s == nil || s.is(ours|theirs):
		return Event{}
	case s.send+n > maxWindow:
		return c.fault(s, FlowControlError)
	}
	if s.send += n; s.send > 0 && s.is(blocked) {
		return Event{Kind: Writable, Stream: s}
	}
	return Event{}
}

func (c *conn) connWindow(n int64) Event {
	if n == 0 {
		return c.fail(ProtocolError)
	}
	if c.sendWindow += n; c.sendWindow > maxWindow {
		return c.fail(FlowControlError)
	}
	if c.waiting && c.sendWindow > 0 {
		c.waiting = false
		return Event{Kind: Writable}
	}
	return Event{}
}

// settings applies the client's settings and says so.
func (c *conn) settings(p []byte) (ev Event) {
	ack := c.frame.has(flagAck)
	switch {
	case c.frame.stream != 0:
		return c.fail(ProtocolError)
	case len(p)%settingLen != 0 || ack && len(p) > 0:
		return c.fail(FrameSizeError)
	case !c.spend(costState+len(p)/settingLen) || ack: // each may move the windows of all streams (CVE-2020-11080)
		return ev
	}
	c.settled = true
	for ; len(p) > 0 && !c.failed; p = p[settingLen:] {
		if c.setting(binary.BigEndian.Uint16(p), binary.BigEndian.Uint32(p[2:])) {
			ev = Event{Kind: Writable}
		}
	}
	if c.failed || !c.control(frameHead) {
		return Event{}
	}
	c.out = appendFrame(c.out, 0, frameSettings, flagAck, 0)
	return ev
}

// setting applies one of them; wider says that streams can take more now.
func (c *conn) setting(id uint16, v uint32) (wider bool) {
	switch id {
	case settingTableSize:
		c.shrunk = c.shrunk || v < tableSize
	case settingPush:
		if v > 1 || c.client && v > 0 { // section 6.5.2
			c.fail(ProtocolError)
		}
	case settingConnectProtocol:
		if v > 1 || c.connects && v == 0 { // it can't be taken back (RFC 8441, section 3)
			c.fail(ProtocolError)
		}
		c.connects = v == 1
	case settingStreams:
		c.peerStreams = v
	case settingWindow:
		if v > maxWindow {
			c.fail(FlowControlError)
			return false
		}
		wider = int64(v) > c.peerWindow
		c.shiftWindows(int64(v) - c.peerWindow)
		c.peerWindow = int64(v)
	case settingFrameSize:
		if v < maxFrame || v >= 1<<24 {
			c.fail(ProtocolError)
		}
	}
	return wider
}

// shiftWindows moves the windows of all streams, below zero if need be (RFC 9113, section 6.9.2).
func (c *conn) shiftWindows(by int64) {
	for _, e := range c.streams.slots {
		if e.id == 0 {
			continue
		}
		if e.s.send += by; e.s.send > maxWindow {
			c.fail(FlowControlError)
			return
		}
	}
}
