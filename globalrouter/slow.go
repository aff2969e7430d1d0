package globalrouter

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"github.com/miekg/dns"

	"github.com/cellgate/cellgate/globalrouter/answer"
)

// maxAliases bounds how many CNAME records one answer follows.
const maxAliases = 8

// slow answers what the fast path leaves: other types, aliases, wildcards, delegations, and everything unusual.
// limit is as for answer.Table.Answer; nil means that nothing is sent.
func (t *Table) slow(s *answer.Scratch, packet []byte, source netip.Addr, limit int) []byte {
	if len(packet) < 12 || packet[2]&0x80 != 0 {
		return nil
	}
	q := new(dns.Msg)
	if err := q.Unpack(withoutOptions(packet)); err != nil {
		return bare(packet, dns.RcodeFormatError)
	}
	r := new(dns.Msg)
	r.SetReply(q)
	r.Compress, r.CheckingDisabled, r.Rcode = true, false, dns.RcodeSuccess
	e := edns{limit: 512}
	switch {
	case q.Opcode != dns.OpcodeQuery:
		return bare(packet, dns.RcodeNotImplemented)
	case len(q.Question) != 1 || len(q.Answer) > 0 && q.Question[0].Qtype != dns.TypeIXFR || !e.read(q, packet):
		r.Rcode = dns.RcodeFormatError
	case e.version != 0:
		r.Rcode = dns.RcodeBadVers
	default:
		t.reply(r, &e, s, source)
	}
	if limit > 0 {
		e.limit = limit
	}
	return e.pack(r)
}

// bare is an answer of nothing but the header, for what cannot be read or is not a query.
func bare(packet []byte, rcode byte) []byte {
	b := make([]byte, 12)
	copy(b, packet[:4])
	b[2] = b[2]&0x79 | 0x80
	b[3] = rcode
	return b
}

// edns is what the query's OPT record asks and what the answer's says.
type edns struct {
	present, do bool
	version     uint8
	limit       int
	ecs         answer.ECS
	scope       uint8
}

// read is false when there is more than one OPT record, or one that is malformed.
func (e *edns) read(q *dns.Msg, packet []byte) bool {
	var opt *dns.OPT
	for _, rr := range q.Extra {
		o, ok := rr.(*dns.OPT)
		if !ok {
			continue
		}
		if opt != nil || o.Hdr.Name != "." {
			return false
		}
		opt = o
	}
	if opt == nil {
		return true
	}
	e.present, e.do, e.version = true, opt.Do(), opt.Version()
	e.limit = min(max(int(opt.UDPSize()), 512), answer.MaxUDP)
	if e.version != 0 {
		return true // its options are not ours to judge (RFC 6891 section 6.1.3)
	}
	seen := false
	for o := range rawOptions(packet) {
		if o.code != answer.OptionECS {
			continue
		}
		if seen || !e.ecs.Parse(o.data) {
			e.ecs.Len = 0
			return false
		}
		seen = true
	}
	return true
}

// withoutOptions is a copy whose EDNS options have a code for local use, which the library reads as plain bytes:
// it would refuse the whole packet for an option that we ignore, and not keep the exact bytes of one that we echo.
func withoutOptions(packet []byte) []byte {
	const local = 65001
	b := bytes.Clone(packet)
	for o := range rawOptions(packet) {
		binary.BigEndian.PutUint16(b[o.at:], local)
	}
	return b
}

// option is one EDNS option at its place in the packet.
type option struct {
	at   int
	code uint16
	data []byte
}

// rawOptions yields the options of all OPT records as they came, as far as the packet can be read.
func rawOptions(b []byte) func(func(option) bool) {
	return func(yield func(option) bool) {
		p := 12
		for range binary.BigEndian.Uint16(b[4:]) {
			p = skipName(b, p) + 4
		}
		records := int(binary.BigEndian.Uint16(b[6:])) + int(binary.BigEndian.Uint16(b[8:])) + int(binary.BigEndian.Uint16(b[10:]))
		for range records {
			p = skipName(b, p)
			if p+10 > len(b) {
				return
			}
			rtype, end := binary.BigEndian.Uint16(b[p:]), p+10+int(binary.BigEndian.Uint16(b[p+8:]))
			if end > len(b) {
				return
			}
			for o := p + 10; rtype == dns.TypeOPT && o+4 <= end; {
				l := int(binary.BigEndian.Uint16(b[o+2:]))
				if o+4+l > end || !yield(option{o, binary.BigEndian.Uint16(b[o:]), b[o+4 : o+4+l]}) {
					return
				}
				o += 4 + l
			}
			p = end
		}
	}
}

func skipName(b []byte, p int) int {
	for p < len(b) && b[p] != 0 {
		if b[p] >= 0xc0 {
			return p + 2
		}
		p += 1 + int(b[p])
	}
	return p + 1
}

// pack adds the OPT record and cuts the answer down to the header when it is too large.
func (e *edns) pack(r *dns.Msg) []byte {
	if e.present {
		opt := &dns.OPT{Hdr: dns.RR_Header{Name: ".", Rrtype: dns.TypeOPT, Class: answer.MaxUDP}}
		if e.do {
			opt.SetDo()
		}
		if n := e.ecs.Len; n > 0 {
			e.ecs.Echo[3] = e.scope
			opt.Option = append(opt.Option, &dns.EDNS0_LOCAL{Code: answer.OptionECS, Data: e.ecs.Echo[:n]})
		}
		r.Extra = append(r.Extra, opt)
	}
	b, err := r.Pack()
	if err == nil && len(b) <= e.limit {
		return b
	}
	if err != nil {
		r.Rcode = dns.RcodeServerFailure
	}
	r.Truncated = err == nil
	r.Answer, r.Ns = nil, nil
	r.Extra = r.Extra[len(r.Extra)-int(b2i(e.present)):]
	if b, err = r.Pack(); err != nil {
		return nil
	}
	return b
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// reply fills r for a plain question.
func (t *Table) reply(r *dns.Msg, e *edns, s *answer.Scratch, source netip.Addr) {
	q := r.Question[0]
	name := wireName(q.Name)
	switch {
	case q.Qtype == dns.TypeOPT || q.Qtype == dns.TypeTSIG || q.Qtype == dns.TypeTKEY || name == "":
		r.Rcode = dns.RcodeFormatError
	case q.Qclass != dns.ClassINET || !below(name, t.zone.origin) || q.Qtype == dns.TypeAXFR || q.Qtype == dns.TypeIXFR:
		r.Rcode = dns.RcodeRefused
	case q.Qtype >= 128 && q.Qtype < 255 || q.Qtype == 0:
		r.Rcode = dns.RcodeNotImplemented
	default:
		r.Authoritative = true
		l := lookup{Table: t, r: r, e: e, scratch: s, source: source, qtype: q.Qtype}
		l.name(q.Name, name, maxAliases)
	}
}

// lookup is one question on its way through the zone.
type lookup struct {
	*Table
	r       *dns.Msg
	e       *edns
	scratch *answer.Scratch
	source  netip.Addr
	qtype   uint16
}

// name answers for one owner and follows its alias while aliases are left.
func (l *lookup) name(owner, wire string, aliases int) {
	if l.steered(owner, wire) {
		return
	}
	if cut := l.zone.cut(wire); cut != "" && !(cut == wire && l.qtype == dns.TypeDS) {
		l.refer(cut)
		return
	}
	sets, exists := l.zone.names[wire]
	if !exists && !l.fast.Exists(wire) {
		sets = l.wildcard(wire)
		if sets == nil {
			l.missing(dns.RcodeNameError)
			return
		}
	}
	if cname := sets[dns.TypeCNAME]; len(cname) > 0 && l.qtype != dns.TypeCNAME && !l.fast.Steers(wire) {
		l.alias(owner, cname[0].(*dns.CNAME), aliases)
		return
	}
	if l.qtype == dns.TypeANY && (len(sets) > 0 || l.fast.Exists(wire)) {
		l.any(owner)
		return
	}
	if len(sets[l.qtype]) == 0 || l.qtype == dns.TypeCNAME && l.fast.Steers(wire) {
		l.missing(dns.RcodeSuccess)
		return
	}
	l.give(owner, sets[l.qtype])
}

// steered answers for addresses of a steered name.
func (l *lookup) steered(owner, wire string) bool {
	if l.qtype != dns.TypeA && l.qtype != dns.TypeAAAA {
		return false
	}
	client, ecs := l.source, false
	if l.e.ecs.Source > 0 {
		client, ecs = ecsAddr(&l.e.ecs), true
	}
	a, ok := l.fast.Explain(l.scratch, wire, client, ecs)
	if !ok {
		return false
	}
	h := dns.RR_Header{Name: owner, Rrtype: l.qtype, Class: dns.ClassINET, Ttl: a.TTL}
	for _, addr := range a.Cell.Addresses {
		switch {
		case addr.Is4() && l.qtype == dns.TypeA:
			l.r.Answer = append(l.r.Answer, &dns.A{Hdr: h, A: addr.AsSlice()})
		case addr.Is6() && l.qtype == dns.TypeAAAA:
			l.r.Answer = append(l.r.Answer, &dns.AAAA{Hdr: h, AAAA: addr.AsSlice()})
		}
	}
	if len(l.r.Answer) == 0 || l.r.Answer[len(l.r.Answer)-1].Header().Rrtype != l.qtype {
		l.missing(dns.RcodeSuccess)
		return true
	}
	if ecs {
		l.e.scope = a.Scope
	}
	return true
}

func ecsAddr(e *answer.ECS) netip.Addr {
	if e.Family == 1 {
		return netip.AddrFrom4([4]byte(e.Echo[4:8]))
	}
	return netip.AddrFrom16([16]byte(e.Echo[4:20]))
}

// wildcard is what the closest encloser's wildcard says for a name that does not exist (RFC 4592), or nil.
func (l *lookup) wildcard(wire string) rrsets {
	for up := parent(wire); len(up) >= len(l.zone.origin); up = parent(up) {
		if _, ok := l.zone.names[up]; ok || l.fast.Exists(up) {
			return l.zone.names["\x01*"+up]
		}
	}
	return nil
}

func (l *lookup) give(owner string, set []dns.RR) {
	for _, rr := range set {
		rr = dns.Copy(rr)
		rr.Header().Name = owner
		l.r.Answer = append(l.r.Answer, rr)
	}
}

func (l *lookup) alias(owner string, cname *dns.CNAME, aliases int) {
	if aliases == 0 {
		l.r.Rcode, l.r.Answer = dns.RcodeServerFailure, nil
		return
	}
	l.give(owner, []dns.RR{cname})
	if l.qtype == dns.TypeANY {
		return // one RRset is enough (RFC 8482 section 4.1)
	}
	if to := wireName(cname.Target); below(to, l.zone.origin) {
		l.name(cname.Target, to, aliases-1)
	}
}

// any is the minimal answer of RFC 8482 section 4.2.
func (l *lookup) any(owner string) {
	h := dns.RR_Header{Name: owner, Rrtype: dns.TypeHINFO, Class: dns.ClassINET, Ttl: 3600}
	l.r.Answer = append(l.r.Answer, &dns.HINFO{Hdr: h, Cpu: "RFC8482"})
}

// missing is NODATA or NXDOMAIN with the SOA record; without the plan that there should be, nothing may be denied.
func (l *lookup) missing(rcode int) {
	if l.fast.Blind() && (rcode == dns.RcodeNameError || l.qtype == dns.TypeA || l.qtype == dns.TypeAAAA) {
		l.r.Rcode, l.r.Answer, l.r.Authoritative = dns.RcodeServerFailure, nil, false
		return
	}
	soa := dns.Copy(l.zone.soa)
	soa.Header().Ttl = l.fast.NegativeTTL()
	soa.Header().Name = suffix(l.r.Question[0].Name, dns.CountLabel(l.zone.soa.Hdr.Name))
	l.r.Rcode = rcode
	l.r.Ns = append(l.r.Ns, soa)
}

// suffix is the last n labels, in the case of the question: that is how the origin is spelt when it points into it.
func suffix(name string, n int) string {
	at := dns.Split(name)
	return name[at[len(at)-n]:]
}

// refer is a delegation: its NS records, and the addresses below it that the zone knows.
func (l *lookup) refer(cut string) {
	l.r.Authoritative = len(l.r.Answer) > 0
	for _, rr := range l.zone.names[cut][dns.TypeNS] {
		l.r.Ns = append(l.r.Ns, rr)
		target := wireName(rr.(*dns.NS).Ns)
		if !below(target, l.zone.origin) {
			continue
		}
		l.r.Extra = append(l.r.Extra, l.zone.names[target][dns.TypeA]...)
		l.r.Extra = append(l.r.Extra, l.zone.names[target][dns.TypeAAAA]...)
	}
}
