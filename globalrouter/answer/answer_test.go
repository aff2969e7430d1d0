package answer

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/locate"
	"github.com/cellgate/cellgate/globalrouter/steer"
)

func wire(t testing.TB, name string) string {
	w, ok := Wire(name)
	if !ok {
		t.Fatalf("%q is no name", name)
	}
	return w
}

// testTable is the zone "t" with a static host, and one steered name over two cells.
func testTable(t testing.TB, cellAddrs int) *Table {
	var addrs []netip.Addr
	for i := range cellAddrs {
		addrs = append(addrs, netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}))
	}
	in := steer.Inputs{
		Topology: cells.Topology{Regions: []cells.Region{{ID: "r", Cells: []cells.Cell{{ID: "r/a", HTTPS: 1, Addresses: addrs}, {ID: "r/b", HTTPS: 1, Addresses: addrs}}}}},
		Names:    map[string]string{"api.t": ""}, TTL: 20 * time.Second,
	}
	plan := steer.Step(steer.State{}, in, time.Unix(1, 0)).Plan
	l, err := locate.Build([]locate.Entry{{Prefix: netip.MustParsePrefix("5.0.0.0/8"), Locality: 1}})
	if err != nil {
		t.Fatal(err)
	}
	z := Zone{Origin: wire(t, "t"), SOA: make([]byte, 22), NegativeTTL: 300, Nodes: map[string]Node{
		wire(t, "t"):      {},
		wire(t, "host.t"): {A: Addresses{TTL: 7, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.9")}}},
		wire(t, "slow.t"): {Slow: true},
	}}
	return New(z, &plan, l, false)
}

// packet is a question for an address, with a tail behind it (an OPT record) when tail is not empty.
func packet(t testing.TB, name string, qtype byte, tail string) []byte {
	b := []byte{1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}
	b = append(b, wire(t, name)...)
	b = append(b, 0, qtype, 0, 1)
	if tail != "" {
		raw, err := hex.DecodeString(strings.ReplaceAll(tail, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		b[11] = 1
		b = append(b, raw...)
	}
	return b
}

const (
	opt    = "00 0029 04d0 00 00 8000 0000"
	optECS = "00 0029 04d0 00 00 0000 000b 0008 0007 0001 18 00 05 01 07"
)

func TestAnswersByteForByte(t *testing.T) {
	table := testTable(t, 1)
	for name, c := range map[string]struct {
		packet []byte
		want   string // behind the question
		flags  string
	}{
		"static":       {packet(t, "host.t", 1, ""), "c00c 0001 0001 00000007 0004 c0000209", "8500 0001 0001 0000 0000"},
		"with EDNS":    {packet(t, "host.t", 1, opt), "c00c 0001 0001 00000007 0004 c0000209 00 0029 04d0 00 00 8000 0000", "8500 0001 0001 0000 0001"},
		"steered, ECS": {packet(t, "api.t", 1, optECS), "c00c 0001 0001 00000014 0004 c0000200 00 0029 04d0 00 00 0000 000b 0008 0007 0001 18 18 05 01 07", "8500 0001 0001 0000 0001"},
		"no data":      {packet(t, "api.t", 28, ""), "c010 0006 0001 00000014 0016 " + strings.Repeat("00", 22), "8500 0001 0000 0001 0000"},
		"no name":      {packet(t, "nope.t", 1, ""), "c011 0006 0001 00000014 0016 " + strings.Repeat("00", 22), "8503 0001 0000 0001 0000"},
	} {
		b := make([]byte, 2048)
		n := table.Answer(new(Scratch), b, copy(b, c.packet), netip.MustParseAddr("5.1.1.1"), 0)
		if n <= 0 {
			t.Errorf("%s: %d", name, n)
			continue
		}
		end := 12
		for b[end] != 0 {
			end += 1 + int(b[end])
		}
		end += 5
		if got, want := hex.EncodeToString(b[end:n]), strings.ReplaceAll(c.want, " ", ""); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
		if got, want := hex.EncodeToString(b[2:12]), strings.ReplaceAll(c.flags, " ", ""); got != want {
			t.Errorf("%s: flags and counts %s, want %s", name, got, want)
		}
	}
}

func TestUnusualQueriesAreLeftToTheSlowPath(t *testing.T) {
	table := testTable(t, 1)
	change := func(at int, v byte) []byte { b := packet(t, "host.t", 1, opt); b[at] = v; return b }
	for name, p := range map[string][]byte{
		"text": packet(t, "host.t", 16, ""), "slow node": packet(t, "slow.t", 1, ""), "outside": packet(t, "host.u", 1, ""), "the root": packet(t, "", 1, ""),
		"notify": change(2, 0x20), "two questions": change(5, 2), "an answer": change(7, 1), "two more": change(11, 2),
		"no OPT": change(26, 250), "version 1": change(30, 1), "cut": packet(t, "host.t", 1, opt)[:30], "trailing": append(packet(t, "host.t", 1, ""), 0),
	} {
		b := make([]byte, 2048)
		n := copy(b, p)
		if got := table.Answer(new(Scratch), b, n, netip.MustParseAddr("5.1.1.1"), 0); got != Slow {
			t.Errorf("%s: %d", name, got)
		}
		if hex.EncodeToString(b[:n]) != hex.EncodeToString(p) {
			t.Errorf("%s: the packet was changed on its way to the slow path", name)
		}
	}
}

func TestLargeAnswersAreCutToWhatTheClientTakes(t *testing.T) {
	table := testTable(t, 100)
	for _, c := range []struct {
		tail  string
		limit int
		cut   bool
	}{
		{"", 0, true},
		{"00 0029 ffff 00 00 0000 0000", 0, true}, // never more than MaxUDP
		{"", 65535, false},
		{"00 0029 0200 00 00 0000 0000", 65535, false}, // TCP does not care what UDP may be
	} {
		b := make([]byte, 65535)
		n := table.Answer(new(Scratch), b, copy(b, packet(t, "api.t", 1, c.tail)), netip.MustParseAddr("5.1.1.1"), c.limit)
		if got := b[2]&2 != 0; got != c.cut || c.cut != (b[7] == 0) || !c.cut && n < 1600 {
			t.Errorf("%+v: tc %v, %d records, %d bytes", c, got, b[7], n)
		}
	}
}

func TestWireNames(t *testing.T) {
	for name, want := range map[string]string{
		"": "\x00", "t": "\x01t\x00", "API.t.": "\x03api\x01t\x00", "..": "-", "a..b": "-", ".a": "-", strings.Repeat("a", 64): "-",
		strings.Repeat("a.", 127): strings.Repeat("\x01a", 127) + "\x00", strings.Repeat("a.", 128): "-",
	} {
		got, ok := Wire(name)
		if !ok {
			got = "-"
		}
		if got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func FuzzAnswerStaysInItsBuffer(f *testing.F) {
	table := testTable(f, 90)
	for _, tail := range []string{"", opt, optECS} {
		for _, name := range []string{"api.t", "host.t", "nope.t"} {
			f.Add(packet(f, name, 1, tail))
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) > MaxUDP {
			return
		}
		room := make([]byte, MaxUDP+64)
		n := copy(room, p)
		b := room[:MaxUDP:MaxUDP]
		if n = table.Answer(new(Scratch), b, n, netip.Addr{}, 0); n > MaxUDP {
			t.Fatalf("%d bytes", n)
		}
	})
}

// D19: the share of clients that are sent to a cell is its share of the slots, and a cell without slots gets none.
func TestSharesOfClientsFollowTheSlots(t *testing.T) {
	table := testTable(t, 1)
	row := table.plan.Rows[0][1]
	for i := range row {
		row[i] = uint16(i / 192) // three quarters and one quarter
	}
	for _, v6 := range []bool{false, true} {
		seen := map[uint16]int{}
		const clients = 20_000
		for i := range clients {
			a := netip.AddrFrom4([4]byte{5, byte(i >> 8), byte(i), 1})
			if v6 {
				a = netip.AddrFrom16([16]byte{0x20, 1, byte(i >> 16), byte(i >> 8), byte(i), 7, 15: 1})
			}
			seen[row[Slot(table.plan.Sets[0], a)]]++
		}
		if share := float64(seen[0]) / clients; share < 0.735 || share > 0.765 || len(seen) != 2 {
			t.Errorf("v6 %v: %v", v6, seen)
		}
	}
}
