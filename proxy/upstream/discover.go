package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/snapshot"
)

// Finder knows where the endpoints of discovered upstreams are.
type Finder interface {
	// Follow calls found with every complete set of endpoints that discovery tells of, until ctx ends. Of what it can't find
	// out it says nothing: an error is no empty set. An empty set is believed.
	Follow(ctx context.Context, d snapshot.Discovery, found func([]snapshot.Endpoint))
}

// maxFound are the numbers of a discovered upstream's endpoints, those that have left lately included. What is found beyond is
// passed over.
const maxFound = 512

// discovery is what goes on beside the exchanges for an upstream whose endpoints are not in its document.
type discovery struct {
	of      snapshot.Discovery
	stop    context.CancelFunc
	done    sync.WaitGroup
	first   chan struct{} // closed once endpoints are known
	heard   atomic.Int64  // unix nanoseconds
	refused atomic.Uint64 // addresses that may not be dialled

	mu      sync.Mutex
	last    []snapshot.Endpoint
	changed bool // since it was last stored
	over    int  // how many of last were passed over for want of a number
}

// follow begins to ask the finder, until end.
func (p *Pool) follow() {
	d := p.discovery
	ctx, stop := context.WithCancel(context.Background())
	d.stop = stop
	d.done.Go(func() {
		p.opts.Finder.Follow(ctx, d.of, func(all []snapshot.Endpoint) {
			p.found(all)
			d.heard.Store(time.Now().UnixNano())
		})
	})
}

func (d *discovery) end() {
	if d != nil && d.stop != nil {
		d.stop()
		d.done.Wait()
	}
}

// found takes in a set of endpoints. Addresses that may not be dialled are left out, and named (I1).
func (p *Pool) found(all []snapshot.Endpoint) {
	p.discovery.mu.Lock()
	defer p.discovery.mu.Unlock()
	p.have(all, time.Now())
}

// retry takes in what was passed over, once others have left for long: discovery tells of a set only once.
func (p *Pool) retry(now time.Time) {
	if d := p.discovery; d != nil {
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.over > 0 {
			p.have(d.last, now)
		}
	}
}

// have is called with the discovery's lock.
func (p *Pool) have(all []snapshot.Endpoint, now time.Time) {
	d := p.discovery
	over := d.over
	d.over = 0
	in, refused := make(map[int]bool, len(all)), []string(nil)
	for _, e := range all {
		at, err := netip.ParseAddrPort(e.Address)
		if err != nil || !p.opts.Allow.Permits(at.Addr()) {
			refused = append(refused, e.Address)
			continue
		}
		if n := p.number(e, now); n >= 0 {
			in[n] = true
		} else {
			d.over++
		}
	}
	if n := len(refused); n > 0 {
		d.refused.Add(uint64(n))
		p.opts.log().Warn("endpoints of an upstream may not be dialled", "upstream", p.ID, "endpoints", len(all), "refused", n, "such_as", refused[:min(n, 20)])
		if n == len(all) { // a resolver that blocks a name, or somebody who lies: no word of where it is
			d.over = over
			return
		}
	}
	if d.over > over {
		p.opts.log().Warn("an upstream has had too many endpoints lately; some are passed over", "upstream", p.ID, "endpoints", d.over, "most", maxFound)
	}
	p.Set.Have(func(i int) bool { return in[i] }, now)
	d.changed = d.changed || !slices.Equal(d.last, all)
	d.last = slices.Clone(all)
	select {
	case <-d.first:
	default:
		close(d.first)
	}
	if p.probes != nil {
		p.probes.cover(p.Set.Len())
	}
	p.dismiss(in)
}

// number is that of an endpoint: the one it had, a new one, or the one of an endpoint that left long ago. It is called with the
// discovery's lock. A place is written before its number is known to anybody.
func (p *Pool) number(e snapshot.Endpoint, now time.Time) int {
	n := p.Set.Len()
	for i := range n {
		if p.names[i] == e.Address && p.where[i] == e.Locality {
			return i
		}
	}
	at, err := parsePlace(e.Address)
	if err != nil {
		return -1
	}
	if host, _, err := net.SplitHostPort(p.discovery.of.DNS); err == nil {
		at.host = host // whom TLS has to meet there
	}
	put := func(i int) { p.names[i], p.where[i], p.places[i] = e.Address, e.Locality, at }
	if n == maxFound {
		return p.Set.Replace(p.member(e), time.Minute+idleTimeout, now, p.unused, put)
	}
	put(n)
	return p.Set.Grow(p.member(e), now)
}

// unused says that no connection to an endpoint lies idle. Those of owners outside of the pool are closed after idleTimeout.
func (p *Pool) unused(i int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.idle[i]) == 0 && (p.lines == nil || len(p.lines[i]) == 0)
}

// dismiss closes the idle connections to endpoints that have left.
func (p *Pool) dismiss(in map[int]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.idle {
		if in[i] {
			continue
		}
		for c := p.pop(i); c != nil; c = p.pop(i) {
			p.open--
			c.Conn.Close()
		}
	}
}

// awaitFound gives discovery a moment with the pools that know nothing yet.
func awaitFound(pools map[string]*Pool) {
	end := time.NewTimer(firstFound)
	defer end.Stop()
	for _, p := range pools {
		if p.discovery == nil {
			continue
		}
		select {
		case <-p.discovery.first:
		case <-end.C:
			return
		}
	}
}

const firstFound = 500 * time.Millisecond

// endpoints is the form of the file that keeps what discovery told last, so that a node starts while it is dead.
type endpoints struct {
	Form  int                            `json:"form"`
	Found map[string][]snapshot.Endpoint `json:"found"` // by the upstream's id and its discovery
}

const endpointsForm = 1

func keyOf(id string, d snapshot.Discovery) string {
	return id + " consul:" + d.Consul + " dns:" + d.DNS
}

// remember reads the file. Whatever is wrong with it counts as nothing known and is logged.
func (r *Registry) remember() {
	r.told = map[string][]snapshot.Endpoint{}
	if r.opts.EndpointsFile == "" {
		return
	}
	raw, err := durable.Read(r.opts.EndpointsFile)
	if os.IsNotExist(err) {
		return
	}
	var e endpoints
	if err == nil {
		err = json.Unmarshal(raw, &e)
	}
	if err == nil && e.Form != endpointsForm {
		err = fmt.Errorf("form %d", e.Form)
	}
	if err != nil {
		r.opts.log().Warn("stored endpoints of upstreams not usable", "file", r.opts.EndpointsFile, "error", err)
		return
	}
	for key, all := range e.Found {
		r.told[key] = all[:min(len(all), maxFound)]
	}
}

// keep writes what has changed. It is called with the registry's lock.
func (r *Registry) keep() {
	changed := false
	for _, p := range r.pools {
		if d := p.discovery; d != nil {
			d.mu.Lock()
			if d.changed {
				r.told[keyOf(p.ID, d.of)] = d.last
				changed, d.changed = true, false
			}
			d.mu.Unlock()
		}
	}
	if !changed || r.opts.EndpointsFile == "" {
		return
	}
	live := endpoints{endpointsForm, map[string][]snapshot.Endpoint{}}
	for _, p := range r.pools {
		if d := p.discovery; d != nil {
			live.Found[keyOf(p.ID, d.of)] = r.told[keyOf(p.ID, d.of)]
		}
	}
	r.told = live.Found
	raw, err := json.Marshal(live)
	if err == nil {
		err = durable.Write(r.opts.EndpointsFile, raw)
	}
	if err != nil {
		r.opts.log().Warn("endpoints of upstreams are not stored", "error", err)
	}
}
