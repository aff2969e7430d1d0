package engine_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/reason"
)

// connect sends an extended CONNECT, with more fields or others than usual; "-" takes one away.
func (f *frames) connect(id uint32, end bool, fields ...string) *frames {
	f.block.Reset()
	all := []string{":method", "CONNECT", ":protocol", "websocket", ":scheme", "http", ":authority", "a.example", ":path", "/chat", "sec-websocket-version", "13"}
	for i := 0; i < len(fields); i += 2 {
		at := 0
		for at < len(all) && all[at] != fields[i] {
			at += 2
		}
		if at == len(all) {
			all = append(all, fields[i], "")
		}
		all[at+1] = fields[i+1]
	}
	for i := 0; i < len(all); i += 2 {
		if all[i+1] != "-" {
			_ = f.enc.WriteField(hpack.HeaderField{Name: all[i], Value: all[i+1]})
		}
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: f.block.Bytes(), EndHeaders: true, EndStream: end})
	return f
}

// dataOf reads a stream's data up to n bytes.
func dataOf(f *frames, id uint32, n int) (got string, ended bool) {
	f.t.Helper()
	for len(got) < n {
		d := until(f, func(d *http2.DataFrame) bool { return d.StreamID == id })
		got += string(d.Data())
		if d.StreamEnded() {
			return got, true
		}
	}
	return got, false
}

func resetOf(f *frames, id uint32) http2.ErrCode {
	f.t.Helper()
	return until(f, func(r *http2.RSTStreamFrame) bool { return r.StreamID == id }).ErrCode
}

func codeOf(f *frames, id uint32) string {
	f.t.Helper()
	return answerOf(f, id).PseudoValue("status")
}

// CASES G3, G7, G9: what isn't a whole handshake for this protocol is refused by an answer, and reaches nobody.
func TestOnlyAWholeExtendedConnectReachesAnUpstream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, opened(t, func(_ int, c *raw) { _, _ = io.Copy(c, c.r) }), setup{})
		f := w.frames()
		id := uint32(1)
		for name, c := range map[string]struct {
			fields []string
			why    reason.Reason
		}{
			"another protocol":    {[]string{":protocol", "connect-udp"}, reason.UpgradeRefused},
			"another version":     {[]string{"sec-websocket-version", "8"}, reason.UpgradeRefused},
			"no version":          {[]string{"sec-websocket-version", "-"}, reason.UpgradeRefused},
			"a length":            {[]string{"content-length", "5"}, reason.UpgradeRefused},
			"an expectation":      {[]string{"expect", "100-continue"}, reason.UpgradeRefused},
			"plain CONNECT":       {[]string{":protocol", "-", ":scheme", "-", ":path", "-", ":authority", "a.example:80"}, reason.ConnectRefused},
			"another host":        {[]string{":authority", "b.example"}, reason.NoRoute},
			"a path that is none": {[]string{":path", "/../.."}, reason.BadRequest},
		} {
			h := answerOf(f.connect(id, false, c.fields...), id)
			if got := fmt.Sprint(h.PseudoValue("status"), " ", field(h, "x-cellgate-reason")); got != fmt.Sprint(c.why.Status(), " ", c.why) {
				t.Errorf("%s: %s", name, got)
			}
			if r := <-w.logged; r.Reason != c.why || r.Attempts != 0 {
				t.Errorf("%s: %+v", name, r)
			}
			id += 2
		}
		f.connect(id, false)
		if s := codeOf(f, id); s != "200" {
			t.Fatal(s)
		}
		_ = f.WriteData(id, false, []byte("goes on"))
		if got, _ := dataOf(f, id, 7); got != "goes on" {
			t.Fatal(got)
		}
	})
}

func field(h *http2.MetaHeadersFrame, name string) string {
	for _, f := range h.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return ""
}

// CASES G5: any number of WebSockets on one connection, each with a window and an end of its own.
func TestManyWebSocketsShareAConnectionAndNoWindow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, opened(t, func(_ int, c *raw) { _, _ = io.Copy(c, c.r) }), setup{})
		f := w.frames(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 3})
		const many = 20
		for i := range uint32(many) {
			if s := codeOf(f.connect(2*i+1, false), 2*i+1); s != "200" {
				t.Fatal(s)
			}
		}
		if n := w.server.Snapshot().Tunnels; n != many {
			t.Fatalf("%d tunnels", n)
		}
		for i := range uint32(many) { // none of the streams before takes more than three bytes
			_ = f.WriteData(2*i+1, false, []byte("abcdef"))
			if got, _ := dataOf(f, 2*i+1, 3); got != "abc" {
				t.Fatalf("%q", got)
			}
		}
		for i := uint32(many); i > 0; i-- {
			id := 2*i - 1
			_ = f.WriteWindowUpdate(id, 100)
			if got, _ := dataOf(f, id, 3); got != "def" {
				t.Fatalf("%q", got)
			}
			_ = f.WriteData(id, true, []byte("!"))
			if got, ended := dataOf(f, id, 2); got != "!" || !ended {
				t.Fatalf("%q %v", got, ended)
			}
		}
		w.quiet()
		if n := w.server.Snapshot().Tunnels; n != 0 {
			t.Fatalf("%d tunnels are left", n)
		}
	})
}

// RFC 8441, section 5: END_STREAM is the end of a TCP connection's direction, RST_STREAM with CANCEL its reset.
func TestTheEndOfAStreamIsTheEndOfAConnection(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		t.Run("the client's direction, ahead of the answer", func(t *testing.T) {
			w := start(t, opened(t, func(_ int, c *raw) {
				if b, err := io.ReadAll(c.r); err != nil || len(b) > 0 {
					t.Errorf("%q %v", b, err)
				}
				c.send("alone")
			}), setup{})
			f := w.frames().connect(1, true)
			if s := codeOf(f, 1); s != "200" {
				t.Fatal(s)
			}
			if got, ended := dataOf(f, 1, 6); got != "alone" || !ended {
				t.Fatalf("%q %v", got, ended)
			}
		})
		t.Run("the upstream's direction", func(t *testing.T) {
			heard := make(chan string, 1)
			w := start(t, opened(t, func(_ int, c *raw) {
				c.send("last").half()
				b, _ := io.ReadAll(c.r)
				heard <- string(b)
			}), setup{})
			f := w.frames().connect(1, false)
			if got, ended := dataOf(f, 1, 5); got != "last" || !ended {
				t.Fatalf("%q %v", got, ended)
			}
			_ = f.WriteData(1, false, []byte("and "))
			time.Sleep(20 * time.Millisecond)
			_ = f.WriteData(1, true, []byte("mine"))
			if got := <-heard; got != "and mine" {
				t.Fatalf("%q", got)
			}
			if r := <-w.logged; r.BytesIn != 8 || r.BytesOut != 4 || r.Truncated {
				t.Fatalf("%+v", r)
			}
		})
		t.Run("the upstream's reset", func(t *testing.T) {
			w := start(t, opened(t, func(_ int, c *raw) { _, _ = c.r.ReadByte(); c.reset() }), setup{})
			f := w.frames().connect(1, false)
			_ = f.WriteData(1, false, []byte("x"))
			if code := resetOf(f, 1); code != http2.ErrCodeCancel {
				t.Fatal(code)
			}
			<-w.logged
		})
		t.Run("the client's reset", func(t *testing.T) {
			ended := make(chan error, 1)
			w := start(t, opened(t, func(_ int, c *raw) { _, err := c.r.ReadByte(); ended <- err }), setup{})
			f := w.frames().connect(1, false)
			codeOf(f, 1)
			_ = f.WriteRSTStream(1, http2.ErrCodeCancel)
			<-ended
			<-w.logged
			f.connect(3, false)
			if s := codeOf(f, 3); s != "200" {
				t.Fatal(s)
			}
		})
		t.Run("trailers", func(t *testing.T) {
			w := start(t, opened(t, func(_ int, c *raw) { _, _ = c.r.ReadByte() }), setup{})
			f := w.frames().connect(1, false)
			codeOf(f, 1)
			f.head(1, true, ":path", "/")
			if code := resetOf(f, 1); code != http2.ErrCodeProtocol {
				t.Fatal(code)
			}
			<-w.logged
		})
	})
}

// CASES G9: what a client sends ahead of the agreement goes nowhere before it, and nowhere at all without it.
func TestWhatComesEarlyWaitsForTheAgreement(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		early := strings.Repeat("early ", 2000) // more than a short body
		for _, agrees := range []bool{true, false} {
			heard := make(chan int, 1)
			w := start(t, scripted(t, func(_ int, c *raw) {
				req, err := http.ReadRequest(c.r)
				if err != nil {
					return
				}
				time.Sleep(30 * time.Millisecond)
				_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				_, err = c.r.Peek(1)
				if err == nil {
					t.Error("bytes came ahead of the agreement")
				}
				_ = c.SetReadDeadline(time.Now().Add(patience))
				if c.send(map[bool]string{true: agree(req), false: "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"}[agrees]); agrees {
					b := make([]byte, len(early))
					n, _ := io.ReadFull(c.r, b)
					heard <- n
					return
				}
				_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
				n, _ := io.Copy(io.Discard, c.r)
				heard <- int(n)
			}), setup{})
			f := w.frames().connect(1, false)
			_ = f.WriteData(1, false, []byte(early))
			status := codeOf(f, 1)
			if n := <-heard; agrees != (status == "200") || agrees != (n == len(early)) || !agrees && n != 0 {
				t.Fatalf("%v: %s, the upstream heard %d bytes", agrees, status, n)
			}
		}
	})
}

// A client that takes nothing holds its upstream up, and holds little here, in both directions.
func TestBackpressureReachesBothEndsOfAWebSocket(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		sent, hold := make(chan int, 1), make(chan struct{})
		w := start(t, opened(t, func(_ int, c *raw) {
			b := make([]byte, 64<<20)
			<-hold
			_ = c.SetWriteDeadline(time.Now().Add(2 * time.Second))
			n, _ := c.Write(b)
			sent <- n
		}), setup{})
		f := w.frames(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 1000}).connect(1, false)
		codeOf(f, 1)
		room := 1 << 16 // as the settings say; no more comes while the upstream reads nothing
		for got := 0; got < room; got += 1 << 13 {
			_ = f.WriteData(1, false, make([]byte, 1<<13))
		}
		close(hold)
		if got, _ := dataOf(f, 1, 1000); len(got) != 1000 {
			t.Fatalf("%d bytes", len(got))
		}
		if n := <-sent; n > 32<<20 {
			t.Fatalf("the upstream could send %d bytes", n)
		}
	})
}

// What the upstream has sent before it ended arrives, however late the client makes room for it.
func TestTheLastBytesOfAWebSocketArrive(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		last := strings.Repeat("0123456789", 3000)
		w := start(t, opened(t, func(_ int, c *raw) { c.send(last) }), setup{})
		f := w.frames(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 10}).connect(1, true)
		if got, _ := dataOf(f, 1, 10); got != last[:10] {
			t.Fatalf("%q", got)
		}
		time.Sleep(50 * time.Millisecond)
		_ = f.WriteWindowUpdate(1, 1<<20)
		if got, ended := dataOf(f, 1, len(last)); got != last[10:] || !ended {
			t.Fatalf("%d bytes, %v", len(got), ended)
		}
		w.quiet()
	})
}

// A connection of an age goes, its WebSockets stay until their own.
func TestAnOldConnectionsWebSocketsStay(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, opened(t, func(_ int, c *raw) { _, _ = io.Copy(c, c.r) }), setup{engine: Options{MaxAge: 50 * time.Millisecond}})
		f := w.frames().connect(1, false)
		until(f, func(g *http2.GoAwayFrame) bool { return g.LastStreamID == 1<<31-1 })
		_ = f.WritePing(true, until(f, func(p *http2.PingFrame) bool { return !p.IsAck() }).Data)
		until(f, func(g *http2.GoAwayFrame) bool { return g.LastStreamID == 1 })
		_ = f.WriteData(1, true, []byte("still here"))
		if got, _ := dataOf(f, 1, 10); got != "still here" {
			t.Fatalf("%q", got)
		}
	})
}
