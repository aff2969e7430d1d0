package steer

import (
	"math"
	"slices"
)

// home lists the cells that are home to the atom: the nearest one that takes clients and those within the band of it,
// in the order of the topology. When none takes clients, it is judged as if all were healthy, and then as if none were ordered away.
func (w *work) home(s, l int) []int {
	for _, fit := range []func(kind) bool{
		func(k kind) bool { return k == live || k == holding },
		func(k kind) bool { return k != evacuated && k != evacuating },
		func(kind) bool { return true },
	} {
		if h := w.nearestBand(s, l, fit); len(h) > 0 {
			return h
		}
	}
	return nil
}

func (w *work) nearestBand(s, l int, fit func(kind) bool) []int {
	lat := w.next.Plan.Localities[l].LatencyMS
	nearest := int32(math.MaxInt32)
	for _, c := range w.next.Plan.Sets[s].Cells {
		if fit(w.cells[c].kind) {
			nearest = min(nearest, lat[c])
		}
	}
	var out []int
	for _, c := range w.next.Plan.Sets[s].Cells {
		if fit(w.cells[c].kind) && lat[c]-band <= nearest {
			out = append(out, int(c))
		}
	}
	return out
}

func (w *work) atHome(s, l, c int) bool { return slices.Contains(w.home(s, l), c) }

// homeRow is the undisturbed row: the home cells in equal runs.
func (w *work) homeRow(s, l int) Row {
	h := w.home(s, l)
	row := make(Row, Slots)
	for i := range row {
		row[i] = uint16(h[i*len(h)/Slots])
	}
	return row
}

// comeHome moves slots back to their home cells, the largest saving first, while the home cell stays below 95 % of its
// target and its inflow lasts. A first start has no such budget.
func (w *work) comeHome() {
	type back struct {
		piece
		to   int
		gain int32
	}
	var backs []back
	for s := range w.next.Plan.Sets {
		if !w.usable(s) {
			continue
		}
		for l := range w.next.Plan.Localities {
			lat := w.next.Plan.Localities[l].LatencyMS
			for _, p := range w.returns(s, l) {
				backs = append(backs, back{p.piece, p.to, lat[p.from] - lat[p.to]})
			}
		}
	}
	slices.SortStableFunc(backs, func(a, b back) int { return int(b.gain) - int(a.gain) })
	for _, b := range backs {
		d, to := int64(w.next.Demand[b.set][b.loc]), &w.cells[b.to]
		for b.n > 0 && to.granted+d <= to.ramped(ladder[0])/100*95 && (w.next.Starting || to.inflow >= d) {
			w.move(&b.piece, b.to)
			to.inflow -= d
		}
	}
}

type homeward struct {
	piece
	to int
}

// returns lists what of the atom should go home: from cells that are not home, the farthest first, and from home cells that
// own more than their even share.
func (w *work) returns(s, l int) []homeward {
	h := w.home(s, l)
	n := counts(w.next.Plan.Rows[s][l], len(w.cells))
	share := make([]int64, len(w.cells))
	for i, c := range h {
		share[c] = int64((i+1)*Slots/len(h) - i*Slots/len(h))
	}
	var out []homeward
	for _, to := range h {
		cell := &w.cells[to]
		want := share[to]*cell.ramp/whole - n[to]
		if cell.kind != live || want < 1 {
			continue
		}
		order := w.byLatency(l)
		for i := len(order) - 1; i >= 0 && want > 0; i-- {
			from := order[i]
			if want < 2 && share[from] > 0 {
				continue // between homes, one slot of unevenness is not worth a move
			}
			if spare := n[from] - share[from]; from != to && spare > 0 && w.cells[from].kind == live {
				k := min(spare, want)
				n[from] -= k
				want -= k
				out = append(out, homeward{piece{set: s, loc: l, from: from, n: int(k)}, to})
			}
		}
	}
	return out
}
