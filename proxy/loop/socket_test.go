//go:build linux

package loop

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/proxy"
)

// still is a loop that doesn't run, with clients at its sockets' ends that nothing is expected of.
func still(t *testing.T, noRing bool, clients int) (l *loop, all []*client, peers []int) {
	t.Helper()
	e := New(proxy.New(proxy.Options{}), Options{Loops: 1})
	l, err := newLoop(e, &e.pulses[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	if !noRing {
		if err := l.openRing(); err != nil { // then the tests say no more than those without one
			t.Logf("this machine gives no ring (io_uring), so what goes through one is not proved here: %v", err)
		}
	}
	for range clients {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		c := &client{socket: socket{fd: int32(fds[0])}, l: l}
		c.slot = l.take(slot{client: c, fd: c.fd})
		if err := l.watch(unix.EPOLL_CTL_ADD, c.fd, readEvents, c.slot, l.slots[c.slot].gen); err != nil {
			t.Fatal(err)
		}
		l.clients++
		t.Cleanup(func() { c.drop(); unix.Close(fds[1]) })
		all, peers = append(all, c), append(peers, fds[1])
	}
	return l, all, peers
}

// Pieces of all sizes, in turns that post and turns that don't, to peers that read now and then: all comes once and in order.
func TestWhatIsSentComesOnceAndInOrder(t *testing.T) {
	t.Run("with a ring", func(t *testing.T) { sentOnce(t, false) })
	t.Run("without", func(t *testing.T) { sentOnce(t, true) })
}

func sentOnce(t *testing.T, noRing bool) {
	const clients = 40 // more than one bundle
	l, all, peers := still(t, noRing, clients)
	r := rand.New(rand.NewPCG(1, 2))
	said, heard := make([][]byte, clients), make([][]byte, clients)
	room := make([]byte, 1<<18)
	hear := func(i int) {
		if n, err := unix.Read(peers[i], room[:1+r.IntN(len(room))]); n > 0 {
			heard[i] = append(heard[i], room[:n]...)
		} else if err != unix.EAGAIN {
			t.Fatal(err)
		}
	}
	turn := func(do func()) {
		l.posting = l.ring != nil && r.IntN(4) > 0
		for n := l.poll(0); n > 0; n-- {
			if ev := l.events[n-1]; ev.Events&unix.EPOLLOUT != 0 {
				if c := l.slots[ev.Fd].client; len(c.out) > 0 && !c.wrote(l.write(c.fd, c.out[c.sent:])) {
					t.Fatal("broken")
				}
			}
		}
		do()
		l.sendPosted()
	}
	sizes := []int{1, 100, 3000, 5000, gathered, 70_000}
	for range 200 {
		few := 1 + r.IntN(clients)
		turn(func() {
			for range 40 {
				i := r.IntN(few)
				if len(said[i]) > 1<<20 {
					continue
				}
				pieces := make([]byte, 2*sizes[r.IntN(len(sizes))])
				for k := range pieces {
					pieces[k] = byte(len(said[i]) + k + k>>8)
				}
				cut := r.IntN(len(pieces) + 1)
				said[i] = append(said[i], pieces...)
				if !all[i].sendRaw(pieces[:cut], pieces[cut:]) {
					t.Fatal("broken")
				}
				clear(pieces) // it is the caller's again
			}
		})
		for range 2 * few {
			hear(r.IntN(few))
		}
	}
	for i := range all {
		for tries := 0; len(heard[i]) < len(said[i]) && tries < 1000; tries++ {
			hear(i)
			turn(func() {})
		}
		if !bytes.Equal(heard[i], said[i]) {
			t.Fatalf("client %d: of %d bytes %d came, or others", i, len(said[i]), len(heard[i]))
		}
		if all[i].out != nil || all[i].posted {
			t.Errorf("client %d has something left", i)
		}
	}
}

// What was received ahead of its turn and is not read then is not lost, nor what follows it.
func TestWhatIsReceivedAheadIsKept(t *testing.T) {
	l, all, peers := still(t, false, 4)
	l.posting = l.ring != nil
	long := bytes.Repeat([]byte("0123456789"), 1000) // more than is received ahead
	room := make([]byte, 1500)
	say := func(i int, text string) {
		t.Helper()
		if _, err := unix.Write(peers[i], []byte(text)); err != nil {
			t.Fatal(err)
		}
	}
	say(0, string(long))
	say(1, "short")
	say(3, "read already")
	if err := unix.Shutdown(peers[2], unix.SHUT_WR); err != nil {
		t.Fatal(err)
	}
	n := l.poll(0)
	l.read(all[3].fd, room)
	l.receiveAhead(l.events[:n])
	l.keepAhead()
	clear(l.room) // it is used again
	say(1, " and more")
	say(3, "later")
	var got [4][]byte
	for i, c := range all {
		for more := true; more; {
			var n int
			if n, more, _ = l.receive(&c.socket, room); n == 0 {
				break
			}
			got[i] = append(got[i], room[:n]...)
		}
	}
	if !bytes.Equal(got[0], long) || string(got[1]) != "short and more" || len(got[2]) > 0 || string(got[3]) != "later" {
		t.Fatalf("%d of %d bytes, %q, %q, %q", len(got[0]), len(long), got[1], got[2], got[3])
	}
	if l.ring != nil && (l.calls.received != 4 || l.calls.bundles != 1) {
		t.Errorf("%+v", l.calls)
	}
}
