package globalrouter

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/miekg/dns"

	"github.com/cellgate/cellgate/globalrouter/answer"
	"github.com/cellgate/cellgate/problem"
)

// maxRecords bounds a zone file.
const maxRecords = 1_000_000

// Zone is one zone as its master file states it. It is immutable. Names are keyed in wire form, lower case.
type Zone struct {
	origin string
	soa    *dns.SOA
	names  map[string]rrsets // empty non-terminals included, with no types
	cuts   map[string]bool   // names below the origin with NS records: delegations
	wild   bool              // some name begins with "*"
}

type rrsets map[uint16][]dns.RR

// Origin is the zone's name, with the final dot.
func (z *Zone) Origin() string { return z.soa.Hdr.Name }

// ReadZone reads an RFC 1035 master file. Without $ORIGIN, names are relative to the SOA's owner; without $TTL, records
// without a TTL have the SOA's minimum. $INCLUDE is refused. The error is a problem.List that names the line.
func ReadZone(file string, text []byte) (*Zone, error) {
	soa, err := findSOA(file, text)
	if err != nil {
		return nil, err
	}
	z := &Zone{soa: soa, names: map[string]rrsets{}, cuts: map[string]bool{}}
	z.origin = wireName(soa.Hdr.Name)
	b := zoneBuilder{Zone: z, file: file, lines: map[string]int{}}
	n := 0
	err = parse(file, text, soa.Hdr.Name, soa.Minttl, func(rr dns.RR, line int) bool {
		n++
		b.add(rr, line)
		return n < maxRecords
	})
	if err != nil {
		return nil, err
	}
	if n == maxRecords {
		return nil, problem.List{{File: file, Line: 1, Message: fmt.Sprintf("more than %d records", maxRecords-1)}}
	}
	b.check()
	b.problems.Sort()
	return z, b.problems.Err()
}

// findSOA reads up to the SOA record, so that relative names can be read against its owner.
func findSOA(file string, text []byte) (*dns.SOA, error) {
	var soa *dns.SOA
	at := 1
	err := parse(file, text, ".", 3600, func(rr dns.RR, line int) bool {
		soa, _ = rr.(*dns.SOA)
		at = line
		return soa == nil
	})
	if err != nil {
		return nil, err
	}
	if soa == nil {
		return nil, problem.List{{File: file, Line: at, Message: "the zone has no SOA record", Hint: "begin with: @ IN SOA ns1 hostmaster 1 3600 600 86400 60"}}
	}
	if soa.Hdr.Name == "." {
		return nil, problem.List{{File: file, Line: at, Message: "the owner of the SOA record is the root", Hint: "write its full name with the final dot, or $ORIGIN before it"}}
	}
	return soa, nil
}

// parse reads records until each says stop. A record's line is the one on which it ends.
func parse(file string, text []byte, origin string, ttl uint32, each func(dns.RR, int) bool) error {
	lines := &lineReader{Reader: bufio.NewReader(strings.NewReader(string(text)))}
	zp := dns.NewZoneParser(lines, origin, "")
	zp.SetDefaultTTL(ttl)
	for rr, ok := zp.Next(); ok; rr, ok = zp.Next() {
		if !each(rr, lines.line()) {
			return nil
		}
	}
	if err := zp.Err(); err != nil {
		return problem.List{parseProblem(file, err)}
	}
	return nil
}

var atLine = regexp.MustCompile(` at line: (\d+):\d+$`)

func parseProblem(file string, err error) problem.Problem {
	p := problem.Problem{File: file, Line: 1, Message: strings.TrimPrefix(err.Error(), "dns: ")}
	if m := atLine.FindStringSubmatch(p.Message); m != nil {
		p.Line, _ = strconv.Atoi(m[1])
		p.Message = strings.TrimSuffix(p.Message, m[0])
	}
	return p
}

// lineReader counts the lines that the parser has read.
type lineReader struct {
	*bufio.Reader
	ends int
	open bool // characters since the last line end
}

// ReadByte implements io.ByteReader, which keeps the parser from reading ahead.
func (r *lineReader) ReadByte() (byte, error) {
	b, err := r.Reader.ReadByte()
	if err != nil {
		if !errors.Is(err, io.EOF) {
			return 0, fmt.Errorf("zone file: %w", err)
		}
		return 0, io.EOF
	}
	if r.open = b != '\n'; !r.open {
		r.ends++
	}
	return b, nil
}

func (r *lineReader) line() int {
	if r.open {
		return r.ends + 1
	}
	return max(r.ends, 1)
}

type zoneBuilder struct {
	*Zone
	file     string
	lines    map[string]int // last line of each name
	problems problem.List
}

func (b *zoneBuilder) fault(line int, format string, args ...any) {
	if len(b.problems) < 100 {
		b.problems = append(b.problems, problem.Problem{File: b.file, Line: line, Message: fmt.Sprintf(format, args...)})
	}
}

func (b *zoneBuilder) add(rr dns.RR, line int) {
	h := rr.Header()
	name := wireName(h.Name)
	switch {
	case name == "" || !below(name, b.origin):
		b.fault(line, "%s is outside the zone %s", h.Name, b.soa.Hdr.Name)
		return
	case h.Class != dns.ClassINET:
		b.fault(line, "%s: class %s is not IN", h.Name, dns.Class(h.Class))
		return
	case h.Rrtype == dns.TypeSOA && (name != b.origin || len(b.names[name][dns.TypeSOA]) > 0):
		b.fault(line, "%s: a zone has one SOA record, at its origin %s", h.Name, b.soa.Hdr.Name)
		return
	case h.Rrtype == dns.TypeDNAME:
		b.fault(line, "%s: DNAME records are not served", h.Name)
		return
	}
	if b.names[name] == nil {
		b.names[name] = rrsets{}
	}
	set := b.names[name][h.Rrtype]
	for _, other := range set {
		if dns.IsDuplicate(other, rr) {
			return
		}
	}
	if len(set) > 0 {
		h.Ttl = set[0].Header().Ttl // one TTL in an RRset (RFC 2181 section 5.2)
	}
	b.names[name][h.Rrtype] = append(set, rr)
	b.lines[name] = line
	b.wild = b.wild || strings.HasPrefix(name, "\x01*")
	if h.Rrtype == dns.TypeNS && name != b.origin {
		b.cuts[name] = true
	}
}

func (b *zoneBuilder) check() {
	for name, sets := range b.names {
		c := sets[dns.TypeCNAME]
		switch {
		case len(c) > 1 || len(c) == 1 && hasOther(sets):
			b.fault(b.lines[name], "%s: a CNAME record stands alone at its name", c[0].Header().Name)
		case len(c) == 1 && b.aliases(name) > maxAliases:
			b.fault(b.lines[name], "%s: its CNAME records are a loop, or more than %d in a row", c[0].Header().Name, maxAliases)
		}
	}
	for name := range b.lines {
		for up := parent(name); len(up) > len(b.origin); up = parent(up) {
			if b.names[up] == nil {
				b.names[up] = rrsets{}
			}
		}
	}
}

// aliases is how many CNAME records follow each other from the name on, maxAliases+1 at most.
func (b *zoneBuilder) aliases(name string) (n int) {
	for n <= maxAliases && len(b.names[name][dns.TypeCNAME]) > 0 {
		name = wireName(b.names[name][dns.TypeCNAME][0].(*dns.CNAME).Target)
		n++
	}
	return n
}

// hasOther looks for what may not stand beside a CNAME (RFC 2181 section 10.1, RFC 4034 section 2.5).
func hasOther(sets rrsets) bool {
	for t := range sets {
		if t != dns.TypeCNAME && t != dns.TypeRRSIG && t != dns.TypeNSEC {
			return true
		}
	}
	return false
}

// forFastPath is the zone as package answer takes it.
func (z *Zone) forFastPath() answer.Zone {
	out := answer.Zone{Origin: z.origin, NegativeTTL: min(z.soa.Hdr.Ttl, z.soa.Minttl), SOA: soaData(z.soa), Nodes: make(map[string]answer.Node, len(z.names)), Deep: z.wild || len(z.cuts) > 0}
	for name, sets := range z.names {
		n := answer.Node{Slow: len(sets[dns.TypeCNAME]) > 0 || z.cut(name) != ""}
		for _, rr := range sets[dns.TypeA] {
			a, ok := netip.AddrFromSlice(rr.(*dns.A).A.To4())
			n.Slow = n.Slow || !ok
			n.A.TTL, n.A.Addrs = rr.Header().Ttl, append(n.A.Addrs, a)
		}
		for _, rr := range sets[dns.TypeAAAA] {
			a, ok := netip.AddrFromSlice(rr.(*dns.AAAA).AAAA)
			n.Slow = n.Slow || !ok || a.Is4In6()
			n.AAAA.TTL, n.AAAA.Addrs = rr.Header().Ttl, append(n.AAAA.Addrs, a)
		}
		n.Slow = n.Slow || len(n.A.Addrs) > 255 || len(n.AAAA.Addrs) > 255
		out.Nodes[name] = n
	}
	return out
}

// cut is the delegation that the name is at or below, the one nearest to the origin; empty when the zone itself answers.
func (z *Zone) cut(name string) string {
	found := ""
	for len(z.cuts) > 0 && len(name) > len(z.origin) {
		if z.cuts[name] {
			found = name
		}
		name = parent(name)
	}
	return found
}

func soaData(soa *dns.SOA) []byte {
	b := make([]byte, 1024)
	n, err := dns.PackRR(soa, b, 0, nil, false)
	if err != nil {
		return nil
	}
	return b[len(wireName(soa.Hdr.Name))+10 : n]
}

// wireName is the name in wire form, lower case; empty when it is no name.
func wireName(name string) string {
	b := make([]byte, 256)
	n, err := dns.PackDomainName(name, b, 0, nil, false)
	if err != nil {
		return ""
	}
	for i := 0; i < n && b[i] != 0; i += 1 + int(b[i]) {
		for j := i + 1; j <= i+int(b[i]); j++ {
			if b[j] >= 'A' && b[j] <= 'Z' {
				b[j] += 'a' - 'A'
			}
		}
	}
	return string(b[:n])
}

func parent(wire string) string { return wire[1+int(wire[0]):] }

// below says whether the name is the origin or under it.
func below(name, origin string) bool {
	for len(name) > len(origin) {
		name = parent(name)
	}
	return name == origin
}
