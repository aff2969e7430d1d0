package globalrouter

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/cellgate/cellgate/globalrouter/answer"
)

const (
	// maxConnections bounds the TCP connections of a server; what comes beyond is closed at once.
	maxConnections = 1024
	// maxFromSource bounds those of one source, so that none can take them all.
	maxFromSource = 64
	// idleTimeout is how long a connection may be silent (RFC 7766 section 6.2.3: a few seconds), and how long one write may take.
	idleTimeout = 10 * time.Second
	maxMessage  = 65535
)

// message is room for one query and its answer, with the length prefix.
type message [2 + maxMessage]byte

var messages = sync.Pool{New: func() any { return new(message) }}

// serveTCP accepts until the listener closes, and returns when its connections have ended.
func (s *Server) serveTCP(ctx context.Context, l *net.TCPListener, conns *connections) error {
	var open sync.WaitGroup
	defer open.Wait()
	for {
		c, err := l.AcceptTCP()
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("accept: %w", err)
		}
		if err != nil { // out of descriptors: try again when some are free
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(50 * time.Millisecond):
			}
			continue
		}
		source := c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		if !conns.enter(source) {
			s.refused.Add(1)
			c.Close()
			continue
		}
		s.accepted.Add(1)
		open.Go(func() {
			defer conns.leave(source)
			s.connection(ctx, c, source)
		})
	}
}

// connections counts open connections, all together and by source.
type connections struct {
	mu   sync.Mutex
	all  int
	from map[netip.Addr]int
}

// enter is false at the bound of the server or of the source. Loopback sources have none of their own.
func (c *connections) enter(source netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.all >= maxConnections || c.from[source] >= maxFromSource && !source.IsLoopback() {
		return false
	}
	c.all++
	c.from[source]++
	return true
}

func (c *connections) leave(source netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all--
	if c.from[source]--; c.from[source] == 0 {
		delete(c.from, source)
	}
}

// connection answers one connection's queries in order until it is silent, broken, or ctx ends.
func (s *Server) connection(ctx context.Context, c *net.TCPConn, source netip.Addr) {
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	var scratch answer.Scratch
	scratch.Seed(uint64(time.Now().UnixNano()))
	for ctx.Err() == nil {
		c.SetReadDeadline(time.Now().Add(idleTimeout))
		var head [2]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		if !s.exchange(c, int(binary.BigEndian.Uint16(head[:])), source, &scratch) {
			return
		}
	}
}

func (s *Server) exchange(c *net.TCPConn, n int, source netip.Addr, scratch *answer.Scratch) bool {
	m := messages.Get().(*message)
	defer messages.Put(m)
	if _, err := io.ReadFull(c, m[2:2+n]); err != nil {
		return false
	}
	out, slow := s.table.Load().Answer(scratch, m[2:], n, source, maxMessage)
	s.countTCP(out, slow)
	if out == nil {
		return false
	}
	binary.BigEndian.PutUint16(m[:], uint16(len(out)))
	if slow {
		copy(m[2:], out)
	}
	c.SetWriteDeadline(time.Now().Add(idleTimeout))
	_, err := c.Write(m[:2+len(out)])
	return err == nil
}
