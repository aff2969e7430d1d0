package http2

import (
	"errors"

	"github.com/cellgate/cellgate/proxy/http1"
)

// headers begins a header block.
func (c *conn) headers(p []byte) Event {
	f := &c.frame
	if f.stream&1 == 0 {
		return c.fail(ProtocolError)
	}
	if f.has(flagPadded) {
		if len(p) == 0 {
			return c.fail(FrameSizeError)
		}
		pad := int(p[0])
		if p = p[1:]; pad > len(p) {
			return c.fail(ProtocolError)
		}
		p = p[:len(p)-pad]
	}
	c.selfish = false
	if f.has(flagPriority) {
		if len(p) < priorityData {
			return c.fail(FrameSizeError)
		}
		c.selfish = dependsOn(p) == f.stream
		p = p[priorityData:]
	}
	c.contEnds = f.has(flagEndStream)
	if f.has(flagEndHeaders) {
		return c.head(p, f.stream)
	}
	c.cont = f.stream
	return c.fragment(p)
}

func (c *conn) continuation(p []byte) Event {
	if ev := c.fragment(p); c.failed || !c.frame.has(flagEndHeaders) {
		return ev
	}
	b := c.block
	c.cont, c.block = 0, nil
	return c.head(b, c.frame.stream)
}

// fragment keeps a piece of a block. Pieces without end, and many that are next to empty, end the connection.
func (c *conn) fragment(p []byte) Event {
	if len(c.block)+len(p) > maxBlock {
		return c.fail(EnhanceYourCalm)
	}
	if len(p) < maxFrame/64 && !c.spend(costState) {
		return Event{}
	}
	c.block = append(c.block, p...)
	return Event{}
}

// head takes a whole header block: a request, or the trailers of one.
func (c *conn) head(block []byte, id uint32) Event {
	s := c.streams.find(id)
	how := c.fate(s, id)
	var to fieldSink
	switch {
	case id > c.last && c.client:
		return c.fail(ProtocolError)
	case id > c.last:
		if c.last = id; c.leaving.waits && !c.leaving.said {
			c.sayFirst(c.clock.read)
		}
		return c.request(block, id)
	case how&ours != 0: // it was on its way when we gave the stream up
		if !c.spend(costFrame) {
			return Event{}
		}
	case how&theirs != 0:
		c.faultID(id, StreamClosed)
	case s == nil && how&heard != 0:
		return c.fail(StreamClosed)
	case s == nil:
		return c.fail(ProtocolError)
	case how&heard != 0:
		if !c.decode(block, &to) {
			return Event{}
		}
		return c.fault(s, StreamClosed)
	case c.client && !s.is(answered):
		return c.answer(block, s)
	default:
		return c.trailers(block, s)
	}
	c.decode(block, &to)
	return Event{}
}

// trailers end the message.
func (c *conn) trailers(block []byte, s *Stream) Event {
	if s.trail == nil {
		s.trail = new(http1.Head)
	}
	s.trail.Empty(s.trail.Scratch())
	to := fieldSink{head: s.trail, regular: true}
	if !c.decode(block, &to) {
		return Event{}
	}
	if !c.contEnds || to.malformed || to.err != nil || c.selfish || s.is(connected) {
		return c.fault(s, ProtocolError)
	}
	s.trail.DropKnown()
	s.Trailer = s.trail
	return c.ended(s)
}

// decode takes a block apart. Whatever becomes of its fields, the decoder sees them all.
func (c *conn) decode(block []byte, to *fieldSink) bool {
	c.hpack.Begin()
	for len(block) > 0 {
		f, n, ok, err := c.hpack.Next(block)
		if err != nil {
			c.fail(CompressionError)
			return false
		}
		if block = block[n:]; ok {
			to.take(f)
		}
	}
	return true
}

// fieldSink makes a head of decoded fields, by the rules of RFC 9113, section 8. Its zero value throws them away.
type fieldSink struct {
	head      *http1.Head
	request   *http1.Request // nil in trailers and answers
	response  *http1.Response
	pseudo    uint8 // those that have come
	regular   bool  // no more of them may come
	connect   bool
	malformed bool
	err       error // what is answered instead
}

const (
	pseudoMethod = 1 << iota
	pseudoScheme
	pseudoPath
	pseudoAuthority
	pseudoStatus
	pseudoProtocol
)

func (t *fieldSink) take(f Field) {
	if t.head == nil || t.malformed || t.err != nil {
		return
	}
	if len(f.Name) > 0 && f.Name[0] == ':' {
		t.malformed = t.regular || !t.takePseudo(f)
		return
	}
	t.regular = true
	if string(f.Name) == "cookie" && t.request != nil {
		if done, err := t.head.Extend("cookie", "; ", f.Value); done || err != nil {
			t.fault(err)
			return
		}
	}
	kind, err := t.head.Put(f.Name, f.Value)
	t.fault(err)
	if kind != http1.Other {
		t.malformed = t.malformed || !allowed(kind, f)
	}
}

// fault keeps an error of a field: bad syntax is a malformed message, the rest is answered.
func (t *fieldSink) fault(err error) {
	if errors.Is(err, http1.ErrSyntax) {
		t.malformed = true
	} else {
		t.err = err
	}
}

// takePseudo takes a pseudo-header field: each once, those of requests only (section 8.3; RFC 8441, section 4).
func (t *fieldSink) takePseudo(f Field) bool {
	if t.response != nil {
		return t.takeStatus(f)
	}
	var bit uint8
	switch string(f.Name) {
	case ":method":
		bit = pseudoMethod
		t.connect = string(f.Value) == "CONNECT"
		t.request.PutMethod(f.Value)
	case ":path":
		bit = pseudoPath
		t.err = t.request.PutTarget(f.Value)
	case ":authority":
		bit = pseudoAuthority
		t.request.PutAuthority(f.Value)
	case ":scheme":
		bit = pseudoScheme
		if string(f.Value) != "http" && string(f.Value) != "https" {
			return false
		}
	case ":protocol":
		bit = pseudoProtocol
		if t.request.PutProtocol(f.Value) != nil {
			return false
		}
	default:
		return false
	}
	first := t.pseudo&bit == 0
	t.pseudo |= bit
	return first && (len(f.Value) > 0 || bit == pseudoAuthority)
}

// complete says whether the pseudo-header fields that a request needs are there. CONNECT has its own (section 8.5), and with
// a protocol those of every other request, which may have none (RFC 8441, section 4; CASES G3).
func (t *fieldSink) complete() bool {
	const need = pseudoMethod | pseudoScheme | pseudoPath
	extended := t.pseudo&pseudoProtocol != 0
	if t.connect && !extended {
		return t.pseudo == pseudoMethod|pseudoAuthority && t.request.PutTarget(slash) == nil
	}
	return t.pseudo&need == need && t.connect == extended
}

var slash = []byte{'/'}

// allowed refuses the fields of HTTP/1 connections (section 8.2.2).
func allowed(kind http1.Kind, f Field) bool {
	switch kind {
	case http1.Connection, http1.TransferEncoding, http1.Upgrade:
		return false
	case http1.TE:
		return string(f.Value) == "trailers"
	case http1.Hop:
		return string(f.Name) != "keep-alive" && string(f.Name) != "proxy-connection"
	}
	return true
}

// BeginHead begins an answer with its status, or trailers, of either message, with status 0. It is false when the stream takes none any more.
// Fields follow with PutField, then EndHead.
func (c *conn) BeginHead(s *Stream, status int) bool {
	if c.failed || s.is(said|ours|theirs) {
		return false
	}
	c.beginHead(s)
	if status > 0 {
		c.out = appendStatus(c.out, status)
	}
	return true
}

func (c *conn) beginHead(s *Stream) {
	c.headAt, c.heading = len(c.out), true
	c.out = appendFrame(c.out, 0, frameHeaders, flagEndHeaders, s.ID)
	if c.shrunk { // the entries that our encoder might have made: none
		c.shrunk = false
		c.out = append(c.out, 0x20)
	}
}

// PutBlock adds to the head that was begun what add, which AppendField helps, appends.
func (c *conn) PutBlock(add func(dst []byte) []byte) { c.out = add(c.out) }

// PutField adds a field to the head that was begun. Upper case in the name is lowered; neither may hold control characters.
func PutField[N, V ~string | ~[]byte](c *Server, name N, value V) {
	c.out = AppendField(c.out, name, value)
}

// EndHead completes the head. end says that nothing follows; length is that of the body which follows, -1 when unknown.
func (c *conn) EndHead(s *Stream, length int64, end bool) {
	c.heading = false
	head := c.out[c.headAt:]
	n := len(head) - frameHead
	if s.left = length; end || length == 0 {
		head[4] |= flagEndStream
		c.say(s)
	}
	if n > maxFrame {
		c.splitHead(s)
		n = maxFrame
	}
	head = c.out[c.headAt:]
	head[0], head[1], head[2] = byte(n>>16), byte(n>>8), byte(n)
}

// splitHead cuts a block that is too long for one frame: the pieces move back to make room for their heads.
func (c *conn) splitHead(s *Stream) {
	c.out[c.headAt+4] &^= flagEndHeaders
	block := c.out[c.headAt+frameHead+maxFrame:]
	rest := append(make([]byte, 0, len(block)), block...)
	c.out = c.out[:c.headAt+frameHead+maxFrame]
	for len(rest) > 0 {
		n, flags := min(len(rest), maxFrame), uint8(0)
		if n == len(rest) {
			flags = flagEndHeaders
		}
		c.out = append(appendFrame(c.out, n, frameContinuation, flags, s.ID), rest[:n]...)
		rest = rest[n:]
	}
}

func (c *conn) say(s *Stream) {
	if s.state |= said; s.is(heard) {
		c.uncount(s)
	}
}

// leastRoom is the least that Room is short of HighWater, so that bodies aren't cut into crumbs there.
const leastRoom = 1 << 10

// Room is how much of a body Write takes now. When that is nothing, a Writable event, or Out, says when to ask again. A
// stream that was given up takes everything.
func (c *conn) Room(s *Stream) int {
	s.state &^= blocked
	if c.failed || s.is(said|ours|theirs) {
		return maxWindow
	}
	if room := min(s.send, c.sendWindow, max(int64(HighWater-len(c.out)), leastRoom)); room > 0 && len(c.out) < HighWater {
		return int(room)
	}
	s.state |= blocked
	c.waiting = c.waiting || c.sendWindow <= 0
	return 0
}

// Write appends body, as much as the windows and HighWater allow, and says how much that was; see Room for the
// rest.
func (c *conn) Write(s *Stream, p []byte) (n int) {
	for n < len(p) {
		room := c.Room(s)
		switch {
		case room == 0:
			return n
		case c.failed || s.is(said|ours|theirs):
			return len(p)
		}
		for room = min(room, len(p)-n); room > 0; { // what Room has said is taken
			piece := min(room, maxFrame)
			c.frameData(s, p[n:n+piece])
			n += piece
			room -= piece
		}
	}
	if n > 0 && s.send > 0 && c.sendWindow > 0 {
		c.account.earn(earnPiece)
	}
	return n
}

// frameData appends one frame of body; the one that completes an announced length ends the stream.
func (c *conn) frameData(s *Stream, p []byte) {
	flags := uint8(0)
	if s.left >= 0 {
		if s.left -= int64(len(p)); s.left == 0 {
			flags = flagEndStream
			c.say(s)
		}
	}
	s.send -= int64(len(p))
	c.sendWindow -= int64(len(p))
	c.account.earn(len(p) / earnData)
	c.out = append(appendFrame(c.out, len(p), frameData, flags, s.ID), p...)
}

// End completes a message, if its length has not done so. One that is shorter than it said is given up.
func (c *conn) End(s *Stream) {
	switch {
	case c.failed || s.is(said|ours|theirs):
		return
	case s.left > 0:
		c.Reset(s, InternalError)
		return
	}
	c.out = appendFrame(c.out, 0, frameData, flagEndStream, s.ID)
	c.say(s)
}
