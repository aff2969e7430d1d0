package judge

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/report"
)

const second = 2 * time.Second // a window

// cell is a small world without chance: node 0 is the canary.
type cell struct {
	nodes, t int
	memory   *Memory
	rounds   []*Round
	sides    Sides
	report   func(node, t int) report.Node
}

func newCell(nodes int, f func(node, t int) report.Node) *cell {
	c := &cell{nodes: nodes, memory: NewMemory(second), report: f}
	for i := range nodes {
		if i == 0 {
			c.sides.Canary = []cells.NodeID{id(i)}
		} else {
			c.sides.Rest = append(c.sides.Rest, []cells.NodeID{id(i)})
		}
	}
	return c
}

func id(i int) cells.NodeID { return cells.NodeID(fmt.Sprintf("eu/a/%d", i)) }

func (c *cell) next() *Round {
	c.t++
	at := time.Unix(1_800_000_000, 0).Add(time.Duration(c.t) * second)
	for i := range c.nodes {
		n := c.report(i, c.t)
		n.ID, n.Window = id(i), second
		if n.Boot == "" {
			n.Boot, n.Seq = "1", uint64(c.t)
		}
		c.memory.Hear(n, at)
	}
	end := at.Add(second - 1)
	c.rounds = c.memory.Rounds(end)
	if n := len(c.rounds); n > 0 && c.rounds[n-1].To == end {
		return c.rounds[n-1]
	}
	return &Round{From: at, To: end} // nobody said anything that can be believed
}

// bake runs before windows, swaps, and runs windows more or until it is convicted.
func (c *cell) bake(before, windows int) *State {
	for range before {
		c.next()
	}
	s := Start(nil, c.rounds, c.sides, 60*second, second)
	for range windows {
		if s.Step(c.next(), c.sides); s.Worse != "" {
			break
		}
	}
	return s
}

// plain is an ordinary window of 400 requests on one service.
func plain(c report.Counts) report.Node {
	c.Requests = 400
	warm := report.Span{From: 100, Buckets: []uint32{200, 160, 36, 4}}
	host := report.Counts{Requests: 400, NoRoute: c.NoRoute}
	at := c
	at.NoRoute = 0
	return report.Node{Counts: c, Services: []report.Stratum{{ID: "orders", Counts: at, Warm: warm}}, Hosts: []report.Stratum{{ID: "api", Counts: host}}}
}

func fault(on func(node, t int) bool, c report.Counts) func(node, t int) report.Node {
	return func(node, t int) report.Node {
		base := report.Counts{Upstream: 4, Auth: 4}
		if on(node, t) {
			base.Add(c)
		}
		return plain(base)
	}
}

func TestEachCauseIsFoundAndNamed(t *testing.T) {
	for name, c := range map[string]report.Counts{
		"gateway failures": {Gateway: 40}, "upstream failures": {Upstream: 40}, "authentication refusals": {Auth: 40},
		"known hosts' paths answered 404": {NoRoute: 40}, "rejects": {Shed: 40},
	} {
		s := newCell(8, fault(func(node, t int) bool { return node == 0 && t > 30 }, c)).bake(30, 30)
		if !strings.HasPrefix(s.Worse, name) || s.Windows > 5 {
			t.Errorf("%s: %q after %d windows", name, s.Worse, s.Windows)
		}
		if v := s.Verdict(); v.Worse != s.Worse || v.Enough {
			t.Errorf("%+v", v)
		}
	}
	slow := newCell(8, func(node, t int) report.Node {
		n := plain(report.Counts{})
		if node == 0 && t > 30 {
			n.Services[0].Warm.From += 8 // twice as slow
		}
		return n
	}).bake(30, 30)
	if !strings.Contains(slow.Worse, "slower") || slow.Windows > 5 {
		t.Errorf("%q after %d windows", slow.Worse, slow.Windows)
	}
}

func TestUpstreamsThatKnowNothingAndConnectionsThatDontLastAreFound(t *testing.T) {
	for name, f := range map[string]func(n *report.Node){
		"upstreams' answers 404": func(n *report.Node) {
			n.Counts.Missing, n.Services[0].Missing, n.Hosts[0].Missing = 40, 40, 40
		},
		"requests that waited for a connection": func(n *report.Node) { n.Services[0].Cold = 200 },
	} {
		s := newCell(8, func(node, t int) report.Node {
			n := plain(report.Counts{Upstream: 4})
			if node == 0 && t > 30 {
				f(&n)
			}
			return n
		}).bake(30, 30)
		if !strings.HasPrefix(s.Worse, name) || s.Windows > 12 {
			t.Errorf("%s: %q after %d windows", name, s.Worse, s.Windows)
		}
	}
	// Connections are made anew after a swap, and the pools fill again: nobody's fault, however few the others need.
	s := newCell(8, func(node, t int) report.Node {
		n := plain(report.Counts{Upstream: 4})
		if node == 0 && t > 30 {
			n.Services[0].Cold = uint64(100 * math.Exp(-float64(t-31)*.4))
		}
		return n
	}).bake(30, 30)
	if s.Worse != "" || s.E > 1 {
		t.Errorf("a warm-up: %q, evidence %v", s.Worse, s.E)
	}
}

// Latencies are compared upstream by upstream, or over all when requests have moved to an upstream that the rest doesn't ask.
func TestASlowerUpstreamOfTheVersionsOwnIsFound(t *testing.T) {
	for slower, blamed := range map[int]bool{0: false, 8: true} {
		s := newCell(8, func(node, t int) report.Node {
			n := plain(report.Counts{Upstream: 4})
			if node == 0 && t > 30 {
				moved := n.Services[0]
				moved.ID, moved.Requests, moved.Counts.Upstream = "orders-next", 200, 2
				moved.Warm = report.Span{From: 100 + slower, Buckets: []uint32{100, 80, 18, 2}}
				n.Services[0].Requests, n.Services[0].Counts.Upstream = 200, 2
				n.Services[0].Warm.Buckets = []uint32{100, 80, 18, 2}
				n.Services = append(n.Services, moved)
			}
			return n
		}).bake(30, 30)
		if blamed != strings.Contains(s.Worse, "slower") || !blamed && (s.Worse != "" || s.E > 1) {
			t.Errorf("%d buckets slower: %q, evidence %v", slower, s.Worse, s.E)
		}
	}
}

// A canary that is alone is compared with its past, as the veterans' has changed meanwhile.
func TestWhatVeteransMeetWithAsWellIsNotTheLastRingsFault(t *testing.T) {
	for _, c := range []struct {
		everybody, blamed bool
		counts            report.Counts
	}{
		{true, false, report.Counts{Upstream: 200, Auth: 80}},
		{false, true, report.Counts{Upstream: 200}},
		{true, true, report.Counts{Gateway: 80}}, // nobody fails it but the gateway
	} {
		w := newCell(8, fault(func(node, t int) bool { return t > 35 && (c.everybody || node < 3) }, c.counts))
		w.sides = Sides{Canary: []cells.NodeID{id(0), id(1), id(2)}}
		for i := 3; i < 8; i++ {
			w.sides.Veterans = append(w.sides.Veterans, id(i))
		}
		s := w.bake(30, 60)
		if !s.Alone || (s.Worse != "") != c.blamed || !c.blamed && !s.Verdict().Enough {
			t.Errorf("%+v: %q, %+v", c, s.Worse, s.Verdict())
		}
	}
}

func TestWhatHitsEverybodyIsNobodysFault(t *testing.T) {
	s := newCell(8, fault(func(_, t int) bool { return t > 35 && t < 60 }, report.Counts{Upstream: 300, Gateway: 60, Auth: 100, NoRoute: 30})).bake(30, 60)
	if s.Worse != "" || s.E > 1 {
		t.Errorf("%q, evidence %v", s.Worse, s.E)
	}
}

func TestOneWindowNeverConvicts(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		c := report.Counts{Gateway: rapid.Uint64Range(0, 400).Draw(rt, "gateway"), Auth: rapid.Uint64Range(0, 300).Draw(rt, "auth"), NoRoute: rapid.Uint64Range(0, 400).Draw(rt, "noroute")}
		at := rapid.IntRange(11, 30).Draw(rt, "at")
		s := newCell(6, fault(func(node, t int) bool { return node == 0 && t == at }, c)).bake(10, 25)
		if s.Worse != "" {
			rt.Fatalf("%s", s.Worse)
		}
	})
}

// A version that sends a route to another upstream is judged by what becomes of the requests, not by where they go.
func TestAnotherUpstreamIsJudgedByWhatBecomesOfTheRequests(t *testing.T) {
	for _, c := range []struct {
		failing uint64
		blamed  bool
	}{{4, false}, {60, true}} {
		s := newCell(8, func(node, t int) report.Node {
			n := plain(report.Counts{Upstream: 4})
			if node == 0 && t > 30 {
				n.Services[0].ID = "orders-next"
				n.Services[0].Upstream, n.Counts.Upstream = c.failing, c.failing
			}
			return n
		}).bake(30, 60)
		if (s.Worse != "") != c.blamed || s.Verdict().Enough == c.blamed {
			t.Errorf("%d of 400 fail: %q, %+v", c.failing, s.Worse, s.Verdict())
		}
	}
}

func TestACanaryThatWasAlwaysWorseIsNotBlamed(t *testing.T) {
	s := newCell(8, fault(func(node, _ int) bool { return node == 0 }, report.Counts{Upstream: 5, Auth: 5})).bake(60, 60)
	if s.Worse != "" || !s.Verdict().Enough {
		t.Errorf("%q: %s", s.Worse, s.Verdict().Summary)
	}
}

func TestWhatABadVersionDidBeforeIsNotTheCanarysPast(t *testing.T) {
	for served, blamed := range map[uint64]bool{1: false, 2: true} {
		f := fault(func(node, t int) bool { return node == 0 && (t > 10 && t <= 35 || t > 40) }, report.Counts{Upstream: 8})
		s := newCell(8, func(node, t int) report.Node {
			n := f(node, t)
			if n.Snapshot.Served = 1; node == 0 && t > 10 && t <= 35 {
				n.Snapshot.Served = served
			}
			return n
		}).bake(40, 30)
		if (s.Worse != "") != blamed {
			t.Errorf("version %d failed before: %q", served, s.Worse)
		}
	}
}

func TestTheHeaviestClientIsSetAsideUnlessItIsTheTraffic(t *testing.T) {
	for _, c := range []struct {
		name     string
		more     uint64 // requests beyond the 400 that are usual
		requests uint64 // of the heaviest client
		blamed   bool
	}{
		{"one of many fails", 0, 40, false},
		{"most of the traffic fails", 0, 300, true},
		{"one hammers", 40, 40, false},
		{"one hammers with more than all the others ask", 1200, 1200, false},
		{"most of the traffic asks more, and fails", 100, 400, true},
		{"one hammers, with less than the others ask", 200, 200, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newCell(8, func(node, t int) report.Node {
				n := plain(report.Counts{Upstream: 4, Auth: 4})
				if node == 0 && t > 30 {
					n.Counts.Requests += c.more
					n.Services[0].Requests += c.more
					n.Services[0].Auth += 40
					n.Services[0].Heavy = &report.Counts{Requests: c.requests, Auth: 40}
				}
				return n
			}).bake(30, 30)
			if (s.Worse != "") != c.blamed {
				t.Error(s.Worse)
			}
		})
	}
}

// The upstream that a version sends a part of the traffic to is new: nothing is usual there, and one client is all of it.
func TestTheOnlyClientOfAVersionsOwnUpstreamIsTheTraffic(t *testing.T) {
	s := newCell(8, func(node, t int) report.Node {
		n := plain(report.Counts{Upstream: 4, Auth: 4})
		if node == 0 && t > 30 {
			n.Services[0].Requests -= 120
			n.Services = append(n.Services, report.Stratum{ID: "own", Counts: report.Counts{Requests: 120, Upstream: 60}, Heavy: &report.Counts{Requests: 120, Upstream: 60}})
			n.Counts.Upstream += 60
		}
		return n
	}).bake(30, 30)
	if !strings.Contains(s.Worse, "upstream failures") {
		t.Errorf("half of a third fails: %q", s.Worse)
	}
}

func TestTooLittleIsNeverAPass(t *testing.T) {
	for name, f := range map[string]func(node, t int) report.Node{
		"no requests": func(_, _ int) report.Node { return report.Node{} },
		"a few requests": func(_, _ int) report.Node {
			return report.Node{Counts: report.Counts{Requests: 2}}
		},
		"a small stratum fails": func(node, t int) report.Node {
			n := plain(report.Counts{})
			rare := report.Stratum{ID: "rare", Counts: report.Counts{Requests: 2}}
			if node == 0 && t > 30 && t%10 == 0 {
				rare.NoRoute = 1
			}
			n.Hosts = append(n.Hosts, rare)
			return n
		},
		"the canary lost its traffic": func(node, t int) report.Node {
			n := plain(report.Counts{})
			if node == 0 && t > 30 {
				n.Services[0].Requests, n.Hosts[0].Requests, n.Counts.Requests = 100, 100, 100
				n.Services[0].Warm.Buckets = []uint32{50, 40, 9, 1}
			}
			return n
		},
	} {
		if v := newCell(8, f).bake(30, 60).Verdict(); v.Enough || v.Worse != "" {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if v := (*State)(nil).Verdict(); v.Enough || v.Worse != "" {
		t.Errorf("nothing: %+v", v)
	}
	if v := newCell(8, fault(func(_, _ int) bool { return false }, report.Counts{})).bake(30, 60).Verdict(); !v.Enough {
		t.Errorf("a good one: %+v", v)
	}
}

// A leader that hands on what it stored decides what it would have decided itself.
func TestAStoredStateGoesOnAsIfNothingHadHappened(t *testing.T) {
	c := newCell(6, fault(func(node, t int) bool { return node == 0 && t > 40 }, report.Counts{Upstream: 9, NoRoute: 2}))
	s := c.bake(30, 5)
	stored := s.Clone()
	for range 20 {
		raw, err := json.Marshal(stored)
		if err != nil {
			t.Fatal(err)
		}
		stored = &State{}
		if err := json.Unmarshal(raw, stored); err != nil || stored.Known() == nil {
			t.Fatal(err)
		}
		r := c.next()
		before := s.Clone()
		s.Step(r, c.sides)
		stored.Step(r, c.sides)
		if s.E != stored.E || s.Worse != stored.Worse || !reflect.DeepEqual(s.Verdict(), stored.Verdict()) {
			t.Fatalf("%v %q; stored %v %q", s.E, s.Worse, stored.E, stored.Worse)
		}
		before.Step(r, c.sides)
		if !reflect.DeepEqual(before, s) {
			t.Fatal("a clone went another way")
		}
	}
	if s.Worse == "" {
		t.Error("the fault was not found")
	}
	for _, bad := range []string{`{}`, `{"window_ns":1,"bake":1}`, `{"window_ns":"x"}`, `{"tracks":[[[1,2,3]]]}`, `[]`} {
		var s State
		if err := json.Unmarshal([]byte(bad), &s); err != nil || s.Known() != nil {
			t.Errorf("%s: %v, %+v", bad, err, s)
		}
	}
}

func TestHostileReportsLeaveAFiniteStateOfBoundedSize(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		number := rapid.SampledFrom([]uint64{0, 1, 7, 400, 1e6, 1e9, math.MaxUint64})
		c := newCell(4, func(node, w int) report.Node {
			counts := func() report.Counts {
				return report.Counts{Requests: number.Draw(rt, "n"), Gateway: number.Draw(rt, "g"), Upstream: number.Draw(rt, "u"), Auth: number.Draw(rt, "a"), NoRoute: number.Draw(rt, "r"), Shed: number.Draw(rt, "s")}
			}
			n := report.Node{Counts: counts(), CPU: time.Duration(number.Draw(rt, "cpu")), RSS: int64(number.Draw(rt, "rss"))}
			for k := range rapid.IntRange(0, 3).Draw(rt, "strata") {
				h := counts()
				s := report.Stratum{ID: fmt.Sprint("s", w*4+k, node), Counts: counts(), Heavy: &h, Warm: report.Span{From: rapid.IntRange(-3, 400).Draw(rt, "from"), Buckets: []uint32{math.MaxUint32, 3}}}
				n.Services, n.Hosts = append(n.Services, s), append(n.Hosts, s)
			}
			return n
		})
		s := c.bake(3, 12)
		for range 12 {
			s.Step(c.next(), c.sides)
		}
		s.Verdict()
		raw, err := json.Marshal(s)
		if err != nil || len(raw) > 200<<10 {
			rt.Fatalf("%d bytes, %v", len(raw), err)
		}
		if len(s.Services) > maxStrata || len(s.Hosts) > maxStrata {
			rt.Fatalf("%d services, %d hosts", len(s.Services), len(s.Hosts))
		}
	})
}

// A window of more requests than a node can serve is none at all, whoever sends it, and a count of a part is never more than
// its whole: differences don't wrap around.
func TestCountsBeyondAllSenseAreNoWindow(t *testing.T) {
	absurd := func(node, w int) bool { return w < 3 || w == 35 }
	c := newCell(6, func(node, w int) report.Node {
		n := plain(report.Counts{Upstream: 4})
		if absurd(node, w) {
			n.Counts.Requests = math.MaxUint64
		}
		if node == 0 { // parts that are more than the whole, and a client that is more than its part
			n.Services[0].Heavy = &report.Counts{Requests: 10, Upstream: math.MaxUint64}
			n.Services = append(n.Services, report.Stratum{ID: "zero", Counts: report.Counts{Upstream: math.MaxUint64}})
		}
		return n
	})
	for range 2 {
		if r := c.next(); len(r.units) != 0 {
			t.Fatalf("%d nodes have a window", len(r.units))
		}
	}
	s := c.bake(30, 30)
	if s.Windows != 29 || s.Worse != "" {
		t.Errorf("%d windows, %q", s.Windows, s.Worse)
	}
	for cause := range causes {
		for i, tr := range s.Tracks[cause] {
			if tr.events < 0 || tr.events > 1e6 || tr.requests > 1e6 {
				t.Errorf("%s, place %d: %v events of %v requests", rules()[cause].name, i, tr.events, tr.requests)
			}
		}
	}
}

func TestTheMemoryIsBoundedAndForgetsRestarts(t *testing.T) {
	m := NewMemory(second)
	at := time.Unix(1_800_000_000, 0)
	n := plain(report.Counts{})
	for i := range 400 {
		at = at.Add(second)
		for k := range 600 {
			n.ID, n.Boot, n.Seq, n.Window = id(k), "1", uint64(i+1), second
			m.Hear(n, at)
			m.Hear(n, at) // the same window by another way
		}
		m.Rounds(at)
	}
	if len(m.rounds) > 62 || m.parts > maxParts+2*600 {
		t.Fatalf("%d rounds with %d strata", len(m.rounds), m.parts)
	}
	last := m.rounds[len(m.rounds)-1]
	if u := last.units[id(3)]; u.requests != 400 {
		t.Errorf("%v requests of one window", u.requests)
	}
	n.ID, n.Boot, n.Seq = id(3), "2", 1
	m.Hear(n, at.Add(second))
	if m.open != nil && m.open.units[id(3)] != nil {
		t.Error("the first window of a new process counts")
	}
}

func BenchmarkStep150Nodes(b *testing.B) {
	c := newCell(150, func(node, t int) report.Node {
		n := plain(report.Counts{Upstream: uint64(node % 5)})
		for i := range 11 {
			s := n.Services[0]
			s.ID = fmt.Sprint("s", i)
			n.Services = append(n.Services, s)
		}
		return n
	})
	s := c.bake(5, 5)
	r := c.next()
	b.ReportAllocs()
	for b.Loop() {
		s.Step(r, c.sides)
	}
}
