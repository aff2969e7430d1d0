package cells

import (
	"net/netip"
	"strings"
	"testing"
)

func world() Topology {
	at := func(s string) []netip.Addr { return []netip.Addr{netip.MustParseAddr(s)} }
	return Topology{Regions: []Region{
		{ID: "eu-west", Cells: []Cell{{ID: "eu-west/a", Addresses: at("127.10.1.1"), HTTPS: 8443, Nodes: []Node{{ID: "eu-west/a/1"}, {ID: "eu-west/a/2"}}}}},
		{ID: "us-east", Cells: []Cell{{ID: "us-east/a", Addresses: at("127.10.2.1"), HTTPS: 8443}}},
	}}
}

func TestTopologyNamesWhatIsWrongWithIt(t *testing.T) {
	good := world()
	if err := good.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(*Topology){
		"no region":      func(w *Topology) { w.Regions = nil },
		"used twice":     func(w *Topology) { w.Regions[1].ID = "eu-west" },
		"in its region":  func(w *Topology) { w.Regions[1].Cells[0].ID = "eu-west/b" },
		"an address":     func(w *Topology) { w.Regions[1].Cells[0].Addresses = nil },
		"in its cell":    func(w *Topology) { w.Regions[0].Cells[0].Nodes[0].ID = "us-east/a/1" },
		`id "" is empty`: func(w *Topology) { w.Regions[0].Cells[0].Nodes[0].ID = "" },
	} {
		w := world()
		spoil(&w)
		if err := w.Validate(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLatencyHasASaneValueWithoutATable(t *testing.T) {
	w := world()
	if w.Latency(0, 0) != 0 || w.Latency(0, 1) != 100 {
		t.Fatalf("%d, %d", w.Latency(0, 0), w.Latency(0, 1))
	}
	w.LatencyMS = [][]int32{{1, 80}, {80, 1}}
	if w.Latency(0, 1) != 80 || w.Latency(1, 1) != 1 {
		t.Fatalf("%d, %d", w.Latency(0, 1), w.Latency(1, 1))
	}
	if _, ok := w.Cell("us-east/a"); !ok || len(w.Cells()) != 2 {
		t.Fatal("cells are missing")
	}
}
