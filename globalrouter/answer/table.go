// Package answer is the DNS fast path: a query's bytes in, the answer's bytes out, without allocation.
// What is not a plain question for an address it leaves to the slow path, which must say the same where both can speak.
package answer

import (
	"encoding/binary"
	"net/netip"

	"github.com/cellgate/cellgate/globalrouter/locate"
	"github.com/cellgate/cellgate/globalrouter/steer"
)

// Record types and response codes of the wire (RFC 1035, 3596, 6891).
const (
	typeA, typeSOA, typeAAAA, typeOPT = 1, 6, 28, 41
	rcodeFormErr, rcodeNXDomain       = 1, 3
)

// MaxNegativeTTL bounds negative answers of a zone with steered names, in seconds: a name that starts to exist is soon found.
const MaxNegativeTTL = 20

// Zone is what the fast path knows of a zone's static records. Names are in wire form, lower case.
type Zone struct {
	Origin string
	SOA    []byte // rdata, uncompressed
	// NegativeTTL is min(SOA TTL, SOA minimum) in seconds (RFC 2308 section 5).
	NegativeTTL uint32
	// Nodes are all names that exist, empty non-terminals included.
	Nodes map[string]Node
	// Deep: the zone has wildcards or delegations, so that a name without a node is left to the slow path.
	Deep bool
}

// Node is the addresses of one name. Slow nodes (aliases, delegations) are left to the slow path.
type Node struct {
	A, AAAA Addresses
	Slow    bool
}

// Addresses is one RRset.
type Addresses struct {
	TTL   uint32
	Addrs []netip.Addr
}

// Table answers from one zone and one plan. It is immutable and safe for any number of readers.
type Table struct {
	origin string
	soa    []byte // the SOA record behind its owner: type, class, TTL, length, rdata
	nodes  map[string]*node
	deep   bool
	// blind: there should be a plan but there is none, so that nothing may be denied.
	blind bool

	plan   *steer.Plan
	locate *locate.Table
	cells  []pair // by index of plan.Cells
	even   []bool // [set·localities + locality]: all slots of the row name one cell
}

// node is a name's packed answers; set is the steered set, or -1.
type node struct {
	pair
	set  int
	slow bool
}

type pair struct{ a, aaaa section }

// section is an answer section packed behind a question: its owners point at offset 12.
type section struct {
	n    uint16
	wire []byte
}

// New compiles the table. Without a plan all names are static; blind says that a plan is missing.
// The plan must be valid and the localities of l must be indices of its localities.
func New(z Zone, plan *steer.Plan, l *locate.Table, blind bool) *Table {
	t := &Table{origin: z.Origin, deep: z.Deep, blind: blind && plan == nil, plan: plan, locate: l, nodes: make(map[string]*node, len(z.Nodes))}
	negative := z.NegativeTTL
	if plan != nil || blind {
		negative = min(negative, MaxNegativeTTL)
	}
	t.soa = record(nil, typeSOA, negative, z.SOA)
	for name, n := range z.Nodes {
		t.nodes[name] = &node{pair: pair{pack(n.A.Addrs, n.A.TTL, true), pack(n.AAAA.Addrs, n.AAAA.TTL, false)}, set: -1, slow: n.Slow}
	}
	if plan != nil {
		t.steer()
	}
	return t
}

func (t *Table) steer() {
	if t.locate == nil {
		t.locate = new(locate.Table)
	}
	for _, c := range t.plan.Cells {
		t.cells = append(t.cells, pair{pack(c.Addresses, t.plan.TTL, true), pack(c.Addresses, t.plan.TTL, false)})
	}
	for _, rows := range t.plan.Rows {
		for _, row := range rows {
			t.even = append(t.even, uniform(row))
		}
	}
	for name, set := range t.plan.Names {
		wire, ok := Wire(name)
		if !ok || !within(wire, t.origin) {
			continue
		}
		t.nodes[wire] = &node{set: set}
		for up := parent(wire); len(up) > len(t.origin); up = parent(up) {
			if t.nodes[up] == nil {
				t.nodes[up] = &node{set: -1}
			}
		}
	}
}

// Reroute is the same table with other rows of the same sets and localities, made without looking at anything else.
func (t *Table) Reroute(rows [][]steer.Row) *Table {
	next, plan := *t, *t.plan
	plan.Rows = rows
	next.plan, next.even = &plan, make([]bool, 0, len(t.even))
	for _, set := range rows {
		for _, row := range set {
			next.even = append(next.even, uniform(row))
		}
	}
	return &next
}

func uniform(row steer.Row) bool {
	for _, c := range row {
		if c != row[0] {
			return false
		}
	}
	return true
}

func record(b []byte, rtype uint16, ttl uint32, rdata []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, rtype)
	b = binary.BigEndian.AppendUint16(b, 1)
	b = binary.BigEndian.AppendUint32(b, ttl)
	b = binary.BigEndian.AppendUint16(b, uint16(len(rdata)))
	return append(b, rdata...)
}

// maxAddresses bounds one RRset: what is more could not be sent even over TCP.
const maxAddresses = 2048

func pack(addrs []netip.Addr, ttl uint32, four bool) (s section) {
	rtype := uint16(typeAAAA)
	if four {
		rtype = typeA
	}
	for _, a := range addrs {
		if a.Is4() == four && s.n < maxAddresses {
			s.wire = record(append(s.wire, 0xc0, 12), rtype, ttl, a.AsSlice())
			s.n++
		}
	}
	return s
}

// Wire turns a plain name ("api.gw.test", with or without the final dot) into wire form; ok is false when it is no name.
// Escapes are not known: a plan's names are host names.
func Wire(name string) (wire string, ok bool) {
	if n := len(name); n > 0 && name[n-1] == '.' {
		name = name[:n-1]
	}
	out := make([]byte, 1, len(name)+2)
	start := 0
	for i := 0; i <= len(name); i++ {
		if i < len(name) && name[i] != '.' {
			out = append(out, lower[name[i]])
			continue
		}
		l := len(out) - start - 1
		if len(name) > 0 && (l < 1 || l > 63) {
			return "", false
		}
		out[start] = byte(l)
		if l > 0 {
			start = len(out)
			out = append(out, 0)
		}
	}
	return string(out), len(out) <= 255
}

// parent cuts the first label off; the root is its own parent.
func parent(wire string) string {
	if wire[0] == 0 {
		return wire
	}
	return wire[1+int(wire[0]):]
}

// within says whether the name is the origin or below it.
func within(name, origin string) bool {
	for len(name) > len(origin) {
		name = parent(name)
	}
	return name == origin
}

// Steered is what a client is told about a steered name, and why.
type Steered struct {
	Set      string
	Locality string
	Slot     int
	Cell     steer.Cell
	TTL      uint32
	Scope    uint8 // the prefix length that the answer is good for
	Spread   bool  // asked without ECS from nowhere known: the slot is one of a sequence, not a hash
}

// Explain is the answer for one client as values: ok is false when the name is not steered.
// With ecs, the client is an ECS address; without, it is the address that the query comes from.
func (t *Table) Explain(s *Scratch, wire string, client netip.Addr, ecs bool) (Steered, bool) {
	n := t.nodes[wire]
	if n == nil || n.set < 0 {
		return Steered{}, false
	}
	c := from(client)
	c.ecs = ecs
	slot, loc, scope := t.slot(s, n.set, c)
	cell := t.plan.Rows[n.set][loc][slot]
	return Steered{
		Set: t.plan.Sets[n.set].ID, Locality: t.plan.Localities[loc].ID, Slot: slot, Cell: t.plan.Cells[cell],
		TTL: t.plan.TTL, Scope: scope, Spread: !ecs && loc == 0,
	}, true
}

// Exists says whether the name has a node: static, steered, or an empty non-terminal above one.
func (t *Table) Exists(wire string) bool { return t.nodes[wire] != nil }

// Steers says whether the plan answers for the name's addresses.
func (t *Table) Steers(wire string) bool {
	n := t.nodes[wire]
	return n != nil && n.set >= 0
}

// Blind says whether the table may not deny anything, for want of a plan.
func (t *Table) Blind() bool { return t.blind }

// Plan is the plan that the table answers from, or nil.
func (t *Table) Plan() *steer.Plan { return t.plan }

// NegativeTTL is the TTL of the SOA record in negative answers.
func (t *Table) NegativeTTL() uint32 { return binary.BigEndian.Uint32(t.soa[4:]) }
