package steer

import (
	"fmt"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// DryRun says what the order would do if it took effect at once, beside the orders that already stand in in.Evacuations.
// The state is not changed.
func DryRun(s State, in Inputs, order cells.Evacuation, now time.Time) Outcome {
	out := Outcome{Cell: order.Cell}
	if _, ok := in.Topology.Cell(order.Cell); !ok {
		out.Refused = fmt.Sprintf("no cell %q in the topology", order.Cell)
		return out
	}
	order.Started, order.Over, order.Expires, order.Restored = now, 0, now.Add(time.Hour), time.Time{}
	before := Step(s, in, now)
	in.Evacuations = append(slices.Clone(in.Evacuations), order)
	after := Step(s, in, now)
	if after.Refused != "" {
		out.Refused = after.Refused
		return out
	}
	out.Load = before.Granted(order.Cell)
	out.Unplaced = after.Plan.Unplaced
	out.compare(&before, &after)
	out.rooms(&before, &after, &in.Topology)
	out.refuse(&after, order.Cell)
	return out
}

// compare lists where the slots of the cell go, and the atoms that change without having been on it.
func (o *Outcome) compare(before, after *State) {
	moves := map[uint16]*Move{}
	for s, rows := range after.Plan.Rows {
		for l, row := range rows {
			was := before.Plan.Rows[s][l]
			locality := after.Plan.Localities[l].ID
			if !slices.ContainsFunc(was, func(c uint16) bool { return before.Plan.Cells[c].ID == o.Cell }) {
				if !slices.Equal(was, row) {
					o.Bystanders = append(o.Bystanders, after.Plan.Sets[s].ID+" at "+locality)
				}
				continue
			}
			for i, c := range row {
				if c == was[i] || before.Plan.Cells[was[i]].ID != o.Cell {
					continue
				}
				if moves[c] == nil {
					moves[c] = &Move{To: after.Plan.Cells[c].ID, Clients: map[string]int{}}
				}
				moves[c].Load += after.Demand[s][l]
				moves[c].Clients[locality]++
			}
		}
	}
	for c := range after.Plan.Cells {
		if m := moves[uint16(c)]; m != nil {
			m.Load /= Slots
			o.Moves = append(o.Moves, *m)
		}
	}
}

func (o *Outcome) rooms(before, after *State, t *cells.Topology) {
	for _, c := range t.Cells() {
		if c.ID == o.Cell {
			continue
		}
		r := Room{ID: c.ID, Before: before.Granted(c.ID), After: after.Granted(c.ID), Target: c.Limit * cells.MilliRPS(ladder[0]) / 100}
		r.Headroom = r.Target - r.After
		o.Cells = append(o.Cells, r)
	}
}

// refuse says why the rest cannot carry what the cell carries.
func (o *Outcome) refuse(after *State, id cells.CellID) {
	if after.Plan.AllDown {
		o.Refused = fmt.Sprintf("no other usable cell could take the clients of %s", id)
		return
	}
	for c := range after.Plan.Cells {
		if after.Plan.Cells[c].ID == id && after.Cells[c].Granted > 0 {
			o.Refused = fmt.Sprintf("no other usable cell could take the clients of %s", id)
			return
		}
	}
	for _, r := range o.Cells {
		if r.Headroom < 0 && r.After > r.Before {
			o.Refused = fmt.Sprintf("%s would carry %s requests/s, above its target of %s", r.ID, rps(r.After), rps(r.Target))
			return
		}
	}
}

func rps(m cells.MilliRPS) string { return fmt.Sprintf("%d.%d", m/1000, m%1000/100) }
