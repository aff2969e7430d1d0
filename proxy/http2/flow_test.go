package http2

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"pgregory.net/rapid"
)

// Both windows of both sides, under any order of what client and owner may do: neither side's account ever differs from
// what a model of the client counts from the frames alone, nobody sends more than it may, and nothing is lost.
func TestFlowControl(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{peer: connect(&testing.T{}), t: t, mayConn: firstWindow, canConn: firstWindow, initial: firstWindow, streams: map[uint32]*modelStream{}}
		m.listen()
		t.Repeat(map[string]func(*rapid.T){
			"":           m.check,
			"open":       m.open,
			"body":       m.body,
			"use":        m.use,
			"answer":     m.answer,
			"widen":      m.widen,
			"widen all":  m.widenAll,
			"set":        m.set,
			"give up":    m.giveUp,
			"finish":     m.finish,
			"end":        m.end,
			"end answer": m.endAnswer,
		})
	})
}

// model is the client's knowledge: may is what it may send, can what the server can.
type model struct {
	*peer
	t       *rapid.T
	mayConn int64
	canConn int64
	initial int64
	streams map[uint32]*modelStream
	next    uint32
}

type modelStream struct {
	s                  *Stream
	may, can           int64
	sent, used         int64 // request body
	written, heard     int64 // answer body
	ended, gone, begun bool
}

// listen takes in what the server has said.
func (m *model) listen() {
	for _, f := range m.said {
		id := f.Header().StreamID
		st := m.streams[id]
		switch f := f.(type) {
		case *http2.WindowUpdateFrame:
			if id == 0 {
				m.mayConn += int64(f.Increment)
			} else if st != nil {
				st.may += int64(f.Increment)
			}
		case *data:
			m.canConn -= int64(f.Length)
			st.can -= int64(f.Length)
			st.heard += int64(f.Length)
			if m.canConn < 0 || st.can < 0 && f.Length > 0 {
				m.t.Fatalf("%d bytes although the windows are %d and %d", f.Length, m.canConn, st.can)
			}
		case *http2.GoAwayFrame:
			m.t.Fatalf("GOAWAY %v", f.ErrCode)
		}
	}
	m.said = nil
}

func (m *model) run() {
	m.send()
	m.listen()
}

// some picks a stream that still lives.
func (m *model) some(t *rapid.T) *modelStream {
	var live []*modelStream
	for id := uint32(1); id <= m.next*2; id += 2 {
		if st := m.streams[id]; st != nil && !st.gone {
			live = append(live, st)
		}
	}
	if len(live) == 0 {
		t.Skip()
	}
	return rapid.SampledFrom(live).Draw(t, "stream")
}

func (m *model) open(t *rapid.T) {
	if m.c.open >= MaxStreams || m.c.Streams() >= maxHeld {
		t.Skip()
	}
	id := 2*m.next + 1
	m.next++
	m.head(id, false)
	m.streams[id] = &modelStream{may: StreamWindow, can: m.initial}
	m.run()
	m.streams[id].s = m.opened[len(m.opened)-1]
}

func (m *model) body(t *rapid.T) {
	st := m.some(t)
	if st.ended {
		t.Skip()
	}
	n := min(rapid.Int64Range(0, maxFrame-300).Draw(t, "bytes"), st.may, m.mayConn)
	pad := min(rapid.Int64Range(0, 255).Draw(t, "padding"), min(st.may, m.mayConn)-n-1)
	if n <= 0 {
		t.Skip()
	}
	if pad >= 0 {
		_ = m.WriteDataPadded(st.s.ID, false, make([]byte, n), make([]byte, pad))
		st.may, m.mayConn = st.may-pad-1, m.mayConn-pad-1
	} else {
		_ = m.WriteData(st.s.ID, false, make([]byte, n))
	}
	st.may, m.mayConn, st.sent = st.may-n, m.mayConn-n, st.sent+n
	m.run()
	if int64(len(st.s.Buffered())) != st.sent-st.used {
		t.Fatalf("%d bytes are there of %d", len(st.s.Buffered()), st.sent-st.used)
	}
}

func (m *model) use(t *rapid.T) {
	st := m.some(t)
	n := rapid.IntRange(0, len(st.s.Buffered())).Draw(t, "bytes")
	m.c.Use(st.s, n)
	st.used += int64(n)
	m.hear()
	m.listen()
}

func (m *model) answer(t *rapid.T) {
	st := m.some(t)
	if !st.begun {
		st.begun = m.c.BeginHead(st.s, 200)
		m.c.EndHead(st.s, -1, false)
	}
	n := m.c.Write(st.s, make([]byte, rapid.IntRange(1, 200_000).Draw(t, "bytes")))
	st.written += int64(n)
	if m.c.Pending() > HighWater+2*maxFrame {
		t.Fatalf("%d bytes wait", m.c.Pending())
	}
	m.hear()
	m.listen()
	if st.heard != st.written {
		t.Fatalf("%d bytes were sent, %d taken", st.heard, st.written)
	}
}

func (m *model) widen(t *rapid.T) {
	st := m.some(t)
	n := rapid.Int64Range(1, 100_000).Draw(t, "bytes")
	_ = m.WriteWindowUpdate(st.s.ID, uint32(n))
	st.can += n
	m.run()
}

func (m *model) widenAll(t *rapid.T) {
	n := rapid.Int64Range(1, 300_000).Draw(t, "bytes")
	_ = m.WriteWindowUpdate(0, uint32(n))
	m.canConn += n
	m.run()
}

// set changes the first window, which moves those of all streams, below zero too (RFC 9113, section 6.9.2).
func (m *model) set(t *rapid.T) {
	n := rapid.Int64Range(0, 200_000).Draw(t, "window")
	_ = m.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(n)})
	for _, st := range m.streams {
		st.can += n - m.initial
	}
	m.initial = n
	m.run()
}

func (m *model) giveUp(t *rapid.T) {
	st := m.some(t)
	_ = m.WriteRSTStream(st.s.ID, http2.ErrCodeCancel)
	m.run()
	m.drop(st)
}

func (m *model) finish(t *rapid.T) { m.drop(m.some(t)) }

func (m *model) drop(st *modelStream) {
	m.c.Finish(st.s, m.now)
	st.gone = true
	m.hear()
	m.listen()
}

func (m *model) end(t *rapid.T) {
	st := m.some(t)
	if st.ended {
		t.Skip()
	}
	st.ended = true
	_ = m.WriteData(st.s.ID, true, nil)
	m.run()
}

func (m *model) endAnswer(t *rapid.T) {
	st := m.some(t)
	if !st.begun {
		t.Skip()
	}
	m.c.End(st.s)
	m.drop(st)
}

func (m *model) check(t *rapid.T) {
	m.now = m.now.Add(1e8)
	unread := 0
	for _, st := range m.streams {
		if st.gone {
			continue
		}
		unread += len(st.s.Buffered())
		if st.s.send != st.can || int64(st.s.recv) != st.may {
			t.Fatalf("stream %d: can send %d, the client says %d; may take %d, the client says %d", st.s.ID, st.s.send, st.can, st.s.recv, st.may)
		}
		if len(st.s.Buffered()) > StreamWindow || cap(st.s.in) > StreamWindow {
			t.Fatalf("%d bytes are kept of stream %d", cap(st.s.in), st.s.ID)
		}
	}
	if m.c.sendWindow != m.canConn || int64(m.c.recv) != m.mayConn || m.c.recv+m.c.owed+unread != ConnWindow {
		t.Fatalf("can send %d, the client says %d; may take %d, the client says %d; %d owed, %d unread", m.c.sendWindow, m.canConn, m.c.recv, m.mayConn, m.c.owed, unread)
	}
	if _, failed := m.c.Failed(); failed {
		t.Fatal("failed")
	}
}

// FuzzFeed: whatever comes, cut anyhow and answered anyhow, nothing panics, nothing grows beyond its bounds, and what is
// sent is well-formed (peer.hear reads it with another implementation).
func FuzzFeed(f *testing.F) {
	p := connect(f)
	p.wire.Reset()
	p.head(1, false, "content-length", "4", "cookie", "a", "cookie", "b")
	_ = p.WriteDataPadded(1, true, []byte("body"), make([]byte, 3))
	_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 2}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 0})
	_ = p.WriteWindowUpdate(1, 5)
	p.head(3, true)
	_ = p.WriteRSTStream(3, 8)
	_ = p.WritePing(false, [8]byte{})
	f.Add(bytes.Clone(p.wire.Bytes()), []byte{3, 200, 1, 0, 7})
	f.Add([]byte("\x00\x00\x05\x01\x00\x00\x00\x00\x01\x82\x86\x84\x41\x01\x00\x00\x01\x09\x04\x00\x00\x00\x01a"), []byte{})
	f.Fuzz(func(t *testing.T, wire, acts []byte) {
		p := connect(t)
		act := func() int {
			if len(acts) == 0 {
				return 0
			}
			a := acts[0]
			acts = acts[1:]
			return int(a)
		}
		for len(wire) > 0 {
			n := min(1+act()*50, len(wire))
			p.feed(wire[:n])
			wire = wire[n:]
			p.now = p.now.Add(1e9)
			ownerActs(p, act)
			p.hear()
			if cap(p.c.block) > 3*maxBlock || cap(p.c.gathered) > 2*maxFrame || cap(p.c.hpack.buf) > 2*tableSize || p.c.Streams() > maxHeld || p.c.open > MaxStreams || p.c.open < 0 {
				t.Fatalf("%d %d %d %d %d", cap(p.c.block), cap(p.c.gathered), cap(p.c.hpack.buf), p.c.Streams(), p.c.open)
			}
			if p.c.recv+p.c.owed > ConnWindow {
				t.Fatalf("a window of %d", p.c.recv+p.c.owed)
			}
			if p.c.Over() {
				return
			}
		}
	})
}

// ownerActs does something with the streams that are held.
func ownerActs(p *peer, act func() int) {
	for s := range p.c.Held {
		if s.recv+s.owed+len(s.Buffered()) > StreamWindow || cap(s.in) > StreamWindow || len(s.Request.Fields()) > 100 {
			p.t.Fatalf("stream %d: %d + %d + %d", s.ID, s.recv, s.owed, len(s.Buffered()))
		}
		switch a := act(); a % 8 {
		case 1:
			p.c.Use(s, len(s.Buffered()))
		case 2:
			if p.c.BeginHead(s, 200) {
				PutField(&p.c, "x", fmt.Sprint(a))
				p.c.EndHead(s, int64(a), false)
			}
		case 3:
			p.c.Write(s, make([]byte, a*100))
		case 4:
			p.c.End(s)
		case 5:
			p.c.Finish(s, p.now)
		case 6:
			p.c.Reset(s, Cancel)
		case 7:
			p.c.Leave(p.now)
			p.c.Tick(p.now)
		}
	}
}

// A client that hangs up is answered what it has asked for whole; the rest is given up, and nothing is asked of it any more.
func TestHungUp(t *testing.T) {
	p := connect(t)
	p.head(1, true).head(3, false).head(5, true).send()
	p.c.HungUp(p.now)
	p.hear()
	if g := last[*http2.GoAwayFrame](p); g == nil || g.LastStreamID != 5 || p.c.Over() {
		t.Fatal(p.said)
	}
	for i, gone := range []bool{false, true, false} {
		if s := p.opened[i]; s.Gone() != gone {
			t.Errorf("stream %d: %v", s.ID, s.Gone())
		}
	}
	p.now = p.now.Add(time.Hour)
	if p.c.Due().Before(p.now) {
		t.Error("something is due")
	}
	p.c.Tick(p.now)
	p.c.HungUp(p.now)
	for _, s := range p.opened {
		if p.c.BeginHead(s, 200) {
			p.c.EndHead(s, -1, true)
		}
		p.c.Finish(s, p.now)
	}
	if p.hear(); p.c.open != 0 || !p.c.Over() || p.resets() != "" {
		t.Fatal(p.said, p.c.open)
	}
	if code, failed := p.c.Failed(); failed {
		t.Fatal(code)
	}
}
