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

func TestAWebSocketPassesBothWays(t *testing.T) {
	t.Parallel()
	eachDoor(t, func(t *testing.T, start opening) {
		seen := make(chan *http.Request, 2)
		w, d := start(scripted(t, func(_ int, c *raw) {
			req, err := http.ReadRequest(c.r)
			if err != nil {
				return
			}
			seen <- req
			c.send(agree(req) + text("hello")) // in one piece
			_, _ = io.Copy(c, c.r)
		}), setup{})
		c := d.open("/chat?room=1", "Sec-WebSocket-Protocol", "chat", "X-Forwarded-For", "6.6.6.6", "TE", "trailers", "Origin", "http://a.example")
		c.expect(text("hello"))
		req := <-seen
		if h := req.Header; req.Method != "GET" || req.RequestURI != "/chat?room=1" || req.Host != "a.example" || h.Get("Upgrade") != "websocket" || h.Get("Connection") != "Upgrade" ||
			h.Get("Sec-WebSocket-Protocol") != "chat" || h.Get("Te") != "" || len(h["Sec-Websocket-Key"]) != 1 || h.Get("Sec-Websocket-Version") != "13" || h.Get("Origin") == "" ||
			h.Get("X-Forwarded-For") != "127.0.0.1" || h.Get("X-Request-Id") == "" || req.ContentLength != 0 {
			t.Fatalf("the upstream got %s %s %v", req.Method, req.RequestURI, h)
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
		if r := <-w.logged; r.Status != d.status || r.Method != "GET" || r.Reason != reason.None || r.BytesIn != int64(len(much)) || r.BytesOut != int64(len(much)+7) || r.Open <= 0 || r.Total > r.Open+time.Second || r.TLS != (w.trust != nil) {
			t.Fatalf("%+v", r)
		}
		w.quiet()
		if st := w.server.Snapshot(); st.Tunnels != 0 || st.Upstreams[0].Open != st.Upstreams[0].Idle {
			t.Fatalf("%+v", st)
		}
	})
}

// CASES G9: there is no way out of HTTP but a whole handshake that the upstream agrees to, and no request behind one.
func TestRefusedUpgradesReachNobodyAndClose(t *testing.T) {
	t.Parallel()
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
				if said := res.Header.Get("Sec-WebSocket-Version"); said != "" != (name == "version 7") || said != "" && said != "13" {
					t.Errorf("it is told of version %q", said)
				}
				c.closed()
			})
		}
	})
}

// What the gateway demands of a request it demands of a handshake, and says as ever.
func TestAHandshakeGoesThroughThePipeline(t *testing.T) {
	t.Parallel()
	eachDoor(t, func(t *testing.T, start opening) {
		up := opened(t, func(_ int, c *raw) { _, _ = c.r.ReadByte() })
		_, d := start(up, setup{document: `
version: v1
routes:
  - {id: few, match: {host: a.example, path: /chat}, upstream: up, limits: {tenant: 1/hour}}
  - {id: posts, match: {host: a.example, path: /posts, methods: [POST]}, upstream: up}
  - {id: gets, match: {host: a.example, path: /gets, methods: [GET]}, upstream: up}
  - {id: closed, match: {host: a.example, path: /closed}, upstream: up, auth: jwt}
upstreams: [{id: up, endpoints: ["UP"]}]
policies: [{id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}]
`})
		d.open("/chat")
		d.open("/gets")
		for path, why := range map[string]reason.Reason{"/chat": reason.RateTenant, "/posts": reason.MethodNotAllowed, "/closed": reason.AuthUnavailable, "/": reason.NoRoute} {
			res, body := d.refused(path)
			problem(t, res, body, why)
		}
		res, body := d.refused("/gets", "X-Request-Timeout-Ms", "0")
		problem(t, res, body, reason.DeadlineExpired)
		d.open("/gets") // a refusal harms nobody else
	})
}

func TestAnUpstreamsRefusalIsAnOrdinaryAnswer(t *testing.T) {
	t.Parallel()
	eachPlainDoor(t, func(t *testing.T, start opening) {
		for name, answer := range map[string]string{
			"403": "HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno", "302 in chunks": "HTTP/1.1 302 Found\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nno\r\n0\r\n\r\n",
			"426":                "HTTP/1.1 426 Upgrade Required\r\nSec-WebSocket-Version: 14\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 2\r\n\r\nno",
			"behind early hints": "HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
		} {
			t.Run(name, func(t *testing.T) {
				hidden := make(chan string, 2)
				w, d := start(scripted(t, func(_ int, c *raw) {
					for {
						req, _, alive := c.request()
						if !alive {
							return
						}
						hidden <- req.URL.Path
						c.send(answer)
					}
				}), setup{})
				res, body := d.refused("/chat")
				if body != "no" || res.StatusCode < 300 || res.Header.Get("Upgrade") != "" {
					t.Fatalf("%d %v %q", res.StatusCode, res.Header, body)
				}
				if r := <-w.logged; r.Status != res.StatusCode || r.Open != 0 || len(hidden) != 1 {
					t.Fatalf("%+v, the upstream saw %d requests", r, len(hidden))
				}
			})
		}
	})
}

// A success that opens nothing is one to clients of HTTP/1.1, but over HTTP/2 every success is an agreement (RFC 8441).
func TestAnUpstreamsOtherSuccessIsNeverTakenForAnAgreement(t *testing.T) {
	t.Parallel()
	eachDoorTo1(t, func(t *testing.T, start opening) {
		w, d := start(scripted(t, func(_ int, c *raw) {
			for {
				if _, _, alive := c.request(); !alive {
					return
				}
				c.send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nno")
			}
		}), setup{})
		for range 20 { // and it is no fault of the endpoint's
			switch res, body := d.refused("/chat"); {
			case d.stream:
				problem(t, res, body, reason.UpgradeRefused)
			case res.StatusCode != 200 || body != "no":
				t.Fatalf("%d %q", res.StatusCode, body)
			}
			<-w.logged
		}
		if st := w.server.Snapshot().Upstreams[0]; st.Ejected != 0 {
			t.Fatalf("%+v", st)
		}
	})
}

func TestOnlyAnAgreementMadeForTheHandshakeOpensATunnel(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
	eachDoor(t, func(t *testing.T, start opening) {
		t.Run("the client's", func(t *testing.T) {
			_, d := start(opened(t, func(_ int, c *raw) {
				b, err := io.ReadAll(c.r)
				if err == nil {
					c.send("got " + string(b))
				}
			}), setup{})
			c := d.open("/chat")
			c.send("all")
			c.half()
			c.expect("got all").closed()
		})
		t.Run("the upstream's", func(t *testing.T) {
			heard := make(chan string, 1)
			_, d := start(opened(t, func(_ int, c *raw) {
				c.send("last")
				c.half()
				b, _ := io.ReadAll(c.r)
				heard <- string(b)
			}), setup{})
			c := d.open("/chat")
			c.expect("last").closed()
			c.send("and mine")
			c.half()
			if got := <-heard; got != "and mine" {
				t.Fatalf("%q", got)
			}
		})
	})
}

// reset closes a connection so that the other side gets an error.
func (c *raw) reset() {
	nc := c.Conn
	if tc, ok := nc.(*tls.Conn); ok {
		nc = tc.NetConn()
	}
	_ = nc.(interface{ SetLinger(int) error }).SetLinger(0)
	nc.Close()
}

func TestASideThatIsGoneTakesTheOtherWithIt(t *testing.T) {
	t.Parallel()
	eachDoor(t, func(t *testing.T, start opening) {
		t.Run("the client", func(t *testing.T) {
			ended := make(chan error, 1)
			w, d := start(opened(t, func(_ int, c *raw) {
				_, err := c.r.ReadByte()
				ended <- err
			}), setup{})
			c := d.open("/chat")
			c.reset()
			if err := <-ended; err == nil {
				t.Fatal("the upstream goes on")
			}
			<-w.logged
		})
		t.Run("the upstream", func(t *testing.T) {
			w, d := start(opened(t, func(_ int, c *raw) { c.reset() }), setup{})
			c := d.open("/chat")
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
	t.Parallel()
	eachPlainDoor(t, func(t *testing.T, start opening) {
		heard := make(chan []byte, 1)
		const idle = 1500 * time.Millisecond
		_, d := start(opened(t, pong(heard)), setup{engine: Options{TunnelIdle: idle}})
		c := d.open("/chat")
		began, last, longest := time.Now(), time.Now(), time.Duration(0)
		for range 5 {
			time.Sleep(idle / 4)
			longest, last = max(longest, time.Since(last)), time.Now()
			c.send("\x89\x80\x00\x00\x00\x00") // a ping is life enough
		}
		code := c.closeFrame()
		if took := time.Since(began); code != 1001 || took < 2*idle && longest < idle*3/4 { // else the machine was too busy to ping
			t.Fatalf("%d after %v", code, took)
		}
		c.send("\x88\x82\x00\x00\x00\x00\x03\xe9") // the client's part of the closing handshake goes upstream
		c.half()
		c.closed()
		if b := <-heard; !bytes.HasSuffix(b, []byte("\x88\x82\x00\x00\x00\x00\x03\xe9")) {
			t.Fatalf("the upstream heard %x", b)
		}
	})
}

// A client that answers nothing is cut, whatever it is that it doesn't answer.
func TestAWebSocketThatDoesNotCloseIsCut(t *testing.T) {
	for name, talk := range map[string]func(*raw){
		"a silent client":          func(*raw) {},
		"a frame that doesn't end": func(c *raw) { c.send("\x81\x05ab") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			isCut(t, start(t, goroutines, opened(t, func(_ int, c *raw) { talk(c); _, _ = io.Copy(io.Discard, c.r) }), setup{engine: Options{TunnelIdle: 200 * time.Millisecond}}), false)
		})
	}
	for name, kind := range engines() {
		for protocol, stream := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
			t.Run("a client that doesn't read, "+name+", "+protocol, func(t *testing.T) {
				t.Parallel()
				isCut(t, start(t, kind, opened(t, flood), setup{engine: Options{TunnelIdle: 200 * time.Millisecond}}), stream)
			})
		}
	}
}

// flood is an upstream that sends as much as anybody takes.
func flood(_ int, c *raw) {
	for b := make([]byte, 1<<16); ; {
		if _, err := c.Write(b); err != nil {
			return
		}
	}
}

func isCut(t *testing.T, w *world, stream bool) {
	d := w.connections()
	if stream {
		d = w.streams()
	}
	began := time.Now()
	d.open("/chat")
	if <-w.logged; time.Since(began) < 1900*time.Millisecond {
		t.Fatalf("cut after %v", time.Since(began))
	}
}

func TestAnOldWebSocketIsAskedToReconnect(t *testing.T) {
	t.Parallel()
	eachPlainDoor(t, func(t *testing.T, start opening) {
		heard := make(chan []byte, 1)
		_, d := start(opened(t, pong(heard)), setup{engine: Options{TunnelAge: 200 * time.Millisecond}})
		c := d.open("/chat")
		if code := c.closeFrame(); code != 1012 {
			t.Fatal(code)
		}
	})
}

// F8: 1012 between two frames, spread, within the time to the hard stop; the closing handshake is carried to its end.
func TestDrainAsksWebSocketsToReconnectBetweenFrames(t *testing.T) {
	t.Parallel()
	eachPlainDoor(t, func(t *testing.T, start opening) {
		const many = 4 // they are heard one after the other, within closeTime
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
				w, d := start(up, setup{engine: Options{HardStop: 3 * time.Second, LeaveOver: 30 * time.Millisecond}})
				var all []*raw
				for range many {
					c := d.open("/chat")
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
					c.half()
					c.closed()
				}
				for range all {
					if b := <-heard; string(b) != "\x88\x82\x00\x00\x00\x00\x03\xf4" {
						t.Fatalf("an upstream heard %x", b)
					}
				}
				if r := <-w.logged; r.Status != d.status {
					t.Fatalf("%+v", r)
				}
			})
		}
	})
}

// door lets everybody in but those who say "Bearer out" once out is set.
type door struct{ out atomic.Bool }

func (*door) Foresee(*proxy.Credentials) {}

func (d *door) Authenticate(c *proxy.Credentials, _ *proxy.Identity, _ time.Time) (reason.Reason, <-chan struct{}) {
	if d.out.Load() && string(c.Authorization) == "Bearer out" {
		return reason.Denied, nil
	}
	return reason.None, nil
}

// D6: who is shut out leaves within two seconds, also over a connection that was opened before.
func TestADeniedCallersWebSocketIsClosed(t *testing.T) {
	t.Parallel()
	eachPlainDoor(t, func(t *testing.T, start opening) {
		guard := new(door)
		w, d := start(opened(t, func(_ int, c *raw) { _, _ = io.Copy(c, c.r) }), setup{auth: guard, document: `
version: v1
routes:
  - {id: closed, match: {host: a.example, path: /chat}, upstream: up, auth: jwt}
  - {id: off, match: {host: a.example, path: /off}, upstream: up}
upstreams: [{id: up, endpoints: ["UP"]}]
policies: [{id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}]
`})
		open := func(path, token string) *raw { return d.open(path, "Authorization", "Bearer "+token) }
		caller, other, route := open("/chat", "out"), open("/chat", "in"), open("/off", "in")
		guard.out.Store(true)
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
	t.Parallel()
	eachPlainDoor(t, func(t *testing.T, start opening) {
		w, d := start(opened(t, func(_ int, c *raw) { _, _ = io.Copy(io.Discard, c.r) }), setup{engine: Options{HardStop: 300 * time.Millisecond}})
		c := d.open("/chat")
		began := time.Now()
		w.stop()
		if _, _ = io.Copy(io.Discard, c.r); time.Since(began) > 1900*time.Millisecond {
			t.Fatalf("open for %v", time.Since(began))
		}
	})
}

// I4: a tunnel is a connection of its upstream's bulkhead, from the handshake to the end.
func TestAWebSocketTakesAPlaceInTheBulkhead(t *testing.T) {
	t.Parallel()
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
		w := start(t, up, setup{document: strings.Replace(doc, "timeout: 20s", "timeout: 2s", 1), engine: Options{TunnelIdle: 5 * time.Second}})
		w.dial().send(handshake).upgraded()
		res, body, _ := w.dial().send(get("/")).answer("GET")
		problem(t, res, body, reason.PoolFull)
		if st := w.server.Snapshot().Upstreams[0]; st.Open != 1 || st.Idle != 0 {
			t.Fatalf("%+v", st)
		}
		close(release) // the upstream goes; its client says nothing to that
		for end := time.Now().Add(patience); ; {
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
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		p := newPair(t, start, plainDocument)
		up := opened(t, func(_ int, c *raw) { _, _ = io.Copy(c, c.r) })
		if err := p.there.server.Apply(compile(t, 2, plainDocument, up)); err != nil {
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
	t.Parallel()
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
	_ = nc.SetDeadline(time.Now().Add(patience))
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
