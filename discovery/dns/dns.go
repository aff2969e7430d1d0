// Package dns follows the endpoints of an upstream in the DNS: the addresses of a name with a port, or the SRV records of a
// service, for as long as their TTL says.
//
//	r := dns.New(dns.Options{Log: log})              // asks the servers of /etc/resolv.conf
//	r.Follow(ctx, "orders.internal:8080", found)     // found is called with every complete set that differs
//	r.Follow(ctx, "_orders._tcp.internal", found)
package dns

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
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
	mostRetry    = 10 * time.Second
	// hold is how long "there is none" has to be the answer before it is believed.
	hold = 30 * time.Second
	// mostSilent questions of one type in a row that no server answers are asked in one look; the others of it would wait as long.
	mostSilent = 2
	mostFaults = 3 // that are told of one look
	// mostRecords of one look are enough: whoever answers with more, target after target, fills no memory.
	mostRecords = 8192
)

// Options are what a resolver is made of.
type Options struct {
	// Servers are asked in turn, host:port, first the one that answered last; nil = those of /etc/resolv.conf.
	Servers []string
	Log     *slog.Logger // nil = none

	floor, hold, timeout time.Duration // of tests; 0 = leastTTL, which failures are also first asked again after, and the constants
}

// Resolver follows names.
type Resolver struct {
	opts Options
	good atomic.Pointer[string] // the server that has answered last; nil = none
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
	if o.timeout == 0 {
		o.timeout = timeout
	}
	return &Resolver{opts: o}
}

// errNone says that the answer is whole and there is no record in it.
var errNone = errors.New("dns: there is no such record")

// Follow calls found with every complete set of endpoints that differs from the one before, until ctx ends. An error is no empty
// set: what a question says that fails is what it has said last. One that has never had an answer says nothing, and the others count
// without it: a name has its IPv4 addresses where nobody can say whether it has others.
func (r *Resolver) Follow(ctx context.Context, name string, found func([]snapshot.Endpoint)) {
	var last []snapshot.Endpoint
	var noneSince time.Time
	told, failing, wait := false, false, r.opts.floor
	f := follower{in: r, name: name}
	for ctx.Err() == nil {
		all, ttl, err := f.look(ctx)
		if ctx.Err() != nil {
			return
		}
		now, none := time.Now(), err == nil && len(all) == 0
		if none && noneSince.IsZero() {
			noneSince, wait = now, r.opts.floor
		} else if !none {
			noneSince = time.Time{}
		}
		believed := len(all) > 0 || none && now.Sub(noneSince) >= r.opts.hold
		if believed && (!told || !slices.Equal(all, last)) {
			last, told = all, true
			found(r.used(name, all))
		}
		if none {
			err = errNone
		}
		if bad := err != nil; bad != failing {
			failing = bad
			r.opts.Log.Warn("endpoints of an upstream in the DNS", "name", name, "failing", bad, "error", err)
		}
		switch {
		case err == nil:
			wait = r.opts.floor
		case believed && none:
			ttl, wait = r.opts.floor, r.opts.floor
		default:
			ttl = min(ttl, wait, r.opts.hold)
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

// used are the endpoints of a set that are followed.
func (r *Resolver) used(name string, all []snapshot.Endpoint) []snapshot.Endpoint {
	if len(all) > maxEndpoints {
		r.opts.Log.Warn("a name has too many endpoints; the rest is passed over", "name", name, "endpoints", len(all), "used", maxEndpoints)
		all = all[:maxEndpoints]
	}
	return slices.Clone(all)
}

// follower follows one name.
type follower struct {
	in   *Resolver
	name string
	said map[question]answer // what its questions have said last

	// Of the look under way.
	asked  map[question]answer
	silent map[uint16]int // questions of that type in a row that nobody has answered
	ttl    time.Duration  // the shortest of its answers
	held   int            // records of its answers
	faults []error
}

// look asks once. With an error some questions have failed, and what they said last stands for them; without one and without
// endpoints there are none.
func (f *follower) look(ctx context.Context) (all []snapshot.Endpoint, ttl time.Duration, err error) {
	f.asked, f.silent, f.ttl, f.held, f.faults = map[question]answer{}, map[uint16]int{}, mostTTL, 0, nil
	if strings.HasPrefix(f.name, "_") {
		all = f.service(ctx, f.name)
	} else {
		host, port, err := net.SplitHostPort(f.name)
		if err != nil {
			return nil, mostTTL, err
		}
		all = f.addresses(ctx, host, port, nil)
	}
	f.said = f.asked
	slices.SortFunc(all, func(a, b snapshot.Endpoint) int { return strings.Compare(a.Address, b.Address) })
	return slices.Compact(all), max(f.in.opts.floor, f.ttl), errors.Join(f.faults...)
}

// service reads SRV records (RFC 2782): those of the lowest priority, whose weights balancing doesn't need.
func (f *follower) service(ctx context.Context, name string) (all []snapshot.Endpoint) {
	var best []*dns.SRV
	for _, rr := range f.ask(ctx, name, dns.TypeSRV) {
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
	}
	slices.SortFunc(best, func(a, b *dns.SRV) int { // servers turn them round
		return cmp.Or(strings.Compare(a.Target, b.Target), int(a.Port)-int(b.Port))
	})
	for _, srv := range best[:min(len(best), maxEndpoints)] {
		if len(all) >= mostRecords {
			break // many ports of many addresses
		}
		all = f.addresses(ctx, srv.Target, strconv.Itoa(int(srv.Port)), all)
	}
	return all
}

// addresses appends all of a name's, of both families.
func (f *follower) addresses(ctx context.Context, host, port string, all []snapshot.Endpoint) []snapshot.Endpoint {
	add := func(ip net.IP) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			all = append(all, snapshot.Endpoint{Address: net.JoinHostPort(a.Unmap().String(), port)})
		}
	}
	if name := "." + strings.ToLower(strings.TrimSuffix(host, ".")); strings.HasSuffix(name, ".localhost") { // RFC 6761, section 6.3: nobody is asked
		add(net.IPv4(127, 0, 0, 1))
		return all
	}
	for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA} {
		for _, rr := range f.ask(ctx, host, kind) {
			switch rr := rr.(type) {
			case *dns.A:
				add(rr.A)
			case *dns.AAAA:
				add(rr.AAAA)
			}
		}
	}
	return all
}

// ask gives the records that a question says, by the answer of now or, when there is none, the last one.
func (f *follower) ask(ctx context.Context, name string, kind uint16) []dns.RR {
	q := question{strings.ToLower(dns.Fqdn(name)), kind}
	if a, twice := f.asked[q]; twice {
		return a.records
	}
	if f.held >= mostRecords {
		return nil
	}
	a, err := answer{}, errSilent
	if f.silent[kind] < mostSilent {
		a, err = f.in.ask(ctx, q)
	}
	if errors.Is(err, errSilent) {
		f.silent[kind]++
	} else {
		f.silent[kind] = 0
	}
	if err == nil {
		f.ttl = min(f.ttl, a.ttl)
	} else {
		a = f.said[q]
		if len(f.faults) < mostFaults {
			f.faults = append(f.faults, fmt.Errorf("dns: %s %s: %w", q.name, dns.TypeToString[kind], err))
		}
	}
	f.asked[q], f.held = a, f.held+len(a.records)
	return a.records
}
