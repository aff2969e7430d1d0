package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy"
	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/reason"
)

const handshake = "GET /chat HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"

// agree is a server's answer to a handshake.
func agree(req *http.Request) string {
	sum := sha1.Sum([]byte(req.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	return "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " + base64.StdEncoding.EncodeToString(sum[:]) + "\r\n\r\n"
}

// opened is an upstream that agrees and goes on as talk says.
func opened(t testing.TB, talk func(n int, c *raw)) string {
	return scripted(t, func(n int, c *raw) {
		req, err := http.ReadRequest(c.r)
		if err != nil {
			return
		}
		c.send(agree(req))
		talk(n, c)
	})
}

// upgraded checks an answer that agrees.
func (c *raw) upgraded() *http.Response {
	c.t.Helper()
	res, err := http.ReadResponse(c.r, &http.Request{Method: "GET"})
	if err != nil || res.StatusCode != 101 || res.Header.Get("Sec-WebSocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" ||
		res.Header.Get("Upgrade") != "websocket" || res.Header.Get("Connection") != "Upgrade" || res.Header.Get("Content-Length") != "" || len(res.TransferEncoding) > 0 {
		c.t.Fatalf("%v %+v", err, res)
	}
	return res
}

// expect reads exactly these bytes.
func (c *raw) expect(want string) *raw {
	c.t.Helper()
	got := make([]byte, len(want))
	if n, err := io.ReadFull(c.r, got); err != nil || string(got) != want {
		c.t.Fatalf("%q %v, want %q", got[:n], err, want)
	}
	return c
}

// closeFrame reads a server's close frame and gives its code.
func (c *raw) closeFrame() int {
	c.t.Helper()
	var b [4]byte
	if _, err := io.ReadFull(c.r, b[:]); err != nil || b[0] != 0x88 || b[1] != 2 {
		c.t.Fatalf("no close frame: %x %v", b, err)
	}
	return int(binary.BigEndian.Uint16(b[2:]))
}

// text is a server's frame.
func text(s string) string { return string([]byte{0x81, byte(len(s))}) + s }

func (w *world) secure(t testing.TB, roots *tls.Config) *raw {
	t.Helper()
	c, err := tls.Dial("tcp", w.addr, roots)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(8 * time.Second))
	return &raw{c, bufio.NewReader(c), t}
}

func TestAWebSocketPassesBothWays(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		seen := make(chan *http.Request, 2)
		up := scripted(t, func(_ int, c *raw) {
			req, err := http.ReadRequest(c.r)
			if err != nil {
				return
			}
			seen <- req
			c.send(agree(req) + text("hello")) // in one piece
			_, _ = io.Copy(c, c.r)
		})
		cert, roots := selfSigned(t)
		for _, secure := range []bool{false, true} {
			s := setup{}
			if secure {
				s.tls = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}
			}
			w := start(t, up, s)
			var c *raw
			if secure {
				c = w.secure(t, &tls.Config{RootCAs: roots, ServerName: "a.example"})
			} else {
				c = w.dial()
			}
			c.send(strings.Replace(handshake, "\r\n\r\n", "\r\nSec-WebSocket-Protocol: chat\r\nX-Forwarded-For: 6.6.6.6\r\nTE: trailers\r\n\r\n", 1))
			res := c.upgraded()
			c.expect(text("hello"))
			req := <-seen
			if h := req.Header; h.Get("Upgrade") != "websocket" || h.Get("Connection") != "Upgrade" || h.Get("Sec-WebSocket-Protocol") != "chat" || h.Get("Te") != "" ||
				h.Get("X-Forwarded-For") != "127.0.0.1" || h.Get("X-Request-Id") != res.Header.Get("X-Request-Id") || req.ContentLength != 0 {
				t.Fatalf("the upstream got %v", h)
			}
			if n := w.server.Snapshot().Tunnels; n != 1 {
				t.Fatalf("%d tunnels", n)
			}
			much := bytes.Repeat([]byte("0123456789abcdef"), 1<<16) // more than all buffers between
			go func() { _, _ = c.Write(much) }()
			got := make([]byte, len(much))
			if _, err := io.ReadFull(c.r, got); err != nil || !bytes.Equal(got, much) {
				t.Fatal("what came back is not what was sent: ", err)
			}
			c.Close()
			if r := <-w.logged; r.Status != 101 || r.Reason != reason.None || r.BytesIn != int64(len(much)) || r.BytesOut != int64(len(much)+7) || r.Open <= 0 || r.Total > r.Open+time.Second || r.TLS != secure {
				t.Fatalf("%+v", r)
			}
			if st := w.server.Snapshot(); st.Tunnels != 0 || st.Upstreams[0].Open != 0 {
				t.Fatalf("%+v", st)
			}
		}
	})
}

// CASES G9: there is no way out of HTTP but a whole handshake that the upstream agrees to, and no request behind one.
func TestRefusedUpgradesReachNobodyAndClose(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		w := start(t, scripted(t, func(_ int, c *raw) {
			if _, _, alive := c.request(); alive {
				t.Error("the upstream was asked")
			}
		}), setup{})
		with := func(old, new string) string { return strings.Replace(handshake, old, new, 1) }
		for name, send := range map[string]string{
			"another protocol":         with("websocket", "chat/2"),
			"one of two":               with("websocket", "websocket, chat"),
			"two fields":               with("Upgrade: websocket", "Upgrade: websocket\r\nUpgrade: h2c"),
			"no key":                   with("Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n", ""),
			"version 7":                with(": 13", ": 7"),
			"POST":                     with("GET", "POST"),
			"a body":                   with("\r\n\r\n", "\r\nContent-Length: 38\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a.example\r\n\r\n"),
			"a body in chunks":         with("\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
			"a request behind":         handshake + get("/hidden"),
			"a frame ahead":            handshake + "\x81\x80\x00\x00\x00\x00",
			"HTTP/1.0":                 with("HTTP/1.1", "HTTP/1.0"),
			"an expectation":           with("\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n"),
			"TLS within (RFC 2817)":    with("websocket", "TLS/1.0"),
			"the key named hop-by-hop": with("Connection: Upgrade", "Connection: Upgrade, Sec-WebSocket-Key"),
		} {
			t.Run(name, func(t *testing.T) {
				c := w.dial().send(send)
				res, body, _ := c.answer("GET")
				problem(t, res, body, reason.UpgradeRefused)
				if !res.Close {
					t.Error("the connection is kept")
				}
				c.closed()
			})
		}
	})
}

// What the gateway demands of a request it demands of a handshake.
func TestAHandshakeGoesThroughThePipeline(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		up := opened(t, func(_ int, c *raw) { _, _ = c.r.ReadByte() })
		w := start(t, up, setup{document: `
version: v1
routes:
  - {id: few, match: {host: a.example, path: /chat}, upstream: up, limits: {tenant: 1/hour}}
  - {id: posts, match: {host: a.example, path: /posts, methods: [POST]}, upstream: up}
  - {id: closed, match: {host: a.example, path: /closed}, upstream: up, auth: jwt}
upstreams: [{id: up, endpoints: ["UP"]}]
policies: [{id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}]
`})
		w.dial().send(handshake).upgraded()
		for path, why := range map[string]reason.Reason{"/chat": reason.RateTenant, "/posts": reason.MethodNotAllowed, "/closed": reason.AuthUnavailable, "/": reason.NoRoute} {
			c := w.dial().send(strings.Replace(handshake, "/chat", path, 1))
			res, body, _ := c.answer("GET")
			problem(t, res, body, why)
			c.closed()
		}
	})
}

func TestAnUpstreamsRefusalIsAnOrdinaryAnswer(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		for name, answer := range map[string]string{
			"403": "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "200 in chunks": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
			"426": "HTTP/1.1 426 Upgrade Required\r\nSec-WebSocket-Version: 14\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nno",
		} {
			t.Run(name, func(t *testing.T) {
				hidden := make(chan string, 2)
				w := start(t, scripted(t, func(_ int, c *raw) {
					for {
						req, _, alive := c.request()
						if !alive {
							return
						}
						hidden <- req.URL.Path
						c.send(answer)
					}
				}), setup{})
				c := w.dial().send(handshake)
				res, body, err := c.answer("GET")
				if err != nil || body != "no" || res.StatusCode == 101 || !res.Close || res.Header.Get("Upgrade") != "" {
					t.Fatalf("%d %v %q %v", res.StatusCode, res.Header, body, err)
				}
				_, _ = io.WriteString(c, get("/hidden")) // the client takes the refusal for agreement, or somebody before it does
				c.closed()
				if r := <-w.logged; r.Status != res.StatusCode || r.Open != 0 || len(hidden) != 1 {
					t.Fatalf("%+v, the upstream saw %d requests", r, len(hidden))
				}
			})
		}
	})
}

func TestOnlyAnAgreementMadeForTheHandshakeOpensATunnel(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		right := agree(&http.Request{Header: http.Header{"Sec-Websocket-Key": {"dGhlIHNhbXBsZSBub25jZQ=="}}})
		with := func(old, new string) string { return strings.Replace(right, old, new, 1) }
		for name, c := range map[string]struct{ send, answer string }{
			"another key's proof": {handshake, with("s3pPLM", "s3pPLN")},
			"no proof":            {handshake, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"},
			"another protocol":    {handshake, with("websocket", "chat")},
			"no Connection":       {handshake, with("Connection: Upgrade\r\n", "")},
			"with a length":       {handshake, with("\r\n\r\n", "\r\nContent-Length: 3\r\n\r\nabc")},
			"nobody asked":        {get("/"), right},
			"h2c was offered":     {strings.Replace(handshake, "websocket", "h2c", 1), "HTTP/1.1 101 Switching Protocols\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"},
		} {
			t.Run(name, func(t *testing.T) {
				w := start(t, scripted(t, func(_ int, u *raw) {
					if _, _, alive := u.request(); alive {
						u.send(c.answer)
						_, _ = u.r.ReadByte()
					}
				}), setup{})
				res, body, _ := w.dial().send(c.send).answer("GET")
				problem(t, res, body, reason.UpstreamInvalid)
			})
		}
	})
}

func TestEitherDirectionOfAWebSocketMayEndFirst(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		t.Run("the client's", func(t *testing.T) {
			w := start(t, opened(t, func(_ int, c *raw) {
				b, err := io.ReadAll(c.r)
				if err == nil {
					c.send("got " + string(b))
				}
			}), setup{})
			c := w.dial().send(handshake)
			c.upgraded()
			c.send("all")
			_ = c.Conn.(*net.TCPConn).CloseWrite()
			c.expect("got all").closed()
		})
		t.Run("the upstream's", func(t *testing.T) {
			heard := make(chan string, 1)
			w := start(t, opened(t, func(_ int, c *raw) {
				c.send("last")
				_ = c.Conn.(*net.TCPConn).CloseWrite()
				b, _ := io.ReadAll(c.r)
				heard <- string(b)
			}), setup{})
			c := w.dial().send(handshake)
			c.upgraded()
			c.expect("last").closed()
			c.send("and mine")
			c.Close()
			if got := <-heard; got != "and mine" {
				t.Fatalf("%q", got)
			}
		})
	})
}

// reset closes a connection so that the other side gets an error.
func (c *raw) reset() {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	c.Close()
}

func TestASideThatIsGoneTakesTheOtherWithIt(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		t.Run("the client", func(t *testing.T) {
			ended := make(chan error, 1)
			w := start(t, opened(t, func(_ int, c *raw) {
				_, err := c.r.ReadByte()
				ended <- err
			}), setup{})
			c := w.dial().send(handshake)
			c.upgraded()
			c.reset()
			if err := <-ended; err == nil {
				t.Fatal("the upstream goes on")
			}
			<-w.logged
		})
		t.Run("the upstream", func(t *testing.T) {
			w := start(t, opened(t, func(_ int, c *raw) { c.reset() }), setup{})
			c := w.dial().send(handshake)
			c.upgraded()
			c.closed()
			<-w.logged
		})
	})
}

// pong is an upstream that sends nothing, and says what it hears until its client says no more.
func pong(heard chan<- []byte) func(int, *raw) {
	return func(_ int, c *raw) {
		b, _ := io.ReadAll(c.r)
		heard <- b
	}
}

func TestASilentWebSocketIsClosed(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		heard := make(chan []byte, 1)
		w := start(t, opened(t, pong(heard)), setup{engine: Options{TunnelIdle: 300 * time.Millisecond}})
		c := w.dial().send(handshake)
		c.upgraded()
		began := time.Now()
		for range 5 {
			time.Sleep(100 * time.Millisecond)
			c.send("\x89\x80\x00\x00\x00\x00") // a ping is life enough
		}
		if code := c.closeFrame(); code != 1001 || time.Since(began) < 700*time.Millisecond {
			t.Fatalf("%d after %v", code, time.Since(began))
		}
		c.send("\x88\x82\x00\x00\x00\x00\x03\xe9") // the client's part of the closing handshake goes upstream
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		c.closed()
		if b := <-heard; !bytes.HasSuffix(b, []byte("\x88\x82\x00\x00\x00\x00\x03\xe9")) {
			t.Fatalf("the upstream heard %x", b)
		}
	})
}

// A client that answers nothing is cut, whatever it is that it doesn't answer.
func TestAWebSocketThatDoesNotCloseIsCut(t *testing.T) {
	for name, talk := range map[string]func(*raw){
		"a silent client":            func(*raw) {},
		"a frame that doesn't end":   func(c *raw) { c.send("\x81\x05ab") },
		"a client that doesn't read": func(c *raw) { _, _ = c.Write(make([]byte, 64<<20)) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := start(t, goroutines, opened(t, func(_ int, c *raw) { talk(c); _, _ = io.Copy(io.Discard, c.r) }), setup{engine: Options{TunnelIdle: 200 * time.Millisecond}})
			c := w.dial().send(handshake)
			c.upgraded()
			began := time.Now()
			if <-w.logged; time.Since(began) < 1900*time.Millisecond {
				t.Fatalf("cut after %v", time.Since(began))
			}
		})
	}
}

func TestAnOldWebSocketIsAskedToReconnect(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		heard := make(chan []byte, 1)
		w := start(t, opened(t, pong(heard)), setup{engine: Options{TunnelAge: 200 * time.Millisecond}})
		c := w.dial().send(handshake)
		c.upgraded()
		if code := c.closeFrame(); code != 1012 {
			t.Fatal(code)
		}
	})
}

// F8: 1012 between two frames, spread, within the time to the hard stop; the closing handshake is carried to its end.
func TestDrainAsksWebSocketsToReconnectBetweenFrames(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		const many = 12
		goOn := make(chan struct{})
		heard := make(chan []byte, many)
		up := opened(t, func(_ int, c *raw) {
			c.send(text("one") + "\x81\x05ab")
			<-goOn
			c.send("cde" + text("never"))
			pong(heard)(0, c)
		})
		for name, leave := range map[string]func(*world){"drain": func(w *world) { w.stop() }, "leave": func(w *world) { w.server.Reconnect(true) }} {
			t.Run(name, func(t *testing.T) {
				goOn = make(chan struct{})
				w := start(t, up, setup{engine: Options{HardStop: 1600 * time.Millisecond, LeaveOver: 30 * time.Millisecond}})
				var all []*raw
				for range many {
					c := w.dial().send(handshake)
					c.upgraded()
					all = append(all, c.expect(text("one")+"\x81\x05ab"))
				}
				leave(w)
				close(goOn)
				for _, c := range all {
					b, err := c.r.Peek(1)
					if err != nil {
						t.Fatal(err)
					}
					if b[0] == 'c' {
						c.expect("cde")
					}
				}
				for _, c := range all {
					if b, _ := c.r.Peek(1); b[0] == 0x81 { // a frame that came before it was asked to leave
						c.expect(text("never"))
					}
					if code := c.closeFrame(); code != 1012 {
						t.Fatal(code)
					}
					c.send("\x88\x82\x00\x00\x00\x00\x03\xf4")
					_ = c.Conn.(*net.TCPConn).CloseWrite()
					c.closed()
				}
				for range all {
					if b := <-heard; string(b) != "\x88\x82\x00\x00\x00\x00\x03\xf4" {
						t.Fatalf("an upstream heard %x", b)
					}
				}
				if r := <-w.logged; r.Status != 101 {
					t.Fatalf("%+v", r)
				}
			})
		}
	})
}

// door lets everybody in but those who say "Bearer out" once out is set.
type door struct{ out atomic.Bool }

func (d *door) Authenticate(c *proxy.Credentials, _ *proxy.Identity, _ time.Time) (reason.Reason, <-chan struct{}) {
	if d.out.Load() && string(c.Authorization) == "Bearer out" {
		return reason.Denied, nil
	}
	return reason.None, nil
}

// D6: who is shut out leaves within two seconds, also over a connection that was opened before.
func TestADeniedCallersWebSocketIsClosed(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		d := new(door)
		w := start(t, opened(t, func(_ int, c *raw) { _, _ = io.Copy(c, c.r) }), setup{auth: d, document: `
version: v1
routes:
  - {id: closed, match: {host: a.example, path: /chat}, upstream: up, auth: jwt}
  - {id: off, match: {host: a.example, path: /off}, upstream: up}
upstreams: [{id: up, endpoints: ["UP"]}]
policies: [{id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}]
`})
		open := func(path, token string) *raw {
			c := w.dial().send(strings.Replace(strings.Replace(handshake, "/chat", path, 1), "\r\n\r\n", "\r\nAuthorization: Bearer "+token+"\r\n\r\n", 1))
			c.upgraded()
			return c
		}
		caller, other, route := open("/chat", "out"), open("/chat", "in"), open("/off", "in")
		d.out.Store(true)
		w.server.Deny(denylist.Compile([]denylist.Entry{{Kind: denylist.Route, ID: "off"}}))
		for _, c := range []*raw{caller, route} {
			if code := c.closeFrame(); code != 1008 {
				t.Fatal(code)
			}
		}
		other.send("still here").expect("still here")
	})
}

func TestHardStopCutsWebSockets(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		w := start(t, opened(t, func(_ int, c *raw) { _, _ = io.Copy(io.Discard, c.r) }), setup{engine: Options{HardStop: 300 * time.Millisecond}})
		c := w.dial().send(handshake)
		c.upgraded()
		began := time.Now()
		w.stop()
		if _, _ = io.Copy(io.Discard, c.r); time.Since(began) > 1900*time.Millisecond {
			t.Fatalf("open for %v", time.Since(began))
		}
	})
}

// I4: a tunnel is a connection of its upstream's bulkhead, from the handshake to the end.
func TestAWebSocketTakesAPlaceInTheBulkhead(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		release := make(chan struct{})
		up := scripted(t, func(_ int, c *raw) {
			for {
				req, err := http.ReadRequest(c.r)
				switch {
				case err != nil:
					return
				case req.Header.Get("Upgrade") == "":
					c.send(ok)
				default:
					c.send(agree(req))
					<-release
					return
				}
			}
		})
		doc := strings.Replace(plainDocument, `["UP"]`, `["UP"], pool: {max_connections: 1, max_pending: 1}`, 1)
		w := start(t, up, setup{document: strings.Replace(doc, "timeout: 3s", "timeout: 300ms", 1), engine: Options{TunnelIdle: 5 * time.Second}})
		w.dial().send(handshake).upgraded()
		res, body, _ := w.dial().send(get("/")).answer("GET")
		problem(t, res, body, reason.PoolFull)
		if st := w.server.Snapshot().Upstreams[0]; st.Open != 1 || st.Idle != 0 {
			t.Fatalf("%+v", st)
		}
		close(release) // the upstream goes; its client says nothing to that
		for end := time.Now().Add(5 * time.Second); ; {
			if res, _, _ := w.dial().send(get("/")).answer("GET"); res.StatusCode == 200 {
				return
			}
			if time.Now().After(end) {
				t.Fatal("the place was not given back")
			}
		}
	})
}

func TestAWebSocketOfAnEvacuatedCellIsCarriedByTheCellThatHasItsClient(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, plainDocument)
		up := opened(t, func(_ int, c *raw) { _, _ = io.Copy(c, c.r) })
		if err := p.there.server.Apply(compile(t, 2, plainDocument, up), 1); err != nil {
			t.Fatal(err)
		}
		c := p.here.dial().send(handshake)
		c.upgraded()
		c.send("there and back").expect("there and back")
		_ = c.Conn.(*net.TCPConn).CloseWrite()
		c.closed()
		entry, exit := <-p.here.logged, <-p.there.logged
		if !entry.Handed || entry.Status != 101 || exit.Status != 101 || exit.Via == "" || exit.BytesOut != entry.BytesOut || entry.BytesOut != int64(len("there and back")) {
			t.Fatalf("%+v\n%+v", entry, exit)
		}
	})
}

// Many clients, many frames, while the node is left and taken into service again and again.
func TestWebSocketsEndWholeUnderChange(t *testing.T) {
	each(t, func(t *testing.T, start starter) {
		up := opened(t, func(_ int, c *raw) {
			for i := 0; ; i++ {
				if _, err := io.WriteString(c, text(fmt.Sprint(i))); err != nil {
					return
				}
			}
		})
		w := start(t, up, setup{engine: Options{LeaveOver: 2 * time.Millisecond}, silent: true})
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		done := make(chan int, 8)
		for range cap(done) {
			go func() {
				n := 0
				defer func() { done <- n }()
				for ; ctx.Err() == nil; n++ {
					if err := w.watchFrames(); err != nil {
						t.Error(err)
						return
					}
				}
			}()
		}
		for on := true; ctx.Err() == nil; on = !on {
			w.server.Reconnect(on)
			time.Sleep(5 * time.Millisecond)
		}
		w.server.Reconnect(true)
		total := 0
		for range cap(done) {
			total += <-done
		}
		if total < cap(done) {
			t.Fatalf("only %d tunnels", total)
		}
	})
}

// watchFrames reads frames to the close frame, each of which has to be whole and in its turn.
func (w *world) watchFrames() error {
	nc, err := net.Dial("tcp", w.addr)
	if err != nil {
		return err
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(8 * time.Second))
	_, _ = io.WriteString(nc, handshake)
	r := bufio.NewReader(nc)
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 101 {
		return fmt.Errorf("%v %+v", err, res)
	}
	for i := 0; ; i++ {
		var head [2]byte
		if _, err := io.ReadFull(r, head[:]); err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
		b := make([]byte, head[1]&0x7f)
		if _, err := io.ReadFull(r, b); err != nil {
			return fmt.Errorf("frame %d: %w", i, err)
		}
		if head[0] == 0x88 {
			return nil
		}
		if string(b) != fmt.Sprint(i) {
			return fmt.Errorf("frame %d says %q", i, b)
		}
	}
}
