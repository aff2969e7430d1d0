// Package listen binds a node's sockets, or takes them over from the process before it, and keeps its edge certificates.
package listen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/handover"
	"github.com/cellgate/cellgate/internal/sockclose"
)

// Sockets are the sockets that a process listens on. The zero value has none.
type Sockets struct {
	mu    sync.Mutex
	given []handover.Handed // by the process before, not yet asked for
	tcp   map[string][]*Socket
	udp   map[string]*UDP
}

// Given makes sockets of what the process before has handed over. They are used where the same is asked for.
func Given(all []handover.Handed) *Sockets { return &Sockets{given: all} }

// TCP listens on addr ("host:port", or ":port" for all addresses) for a purpose that has a name. shared uses SO_REUSEPORT, so
// that the processes of one cell stand behind one address; otherwise the address is this process's alone, and one that is
// taken is an error. n is the number of sockets among which the kernel shares connections out; those that were handed
// over stay as many as they are.
func (s *Sockets) TCP(ctx context.Context, name, addr string, shared bool, n int) (all []*Socket, err error) {
	key := "tcp " + name + " " + addr
	for _, h := range s.take(key) {
		one, err := adopt(h.FDs[0])
		if err != nil {
			return nil, fmt.Errorf("%s, handed over: %w", addr, err)
		}
		all = append(all, one)
	}
	if len(all) == 0 {
		if all, err = bind(ctx, addr, shared, n); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tcp == nil {
		s.tcp = map[string][]*Socket{}
	}
	s.tcp[key] = all
	return all, nil
}

// take gives what was handed over under a key.
func (s *Sockets) take(key string) (found []handover.Handed) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rest []handover.Handed
	for _, h := range s.given {
		if h.Name == key && len(h.FDs) > 0 {
			found = append(found, h)
		} else {
			rest = append(rest, h)
		}
	}
	s.given = rest
	return found
}

// Hand gives copies of all that is open, for a successor.
func (s *Sockets) Hand() (all []handover.Handed, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, sockets := range s.tcp {
		for _, one := range sockets {
			fd, err := one.copy()
			if err != nil {
				return all, err
			}
			all = append(all, handover.Handed{Name: key, FDs: []int{fd}})
		}
	}
	for key, u := range s.udp {
		fds, err := u.hand()
		if err != nil {
			return all, err
		}
		all = append(all, handover.Handed{Name: key, FDs: fds})
	}
	return all, nil
}

// Yield leaves the reading of datagrams to the successor, which sends on what belongs to connections of this process.
func (s *Sockets) Yield() { s.each(nil, (*UDP).yield) }

// Resume takes the reading up again.
func (s *Sockets) Resume() { s.each(nil, (*UDP).resume) }

// Left says that the successor serves: what this process closes stays open there.
func (s *Sockets) Left() {
	s.each(func(one *Socket) { one.elsewhere.Store(true) }, func(u *UDP) { u.left.Store(true) })
}

// Alone says that the process which handed sockets over leaves them.
func (s *Sockets) Alone() {
	s.each(func(one *Socket) { one.elsewhere.Store(false) }, func(*UDP) {})
}

// Settle closes what was handed over and isn't used: the successor's flags name it no more.
func (s *Sockets) Settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, h := range s.given {
		h.Close()
	}
	s.given = nil
}

func (s *Sockets) each(tcp func(*Socket), udp func(*UDP)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sockets := range s.tcp {
		for _, one := range sockets {
			if tcp != nil {
				tcp(one)
			}
		}
	}
	for _, u := range s.udp {
		udp(u)
	}
}

// Socket is a listening TCP socket: a net.Listener, and a descriptor for who has a poller of his own. Go's poller knows it
// from the first Accept on.
type Socket struct {
	addr      net.Addr
	elsewhere atomic.Bool // another process takes connections from it too

	mu     sync.Mutex
	fd     int // -1 = closed
	accept *net.TCPListener
}

// bind makes n sockets of one address.
func bind(ctx context.Context, addr string, shared bool, n int) (all []*Socket, err error) {
	defer func() {
		if err != nil {
			for _, one := range all {
				one.Close()
			}
		}
	}()
	for len(all) < max(n, 1) {
		one, err := bindOne(ctx, addr, shared)
		if err != nil {
			return all, err
		}
		all = append(all, one)
		if len(all) == 1 && n > 1 && !shared {
			// The address stays ours alone: another process's first socket there is still refused.
			if err := unix.SetsockoptInt(one.fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
				return all, fmt.Errorf("listen on %s: %w", addr, err)
			}
		}
		addr, shared = one.addr.String(), true // a port of 0 is a number now
	}
	return all, nil
}

func bindOne(ctx context.Context, addr string, shared bool) (*Socket, error) {
	cfg := net.ListenConfig{}
	cfg.SetMultipathTCP(false) // its sockets take no filter, which sockclose needs
	if shared {
		cfg.Control = reusePort
	}
	l, err := cfg.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: address in use", addr)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	defer l.Close() // its descriptor is with Go's poller
	fd, err := duplicate(l.(*net.TCPListener))
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return &Socket{addr: l.Addr(), fd: fd}, nil
}

func reusePort(_, _ string, c syscall.RawConn) error {
	var set error
	if err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); err != nil {
		return err
	}
	return set
}

// duplicate gives another descriptor of the same open socket.
func duplicate(of syscall.Conn) (fd int, err error) {
	raw, err := of.SyscallConn()
	if err != nil {
		return -1, err
	}
	var fault error
	if err := raw.Control(func(was uintptr) { fd, fault = unix.FcntlInt(was, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return -1, err
	}
	return fd, fault
}

// adopt makes a Socket of a descriptor that listens. The descriptor is the Socket's then, or closed.
func adopt(fd int) (*Socket, error) {
	s := &Socket{fd: fd}
	s.elsewhere.Store(true)
	l, err := s.listener()
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	s.addr = l.Addr()
	return s, l.Close()
}

// listener is one of Go's for the same socket.
func (s *Socket) listener() (*net.TCPListener, error) {
	fd, err := unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		l.Close()
		return nil, errors.New("not a TCP socket")
	}
	return tcp, nil
}

// copy gives another descriptor.
func (s *Socket) copy() (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return -1, net.ErrClosed
	}
	return unix.FcntlInt(uintptr(s.fd), unix.F_DUPFD_CLOEXEC, 0)
}

// FD is the descriptor, good until Close.
func (s *Socket) FD() int { return s.fd }

// Addr is where it listens.
func (s *Socket) Addr() net.Addr { return s.addr }

// Accept takes a connection.
func (s *Socket) Accept() (net.Conn, error) {
	s.mu.Lock()
	if s.fd < 0 {
		s.mu.Unlock()
		return nil, net.ErrClosed
	}
	if s.accept == nil {
		l, err := s.listener()
		if err != nil {
			s.mu.Unlock()
			return nil, err
		}
		s.accept = l
	}
	l := s.accept
	s.mu.Unlock()
	return l.Accept()
}

// Quiesce makes ready for Close, unless the socket stays open in another process; see package sockclose.
func (s *Socket) Quiesce() error {
	if s.elsewhere.Load() {
		return nil
	}
	return sockclose.QuiesceFD(s.fd)
}

// Close closes this process's end.
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return nil
	}
	if s.accept != nil {
		_ = s.accept.Close()
	}
	err := unix.Close(s.fd)
	s.fd = -1
	return err
}
