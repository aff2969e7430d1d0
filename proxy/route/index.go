package route

import (
	"fmt"
	"hash/maphash"
	"math/bits"
	"strings"
)

// Verdict is what a look-up came to.
type Verdict uint8

// The verdicts.
const (
	Found Verdict = iota
	NotFound
	MethodNotAllowed
)

// Hit is the result of a look-up.
type Hit struct {
	Table  int32  // number of the table in the order given to NewIndex
	Route  uint32 // number of the route in that table
	Tenant int32  // number of the tenant that claims the host; -1 = none
	Missed uint32 // with MethodNotAllowed: for Allow
}

// Allow is the value of the Allow header with MethodNotAllowed.
func (h *Hit) Allow() string { return allow(h.Missed) }

// Index finds a host's table and tenant with one look-up, over all tables of a snapshot. It is immutable.
type Index struct {
	tables []*Table
	seed   maphash.Seed
	slots  []hostSlot // open addressing, at most two thirds full
	long   []string   // hosts longer than a slot holds
	any    hostSlot   // the routes of any host
	wild   bool       // some pattern is a wildcard
}

// hostSlot is one host in one cache line. A wildcard *.example.com is kept as ".example.com".
type hostSlot struct {
	used, routes bool
	size         uint8 // length of the host, or outside: then it is long[long]
	table        int32
	root         uint32
	tenant       int32
	long         uint32
	host         [hostInline]byte
}

const hostInline = 44

// NewIndex builds the directory of hosts. A host stands in one table only. tenants maps host patterns to tenant numbers.
func NewIndex(tables []*Table, tenants map[string]int32) (*Index, error) {
	n := len(tenants)
	for _, t := range tables {
		n += len(t.hosts)
	}
	x := &Index{tables: tables, seed: maphash.MakeSeed(), slots: make([]hostSlot, n+n/2+1), any: hostSlot{tenant: -1}}
	for i, t := range tables {
		for _, h := range t.hosts {
			s := x.slot(h.pattern)
			if s.routes {
				return nil, fmt.Errorf("host %q stands in two shards", h.pattern)
			}
			s.routes, s.table, s.root = true, int32(i), h.root
		}
	}
	for host, tenant := range tenants {
		x.slot(host).tenant = tenant
	}
	x.inheritTenants()
	return x, nil
}

// inheritTenants gives hosts that have routes of their own the tenant of the wildcard that covers them.
func (x *Index) inheritTenants() {
	for i := range x.slots {
		s := &x.slots[i]
		if !s.used || s.tenant >= 0 || x.text(s)[0] == '.' {
			continue
		}
		if w := x.wildcard(x.text(s)); w != nil {
			s.tenant = w.tenant
		}
	}
}

func key(pattern string) string {
	if strings.HasPrefix(pattern, "*.") {
		return pattern[1:]
	}
	return pattern
}

// slot finds or makes the slot of a host pattern.
func (x *Index) slot(pattern string) *hostSlot {
	if pattern == "" {
		return &x.any
	}
	host := key(pattern)
	x.wild = x.wild || host != pattern
	i := x.probe(host)
	s := &x.slots[i]
	if s.used {
		return s
	}
	*s = hostSlot{used: true, tenant: -1, size: outside}
	if len(host) <= hostInline {
		s.size = uint8(copy(s.host[:], host))
	} else {
		s.long = uint32(len(x.long))
		x.long = append(x.long, host)
	}
	return s
}

// probe gives the slot that holds the host or the empty one where it would stand.
func (x *Index) probe(host string) int {
	hi, _ := bits.Mul64(maphash.String(x.seed, host), uint64(len(x.slots)))
	for i := int(hi); ; {
		s := &x.slots[i]
		if !s.used || x.is(s, host) {
			return i
		}
		if i++; i == len(x.slots) {
			i = 0
		}
	}
}

func (x *Index) is(s *hostSlot, host string) bool {
	if s.size == outside {
		return x.long[s.long] == host
	}
	return string(s.host[:s.size]) == host
}

func (x *Index) text(s *hostSlot) string {
	if s.size == outside {
		return x.long[s.long]
	}
	return string(s.host[:s.size])
}

func (x *Index) exact(host string) *hostSlot {
	if host == "" || host[0] == '.' {
		return nil
	}
	if s := &x.slots[x.probe(host)]; s.used {
		return s
	}
	return nil
}

func (x *Index) wildcard(host string) *hostSlot {
	dot := strings.IndexByte(host, '.')
	if !x.wild || dot <= 0 {
		return nil
	}
	if s := &x.slots[x.probe(host[dot:])]; s.used {
		return s
	}
	return nil
}

// Lookup finds the route of a request. It does not allocate.
func (x *Index) Lookup(req *Request, hit *Hit) Verdict { return x.look(req, hit, nil) }

// Explain is Lookup with every route that was considered told to trace, in order; hit.Table says of which table.
func (x *Index) Explain(req *Request, hit *Hit, trace func(table int32, s Step)) Verdict {
	return x.look(req, hit, trace)
}

func (x *Index) look(req *Request, hit *Hit, trace func(int32, Step)) Verdict {
	*hit = Hit{Tenant: -1}
	method := methodBit(req.Method)
	if s := x.exact(req.Host); s != nil {
		hit.Tenant = s.tenant
		if x.in(s, req, method, hit, trace) {
			return Found
		}
	}
	if s := x.wildcard(req.Host); s != nil {
		if hit.Tenant < 0 {
			hit.Tenant = s.tenant
		}
		if x.in(s, req, method, hit, trace) {
			return Found
		}
	}
	if x.in(&x.any, req, method, hit, trace) {
		return Found
	}
	if hit.Missed != 0 {
		return MethodNotAllowed
	}
	return NotFound
}

func (x *Index) in(s *hostSlot, req *Request, method uint32, hit *Hit, trace func(int32, Step)) bool {
	if !s.routes || req.Path == "" {
		return false
	}
	w := walk{t: x.tables[s.table], req: req, method: method}
	if trace != nil {
		w.trace = func(step Step) { trace(s.table, step) }
	}
	route, ok := w.find(s.root)
	hit.Missed |= w.missed
	hit.Table, hit.Route = s.table, route
	return ok
}

// Bytes is the memory that index and tables hold.
func (x *Index) Bytes() int {
	n := len(x.slots) * 64
	for _, t := range x.tables {
		n += t.Bytes()
	}
	return n
}
