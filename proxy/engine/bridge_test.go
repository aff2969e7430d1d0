//lint:file-ignore SA1019 the tests speak HTTP/2 with prior knowledge over connections of their own.

package engine_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// bridged is an upstream that takes WebSockets over HTTP/2 (RFC 8441), made of one that takes them over HTTP/1.1: each stream
// becomes a connection to it, which ends and breaks as the stream does.
func bridged(t testing.TB, up string) string {
	l := listen(t)
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
			all.Go(func() {
				b := &bridge{t: t, to: up, f: http2.NewFramer(nc, nc), room: 65535, first: 65535, streams: map[uint32]*span{}}
				b.changed = sync.NewCond(&b.mu)
				b.run(nc)
				nc.Close()
				b.end()
			})
		}
	})
	return l.Addr().String()
}

type bridge struct {
	t  testing.TB
	to string
	f  *http2.Framer

	mu      sync.Mutex // for all below, and for writing frames
	changed *sync.Cond
	room    int64 // that the gateway gives to all streams
	first   int64 // and to a new one
	over    bool
	streams map[uint32]*span
	work    sync.WaitGroup
}

// span is one stream with its connection.
type span struct {
	id    uint32
	room  int64 // that the gateway gives
	in    []byte
	ended bool // nothing comes behind in
	reset bool // by the gateway
	broke bool // by the upstream
	nc    net.Conn
}

func (b *bridge) run(nc net.Conn) {
	if _, err := io.ReadFull(nc, make([]byte, len(http2.ClientPreface))); err != nil {
		return
	}
	b.f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	b.write(func() error {
		return b.f.WriteSettings(http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1})
	})
	for {
		f, err := b.f.ReadFrame()
		if err != nil {
			return
		}
		b.take(f)
	}
}

// end breaks all connections with that of the streams.
func (b *bridge) end() {
	b.mu.Lock()
	b.over = true
	for _, s := range b.streams {
		s.breakOff()
	}
	b.changed.Broadcast()
	b.mu.Unlock()
	b.work.Wait()
}

func (s *span) breakOff() {
	if s.reset = true; s.nc != nil {
		_ = s.nc.(*net.TCPConn).SetLinger(0)
		s.nc.Close()
	}
}

func (b *bridge) write(do func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = do()
}

func (b *bridge) take(f http2.Frame) {
	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.changed.Broadcast()
	s := b.streams[f.Header().StreamID]
	switch f := f.(type) {
	case *http2.SettingsFrame:
		if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
			b.first = int64(v)
		}
		if !f.IsAck() {
			_ = b.f.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = b.f.WritePing(true, f.Data)
		}
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			b.room += int64(f.Increment)
		} else if s != nil {
			s.room += int64(f.Increment)
		}
	case *http2.MetaHeadersFrame:
		s = &span{id: f.StreamID, room: b.first, ended: f.StreamEnded()}
		b.streams[s.id] = s
		b.work.Go(func() { b.serve(s, f) })
	case *http2.DataFrame:
		if s != nil {
			s.in = append(s.in, f.Data()...)
			s.ended = s.ended || f.StreamEnded()
		}
	case *http2.RSTStreamFrame:
		if s != nil {
			s.breakOff()
		}
	}
}

// serve carries a stream to its end.
func (b *bridge) serve(s *span, h *http2.MetaHeadersFrame) {
	code, failed := b.carry(s, h)
	b.mu.Lock()
	defer b.mu.Unlock()
	if delete(b.streams, s.id); failed && !s.reset {
		_ = b.f.WriteRSTStream(s.id, code)
	}
}

func (b *bridge) carry(s *span, h *http2.MetaHeadersFrame) (code http2.ErrCode, failed bool) {
	if h.PseudoValue("method") != "CONNECT" || h.PseudoValue("protocol") != "websocket" || h.PseudoValue("scheme") != "http" || field(h, "sec-websocket-key")+field(h, "content-length") != "" {
		b.t.Errorf("the upstream got %v", h.Fields)
	}
	nc, err := net.Dial("tcp", b.to)
	if err != nil {
		return http2.ErrCodeRefusedStream, true
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
	b.mu.Lock()
	if s.nc = nc; s.reset {
		s.breakOff()
	}
	b.mu.Unlock()
	head := "GET " + h.PseudoValue("path") + " HTTP/1.1\r\nHost: " + h.PseudoValue("authority") + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
	for _, f := range h.RegularFields() {
		head += f.Name + ": " + f.Value + "\r\n"
	}
	_, _ = io.WriteString(nc, head+"\r\n")
	r := bufio.NewReader(nc)
	for {
		res, err := http.ReadResponse(r, &http.Request{Method: "GET"})
		if err != nil {
			return http2.ErrCodeInternal, true
		}
		b.head(s, res)
		switch {
		case res.StatusCode == 101:
			return b.both(s, r)
		case res.StatusCode >= 200:
			return b.down(s, res.Body)
		}
	}
}

// head passes a head on.
func (b *bridge) head(s *span, res *http.Response) {
	status := res.StatusCode
	if status == 101 {
		status = 200
		delete(res.Header, "Sec-Websocket-Accept")
	}
	var block strings.Builder
	enc := hpack.NewEncoder(&block)
	_ = enc.WriteField(hpack.HeaderField{Name: ":status", Value: string([]byte{'0' + byte(status/100), '0' + byte(status/10%10), '0' + byte(status%10)})})
	named := strings.ToLower(strings.Join(res.Header["Connection"], ","))
	for name, values := range res.Header {
		if name == "Connection" || name == "Upgrade" || name == "Keep-Alive" || strings.Contains(named, strings.ToLower(name)) {
			continue
		}
		for _, v := range values {
			_ = enc.WriteField(hpack.HeaderField{Name: strings.ToLower(name), Value: v})
		}
	}
	b.write(func() error {
		return b.f.WriteHeaders(http2.HeadersFrameParam{StreamID: s.id, BlockFragment: []byte(block.String()), EndHeaders: true})
	})
}

// both passes bytes both ways, until both have ended or either has broken.
func (b *bridge) both(s *span, r io.Reader) (code http2.ErrCode, failed bool) {
	done := make(chan bool)
	go func() { done <- b.up(s) }()
	code, failed = b.down(s, r)
	if failed {
		b.mu.Lock()
		s.broke = true
		b.changed.Broadcast()
		b.mu.Unlock()
	}
	return code, <-done || failed
}

// up passes on what the gateway sends. It is true when that has failed.
func (b *bridge) up(s *span) bool {
	for {
		b.mu.Lock()
		for len(s.in) == 0 && !s.ended && !s.reset && !s.broke && !b.over {
			b.changed.Wait()
		}
		p, ended, gone := s.in, s.ended, s.reset || s.broke || b.over
		s.in = nil
		b.mu.Unlock()
		if gone {
			return true
		}
		if len(p) > 0 {
			if _, err := s.nc.Write(p); err != nil {
				return true
			}
			b.write(func() error {
				_ = b.f.WriteWindowUpdate(0, uint32(len(p)))
				return b.f.WriteWindowUpdate(s.id, uint32(len(p)))
			})
			continue
		}
		if ended {
			_ = s.nc.(*net.TCPConn).CloseWrite()
			return false
		}
	}
}

// down passes on what the upstream sends, as the gateway has room.
func (b *bridge) down(s *span, r io.Reader) (code http2.ErrCode, failed bool) {
	buf := make([]byte, 8<<10)
	for {
		n, err := r.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			b.mu.Lock()
			for s.room <= 0 && !s.reset || b.room <= 0 && !b.over {
				b.changed.Wait()
			}
			if s.reset || b.over {
				b.mu.Unlock()
				return http2.ErrCodeCancel, true
			}
			m := min(int64(len(p)), s.room, b.room)
			_ = b.f.WriteData(s.id, false, p[:m])
			s.room, b.room, p = s.room-m, b.room-m, p[m:]
			b.mu.Unlock()
		}
		switch {
		case errors.Is(err, io.EOF):
			b.write(func() error { return b.f.WriteData(s.id, true, nil) })
			return 0, false
		case err != nil:
			return http2.ErrCodeCancel, true
		}
	}
}
