package globalrouter

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/answer"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/health"
)

var (
	addr     = netip.MustParseAddr
	pre      = netip.MustParsePrefix
	resolver = addr("127.0.0.1")
)

// testPlan steers api and the apex over two regions; us-east/a has no IPv6 address.
func testPlan(names ...string) *steer.Plan {
	in := steer.Inputs{
		Topology: cells.Topology{Regions: []cells.Region{
			{ID: "eu-west", Clients: []netip.Prefix{pre("5.1.0.0/16"), pre("2001:db8:1::/48")}, Cells: []cells.Cell{
				{ID: "eu-west/a", HTTPS: 1, Limit: 1_000_000, Addresses: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}},
				{ID: "eu-west/b", HTTPS: 1, Limit: 1_000_000, Addresses: []netip.Addr{addr("192.0.2.2"), addr("192.0.2.3"), addr("2001:db8::2")}},
			}},
			{ID: "us-east", Clients: []netip.Prefix{pre("6.1.0.0/16"), pre("6.1.2.128/25"), pre("7.0.0.0/8")}, Cells: []cells.Cell{
				{ID: "us-east/a", HTTPS: 1, Limit: 1_000_000, Addresses: []netip.Addr{addr("198.51.100.1")}},
			}},
		}},
		Names: map[string]string{"api.gw.test": "", "gw.test": "", "x.deep.gw.test": ""}, TTL: 20 * time.Second, Epoch: 1, Health: map[cells.CellID]health.Status{},
	}
	for _, n := range names {
		in.Names[n] = ""
	}
	p := steer.Step(steer.State{}, in, time.Unix(1767225600, 0)).Plan
	return &p
}

func mustCompile(t testing.TB, z *Zone, p *steer.Plan, blind bool) *Table {
	t.Helper()
	table, err := Compile(z, p, nil, blind)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func steeredTable(t testing.TB) *Table {
	return mustCompile(t, mustZone(t, testZone), testPlan(), false)
}

func query(name string, qtype uint16) *dns.Msg {
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	m.RecursionDesired = false
	return m
}

func withECS(m *dns.Msg, family uint16, source, scope uint8, data ...byte) *dns.Msg {
	m.SetEdns0(1232, false)
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: 8, Data: append([]byte{byte(family >> 8), byte(family), source, scope}, data...)})
	return m
}

// ask sends the query through the table as a server does, over UDP.
func ask(t testing.TB, table *Table, q *dns.Msg) *dns.Msg { return askLimit(t, table, q, 0) }

func askLimit(t testing.TB, table *Table, q *dns.Msg, limit int) *dns.Msg {
	t.Helper()
	packet, err := q.Pack()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 65535)
	out, _ := table.Answer(new(answer.Scratch), b, copy(b, packet), resolver, limit)
	if out == nil {
		t.Fatalf("no answer to %s", q)
	}
	r := new(dns.Msg)
	if err := r.Unpack(out); err != nil {
		t.Fatalf("unreadable answer %x to %s: %v", out, q, err)
	}
	return r
}

// told is the answer in one line: code, flags, answer data, and what the authority section holds.
func told(r *dns.Msg) string {
	s := []string{strings.ToLower(dns.RcodeToString[r.Rcode])}
	if r.Authoritative {
		s = append(s, "aa")
	}
	if r.Truncated {
		s = append(s, "tc")
	}
	for _, rr := range r.Answer {
		s = append(s, strings.ReplaceAll(strings.TrimPrefix(rr.String(), rr.Header().String()), "\t", " "))
	}
	for _, rr := range r.Ns {
		s = append(s, dns.TypeToString[rr.Header().Rrtype]+"@"+rr.Header().Name)
	}
	return strings.Join(s, " ")
}

func TestEveryTypeOfTheZoneFileIsAnswered(t *testing.T) {
	table := steeredTable(t)
	for _, c := range []struct {
		name  string
		qtype uint16
		want  string
	}{
		{"gw.test.", dns.TypeSOA, "noerror aa ns1.gw.test. hostmaster.gw.test. 7 3600 600 86400 20"},
		{"gw.test.", dns.TypeNS, "noerror aa ns1.gw.test. ns.elsewhere.net."},
		{"gw.test.", dns.TypeTXT, `noerror aa "apex"`},
		{"gw.test.", dns.TypeCAA, `noerror aa 0 issue "ca.example"`},
		{"gw.test.", dns.TypeMX, "noerror aa SOA@gw.test."},
		{"ns1.gw.test.", dns.TypeA, "noerror aa 192.0.2.53"},
		{"docs.gw.test.", dns.TypeA, "noerror aa 192.0.2.80 192.0.2.81"},
		{"docs.gw.test.", dns.TypeHTTPS, `noerror aa 1 . alpn="h2" ipv4hint="192.0.2.80"`},
		{"svc.gw.test.", dns.TypeSVCB, `noerror aa 1 docs.gw.test. port="8443"`},
		{"_sip._tcp.gw.test.", dns.TypeSRV, "noerror aa 10 5 5060 docs.gw.test."},
		{"mail.gw.test.", dns.TypeMX, "noerror aa 10 docs.gw.test."},
		{"six.gw.test.", dns.TypeAAAA, "noerror aa 2001:db8::6"},
		{"out.gw.test.", dns.TypeA, "noerror aa www.example.com."},
		{"www.gw.test.", dns.TypeCNAME, "noerror aa api.gw.test."},
		{"www.gw.test.", dns.TypeTXT, "noerror aa api.gw.test. SOA@gw.test."},
		{"x.loop.gw.test.", dns.TypeA, "servfail aa"},
		{"out.gw.test.", dns.TypeANY, "noerror aa www.example.com."},
		{"docs.gw.test.", dns.TypeANY, `noerror aa "RFC8482" ""`},
		{"api.gw.test.", dns.TypeANY, `noerror aa "RFC8482" ""`},
		{"nope.gw.test.", dns.TypeANY, "nxdomain aa SOA@gw.test."},
		{"any.wild.gw.test.", dns.TypeA, "noerror aa 192.0.2.99"},
		{"a.b.wild.gw.test.", dns.TypeTXT, `noerror aa "wild"`},
		{"any.wild.gw.test.", dns.TypeMX, "noerror aa SOA@gw.test."},
		{"here.wild.gw.test.", dns.TypeA, "noerror aa SOA@gw.test."},
		{"x.here.wild.gw.test.", dns.TypeA, "nxdomain aa SOA@gw.test."},
		{"www.child.gw.test.", dns.TypeA, "noerror NS@child.gw.test. NS@child.gw.test."},
		{"child.gw.test.", dns.TypeA, "noerror NS@child.gw.test. NS@child.gw.test."},
		{"child.gw.test.", dns.TypeDS, "noerror aa 1 13 2 0000000000000000000000000000000000000000000000000000000000000000"},
		{"example.com.", dns.TypeA, "refused"},
		{"test.", dns.TypeA, "refused"},
		{".", dns.TypeNS, "refused"},
		{"gw.test.", dns.TypeAXFR, "refused"},
		{"gw.test.", dns.TypeMAILB, "notimp"},
		{"gw.test.", dns.TypeOPT, "formerr"},
	} {
		if got := told(ask(t, table, query(c.name, c.qtype))); got != c.want {
			t.Errorf("%s %s: %s\nwant %s", c.name, dns.TypeToString[c.qtype], got, c.want)
		}
	}
}

// D53, D55, D77: a name that exists with any type, or above one that does, is NODATA and never NXDOMAIN; the SOA record
// comes exactly once with a short TTL.
func TestEmptyAnswersAreNODATAWithOneSOA(t *testing.T) {
	table := steeredTable(t)
	for name, rcode := range map[string]int{
		"ns1.gw.test.": 0, "six.gw.test.": 0, "ent.gw.test.": 0, "b.ent.gw.test.": 0, "_tcp.gw.test.": 0, "deep.gw.test.": 0, "wild.gw.test.": 0,
		"nope.gw.test.": 3, "x.ns1.gw.test.": 3, "y.deep.gw.test.": 3, "c.b.ent.gw.test.": 3, "\\000\\255.gw.test.": 3,
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeTXT, dns.TypeHTTPS} {
			r := ask(t, table, query(name, qtype))
			if len(r.Answer) > 0 {
				continue
			}
			if r.Rcode != rcode || len(r.Ns) != 1 || r.Ns[0].Header().Rrtype != dns.TypeSOA || r.Ns[0].Header().Ttl > 20 || r.Ns[0].Header().Name != "gw.test." {
				t.Errorf("%s %s: %s", name, dns.TypeToString[qtype], told(r))
			}
		}
	}
}

// D67, D69: the option comes back with family, source and address as they were, and the scope is what decided the answer.
func TestECSIsEchoedWithTheScopeThatDecided(t *testing.T) {
	table := steeredTable(t)
	for _, c := range []struct {
		name   string
		family uint16
		source uint8
		data   []byte
		scope  uint8
		want   []string // any of them
	}{
		{"api.gw.test.", 1, 24, []byte{5, 1, 7}, 24, []string{"192.0.2.1", "192.0.2.2"}},
		{"api.gw.test.", 1, 32, []byte{5, 1, 7, 9}, 24, []string{"192.0.2.1", "192.0.2.2"}},
		{"api.gw.test.", 1, 20, []byte{5, 1, 0x70}, 24, []string{"192.0.2.1", "192.0.2.2"}},
		{"api.gw.test.", 1, 24, []byte{6, 1, 7}, 16, []string{"198.51.100.1"}}, // one cell for the whole locality: the prefix
		{"api.gw.test.", 1, 24, []byte{7, 99, 7}, 8, []string{"198.51.100.1"}}, // /8
		{"api.gw.test.", 1, 0, nil, 0, []string{"192.0.2.1", "192.0.2.2", "198.51.100.1"}},
		{"api.gw.test.", 0, 0, nil, 0, []string{"192.0.2.1", "192.0.2.2", "198.51.100.1"}},
		{"api.gw.test.", 2, 48, []byte{0x20, 1, 0x0d, 0xb8, 0, 1}, 48, []string{"192.0.2.1", "192.0.2.2"}},
		{"api.gw.test.", 1, 24, []byte{127, 0, 0}, 24, []string{"192.0.2.1", "192.0.2.2", "198.51.100.1"}},
		{"docs.gw.test.", 1, 24, []byte{5, 1, 7}, 0, []string{"192.0.2.80"}},
		{"nope.gw.test.", 1, 24, []byte{5, 1, 7}, 0, nil},
	} {
		for range 2 {
			r := ask(t, table, withECS(query(c.name, dns.TypeA), c.family, c.source, 0, c.data...))
			e, ok := r.IsEdns0().Option[0].(*dns.EDNS0_SUBNET)
			if !ok || len(r.IsEdns0().Option) != 1 {
				t.Fatalf("%+v: options %v", c, r.IsEdns0().Option)
			}
			if e.Family != c.family || e.SourceNetmask != c.source || e.SourceScope != c.scope {
				t.Errorf("%+v: option %s family %d", c, e, e.Family)
			}
			if c.want != nil && (len(r.Answer) == 0 || !slices.Contains(c.want, r.Answer[0].(*dns.A).A.String())) {
				t.Errorf("%+v: %s", c, told(r))
			}
		}
	}
}

// D71: what RFC 7871 does not allow in a query is FORMERR, on both paths.
func TestMalformedECSIsFORMERR(t *testing.T) {
	table := steeredTable(t)
	for name, q := range map[string]func(*dns.Msg) *dns.Msg{
		"unknown family":   func(m *dns.Msg) *dns.Msg { return withECS(m, 3, 24, 0, 5, 1, 7) },
		"family 0":         func(m *dns.Msg) *dns.Msg { return withECS(m, 0, 24, 0, 5, 1, 7) },
		"scope in a query": func(m *dns.Msg) *dns.Msg { return withECS(m, 1, 24, 24, 5, 1, 7) },
		"too short":        func(m *dns.Msg) *dns.Msg { return withECS(m, 1, 24, 0, 5, 1) },
		"too long":         func(m *dns.Msg) *dns.Msg { return withECS(m, 1, 24, 0, 5, 1, 7, 0) },
		"33 bits":          func(m *dns.Msg) *dns.Msg { return withECS(m, 1, 33, 0, 5, 1, 7, 1, 0) },
		"host bits":        func(m *dns.Msg) *dns.Msg { return withECS(m, 1, 20, 0, 5, 1, 7) },
		"twice": func(m *dns.Msg) *dns.Msg {
			m = withECS(m, 1, 8, 0, 5)
			o := m.IsEdns0()
			o.Option = append(o.Option, o.Option[0])
			return m
		},
	} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeTXT} {
			if r := ask(t, table, q(query("api.gw.test.", qtype))); r.Rcode != dns.RcodeFormatError || len(r.Answer) > 0 || r.Authoritative {
				t.Errorf("%s, %s: %s", name, dns.TypeToString[qtype], told(r))
			}
		}
	}
}

// D73: the question comes back byte for byte, and owners follow it.
func TestCaseOfTheQuestionIsEchoed(t *testing.T) {
	table := steeredTable(t)
	for _, name := range []string{"aPi.Gw.tESt.", "DOCS.gw.test.", "wWw.GW.test.", "X.wild.gw.TEST."} {
		r := ask(t, table, query(name, dns.TypeA))
		if r.Question[0].Name != name || len(r.Answer) == 0 || r.Answer[0].Header().Name != name {
			t.Errorf("%s: %s", name, r)
		}
	}
}

// D57, D59, D61: what does not fit sets TC whatever the type; the EDNS size does not count on TCP.
func TestAnswersThatDoNotFitAreCutOnUDPOnly(t *testing.T) {
	text := testZone
	for i := range 100 {
		text += fmt.Sprintf("big IN A 10.0.0.%d\nbig IN TXT \"%050d\"\n", i, i)
	}
	table := mustCompile(t, mustZone(t, text), testPlan(), false)
	for _, qtype := range []uint16{dns.TypeA, dns.TypeTXT} {
		q := query("big.gw.test.", qtype)
		if r := ask(t, table, q); !r.Truncated || len(r.Answer) > 0 {
			t.Errorf("%d without EDNS: %s", qtype, told(r))
		}
		q.SetEdns0(4096, false)
		if r := ask(t, table, q); !r.Truncated || r.IsEdns0() == nil {
			t.Errorf("%d with 4096 offered: more than 1232 were sent", qtype)
		}
		q.IsEdns0().SetUDPSize(512)
		if r := askLimit(t, table, q, 65535); r.Truncated || len(r.Answer) < 90 {
			t.Errorf("%d over TCP: tc %v, %d records", qtype, r.Truncated, len(r.Answer))
		}
	}
}

// D29: the same snapshot gives the same bytes on any router, in any process.
func TestSameSnapshotSameBytes(t *testing.T) {
	one, two := steeredTable(t), steeredTable(t)
	r := 0
	for _, qtype := range []uint16{1, 28, 16, 255} {
		for i := range 256 {
			packet, _ := withECS(query("api.gw.test.", qtype), 1, 24, 0, 5, 1, byte(i)).Pack()
			var s1, s2 answer.Scratch
			s2.Seed(12345)
			b1, b2 := make([]byte, 4096), make([]byte, 4096)
			o1, _ := one.Answer(&s1, b1, copy(b1, packet), resolver, 0)
			o2, _ := two.Answer(&s2, b2, copy(b2, packet), addr("192.0.2.200"), 0)
			if !bytes.Equal(o1, o2) {
				t.Fatalf("answers differ:\n%x\n%x", o1, o2)
			}
			r += len(o1)
		}
	}
	if r == 0 {
		t.Fatal("nothing was compared")
	}
}

// Clients of unknown place are spread over the cells in proportion, query by query.
func TestUnknownPlaceIsSpreadEvenly(t *testing.T) {
	table := steeredTable(t)
	var s answer.Scratch
	seen := map[string]int{}
	packet, _ := query("api.gw.test.", dns.TypeA).Pack()
	for range 300 {
		b := make([]byte, 4096)
		out, _ := table.Answer(&s, b, copy(b, packet), resolver, 0)
		var r dns.Msg
		if err := r.Unpack(out); err != nil {
			t.Fatal(err)
		}
		seen[r.Answer[0].(*dns.A).A.String()]++
	}
	for _, a := range []string{"192.0.2.1", "192.0.2.2", "198.51.100.1"} {
		if seen[a] < 96 || seen[a] > 104 {
			t.Errorf("%v", seen)
		}
	}
}

// Without the plan that there should be, static names are answered and nothing is denied.
func TestWithoutAPlanNothingIsDenied(t *testing.T) {
	table := mustCompile(t, mustZone(t, strings.ReplaceAll(testZone, "*.wild", "starless")), nil, true)
	for name, want := range map[string]string{
		"ns1.gw.test.": "noerror aa 192.0.2.53", "api.gw.test.": "servfail", "gw.test.": "servfail", "www.gw.test.": "servfail", "ent.gw.test.": "servfail",
	} {
		if got := told(ask(t, table, query(name, dns.TypeA))); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	if got := told(ask(t, table, query("gw.test.", dns.TypeSOA))); !strings.HasPrefix(got, "noerror aa ns1") {
		t.Error(got)
	}
}

func TestOddHeadersAreAnsweredInKind(t *testing.T) {
	table := steeredTable(t)
	base, _ := query("api.gw.test.", dns.TypeA).Pack()
	edns := query("api.gw.test.", dns.TypeA)
	edns.SetEdns0(1232, true)
	edns.IsEdns0().SetVersion(1)
	badvers, _ := edns.Pack()
	spoil := func(f func(b []byte) []byte) []byte { return f(slices.Clone(base)) }
	for name, c := range map[string]struct {
		packet []byte
		rcode  int // -1: nothing is sent
	}{
		"an answer":         {spoil(func(b []byte) []byte { b[2] |= 0x80; return b }), -1},
		"eleven bytes":      {base[:11], -1},
		"nothing":           {nil, -1},
		"header only":       {spoil(func(b []byte) []byte { b[5] = 0; return b[:12] }), dns.RcodeFormatError},
		"cut question":      {base[:len(base)-3], dns.RcodeFormatError},
		"two questions":     {spoil(func(b []byte) []byte { b[5] = 2; return append(b, b[12:]...) }), dns.RcodeFormatError},
		"update":            {spoil(func(b []byte) []byte { b[2] |= 5 << 3; return b }), dns.RcodeNotImplemented},
		"notify":            {spoil(func(b []byte) []byte { b[2] |= 4 << 3; return b }), dns.RcodeNotImplemented},
		"class CH":          {spoil(func(b []byte) []byte { b[len(b)-1] = 3; return b }), dns.RcodeRefused},
		"EDNS version 1":    {badvers, dns.RcodeBadVers},
		"pointer to self":   {spoil(func(b []byte) []byte { b[12], b[13] = 0xc0, 12; return b }), dns.RcodeFormatError},
		"label of 64":       {spoil(func(b []byte) []byte { b[12] = 64; return b }), dns.RcodeFormatError},
		"more after it":     {spoil(func(b []byte) []byte { return append(b, 1, 2, 3) }), dns.RcodeSuccess},
		"answer in a query": {spoil(func(b []byte) []byte { b[7] = 1; return append(b, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 1, 2, 3, 4) }), dns.RcodeFormatError},
	} {
		b := make([]byte, 4096)
		out, _ := table.Answer(new(answer.Scratch), b, copy(b, c.packet), resolver, 0)
		if out == nil {
			if c.rcode != -1 {
				t.Errorf("%s: no answer", name)
			}
			continue
		}
		var r dns.Msg
		if err := r.Unpack(out); err != nil || r.Rcode != c.rcode || !r.Response || r.Id != uint16(c.packet[0])<<8|uint16(c.packet[1]) {
			t.Errorf("%s: %v %s", name, err, r.MsgHdr.String())
		}
	}
}

// same compares what the two paths say about the packet, where the fast one speaks at all.
func same(t interface{ Fatalf(string, ...any) }, table *Table, packet []byte, source netip.Addr, limit int) {
	var s1, s2 answer.Scratch
	b := make([]byte, 65535)
	n := table.fast.Answer(&s1, b, copy(b, packet), source, limit)
	slow := table.slow(&s2, packet, source, limit)
	if n == answer.Slow {
		return
	}
	if n == answer.Drop {
		if slow != nil {
			t.Fatalf("fast drops, slow says %x", slow)
		}
		return
	}
	var f, s dns.Msg
	if err := f.Unpack(b[:n]); err != nil {
		t.Fatalf("the fast path's answer is unreadable: %v\n%x", err, b[:n])
	}
	if err := s.Unpack(slow); err != nil {
		t.Fatalf("the slow path's answer is unreadable: %v\n%x", err, slow)
	}
	if f.String() != s.String() {
		t.Fatalf("query %x from %s\nfast: %s\nslow: %s", packet, source, f.String(), s.String())
	}
	if n > 1232 && limit == 0 {
		t.Fatalf("%d bytes over UDP", n)
	}
}

func FuzzFastAndSlowSayTheSame(f *testing.F) {
	tables := []*Table{steeredTable(f), mustCompile(f, mustZone(f, shallow(testZone)), testPlan(), false), mustCompile(f, mustZone(f, shallow(testZone)), nil, true)}
	for _, name := range []string{"api.gw.test.", "gw.test.", "docs.gw.test.", "nope.gw.test.", "www.gw.test.", "ent.gw.test.", "example.com."} {
		for _, qtype := range []uint16{1, 28, 16} {
			p, _ := query(name, qtype).Pack()
			f.Add(p, false)
			p, _ = withECS(query(name, qtype), 1, 24, 0, 5, 1, 7).Pack()
			f.Add(p, true)
			p, _ = withECS(query(name, qtype), 2, 56, 0, 0x20, 1, 0x0d, 0xb8, 0, 1, 2).Pack()
			f.Add(p, false)
		}
	}
	f.Fuzz(func(t *testing.T, packet []byte, tcp bool) {
		if len(packet) > 65535 {
			return
		}
		limit := 0
		if tcp {
			limit = 65535
		}
		for _, table := range tables {
			same(t, table, packet, resolver, limit)
			same(t, table, packet, addr("6.1.2.3"), limit)
		}
	})
}

// shallow is the zone without wildcards and delegations, whose misses the fast path answers itself.
func shallow(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "child") && !strings.Contains(line, "wild") && !strings.Contains(line, "*") {
			out = append(out, line)
		}
	}
	return strings.Join(out, "")
}

func TestFastAndSlowSayTheSameForManyQueries(t *testing.T) {
	tables := []*Table{steeredTable(t), mustCompile(t, mustZone(t, shallow(testZone)), testPlan(), false)}
	labels := []string{"api", "docs", "gw", "test", "ns1", "six", "ent", "b", "a", "www", "x", "deep", "nope", "_tcp", strings.Repeat("l", 63)}
	rapid.Check(t, func(t *rapid.T) {
		name := strings.Join(rapid.SliceOfN(rapid.SampledFrom(labels), 0, 3).Draw(t, "labels"), ".")
		name = strings.TrimPrefix(name+rapid.SampledFrom([]string{".gw.test.", ".GW.Test.", ".other.", "."}).Draw(t, "suffix"), ".")
		if name == "" {
			name = "."
		}
		m := query(name, rapid.SampledFrom([]uint16{1, 28, 1, 28, 16, 65}).Draw(t, "type"))
		m.RecursionDesired, m.CheckingDisabled, m.AuthenticatedData = rapid.Bool().Draw(t, "rd"), rapid.Bool().Draw(t, "cd"), rapid.Bool().Draw(t, "ad")
		if rapid.Bool().Draw(t, "edns") {
			m.SetEdns0(uint16(rapid.IntRange(0, 65535).Draw(t, "size")), rapid.Bool().Draw(t, "do"))
			if rapid.Bool().Draw(t, "ecs") {
				bits := rapid.IntRange(0, 33).Draw(t, "bits")
				data := rapid.SliceOfN(rapid.Byte(), (bits+7)/8, (bits+7)/8).Draw(t, "address")
				m = withECSKept(m, 1, uint8(bits), data)
			}
			if rapid.Bool().Draw(t, "cookie") {
				m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0011223344556677"})
			}
		}
		packet, err := m.Pack()
		if err != nil {
			return // the labels came to more than a name can hold
		}
		for _, table := range tables {
			same(t, table, packet, netip.AddrFrom4([4]byte(net.IPv4(6, 1, 2, byte(rapid.IntRange(0, 255).Draw(t, "host"))).To4())), 0)
		}
	})
}

func withECSKept(m *dns.Msg, family uint16, source uint8, data []byte) *dns.Msg {
	if r := source % 8; r != 0 && len(data) > 0 {
		data[len(data)-1] &= 0xff << (8 - r)
	}
	m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_LOCAL{Code: 8, Data: append([]byte{byte(family >> 8), byte(family), source, 0}, data...)})
	return m
}

// The answer holds for every client in the scope that it names (RFC 7871 section 7.2.1).
func TestAnswerHoldsForItsWholeScope(t *testing.T) {
	table := steeredTable(t)
	rapid.Check(t, func(t *rapid.T) {
		b := [4]byte{rapid.SampledFrom([]byte{5, 6, 7, 9}).Draw(t, "b0"), byte(rapid.IntRange(0, 2).Draw(t, "b1")), byte(rapid.IntRange(0, 3).Draw(t, "b2")), rapid.Byte().Draw(t, "b3")}
		a := netip.AddrFrom4(b)
		first, ok := table.Explain("api.gw.test", a)
		if !ok {
			t.Fatal("not steered")
		}
		scope := netip.PrefixFrom(a, int(first.Scope)).Masked()
		for range 10 {
			host := rapid.Uint32().Draw(t, "host")
			x := scope.Addr().As4()
			for i := int(first.Scope); i < 32; i++ {
				x[i/8] |= byte(host>>(31-i)&1) << (7 - i%8)
			}
			other, _ := table.Explain("api.gw.test", netip.AddrFrom4(x))
			if other.Cell.ID != first.Cell.ID || other.Scope != first.Scope {
				t.Fatalf("%s and %v in %s are sent to %s and %s", a, x, scope, first.Cell.ID, other.Cell.ID)
			}
		}
	})
}

func TestFastPathDoesNotAllocate(t *testing.T) {
	table := mustCompile(t, mustZone(t, shallow(testZone)), testPlan(), false)
	var s answer.Scratch
	b := make([]byte, 4096)
	for name, m := range map[string]*dns.Msg{
		"steered":  withECS(query("api.gw.test.", dns.TypeA), 1, 24, 0, 5, 1, 7),
		"static":   query("docs.gw.test.", dns.TypeA),
		"nodata":   query("docs.gw.test.", dns.TypeAAAA),
		"nxdomain": query("a.long.name.that.does.not.exist.in.this.zone.gw.test.", dns.TypeA),
	} {
		packet, _ := m.Pack()
		if n := testing.AllocsPerRun(100, func() {
			if table.fast.Answer(&s, b, copy(b, packet), resolver, 0) <= 0 {
				t.Fatal("slow")
			}
		}); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkAnswer(b *testing.B) {
	table := mustCompile(b, mustZone(b, shallow(testZone)), testPlan(), false)
	for name, m := range map[string]*dns.Msg{"steered-ecs": withECS(query("api.gw.test.", dns.TypeA), 1, 24, 0, 5, 1, 7), "nxdomain": query("nope.gw.test.", dns.TypeA), "slow-txt": query("gw.test.", dns.TypeTXT)} {
		b.Run(name, func(b *testing.B) {
			packet, _ := m.Pack()
			var s answer.Scratch
			buf := make([]byte, 4096)
			b.ReportAllocs()
			for b.Loop() {
				table.Answer(&s, buf, copy(buf, packet), resolver, 0)
			}
		})
	}
}

// D9: the zone's own name is steered as any other, without an alias.
func TestTheApexIsSteered(t *testing.T) {
	table := steeredTable(t)
	for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
		apex := told(ask(t, table, withECS(query("gw.test.", qtype), 1, 24, 0, 5, 1, 7)))
		api := told(ask(t, table, withECS(query("api.gw.test.", qtype), 1, 24, 0, 5, 1, 7)))
		if apex != api || !strings.HasPrefix(apex, "noerror aa ") || strings.Contains(apex, "SOA@") {
			t.Errorf("%s: %s at the apex, %s below", dns.TypeToString[qtype], apex, api)
		}
	}
}

// D47: after a loss the answers are the other cells' own, of either family.
func TestAnswersAfterALossAreTheOtherCellsOwn(t *testing.T) {
	in := steer.Inputs{
		Topology: cells.Topology{Regions: []cells.Region{
			{ID: "eu-west", Clients: []netip.Prefix{pre("5.1.0.0/16")}, Cells: []cells.Cell{{ID: "eu-west/a", HTTPS: 1, Limit: 1_000_000, Addresses: []netip.Addr{addr("192.0.2.1"), addr("2001:db8::1")}}}},
			{ID: "us-east", Clients: []netip.Prefix{pre("6.1.0.0/16")}, Cells: []cells.Cell{{ID: "us-east/a", HTTPS: 1, Limit: 1_000_000, Addresses: []netip.Addr{addr("198.51.100.1"), addr("2001:db8:2::1")}}}},
		}},
		Names: map[string]string{"api.gw.test": ""}, TTL: 20 * time.Second, Epoch: 1, Health: map[cells.CellID]health.Status{"eu-west/a": health.Healthy, "us-east/a": health.Unhealthy},
	}
	plan := steer.Step(steer.State{}, in, time.Unix(1767225600, 0)).Plan
	table := mustCompile(t, mustZone(t, testZone), &plan, false)
	for qtype, want := range map[uint16]string{dns.TypeA: "noerror aa 192.0.2.1", dns.TypeAAAA: "noerror aa 2001:db8::1"} {
		if got := told(ask(t, table, withECS(query("api.gw.test.", qtype), 1, 24, 0, 6, 1, 7))); got != want {
			t.Errorf("%s: %s, want %s", dns.TypeToString[qtype], got, want)
		}
	}
}
