package steer

import (
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// work is one step in the making. It owns next; old and in are never written.
type work struct {
	in   *Inputs
	now  time.Time
	dt   time.Duration // since the last step, at most maxGap
	next State

	cells  []cell
	member [][]bool // [set][cell]
	near   [][]int  // [locality]: all cells, nearest first; made when asked for
	best   []int    // [set]: rank of its best receiver, plus one; 0 = not asked for since the kinds were settled

	moved    bool
	allDown  bool
	unplaced []Unplaced
}

// cell is a cell's part in this step. Loads are in milli-rps × 256, so that sums of slots are exact.
type cell struct {
	limit   int64
	granted int64 // E: what the rows give it at the estimated demand
	inflow  int64 // what may still come home to it in this step
	kind    kind
	// keep is the share of the slots held at the order's start that an evacuating cell may keep, in 1/65536.
	keep int64
	// ramp is the share of its target and of its home slots that a cell coming back may have, in 1/65536.
	ramp int64
}

const whole = 1 << 16

// kind is what a cell may do in this step.
type kind uint8

const (
	dead       kind = iota // keeps nothing
	evacuated              // alive, but ordered away: keeps nothing
	evacuating             // keeps a shrinking part, receives nothing
	holding                // unknown: keeps what it has, receives nothing, is no source
	live
)

func newWork(old *State, in *Inputs, now time.Time) (*work, string) {
	w := &work{in: in, now: now, dt: min(max(now.Sub(old.Stepped), 0), maxGap)}
	w.next = State{Form: StateForm, Starting: old.Starting, Started: old.Started, Moved: old.Moved}
	if old.Plan.Form == 0 {
		w.next.Starting, w.next.Started = true, now
	}
	p := &w.next.Plan
	p.Form, p.TTL = Form, uint32(max(in.TTL/time.Second, 1))
	if err := in.Topology.Validate(); err != nil {
		return nil, err.Error() + ": the last plan stays"
	}
	w.layCells(old)
	w.layLocalities()
	laid := w.laySets()
	if len(p.Cells) == 0 {
		return nil, "the topology has no cell: the last plan stays"
	}
	for name := range old.Plan.Names {
		if _, wanted := in.Names[name]; wanted && !laid[name] {
			return nil, "the plan would empty the live name " + name + ": the last plan stays"
		}
	}
	w.layRows(old)
	return w, ""
}

func (w *work) layCells(old *State) {
	p := &w.next.Plan
	was := map[cells.CellID]CellState{}
	for i, c := range old.Plan.Cells {
		if i < len(old.Cells) {
			was[c.ID] = old.Cells[i]
		}
	}
	for _, c := range w.in.Topology.Cells() {
		if len(c.Addresses) == 0 || len(p.Cells) == maxCells {
			continue
		}
		p.Cells = append(p.Cells, Cell{ID: c.ID, Addresses: c.Addresses})
		w.next.Cells = append(w.next.Cells, was[c.ID])
		w.cells = append(w.cells, cell{limit: min(max(int64(c.Limit), 0), maxLoad) * Slots, ramp: whole})
	}
}

// layLocalities makes one locality of each region, behind the one of unknown clients, which is equally near to every cell.
func (w *work) layLocalities() {
	p, t := &w.next.Plan, &w.in.Topology
	p.Localities = []Locality{{ID: Unknown, LatencyMS: make([]int32, len(p.Cells))}}
	var at []int // region of each cell
	for j, r := range t.Regions {
		for _, c := range r.Cells {
			if len(c.Addresses) > 0 && len(at) < len(p.Cells) {
				at = append(at, j)
			}
		}
	}
	for i, r := range t.Regions {
		l := Locality{ID: string(r.ID), Prefixes: masked(r.Clients), LatencyMS: make([]int32, len(at))}
		for c, j := range at {
			l.LatencyMS[c] = t.Latency(i, j)
		}
		p.Localities = append(p.Localities, l)
	}
}

func masked(ps []netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range ps {
		if p.IsValid() && !p.Addr().Is4In6() {
			out = append(out, p.Masked())
		}
	}
	return out
}

// laySets makes one set of each class that a name asks for and a cell offers; it returns the names that have one.
func (w *work) laySets() map[string]bool {
	p := &w.next.Plan
	p.Names = map[string]int{}
	laid := map[string]bool{}
	for _, class := range slices.Sorted(maps.Values(w.in.Names)) {
		n := len(p.Sets)
		if n > 0 && p.Sets[n-1].ID == className(class) {
			continue
		}
		if set := w.set(className(class)); len(set.Cells) > 0 {
			p.Sets = append(p.Sets, set)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.in.Names)) {
		class := className(w.in.Names[name])
		i := slices.IndexFunc(p.Sets, func(s Set) bool { return s.ID == class })
		if i < 0 {
			w.unplaced = append(w.unplaced, Unplaced{Set: class, Locality: name, Why: "no cell carries this class"})
			continue
		}
		p.Names[name], laid[name] = i, true
	}
	for _, set := range p.Sets {
		member := make([]bool, len(p.Cells))
		for _, c := range set.Cells {
			member[c] = true
		}
		w.member = append(w.member, member)
	}
	return laid
}

func className(class string) string {
	if class == "" {
		return string(cells.Public)
	}
	return class
}

// set is the class as a shard set. Its salt fits the 53 bits that every JSON reader keeps.
func (w *work) set(class string) Set {
	h := fnv.New64a()
	h.Write([]byte(class))
	set := Set{ID: class, Salt: h.Sum64() >> 11}
	i := uint16(0)
	for _, c := range w.in.Topology.Cells() {
		if len(c.Addresses) == 0 || int(i) == len(w.next.Plan.Cells) {
			continue
		}
		if className(string(c.Class)) == class {
			set.Cells = append(set.Cells, i)
		}
		i++
	}
	return set
}

// layRows carries the old rows over by cell id; an atom that is new starts at home.
func (w *work) layRows(old *State) {
	p := &w.next.Plan
	index := map[cells.CellID]int{}
	for i, c := range p.Cells {
		index[c.ID] = i
	}
	oldLoc := map[string]int{}
	for i, l := range old.Plan.Localities {
		oldLoc[l.ID] = i
	}
	for s, set := range p.Sets {
		os := slices.IndexFunc(old.Plan.Sets, func(o Set) bool { return o.ID == set.ID })
		rows, demand := make([]Row, len(p.Localities)), make([]cells.MilliRPS, len(p.Localities))
		for l, loc := range p.Localities {
			ol, known := oldLoc[loc.ID]
			demand[l] = floor(l)
			if os < 0 || !known {
				continue // rows[l] stays nil until judge knows which cells are usable
			}
			demand[l] = max(floor(l), old.Demand[os][ol])
			rows[l] = w.carry(s, old.Plan.Rows[os][ol], old.Plan.Cells, index)
		}
		p.Rows = append(p.Rows, rows)
		w.next.Demand = append(w.next.Demand, demand)
	}
	w.carryHeld(old, index, oldLoc)
}

// nobody owns a slot whose cell has left the topology or the set, until it is placed in the same step.
const nobody = 1<<16 - 1

func (w *work) carry(set int, row Row, was []Cell, index map[cells.CellID]int) Row {
	out := make(Row, len(row))
	for i, c := range row {
		at, ok := index[was[c].ID]
		if !ok || !w.member[set][at] {
			at = nobody
		}
		out[i] = uint16(at)
	}
	return out
}

// carryHeld keeps an evacuation's starting point in step with the sets and localities of the plan.
func (w *work) carryHeld(old *State, index map[cells.CellID]int, oldLoc map[string]int) {
	for i := range w.next.Cells {
		cs := &w.next.Cells[i]
		if cs.Held == nil {
			continue
		}
		was := cs.Held
		cs.Held = w.zeroes()
		for s, set := range w.next.Plan.Sets {
			os := slices.IndexFunc(old.Plan.Sets, func(o Set) bool { return o.ID == set.ID })
			for l, loc := range w.next.Plan.Localities {
				if ol, ok := oldLoc[loc.ID]; ok && os >= 0 && os < len(was) && ol < len(was[os]) {
					cs.Held[s][l] = was[os][ol]
				}
			}
		}
	}
}

func (w *work) zeroes() [][]int {
	z := make([][]int, len(w.next.Plan.Sets))
	for s := range z {
		z[s] = make([]int, len(w.next.Plan.Localities))
	}
	return z
}
