package steer

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
)

var t0 = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// world is a topology of regions × cells, each cell with the limit; regions are 20 ms apart per step.
func world(regions, perRegion int, limit cells.MilliRPS) cells.Topology {
	var t cells.Topology
	for r := range regions {
		id := cells.RegionID([]string{"eu", "us", "ap", "sa", "af"}[r])
		reg := cells.Region{ID: id, Clients: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{byte(5 + r), 1, 0, 0}), 16)}}
		for c := range perRegion {
			reg.Cells = append(reg.Cells, cells.Cell{
				ID: cells.CellID(string(id) + "/" + string(rune('a'+c))), HTTPS: 443, Limit: limit,
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 23, byte(r + 1), byte(c + 1)})},
			})
		}
		t.Regions = append(t.Regions, reg)
	}
	for i := range regions {
		row := make([]int32, regions)
		for j := range row {
			row[j] = int32(20 * max(i-j, j-i))
		}
		t.LatencyMS = append(t.LatencyMS, row)
	}
	return t
}

func inputs(t cells.Topology) Inputs {
	in := Inputs{
		Topology: t, Names: map[string]string{"api.gw.test": "public"}, TTL: 5 * time.Second, Epoch: 3, Ramp: 30 * time.Second,
		Health: map[cells.CellID]health.Status{}, Load: map[cells.CellID]CellLoad{},
	}
	for _, c := range t.Cells() {
		in.Health[c.ID] = health.Healthy
	}
	return in
}

// owned is the cell's slots at the locality of the first set.
func owned(s State, id cells.CellID, loc string) int {
	n := 0
	for l := range s.Plan.Localities {
		if s.Plan.Localities[l].ID != loc {
			continue
		}
		for _, c := range s.Plan.Rows[0][l] {
			if s.Plan.Cells[c].ID == id {
				n++
			}
		}
	}
	return n
}

func TestFirstPlanIsAtHomeAtFullWeights(t *testing.T) {
	t.Parallel()
	s := Step(State{}, inputs(world(3, 2, 1_000_000)), t0)
	if err := s.Plan.Validate(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []cells.CellID{"us/a", "us/b"} {
		if n := owned(s, id, "us"); n != 128 {
			t.Errorf("%s owns %d slots of its own region, not 128", id, n)
		}
	}
	if s.Plan.Number != 1 || s.Plan.Epoch != 3 || s.Plan.TTL != 5 || s.Starting {
		t.Errorf("number %d epoch %d ttl %d starting %v", s.Plan.Number, s.Plan.Epoch, s.Plan.TTL, s.Starting)
	}
}

func TestNumberGrowsOnlyWithTheContent(t *testing.T) {
	t.Parallel()
	in := inputs(world(3, 2, 1_000_000))
	s := Step(State{}, in, t0)
	for i := range 50 {
		in.Load["eu/a"] = CellLoad{RPS: cells.MilliRPS(100_000 + i*1000)}
		s = Step(s, in, t0.Add(time.Duration(i+1)*5*time.Second))
	}
	if s.Plan.Number != 1 {
		t.Errorf("number %d after steps that changed nothing", s.Plan.Number)
	}
	if raw, err := json.Marshal(s); err != nil {
		t.Fatal(err)
	} else {
		var back State
		if err := json.Unmarshal(raw, &back); err != nil || !reflect.DeepEqual(Step(back, in, t0.Add(time.Hour)).Plan, Step(s, in, t0.Add(time.Hour)).Plan) {
			t.Errorf("the state does not survive its stored form: %v", err)
		}
	}
}

func TestDeadCellLeavesInThatStepAndReturnsOverTheRamp(t *testing.T) {
	t.Parallel()
	in := inputs(world(3, 2, 1_000_000))
	s := Step(State{}, in, t0)
	in.Health["eu/a"] = health.Unhealthy
	now := t0.Add(time.Second)
	s = Step(s, in, now)
	for _, loc := range []string{"unknown", "eu", "us", "ap"} {
		if n := owned(s, "eu/a", loc); n != 0 {
			t.Fatalf("the dead cell owns %d slots of %s", n, loc)
		}
	}
	if n := owned(s, "eu/b", "eu"); n != 256 {
		t.Fatalf("its neighbour owns %d slots", n)
	}
	in.Health["eu/a"] = health.Healthy
	last := 0
	for i := range 8 {
		now = now.Add(5 * time.Second)
		s = Step(s, in, now)
		n := owned(s, "eu/a", "eu")
		if n < last || i == 0 && n > 128/10 || i == 7 && n < 127 {
			t.Errorf("step %d: %d slots after %d", i, n, last)
		}
		last = n
	}
}

func TestEvacuationFollowsOver(t *testing.T) {
	t.Parallel()
	in := inputs(world(3, 2, 1_000_000))
	s := Step(State{}, in, t0)
	in.Evacuations = []cells.Evacuation{{Cell: "us/b", Started: t0, Over: 40 * time.Second, Expires: t0.Add(time.Hour)}}
	last := 128
	for age := time.Duration(0); age <= 45*time.Second; age += 5 * time.Second {
		s = Step(s, in, t0.Add(age))
		n, most := owned(s, "us/b", "us"), 128-int(128*age/(40*time.Second))
		if n > max(most, 0) || n > last || (age < 40*time.Second && n < most-1) {
			t.Errorf("after %s: %d slots, at most %d, before %d", age, n, most, last)
		}
		last = n
	}
	if last != 0 || owned(s, "us/a", "us") != 256 || owned(s, "ap/a", "ap") != 128 {
		t.Errorf("at the end: %d slots on the cell, %d on its neighbour", last, owned(s, "us/a", "us"))
	}
	in.Evacuations[0].Restored = t0.Add(time.Minute)
	s = Step(s, in, t0.Add(time.Minute))
	if n := owned(s, "us/b", "us"); n > 8 {
		t.Errorf("%d slots at the moment of the restore", n)
	}
	for age := 65; age < 100; age += 5 {
		s = Step(s, in, t0.Add(time.Duration(age)*time.Second))
	}
	if n := owned(s, "us/b", "us"); n < 127 {
		t.Errorf("%d slots after the ramp", n)
	}
}

func TestTheLastSlotComesHomeToo(t *testing.T) {
	t.Parallel()
	in := inputs(world(3, 2, 1_000_000))
	now := time.Unix(1_790_000_000, 0)
	s := Step(State{}, in, now)
	for l := range s.Plan.Localities {
		if s.Plan.Localities[l].ID == "eu" {
			row := s.Plan.Rows[0][l]
			row[len(row)-1] = 5 // ap/b: the rest of a restoration
		}
	}
	for range 30 {
		now = now.Add(time.Second)
		s = Step(s, in, now)
	}
	if a, b := owned(s, "eu/a", "eu"), owned(s, "eu/b", "eu"); a+b != Slots {
		t.Errorf("eu's clients own %d + %d slots at home", a, b)
	}
}

func TestAllDownAnswersAsAllUp(t *testing.T) {
	t.Parallel()
	in := inputs(world(3, 2, 1_000_000))
	first := Step(State{}, in, t0)
	s := first
	for i, c := range in.Topology.Cells() {
		in.Health[c.ID] = health.Unhealthy
		s = Step(s, in, t0.Add(time.Duration(i)*time.Second))
	}
	if !s.Plan.AllDown || !reflect.DeepEqual(s.Plan.Rows, first.Plan.Rows) {
		t.Fatalf("all down: flag %v", s.Plan.AllDown)
	}
	number := s.Plan.Number
	s = Step(s, in, t0.Add(time.Hour))
	if s.Plan.Number != number {
		t.Error("the last resort drifts")
	}
	in.Health["ap/a"] = health.Healthy
	s = Step(s, in, t0.Add(2*time.Hour))
	if s.Plan.AllDown || owned(s, "ap/a", "eu") != 256 {
		t.Errorf("the only healthy cell has %d slots", owned(s, "ap/a", "eu"))
	}
}

func TestOlderEpochChangesNothing(t *testing.T) {
	t.Parallel()
	in := inputs(world(3, 2, 1_000_000))
	s := Step(State{}, in, t0)
	in.Epoch, in.Health["eu/a"] = 2, health.Unhealthy
	next := Step(s, in, t0.Add(time.Second))
	if next.Refused == "" || !reflect.DeepEqual(next.Plan, s.Plan) {
		t.Error("a step of an older leader changed the plan")
	}
}

func TestLiveNameIsNeverEmptied(t *testing.T) {
	t.Parallel()
	in := inputs(world(3, 2, 1_000_000))
	s := Step(State{}, in, t0)
	in.Names = map[string]string{"api.gw.test": "partner"}
	next := Step(s, in, t0.Add(time.Second))
	if next.Refused == "" || !reflect.DeepEqual(next.Plan, s.Plan) {
		t.Errorf("refused %q, names %v", next.Refused, next.Plan.Names)
	}
}

func TestDryRunSaysWhereTheTrafficGoes(t *testing.T) {
	t.Parallel()
	in := inputs(world(2, 2, 100_000))
	s := Step(State{}, in, t0)
	for i := 1; i < 30; i++ {
		for _, c := range in.Topology.Cells() {
			in.Load[c.ID] = CellLoad{RPS: 30_000}
		}
		s = Step(s, in, t0.Add(time.Duration(i)*5*time.Second))
	}
	out := DryRun(s, in, cells.Evacuation{Cell: "eu/a"}, t0.Add(time.Hour))
	if out.Refused != "" || out.Load < 29_000 || len(out.Moves) == 0 || out.Moves[0].To != "eu/b" || len(out.Bystanders) != 0 {
		t.Errorf("%+v", out)
	}
	in.Health["us/a"], in.Health["us/b"] = health.Unhealthy, health.Unhealthy
	s = Step(s, in, t0.Add(time.Hour))
	out = DryRun(s, in, cells.Evacuation{Cell: "eu/a"}, t0.Add(time.Hour))
	if out.Refused == "" {
		t.Errorf("120 rps on one cell of 100 is not refused: %+v", out)
	}
	in.Health["eu/b"] = health.Unhealthy
	if out = DryRun(Step(s, in, t0.Add(time.Hour)), in, cells.Evacuation{Cell: "eu/a"}, t0.Add(time.Hour)); out.Refused == "" {
		t.Error("the last cell may be evacuated")
	}
}

// largeInputs is a world of many localities: ten regions have cells, the others only clients.
func largeInputs(localities, perRegion int) Inputs {
	var t cells.Topology
	for r := range localities {
		reg := cells.Region{ID: cells.RegionID(fmt.Sprintf("r%04d", r))}
		for c := 0; r < 10 && c < perRegion; c++ {
			reg.Cells = append(reg.Cells, cells.Cell{
				ID: cells.CellID(fmt.Sprintf("r%04d/%02d", r, c)), HTTPS: 443, Limit: 1_000_000,
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(r), byte(c)})},
			})
		}
		t.Regions = append(t.Regions, reg)
	}
	for i := range localities {
		row := make([]int32, 10)
		for j := range row {
			row[j] = int32((i*7+j*31)%150 + 5)
		}
		t.LatencyMS = append(t.LatencyMS, row)
	}
	return inputs(t)
}
