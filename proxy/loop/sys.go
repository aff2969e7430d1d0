//go:build linux

package loop

import (
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// calls counts a loop's system calls. Written by: the loop.
type calls struct {
	reads, writes            uint64 // one socket each
	bundles, received, posts uint64 // those of many sockets, and how many sockets of either kind
	told                     uint64 // sleeps that Go's scheduler knew of
}

// The sockets never block, so reads and writes need not tell Go's scheduler about themselves. They are recvfrom(2) and sendto(2),
// which find a socket with less ado than read(2) and write(2) do a file.

func (l *loop) read(fd int32, b []byte) (int, syscall.Errno) {
	for {
		l.calls.reads++
		n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), 0, 0, 0)
		if e == 0 {
			return int(n), 0
		}
		if e != syscall.EINTR {
			return 0, e
		}
	}
}

func (l *loop) write(fd int32, b []byte) (int, syscall.Errno) {
	for {
		l.calls.writes++
		n, _, e := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), syscall.MSG_NOSIGNAL, 0, 0)
		if e == 0 {
			return int(n), 0
		}
		if e != syscall.EINTR {
			return 0, e
		}
	}
}

// write2 writes both in one call.
func (l *loop) write2(fd int32, a, b []byte) (int, syscall.Errno) {
	switch {
	case len(a) == 0:
		return l.write(fd, b)
	case len(b) == 0:
		return l.write(fd, a)
	}
	l.iov[0].Base, l.iov[1].Base = unsafe.SliceData(a), unsafe.SliceData(b)
	l.iov[0].SetLen(len(a))
	l.iov[1].SetLen(len(b))
	for {
		l.calls.writes++
		n, _, e := syscall.RawSyscall(syscall.SYS_WRITEV, uintptr(fd), uintptr(unsafe.Pointer(&l.iov[0])), 2)
		if e != syscall.EINTR {
			l.iov = [2]unix.Iovec{}
			if e != 0 {
				return 0, e
			}
			return int(n), 0
		}
	}
}

// poll waits for events, at most ms milliseconds, without telling Go's scheduler.
func (l *loop) poll(ms int) int {
	n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(l.ep), uintptr(unsafe.Pointer(&l.events[0])), maxEvents, uintptr(ms), 0, 0)
	if e != 0 {
		return 0 // EINTR: the caller comes again
	}
	return int(n)
}

// brief is how long after its last event a loop hides its sleep from Go's scheduler.
const brief = 20 * time.Millisecond

// sleep waits for events, at most ms milliseconds; -1 is for ever. It may end early. Only the sleep of a loop that has had no event
// for a while tells the scheduler, which would take the loop's processor away each time and have its monitor look every 20 µs for
// the next time: half of a node's CPU at a few hundred requests a second. When the scheduler wants the loop to stop, its signal
// ends the hidden sleep.
func (l *loop) sleep(ms int) int {
	l.busySince.Store(0)
	if left := brief - l.now.Sub(l.heard); left > 0 {
		short := int(left/time.Millisecond) + 1
		if 0 <= ms && ms < short {
			short = ms
		}
		return l.poll(short)
	}
	l.calls.told++
	n, _, e := syscall.Syscall6(syscall.SYS_EPOLL_PWAIT, uintptr(l.ep), uintptr(unsafe.Pointer(&l.events[0])), maxEvents, uintptr(ms), 0, 0)
	if e != 0 {
		return 0
	}
	return int(n)
}

// gone looks whether the peer has ended the connection and nothing of what it sent is left to be read.
func (l *loop) gone(fd int32) bool {
	var b [1]byte
	n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	return e == 0 && n == 0 || e != 0 && e != syscall.EAGAIN && e != syscall.EINTR
}

// hasData looks whether the peer has sent something, or has ended the connection.
func (l *loop) hasData(fd int32) bool {
	var b [1]byte
	_, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), 1, syscall.MSG_PEEK|syscall.MSG_DONTWAIT, 0, 0)
	return e != syscall.EAGAIN
}

const (
	readEvents = unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff
	allEvents  = readEvents | unix.EPOLLOUT
)

// watch puts a descriptor into the loop's set, or changes what is asked about it.
func (l *loop) watch(op int, fd int32, events uint32, slot, gen uint32) error {
	ev := unix.EpollEvent{Events: events, Fd: int32(slot), Pad: int32(gen)}
	return unix.EpollCtl(int(l.ep), op, int(fd), &ev)
}

// accept takes one connection from a listening socket, with its peer's address.
func accept(fd int32) (int32, netip.Addr, error) {
	nfd, sa, err := unix.Accept4(int(fd), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	if err != nil {
		return -1, netip.Addr{}, err
	}
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return int32(nfd), netip.AddrFrom4(a.Addr), nil
	case *unix.SockaddrInet6:
		return int32(nfd), netip.AddrFrom16(a.Addr).Unmap(), nil
	}
	return int32(nfd), netip.Addr{}, nil
}

// dial begins to connect. done says that the connection is there already.
func dial(at netip.AddrPort) (fd int32, done bool, err error) {
	family, sa := unix.AF_INET, unix.Sockaddr(nil)
	if a := at.Addr(); a.Is4() {
		sa = &unix.SockaddrInet4{Addr: a.As4(), Port: int(at.Port())}
	} else {
		family = unix.AF_INET6
		sa = &unix.SockaddrInet6{Addr: a.As16(), Port: int(at.Port())}
	}
	n, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, false, err
	}
	_ = unix.SetsockoptInt(n, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	_ = unix.SetsockoptInt(n, unix.SOL_SOCKET, unix.SO_KEEPALIVE, 1)
	switch err = unix.Connect(n, sa); err {
	case nil:
		return int32(n), true, nil
	case unix.EINPROGRESS, unix.EINTR:
		return int32(n), false, nil
	}
	unix.Close(n)
	return -1, false, err
}

// connected is the outcome of a connect.
func connected(fd int32) error {
	n, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
	if err == nil && n != 0 {
		err = syscall.Errno(n)
	}
	return err
}

// reset makes the close of a connection a reset.
func reset(fd int32) {
	_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}
