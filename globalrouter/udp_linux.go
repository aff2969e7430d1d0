package globalrouter

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/globalrouter/answer"
)

const (
	batch = 32
	// bufferSize holds any query that is answered and any UDP answer.
	bufferSize = 4096
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
}

// udp is one socket's loop: one goroutine owns all of it. The kernel holds pointers into these arrays only during a call.
type udp struct {
	server  *Server
	count   *counters
	scratch answer.Scratch
	in, out [batch]mmsghdr
	inIO    [batch]unix.Iovec
	outIO   [batch]unix.Iovec
	names   [batch]unix.RawSockaddrInet6 // large enough for IPv4 too
	buffers [batch][bufferSize]byte
}

// serveUDP answers until the socket is closed: one recvmmsg, all answers, one sendmmsg.
func (s *Server) serveUDP(c *net.UDPConn, w *counters, seed uint64) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return fmt.Errorf("udp: %w", err)
	}
	u := &udp{server: s, count: w}
	u.scratch.Seed(uint64(time.Now().UnixNano()) ^ seed)
	for i := range batch {
		u.inIO[i].Base = &u.buffers[i][0]
		u.inIO[i].SetLen(bufferSize)
		h := &u.in[i].hdr
		h.Name, h.Namelen = (*byte)(unsafe.Pointer(&u.names[i])), unix.SizeofSockaddrInet6
		h.Iov = &u.inIO[i]
		h.SetIovlen(1)
		u.out[i].hdr.Iov = &u.outIO[i]
		u.out[i].hdr.SetIovlen(1)
	}
	for {
		n := 0
		err := raw.Read(func(fd uintptr) bool {
			n = u.receive(fd)
			return n >= 0
		})
		if err != nil {
			return fmt.Errorf("udp: %w", err)
		}
		if out := u.answer(n); out > 0 {
			if err := raw.Control(func(fd uintptr) { u.send(fd, out) }); err != nil {
				return fmt.Errorf("udp: %w", err)
			}
		}
	}
}

// receive takes what is there without blocking; -1 means wait.
func (u *udp) receive(fd uintptr) int {
	for {
		n, _, e := syscall.RawSyscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&u.in)), batch, unix.MSG_DONTWAIT, 0, 0)
		switch e {
		case 0:
			return int(n)
		case unix.EAGAIN:
			return -1
		case unix.EINTR:
		default: // an error of an earlier answer (ECONNREFUSED and its like): nothing was read
			return 0
		}
	}
}

// answer fills the out messages and says how many there are. The table is loaded once per batch.
func (u *udp) answer(n int) int {
	table, k := u.server.table.Load(), 0
	for i := range n {
		m, b := &u.in[i], &u.buffers[i]
		source, namelen := u.source(i)
		m.hdr.Namelen = unix.SizeofSockaddrInet6
		if m.hdr.Flags&unix.MSG_TRUNC != 0 || !source.IsValid() || source.Port() == 0 {
			u.count.count(nil, false)
			continue
		}
		out, slow := table.Answer(&u.scratch, b[:], int(m.n), source.Addr(), 0)
		u.count.count(out, slow)
		if out == nil {
			continue
		}
		u.outIO[k].Base = &out[0]
		u.outIO[k].SetLen(len(out))
		u.out[k].hdr.Name, u.out[k].hdr.Namelen = (*byte)(unsafe.Pointer(&u.names[i])), namelen
		k++
	}
	return k
}

// source is the sender and the size of its socket address.
func (u *udp) source(i int) (netip.AddrPort, uint32) {
	switch u.names[i].Family {
	case unix.AF_INET:
		a := (*unix.RawSockaddrInet4)(unsafe.Pointer(&u.names[i]))
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), port(&a.Port)), unix.SizeofSockaddrInet4
	case unix.AF_INET6:
		return netip.AddrPortFrom(netip.AddrFrom16(u.names[i].Addr).Unmap(), port(&u.names[i].Port)), unix.SizeofSockaddrInet6
	default:
		return netip.AddrPort{}, 0
	}
}

func port(p *uint16) uint16 { return binary.BigEndian.Uint16((*[2]byte)(unsafe.Pointer(p))[:]) }

// send gives the answers to the kernel; one that it does not take at once is dropped, as the network might.
func (u *udp) send(fd uintptr, n int) {
	for sent := 0; sent < n; {
		k, _, e := syscall.RawSyscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&u.out[sent])), uintptr(n-sent), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case e == unix.EINTR:
		case e != 0:
			sent++
			bump(&u.count.dropped)
		default:
			sent += int(k)
		}
	}
}
