package answer

import (
	"encoding/binary"
	"net/netip"
)

// What Answer gives instead of a length.
const (
	Drop = 0  // nothing may be sent: not a query
	Slow = -1 // not for the fast path; the buffer is as it was
)

// MaxUDP is the largest UDP answer, whatever the client offers: it passes every path without fragments (DNS flag day 2020).
const MaxUDP = 1232

const (
	headerLen = 12
	minUDP    = 512
	optLen    = 11
)

// Scratch is what one goroutine keeps between answers. Seed it differently in each.
type Scratch struct {
	name [256]byte
	weyl uint64
}

// Seed sets where the sequence for clients of unknown place begins.
func (s *Scratch) Seed(x uint64) { s.weyl = x }

// query is what the fast path reads from a packet.
type query struct {
	nameLen int // of the lower-case wire name in Scratch.name
	qtype   uint16
	end     int // of the question
	limit   int
	edns    bool
	do      byte
	ecs     ECS
	badECS  bool
}

// Answer turns the query in b[:n] into its answer in b and returns the answer's length, Drop or Slow.
// b must have room for MaxUDP bytes and for n. Over TCP the size that the client offers for UDP does not count (limit 65535);
// over UDP limit is 0.
func (t *Table) Answer(s *Scratch, b []byte, n int, source netip.Addr, limit int) int {
	if n < headerLen || b[2]&0x80 != 0 {
		return Drop
	}
	var q query
	if !q.parse(s, b[:n]) {
		return Slow
	}
	if limit > 0 {
		q.limit = min(limit, len(b))
	}
	if q.badECS {
		return t.finish(b, &q, q.end, rcodeFormErr, 0)
	}
	nd := t.nodes[string(s.name[:q.nameLen])]
	switch {
	case nd == nil:
		if t.deep || t.blind || !t.covers(s.name[:q.nameLen]) {
			return Slow
		}
		return t.negative(b, &q, rcodeNXDomain)
	case nd.slow:
		return Slow
	}
	p, scope := &nd.pair, uint8(0)
	if nd.set >= 0 {
		p, scope = t.pick(s, nd.set, &q, source)
	}
	sec := &p.a
	if q.qtype == typeAAAA {
		sec = &p.aaaa
	}
	if sec.n == 0 {
		if t.blind {
			return Slow
		}
		return t.negative(b, &q, 0)
	}
	return t.positive(b, &q, sec, scope)
}

// covers is within without a copy of the name.
func (t *Table) covers(name []byte) bool {
	for len(name) > len(t.origin) {
		name = name[1+int(name[0]):]
	}
	return string(name) == t.origin
}

// parse reads a plain query; it is false for anything else.
func (q *query) parse(s *Scratch, b []byte) bool {
	// QUERY, not truncated; one question, no answers, no authority, at most one additional record.
	if b[2]&0x7e != 0 || binary.BigEndian.Uint64(b[4:])&^1 != 1<<48 {
		return false
	}
	p, k := headerLen, 0
	for {
		if p >= len(b) {
			return false
		}
		l := int(b[p])
		if l > 63 || p+1+l >= len(b) || k+1+l > 254 {
			return false
		}
		s.name[k] = byte(l)
		k++
		p++
		if l == 0 {
			break
		}
		for _, c := range b[p : p+l] {
			s.name[k] = lower[c]
			k++
		}
		p += l
	}
	if p+4 > len(b) {
		return false
	}
	q.nameLen, q.end, q.limit = k, p+4, minUDP
	q.qtype = binary.BigEndian.Uint16(b[p:])
	if q.qtype != typeA && q.qtype != typeAAAA || binary.BigEndian.Uint16(b[p+2:]) != 1 {
		return false
	}
	if b[11] == 0 {
		return q.end == len(b)
	}
	return q.options(b[q.end:])
}

// options reads the OPT record that must fill the rest of the packet.
func (q *query) options(b []byte) bool {
	if len(b) < optLen || b[0] != 0 || binary.BigEndian.Uint16(b[1:]) != typeOPT || b[6] != 0 || optLen+int(binary.BigEndian.Uint16(b[9:])) != len(b) {
		return false
	}
	q.edns, q.do = true, b[7]&0x80
	q.limit = min(max(int(binary.BigEndian.Uint16(b[3:])), minUDP), MaxUDP)
	for b = b[optLen:]; len(b) > 0; {
		if len(b) < 4 {
			return false
		}
		code, l := binary.BigEndian.Uint16(b), int(binary.BigEndian.Uint16(b[2:]))
		if 4+l > len(b) {
			return false
		}
		if code == OptionECS {
			if q.ecs.Len > 0 || q.badECS {
				return false
			}
			q.badECS = !q.ecs.Parse(b[4 : 4+l])
		}
		b = b[4+l:]
	}
	return true
}

func (t *Table) pick(s *Scratch, set int, q *query, source netip.Addr) (*pair, uint8) {
	c, used := q.ecs.client()
	if !used {
		c = from(source)
	}
	slot, loc, scope := t.slot(s, set, c)
	if !used {
		scope = 0
	}
	return &t.cells[t.plan.Rows[set][loc][slot]], scope
}

// positive writes the section behind the question, or nothing but the TC bit when it does not fit.
func (t *Table) positive(b []byte, q *query, sec *section, scope uint8) int {
	if q.end+len(sec.wire)+q.optSize() > q.limit {
		o := t.finish(b, q, q.end, 0, scope)
		b[2] |= 2
		return o
	}
	binary.BigEndian.PutUint16(b[6:], sec.n)
	return t.finish(b, q, q.end+copy(b[q.end:], sec.wire), 0, scope)
}

// negative is NXDOMAIN or NODATA: the SOA record, its owner a pointer into the question.
func (t *Table) negative(b []byte, q *query, rcode byte) int {
	if q.end+2+len(t.soa)+q.optSize() > q.limit {
		o := t.finish(b, q, q.end, rcode, 0)
		b[2] |= 2
		return o
	}
	at := headerLen + q.nameLen - len(t.origin)
	b[q.end], b[q.end+1] = 0xc0|byte(at>>8), byte(at)
	o := q.end + 2 + copy(b[q.end+2:], t.soa)
	b[9] = 1
	return t.finish(b, q, o, rcode, 0)
}

func (q *query) optSize() int {
	switch {
	case !q.edns:
		return 0
	case q.ecs.Len == 0:
		return optLen
	default:
		return optLen + 4 + int(q.ecs.Len)
	}
}

// finish writes the header's flags and the OPT record at o; it returns the answer's length.
func (t *Table) finish(b []byte, q *query, o int, rcode byte, scope uint8) int {
	b[2] = b[2]&1 | 0x84
	if rcode == rcodeFormErr {
		b[2] &^= 4
	}
	b[3], b[11] = rcode, 0
	if !q.edns {
		return o
	}
	b[11] = 1
	w := b[o : o+optLen]
	w[0], w[1], w[2], w[3], w[4] = 0, 0, typeOPT, MaxUDP>>8, MaxUDP&255
	w[5], w[6], w[7], w[8], w[9], w[10] = 0, 0, q.do, 0, 0, 0
	o += optLen
	if n := q.ecs.Len; n > 0 {
		w[10] = 4 + n
		q.ecs.Echo[3] = scope
		b[o], b[o+1], b[o+2], b[o+3] = 0, OptionECS, 0, n
		o += 4
		o += copy(b[o:], q.ecs.Echo[:n])
	}
	return o
}

var lower = func() (t [256]byte) {
	for i := range t {
		t[i] = byte(i)
		if i >= 'A' && i <= 'Z' {
			t[i] += 'a' - 'A'
		}
	}
	return t
}()
