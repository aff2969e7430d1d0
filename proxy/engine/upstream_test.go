package engine_test

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/reason"
)

const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

// G23.
func TestEarlyAnswerIsDeliveredAndTheConnectionClosed(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		up := scripted(t, func(_ int, c *raw) {
			_, _ = c.r.Peek(1)
			c.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
		})
		w := start(t, up, setup{})
		c := w.dial()
		go func() {
			_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 9000000\r\n\r\n")
			for range 900 {
				if _, err := c.Write(make([]byte, 10000)); err != nil {
					return
				}
			}
		}()
		res, body, err := c.answer("POST")
		if err != nil || res.StatusCode != 413 || body != "big" || !res.Close {
			t.Fatalf("%v %d %q close=%v", err, res.StatusCode, body, res.Close)
		}
	})
}

// G23 for those who look for their answer only when they have sent all, however large it is.
func TestEarlyAnswerReachesWhoReadsLast(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		up := scripted(t, func(_ int, c *raw) {
			_, _ = c.r.Peek(1)
			c.send("HTTP/1.1 413 Content Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
		})
		w := start(t, up, setup{})
		const size = 8 << 20
		for name, head := range map[string]string{
			"by the upstream":     "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n",
			"by the gateway":      "POST / HTTP/1.1\r\nHost: nobody.example\r\nContent-Length: %d\r\n\r\n",
			"because of its size": "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1%d\r\n\r\n",
		} {
			t.Run(name, func(t *testing.T) {
				c := w.dial().send(fmt.Sprintf(head, size))
				for range size >> 16 {
					if _, err := c.Write(make([]byte, 1<<16)); err != nil {
						t.Fatal(err)
					}
				}
				if res, _, err := c.answer("POST"); err != nil || res.StatusCode < 400 || !res.Close {
					t.Fatal(res, err)
				}
			})
		}
	})
}

// G27.
func TestUpstreamThatDiesMidBodyIsSeenAsTruncation(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		for name, head := range map[string]string{
			"counted":      "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc",
			"chunked":      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
			"bad chunk":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\nzz\r\n",
			"bad trailers": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\nX : y\r\n\r\n",
		} {
			t.Run(name, func(t *testing.T) {
				w := start(t, scripted(t, func(_ int, c *raw) { c.request(); c.send(head) }), setup{})
				c := w.dial().send(get("/"))
				if res, body, err := c.answer("GET"); err == nil || res.StatusCode != 200 || body != "abc" {
					t.Fatalf("%d %q %v", res.StatusCode, body, err)
				}
				if r := <-w.logged; !r.Truncated || r.Status != 200 {
					t.Fatalf("%+v", r)
				}
			})
		}
	})
}

// An answer that breaks off takes none of those with it that a slow client has not read yet, nor its own beginning.
func TestWhatIsCutOffTakesNothingBeforeItAlong(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		const size = 50_000
		w := start(t, scripted(t, func(_ int, c *raw) {
			for {
				switch req, _, ok := c.request(); {
				case !ok:
					return
				case req.URL.Path == "/half":
					c.send("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
					return
				}
				c.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", size, strings.Repeat("x", size)))
			}
		}), setup{})
		small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
			return c.Control(func(fd uintptr) { _ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4096) })
		}}
		nc, err := small.Dial("tcp", w.addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		_ = nc.SetDeadline(time.Now().Add(patience))
		c := &raw{nc, bufio.NewReader(nc), t}
		c.send(get("/1") + get("/2") + get("/half") + "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 100000\r\n\r\n" + strings.Repeat("y", 100_000))
		for range 3 {
			<-w.logged
		}
		for range 2 {
			if _, body, err := c.answer("GET"); err != nil || len(body) != size {
				t.Fatal(len(body), err)
			}
		}
		if _, body, err := c.answer("GET"); body != "half" || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Fatal(body, err)
		}
	})
}

// RFC 9112, section 9.8: over TLS the end of the connection ends an answer only if TLS has said so; anybody on the way can cut.
func TestOnlyTLSsOwnEndIsTheEndOfAnAnswer(t *testing.T) {
	t.Parallel()
	cert, document := trusting(t)
	document = strings.Replace(document, "protocol: h2", "protocol: http1", 1)
	for name, cut := range map[string]bool{"close_notify": false, "the socket's end": true} {
		t.Run(name, func(t *testing.T) {
			up := scripted(t, func(_ int, plain *raw) {
				tc := tls.Server(plain.Conn, &tls.Config{Certificates: []tls.Certificate{cert}})
				c := &raw{tc, bufio.NewReader(tc), t}
				c.request()
				c.send("HTTP/1.1 200 OK\r\n\r\nabc")
				if !cut {
					_ = tc.Close()
				}
			})
			each(t, func(t *testing.T, start starter) {
				w := start(t, up, setup{document: document})
				res, body, err := w.dial().send(get("/")).answer("GET")
				if res.StatusCode != 200 || body != "abc" || (err != nil) != cut {
					t.Fatalf("%d %q %v", res.StatusCode, body, err)
				}
				if r := <-w.logged; r.Truncated != cut {
					t.Fatalf("%+v", r)
				}
			})
		})
	}
}

// G37 and G7: no body whatever the upstream sends, its length kept, and stray bytes never reach the next client.
func TestAnswersWithoutBodyAndWhatIsSentBehindThem(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		stray := "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged"
		for name, c := range map[string]struct{ method, answer, length string }{
			"HEAD":            {"HEAD", "HTTP/1.1 200 OK\r\nContent-Length: 44\r\n\r\n", "44"},
			"304":             {"GET", "HTTP/1.1 304 Not Modified\r\nContent-Length: 44\r\n\r\n", "44"},
			"204":             {"GET", "HTTP/1.1 204 No Content\r\nContent-Length: 44\r\n\r\n", ""},
			"204, no length":  {"GET", "HTTP/1.1 204 No Content\r\n\r\n", ""},
			"HEAD, no length": {"HEAD", "HTTP/1.1 200 OK\r\n\r\n", ""},
			"length 0":        {"GET", "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "0"},
		} {
			for _, late := range []time.Duration{0, 2 * time.Millisecond, 30 * time.Millisecond} {
				if late == 0 && (name == "204, no length" || name == "length 0") {
					continue // nothing can tell that bytes are about to come
				}
				t.Run(fmt.Sprint(name, late), func(t *testing.T) {
					sent := make(chan struct{})
					up := scripted(t, func(n int, u *raw) {
						if _, _, alive := u.request(); !alive {
							return
						}
						if n > 1 {
							u.send(ok)
							return
						}
						u.send(c.answer)
						time.Sleep(late)
						u.send(stray)
						close(sent)
						_, _ = u.r.Peek(1)
					})
					w := start(t, up, setup{})
					conn := w.dial().send(c.method + " / HTTP/1.1\r\nHost: a.example\r\n\r\n")
					res, body, err := conn.answer(c.method)
					if err != nil || body != "" || res.Header.Get("Content-Length") != c.length {
						t.Fatalf("%v %q %v", err, body, res.Header)
					}
					if c.method != "HEAD" || late == 0 { // a HEAD that leaves doubt has no second exchange to wait for
						<-sent
					}
					if _, body, _ := conn.send(get("/")).answer("GET"); body != "ok" {
						t.Fatalf("the next answer is %q", body)
					}
				})
			}
		}
	})
}

func TestStalePooledConnectionIsRetriedOnceForReadsOnly(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var posts atomic.Int32
		up := scripted(t, func(n int, c *raw) {
			for i := 0; ; i++ {
				req, _, alive := c.request()
				if !alive {
					return
				}
				if req.Method == "POST" {
					posts.Add(1)
				}
				if i > 0 && n == 1 {
					return // breaks once the second request is there
				}
				c.send(ok)
			}
		})
		w := start(t, up, setup{})
		c := w.dial()
		for range 2 {
			if res, body, _ := c.send(get("/")).answer("GET"); res.StatusCode != 200 || body != "ok" {
				t.Fatalf("%d %q", res.StatusCode, body)
			}
		}
		if posts.Load() != 0 {
			t.Fatal("no POST was sent")
		}
	})
}

func TestAnExchangeThatMadeItsConnectionIsCold(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		up := scripted(t, func(_ int, c *raw) {
			for {
				if _, _, alive := c.request(); !alive {
					return
				}
				c.send(ok)
			}
		})
		w := start(t, up, setup{})
		c := w.dial()
		for i := range 3 {
			c.send(get("/")).answer("GET")
			if r := <-w.logged; r.Cold != (i == 0) || r.Service == "" || r.Service != r.UpstreamID {
				t.Errorf("exchange %d: cold %v, for %q", i, r.Cold, r.Service)
			}
		}
		c.send("GET /nowhere HTTP/1.1\r\nHost: nobody.example\r\n\r\n").answer("GET")
		if r := <-w.logged; r.Cold || r.Service != "" {
			t.Errorf("without a route: %+v", r)
		}
	})
}

func TestAPostWhoseBytesLeftIsNotRepeated(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var seen atomic.Int32
		up := scripted(t, func(n int, c *raw) {
			for i := 0; ; i++ {
				req, _, alive := c.request()
				if !alive {
					return
				}
				if req.Method == "POST" {
					seen.Add(1)
					return
				}
				c.send(ok)
			}
		})
		w := start(t, up, setup{document: strings.Replace(plainDocument, "timeout: 20s", "timeout: 20s, retry: {attempts: 2, conditions: [connect-failure, reset-before-headers, \"503\"]}", 1)})
		c := w.dial()
		c.send(get("/")).answer("GET")
		res, body, _ := c.send("POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nhi").answer("POST")
		problem(t, res, body, reason.UpstreamReset)
		if seen.Load() != 1 {
			t.Fatalf("the upstream saw the POST %d times", seen.Load())
		}
	})
}

func TestAReadIsRepeatedOnAnotherEndpoint(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		dead := listen(t)
		dead.Close()
		good := scripted(t, func(_ int, c *raw) {
			for {
				if _, _, alive := c.request(); !alive {
					return
				}
				c.send(ok)
			}
		})
		doc := strings.Replace(plainDocument, "timeout: 20s", "timeout: 20s, retry: {attempts: 1, conditions: [connect-failure]}", 1)
		doc = strings.Replace(doc, `["UP"]`, `["UP", "`+dead.Addr().String()+`"]`, 1)
		w := start(t, good, setup{document: doc})
		c := w.dial()
		for range 20 {
			for _, req := range []string{get("/"), "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 2\r\n\r\nhi"} {
				if res, _, _ := c.send(req).answer("GET"); res.StatusCode != 200 {
					t.Fatalf("%d although an endpoint works", res.StatusCode)
				}
			}
		}
	})
}

func TestUpstreamFaultsHaveTheirReasons(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		slow := strings.Replace(plainDocument, "timeout: 20s", "timeout: 150ms", 1)
		for name, c := range map[string]struct {
			script   func(int, *raw)
			document string
			why      reason.Reason
		}{
			"reset":       {func(_ int, c *raw) { c.request() }, "", reason.UpstreamReset},
			"half a head": {func(_ int, c *raw) { c.request(); c.send("HTTP/1.1 200 OK\r\nX: ") }, "", reason.UpstreamReset},
			"garbage":     {func(_ int, c *raw) { c.request(); c.send("SSH-2.0\r\n\r\n") }, "", reason.UpstreamInvalid},
			"two lengths": {func(_ int, c *raw) {
				c.request()
				c.send("HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx")
			}, "", reason.UpstreamInvalid},
			"a status of no class": {func(_ int, c *raw) {
				c.request()
				c.send("HTTP/1.1 600 Odd\r\nContent-Length: 0\r\n\r\n")
			}, "", reason.UpstreamInvalid},
			"101":     {func(_ int, c *raw) { c.request(); c.send("HTTP/1.1 101 Switching Protocols\r\n\r\n"); c.request() }, "", reason.UpstreamInvalid},
			"silence": {func(_ int, c *raw) { c.request(); c.request() }, slow, reason.UpstreamTimeout},
		} {
			t.Run(name, func(t *testing.T) {
				w := start(t, scripted(t, c.script), setup{document: c.document})
				began := time.Now()
				res, body, _ := w.dial().send(get("/")).answer("GET")
				problem(t, res, body, c.why)
				if took := time.Since(began); took > soon {
					t.Fatalf("took %v", took)
				}
			})
		}
	})
}

func TestInterimAnswersAreNotTheAnswer(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, scripted(t, func(_ int, c *raw) {
			c.request()
			c.send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n" + ok)
		}), setup{})
		if res, body, _ := w.dial().send(get("/")).answer("GET"); res.StatusCode != 200 || body != "ok" {
			t.Fatalf("%d %q", res.StatusCode, body)
		}
	})
}

func TestClientThatLeavesCancelsItsUpstream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		cancelled := make(chan time.Duration, 1)
		w := start(t, scripted(t, func(_ int, c *raw) {
			c.request()
			began := time.Now()
			_, _ = c.r.ReadByte()
			cancelled <- time.Since(began)
		}), setup{})
		c := w.dial().send(get("/"))
		w.has(1)
		c.Close()
		if took := <-cancelled; took > soon {
			t.Fatalf("the upstream was kept busy for %v", took)
		}
		if r := <-w.logged; r.Status != 499 || r.Reason != reason.ClientGone {
			t.Fatalf("%+v", r)
		}
	})
}

func TestFullPoolRefusesAtOnce(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		release := make(chan struct{})
		up := scripted(t, func(_ int, c *raw) {
			c.request()
			<-release
			c.send(ok)
		})
		doc := strings.Replace(plainDocument, `["UP"]`, `["UP"], pool: {max_connections: 1, max_pending: 1}`, 1)
		w := start(t, up, setup{document: doc})
		first := w.dial().send(get("/"))
		w.has(1)
		second := w.dial().send(get("/"))
		w.has(2)
		began := time.Now()
		res, body, _ := w.dial().send(get("/")).answer("GET")
		problem(t, res, body, reason.PoolFull)
		if res.Header.Get("Retry-After") == "" || time.Since(began) > soon {
			t.Fatalf("%v after %v", res.Header, time.Since(began))
		}
		close(release)
		for _, c := range []*raw{first, second} {
			if res, _, _ := c.answer("GET"); res.StatusCode != 200 {
				t.Fatalf("%d for one that had a place", res.StatusCode)
			}
		}
	})
}

func TestDeadlineOfTheClientReachesTheUpstream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		res, _, _ := w.dial().send("GET / HTTP/1.1\r\nHost: a.example\r\nX-Request-Timeout-Ms: 400\r\n\r\n").answer("GET")
		var ms int
		if _, err := fmt.Sscan(res.Header.Get("Seen-X-Request-Timeout-Ms"), &ms); err != nil || ms < 300 || ms > 390 {
			t.Fatalf("the upstream was given %q ms", res.Header.Get("Seen-X-Request-Timeout-Ms"))
		}
	})
}

// The body that was chunked with tricks arrives as new chunks, and nothing behind it becomes a request of its own.
func TestNothingIsSmuggledBehindABody(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var uris atomic.Int32
		up := scripted(t, func(_ int, c *raw) {
			for {
				req, _, alive := c.request()
				if !alive {
					return
				}
				if req.URL.Path == "/hidden" {
					uris.Add(1)
				}
				c.send(ok)
			}
		})
		w := start(t, up, setup{})
		c := w.dial().send("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer_Encoding: chunked\r\nContent-Length: 45\r\n\r\n0\r\n\r\nGET /hidden HTTP/1.1\r\nHost: a.example\r\n\r\n")
		if res, _, _ := c.answer("POST"); res.StatusCode != 200 {
			t.Fatalf("%d", res.StatusCode)
		}
		if uris.Load() != 0 {
			t.Fatal("the body's second part was a request")
		}
	})
}

// I6: connect, response-header and idle-stream times are the upstream's own, apart from the route's total.
func TestEachPhaseOfAnAttemptHasItsOwnTimer(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		timers := func(up, timeouts string) string {
			return strings.Replace(plainDocument, `endpoints: ["UP"]`, `endpoints: ["`+up+`"], timeouts: {`+timeouts+`}`, 1)
		}
		silent := func(_ int, c *raw) { c.request(); c.request() }
		dribble := func(_ int, c *raw) {
			c.request()
			for _, b := range []byte("HTTP/1.1 200 OK\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n") {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(20 * time.Millisecond)
			}
		}
		interims := func(_ int, c *raw) {
			c.request()
			for range 10 {
				_, _ = io.WriteString(c, "HTTP/1.1 103 Early Hints\r\n\r\n")
				time.Sleep(30 * time.Millisecond)
			}
			c.request()
		}
		for name, script := range map[string]func(int, *raw){"silence": silent, "a head byte by byte": dribble, "interim answers": interims} {
			t.Run(name, func(t *testing.T) {
				w := start(t, scripted(t, script), setup{document: timers("UP", "response_header: 120ms")})
				began := time.Now()
				res, body, _ := w.dial().send(get("/")).answer("GET")
				problem(t, res, body, reason.UpstreamTimeout)
				if took := time.Since(began); took < 100*time.Millisecond || took > soon {
					t.Fatalf("took %v", took)
				}
			})
		}
		t.Run("the time of a long upload doesn't count", func(t *testing.T) {
			up := scripted(t, func(_ int, c *raw) { c.request(); c.send(ok) })
			w := start(t, up, setup{document: timers("UP", "response_header: 150ms")})
			c := w.dial().send("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n")
			for range 8 {
				c.send("1\r\nx\r\n")
				time.Sleep(50 * time.Millisecond)
			}
			if res, body, _ := c.send("0\r\n\r\n").answer("POST"); res.StatusCode != 200 || body != "ok" {
				t.Fatalf("%d %q", res.StatusCode, body)
			}
		})
		t.Run("a body that stops", func(t *testing.T) {
			up := scripted(t, func(_ int, c *raw) {
				c.request()
				c.send("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc")
				c.request()
			})
			w := start(t, up, setup{document: timers("UP", "idle: 120ms")})
			began := time.Now()
			if _, body, err := w.dial().send(get("/")).answer("GET"); err == nil || body != "abc" || time.Since(began) > soon {
				t.Fatalf("%q %v after %v", body, err, time.Since(began))
			}
		})
	})
}

// An upstream that sends more than it says is asked again on a new connection, where the first answer can only be the right
// one; what can't be repeated gets the answer that came.
func TestSurplusOnAReusedConnectionIsAskedAgain(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var conns atomic.Int32
		up := scripted(t, func(n int, c *raw) {
			conns.Store(int32(n))
			for {
				req, _, alive := c.request()
				switch {
				case !alive:
					return
				case req.URL.Path == "/sloppy":
					c.send(fmt.Sprintf("HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n%d\r\n", n))
				default:
					c.send(ok)
				}
			}
		})
		w := start(t, up, setup{})
		for _, method := range []string{"GET", "POST"} {
			c := w.dial().send(get("/"))
			c.answer("GET")
			before := conns.Load()
			res, body, err := c.send(method + " /sloppy HTTP/1.1\r\nHost: a.example\r\nContent-Length: 0\r\n\r\n").answer(method)
			if err != nil || res.StatusCode != 200 {
				t.Fatalf("%s: %v %d", method, err, res.StatusCode)
			}
			if again := body != fmt.Sprint(before); again != (method == "GET") {
				t.Fatalf("%s: answered by connection %s, the reused one was %d", method, body, before)
			}
		}
	})
}

// A client that sends its body too slowly has its own answer, at the end of the exchange's time.
func TestABodyThatComesTooSlowlyIsTheClientsFault(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		for name, head := range slowBodies() {
			t.Run(name, func(t *testing.T) {
				up := scripted(t, func(_ int, c *raw) { c.request() })
				w := start(t, up, setup{document: strings.Replace(plainDocument, "timeout: 20s", "timeout: 1s", 1)})
				began := time.Now()
				res, body, _ := w.dial().send("POST / HTTP/1.1\r\nHost: a.example\r\n" + head).answer("POST")
				problem(t, res, body, reason.BodyTimeout)
				if took := time.Since(began); took < 150*time.Millisecond || took > soon {
					t.Fatalf("took %v", took)
				}
			})
		}
	})
}

func slowBodies() map[string]string {
	return map[string]string{
		"short":   "Content-Length: 100\r\n\r\nabc",
		"long":    "Content-Length: 100000\r\n\r\nabc",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
	}
}

// Nobody throws endpoints out by sending slowly or by giving the upstream no time.
func TestImpatientAndSlowClientsAreNoEvidenceAgainstAnUpstream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		hurry := map[string]string{"a deadline of 20 ms": "X-Request-Timeout-Ms: 20\r\nContent-Length: 0\r\n\r\n"}
		maps.Copy(hurry, slowBodies())
		const impatient = "an upstream that gives up on a slow body"
		hurry[impatient] = slowBodies()["long"]
		for name, head := range hurry {
			t.Run(name, func(t *testing.T) {
				script := func(_ int, c *raw) { c.request(); c.request() }
				if name == impatient {
					script = func(_ int, c *raw) {
						_, _ = http.ReadRequest(c.r)
						time.Sleep(50 * time.Millisecond)
					}
				}
				doc := strings.Replace(plainDocument, `["UP"]`, `["UP", "`+scripted(t, script)+`"]`, 1)
				doc = strings.Replace(doc, "timeout: 20s", "timeout: 250ms", 1)
				w := start(t, scripted(t, script), setup{document: doc})
				var clients sync.WaitGroup
				for range 70 {
					clients.Add(1)
					go func() {
						defer clients.Done()
						c, err := net.Dial("tcp", w.addr)
						if err != nil {
							t.Error(err)
							return
						}
						defer c.Close()
						_, _ = io.WriteString(c, "POST / HTTP/1.1\r\nHost: a.example\r\n"+head)
						_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
						if n, err := c.Read(make([]byte, 512)); n == 0 {
							t.Errorf("no answer: %v", err)
						}
					}()
				}
				clients.Wait()
				if st := w.server.Snapshot().Upstreams[0]; st.Ejected != 0 {
					t.Fatal("an endpoint was ejected")
				}
			})
		}
	})
}

// I5: no time left means no upstream call, also on a connection that lies ready.
func TestADeadlineThatLeavesNoTimeReachesNoUpstream(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		var calls atomic.Int32
		w := start(t, handler(t, func(w http.ResponseWriter, _ *http.Request) { calls.Add(1); w.WriteHeader(204) }), setup{})
		c := w.dial()
		c.send(get("/")).answer("GET")
		for _, field := range []string{"X-Request-Timeout-Ms: 1", "X-Request-Timeout-Ms: 10", "Grpc-Timeout: 1n", "Grpc-Timeout: 999u"} {
			res, body, _ := c.send("GET / HTTP/1.1\r\nHost: a.example\r\n" + field + "\r\n\r\n").answer("GET")
			problem(t, res, body, reason.DeadlineExpired)
		}
		if n := calls.Load(); n != 1 {
			t.Fatalf("the upstream was called %d times", n-1)
		}
	})
}
