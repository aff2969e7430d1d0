package listen

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// The connection ids of this process are its mark, random for each process, and as much again that is random for each id
// (RFC 9000, section 5.1). Two processes that read one socket, one after the other, tell by the mark whose a packet is.
const (
	markLen = 4
	idLen   = 12
)

// UDP is a socket for QUIC. It is one end of a passage while a successor reads the socket and this process still has
// connections, or while this process has read since its predecessor did:
//
//	socket ──▶ successor ──passage, packets with the mark of the predecessor──▶ predecessor
//	   ◀──────────┴─────────────────────── both write ────────────────────────────┘
//
// A packet for which there is no room in the passage is lost, as packets are. Where siblings share the address, they send this
// process's packets as well.
type UDP struct {
	*net.UDPConn
	batch    *ipv4.PacketConn
	mark     [markLen]byte
	left     atomic.Bool
	siblings *siblings // nil = the address is this process's alone

	mu     sync.Mutex
	strays [][]byte // that siblings have sent; while there are some, reads end at once
	ends   bool     // reads are to end anyway

	away atomic.Bool // a successor reads
	from atomic.Pointer[net.UnixConn]

	before [markLen]byte // mark of the predecessor
	to     atomic.Pointer[net.UnixConn]
}

// UDP binds addr for datagrams, or uses what was handed over for the same; shared as for TCP.
func (s *Sockets) UDP(ctx context.Context, name, addr string, shared bool) (u *UDP, err error) {
	key := "udp " + name + " " + addr
	if given := s.take(key); len(given) > 0 && len(given[0].FDs) == 2 {
		u, err = inherit(given[0].FDs[0], given[0].FDs[1])
	} else {
		u, err = bindUDP(ctx, addr, shared)
	}
	if err == nil && shared {
		err = u.share()
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s (UDP): %w", addr, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.udp == nil {
		s.udp = map[string]*UDP{}
	}
	s.udp[key] = u
	return u, nil
}

func bindUDP(ctx context.Context, addr string, shared bool) (*UDP, error) {
	var cfg net.ListenConfig
	if shared {
		cfg.Control = reusePort
	}
	c, err := cfg.ListenPacket(ctx, "udp", addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, errors.New("address in use")
	}
	if err != nil {
		return nil, err
	}
	return newUDP(c.(*net.UDPConn)), nil
}

func newUDP(c *net.UDPConn) *UDP {
	u := &UDP{UDPConn: c, batch: ipv4.NewPacketConn(c)} // for IPv6 as well
	_, _ = rand.Read(u.mark[:])
	return u
}

// share opens the mailbox, under another mark where a sibling has this one. On an error the socket is closed.
func (u *UDP) share() (err error) {
	for range 3 {
		if u.siblings, err = openMailbox(u.LocalAddr().String(), u.mark, u.put); err == nil {
			return nil
		}
		_, _ = rand.Read(u.mark[:])
	}
	u.Close()
	return fmt.Errorf("mailbox: %w", err)
}

// inherit makes a UDP of the predecessor's socket and an end of the passage to it, whose first message is its mark. The
// descriptors are used up.
func inherit(socket, passage int) (*UDP, error) {
	f := os.NewFile(uintptr(socket), "")
	defer f.Close()
	to, err := unixConn(passage)
	if err != nil {
		return nil, err
	}
	c, err := net.FilePacketConn(f)
	if err != nil {
		to.Close()
		return nil, err
	}
	udp, ok := c.(*net.UDPConn)
	if !ok {
		c.Close()
		to.Close()
		return nil, errors.New("not a UDP socket")
	}
	u := newUDP(udp)
	if n, err := to.Read(u.before[:]); n != markLen { // it lies there
		u.Close()
		to.Close()
		return nil, fmt.Errorf("no mark: %w", err)
	}
	for u.mark == u.before {
		_, _ = rand.Read(u.mark[:])
	}
	u.to.Store(to)
	return u, nil
}

func unixConn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "")
	defer f.Close()
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		c.Close()
		return nil, errors.New("not a Unix socket")
	}
	return u, nil
}

// passageSize is the room for packets on their way to another process, as much of it as the system allows.
const passageSize = 1 << 20

// hand gives copies for a successor: of the socket, and of the other end of a new passage.
func (u *UDP) hand() ([]int, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		return nil, err
	}
	for _, fd := range pair {
		unix.CloseOnExec(fd)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, passageSize)
	}
	from, err := unixConn(pair[0])
	if err == nil {
		_, err = from.Write(u.mark[:])
	}
	fd := -1
	if err == nil {
		fd, err = duplicate(u.UDPConn)
	}
	if err != nil {
		unix.Close(pair[1])
		return nil, err
	}
	if last := u.from.Swap(from); last != nil {
		last.Close() // of a takeover that failed
	}
	return []int{fd, pair[1]}, nil
}

// yield and resume make the reader look where its packets come from now.
func (u *UDP) yield() {
	u.away.Store(true)
	_ = u.UDPConn.SetReadDeadline(time.Unix(1, 0))
}

func (u *UDP) resume() {
	_ = u.UDPConn.SetReadDeadline(time.Time{})
	u.away.Store(false)
	_ = u.from.Load().SetReadDeadline(time.Unix(1, 0))
}

// ReadBatch reads packets for quic-go.
func (u *UDP) ReadBatch(ms []ipv4.Message, flags int) (n int, err error) {
	for {
		if n := u.stray(ms); n > 0 {
			return n, nil
		}
		away := u.away.Load()
		if away {
			n, err = u.receive(ms)
			if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
				u.resume() // the successor is no more
				continue
			}
		} else if n, err = u.batch.ReadBatch(ms, flags); n > 0 {
			n = u.keep(ms[:n])
		}
		moved := errors.Is(err, os.ErrDeadlineExceeded) && (u.away.Load() != away || u.haunted())
		if !moved && (n > 0 || err != nil) {
			return n, err
		}
	}
}

// keep sends on what is another process's, and moves the rest to the front.
func (u *UDP) keep(ms []ipv4.Message) (kept int) {
	if u.to.Load() == nil && u.siblings == nil {
		return len(ms)
	}
	for i := range ms {
		m := &ms[i]
		if u.elsewhere(m) {
			continue
		}
		if k := &ms[kept]; k != m {
			k.N, k.NN, k.Addr, k.Flags = copy(k.Buffers[0], m.Buffers[0][:m.N]), copy(k.OOB, m.OOB[:m.NN]), m.Addr, m.Flags
		}
		kept++
	}
	return kept
}

// elsewhere sends a packet on to the process that it is for, if that is another.
func (u *UDP) elsewhere(m *ipv4.Message) bool {
	mark := markOf(m.Buffers[0][:m.N])
	if mark == u.mark {
		return false
	}
	if to := u.to.Load(); to != nil && mark == u.before {
		if pass(to, m) {
			return true
		}
		if u.to.CompareAndSwap(to, nil) {
			to.Close()
		}
	}
	return u.siblings != nil && u.siblings.send(mark, m)
}

// markOf is the mark in the destination's connection id, zero if there is no room for one (RFC 9000, section 17).
func markOf(p []byte) (m [markLen]byte) {
	const long = 0x80
	switch {
	case len(p) > 0 && p[0]&long == 0:
		p = p[1:]
	case len(p) > 5 && p[5] == idLen:
		p = p[6:]
	default:
		return m
	}
	if len(p) >= idLen {
		copy(m[:], p)
	}
	return m
}

// maxForwarded is the size of the largest packet with what goes before it.
const maxForwarded = 4 << 10

// forwarded is a packet as processes send it to each other: where it came from and what the kernel said of it, each after its
// length, then itself.
func forwarded(at *net.UDPAddr, m *ipv4.Message) []byte {
	addr, _ := at.AddrPort().MarshalBinary()
	b := make([]byte, 0, 4+len(addr)+m.NN+m.N)
	for _, part := range [][]byte{addr, m.OOB[:m.NN]} {
		b = append(binary.BigEndian.AppendUint16(b, uint16(len(part))), part...)
	}
	return append(b, m.Buffers[0][:m.N]...)
}

// unfold makes a message of such a packet. It is false for one that is not of another process's making.
func unfold(b []byte, m *ipv4.Message) bool {
	addr, b, ok := cut(b)
	oob, b, fine := cut(b)
	var at netip.AddrPort
	if !ok || !fine || at.UnmarshalBinary(addr) != nil {
		return false
	}
	m.N, m.NN, m.Flags, m.Addr = copy(m.Buffers[0], b), copy(m.OOB, oob), 0, net.UDPAddrFromAddrPort(at)
	return true
}

// receive reads a packet that the successor has sent on.
func (u *UDP) receive(ms []ipv4.Message) (int, error) {
	var buf [maxForwarded]byte
	n, err := u.from.Load().Read(buf[:])
	if err != nil || !unfold(buf[:n], &ms[0]) {
		return 0, err
	}
	return 1, nil
}

// maxStrays is how many packets of siblings wait for the reader. More are lost.
const maxStrays = 1024

// put keeps a packet that a sibling has sent, and makes the reader look.
func (u *UDP) put(b []byte) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.strays) == maxStrays {
		return
	}
	if u.strays = append(u.strays, b); len(u.strays) == 1 {
		u.wake(time.Unix(1, 0))
	}
}

func (u *UDP) haunted() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return len(u.strays) > 0
}

// stray takes what siblings have sent.
func (u *UDP) stray(ms []ipv4.Message) (n int) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.strays) == 0 {
		return 0
	}
	used := 0
	for ; n < len(ms) && used < len(u.strays); used++ {
		if unfold(u.strays[used], &ms[n]) {
			n++
		}
	}
	if u.strays = slices.Delete(u.strays, 0, used); len(u.strays) == 0 && !u.ends {
		u.wake(time.Time{})
	}
	return n
}

// wake sets when reads end, from wherever. u.mu is held.
func (u *UDP) wake(t time.Time) error {
	if from := u.from.Load(); from != nil {
		_ = from.SetReadDeadline(t)
	}
	return u.UDPConn.SetReadDeadline(t)
}

// cut takes what stands behind its length off.
func cut(b []byte) (part, rest []byte, ok bool) {
	if len(b) < 2 {
		return nil, nil, false
	}
	n := int(binary.BigEndian.Uint16(b))
	if b = b[2:]; len(b) < n {
		return nil, nil, false
	}
	return b[:n], b[n:], true
}

// GenerateConnectionID gives an id with this process's mark.
func (u *UDP) GenerateConnectionID() (quic.ConnectionID, error) {
	var id [idLen]byte
	copy(id[:], u.mark[:])
	_, _ = rand.Read(id[markLen:])
	return quic.ConnectionIDFromBytes(id[:]), nil
}

// ConnectionIDLen is the length of its ids.
func (u *UDP) ConnectionIDLen() int { return idLen }

// Left says whether another process takes the connections to come.
func (u *UDP) Left() bool { return u.left.Load() }

// Leave leaves clients to come to siblings, if there are any.
func (u *UDP) Leave() {
	if u.siblings != nil && u.siblings.depart() {
		u.left.Store(true)
	}
}

// SetReadDeadline ends a read under way.
func (u *UDP) SetReadDeadline(t time.Time) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.ends = !t.IsZero()
	return u.wake(t)
}

// Close closes this process's end.
func (u *UDP) Close() error {
	if u.siblings != nil {
		u.siblings.close()
	}
	for _, passage := range []*net.UnixConn{u.from.Load(), u.to.Load()} {
		if passage != nil {
			passage.Close()
		}
	}
	return u.UDPConn.Close()
}
