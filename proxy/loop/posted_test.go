//go:build linux

package loop

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/engine"
)

// What is posted goes out at the turn's end, and what comes of it shows then. These tests make a loop's turns themselves, so that
// the world changes between a wait and the turn that it began.

// byHand is a world of one loop, which runs only when the test says so.
type byHand struct {
	*world
	*loop
	log bytes.Buffer
}

func held(t *testing.T, up string, secure *tls.Config) *byHand {
	t.Helper()
	h := &byHand{}
	h.world = opened(t, up, "max_connections: 9", secure, Options{Loops: 1, Options: engine.Options{Log: slog.New(slog.NewTextHandler(&h.log, nil))}})
	h.loop = h.engine.loops[0]
	if h.ring == nil {
		t.Log("this machine gives no ring (io_uring), so nothing is posted here")
	}
	t.Cleanup(func() {
		for _, f := range h.faults() {
			t.Error(f)
		}
		if n := h.server.InFlight.Load(); n != 0 {
			t.Errorf("%d exchanges are under way", n)
		}
		if h.each((*client).drop); strings.Contains(h.log.String(), "panic") {
			t.Error(h.log.String())
		}
		h.end()
		h.loop.close()
	})
	return h
}

// wait is a wait for events that doesn't sleep.
func (h *byHand) wait() int {
	n := h.poll(0)
	h.began = time.Now()
	h.now = h.began
	return n
}

// until makes turns until a condition holds.
func (h *byHand) until(what string, ok func() bool) {
	h.t.Helper()
	until(h.t, what, func() bool { h.turn(h.wait()); return ok() })
}

// has is a condition: so many flights are in a phase.
func (h *byHand) has(n int, p phase) func() bool {
	return func() bool {
		for i := range h.slots {
			if c := h.slots[i].client; c != nil && c.flight != nil && c.flight.phase == p {
				n--
			}
		}
		return n <= 0
	}
}

// there waits until so many sockets have something to be read.
func (h *byHand) there(sockets int) {
	h.t.Helper()
	until(h.t, "bytes to be there", func() bool {
		n := 0
		for i := range h.slots {
			if s := &h.slots[i]; (s.client != nil || s.conn != nil) && hasData(s.fd) {
				n++
			}
		}
		return n == sockets
	})
}

// hears gives all that comes to a client until it is closed to it, while the loop makes turns.
func (h *byHand) hears(b *browser) string {
	all := make(chan string, 1)
	go func() {
		got, _ := io.ReadAll(b)
		all <- string(got)
	}()
	var got string
	h.until("the end of the answer", func() bool {
		select {
		case got = <-all:
			return true
		default:
			return false
		}
	})
	return got
}

const put = "PUT / HTTP/1.1\r\nHost: a.example\r\nContent-Length: 20000\r\nConnection: close\r\n\r\n"

// An upload goes on to come while the answer to it, which has been given whole, waits for the turn's end.
func TestAnUploadThatIsAnsweredEarlyInATurn(t *testing.T) {
	up, next := talker(t)
	h := held(t, up, nil)
	c := h.dial().say(put)
	h.until("the upload to begin", h.has(1, awaiting))
	u := next()
	_, _ = io.WriteString(u, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig")
	h.there(1)
	c.say("some")
	h.there(2)
	h.turn(h.wait())
	if got := h.hears(c); !strings.HasPrefix(got, "HTTP/1.1 413 ") || !strings.HasSuffix(got, "big") {
		t.Fatalf("%q", got)
	}
}

// An upstream that speaks first is heard once its request has gone out, though the kernel told of it before.
func TestAnUpstreamThatSpeaksFirstIsHeard(t *testing.T) {
	up, next := talker(t)
	h := held(t, up, nil)
	var all []*browser
	for range 2 {
		all = append(all, h.dial().say(get))
	}
	h.until("the connects", h.has(2, connecting))
	for range all {
		_, _ = io.WriteString(next(), "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nearly")
	}
	h.there(2)
	h.until("both answers", func() bool { return h.server.InFlight.Load() == 0 })
	for _, c := range all {
		if got := c.answer(); got != "early" {
			t.Fatalf("%q", got)
		}
	}
}

// gone resets an upstream's connection, as far as the loop's turn is concerned between its wait and what it sends.
func (h *byHand) gone(u *net.TCPConn) {
	_ = u.SetLinger(0)
	u.Close()
}

const chunked = "PUT / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"

// The end of an upload can't go out any more: the answer that is there is given (G23), one that is under way is cut off, and
// none is put into it.
func TestTheEndOfAnUploadThatDoesNotGoOut(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"answered":          {"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\n\r\nbig", "HTTP/1.1 413 "},
		"half an answer":    {"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf", "HTTP/1.1 200 "},
		"without an answer": {"", "HTTP/1.1 503 "},
	} {
		t.Run(name, func(t *testing.T) {
			up, next := talker(t)
			h := held(t, up, nil)
			b := h.dial().say(chunked + "5\r\nhello\r\n")
			other := h.dial().say("GET / HT")
			h.until("the upload to begin", h.has(1, awaiting))
			u := next()
			if name == "half an answer" { // which is relayed already
				_, _ = io.WriteString(u, c.answer)
				h.until("the answer to begin", h.has(1, relaying))
			}
			b.say("0\r\n\r\n")
			other.say("TP")
			h.there(2)
			n := h.wait()
			if name == "answered" {
				_, _ = io.WriteString(u, c.answer)
			}
			h.gone(u)
			h.turn(n)
			if got := h.hears(b); !strings.HasPrefix(got, c.want) || strings.Count(got, "HTTP/1.1 ") != 1 {
				t.Fatalf("%q", got)
			}
		})
	}
}

// A pooled connection is reset right before an upload goes to it: nothing of the body is lost, and another takes it.
func TestAnUploadMeetsAStaleConnection(t *testing.T) {
	up, next := talker(t)
	h := held(t, up, nil)
	c := h.dial().say(get)
	h.until("a request to go out", h.has(1, awaiting))
	stale := next()
	serve(t, stale, "one")
	h.until("its answer", func() bool { return h.server.InFlight.Load() == 0 })
	if got := c.answer(); got != "one" {
		t.Fatal(got)
	}
	b := h.dial().say(chunked + "5\r\nhello\r\n0\r\n\r\n")
	h.until("the upload to be judged", h.has(1, sending))
	c.say("GET / HT")
	h.there(1)
	n := h.wait()
	h.gone(stale)
	h.turn(n)
	h.until("another connection", h.has(1, awaiting))
	u := next()
	h.turn(h.wait())
	req, err := http.ReadRequest(bufio.NewReader(u))
	if err != nil {
		t.Fatal(err)
	}
	if body, err := io.ReadAll(req.Body); string(body) != "hello" || err != nil {
		t.Fatal(string(body), err)
	}
	_, _ = io.WriteString(u, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
	if got := h.hears(b); !strings.HasPrefix(got, "HTTP/1.1 200 ") {
		t.Fatalf("%q", got)
	}
}

// late holds back what is written after the first piece.
type late struct {
	net.Conn
	begun bool
	rest  bytes.Buffer
}

func (l *late) Write(p []byte) (int, error) {
	if !l.begun {
		l.begun = true
		return l.Conn.Write(p)
	}
	return l.rest.Write(p)
}

// A client is gone before the end of its handshake goes out, and has begun a request: that was none yet, and ends none.
func TestAClientIsGoneBeforeItsHandshakeGoesOut(t *testing.T) {
	up, _ := talker(t)
	cert, roots := selfSigned(t)
	h := held(t, up, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequestClientCert}) // so tickets come last
	c, other := h.dial(), h.dial()
	way := &late{Conn: c.TCPConn}
	shaken := make(chan error, 1)
	go func() {
		tc := tls.Client(way, &tls.Config{RootCAs: roots, ServerName: "a.example", ClientSessionCache: tls.NewLRUClientSessionCache(1)})
		err := tc.Handshake()
		if err == nil {
			_, err = io.WriteString(tc, "GET / HT")
		}
		shaken <- err
	}()
	h.until("the client's side of the handshake", func() bool { return len(shaken) > 0 })
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	c.say(way.rest.String())
	other.say("\x16")
	h.there(2)
	n := h.wait()
	h.gone(c.TCPConn)
	h.turn(n)
	h.until("the connection to be closed", func() bool { return h.server.Connections.Load() == 1 })
}

// only is the one client that there is.
func (h *byHand) only() (c *client) {
	for i := range h.slots {
		if s := &h.slots[i]; s.client != nil {
			c = s.client
		}
	}
	return c
}

// What a client has not been sent yet goes with its connection to the other engine, ahead of everything else.
func TestWhatWasNotSentGoesWithAConnectionThatIsHandedOver(t *testing.T) {
	up, next := talker(t)
	h := held(t, up, nil)
	b := h.dial()
	h.until("the client", func() bool { return h.clients == 1 })
	c := h.only()
	c.out = append(h.buffers.out(8), "waits: "...) // as if there were no room
	b.say("GET / HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n")
	h.until("the handover", func() bool { return h.clients == 0 })
	for range 2 { // attempts
		next().Close()
	}
	if got, _ := io.ReadAll(b); !strings.HasPrefix(string(got), "waits: HTTP/1.1 503 ") {
		t.Fatalf("%q", got)
	}
	h.until("its end", func() bool { return h.server.Connections.Load() == 0 })
}
