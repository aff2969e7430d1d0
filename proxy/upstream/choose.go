package upstream

import (
	"net/netip"
	"strings"
	"unsafe"

	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/shed"
	"github.com/cellgate/cellgate/snapshot"
)

// Hashed is what the balancing of an upstream goes by, besides load.
type Hashed struct {
	On   Source
	Name string // of the header, in lower case, or cookie
}

// Source is where a key comes from.
type Source uint8

// The sources.
const (
	ByNothing Source = iota
	ByClient
	ByConsumer
	ByHeader
	ByCookie
)

func hashed(u snapshot.Upstream) Hashed {
	kind, name, _ := strings.Cut(u.Hash.On, ":")
	switch {
	case u.Balance != "hash":
		return Hashed{}
	case kind == snapshot.HashClient:
		return Hashed{On: ByClient}
	case kind == snapshot.HashConsumer:
		return Hashed{On: ByConsumer}
	case kind+":" == snapshot.HashCookie:
		return Hashed{ByCookie, name}
	}
	return Hashed{ByHeader, name}
}

func method(balanceBy string) balance.Method {
	switch balanceBy {
	case "p2c_peak":
		return balance.P2CPeak
	case "round_robin":
		return balance.RoundRobin
	case "least_requests":
		return balance.LeastRequests
	case "hash":
		return balance.Hash
	}
	return balance.P2C
}

// spec is how a pool of so many connections chooses. Each endpoint is good for its part of them.
func spec(u snapshot.Upstream, most int) balance.Spec {
	o := u.Outlier.OrDefault()
	s := balance.Spec{Method: method(u.Balance), Bound: u.Hash.Bound, SlowStart: u.SlowStart, Places: most,
		Outlier: balance.Outlier{Off: o.Off, Consecutive: o.Consecutive, Rate: o.Rate, Calls: o.Calls, For: o.For, Most: o.Most}}
	switch s.SlowStart {
	case 0:
		s.SlowStart = snapshot.DefaultSlowStart
	case snapshot.Never:
		s.SlowStart = 0
	}
	return s
}

// members are the endpoints of the document as balancing sees them from here. A slice is the endpoints of one zone.
func (p *Pool) members() []balance.Member {
	all := make([]balance.Member, len(p.names))
	for i, name := range p.names {
		all[i] = p.member(snapshot.Endpoint{Address: name, Locality: p.where[i]})
	}
	return all
}

func (p *Pool) member(e snapshot.Endpoint) balance.Member {
	return balance.Member{ID: balance.KeyOf([]byte(e.Address)), Tier: tier(e.Locality, p.opts.Here), Slice: p.slice(e.Locality)}
}

// tier is how far a place is: the zone, the region, elsewhere. What says nothing of itself counts as near, and so does
// everything where the node doesn't know where it is.
func tier(at, here snapshot.Locality) int {
	switch {
	case at.Region != "" && here.Region != "" && at.Region != here.Region:
		return 2
	case at.Zone != "" && here.Zone != "" && at.Zone != here.Zone:
		return 1
	}
	return 0
}

// StandsIn says whether a connection to other will do for an exchange that waits for one to endpoint: not when a key leads it
// there, nor from another zone, which may own no writes or have an open breaker, nor when other has left the set.
func (p *Pool) StandsIn(other, endpoint int) bool {
	return other == endpoint || p.hashed.On == ByNothing && p.where[other] == p.where[endpoint] && p.Set.In(other)
}

// Hashed says what the balancing of the upstream goes by.
func (p *Pool) Hashed() Hashed { return p.hashed }

// limitRule is how many exchanges may be under way in a pool with so many places, those in its queue included.
func limitRule(c snapshot.Concurrency, places int) shed.Rule {
	r := shed.Rule{Most: c.Most, Adaptive: c.Adaptive, Least: c.Least}
	if r.Most == 0 {
		r.Most = places
	}
	if r.Adaptive && r.Least == 0 {
		r.Least = min(snapshot.DefaultLeast, r.Most)
	}
	return r
}

// Key is the number of what the balancing goes by in a request of this client and verified caller; 0 = it has none of it, and may
// go anywhere.
func (h Hashed) Key(client netip.Addr, caller string, head *http1.Head) uint64 {
	var of []byte
	switch h.On {
	case ByClient:
		all := client.As16()
		return balance.KeyOf(all[:])
	case ByConsumer:
		of = unsafe.Slice(unsafe.StringData(caller), len(caller))
	case ByHeader:
		of, _ = head.Find(h.Name)
	case ByCookie:
		of = head.Cookie(h.Name)
	}
	if len(of) == 0 {
		return 0
	}
	return balance.KeyOf(of)
}
