// Package sockpeek asks a TCP socket whether its peer is still there, without reading and without blocking.
package sockpeek

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// State is what a look at the socket's receive queue says.
type State uint8

// The states. Quiet: nothing to read, so as far as anyone can know the peer is there.
const (
	Quiet State = iota
	Data
	Gone
)

// Peeker looks at one socket. It is not for concurrent use. The zero value always says Quiet.
type Peeker struct {
	raw   syscall.RawConn
	look  func(fd uintptr)
	state State
	buf   [1]byte
}

// Reset points the peeker at c, or at nothing when c has no file descriptor.
func (p *Peeker) Reset(c net.Conn) {
	p.raw = nil
	if sc, ok := c.(syscall.Conn); ok {
		if raw, err := sc.SyscallConn(); err == nil {
			p.raw = raw
		}
	}
	if p.look == nil {
		p.look = p.peek // bound once: a bound method per look would allocate
	}
}

// Look costs one system call.
func (p *Peeker) Look() State {
	if p.raw == nil {
		return Quiet
	}
	p.state = Gone
	if err := p.raw.Control(p.look); err != nil {
		return Gone
	}
	return p.state
}

// Dead says whether the connection was reset, or has ended in both directions; it costs one system call. A peer that has only
// ended its sending is Gone, but not Dead.
func (p *Peeker) Dead() bool {
	if p.raw == nil {
		return false
	}
	dead := false
	err := p.raw.Control(func(fd uintptr) {
		of := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(of, 0)
		dead = err == nil && n > 0 && of[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return dead || err != nil
}

func (p *Peeker) peek(fd uintptr) {
	n, _, err := syscall.Recvfrom(int(fd), p.buf[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
	switch {
	case err == syscall.EAGAIN || err == syscall.EINTR:
		p.state = Quiet
	case err == nil && n > 0:
		p.state = Data
	}
}
