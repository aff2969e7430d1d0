package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"
)

// nameTTL is how long an answer is used before it is asked for again. The system's resolver does not tell the TTL;
// this is the floor that a TTL would get.
const nameTTL = 10 * time.Second

// place is where an endpoint lives: a literal address, or a name that is resolved when a connection is needed.
type place struct {
	host string
	port uint16
	addr netip.Addr // valid for literals

	mu     sync.Mutex
	known  []netip.Addr
	asked  time.Time
	asking bool
	next   int
}

func parsePlace(hostport string) (*place, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, fmt.Errorf("upstream: endpoint %q: %w", hostport, err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return nil, fmt.Errorf("upstream: endpoint %q: port %q is not 1 to 65535", hostport, port)
	}
	p := &place{host: host, port: uint16(n)}
	if a, err := netip.ParseAddr(host); err == nil {
		p.addr = a
	}
	return p, nil
}

var errNoAddress = errors.New("upstream: the name has no address")

// address is the next address to connect to. Answers older than nameTTL are refreshed by one caller; the others go on
// with what is known, and so does everyone when the resolver fails: an error is not an empty set.
func (p *place) address(ctx context.Context, lookup lookupFunc, now time.Time) (netip.AddrPort, error) {
	if p.addr.IsValid() {
		return netip.AddrPortFrom(p.addr, p.port), nil
	}
	p.mu.Lock()
	if now.Sub(p.asked) >= nameTTL && (!p.asking || len(p.known) == 0) {
		p.asking = true
		p.mu.Unlock()
		found, err := lookup(ctx, "ip", p.host)
		p.mu.Lock()
		p.asking = false
		if err == nil && len(found) > 0 {
			p.known, p.asked = found, now
		} else if len(p.known) > 0 {
			p.asked = now.Add(-nameTTL / 2)
		}
	}
	defer p.mu.Unlock()
	if len(p.known) == 0 {
		return netip.AddrPort{}, errNoAddress
	}
	p.next++
	return netip.AddrPortFrom(p.known[p.next%len(p.known)].Unmap(), p.port), nil
}

type lookupFunc func(ctx context.Context, network, host string) ([]netip.Addr, error)
