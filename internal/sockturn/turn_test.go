package sockturn

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

func pair(t testing.TB) (a, b *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.22.3.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); d.Close() })
	return c.(*net.TCPConn), d.(*net.TCPConn)
}

// The answer may come at any moment after the write, before the wait as well: none is lost.
func TestNoAnswerIsMissed(t *testing.T) {
	a, b := pair(t)
	go func() {
		buf := make([]byte, 64)
		for i := 0; ; i++ {
			n, err := b.Read(buf)
			if err != nil {
				return
			}
			if i%50 == 0 {
				time.Sleep(time.Millisecond)
			}
			if _, err := b.Write(buf[:n]); err != nil {
				return
			}
		}
	}()
	var turn Turn
	turn.Reset(a)
	_ = a.SetDeadline(time.Now().Add(20 * time.Second))
	in, ping := make([]byte, 64), []byte("ping")
	for range 20000 {
		if wrote, n, err := turn.Do(ping, in); wrote != 4 || n != 4 || err != nil || string(in[:n]) != "ping" {
			t.Fatal(wrote, n, err)
		}
	}
	if n := testing.AllocsPerRun(100, func() { _, _, _ = turn.Do(ping, in) }); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestDeadlinesAndEnds(t *testing.T) {
	a, b := pair(t)
	var turn Turn
	turn.Reset(a)
	in := make([]byte, 8)
	_ = a.SetReadDeadline(time.Unix(1, 0))
	if wrote, n, err := turn.Do([]byte("x"), in); wrote != 0 || n != 0 || err != nil {
		t.Fatalf("a deadline that had passed: %d %d %v", wrote, n, err)
	}
	_ = a.SetReadDeadline(time.Now().Add(30 * time.Millisecond))
	if wrote, _, err := turn.Do([]byte("x"), in); wrote != 1 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("%d %v", wrote, err)
	}
	_ = a.SetReadDeadline(time.Now().Add(5 * time.Second))
	if wrote, n, err := turn.Do(make([]byte, 64<<20), in); wrote <= 0 || wrote == 64<<20 || n != 0 || err != nil {
		t.Fatalf("a write that doesn't fit: %d %d %v", wrote, n, err)
	}
	go io.Copy(io.Discard, b)
	c, d := pair(t)
	turn.Reset(c)
	d.Close()
	_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
	if _, n, err := turn.Do([]byte("x"), in); n != 0 || err == nil {
		t.Fatalf("after the end: %d %v", n, err)
	}
	var none Turn
	none.Reset(nil)
	if none.Usable() {
		t.Fatal("usable without a socket")
	}
}
