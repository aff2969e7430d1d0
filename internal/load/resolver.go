package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/dnsask"
)

// resolver asks the world's DNS for one host on behalf of one subnet and keeps the answer for its TTL, no longer.
type resolver struct {
	servers []string
	host    string
	subnet  netip.Prefix

	mu      sync.Mutex
	addrs   []netip.Addr
	expires time.Time
}

func (r *resolver) address(ctx context.Context) (netip.Addr, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Now().After(r.expires) {
		addrs, ttl, err := Lookup(ctx, r.servers, r.host, r.subnet)
		if err != nil {
			return netip.Addr{}, err
		}
		r.addrs, r.expires = addrs, time.Now().Add(ttl)
	}
	return r.addrs[rand.IntN(len(r.addrs))], nil
}

// Lookup asks the servers in turn, beginning with a random one, for the addresses of host.
func Lookup(ctx context.Context, servers []string, host string, subnet netip.Prefix) ([]netip.Addr, time.Duration, error) {
	var errs []error
	first := rand.IntN(len(servers))
	for i := range 2 * len(servers) { // each twice: UDP loses packets
		server := servers[(first+i)%len(servers)]
		addrs, ttl, err := ask(ctx, server, host, subnet)
		if err == nil {
			return addrs, ttl, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", server, err))
	}
	return nil, 0, errors.Join(errs...)
}

func ask(ctx context.Context, server, host string, subnet netip.Prefix) ([]netip.Addr, time.Duration, error) {
	addrs, ttl, err := dnsask.A(ctx, server, host, subnet)
	if err == nil && len(addrs) == 0 {
		err = fmt.Errorf("no address for %s", host)
	}
	return addrs, ttl, err
}
