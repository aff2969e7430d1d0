package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/durable"
)

// place is where an endpoint lives: a literal address, or a name.
type place struct {
	host string
	port uint16
	addr netip.Addr // valid for literals
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

// address is the next address to connect to.
func (p *place) address(ctx context.Context, names *names, now time.Time) (netip.AddrPort, error) {
	if p.addr.IsValid() {
		return netip.AddrPortFrom(p.addr, p.port), nil
	}
	a, err := names.address(ctx, p.host, now)
	return netip.AddrPortFrom(a, p.port), err
}

const (
	// nameTTL is how long an answer is used before it is asked for again. The system's resolver does not tell the TTL;
	// this is the floor that a TTL would get.
	nameTTL     = 10 * time.Second
	nameTimeout = 5 * time.Second // of one look-up
	// maxNames are remembered; the one that was wanted longest ago makes room.
	maxNames     = 4096
	maxAddresses = 64 // of one name
)

var errNoAddress = errors.New("upstream: the name has no address")

type lookupFunc func(ctx context.Context, network, host string) ([]netip.Addr, error)

// names is what the names of endpoints resolve to. Look-ups run beside the exchanges, one a name at a time; only a name that
// has never been resolved is waited for. When the resolver fails or says nothing, what is known stays: an error is no empty
// set. The file keeps it over restarts, so that a node starts while all DNS is dead.
type names struct {
	lookup lookupFunc
	file   string // empty = nothing is kept
	log    *slog.Logger

	mu      sync.Mutex
	known   map[string]*name
	changed bool // since the last save
	failing bool // to save
}

type name struct {
	addrs  []netip.Addr
	asked  time.Time
	asking chan struct{} // closed when the look-up under way has ended; nil = none is
	wanted time.Time
	next   int
}

func newNames(opts Options) *names {
	n := &names{lookup: opts.Lookup, file: opts.NamesFile, log: opts.Log, known: map[string]*name{}}
	if n.lookup == nil {
		n.lookup = net.DefaultResolver.LookupNetIP
	}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.load()
	return n
}

// address is the next address of the host.
func (n *names) address(ctx context.Context, host string, now time.Time) (netip.Addr, error) {
	n.mu.Lock()
	one := n.open(host, now)
	if one.asking == nil && now.Sub(one.asked) >= nameTTL {
		one.asking = make(chan struct{})
		go n.resolve(host, one, now)
	}
	if asking := one.asking; len(one.addrs) == 0 && asking != nil {
		n.mu.Unlock()
		select {
		case <-asking:
		case <-ctx.Done():
			return netip.Addr{}, ctx.Err()
		}
		n.mu.Lock()
	}
	defer n.mu.Unlock()
	if len(one.addrs) == 0 {
		return netip.Addr{}, errNoAddress
	}
	one.next++
	return one.addrs[one.next%len(one.addrs)], nil
}

// open finds or makes the host's place; the caller holds n.mu.
func (n *names) open(host string, now time.Time) *name {
	one := n.known[host]
	if one == nil {
		if len(n.known) >= maxNames {
			n.evict()
		}
		one = &name{}
		n.known[host] = one
	}
	one.wanted = now
	return one
}

func (n *names) evict() {
	var oldest string
	for host, one := range n.known {
		if oldest == "" || one.wanted.Before(n.known[oldest].wanted) {
			oldest = host
		}
	}
	delete(n.known, oldest)
}

func (n *names) resolve(host string, one *name, now time.Time) {
	ctx, cancel := context.WithTimeout(context.Background(), nameTimeout)
	defer cancel()
	found, err := n.lookup(ctx, "ip", host)
	n.mu.Lock()
	defer n.mu.Unlock()
	close(one.asking)
	one.asking = nil
	if err == nil && len(found) > 0 {
		one.addrs, one.asked = nil, now
		for _, a := range found[:min(len(found), maxAddresses)] {
			one.addrs = append(one.addrs, a.Unmap())
		}
		n.changed = true
		return
	}
	if len(one.addrs) > 0 {
		one.asked = now.Add(-nameTTL / 2)
	}
}

// kept is the form of the file.
type kept struct {
	Form  int                     `json:"form"`
	Names map[string][]netip.Addr `json:"names"`
}

const keptForm = 1

// load takes what the file knows. Whatever is wrong with it counts as nothing known and is logged.
func (n *names) load() {
	if n.file == "" {
		return
	}
	raw, err := durable.Read(n.file)
	if os.IsNotExist(err) {
		return
	}
	var k kept
	if err == nil {
		err = json.Unmarshal(raw, &k)
	}
	if err == nil && k.Form != keptForm {
		err = fmt.Errorf("form %d", k.Form)
	}
	if err != nil {
		n.log.Warn("stored addresses of upstreams not usable", "file", n.file, "error", err)
		return
	}
	for host, addrs := range k.Names {
		if len(n.known) < maxNames && len(addrs) > 0 {
			n.known[host] = &name{addrs: addrs[:min(len(addrs), maxAddresses)]}
		}
	}
}

// save writes the file if something has changed.
func (n *names) save() {
	if n.file == "" {
		return
	}
	n.mu.Lock()
	k := kept{Form: keptForm, Names: make(map[string][]netip.Addr, len(n.known))}
	for host, one := range n.known {
		if len(one.addrs) > 0 {
			k.Names[host] = one.addrs
		}
	}
	changed := n.changed
	n.changed = false
	n.mu.Unlock()
	if !changed {
		return
	}
	raw, err := json.Marshal(k)
	if err == nil {
		err = durable.Write(n.file, raw)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.changed = n.changed || err != nil
	if failing := err != nil; failing != n.failing {
		n.failing = failing
		n.log.Warn("addresses of upstreams", "not_stored", failing, "error", err)
	}
}
