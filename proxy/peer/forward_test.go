package peer

import (
	"context"
	"crypto/tls"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/reason"
)

func topology(peers ...string) *cells.Topology {
	t := &cells.Topology{Regions: []cells.Region{{ID: "e"}}}
	for i, id := range []cells.CellID{"e/a", "e/b", "e/c"} {
		c := cells.Cell{ID: id, Limit: 10_000_000, Nodes: []cells.Node{{ID: cells.NodeID(id + "/1")}, {ID: cells.NodeID(id + "/2")}}}
		if i > 0 && i <= len(peers) {
			c.Nodes[0].Peer = netip.MustParseAddrPort(peers[i-1])
		}
		t.Regions[0].Cells = append(t.Regions[0].Cells, c)
	}
	return t
}

// planTo gives all slots to the cell of this index.
func planTo(cell uint16) *steer.Plan {
	row := make(steer.Row, steer.Slots)
	for i := range row {
		row[i] = cell
	}
	return &steer.Plan{Cells: []steer.Cell{{ID: "e/a"}, {ID: "e/b"}, {ID: "e/c"}}, Localities: []steer.Locality{{ID: "unknown"}},
		Sets: []steer.Set{{ID: "s"}}, Names: map[string]int{"h.test": 0}, Rows: [][]steer.Row{{row}}}
}

func forwarder(finished func() uint64) *Forwarder {
	return NewForwarder(ForwarderOptions{ID: "e/a/1", Finished: finished, TLS: func(cells.CellID) *tls.Config { return &tls.Config{} }})
}

func TestPoolsFollowPlanAndTopology(t *testing.T) {
	f, client := forwarder(func() uint64 { return 0 }), netip.MustParseAddr("5.1.1.1")
	if f.Pool("h.test", client) != nil || !f.Room(cells.PriorityBackground) {
		t.Error("it forwards, or refuses, before it knows anything")
	}
	update := func(top *cells.Topology, p *steer.Plan) {
		t.Helper()
		if err := f.Update(top, p); err != nil {
			t.Fatal(err)
		}
	}
	update(topology("127.0.0.1:1", "127.0.0.1:2"), planTo(1))
	first := f.Pool("h.test", client)
	if first == nil || first.ID != "peer:e/b" || first.Name(0) != "127.0.0.1:1" || f.Pool("other.test", client) != nil {
		t.Fatalf("pool %+v", first)
	}
	update(topology("127.0.0.1:1", "127.0.0.1:2"), planTo(2))
	if p := f.Pool("h.test", client); p == nil || p.ID != "peer:e/c" {
		t.Fatalf("pool %+v", p)
	}
	update(topology("127.0.0.1:1", "127.0.0.1:3"), planTo(1))
	if f.Pool("h.test", client) != first {
		t.Error("a pool whose peers are the same was made anew")
	}
	update(topology("127.0.0.1:4"), planTo(1))
	if p := f.Pool("h.test", client); p == first || p.Name(0) != "127.0.0.1:4" {
		t.Error("a pool whose peers moved was kept")
	}
	update(topology("127.0.0.1:4"), planTo(2))
	if f.Pool("h.test", client) != nil {
		t.Error("a cell without peer listeners is forwarded to")
	}
	update(topology("127.0.0.1:4"), planTo(0))
	if f.Forwarding() {
		t.Error("the plan names the own cell")
	}
	update(topology("127.0.0.1:4"), planTo(1))
	update(topology("127.0.0.1:4"), nil)
	if f.Forwarding() || len(f.pools) != 0 {
		t.Error("without a plan it goes on")
	}
}

func TestLoadIsTheRateOverTheNodesShareOfTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var finished atomic.Uint64
		f := forwarder(finished.Load)
		if err := f.Update(topology(), nil); err != nil { // 10,000/s for two nodes
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = f.Run(ctx) }()
		at := func(perSecond uint64) {
			for range 300 {
				finished.Add(perSecond / 100)
				time.Sleep(10 * time.Millisecond)
			}
		}
		for _, c := range []struct {
			rate                         uint64
			critical, normal, background bool
		}{{3000, true, true, true}, {4100, true, true, false}, {4400, true, false, false}, {4900, false, false, false}, {1000, true, true, true}} {
			at(c.rate)
			if f.Room(cells.PriorityCritical) != c.critical || f.Room(cells.PriorityNormal) != c.normal || f.Room(cells.PriorityBackground) != c.background {
				t.Errorf("at %d/s of 5000: load %d", c.rate, f.load.Load())
			}
		}
		for range 300 { // a flood of which nothing is taken
			for range 100 {
				finished.Add(1)
				f.Record(&proxy.Record{Via: "e/b/1", Reason: reason.ForwardRefused})
			}
			time.Sleep(10 * time.Millisecond)
		}
		if !f.Room(cells.PriorityBackground) {
			t.Errorf("what was refused counts as load: %d", f.load.Load())
		}
		cancel()
		synctest.Wait()
	})
}
