//go:build linux

package loop

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy/engine"
)

// clientHello is the first message of a handshake.
func clientHello(t *testing.T) string {
	a, b := net.Pipe()
	defer b.Close()
	go func() {
		_ = tls.Client(a, &tls.Config{ServerName: "a.example", InsecureSkipVerify: true}).Handshake()
		a.Close()
	}()
	hello := make([]byte, 8<<10)
	n, err := b.Read(hello)
	if err != nil {
		t.Fatal(err)
	}
	return string(hello[:n])
}

// F2: who is connected waits for one handshake at most, however many come; beyond a number they cost nothing.
func TestHandshakesGoOnOneATurn(t *testing.T) {
	cert, _ := selfSigned(t)
	h := held(t, steady(t), &tls.Config{Certificates: []tls.Certificate{cert}})
	hello := clientHello(t)
	var all []*browser
	for range 5 {
		all = append(all, h.dial())
	}
	h.until("the connections", func() bool { return h.clients == len(all) })
	for _, c := range all {
		c.say(hello)
	}
	h.there(len(all))
	answered := func() (n int) {
		for _, c := range all {
			if b, err := c.SyscallConn(); err == nil {
				_ = b.Control(func(fd uintptr) {
					if hasData(int32(fd)) {
						n++
					}
				})
			}
		}
		return n
	}
	for i := range all {
		h.turn(h.wait())
		if n := answered(); n != i+1 {
			t.Fatalf("%d handshakes have gone on after %d turns", n, i+1)
		}
	}
	late := h.dial()
	h.until("the connection", func() bool { return h.clients == len(all)+1 })
	late.say(hello)
	h.there(1)
	for len(h.shaking) < mostShaking {
		h.shaking = append(h.shaking, ref{0, ^uint32(0)}) // somebody who is gone
	}
	h.turn(h.wait())
	if h.server.Unshaken.Load() != 1 {
		t.Fatal("it isn't counted")
	}
	if b, err := io.ReadAll(late); len(b) > 0 {
		t.Fatalf("it cost something: %q %v", b, err)
	}
}

// exhaust leaves the process no free descriptor until the function is called.
func exhaust(t *testing.T) (restore func()) {
	t.Helper()
	var was unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &was); err != nil {
		t.Fatal(err)
	}
	free, err := unix.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(free)
	none := was
	none.Cur = uint64(free) // all below are taken
	set := func(r unix.Rlimit) {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &r); err != nil {
			t.Fatal(err)
		}
	}
	set(none)
	restore = sync.OnceFunc(func() { set(was) })
	t.Cleanup(restore)
	return restore
}

// Out of descriptors, a node gives up what lies idle.
func TestWhatLiesIdleMakesRoom(t *testing.T) {
	t.Run("an upstream connection for a client", func(t *testing.T) {
		h := held(t, steady(t), nil)
		one := h.dial().say(get)
		h.until("a connection to lie idle", func() bool { return h.last != nil && h.last.idles == 1 })
		if got := one.answer(); got != "ok" {
			t.Fatal(got)
		}
		two := h.dial()
		restore := exhaust(t)
		h.until("the client", func() bool { return h.clients == 2 })
		restore()
		two.say(get)
		h.until("its answer", func() bool { return h.last.idles == 1 })
		if got := two.answer(); got != "ok" {
			t.Fatal(got)
		}
	})
	t.Run("an idle client for a request", func(t *testing.T) {
		h := held(t, steady(t), nil)
		one, two := h.dial(), h.dial()
		h.until("both clients to be idle for long", func() bool {
			since, idle := time.Time{}, false
			for i := range h.slots {
				if c := h.slots[i].client; c != nil {
					since, idle = c.idles()
				}
			}
			return h.clients == 2 && idle && h.now.Sub(since) > engine.EvictAfter
		})
		two.say(get)
		h.there(1)
		restore := exhaust(t)
		h.until("a connection to the upstream", func() bool { return h.last != nil && h.last.open == 1 })
		restore()
		h.until("the answer", func() bool { return h.last.idles == 1 })
		if got := two.answer(); got != "ok" {
			t.Fatal(got)
		}
		if _, err := one.Read(make([]byte, 1)); err != io.EOF {
			t.Fatal(err)
		}
	})
}
