package listen

import (
	"bytes"
	"net"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/ipv4"
)

// handed gives a successor's sockets.
func handed(t *testing.T, from *Sockets) *Sockets {
	t.Helper()
	all, err := from.Hand()
	if err != nil {
		t.Fatal(err)
	}
	return Given(all)
}

// A connection that waits in the queue of any of an address's sockets when the old process closes them is the successor's.
func TestConnectionsThatWaitAreTheSuccessors(t *testing.T) {
	var old Sockets
	mine, err := old.TCP(t.Context(), "http", "127.42.9.1:0", false, 3)
	if err != nil {
		t.Fatal(err)
	}
	next := handed(t, &old)
	theirs, err := next.TCP(t.Context(), "http", "127.42.9.1:0", false, 7)
	if err != nil || len(theirs) != 3 || theirs[0].Addr().String() != mine[0].Addr().String() {
		t.Fatalf("%d sockets, %v", len(theirs), err)
	}
	var waiting []net.Conn
	for range 30 {
		c, err := net.Dial("tcp", mine[0].Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		waiting = append(waiting, c)
	}
	old.Left()
	for _, s := range mine {
		if err := s.Quiesce(); err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	got := make(chan net.Conn)
	for _, s := range theirs {
		go func() {
			for {
				c, err := s.Accept()
				if err != nil {
					return
				}
				got <- c
			}
		}()
		defer s.Close()
	}
	c, err := net.Dial("tcp", theirs[0].Addr().String()) // the old one's Quiesce was none
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range len(waiting) + 1 {
		select {
		case c := <-got:
			c.Close()
		case <-time.After(5 * time.Second):
			t.Fatal("a connection is lost")
		}
	}
}

func TestWhatTheSuccessorDoesNotAskForIsClosed(t *testing.T) {
	var old Sockets
	mine, err := old.TCP(t.Context(), "http", "127.42.9.1:0", false, 1)
	if err != nil {
		t.Fatal(err)
	}
	next := handed(t, &old)
	if other, err := next.TCP(t.Context(), "https", "127.42.9.1:0", false, 1); err != nil || other[0].Addr().String() == mine[0].Addr().String() {
		t.Errorf("%v %v", other, err)
	}
	next.Settle()
	mine[0].Close()
	if c, err := net.Dial("tcp", mine[0].Addr().String()); err == nil {
		c.Close()
		t.Error("somebody still listens")
	}
}

// packet is a QUIC packet's beginning with an id, short or long (RFC 9000, section 17).
func packet(long bool, id []byte) []byte {
	if long {
		return append([]byte{0xc0, 0, 0, 0, 1, byte(len(id))}, slices.Concat(id, make([]byte, 20))...)
	}
	return append([]byte{0x40}, slices.Concat(id, make([]byte, 20))...)
}

// reads gives what a UDP reads, one packet after the other.
func reads(u *UDP) <-chan ipv4.Message {
	out := make(chan ipv4.Message, 100)
	go func() {
		defer close(out)
		for {
			ms := make([]ipv4.Message, 8)
			for i := range ms {
				ms[i].Buffers, ms[i].OOB = [][]byte{make([]byte, 1500)}, make([]byte, 128)
			}
			n, err := u.ReadBatch(ms, 0)
			if err != nil {
				return
			}
			for _, m := range ms[:n] {
				out <- m
			}
		}
	}()
	return out
}

// While an old process still has connections its packets reach it by their ids, wherever they come from; all others are the
// successor's, and all are once the old process has ended. When the successor ends first, the old one reads again.
func TestPacketsReachTheProcessThatMadeTheirIDs(t *testing.T) {
	for _, ends := range []string{"old", "new", "resume"} {
		var before Sockets
		old, err := before.UDP(t.Context(), "https", "127.42.9.2:0", false)
		if err != nil {
			t.Fatal(err)
		}
		first := reads(old)
		after := handed(t, &before)
		before.Yield()
		succ, err := after.UDP(t.Context(), "https", "127.42.9.2:0", false)
		if err != nil {
			t.Fatal(err)
		}
		second := reads(succ)
		client, err := net.Dial("udp", old.LocalAddr().String())
		if err != nil {
			t.Fatal(err)
		}
		expect := func(at <-chan ipv4.Message, p []byte) {
			t.Helper()
			if _, err := client.Write(p); err != nil {
				t.Fatal(err)
			}
			select {
			case m := <-at:
				if !bytes.Equal(m.Buffers[0][:m.N], p) || m.Addr.String() != client.LocalAddr().String() {
					t.Errorf("%v: %x", m.Addr, m.Buffers[0][:m.N])
				}
			case <-time.After(5 * time.Second):
				t.Fatalf("%s: a packet is lost", ends)
			}
		}
		a, _ := old.GenerateConnectionID()
		b, _ := succ.GenerateConnectionID()
		for range 20 {
			expect(first, packet(false, a.Bytes()))
			expect(second, packet(false, b.Bytes()))
			expect(first, packet(true, a.Bytes()))
			expect(second, packet(true, a.Bytes()[:8])) // a client's own choice
			expect(second, []byte{0x40})
		}
		switch ends {
		case "old":
			old.Close()
			expect(second, packet(false, a.Bytes()))
			expect(second, packet(false, a.Bytes()))
			succ.Close()
		case "new":
			succ.Close()
			expect(first, packet(false, b.Bytes()))
			expect(first, packet(true, a.Bytes()[:8]))
			old.Close()
		case "resume": // and another takeover
			succ.Close()
			before.Resume()
			expect(first, packet(false, a.Bytes()))
			after := handed(t, &before)
			before.Yield()
			succ, err := after.UDP(t.Context(), "https", "127.42.9.2:0", false)
			if err != nil {
				t.Fatal(err)
			}
			second = reads(succ)
			expect(first, packet(false, a.Bytes()))
			expect(second, packet(false, b.Bytes()))
			succ.Close()
			old.Close()
		}
		for range first {
		}
		for range second {
		}
		client.Close()
	}
}

func TestASuccessorsPacketsThatMakeNoSenseAreLost(t *testing.T) {
	for _, raw := range [][]byte{nil, {0}, {0, 9, 1}, {0, 0}, {0, 0, 0, 0}, {0, 1, 7, 0, 0}, bytes.Repeat([]byte{0xff}, 3000)} {
		var s Sockets
		u, err := s.UDP(t.Context(), "https", "127.42.9.2:0", false)
		if err != nil {
			t.Fatal(err)
		}
		got := reads(u)
		after := handed(t, &s)
		s.Yield()
		succ, err := after.UDP(t.Context(), "https", "127.42.9.2:0", false)
		if err != nil {
			t.Fatal(err)
		}
		if len(raw) > 0 {
			if _, err := succ.to.Load().Write(raw); err != nil {
				t.Fatal(err)
			}
		}
		id, _ := u.GenerateConnectionID()
		c, _ := net.Dial("udp", u.LocalAddr().String())
		go reads(succ)
		_, _ = c.Write(packet(false, id.Bytes()))
		if m := <-got; !bytes.Equal(m.Buffers[0][:m.N], packet(false, id.Bytes())) {
			t.Errorf("%x: read %x", raw, m.Buffers[0][:m.N])
		}
		c.Close()
		succ.Close()
		u.Close()
	}
}
