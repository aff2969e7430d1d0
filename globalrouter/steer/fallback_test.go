package steer

import (
	"encoding/json"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
)

// afresh takes a step that makes every fallback anew.
func (w *walk) afresh() {
	s := w.state
	s.Cells = slices.Clone(s.Cells)
	for c := range s.Cells {
		s.Cells[c].Room = -9
	}
	w.state = Step(s, w.in, w.now)
	if w.state.FallbackDue != 0 {
		w.t.Fatalf("%d fallbacks of a small world are left for the next step", w.state.FallbackDue)
	}
}

// with is the state as it would be with the fallback's rows.
func (s State) with(f Fallback) State {
	s.Plan.Rows = slices.Clone(s.Plan.Rows)
	for set := range s.Plan.Rows {
		s.Plan.Rows[set] = slices.Clone(s.Plan.Rows[set])
	}
	for _, d := range f.Rows {
		for _, l := range d.Localities {
			s.Plan.Rows[d.Set][l] = d.Row
		}
	}
	return s
}

// Every loss has a fallback: it moves the slots of the lost cells and no others, names none of them while another cell is
// usable, and takes nobody above the target when the rest has room (L7, P4).
func TestFallbacksCarryEveryLossUnderTarget(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWalk(t)
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			w.change()
			w.state = Step(w.state, w.in, w.now)
		}
		w.afresh()
		if err := w.state.Plan.Validate(); err != nil {
			t.Fatal(err)
		}
		made := map[string]Fallback{}
		for _, f := range w.state.Plan.Fallbacks {
			made[f.Lost] = f
		}
		for id, lost := range w.state.Plan.losses() {
			w.lossIsCarried(id, lost, made[id])
		}
	})
}

func (w *walk) lossIsCarried(id string, lost []int, f Fallback) {
	isLost := func(c uint16) bool { return slices.Contains(lost, int(c)) }
	changed := map[int]Row{}
	for _, d := range f.Rows {
		for _, l := range d.Localities {
			changed[l] = d.Row
			for i, c := range w.state.Plan.Rows[d.Set][l] {
				if isLost(d.Row[i]) || !isLost(c) && d.Row[i] != c {
					w.t.Fatalf("without %s slot %d of cell %d goes to cell %d", id, i, c, d.Row[i])
				}
			}
		}
	}
	others := false
	for c := range w.state.Plan.Cells {
		others = others || !isLost(uint16(c)) && !w.state.Cells[c].Down
	}
	for l, row := range w.state.Plan.Rows[0] {
		if others && changed[l] == nil && slices.ContainsFunc(row, isLost) {
			w.t.Fatalf("without %s the clients of %s have no fallback", id, w.state.Plan.Localities[l].ID)
		}
	}
	w.receiversStayUnderTarget(id, lost, f)
}

func (w *walk) receiversStayUnderTarget(id string, lost []int, f Fallback) {
	var load, room, slot cells.MilliRPS
	for _, d := range w.state.Demand[0] {
		slot = max(slot, d/Slots+1)
	}
	for c, cell := range w.state.Plan.Cells {
		switch {
		case slices.Contains(lost, c):
			load += w.state.Granted(cell.ID)
		case w.in.Health[cell.ID] == health.Healthy && !w.held(c):
			room += max(w.limit(cell.ID)*65/100-w.state.Granted(cell.ID)-slot, 0)
		}
	}
	if load > room {
		return
	}
	after := w.state.with(f)
	for _, cell := range w.state.Plan.Cells {
		if now, then := after.Granted(cell.ID), w.state.Granted(cell.ID); now > then && now > w.limit(cell.ID)*70/100 {
			w.t.Fatalf("without %s the cell %s goes from %d to %d of %d, although %d fit into %d", id, cell.ID, then, now, w.limit(cell.ID), load, room)
		}
	}
}

// A loaded world at 45 % loses any cell or region: by arithmetic nobody passes 70 %.
func TestAnyLossOfAHalfLoadedWorldStaysUnderTarget(t *testing.T) {
	t.Parallel()
	in := inputs(world(4, 2, 1_000_000))
	s, now := Step(State{}, in, t0), t0
	for range 60 {
		for _, c := range in.Topology.Cells() {
			in.Load[c.ID] = CellLoad{RPS: 450_000}
		}
		now = now.Add(5 * time.Second)
		s = Step(s, in, now)
	}
	if len(s.Plan.Fallbacks) != 8+4 {
		t.Fatalf("%d fallbacks", len(s.Plan.Fallbacks))
	}
	for _, f := range s.Plan.Fallbacks {
		after := s.with(f)
		for _, c := range s.Plan.Cells {
			if g := after.Granted(c.ID); g > 700_000 {
				t.Errorf("without %s the cell %s carries %d", f.Lost, c.ID, g)
			}
		}
	}
	number := s.Plan.Number
	for _, c := range in.Topology.Cells() {
		in.Load[c.ID] = CellLoad{RPS: 350_000}
	}
	for range 30 {
		now = now.Add(5 * time.Second)
		s = Step(s, in, now)
	}
	if grew := s.Plan.Number - number; grew > 3 {
		t.Errorf("%d plans for a load that fell by a fifth", grew)
	}
}

// Rounds of a large world take several steps, stay within the bound, and end.
func TestFallbacksOfALargeWorldAreMadeInRoundsAndBounded(t *testing.T) {
	t.Parallel()
	in := largeInputs(manyLocalities, manyCells)
	s, now := Step(State{}, in, t0), t0
	if s.FallbackDue == 0 {
		t.Fatal("a large world had all its fallbacks in one step")
	}
	steps := 0
	for ; s.FallbackDue > 0 && steps < 200; steps++ {
		now = now.Add(5 * time.Second)
		s = Step(s, in, now)
	}
	if s.FallbackDue > 0 {
		t.Fatalf("%d fallbacks are due after %d steps", s.FallbackDue, steps)
	}
	raw, err := json.Marshal(s.Plan.Fallbacks)
	if err != nil || len(raw) > maxFallbackBytes || len(s.Plan.Fallbacks) != len(s.Plan.losses()) {
		t.Errorf("%d bytes of fallbacks for %d of %d losses, %v", len(raw), len(s.Plan.Fallbacks), len(s.Plan.losses()), err)
	}
	t.Logf("%d steps; %d of %d losses, %d bytes", steps, len(s.Plan.Fallbacks), len(s.Plan.losses()), len(raw))
	if err := s.Plan.Validate(); err != nil {
		t.Error(err)
	}
}

// At the bound those losses go without a fallback that the least load depends on.
func TestFallbacksBeyondTheBoundAreThoseOfTheLeastLoad(t *testing.T) {
	in := inputs(world(2, 2, 1_000_000))
	s := Step(State{}, in, t0)
	w, refused := newWork(&s, &in, t0)
	if refused != "" {
		t.Fatal(refused)
	}
	made, losses := map[string][]Detour{}, w.next.Plan.losses()
	all := make([]int, maxFallbackBytes/localityBytes/2) // two fit in size, none does beside the overhead of two
	for i, c := range w.next.Plan.Cells {
		w.cells[i].granted = int64(i)
		made[string(c.ID)] = []Detour{{Localities: all, Row: make(Row, Slots)}}
	}
	out := w.bounded(made, losses)
	if last := w.next.Plan.Cells[len(w.next.Plan.Cells)-1]; len(out) != 1 || out[0].Lost != string(last.ID) {
		t.Errorf("%d fallbacks are left", len(out))
	}
}

// Whatever a router withdraws: only slots of withdrawn cells change, and nobody is sent to a dead or leaving cell while a
// better one is in the set. The rows of bystanders are the plan's own.
func TestOverlaySubtractsAndLeavesBystandersAlone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		w := newWalk(t)
		for range rapid.IntRange(0, 8).Draw(t, "steps") {
			w.change()
			w.state = Step(w.state, w.in, w.now)
		}
		p := &w.state.Plan
		by := make([]Withdrawal, len(p.Cells))
		for c := range by {
			switch rapid.IntRange(0, 3).Draw(t, "kind") {
			case 0:
				by[c] = Withdrawal{Share: Slots, Dead: true, Closed: true}
			case 1:
				by[c] = Withdrawal{Share: rapid.IntRange(0, Slots).Draw(t, "share"), Closed: true}
			}
		}
		before, _ := json.Marshal(p)
		rows, up := p.Overlay(by)
		again, _ := p.Overlay(by)
		if !reflect.DeepEqual(rows, again) {
			t.Fatal("two overlays of the same differ")
		}
		if after, _ := json.Marshal(p); string(after) != string(before) {
			t.Fatal("the overlay wrote into the plan")
		}
		overlaid(t, p, by, rows[0], len(up) > 0)
	})
}

func overlaid(t *rapid.T, p *Plan, by []Withdrawal, rows []Row, allUp bool) {
	alive, open := false, false
	for _, b := range by {
		alive = alive || !b.Dead
		open = open || !b.Dead && b.Share == 0 && !b.Closed
	}
	if allUp == alive {
		t.Fatalf("flagged as all up: %v, a cell is alive: %v", allUp, alive)
	}
	for l, row := range rows {
		was := p.Rows[0][l]
		if !slices.ContainsFunc(was, func(c uint16) bool { return by[c].Share > 0 }) && &row[0] != &was[0] {
			t.Fatalf("%s has nothing on a withdrawn cell and has another row", p.Localities[l].ID)
		}
		left := make([]int, len(by))
		for i, c := range row {
			from := was[i]
			if c == from {
				left[c]++
				if by[c].Dead && alive {
					t.Fatalf("slot %d is still on the dead cell %d", i, c)
				}
				continue
			}
			if by[from].Share == 0 || by[c].Dead || open && (by[c].Share > 0 || by[c].Closed) {
				t.Fatalf("slot %d went from %d (%+v) to %d (%+v)", i, from, by[from], c, by[c])
			}
		}
		for c := range by {
			if open && by[c].Share == Slots && left[c] > 0 {
				t.Fatalf("%d slots left on cell %d of which all is withdrawn", left[c], c)
			}
		}
	}
}

// The overlay of one dead cell or region is exactly its fallback.
func TestOverlayOfOneLossIsItsFallback(t *testing.T) {
	t.Parallel()
	in := inputs(world(3, 2, 1_000_000))
	s := Step(State{}, in, t0)
	losses := s.Plan.losses()
	for _, f := range s.Plan.Fallbacks {
		by := make([]Withdrawal, len(s.Plan.Cells))
		for _, c := range losses[f.Lost] {
			by[c] = Withdrawal{Share: Slots, Dead: true}
		}
		rows, up := s.Plan.Overlay(by)
		if want := s.with(f).Plan.Rows; !reflect.DeepEqual(rows, want) || up != nil {
			t.Errorf("%s: not the fallback's rows", f.Lost)
		}
	}
}

// Slots leave in the same order everywhere, spread over the cell's own, and none comes back while the share grows.
func TestSlotsLeaveOneByOne(t *testing.T) {
	t.Parallel()
	in := inputs(world(2, 2, 1_000_000))
	s := Step(State{}, in, t0)
	by := make([]Withdrawal, len(s.Plan.Cells))
	last := s.Plan.Rows
	for share := 0; share <= Slots; share++ {
		by[0].Share = share
		rows, _ := s.Plan.Overlay(by)
		n := rows[0][1].count(0)
		if want := 128 - share/2; n > want+1 || n < want-1 {
			t.Fatalf("at %d of 256 the cell has %d slots of 128", share, n)
		}
		for l := range rows[0] {
			for i, c := range rows[0][l] {
				if c == 0 && last[0][l][i] != 0 {
					t.Fatalf("slot %d came back at %d", i, share)
				}
			}
		}
		last = rows
	}
}

func TestHostileFallbacksAreRefused(t *testing.T) {
	t.Parallel()
	good, _ := json.Marshal(Step(State{}, inputs(world(2, 2, 1_000_000)), t0).Plan)
	var m map[string]any
	first := func() map[string]any { return m["fallbacks"].([]any)[0].(map[string]any) }
	row := func() map[string]any { return first()["rows"].([]any)[0].(map[string]any) }
	for name, spoil := range map[string]func(){
		"lost":      func() { first()["lost"] = "nowhere" },
		"doubled":   func() { m["fallbacks"] = append([]any{first()}, m["fallbacks"].([]any)...) },
		"place":     func() { row()["localities"] = []any{} },
		"set":       func() { row()["set"] = 9 },
		"locality":  func() { row()["localities"] = []any{-1} },
		"row":       func() { row()["row"] = "7*256" },
		"short row": func() { row()["row"] = "1*5" },
		"no row":    func() { delete(row(), "row") },
		"itself":    func() { row()["row"] = "0*256" },
		"atoms":     func() { first()["rows"] = append(first()["rows"].([]any), row()) },
	} {
		m = nil
		if err := json.Unmarshal(good, &m); err != nil {
			t.Fatal(err)
		}
		spoil()
		raw, _ := json.Marshal(m)
		if _, err := DecodePlan(raw); err == nil {
			t.Errorf("a plan with a wrong %s in a fallback was accepted", name)
		}
	}
}
