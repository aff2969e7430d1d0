package steer

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/cellgate/cellgate/cells"
)

// piece is a number of an atom's slots that should leave a cell. Forced ones have left already and must be placed;
// the others stay where they are when no level of the ladder has room.
type piece struct {
	set, loc, from, n int
	at                int // no slot before it is owned by from
	forced            bool
}

// displace re-places what may not stay, nearest first, filling every level of the ladder before the next.
func (w *work) displace() {
	for s := range w.next.Plan.Sets {
		if !w.usable(s) {
			w.allUp(s)
		}
	}
	for c, e := range w.grants() {
		w.cells[c].granted = e
	}
	var pieces []piece
	for s := range w.next.Plan.Sets {
		for l := range w.next.Plan.Localities {
			if w.usable(s) {
				pieces = w.collect(pieces, s, l)
			}
		}
	}
	for _, percent := range ladder {
		w.fill(pieces, percent, (*cell).ramped)
		w.relieve(percent)
	}
	for _, percent := range ladder {
		w.fill(pieces, percent, (*cell).cap)
	}
	for i := range pieces {
		if pieces[i].forced {
			w.overflow(&pieces[i])
		}
	}
}

// rank is how good a receiver the cell is when nothing better is in its set: 0 a live one, 3 none at all.
func (k kind) rank() int {
	return [...]int{dead: 3, evacuated: 2, evacuating: 2, holding: 1, live: 0}[k]
}

// bestRank is the rank of the set's best receiver. The kinds are settled when it is first asked for.
func (w *work) bestRank(set int) int {
	if w.best == nil {
		w.best = make([]int, len(w.next.Plan.Sets))
	}
	if w.best[set] == 0 {
		best := 3
		for _, c := range w.next.Plan.Sets[set].Cells {
			best = min(best, w.cells[c].kind.rank())
		}
		w.best[set] = best + 1
	}
	return w.best[set] - 1
}

func (w *work) usable(set int) bool { return w.bestRank(set) < 3 }

// allUp answers as if every cell of the set were up: the order of an undisturbed plan, unchanged until a check succeeds.
func (w *work) allUp(set int) {
	w.allDown = true
	for l := range w.next.Plan.Localities {
		row := w.homeRow(set, l)
		if !slices.Equal(row, w.next.Plan.Rows[set][l]) {
			w.next.Plan.Rows[set][l] = row
			w.moved = true
		}
		w.unplaced = append(w.unplaced, Unplaced{
			Set: w.next.Plan.Sets[set].ID, Locality: w.next.Plan.Localities[l].ID,
			Load: w.next.Demand[set][l], Why: "no usable cell: answered as if all were up",
		})
	}
}

// collect takes off the cells what may not stay there.
func (w *work) collect(pieces []piece, s, l int) []piece {
	row, d := w.next.Plan.Rows[s][l], int64(w.next.Demand[s][l])
	best := w.bestRank(s)
	lost := 0
	for _, c := range row {
		if c == nobody {
			lost++
		}
	}
	if lost > 0 {
		pieces = append(pieces, piece{set: s, loc: l, from: nobody, n: lost, forced: true})
	}
	for c, n := range counts(row, len(w.cells)) {
		cell := &w.cells[c]
		if n == 0 || cell.kind.rank() <= best {
			continue
		}
		switch cell.kind {
		case dead, evacuated:
			cell.granted -= n * d
			pieces = append(pieces, piece{set: s, loc: l, from: c, n: int(n), forced: true})
		case evacuating:
			if over := int(n - mulDiv(int64(w.next.Cells[c].Held[s][l]), cell.keep, whole)); over > 0 {
				pieces = append(pieces, piece{set: s, loc: l, from: c, n: over})
			}
		}
	}
	return pieces
}

// fill places as much of the pieces as fits below the level.
func (w *work) fill(pieces []piece, percent int64, limit func(*cell, int64) int64) {
	for i := range pieces {
		w.shift(&pieces[i], func() bool { return true }, func(c *cell) int64 { return limit(c, percent) / 100 * 99 })
	}
}

// shift moves the piece's slots to the nearest cells that have room, while more and room last.
func (w *work) shift(p *piece, more func() bool, limit func(*cell) int64) {
	if p.n == 0 {
		return
	}
	owned := counts(w.next.Plan.Rows[p.set][p.loc], len(w.cells))
	for p.n > 0 && more() {
		to := w.nearest(p.set, p.loc, p.from, owned, limit)
		if to < 0 {
			return
		}
		w.move(p, to)
		owned[to]++
	}
}

// nearest is the cell with room for one more slot of the atom at the least latency. Cells within the band of it count as
// equally near; of these the one that owns the fewest slots of the atom is taken, so that an atom is split evenly.
func (w *work) nearest(s, l, from int, owned []int64, limit func(*cell) int64) int {
	d, best := int64(w.next.Demand[s][l]), w.bestRank(s)
	lat := w.next.Plan.Localities[l].LatencyMS
	to, least, first := -1, int64(0), int32(0)
	for _, c := range w.byLatency(l) {
		if to >= 0 && lat[c] > first+band {
			break
		}
		cell := &w.cells[c]
		if c == from || !w.member[s][c] || cell.kind.rank() > best || cell.granted+d > limit(cell) {
			continue
		}
		n := owned[c]
		if to < 0 {
			first = lat[c]
		}
		if to < 0 || n < least {
			to, least = c, n
		}
	}
	return to
}

// byLatency lists all cells for the locality, nearest first, then in the order of the topology.
func (w *work) byLatency(l int) []int {
	if w.near == nil {
		w.near = make([][]int, len(w.next.Plan.Localities))
	}
	if w.near[l] == nil {
		lat := w.next.Plan.Localities[l].LatencyMS
		for c := range w.cells {
			w.near[l] = append(w.near[l], c)
		}
		slices.SortStableFunc(w.near[l], func(a, b int) int { return cmp.Compare(lat[a], lat[b]) })
	}
	return w.near[l]
}

// move gives one slot of the piece to another cell and charges it there in full.
func (w *work) move(p *piece, to int) {
	row, d := w.next.Plan.Rows[p.set][p.loc], int64(w.next.Demand[p.set][p.loc])
	for row[p.at] != uint16(p.from) {
		p.at++
	}
	row[p.at] = uint16(to)
	w.cells[to].granted += d
	if !p.forced && p.from != nobody {
		w.cells[p.from].granted -= d
	}
	p.n--
	w.moved = true
}

// overflow places what fits nowhere on the cells that are the least loaded for their limits.
func (w *work) overflow(p *piece) {
	best := w.bestRank(p.set)
	for p.n > 0 {
		to := -1
		for _, c := range w.next.Plan.Sets[p.set].Cells {
			if w.cells[c].kind.rank() <= best && int(c) != p.from && (to < 0 || w.cells[c].lighter(&w.cells[to])) {
				to = int(c)
			}
		}
		w.move(p, to)
	}
}

// lighter compares granted/limit without rounding.
func (c *cell) lighter(o *cell) bool {
	h1, l1 := bits.Mul64(uint64(max(c.granted, 0)), uint64(max(o.limit, 1)))
	h2, l2 := bits.Mul64(uint64(max(o.granted, 0)), uint64(max(c.limit, 1)))
	return h1 < h2 || h1 == h2 && l1 < l2
}

// relieve moves the excess of live cells above the level to cells that have room below it, guests first.
func (w *work) relieve(percent int64) {
	for c := range w.cells {
		full := &w.cells[c]
		if full.kind != live || full.granted <= full.cap(percent)/100*101 {
			continue
		}
		for _, p := range w.guests(c) {
			w.shift(&p, func() bool { return full.granted > full.cap(percent) }, func(o *cell) int64 { return o.ramped(percent) / 100 * 99 })
		}
	}
}

// guests lists all of a cell's atoms, those first that lose the least by leaving it.
func (w *work) guests(c int) []piece {
	type priced struct {
		piece
		cost int32
	}
	var all []priced
	for s, rows := range w.next.Plan.Rows {
		for l, row := range rows {
			n := row.count(c)
			if n == 0 {
				continue
			}
			lat := w.next.Plan.Localities[l].LatencyMS
			cost := w.detour(s, l, c) - lat[c]
			if w.atHome(s, l, c) {
				cost += guestBonus
			}
			all = append(all, priced{piece{set: s, loc: l, from: c, n: n}, cost})
		}
	}
	slices.SortStableFunc(all, func(a, b priced) int { return cmp.Compare(a.cost, b.cost) })
	out := make([]piece, len(all))
	for i, p := range all {
		out[i] = p.piece
	}
	return out
}

// detour is the latency to the nearest other live cell of the set.
func (w *work) detour(s, l, from int) int32 {
	for _, c := range w.byLatency(l) {
		if c != from && w.member[s][c] && w.cells[c].kind == live {
			return w.next.Plan.Localities[l].LatencyMS[c]
		}
	}
	return 1 << 20
}

// name lists what no cell can carry: the part of each atom that sits above the hard maximum of its cells.
func (w *work) name() {
	for s, rows := range w.next.Plan.Rows {
		if !w.usable(s) {
			continue
		}
		for l, row := range rows {
			d, over := int64(w.next.Demand[s][l]), int64(0)
			for c, n := range counts(row, len(w.cells)) {
				if cell := &w.cells[c]; n > 0 && cell.granted > cell.limit {
					over += mulDiv(n*d, cell.granted-cell.limit, cell.granted)
				}
			}
			if over >= Slots {
				w.unplaced = append(w.unplaced, Unplaced{
					Set: w.next.Plan.Sets[s].ID, Locality: w.next.Plan.Localities[l].ID,
					Load: cells.MilliRPS(over / Slots), Why: "above the limit of its cells",
				})
			}
		}
	}
}
