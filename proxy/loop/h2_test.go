//go:build linux

package loop

import (
	"encoding/binary"
	"io"
	"net/http"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/http2"
)

// asker speaks HTTP/2 with prior knowledge, in the fewest bytes.
type asker struct {
	*browser
	id uint32
}

const hello = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x00\x04\x00\x00\x00\x00\x00"

func (w *world) ask() *asker { return &asker{w.dial().say(hello), 1} }

// requests are so many requests in one piece.
func (a *asker) requests(n int) string {
	var b []byte
	for range n {
		const block = "\x82\x86\x84\x01\x09a.example"
		b = binary.BigEndian.AppendUint32(append(b, 0, 0, byte(len(block)), 1, 5), a.id)
		b = append(b, block...)
		a.id += 2
	}
	return string(b)
}

// answers reads until so many streams have ended.
func (a *asker) answers(n int) {
	a.t.Helper()
	for n > 0 {
		head := make([]byte, 9)
		if _, err := io.ReadFull(a.in, head); err != nil {
			a.t.Fatal(err)
		}
		if _, err := io.CopyN(io.Discard, a.in, int64(head[1])<<8+int64(head[2])); err != nil {
			a.t.Fatal(err)
		}
		if kind := head[3]; kind == 7 || kind == 3 {
			a.t.Fatalf("a frame of kind %d", kind)
		} else if kind < 2 && head[4]&1 != 0 {
			n--
		}
	}
}

// A read and a write for the client per bundle of requests, and a read and a write for the upstream per request.
func TestHTTP2ShareTheSystemCalls(t *testing.T) {
	w := start(t, steady(t), "max_connections: 200", Options{Loops: 1, NoRing: true})
	l := w.engine.loops[0]
	const clients, streams, rounds = 8, 8, 40
	var all []*asker
	for range clients {
		all = append(all, w.ask())
	}
	round := func() {
		w.together(l, func() {
			for _, c := range all {
				c.say(c.requests(streams))
			}
		})
		for _, c := range all {
			c.answers(streams)
		}
	}
	round()
	round()
	const bundles, requests = clients * rounds, clients * streams * rounds
	n := w.callsOf(l, func() {
		for range rounds {
			round()
		}
	})
	if n.reads != bundles+requests {
		t.Errorf("%d requests in %d bundles took %d reads", requests, bundles, n.reads)
	}
	// Answers that come in several turns go out in as many writes; there are never more than answers.
	if n.writes < bundles+requests || n.writes > 2*requests {
		t.Errorf("%d requests in %d bundles took %d writes", requests, bundles, n.writes)
	} else {
		t.Logf("%.2f writes to clients a bundle", float64(n.writes-requests)/bundles)
	}
	w.check()
}

// What a client doesn't read waits in the upstreams, not here, and all of it comes once the client reads.
func TestAnHTTP2ClientThatDoesNotReadHoldsLittle(t *testing.T) {
	const size, streams = 4 << 20, 4
	l := listen(t)
	up := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = w.Write(make([]byte, size)) })}
	done := make(chan struct{})
	go func() { defer close(done); _ = up.Serve(l) }()
	t.Cleanup(func() { up.Close(); <-done })
	w := start(t, l.Addr().String(), "max_connections: 20", Options{Loops: 1})
	c := &asker{w.dial(), 1}
	c.say("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + "\x00\x00\x06\x04\x00\x00\x00\x00\x00\x00\x04\x7f\xff\xff\xff" + "\x00\x00\x04\x08\x00\x00\x00\x00\x00\x7f\x00\x00\x00")
	c.say(c.requests(streams))
	held := func() (n int, full bool) {
		w.on(w.engine.loops[0], func() {
			for i := range w.engine.loops[0].slots {
				if cl := w.engine.loops[0].slots[i].client; cl != nil && cl.h2 != nil {
					n = len(cl.out) + cl.h2.codec.Pending()
					full = len(cl.out) > 0 && len(cl.h2.line) == streams
				}
			}
		})
		return n, full
	}
	until(t, "the client to hold everything up", func() bool { _, full := held(); return full })
	if n, _ := held(); n > 3*http2.HighWater {
		t.Errorf("%d bytes wait here", n)
	}
	w.check()
	got, ended := int64(0), 0
	for ended < streams {
		head := make([]byte, 9)
		if _, err := io.ReadFull(c.in, head); err != nil {
			t.Fatal(err)
		}
		n, err := io.CopyN(io.Discard, c.in, int64(head[1])<<8+int64(head[2]))
		if err != nil {
			t.Fatal(err)
		}
		if head[3] == 0 {
			got += n
			ended += int(head[4] & 1)
		}
	}
	if got != size*streams {
		t.Errorf("%d bytes", got)
	}
}

// A connection that has carried some requests and waits for the next holds no buffer, no exchange, and a small codec.
func TestAnIdleHTTP2ConnectionTakesLessThan5Kilobytes(t *testing.T) {
	w := start(t, steady(t), "max_connections: 20, max_pending: 1000", Options{Loops: 2})
	at := netip.MustParseAddrPort(w.addr)
	const clients, first = 300, 100 // the first fill the loops' own stores
	var before uint64
	for i := range clients {
		if i == first {
			before = heap()
		}
		fd, _, err := dial(at) // without the memory that a net.Conn takes
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(int(fd)) })
		if err := unix.SetNonblock(int(fd), false); err != nil {
			t.Fatal(err)
		}
		pollFor(t, fd, unix.POLLOUT)
		if _, err := unix.Write(int(fd), []byte(hello+(&asker{id: 1}).requests(5))); err != nil {
			t.Fatal(err)
		}
		until(t, "it to be idle", func() bool { // one by one, so that the loops store no more than they had at first
			return w.server.InFlight.Load() == 0 && w.server.Requests.Load() == 5*uint64(i+1)
		})
	}
	if each := int64(heap()-before) / (clients - first); each > 5<<10 {
		t.Errorf("%d bytes for each connection", each)
	} else {
		t.Logf("%d bytes each", each)
	}
	w.check()
}

// At a drain all connections have something to say at once; none of them holds a buffer while the others' turn comes.
func TestManyHTTP2ConnectionsThatAreAskedToLeaveShareABuffer(t *testing.T) {
	w := start(t, steady(t), "max_connections: 20", Options{Loops: 1, Options: engine.Options{HardStop: 500 * time.Millisecond}})
	const clients = 300
	for i := range clients {
		c := &asker{w.dial(), 1}
		c.say(hello + c.requests(1))
		until(t, "it to be idle", func() bool {
			return w.server.InFlight.Load() == 0 && w.server.Requests.Load() == uint64(i+1)
		})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	w.stop()
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / clients; each > 16<<10 {
		t.Errorf("%d bytes were allocated for each", each)
	} else {
		t.Logf("%d bytes each", each)
	}
}
