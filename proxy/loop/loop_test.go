//go:build linux

package loop

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

const get = "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n"

// talker is an upstream whose connections the test holds.
func talker(t testing.TB) (addr string, next func() *net.TCPConn) {
	l := listen(t)
	conns := make(chan *net.TCPConn, 64)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			conns <- c.(*net.TCPConn)
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().String(), func() *net.TCPConn {
		select {
		case c := <-conns:
			t.Cleanup(func() { c.Close() })
			_ = c.SetDeadline(time.Now().Add(10 * time.Second))
			return c
		case <-time.After(10 * time.Second):
			t.Fatal("no connection came")
			return nil
		}
	}
}

type browser struct {
	*net.TCPConn
	in *bufio.Reader
	t  testing.TB
}

func (w *world) dial() *browser {
	w.t.Helper()
	c, err := net.Dial("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return &browser{c.(*net.TCPConn), bufio.NewReader(c), w.t}
}

func (b *browser) say(s string) *browser {
	b.t.Helper()
	if _, err := io.WriteString(b, s); err != nil {
		b.t.Fatal(err)
	}
	return b
}

func (b *browser) answer() string {
	b.t.Helper()
	res, err := http.ReadResponse(b.in, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		b.t.Fatal(err)
	}
	return string(body)
}

// serve answers one request on an upstream's connection.
func serve(t testing.TB, c net.Conn, body string) {
	t.Helper()
	req, err := http.ReadRequest(bufio.NewReader(c))
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, req.Body)
	if _, err := io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: "+string(rune('0'+len(body)))+"\r\n\r\n"+body); err != nil {
		t.Fatal(err)
	}
}

// What an upstream says unasked before a request is written never answers it, though the loop hears of both at once and of
// the request first (G37).
func TestBytesThatCameBeforeTheRequestAreSeenInTheSameTurn(t *testing.T) {
	up, next := talker(t)
	w := start(t, up, "max_connections: 9", Options{Loops: 1})
	l := w.engine.loops[0]
	for range 5 {
		c := w.dial().say(get)
		first := next()
		serve(t, first, "one")
		if body := c.answer(); body != "one" {
			t.Fatal(body)
		}
		w.on(l, func() { // the loop is held up: all that follows comes in one turn
			c.say(get)
			_, _ = io.WriteString(first, "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nforged")
			for i := range l.slots {
				if s := &l.slots[i]; s.client != nil || s.conn != nil {
					until(t, "the kernel to deliver both", func() bool { return hasData(s.fd) })
				}
			}
		})
		second := next()
		serve(t, second, "two")
		if body := c.answer(); body != "two" {
			t.Fatalf("%q", body)
		}
		w.check()
		second.Close()
		c.Close()
		until(t, "both ends to be noticed as closed", func() bool {
			return w.server.Snapshot().Upstreams[0].Open == 0 && w.server.Connections.Load() == 0
		})
	}
}

func hasData(fd int32) bool {
	n, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
	return err == nil && n > 0
}

// Two reads and two writes per request once there is enough to do; a wait for events serves many.
func TestARequestTakesFourSystemCalls(t *testing.T) {
	w := start(t, steady(t), "max_connections: 200", Options{Loops: 1, NoRing: true})
	l := w.engine.loops[0]
	const clients, rounds = 32, 60
	all := w.dialAll(clients)
	round := func() {
		w.together(l, func() {
			for _, c := range all {
				c.say(get)
			}
		})
		for _, c := range all {
			c.answer()
		}
	}
	round()
	round()
	const requests = clients * rounds
	if n := w.callsOf(l, func() {
		for range rounds {
			round()
		}
	}); n != (calls{reads: 2 * requests, writes: 2 * requests}) {
		t.Errorf("%d requests took %+v", requests, n)
	}
}

// While requests come, however few, no sleep between them costs a round of Go's scheduler and its monitor.
func TestALoopWithFewRequestsHidesItsSleep(t *testing.T) {
	w := start(t, steady(t), "max_connections: 8", Options{Loops: 1})
	l := w.engine.loops[0]
	c := w.dial()
	var told []uint64
	for range 10 { // a machine that comes late makes a sleep long
		var before, after calls
		w.on(l, func() { before = l.calls })
		for range 10 {
			time.Sleep(brief / 4)
			c.say(get)
			c.answer()
		}
		w.on(l, func() { after = l.calls })
		if told = append(told, after.told-before.told); told[len(told)-1] == 0 {
			return
		}
	}
	t.Errorf("of the sleeps between ten requests Go's scheduler was told of %d", told)
}

// With a ring, requests and answers that come together share all four; without, each has its own.
func TestRequestsThatComeTogetherTakeFourSystemCalls(t *testing.T) {
	const clients, rounds = 24, 20 // no more than go into one bundle
	l := listen(t)
	t.Cleanup(func() { l.Close() })
	asked, answer := make(chan struct{}, clients), make(chan struct{})
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				room := make([]byte, 4096)
				for {
					if _, err := c.Read(room); err != nil {
						return
					}
					asked <- struct{}{}
					<-answer
					_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
				}
			}()
		}
	}()
	w := start(t, fmt.Sprintf("%q", l.Addr()), "max_connections: 200", Options{Loops: 1})
	at := w.engine.loops[0]
	all := w.dialAll(clients)
	round := func() {
		w.together(at, func() {
			for _, c := range all {
				c.say(get)
			}
		})
		for range clients {
			<-asked
		}
		w.together(at, func() {
			for range clients {
				answer <- struct{}{}
			}
			for i := range at.slots {
				if s := &at.slots[i]; s.conn != nil {
					until(t, "all answers to be there", func() bool { return hasData(s.fd) })
				}
			}
		})
		for _, c := range all {
			c.answer()
		}
	}
	round()
	const each = 2 * clients * rounds
	want := calls{bundles: 4 * rounds, received: each, posts: each}
	if at.ring == nil {
		t.Log("this machine gives no ring (io_uring), so what shares it is not proved here")
		want = calls{reads: each, writes: each}
	}
	if n := w.callsOf(at, func() {
		for range rounds {
			round()
		}
	}); n != want {
		t.Errorf("%d rounds of %d requests took %+v", rounds, clients, n)
	}
	w.check()
}

// together holds a loop up until do has returned, so that what do brought about comes in one turn.
func (w *world) together(l *loop, do func()) {
	hold, held := make(chan struct{}), make(chan struct{})
	l.post(func() { close(held); <-hold })
	<-held
	do()
	close(hold)
}

// callsOf counts a loop's sends and receives while do runs.
func (w *world) callsOf(l *loop, do func()) (n calls) {
	var before calls
	w.on(l, func() { before = l.calls })
	do()
	w.on(l, func() { n = l.calls })
	return calls{reads: n.reads - before.reads, writes: n.writes - before.writes,
		bundles: n.bundles - before.bundles, received: n.received - before.received, posts: n.posts - before.posts}
}

func (w *world) dialAll(n int) (all []*browser) {
	for range n {
		all = append(all, w.dial())
	}
	return all
}

// steady is an upstream that always answers.
func steady(t testing.TB) string {
	l := listen(t)
	s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "ok")
	})}
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close(); <-done })
	return l.Addr().String()
}
