package steer

import (
	"math"
	"math/bits"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
)

// estimate moves each atom's demand 30 % of the way to what the cells' loads say about it.
//
// A cell's load is split over its atoms in the proportion in which the plan gives them to it. Two rules keep an estimate
// from vanishing with what it estimates: atoms whose cells are mostly silent or dead hold; and while answers of an older
// plan may still be cached, loads are not yet where the slots are, so that demand may only grow, by the sum over all cells.
func (w *work) estimate() {
	if w.next.Plan.Number == 0 && w.next.Starting && w.next.Started.Equal(w.now) {
		return
	}
	granted := w.grants()
	load, total, model := make([]int64, len(w.cells)), int64(0), int64(0)
	for c := range w.cells {
		load[c] = w.visible(c)
		if load[c] >= 0 {
			total += load[c]
			model += granted[c] / Slots
		}
	}
	settled := w.now.Sub(w.next.Moved) >= settle*w.in.TTL
	for s := range w.next.Plan.Sets {
		for l, row := range w.next.Plan.Rows[s] {
			d := int64(w.next.Demand[s][l])
			x := d
			if settled && row != nil {
				x = observed(row, d, load, granted)
			} else if !settled && model > 0 {
				x = max(d, mulDiv(d, total, model))
			}
			w.next.Demand[s][l] = max(floor(l), cells.MilliRPS(min(d+(x-d)*3/10, maxLoad)))
		}
	}
}

// visible is the cell's load in milli-rps, or -1 when nothing fresh is known or the cell is dead.
func (w *work) visible(c int) int64 {
	id := w.next.Plan.Cells[c].ID
	load, ok := w.in.Load[id]
	if !ok || load.Age > fresh || w.in.Health[id] == health.Unhealthy || w.next.Cells[c].Down {
		return -1
	}
	return min(max(int64(load.RPS), 0), maxLoad)
}

// observed is the demand that the visible cells' loads imply for the atom; its own d when less than half of it is visible.
func observed(row Row, d int64, load, granted []int64) int64 {
	var seen, sum int64
	for c, n := range counts(row, len(load)) {
		if n == 0 || load[c] < 0 || granted[c] == 0 {
			continue
		}
		seen += n
		sum += n * min(mulDiv(d, load[c]*Slots, granted[c]), maxLoad)
	}
	if seen < Slots/2 {
		return d
	}
	return sum / seen
}

func counts(row Row, cells int) []int64 {
	n := make([]int64, cells)
	for _, c := range row {
		if c != nobody {
			n[c]++
		}
	}
	return n
}

// grants is E, the load × 256 that the rows give each cell.
func (w *work) grants() []int64 {
	e := make([]int64, len(w.cells))
	for s, rows := range w.next.Plan.Rows {
		for l, row := range rows {
			d := int64(w.next.Demand[s][l])
			for _, c := range row {
				if c != nobody {
					e[c] += d
				}
			}
		}
	}
	return e
}

// mulDiv is a·b/c in 128 bits, saturated far below overflow of later sums; a and b are not negative.
func mulDiv(a, b, c int64) int64 {
	const most = math.MaxInt64 / 1024
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if c <= 0 || hi >= uint64(c) {
		return most
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	return int64(min(q, most))
}
