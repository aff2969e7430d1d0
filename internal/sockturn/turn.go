// Package sockturn writes to a TCP socket and then waits for the answer without asking for it in vain: a write and a read
// cost two system calls, where Write and Read cost three, the first read coming too early.
//
//	wrote, n, err := t.Do(out, in)   // wrote < len(out): write the rest with Write; n is what was read into in
//
// The order is what makes it safe: the poller's readiness is cleared first, then the write goes out, then the wait begins.
// Whatever arrives after the write finds the readiness cleared before, so no edge is lost. What arrived before that has none
// any more: who talks to a peer that may send ahead of its turn sets Ahead.
package sockturn

import (
	"io"
	"net"
	"syscall"
)

// Turn is one socket's state. It is not for concurrent use with itself or with reads. The zero value is not usable on any
// socket: Usable says false.
type Turn struct {
	// Ahead: the peer may have sent something, or its end, before the write. Do looks for that, with one more system call,
	// and doesn't wait then.
	Ahead bool

	raw     syscall.RawConn
	step    func(fd uintptr) bool
	out, in []byte
	wrote   int
	n       int
	err     error
	written bool
	one     [1]byte
}

// Reset points t at c, or at nothing when c is no plain TCP connection.
func (t *Turn) Reset(c net.Conn) {
	t.raw = nil
	if tc, ok := c.(*net.TCPConn); ok {
		if raw, err := tc.SyscallConn(); err == nil {
			t.raw = raw
		}
	}
	if t.step == nil {
		t.step = t.do // bound once: a bound method per turn would allocate
	}
}

// Usable says whether Do may be called.
func (t *Turn) Usable() bool { return t.raw != nil }

// Do writes out and then reads once into in, within the connection's read deadline. When not all of out could be written
// at once, or something was there ahead, nothing is read, and err is nil unless the socket is broken. err is io.EOF at the end of what the peer sends.
func (t *Turn) Do(out, in []byte) (wrote, n int, err error) {
	t.out, t.in, t.wrote, t.n, t.err, t.written = out, in, 0, 0, nil, false
	err = t.raw.Read(t.step)
	t.out, t.in = nil, nil
	if t.err != nil {
		err = t.err
	}
	if err != nil && !t.written {
		err = nil // the read deadline had passed before: nothing was done
	}
	return t.wrote, t.n, err
}

// do is called by the poller: first at once, then whenever the socket may be readable.
func (t *Turn) do(fd uintptr) bool {
	if !t.written {
		t.written = true
		ahead := t.Ahead && t.look(fd)
		t.wrote, t.err = again(func() (int, error) { return syscall.Write(int(fd), t.out) })
		if t.err == syscall.EAGAIN {
			t.err = nil
		}
		return t.err != nil || t.wrote < len(t.out) || ahead
	}
	n, err := again(func() (int, error) { return syscall.Read(int(fd), t.in) })
	switch {
	case err == syscall.EAGAIN:
		return false
	case err != nil:
		t.err = err
	case n == 0:
		t.err = io.EOF
	}
	t.n = n
	return true
}

// look says whether there is something to be read, be it the end.
func (t *Turn) look(fd uintptr) bool {
	_, err := again(func() (int, error) {
		n, _, err := syscall.Recvfrom(int(fd), t.one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return n, err
	})
	return err != syscall.EAGAIN
}

// again repeats a call that a signal interrupted; a count of -1 becomes 0.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if err != syscall.EINTR {
			return max(n, 0), err
		}
	}
}
