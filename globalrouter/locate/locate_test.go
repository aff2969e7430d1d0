package locate

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"
)

// naive is longest prefix match by looking at every entry.
func naive(es []Entry, a netip.Addr) uint16 {
	best, locality := -1, uint16(0)
	for _, e := range es {
		if e.Prefix.Contains(a) && e.Prefix.Bits() > best {
			best, locality = e.Prefix.Bits(), e.Locality
		}
	}
	return locality
}

func drawEntries(t *rapid.T) []Entry {
	seen := map[netip.Prefix]bool{}
	var es []Entry
	for range rapid.IntRange(0, 30).Draw(t, "entries") {
		p := drawPrefix(t)
		if !seen[p] {
			seen[p] = true
			es = append(es, Entry{p, uint16(rapid.IntRange(0, 3).Draw(t, "locality"))})
		}
	}
	return es
}

// drawPrefix crowds the prefixes together, so that they nest and touch.
func drawPrefix(t *rapid.T) netip.Prefix {
	if rapid.Bool().Draw(t, "v6") {
		b := [16]byte{0x20, 1, 0, byte(rapid.IntRange(0, 3).Draw(t, "b3")), 0, 0, byte(rapid.IntRange(0, 3).Draw(t, "b6")), 15: byte(rapid.IntRange(0, 255).Draw(t, "b15"))}
		return netip.PrefixFrom(netip.AddrFrom16(b), rapid.IntRange(0, 128).Draw(t, "len")).Masked()
	}
	b := [4]byte{5, byte(rapid.IntRange(0, 3).Draw(t, "b1")), byte(rapid.IntRange(0, 3).Draw(t, "b2")), byte(rapid.IntRange(0, 255).Draw(t, "b3"))}
	return netip.PrefixFrom(netip.AddrFrom4(b), rapid.IntRange(0, 32).Draw(t, "len")).Masked()
}

// inside draws an address of the prefix.
func inside(t *rapid.T, p netip.Prefix) netip.Addr {
	raw := rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "host")
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < len(b)*8; i++ {
		b[i/8] |= raw[i/8] & (0x80 >> (i % 8))
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func TestLookupIsLongestPrefixAndScopeIsUniform(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		es := drawEntries(t)
		table, err := Build(es)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			a := inside(t, drawPrefix(t))
			got, scope := table.Lookup(a)
			if want := naive(es, a); got != want {
				t.Fatalf("%s: locality %d, longest prefix says %d", a, got, want)
			}
			p := netip.PrefixFrom(a, int(scope)).Masked()
			for range 5 {
				b := inside(t, p)
				if loc, sc := table.Lookup(b); loc != got || sc != scope {
					t.Fatalf("%s and %s are both in %s but have localities %d and %d, scopes %d and %d", a, b, p, got, loc, scope, sc)
				}
			}
			for _, e := range es {
				if e.Prefix.Bits() > int(scope) && e.Prefix.Addr().BitLen() == a.BitLen() && p.Contains(e.Prefix.Addr()) && naive(es, e.Prefix.Addr()) != got {
					t.Fatalf("%s has scope %d although %s in it differs", a, scope, e.Prefix)
				}
			}
		}
	})
}

func TestScopeIsAsWideAsCanBe(t *testing.T) {
	pre := netip.MustParsePrefix
	table, err := Build([]Entry{{pre("5.0.0.0/9"), 1}, {pre("5.128.0.0/9"), 1}, {pre("6.1.2.0/24"), 2}, {pre("6.1.2.128/30"), 3}, {pre("2001:db8::/32"), 4}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addr     string
		locality uint16
		scope    uint8
	}{
		{"5.1.2.3", 1, 8}, {"6.1.2.1", 2, 25}, {"6.1.2.130", 3, 30}, {"6.1.2.132", 2, 30}, {"6.1.3.1", 0, 24},
		{"200.1.1.1", 0, 1}, {"2001:db8:ffff::1", 4, 32}, {"2001:db9::1", 0, 32}, {"fe80::1", 0, 1}, {"::ffff:5.1.2.3", 1, 8},
	} {
		if l, s := table.Lookup(netip.MustParseAddr(c.addr)); l != c.locality || s != c.scope {
			t.Errorf("%s: locality %d scope %d, want %d and %d", c.addr, l, s, c.locality, c.scope)
		}
	}
}

func TestContradictionsAndHostBitsAreRefused(t *testing.T) {
	pre := netip.MustParsePrefix
	for _, es := range [][]Entry{
		{{pre("5.0.0.0/8"), 1}, {pre("5.0.0.0/8"), 2}},
		{{pre("5.0.0.1/8"), 1}},
		{{netip.Prefix{}, 1}},
		{{pre("::ffff:5.0.0.0/104"), 1}},
	} {
		if _, err := Build(es); err == nil {
			t.Errorf("%v was accepted", es)
		}
	}
	if l, s := new(Table).Lookup(netip.MustParseAddr("1.2.3.4")); l != 0 || s != 0 {
		t.Error("the zero table knows something")
	}
}

func big(n int) *Table {
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[netip.Prefix]bool{}
	var es []Entry
	for len(es) < n {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], r.Uint32())
		p := netip.PrefixFrom(netip.AddrFrom4(b), 12+r.IntN(13)).Masked()
		if !seen[p] {
			seen[p] = true
			es = append(es, Entry{p, uint16(1 + r.IntN(2000))})
		}
	}
	t, err := Build(es)
	if err != nil {
		panic(err)
	}
	return t
}

func BenchmarkLookup4(b *testing.B) {
	t := big(500_000)
	x, sum := uint32(1), uint16(0)
	b.ReportMetric(float64(len(t.v4.blocks)*4)/1e6, "MB")
	for b.Loop() {
		x = x*1664525 + 1013904223
		l, _ := t.Lookup4(x)
		sum += l
	}
	_ = sum
}
