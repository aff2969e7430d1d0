//go:build linux

package uring

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// ring calls prove with a ring. Where the kernel or a container's profile gives none, that it is said so is all there is to prove.
func ring(t *testing.T, size uint32, prove func(r *Ring)) {
	t.Helper()
	r, err := New(size)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINVAL) {
		t.Logf("this machine gives no ring (io_uring), so nothing of it is proved here: %v", err)
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	prove(r)
}

func pair(t *testing.T) (a, b int32) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fds[0]); unix.Close(fds[1]) })
	return int32(fds[0]), int32(fds[1])
}

func TestSendsAndReceivesAreCarriedOutInOrder(t *testing.T) {
	ring(t, 8, func(r *Ring) {
		a, b := pair(t)
		c, d := pair(t)
		for range 100 { // around the queues many times
			r.Send(a, []byte("one"))
			r.Send(c, []byte("three"))
			r.Send(a, []byte("two"))
			if got := r.Do(); len(got) != 3 || got[0] != 3 || got[1] != 5 || got[2] != 3 {
				t.Fatal(got)
			}
			in, other := make([]byte, 16), make([]byte, 16)
			r.Receive(b, in)
			r.Receive(d, other)
			if got := r.Do(); got[0] != 6 || got[1] != 5 || string(in[:6]) != "onetwo" || string(other[:5]) != "three" {
				t.Fatal(got, in, other)
			}
		}
	})
}

func TestNothingToReadAndNoRoomAreToldAtOnce(t *testing.T) {
	ring(t, 4, func(r *Ring) {
		a, b := pair(t)
		r.Receive(a, make([]byte, 1))
		if got := r.Do()[0]; got != -int32(unix.EAGAIN) {
			t.Fatal(got)
		}
		big := bytes.Repeat([]byte("x"), 16<<20)
		r.Send(a, big)
		some := r.Do()[0]
		if some <= 0 || int(some) == len(big) {
			t.Fatal(some)
		}
		r.Send(a, big)
		if got := r.Do()[0]; got != -int32(unix.EAGAIN) {
			t.Fatal(got)
		}
		unix.Close(int(a))
		in := make([]byte, len(big))
		for read := int32(0); ; {
			r.Receive(b, in)
			got := r.Do()[0]
			if read += got; got == 0 {
				if read != some {
					t.Fatal(read, some)
				}
				break
			}
		}
	})
}

func TestAFailureHoldsNobodyUp(t *testing.T) {
	ring(t, 4, func(r *Ring) {
		a, b := pair(t)
		gone, peer := pair(t)
		unix.Close(int(peer))
		closed := int32(1 << 30) // no such descriptor
		in := make([]byte, 8)
		r.Send(closed, []byte("x"))
		r.Send(gone, []byte("x")) // and no signal
		r.Send(a, []byte("fine"))
		r.Receive(b, in)
		if !r.Full() || r.Len() != 4 {
			t.Fatal(r.Len())
		}
		if got := r.Do(); got[0] != -int32(unix.EBADF) || got[1] != -int32(unix.EPIPE) || got[2] != 4 || got[3] != 4 {
			t.Fatal(got)
		}
		if r.Len() != 0 || len(r.Do()) != 0 {
			t.Fatal("something is left")
		}
	})
}

// deep makes the stack grow.
func deep(n int) byte {
	var room [1 << 10]byte
	if n > 0 {
		room[n%len(room)] = deep(n - 1)
	}
	return room[len(room)-1]
}

// The kernel's memory is out of the collector's sight: a buffer that only the ring knows stays, and none lies on a stack that moves.
func TestABufferStaysWhereItIsUntilDo(t *testing.T) {
	ring(t, 4, func(r *Ring) {
		a, b := pair(t)
		if _, err := unix.Write(int(a), []byte("in")); err != nil {
			t.Fatal(err)
		}
		got := make(chan string)
		go func() { // on a stack that is small yet
			var in [8]byte
			r.Receive(b, in[:])
			deep(100)
			r.Do()
			got <- string(in[:2])
		}()
		if got := <-got; got != "in" {
			t.Fatalf("%q", got)
		}
	})
}

func TestARingThatTheKernelRefusesIsAnError(t *testing.T) {
	if r, err := New(1 << 30); err == nil {
		r.Close()
		t.Fatal("so many entries")
	}
}

func TestABundleAllocatesNothing(t *testing.T) {
	ring(t, 4, func(r *Ring) {
		a, b := pair(t)
		out, in := []byte("out"), make([]byte, 8)
		if n := testing.AllocsPerRun(100, func() {
			r.Send(a, out)
			r.Receive(b, in)
			if got := r.Do(); got[1] != 3 {
				t.Fatal(got)
			}
		}); n != 0 {
			t.Fatal(n)
		}
	})
}
