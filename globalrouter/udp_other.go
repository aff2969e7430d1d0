//go:build !linux

package globalrouter

import (
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/cellgate/cellgate/globalrouter/answer"
)

// serveUDP is the portable loop: one packet at a time.
func (s *Server) serveUDP(c *net.UDPConn, w *counters, seed uint64) error {
	var scratch answer.Scratch
	scratch.Seed(uint64(time.Now().UnixNano()) ^ seed)
	b := make([]byte, 4096)
	for {
		n, from, err := c.ReadFromUDPAddrPort(b)
		if errors.Is(err, net.ErrClosed) {
			return fmt.Errorf("udp: %w", err)
		}
		if err != nil {
			continue
		}
		out, slow := s.table.Load().Answer(&scratch, b, n, from.Addr().Unmap(), 0)
		w.count(out, slow)
		if out != nil {
			_, _ = c.WriteToUDPAddrPort(out, from)
		}
	}
}
