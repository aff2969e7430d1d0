// Package dns follows the endpoints of an upstream in the DNS: the addresses of a name with a port, or the SRV records of a
// service, for as long as their TTL says.
//
//	r := dns.New(dns.Options{Log: log})              // asks the servers of /etc/resolv.conf
//	r.Follow(ctx, "orders.internal:8080", found)     // found is called with every complete set that differs
//	r.Follow(ctx, "_orders._tcp.internal", found)
package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/miekg/dns"

	"github.com/cellgate/cellgate/snapshot"
)

// Bounds of what is followed.
const (
	maxEndpoints = 500
	leastTTL     = time.Second
	mostTTL      = 5 * time.Minute
	timeout      = 2 * time.Second // of one server
	mostRetry    = 30 * time.Second
	// hold is how long "there is none" has to be the answer before it is believed.
	hold = 30 * time.Second
)

// Options are what a resolver is made of.
type Options struct {
	// Servers are asked in turn, host:port; nil = those of /etc/resolv.conf.
	Servers []string
	Log     *slog.Logger // nil = none

	floor, hold time.Duration // of tests; 0 = leastTTL, which failures are also first asked again after, and hold
}

// Resolver follows names.
type Resolver struct {
	opts Options
}

// New makes a resolver.
func New(o Options) *Resolver {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.floor == 0 {
		o.floor = leastTTL
	}
	if o.hold == 0 {
		o.hold = hold
	}
	return &Resolver{o}
}

// errNone says that the answer is whole and there is no record in it.
var errNone = errors.New("dns: there is no such record")

// Follow calls found with every complete set of endpoints that differs from the one before, until ctx ends. As long as servers
// fail it calls nobody: an error is no empty set.
func (r *Resolver) Follow(ctx context.Context, name string, found func([]snapshot.Endpoint)) {
	var last []snapshot.Endpoint
	var noneSince time.Time
	told, failing, wait := false, false, r.opts.floor
	for ctx.Err() == nil {
		all, ttl, err := r.look(ctx, name)
		now := time.Now()
		if !errors.Is(err, errNone) {
			noneSince = time.Time{}
		} else if noneSince.IsZero() {
			noneSince = now
		}
		if errors.Is(err, errNone) && now.Sub(noneSince) >= r.opts.hold {
			all, ttl, err = nil, r.opts.floor, nil
		}
		if err == nil && (!told || !slices.Equal(all, last)) {
			last, told = all, true
			found(r.used(name, all))
		}
		if bad := err != nil; bad != failing && ctx.Err() == nil {
			failing = bad
			r.opts.Log.Warn("endpoints of an upstream in the DNS", "name", name, "failing", bad, "error", err)
		}
		if err == nil {
			wait = r.opts.floor
		} else {
			ttl = min(wait, r.opts.hold)
			wait = min(2*wait, mostRetry)
		}
		pause(ctx, ttl-ttl/10+rand.N(ttl/5+1))
	}
}

func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}

// look asks once.
func (r *Resolver) look(ctx context.Context, name string) ([]snapshot.Endpoint, time.Duration, error) {
	var all []snapshot.Endpoint
	var ttl time.Duration
	var err error
	if strings.HasPrefix(name, "_") {
		all, ttl, err = r.service(ctx, name)
	} else {
		host, port, split := net.SplitHostPort(name)
		if split != nil {
			return nil, 0, split
		}
		var found []netip.Addr
		found, ttl, err = r.addresses(ctx, host)
		for _, a := range found {
			all = append(all, snapshot.Endpoint{Address: net.JoinHostPort(a.String(), port)})
		}
	}
	if err != nil {
		return nil, 0, err
	}
	slices.SortFunc(all, func(a, b snapshot.Endpoint) int { return strings.Compare(a.Address, b.Address) })
	return slices.Compact(all), min(mostTTL, max(r.opts.floor, ttl)), nil
}

// used are the endpoints of a set that are followed.
func (r *Resolver) used(name string, all []snapshot.Endpoint) []snapshot.Endpoint {
	if len(all) > maxEndpoints {
		r.opts.Log.Warn("a name has too many endpoints; the rest is passed over", "name", name, "endpoints", len(all), "used", maxEndpoints)
		all = all[:maxEndpoints]
	}
	return slices.Clone(all)
}

// service reads SRV records (RFC 2782): those of the lowest priority, whose weights balancing doesn't need.
func (r *Resolver) service(ctx context.Context, name string) (all []snapshot.Endpoint, ttl time.Duration, err error) {
	res, err := r.ask(ctx, name, dns.TypeSRV)
	if err != nil {
		return nil, 0, err
	}
	var best []*dns.SRV
	ttl = mostTTL
	for _, rr := range res.Answer {
		srv, ok := rr.(*dns.SRV)
		if !ok || srv.Port == 0 || srv.Target == "." {
			continue
		}
		if len(best) > 0 && srv.Priority < best[0].Priority {
			best = best[:0]
		}
		if len(best) == 0 || srv.Priority == best[0].Priority {
			best = append(best, srv)
		}
		ttl = min(ttl, seconds(rr))
	}
	if len(best) == 0 {
		return nil, 0, errNone
	}
	for _, srv := range best[:min(len(best), maxEndpoints)] {
		found, more, err := r.addresses(ctx, srv.Target)
		if errors.Is(err, errNone) {
			continue
		}
		if err != nil {
			return nil, 0, err // a part is no complete set
		}
		ttl = min(ttl, more)
		for _, a := range found {
			all = append(all, snapshot.Endpoint{Address: net.JoinHostPort(a.String(), strconv.Itoa(int(srv.Port)))})
		}
	}
	if len(all) == 0 {
		return nil, 0, errNone
	}
	return all, ttl, nil
}

// addresses are all of a name's, of both families.
func (r *Resolver) addresses(ctx context.Context, host string) (all []netip.Addr, ttl time.Duration, err error) {
	ttl = mostTTL
	if name := "." + strings.ToLower(strings.TrimSuffix(host, ".")); strings.HasSuffix(name, ".localhost") { // RFC 6761, section 6.3: nobody is asked
		return []netip.Addr{netip.AddrFrom4([4]byte{127, 0, 0, 1})}, ttl, nil
	}
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		res, err := r.ask(ctx, host, kind)
		if errors.Is(err, errNone) {
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		for _, rr := range res.Answer {
			var ip net.IP
			switch rr := rr.(type) {
			case *dns.A:
				ip = rr.A
			case *dns.AAAA:
				ip = rr.AAAA
			}
			if a, ok := netip.AddrFromSlice(ip); ok {
				all = append(all, a.Unmap())
			}
			ttl = min(ttl, seconds(rr))
		}
	}
	if len(all) == 0 {
		return nil, 0, errNone
	}
	return all, ttl, nil
}

func seconds(rr dns.RR) time.Duration { return time.Duration(rr.Header().Ttl) * time.Second }

// ask asks the servers in turn until one answers: over UDP, and over TCP when the answer was cut.
func (r *Resolver) ask(ctx context.Context, name string, kind uint16) (*dns.Msg, error) {
	servers := r.opts.Servers
	if servers == nil {
		cfg, err := dns.ClientConfigFromFile("/etc/resolv.conf")
		if err != nil {
			return nil, fmt.Errorf("dns: %w", err)
		}
		for _, s := range cfg.Servers {
			servers = append(servers, net.JoinHostPort(s, cfg.Port))
		}
	}
	q := new(dns.Msg)
	q.SetQuestion(dns.Fqdn(name), kind)
	q.SetEdns0(1232, false)
	var faults []error
	for _, s := range servers {
		res, err := exchange(ctx, q, s)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			faults = append(faults, fmt.Errorf("dns: %s: %w", s, err))
		case res.Rcode == dns.RcodeNameError, res.Rcode == dns.RcodeSuccess && len(res.Answer) == 0:
			return nil, errNone
		case res.Rcode != dns.RcodeSuccess:
			faults = append(faults, fmt.Errorf("dns: %s: %s", s, dns.RcodeToString[res.Rcode]))
		default:
			return res, nil
		}
	}
	return nil, errors.Join(append(faults, fmt.Errorf("dns: no server has answered for %s", name))...)
}

func exchange(ctx context.Context, q *dns.Msg, server string) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	res, _, err := (&dns.Client{UDPSize: 1232}).ExchangeContext(ctx, q, server)
	if err == nil && res.Truncated {
		res, _, err = (&dns.Client{Net: "tcp"}).ExchangeContext(ctx, q, server)
	}
	switch {
	case err == nil && !answers(res, q):
		return nil, errors.New("an answer to another question")
	case err != nil && errors.Is(err, os.ErrDeadlineExceeded):
		return nil, context.DeadlineExceeded
	}
	return res, err
}

// answers says whether res belongs to q (RFC 5452, section 9.1): the client compares no more than the number. A server that couldn't
// read the question may leave it out, in an error.
func answers(res, q *dns.Msg) bool {
	if len(res.Question) == 0 {
		return res.Rcode != dns.RcodeSuccess && res.Rcode != dns.RcodeNameError
	}
	asked, of := q.Question[0], res.Question[0]
	return strings.EqualFold(of.Name, asked.Name) && of.Qtype == asked.Qtype && of.Qclass == asked.Qclass
}
