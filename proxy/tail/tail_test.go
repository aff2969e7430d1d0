package tail

import (
	"fmt"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/answer"
	"github.com/cellgate/cellgate/globalrouter/locate"
	"github.com/cellgate/cellgate/globalrouter/steer"
)

// drawPlan has two sets over three cells and three localities; cell 0 is ours and owns no slot.
func drawPlan(t *rapid.T) *steer.Plan {
	p := &steer.Plan{Form: 1, Epoch: 1, Number: 1, TTL: 5, Names: map[string]int{"api.gw.test": 0, "acme.gw.test": 1}}
	for i := range 4 {
		p.Cells = append(p.Cells, steer.Cell{ID: cells.CellID(fmt.Sprintf("r/%c", 'a'+i)), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 1, 1, byte(1 + i)})}})
	}
	p.Localities = []steer.Locality{
		{ID: "unknown", LatencyMS: make([]int32, 4)},
		{ID: "r", Prefixes: []netip.Prefix{netip.MustParsePrefix("5.1.0.0/16"), netip.MustParsePrefix("2001:db8::/32")}, LatencyMS: make([]int32, 4)},
		{ID: "s", Prefixes: []netip.Prefix{netip.MustParsePrefix("5.1.128.0/17")}, LatencyMS: make([]int32, 4)},
	}
	for s := range 2 {
		p.Sets = append(p.Sets, steer.Set{ID: fmt.Sprint(s), Salt: rapid.Uint64().Draw(t, "salt"), Cells: []uint16{0, 1, 2, 3}})
		var rows []steer.Row
		for range p.Localities {
			row := make(steer.Row, steer.Slots)
			for i := range row {
				row[i] = uint16(rapid.IntRange(1, 3).Draw(t, "owner"))
			}
			rows = append(rows, row)
		}
		p.Rows = append(p.Rows, rows)
	}
	return p
}

func TestForwardingAndDNSAlwaysSayTheSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan := drawPlan(t)
		if err := plan.Validate(); err != nil {
			t.Fatal(err)
		}
		table, err := New(plan, "r/a")
		if err != nil || table == nil {
			t.Fatal(table, err)
		}
		var entries []locate.Entry
		for i, l := range plan.Localities {
			for _, p := range l.Prefixes {
				entries = append(entries, locate.Entry{Prefix: p, Locality: uint16(i)})
			}
		}
		l, err := locate.Build(entries)
		if err != nil {
			t.Fatal(err)
		}
		origin, _ := answer.Wire("gw.test")
		dns := answer.New(answer.Zone{Origin: origin, Nodes: map[string]answer.Node{}}, plan, l, false)
		for range 50 {
			four := [4]byte{5, 1, rapid.Byte().Draw(t, "c"), rapid.Byte().Draw(t, "d")}
			client := netip.AddrFrom4(four)
			if rapid.Bool().Draw(t, "elsewhere") {
				client = netip.AddrFrom4([4]byte{9, four[2], four[3], 1})
			} else if rapid.Bool().Draw(t, "six") {
				client = netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, four[2], four[3], 7})
			}
			for _, host := range []string{"api.gw.test", "acme.gw.test"} {
				wire, _ := answer.Wire(host)
				want, ok := dns.Explain(&answer.Scratch{}, wire, client, true)
				got, ok2 := table.Cell(host, client)
				if !ok || !ok2 || got != want.Cell.ID {
					t.Fatalf("%s for %s: forwarded to %s, DNS says %s", host, client, got, want.Cell.ID)
				}
			}
		}
		if _, ok := table.Cell("other.gw.test", netip.MustParseAddr("5.1.1.1")); ok {
			t.Fatal("a host that nobody steers is forwarded")
		}
	})
}

func TestNothingIsForwardedWhileThePlanNamesTheCell(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		plan := drawPlan(t)
		plan.Rows[rapid.IntRange(0, 1).Draw(t, "set")][rapid.IntRange(0, 2).Draw(t, "locality")][rapid.IntRange(0, 255).Draw(t, "slot")] = 0
		if table, err := New(plan, "r/a"); err != nil || table != nil {
			t.Fatalf("%v, %v", table, err)
		}
		plan = drawPlan(t)
		plan.AllDown = true
		if table, err := New(plan, "r/a"); err != nil || table != nil {
			t.Fatalf("all down: %v, %v", table, err)
		}
	})
}

func TestRoomEndsByPriority(t *testing.T) {
	for load, want := range map[int64][3]bool{
		0: {true, true, true}, 799: {true, true, true}, 800: {true, true, false}, 849: {true, true, false}, 850: {true, false, false}, 949: {true, false, false}, 950: {},
	} {
		if got := [3]bool{Room(load, cells.PriorityCritical), Room(load, cells.PriorityNormal), Room(load, cells.PriorityBackground)}; got != want {
			t.Errorf("at %d: %v, want %v", load, got, want)
		}
	}
}

func TestLookUpDoesNotAllocate(t *testing.T) {
	plan := rapid.Custom(drawPlan).Example(1)
	table, err := New(plan, "r/a")
	if err != nil {
		t.Fatal(err)
	}
	client := netip.MustParseAddr("5.1.200.7")
	if n := testing.AllocsPerRun(100, func() { table.Cell("api.gw.test", client) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
