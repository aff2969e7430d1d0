package engine_test

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/reason"
)

// Bytes arrive as they were sent, wherever they are cut, in both directions at once.
func TestFramesArriveWholeHoweverTheyAreCut(t *testing.T) {
	t.Parallel()
	eachDoor(t, func(t *testing.T, start opening) {
		_, d := start(opened(t, func(_ int, c *raw) {
			for {
				b, err := c.r.ReadByte()
				if err != nil {
					return
				}
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
		}), setup{})
		var all []byte
		for _, size := range []int{0, 1, 125, 126, 300} {
			all = append(append(all, 0x82, 0x80|byte(min(size, 126))), []byte{byte(size >> 8), byte(size), 1, 2, 3, 4}[2*btoi(size < 126):]...)
			all = append(all, bytes.Repeat([]byte{0x88}, size)...)
		}
		c := d.open("/chat")
		go func() {
			for _, b := range all {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
			}
		}()
		c.expect(string(all))
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// What an agreement brings besides passes as in any answer: fields of connections and what they name never do, the rest does.
func TestAnAgreementPassesOnWhatAnAnswerMay(t *testing.T) {
	t.Parallel()
	eachPlainDoor(t, func(t *testing.T, start opening) {
		w, d := start(scripted(t, func(_ int, c *raw) {
			req, err := http.ReadRequest(c.r)
			if err != nil {
				return
			}
			c.send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + strings.Replace(agree(req), "\r\n\r\n",
				"\r\nSec-WebSocket-Protocol: chat\r\nSet-Cookie: a=b\r\nSet-Cookie: c=d\r\nKeep-Alive: 5\r\nX-Caller: root\r\nAlt-Svc: h2\r\nContent-Length: 0\r\nConnection: X-Named\r\nX-Named: 1\r\n\r\n", 1) + "HTTP/1.1 200 OK\r\n\r\n")
			_, _ = io.Copy(io.Discard, c.r)
		}), setup{})
		var h http.Header
		var c *raw
		if d.stream {
			c = d.open("/chat")
			h = c.Conn.(*h2socket).res.Header
		} else {
			c = w.dial().send(handshake)
			h = c.upgraded().Header
		}
		if h.Get("Sec-Websocket-Protocol") != "chat" || len(h["Set-Cookie"]) != 2 || h.Get("Keep-Alive")+h.Get("X-Caller")+h.Get("Alt-Svc")+h.Get("X-Named") != "" {
			t.Fatal(h)
		}
		c.expect("HTTP/1.1 200 OK\r\n\r\n") // bytes of the tunnel, whatever they look like
	})
}

// CASES G9: what isn't an agreement made for the handshake opens nothing, over HTTP/2 as over HTTP/1.1, and shows nothing of
// what comes behind it.
func TestWhatIsNoAgreementOpensNoTunnel(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(string) string{
		"another key's proof": func(s string) string {
			return strings.Replace(s, "Sec-WebSocket-Accept: ", "Sec-WebSocket-Accept: x", 1)
		},
		"another protocol": func(s string) string { return strings.Replace(s, "websocket", "h2c", 1) },
		"chunks": func(s string) string {
			return strings.Replace(s, "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 1)
		},
		"a body":         func(s string) string { return strings.Replace(s, "\r\n\r\n", "\r\nContent-Length: 2\r\n\r\nno", 1) },
		"HTTP/1.0":       func(s string) string { return strings.Replace(s, "HTTP/1.1", "HTTP/1.0", 1) },
		"no HTTP":        func(s string) string { return "SSH-2.0-x\r\n" + s },
		"a folded field": func(s string) string { return strings.Replace(s, "\r\n\r\n", "\r\nX: a\r\n b\r\n\r\n", 1) },
		"interim answers without end": func(s string) string {
			return strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100) + s
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachDoorTo1(t, func(t *testing.T, start opening) {
				_, d := start(scripted(t, func(_ int, c *raw) {
					if req, err := http.ReadRequest(c.r); err == nil {
						_, _ = io.WriteString(c, change(agree(req))+"secret")
						_, _ = io.Copy(io.Discard, c.r)
					}
				}), setup{})
				res, body := d.refused("/chat")
				problem(t, res, body, reason.UpstreamInvalid)
			})
		})
	}
}

// A node that goes has to tell its clients, whatever frame they are in: those that wait for the end of a huge one are cut.
func TestAHugeFrameDoesNotKeepADrainUp(t *testing.T) {
	t.Parallel()
	eachPlainDoor(t, func(t *testing.T, start opening) {
		w, d := start(opened(t, func(_ int, c *raw) {
			c.send("\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff")
			for {
				if _, err := c.Write(make([]byte, 4096)); err != nil {
					return
				}
				time.Sleep(time.Millisecond)
			}
		}), setup{engine: Options{HardStop: time.Second}})
		c := d.open("/chat")
		c.expect("\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff")
		began := time.Now()
		w.stop()
		if _, _ = io.Copy(io.Discard, c.r); time.Since(began) > soon {
			t.Fatalf("open for %v", time.Since(began))
		}
	})
}

// Whatever a client sends in whatever pieces, and however it goes, nothing is left behind.
func TestRandomTalkOverWebSocketsLeavesNothing(t *testing.T) {
	t.Parallel()
	eachPlainDoor(t, func(t *testing.T, start opening) {
		w, d := start(opened(t, func(n int, c *raw) {
			r := rand.New(rand.NewPCG(uint64(n), 1))
			for range r.IntN(20) {
				switch r.IntN(5) {
				case 0:
					c.half()
				case 1:
					if r.IntN(4) == 0 {
						c.reset()
						return
					}
				default:
					if _, err := c.Write(bytes.Repeat([]byte{0x81}, r.IntN(1<<r.IntN(17)))); err != nil {
						return
					}
				}
				_, _ = c.r.Discard(min(c.r.Buffered(), 100))
			}
		}), setup{silent: true})
		done := make(chan error, 6)
		for i := range cap(done) {
			go func() {
				r := rand.New(rand.NewPCG(uint64(i), 2))
				for range 12 {
					c := d.open("/chat")
					for range r.IntN(10) {
						switch r.IntN(6) {
						case 0:
							c.half()
						case 1:
							b := make([]byte, 1+r.IntN(5000))
							_, _ = c.r.Read(b)
						default:
							_, _ = c.Write(bytes.Repeat([]byte{0x88}, r.IntN(1<<r.IntN(15))))
						}
					}
					c.Close()
				}
				done <- nil
			}()
		}
		for range cap(done) {
			<-done
		}
		w.quiet()
		if st := w.server.Snapshot(); st.Tunnels != 0 || st.Upstreams[0].Open != st.Upstreams[0].Idle {
			t.Fatalf("%+v", st)
		}
	})
}
