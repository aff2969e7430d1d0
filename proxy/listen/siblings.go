package listen

import (
	"bytes"
	"encoding/hex"
	"errors"
	"hash/maphash"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/handover"
)

// siblings are the processes that share a UDP address with this one. The kernel deals an address's packets out by where they come
// from, and deals anew whenever a process comes or goes, or a client moves; whose a packet is its connection id says:
//
//	client ──▶ kernel ──▶ any process ──with the mark of another──▶ its mailbox ──▶ its reader
//
// A mailbox is a Unix socket in the abstract name space, which is that of the network, named after address and mark. Both ends
// must be of one user, as the address demands too (socket(7), SO_REUSEPORT).
type siblings struct {
	prefix string // of mailboxes' names
	name   string // of ours
	seed   maphash.Seed
	box    *net.UnixListener
	all    sync.WaitGroup

	mu     sync.Mutex
	from   map[*net.UnixConn]struct{}
	to     map[[markLen]byte]*net.UnixConn
	asked  int // mailboxes in this second that nobody was found at
	second int64
	others []string // who takes clients that come while this process leaves; nil = it doesn't
	closed bool
}

// SharesUDP says whether processes can share a UDP address: the names of mailboxes are Linux's.
const SharesUDP = runtime.GOOS == "linux"

const (
	maxSiblings = 256
	maxAsked    = 500 // packets with the mark of nobody cost no more than this many looks a second
)

// openMailbox opens the mailbox of a mark; what comes there is put.
func openMailbox(address string, mark [markLen]byte, put func([]byte)) (*siblings, error) {
	s := &siblings{prefix: "@cellgate/quic/" + address + "/", seed: maphash.MakeSeed(), from: map[*net.UnixConn]struct{}{}, to: map[[markLen]byte]*net.UnixConn{}}
	s.name = s.prefix + hex.EncodeToString(mark[:])
	box, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: s.name, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	s.box = box
	s.all.Go(func() { s.serve(put) })
	return s, nil
}

// serve takes packets until the mailbox is closed.
func (s *siblings) serve(put func([]byte)) {
	for {
		c, err := s.box.AcceptUnix()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // no descriptor is free
			continue
		}
		if !s.enter(c) {
			c.Close()
			continue
		}
		s.all.Go(func() {
			defer s.leave(c)
			for buf := make([]byte, maxForwarded); ; {
				n, err := c.Read(buf)
				if err != nil || n == 0 {
					return
				}
				put(bytes.Clone(buf[:n]))
			}
		})
	}
}

func (s *siblings) enter(c *net.UnixConn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.from) == maxSiblings || !ofOurUser(c) {
		return false
	}
	s.from[c] = struct{}{}
	return true
}

func (s *siblings) leave(c *net.UnixConn) {
	c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.from, c)
}

func ofOurUser(c *net.UnixConn) (ours bool) {
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	err = raw.Control(func(fd uintptr) {
		_, uid, err := handover.Peer(int(fd))
		ours = err == nil && uid == os.Geteuid()
	})
	return err == nil && ours
}

// send gives a packet to whose mark it bears. It is false when that is nobody: then it is for us to deal with.
func (s *siblings) send(mark [markLen]byte, m *ipv4.Message) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if mark != ([markLen]byte{}) && s.give(mark, m) {
		return true
	}
	if len(s.others) == 0 || !begins(m) {
		return false
	}
	first := int(maphash.String(s.seed, m.Addr.String()) % uint64(len(s.others))) // all packets of a client go to one
	for i := range s.others {
		var to [markLen]byte
		if _, err := hex.Decode(to[:], []byte(s.others[(first+i)%len(s.others)])); err == nil && s.give(to, m) {
			return true
		}
	}
	return false
}

// begins says whether a packet may be of a connection that begins: it has a long head (RFC 9000, section 17.2).
func begins(m *ipv4.Message) bool { return m.N > 0 && m.Buffers[0][0]&0x80 != 0 }

// give writes to a mailbox.
func (s *siblings) give(mark [markLen]byte, m *ipv4.Message) bool {
	c := s.to[mark]
	if c == nil {
		if c = s.dial(mark); c == nil {
			return false
		}
	}
	if pass(c, m) {
		return true
	}
	c.Close()
	delete(s.to, mark)
	return false
}

func (s *siblings) dial(mark [markLen]byte) *net.UnixConn {
	if now := time.Now().Unix(); now != s.second {
		s.second, s.asked = now, 0
	}
	if s.closed || s.asked == maxAsked {
		return nil
	}
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: s.prefix + hex.EncodeToString(mark[:]), Net: "unixpacket"})
	if err != nil || !ofOurUser(c) {
		if s.asked++; c != nil {
			c.Close()
		}
		return nil
	}
	_ = c.SetWriteBuffer(passageSize)
	for k, old := range s.to { // of siblings that are no more, most likely
		if len(s.to) < maxSiblings {
			break
		}
		old.Close()
		delete(s.to, k)
	}
	s.to[mark] = c
	return c
}

// depart leaves the clients that come from now on to others. It is false when there are none.
func (s *siblings) depart() bool {
	b, err := os.ReadFile("/proc/net/unix") // all sockets of this network, a line each, with their names in the end
	if err != nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for line := range strings.Lines(string(b)) {
		if i := strings.Index(line, " "+s.prefix); i >= 0 {
			if name := strings.TrimSpace(line[i:]); name != s.name {
				s.others = append(s.others, strings.TrimPrefix(name, s.prefix))
			}
		}
	}
	slices.Sort(s.others)
	s.others = slices.Compact(s.others)
	return len(s.others) > 0
}

// close ends all of it.
func (s *siblings) close() {
	s.mu.Lock()
	s.closed = true
	s.box.Close()
	for c := range s.from {
		c.Close()
	}
	for _, c := range s.to {
		c.Close()
	}
	s.mu.Unlock()
	s.all.Wait()
}

// pass writes a packet to a Unix socket, or loses it if there is no room. It is false when nobody is there any more.
func pass(to *net.UnixConn, m *ipv4.Message) bool {
	at, ok := m.Addr.(*net.UDPAddr)
	if !ok {
		return false
	}
	raw, err := to.SyscallConn()
	if err == nil {
		var fault error
		err = raw.Write(func(fd uintptr) bool {
			_, fault = unix.Write(int(fd), forwarded(at, m))
			return true // it doesn't wait for room
		})
		err = errors.Join(err, fault)
	}
	return err == nil || errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOBUFS)
}
