package view

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/report"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// script is a router at eu in a world of regions with two cells each, looked at once a second.
type script struct {
	t     rapid.TB
	in    Inputs
	cfg   Config
	state State
	now   time.Time
	down  map[cells.CellID]bool
	mute  bool // no probes at all
	word  map[cells.CellID]health.Status
}

func newScript(t rapid.TB, regions int) *script {
	var topo cells.Topology
	in := steer.Inputs{Names: map[string]string{"api.gw.test": "public"}, TTL: 5 * time.Second, Epoch: 1, Health: map[cells.CellID]health.Status{}}
	for r := range regions {
		id := cells.RegionID([]string{"eu", "us", "ap", "sa"}[r])
		reg := cells.Region{ID: id, Clients: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{5, byte(r), 0, 0}), 16)}}
		for _, c := range []string{"a", "b"} {
			cell := cells.CellID(string(id) + "/" + c)
			reg.Cells = append(reg.Cells, cells.Cell{ID: cell, HTTPS: 443, Limit: 1_000_000, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(r), c[0]})}})
			in.Health[cell] = health.Healthy
		}
		topo.Regions = append(topo.Regions, reg)
	}
	in.Topology = topo
	plan := steer.Step(steer.State{}, in, t0).Plan
	s := &script{t: t, now: t0, down: map[cells.CellID]bool{}, cfg: Config{Region: "eu", DownAfter: 3 * time.Second, UpAfter: 3 * time.Second, FlapCap: 20 * time.Second, Ramp: 30 * time.Second}}
	s.in.Plan = &plan
	s.wait(5 * time.Second)
	return s
}

// wait lets time pass in steps of 200 ms.
func (s *script) wait(d time.Duration) {
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(200 * time.Millisecond)
		s.in.Looks = nil
		if s.now.Sub(t0)%time.Second == 0 {
			if !s.mute {
				for _, c := range s.in.Plan.Cells {
					s.in.Looks = append(s.in.Looks, health.Seen{Arrived: s.now, Probe: report.Probe{From: "eu", Cell: c.ID, OK: !s.down[c.ID], Why: "refused"}})
				}
			}
			if s.word != nil {
				s.in.Verdicts, s.in.Told = s.word, s.now
			}
		}
		s.state = Step(s.state, s.in, s.cfg, s.now)
	}
}

func (s *script) kill(ids ...cells.CellID) {
	for _, id := range ids {
		s.down[id] = true
	}
}

func (s *script) live(ids ...cells.CellID) {
	for _, id := range ids {
		delete(s.down, id)
	}
}

// plan is a newer plan of the leader, with the same rows.
func (s *script) plan(change func(*steer.Plan)) {
	p := *s.in.Plan
	p.Number++
	p.Created = s.now
	p.Cells = append([]steer.Cell{}, p.Cells...)
	if change != nil {
		change(&p)
	}
	s.in.Plan = &p
}

// want compares what is withdrawn: "eu/a 256" for each cell, in order.
func (s *script) want(when string, want ...string) {
	s.t.Helper()
	var got []string
	by, _ := s.state.Withdrawals(s.in.Plan)
	for i, b := range by {
		if b.Share > 0 {
			got = append(got, fmt.Sprintf("%s %d", s.in.Plan.Cells[i].ID, b.Share))
		}
	}
	if strings.Join(got, ", ") != strings.Join(want, ", ") {
		s.t.Errorf("%s: withdrawn %v, want %v (blind %v %s)", when, got, want, s.state.Blind, s.state.Why)
	}
}

func (s *script) share(id cells.CellID) int { return s.state.Cells[id].Share }

func TestADeadCellIsWithdrawnWithoutALeaderAndReturnsSlotBySlot(t *testing.T) {
	s := newScript(t, 3)
	s.want("all alive")
	s.kill("us/a")
	s.wait(2 * time.Second)
	s.want("not yet")
	s.wait(3 * time.Second)
	s.want("dead", "us/a 256")
	s.wait(10 * time.Minute)
	s.want("still dead", "us/a 256")
	s.live("us/a")
	s.wait(2 * time.Second)
	s.want("not back yet", "us/a 256")
	s.wait(3 * time.Second)
	last := s.share("us/a")
	if last > 250 || last < 200 {
		t.Errorf("%d of 256 withdrawn at the start of the return", last)
	}
	for range 30 {
		s.wait(time.Second)
		now := s.share("us/a")
		if now > last || last-now > 12 {
			t.Errorf("from %d to %d in a second", last, now)
		}
		last = now
	}
	s.want("back")
}

func TestANewerPlanEndsTheReturn(t *testing.T) {
	s := newScript(t, 3)
	s.kill("us/a")
	s.wait(6 * time.Second)
	s.live("us/a")
	s.wait(8 * time.Second)
	if n := s.share("us/a"); n == 0 || n == 256 {
		t.Fatalf("%d withdrawn", n)
	}
	s.plan(nil)
	s.wait(200 * time.Millisecond)
	s.want("the leader decides")
}

// The leader has seen what this router sees and still uses the cell: one router alone is no quorum.
func TestAPlanMadeInKnowledgeOfTheFaultRules(t *testing.T) {
	s := newScript(t, 3)
	s.kill("us/a")
	s.wait(5 * time.Second)
	s.want("dead", "us/a 256")
	s.plan(nil) // too soon for the leader to know
	s.wait(time.Second)
	s.want("a plan from before the leader can know", "us/a 256")
	s.wait(2 * time.Second)
	s.plan(nil)
	s.wait(time.Second)
	s.want("a plan from after")
}

func TestTheControllersWordDecidesWhileItIsFresh(t *testing.T) {
	s := newScript(t, 3)
	s.word = map[cells.CellID]health.Status{"us/a": health.Healthy, "ap/a": health.Unhealthy}
	s.kill("us/a", "ap/a")
	s.wait(2 * time.Second)
	s.want("a quorum's death needs no wait of one's own", "ap/a 256")
	s.wait(8 * time.Second)
	s.want("alive, say the controllers", "ap/a 256")
	s.word = nil
	s.wait(3 * time.Second)
	s.want("their word still counts", "ap/a 256")
	s.wait(2 * time.Second)
	s.want("nobody to ask", "us/a 256", "ap/a 256")
	s.word = map[cells.CellID]health.Status{}
	s.wait(2 * time.Second)
	s.want("they don't know either", "us/a 256", "ap/a 256")
}

// The controller of a region that is cut off from another hears of it through a third: it has no verdict, and the router of
// the region takes nothing out of its answers.
func TestWhatSomebodyReachesIsNotWithdrawnByARouterThatDoesNot(t *testing.T) {
	s := newScript(t, 3)
	s.word = map[cells.CellID]health.Status{}
	s.in.Reached = map[cells.CellID]bool{"us/a": true}
	s.kill("us/a", "ap/a")
	s.wait(8 * time.Second)
	s.want("one is reached from elsewhere", "ap/a 256")
	s.in.Reached = nil
	s.wait(time.Second)
	s.want("nobody reaches it any more", "us/a 256", "ap/a 256")
	s.in.Reached = map[cells.CellID]bool{"us/a": true}
	s.word["us/a"] = health.Unhealthy
	s.wait(time.Second)
	s.want("a quorum's word is above one who reaches it", "us/a 256", "ap/a 256")
}

func TestTooMuchDeadAtOnceIsBlindness(t *testing.T) {
	s := newScript(t, 3)
	s.kill("us/a", "us/b")
	s.wait(6 * time.Second)
	s.want("a region", "us/a 256", "us/b 256")
	s.kill("eu/a")
	s.wait(6 * time.Second)
	s.want("half of the cells", "eu/a 256", "us/a 256", "us/b 256")
	s.kill("ap/a")
	s.wait(2 * time.Second)
	s.want("more than half")
	if !s.state.Blind || !strings.Contains(s.state.Why, "4 of 6 cells") {
		t.Errorf("blind %v: %s", s.state.Blind, s.state.Why)
	}
	s.wait(time.Minute)
	s.want("blind")
	s.live("ap/a", "eu/a")
	s.wait(2 * time.Second)
	if !s.state.Blind {
		t.Error("sight is back at once")
	}
	s.wait(4 * time.Second)
	s.want("sight is back", "us/a 256", "us/b 256")

	all := newScript(t, 3)
	all.kill("eu/a", "eu/b", "us/a", "us/b", "ap/a", "ap/b")
	for range 50 {
		all.wait(200 * time.Millisecond)
		all.want("the own network is gone")
	}
	two := newScript(t, 4)
	two.kill("eu/a", "eu/b", "us/a", "us/b")
	two.wait(10 * time.Second)
	two.want("two whole regions of four")
	if !two.state.Blind {
		t.Error("not blind")
	}
}

// A router that was cut off again and again trusts what it sees anew more slowly each time. It sees it, though.
func TestWhatABlindRouterSeesAgainHasNotDied(t *testing.T) {
	s := newScript(t, 3)
	for range 4 {
		s.kill("us/a", "us/b", "ap/a", "ap/b")
		s.wait(10 * time.Second)
		s.want("blind")
		s.live("us/a", "us/b", "ap/a", "ap/b")
		for range 30 {
			s.wait(400 * time.Millisecond)
			s.want("seeing again")
		}
	}
}

// What the controllers know to be dead is no sign of blindness.
func TestConfirmedDeathsAreNoBlindness(t *testing.T) {
	s := newScript(t, 3)
	s.word = map[cells.CellID]health.Status{"us/a": health.Unhealthy, "us/b": health.Unhealthy, "ap/a": health.Unhealthy, "ap/b": health.Unhealthy}
	s.kill("us/a", "us/b", "ap/a", "ap/b")
	s.wait(3 * time.Second)
	s.want("two regions by quorum", "us/a 256", "us/b 256", "ap/a 256", "ap/b 256")
}

func TestSilenceIsNoDeath(t *testing.T) {
	s := newScript(t, 3)
	s.mute = true
	s.wait(time.Minute)
	s.want("no probes")
	s.mute = false
	s.kill("us/a")
	s.wait(6 * time.Second)
	s.want("dead", "us/a 256")
}

// After a restart without controllers a cell that was dead before is found out, later than a fresh death.
func TestACellNeverSeenAliveIsWithdrawnLaterAndComesAtOnce(t *testing.T) {
	s := newScript(t, 3)
	s.state = State{}
	s.kill("us/a")
	s.wait(8 * time.Second)
	s.want("it may still be starting")
	s.wait(8 * time.Second)
	s.want("dead", "us/a 256")
	s.live("us/a")
	s.wait(5 * time.Second)
	s.want("it has started")
}

func order(cell cells.CellID, started time.Time, over time.Duration) cells.Evacuation {
	return cells.Evacuation{Form: 1, Cell: cell, Reason: "x", Started: started, Over: over, Expires: started.Add(time.Minute)}
}

func TestAnOrderThatNoPlanFollowsTakesEffectGradually(t *testing.T) {
	s := newScript(t, 3)
	s.in.Orders = []cells.Evacuation{order("us/b", s.now, 20*time.Second)}
	s.wait(5 * time.Second)
	s.want("a quarter", "us/b 64")
	s.wait(5 * time.Second)
	s.want("half", "us/b 128")
	s.wait(20 * time.Second)
	s.want("evacuated", "us/b 256")
	s.wait(29 * time.Second)
	s.want("about to expire", "us/b 256")
	s.wait(16 * time.Second)
	if n := s.share("us/b"); n < 100 || n > 140 {
		t.Errorf("half way back: %d", n)
	}
	s.wait(20 * time.Second)
	s.want("back")

	s.in.Orders = []cells.Evacuation{order("us/b", s.now, 0), order("us/b", s.now, time.Minute)}
	s.wait(200 * time.Millisecond)
	s.want("the strictest at once", "us/b 256")
	s.kill("us/b")
	s.wait(70 * time.Second)
	s.want("expired, but dead", "us/b 256")
}

// A plan that follows the order withdraws by itself; the router goes on only where the plan has stopped.
func TestAPlanThatFollowsTheOrderIsLeftAlone(t *testing.T) {
	s := newScript(t, 3)
	o := order("us/b", s.now, 40*time.Second)
	s.in.Orders = []cells.Evacuation{o, order("us/b", s.now.Add(time.Second), time.Minute)}
	follow := func(p *steer.Plan) { p.Cells[3].Evacuation = o.Started.UnixMilli() }
	for range 10 {
		s.plan(follow)
		s.wait(2 * time.Second)
		s.want("the leader is at it")
	}
	if !s.state.Cells["us/b"].Closed {
		t.Error("somebody else may be sent to the cell")
	}
	s.wait(13 * time.Second)
	s.want("not much behind")
	s.wait(12 * time.Second) // at 45 s; the last plan is of 18 s and left 22/40, of which 10/40 stand at 30 s
	if n := s.share("us/b"); n < 130 || n > 150 {
		t.Errorf("%d withdrawn of what the plan left", n)
	}
	s.wait(14 * time.Second)
	s.want("all gone without a leader", "us/b 256")
}

// No history of faults and orders withdraws from a plan made just now by a leader who sees every cell, other than for
// orders that stand; and whatever is dead for the router takes all its slots.
func TestAnyHistoryKeepsTheRules(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newScript(t, rapid.IntRange(1, 4).Draw(t, "regions"))
		for range rapid.IntRange(1, 30).Draw(t, "turns") {
			c := rapid.SampledFrom(s.in.Plan.Cells).Draw(t, "cell").ID
			switch rapid.IntRange(0, 6).Draw(t, "what") {
			case 0, 1:
				s.kill(c)
			case 2:
				s.live(c)
			case 3:
				s.plan(nil)
			case 4:
				s.mute = !s.mute
			case 5:
				s.in.Orders = []cells.Evacuation{order(c, s.now, time.Duration(rapid.IntRange(0, 20).Draw(t, "over"))*time.Second)}
			}
			s.wait(time.Duration(rapid.IntRange(1, 8).Draw(t, "seconds")) * time.Second)
			by, _ := s.state.Withdrawals(s.in.Plan)
			for i, b := range by {
				id := s.in.Plan.Cells[i].ID
				if b.Share < 0 || b.Share > 256 || b.Dead && b.Share != 256 {
					t.Fatalf("%s: %+v", id, b)
				}
				if b.Dead && s.state.Blind {
					t.Fatalf("%s is dead to a blind router", id)
				}
			}
		}
		s.mute, s.down, s.in.Orders = false, map[cells.CellID]bool{}, nil
		s.wait(25 * time.Second)
		s.plan(nil)
		s.wait(time.Second)
		s.want("all is well, says a new plan")
	})
}
