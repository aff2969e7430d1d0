package steer

import (
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
)

// judge says of every cell what it may keep and receive, and gives new atoms their first row, at home.
func (w *work) judge() {
	ramp := w.in.ramp()
	healthy := true
	for c := range w.cells {
		healthy = w.health(c) && healthy
	}
	for c := range w.cells {
		w.kind(c, ramp)
	}
	for s, rows := range w.next.Plan.Rows {
		for l := range rows {
			if rows[l] == nil {
				rows[l] = w.homeRow(s, l)
				w.moved = true
			}
		}
	}
	for c := range w.cells {
		w.hold(c)
	}
	if healthy || w.now.Sub(w.next.Started) >= ramp {
		w.next.Starting = false
	}
}

// health notes deaths and recoveries; it says whether the cell is healthy.
func (w *work) health(c int) bool {
	cs := &w.next.Cells[c]
	switch w.in.Health[w.next.Plan.Cells[c].ID] {
	case health.Unhealthy:
		cs.Down, cs.Recovering = true, time.Time{}
		return false
	case health.Healthy:
		if (cs.Down || !cs.Seen) && !w.next.Starting {
			cs.Recovering = w.now
		}
		cs.Down, cs.Seen = false, true
		return true
	default:
		return false
	}
}

func (w *work) kind(c int, ramp time.Duration) {
	cell, cs := &w.cells[c], &w.next.Cells[c]
	id := w.next.Plan.Cells[c].ID
	order, state := w.order(id, ramp)
	if state != cells.Evacuating && state != cells.Evacuated {
		cs.Order, cs.Held = time.Time{}, nil
	}
	switch {
	case cs.Down:
		cell.kind = dead
	case state == cells.Evacuated:
		cell.kind = evacuated
		cs.Seen = cs.Seen && w.in.Health[id] == health.Healthy // when the order ends, it ramps from when it is well again
	case state == cells.Evacuating:
		cell.kind = evacuating
		cell.keep = whole - portion(w.now.Sub(order.Started), order.Over)
	case w.in.Health[id] == health.Healthy || w.next.Starting:
		cell.kind = live
	default:
		cell.kind = holding
	}
	if state == cells.Evacuating || state == cells.Evacuated {
		w.next.Plan.Cells[c].Evacuation = order.Started.UnixMilli()
	}
	if state == cells.Restoring {
		cell.ramp = min(cell.ramp, rising(w.now.Sub(order.Ended()), ramp))
	}
	if !cs.Recovering.IsZero() {
		cell.ramp = min(cell.ramp, rising(w.now.Sub(cs.Recovering), ramp))
		if cell.ramp == whole {
			cs.Recovering = time.Time{}
		}
	}
	cell.inflow = mulDiv(cell.limit, 12*w.dt.Milliseconds(), 10*max(ramp.Milliseconds(), 1))
}

// hold remembers the slots at the start of an evacuation, once.
func (w *work) hold(c int) {
	cs := &w.next.Cells[c]
	if w.cells[c].kind != evacuating {
		return
	}
	order, _ := w.order(w.next.Plan.Cells[c].ID, w.in.ramp())
	if cs.Held != nil && cs.Order.Equal(order.Started) {
		return
	}
	cs.Order, cs.Held = order.Started, w.zeroes()
	for s, rows := range w.next.Plan.Rows {
		for l, row := range rows {
			cs.Held[s][l] = row.count(c)
		}
	}
}

// order is the strictest order on the cell with the state that it puts the cell in.
func (w *work) order(id cells.CellID, ramp time.Duration) (cells.Evacuation, cells.State) {
	rank := map[cells.State]int{cells.Active: 0, cells.Restoring: 1, cells.Evacuating: 2, cells.Evacuated: 3}
	best, state := cells.Evacuation{}, cells.Active
	for _, e := range w.in.Evacuations {
		if e.Cell != id {
			continue
		}
		if st := e.State(w.now, ramp); rank[st] > rank[state] || st == state && stricter(e, best, st, w.now) {
			best, state = e, st
		}
	}
	return best, state
}

// stricter orders two orders of the same state: the one further along, or the one that ended last.
func stricter(a, b cells.Evacuation, st cells.State, now time.Time) bool {
	switch st {
	case cells.Evacuating:
		return portion(now.Sub(a.Started), a.Over) > portion(now.Sub(b.Started), b.Over)
	case cells.Restoring:
		return a.Ended().After(b.Ended())
	default:
		return false
	}
}

// portion is age/over in 1/65536, between 0 and whole.
func portion(age, over time.Duration) int64 {
	if age <= 0 && over > 0 {
		return 0
	}
	if age >= over {
		return whole
	}
	return mulDiv(int64(age), whole, int64(over))
}

// rising is the ramp of a cell that comes back: 5 % at once, the rest in proportion to its age.
func rising(age, ramp time.Duration) int64 {
	const first = whole * 5 / 100
	return first + portion(age, ramp)*(whole-first)/whole
}

// cap is what the cell may carry at a level of the ladder, × 256.
func (c *cell) cap(percent int64) int64 { return c.limit / 100 * percent }

// ramped is cap for a cell that is coming back.
func (c *cell) ramped(percent int64) int64 { return mulDiv(c.cap(percent), c.ramp, whole) }
