package globalrouter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// Server serves one table on UDP and TCP. Swap a table in before Run.
type Server struct {
	// Listen are the addresses; each is bound by itself, so that an answer leaves from the address that was asked.
	Listen []netip.AddrPort
	// Workers is the number of UDP sockets per address; zero means one per processor.
	Workers int
	Log     *slog.Logger

	table    atomic.Pointer[Table]
	accepted atomic.Uint64
	refused  atomic.Uint64
	mu       sync.Mutex
	workers  []*counters // guarded by mu
	tcp      *counters   // guarded by mu

	bound []binding
}

// binding is one bound address.
type binding struct {
	addr netip.AddrPort
	udp  []*net.UDPConn
	tcp  *net.TCPListener
}

// Swap makes the table the one to answer from.
func (s *Server) Swap(t *Table) { s.table.Store(t) }

// Table is the table that is answered from.
func (s *Server) Table() *Table { return s.table.Load() }

// Bind takes every address, or none: an address that any other process has, shared or not, is an error.
func (s *Server) Bind() error {
	if len(s.Listen) == 0 {
		return errors.New("no address to listen on")
	}
	for _, addr := range s.Listen {
		b, err := s.bind(addr)
		if err != nil {
			s.close()
			return err
		}
		s.bound = append(s.bound, b)
	}
	return nil
}

// Bound are the addresses with the ports that were given for port 0.
func (s *Server) Bound() []netip.AddrPort {
	var out []netip.AddrPort
	for _, b := range s.bound {
		out = append(out, b.addr)
	}
	return out
}

func (s *Server) bind(addr netip.AddrPort) (b binding, err error) {
	if !addr.IsValid() || addr.Addr().IsUnspecified() {
		return b, fmt.Errorf("listen %s: name each address: an answer must leave from the address that was asked", addr)
	}
	b.tcp, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(addr))
	if err != nil {
		return b, inUse(addr, "tcp", err)
	}
	b.addr = b.tcp.Addr().(*net.TCPAddr).AddrPort()
	probe, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(b.addr))
	if err != nil {
		b.tcp.Close()
		return b, inUse(b.addr, "udp", err)
	}
	probe.Close()
	workers := s.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	for range workers {
		lc := net.ListenConfig{Control: reusePort}
		c, err := lc.ListenPacket(context.Background(), "udp", b.addr.String())
		if err != nil {
			b.close()
			return b, inUse(b.addr, "udp", err)
		}
		b.udp = append(b.udp, c.(*net.UDPConn))
	}
	return b, nil
}

func inUse(addr netip.AddrPort, proto string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listen %s/%s: address in use", addr, proto)
	}
	return fmt.Errorf("listen %s/%s: %w", addr, proto, err)
}

const socketBuffer = 4 << 20

func reusePort(_, _ string, c syscall.RawConn) error {
	var err error
	if e := c.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		// The kernel cuts these to its limit; smaller buffers only lose more in a burst.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, socketBuffer)
	}); e != nil {
		return fmt.Errorf("socket options: %w", e)
	}
	return err
}

func (b *binding) close() {
	if b.tcp != nil {
		b.tcp.Close()
	}
	for _, c := range b.udp {
		c.Close()
	}
}

func (s *Server) close() {
	for i := range s.bound {
		s.bound[i].close()
	}
}

// Run serves until ctx ends. It binds first unless Bind was called.
func (s *Server) Run(ctx context.Context) error {
	if s.table.Load() == nil {
		return errors.New("globalrouter: no table to answer from")
	}
	if s.bound == nil {
		if err := s.Bind(); err != nil {
			return err
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		s.close()
		return nil
	})
	conns := &connections{from: map[netip.Addr]int{}}
	for i := range s.bound {
		for j, c := range s.bound[i].udp {
			w := s.worker()
			g.Go(func() error { return closed(ctx, s.serveUDP(c, w, uint64(i)<<32|uint64(j))) })
		}
		g.Go(func() error { return closed(ctx, s.serveTCP(ctx, s.bound[i].tcp, conns)) })
	}
	return g.Wait()
}

// closed drops the error that comes of closing the sockets at the end.
func closed(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *Server) worker() *counters {
	c := new(counters)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.workers = append(s.workers, c)
	return c
}
