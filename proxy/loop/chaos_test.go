//lint:file-ignore SA1019 the test speaks HTTP/2 with prior knowledge over connections of its own.

//go:build linux

package loop

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/cellgate/cellgate/proxy/engine"
)

// moody is an upstream that keeps to HTTP or not, as dice say. What it answers in earnest repeats the request's tag, so
// that an answer to somebody else's request is seen.
func moody(t testing.TB, seed uint64, secure *tls.Config) string {
	l := listen(t)
	var conns sync.WaitGroup
	t.Cleanup(func() { l.Close(); conns.Wait() })
	conns.Go(func() {
		for n := uint64(0); ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns.Go(func() {
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				m := &mood{c.(*net.TCPConn), c, nil, rand.New(rand.NewPCG(seed, n))}
				if secure != nil {
					m.way = tls.Server(c, secure)
				}
				for m.in = bufio.NewReader(m.way); m.once(); {
				}
			})
		}
	})
	return l.Addr().String()
}

type mood struct {
	*net.TCPConn
	way  io.ReadWriter // over it
	in   *bufio.Reader
	dice *rand.Rand
}

func (m *mood) say(s string) bool { _, err := io.WriteString(m.way, s); return err == nil }

// once serves a request, or fails to. It is false at the end of the connection.
func (m *mood) once() bool {
	req, err := http.ReadRequest(m.in)
	if err != nil {
		return false
	}
	tag := req.Header.Get("X-Tag")
	what := m.dice.IntN(24)
	switch what { // before the body
	case 0:
		_ = m.SetLinger(0)
		return false
	case 1: // an answer that doesn't wait for the body
		return m.say("HTTP/1.1 200 OK\r\nX-Tag: "+tag+"\r\nContent-Length: 5\r\nConnection: close\r\n\r\nearly") && false
	}
	size, err := io.Copy(io.Discard, req.Body)
	if err != nil {
		return false
	}
	head := fmt.Sprintf("HTTP/1.1 200 OK\r\nX-Tag: %s\r\nX-Size: %d\r\n", tag, size)
	big := strings.Repeat(tag, 1+m.dice.IntN(200_000)/len(tag))
	switch what {
	case 2:
		return false
	case 3:
		return m.say(head) && false
	case 4:
		return m.say("HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\nshort") && false
	case 5:
		return m.say(head+"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n") && false
	case 6:
		return m.say("what?\r\n\r\n") && false
	case 7: // more than announced
		return m.say(head + "Content-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nX-Tag: nobody\r\nContent-Length: 6\r\n\r\nforged")
	case 8:
		for _, b := range []byte(head + "Content-Length: 2\r\n\r\nok") {
			if !m.say(string(b)) {
				return false
			}
		}
		return true
	case 9:
		time.Sleep(time.Duration(m.dice.IntN(60)) * time.Millisecond)
		return m.say(head + "Content-Length: 2\r\n\r\nok")
	case 10:
		m.say("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n")
		return m.say(head + "Content-Length: 2\r\n\r\nok")
	case 11:
		return m.say(head+"\r\n"+big) && false
	case 12, 13:
		return m.say(fmt.Sprintf("%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\nX-T: 1\r\n\r\n", head, len(big), big))
	case 14, 15:
		return m.say(fmt.Sprintf("%sContent-Length: %d\r\n\r\n%s", head, len(big), big))
	case 16:
		return m.say("HTTP/1.1 204 No Content\r\nX-Tag: " + tag + "\r\n\r\n")
	}
	return m.say(head + "Content-Length: 2\r\n\r\nok")
}

// crowd is a client that behaves well or not, as dice say.
type crowd struct {
	w        *world
	t        *testing.T
	dice     *rand.Rand
	id       int
	answered *atomic.Int64
}

// visit makes a connection and a few requests on it.
func (c *crowd) visit() {
	nc, err := net.Dial("tcp", c.w.addr)
	if err != nil {
		c.t.Error(err)
		return
	}
	defer nc.Close()
	_ = nc.SetDeadline(time.Now().Add(15 * time.Second))
	in := bufio.NewReader(nc)
	for n := range 1 + c.dice.IntN(6) {
		tag := fmt.Sprintf("t%d-%d-%d", c.id, n, c.dice.Uint32())
		method, wire := c.request(tag)
		switch c.dice.IntN(14) {
		case 0: // a part of it
			_, _ = io.WriteString(nc, wire[:c.dice.IntN(len(wire))])
			return
		case 1: // leaves at once
			_, _ = io.WriteString(nc, wire)
			_ = nc.(*net.TCPConn).SetLinger(0)
			return
		case 2: // ends its side
			_, _ = io.WriteString(nc, wire)
			_ = nc.(*net.TCPConn).CloseWrite()
		case 3: // in pieces
			cut := c.dice.IntN(len(wire))
			_, _ = io.WriteString(nc, wire[:cut])
			time.Sleep(time.Millisecond)
			_, _ = io.WriteString(nc, wire[cut:])
		case 4: // two at once
			go func() { _, _ = io.WriteString(nc, wire+wire) }()
			if !c.answer(in, nc, method, tag) {
				return
			}
		default:
			go func() { _, _ = io.WriteString(nc, wire) }()
		}
		if !c.answer(in, nc, method, tag) {
			return
		}
	}
}

func (c *crowd) request(tag string) (method, wire string) {
	head := " /x HTTP/1.1\r\nHost: a.example\r\nX-Tag: " + tag + "\r\n"
	body := strings.Repeat("b", c.dice.IntN(100_000))
	switch c.dice.IntN(8) {
	case 0:
		return "POST", fmt.Sprintf("POST%sContent-Length: %d\r\n\r\n%s", head, len(body), body)
	case 1:
		return "POST", fmt.Sprintf("POST%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", head, len(body)+1, body+"b")
	case 2:
		return "PUT", "PUT" + head + "Content-Length: 3\r\n\r\nabc"
	case 3:
		return "HEAD", "HEAD" + head + "\r\n"
	case 4:
		return "GET", "GET /none HTTP/1.1\r\nHost: nobody.example\r\n\r\n"
	}
	return "GET", "GET" + head + "\r\n"
}

// answer reads one answer, slowly at times, and looks whether it is the right one. It is false when no other can follow.
func (c *crowd) answer(in *bufio.Reader, nc net.Conn, method, tag string) bool {
	if c.dice.IntN(20) == 0 {
		_ = nc.(*net.TCPConn).SetReadBuffer(4096)
		time.Sleep(20 * time.Millisecond)
	}
	res, err := http.ReadResponse(in, &http.Request{Method: method})
	for err == nil && res.StatusCode == 100 { // who has ended his sending is asked so whether he is there
		res, err = http.ReadResponse(in, &http.Request{Method: method})
	}
	if err != nil {
		return false
	}
	defer res.Body.Close()
	if res.StatusCode < 300 && res.Header.Get("X-Tag") != "" && res.Header.Get("X-Tag") != tag {
		c.t.Errorf("the answer to %s is that to %q", tag, res.Header.Get("X-Tag"))
	}
	if c.dice.IntN(16) == 0 {
		return false
	}
	_, err = io.Copy(io.Discard, res.Body)
	c.answered.Add(1)
	return err == nil && !res.Close
}

// visitHTTP2 makes a connection with prior knowledge and a few requests at a time on it.
func (c *crowd) visitHTTP2() {
	var nc atomic.Pointer[net.TCPConn]
	tr := &http2.Transport{AllowHTTP: true, DialTLSContext: func(context.Context, string, string, *tls.Config) (net.Conn, error) {
		conn, err := net.Dial("tcp", c.w.addr)
		if err == nil {
			nc.Store(conn.(*net.TCPConn))
		}
		return conn, err
	}}
	defer tr.CloseIdleConnections()
	for range 1 + c.dice.IntN(3) {
		var all sync.WaitGroup
		for n := range 1 + c.dice.IntN(8) {
			one := &crowd{c.w, c.t, rand.New(rand.NewPCG(c.dice.Uint64(), uint64(n))), c.id, c.answered}
			all.Go(func() { one.ask(tr) })
		}
		if c.dice.IntN(12) == 0 {
			time.Sleep(time.Duration(c.dice.IntN(5)) * time.Millisecond)
			if nc := nc.Load(); nc != nil {
				_ = nc.SetLinger(0)
				nc.Close()
			}
		}
		all.Wait()
	}
}

// ask makes one request over HTTP/2, and leaves at times.
func (c *crowd) ask(tr *http2.Transport) {
	ctx, cancel := context.WithTimeout(context.Background(), 15*time.Second)
	if c.dice.IntN(6) == 0 {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(c.dice.IntN(20))*time.Millisecond)
	}
	defer cancel()
	tag := fmt.Sprintf("t%d-%d", c.id, c.dice.Uint64())
	method, body := "GET", io.Reader(nil)
	switch c.dice.IntN(6) {
	case 0:
		method, body = "POST", strings.NewReader(strings.Repeat("b", c.dice.IntN(150_000)))
	case 1:
		method, body = "PUT", io.MultiReader(strings.NewReader(strings.Repeat("b", c.dice.IntN(100_000)))) // no length
	case 2:
		method = "HEAD"
	}
	req, _ := http.NewRequestWithContext(ctx, method, "http://a.example/x", body)
	req.Header.Set("X-Tag", tag)
	res, err := tr.RoundTrip(req)
	if err != nil {
		return
	}
	defer res.Body.Close()
	if got := res.Header.Get("X-Tag"); res.StatusCode < 300 && got != "" && got != tag {
		c.t.Errorf("the answer to %s is that to %q", tag, got)
	}
	if c.dice.IntN(10) == 0 {
		return
	}
	if c.dice.IntN(10) == 0 {
		time.Sleep(10 * time.Millisecond)
	}
	b, err := io.ReadAll(res.Body)
	if rest := strings.ReplaceAll(string(b), tag, ""); err == nil && len(b) > 1000 && len(rest) > 0 {
		c.t.Errorf("%d bytes in the answer to %s are not its own", len(rest), tag)
	}
	c.answered.Add(1)
}

// A randomised schedule of faults on both sides, over pools that are too small and snapshots that change. Throughout it
// everything has one owner; after it nothing is left: no descriptor, no place in a pool, no exchange, no buffer out twice.
func TestFaultsOnBothSidesLeakNothingAndMixNothingUp(t *testing.T) {
	t.Run("plain upstreams", func(t *testing.T) { faults(t, 0, 400*time.Millisecond, false, false) })
	t.Run("plain upstreams, without a ring", func(t *testing.T) { faults(t, 3, 400*time.Millisecond, false, true) })
	t.Run("upstreams over TLS", func(t *testing.T) { faults(t, 7, 400*time.Millisecond, true, false) })
}

func faults(t *testing.T, seed uint64, length time.Duration, secure, noRing bool) {
	before := descriptors(t)
	dead := listen(t)
	dead.Close()
	var cfg *tls.Config
	trust := ""
	if secure {
		cert, _ := selfSigned(t)
		cfg = &tls.Config{Certificates: []tls.Certificate{cert}}
		trust = fmt.Sprintf("}, tls: {server_name: a.example, ca: %q", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}))
	}
	up := fmt.Sprintf("%q, %q, %q", moody(t, seed, cfg), moody(t, seed+100, cfg), dead.Addr())
	pool := "max_connections: 5, max_pending: 8" + trust
	w := start(t, up, pool, Options{Loops: 2, NoRing: noRing, Options: engine.Options{HeaderTime: 300 * time.Millisecond, Idle: 300 * time.Millisecond, LeaveOver: 50 * time.Millisecond}})
	var answered atomic.Int64
	begin := time.Now()
	going := func() bool { // on a busy machine it takes longer to see enough
		took := time.Since(begin)
		return took < length || answered.Load() < 50 && took < 10*time.Second
	}
	var clients sync.WaitGroup
	for i := range 24 {
		clients.Go(func() {
			c := &crowd{w, t, rand.New(rand.NewPCG(seed, uint64(i))), i, &answered}
			for going() {
				if i%2 == 0 {
					c.visitHTTP2()
				} else {
					c.visit()
				}
			}
		})
	}
	for n := uint64(2); going(); n++ {
		w.check()
		p := compile(t, n, up, pool)
		if n%4 == 0 {
			p = compile(t, n, up, "max_connections: 3, max_pending: 4"+trust)
		}
		if err := w.server.Apply(p); err != nil {
			t.Error(err)
		}
		w.server.Reconnect(n%5 == 0)
		time.Sleep(20 * time.Millisecond)
	}
	clients.Wait()
	until(t, "all clients to be gone", func() bool {
		return w.server.Connections.Load() == 0 && w.server.InFlight.Load() == 0
	})
	w.check()
	until(t, "no place to be taken but by idle connections", func() bool {
		for _, u := range w.server.Snapshot().Upstreams {
			if u.Open != u.Idle || u.Pending != 0 {
				return false
			}
		}
		return true
	})
	if answered.Load() < 50 {
		t.Errorf("only %d answers", answered.Load())
	}
	t.Logf("%d answers", answered.Load())
	w.stop()
	http.DefaultClient.CloseIdleConnections()
	until(t, fmt.Sprintf("no more than %d descriptors", before), func() bool { return descriptors(t) <= before+4 }) // the upstreams' listeners end with the test
}
