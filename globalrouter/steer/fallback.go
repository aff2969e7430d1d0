package steer

import (
	"cmp"
	"encoding/binary"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// maxFallbackBytes bounds what all fallbacks together add to a plan; 200 cells and 2,000 localities need a third of it. At the bound the losses of the least load have none: a router then lets their slots go to the next usable cells
// of the row, which keeps the names alive but asks nobody for room.
const (
	maxFallbackBytes = 2 << 20
	maxFallbackWork  = 1 << 14 // slots that one step places for fallbacks
	fallbackMargin   = 95      // percent of a level that is used: load may drift until the fallbacks are made again
	detourBytes      = 40      // of a Detour beside its runs and localities
	localityBytes    = 5       // of an index in Detour.Localities
	fallbackBytes    = 40      // of a Fallback beside its rows
)

// share is what a cell owns of one atom.
type share struct{ set, loc, cell, n int }

// fallBack makes the plan's fallbacks anew, by the code that places what a death displaces. Only slots of the lost cells
// move: what has no room is not relieved at the cost of bystanders.
//
// A step does no more than maxFallbackWork and leaves the rest to the next ones, round by round in the order of ids.
// A fallback that is still of an older plan is sound, since routers take from it only where the slots of a lost cell go;
// it may only miss what room there is now. It says whether any fallback has changed.
func (w *work) fallBack(old *State, again bool) (changed bool) {
	losses := w.next.Plan.losses()
	ids := slices.Sorted(maps.Keys(losses))
	w.next.FallbackDue, w.next.FallbackNext = old.FallbackDue, old.FallbackNext
	if again {
		w.next.FallbackDue = len(ids)
		for c := range w.cells {
			w.next.Cells[c].Room = w.room(c)
		}
	}
	if w.next.FallbackDue == 0 {
		return false
	}
	w.byLatency(0) // w.near is shared by all losses from here on
	w.best = nil
	made := map[string][]Detour{}
	for _, f := range w.next.Plan.Fallbacks {
		if losses[f.Lost] != nil {
			made[f.Lost] = f.Rows
		}
	}
	owned := w.shares()
	at, _ := slices.BinarySearch(ids, w.next.FallbackNext)
	for done := 0; w.next.FallbackDue > 0 && done < maxFallbackWork; w.next.FallbackDue-- {
		id := ids[at%len(ids)]
		var slots int
		made[id], slots = w.without(losses[id], owned)
		done += slots + 1
		at++
	}
	w.next.FallbackNext = ids[at%len(ids)]
	out := w.bounded(made, losses)
	if reflect.DeepEqual(out, w.next.Plan.Fallbacks) {
		return false
	}
	w.next.Plan.Fallbacks = out
	return true
}

// bounded leaves out the losses of the least load when all together are too large; the result is sorted by id.
func (w *work) bounded(made map[string][]Detour, losses map[string][]int) []Fallback {
	type weighed struct {
		Fallback
		load int64
	}
	var all []weighed
	for id, rows := range made {
		if len(rows) == 0 {
			continue
		}
		f := weighed{Fallback: Fallback{Lost: id, Rows: rows}}
		for _, c := range losses[id] {
			f.load += w.cells[c].granted
		}
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b weighed) int {
		return cmp.Or(cmp.Compare(b.load, a.load), strings.Compare(a.Lost, b.Lost))
	})
	var out []Fallback
	left := maxFallbackBytes
	for _, f := range all {
		if size := f.size(); size <= left {
			left -= size
			out = append(out, f.Fallback)
		}
	}
	slices.SortFunc(out, func(a, b Fallback) int { return strings.Compare(a.Lost, b.Lost) })
	return out
}

func (f *Fallback) size() int {
	n := fallbackBytes
	for _, d := range f.Rows {
		n += detourBytes + localityBytes*len(d.Localities) + d.Row.printed()
	}
	return n
}

// room is what the cell can take below its target, × 256, or how bad a receiver it is otherwise. One that nobody sees
// counts as before: losing sight of a cell is no reason for another plan.
func (w *work) room(c int) int64 {
	cell := &w.cells[c]
	if r := cell.kind.rank(); r >= 2 {
		return int64(-r)
	}
	return max(cell.ramped(ladder[0])-cell.granted, 0)
}

// drifted says whether the fallbacks were made for room that is no longer there, or missed room that now is: by more than
// a tenth of a cell's limit, or by a fortieth when the plan is not young, so that noise does not make a plan in each step.
func (w *work) drifted(made time.Time) bool {
	part := int64(10)
	if w.now.Sub(made) >= fresh {
		part = 40
	}
	for c := range w.cells {
		was, is := w.next.Cells[c].Room, w.room(c)
		if (was < 0 || is < 0) && was != is || max(was-is, is-was) > w.cells[c].limit/part {
			return true
		}
	}
	return false
}

// shares lists what each cell owns, by set and locality.
func (w *work) shares() [][]share {
	out := make([][]share, len(w.cells))
	n := make([]int, len(w.cells))
	for s, rows := range w.next.Plan.Rows {
		for l, row := range rows {
			for _, c := range row {
				n[c]++
			}
			for _, c := range row {
				if n[c] > 0 {
					out[c] = append(out[c], share{set: s, loc: l, cell: int(c), n: n[c]})
					n[c] = 0
				}
			}
		}
	}
	return out
}

// without gives the rows that differ when the cells are lost, and how many slots that moved. A set that has no other cell keeps its rows: all down is
// answered as all up.
func (w *work) without(lost []int, owned [][]share) (out []Detour, slots int) {
	f := *w
	f.best = nil
	f.cells = slices.Clone(w.cells)
	f.next.Plan.Rows = slices.Clone(w.next.Plan.Rows)
	var gone []share
	for _, c := range lost {
		f.cells[c].kind = dead
		gone = append(gone, owned[c]...)
	}
	slices.SortFunc(gone, func(a, b share) int {
		return cmp.Or(cmp.Compare(a.set, b.set), cmp.Compare(a.loc, b.loc), cmp.Compare(a.cell, b.cell))
	})
	var pieces []piece
	var atoms []share
	for _, g := range gone {
		if !f.usable(g.set) {
			continue
		}
		if n := len(atoms); n == 0 || atoms[n-1].set != g.set || atoms[n-1].loc != g.loc {
			if &f.next.Plan.Rows[g.set][0] == &w.next.Plan.Rows[g.set][0] {
				f.next.Plan.Rows[g.set] = slices.Clone(w.next.Plan.Rows[g.set])
			}
			f.next.Plan.Rows[g.set][g.loc] = slices.Clone(w.next.Plan.Rows[g.set][g.loc])
			atoms = append(atoms, g)
		}
		pieces = append(pieces, piece{set: g.set, loc: g.loc, from: g.cell, n: g.n, forced: true})
		slots += g.n
	}
	for _, percent := range ladder {
		f.fill(pieces, percent*fallbackMargin/100, (*cell).ramped)
	}
	for _, percent := range ladder {
		f.fill(pieces, percent, (*cell).cap)
	}
	for i := range pieces {
		f.overflow(&pieces[i])
	}
	at := map[string]int{} // index in out, by set and row
	var key []byte
	for _, a := range atoms {
		row := f.next.Plan.Rows[a.set][a.loc]
		smooth(row, w.next.Plan.Rows[a.set][a.loc], lost)
		key = binary.BigEndian.AppendUint32(key[:0], uint32(a.set))
		for _, c := range row {
			key = binary.BigEndian.AppendUint16(key, c)
		}
		i, seen := at[string(key)]
		if !seen {
			i = len(out)
			at[string(key)] = i
			out = append(out, Detour{Set: a.set, Row: row})
		}
		out[i].Localities = append(out[i].Localities, a.loc)
	}
	return out, slots
}

// smooth sorts the receivers of the lost cells' slots, so that the row has few runs: the hash makes all slots alike.
func smooth(row, was Row, lost []int) {
	gone := func(i int) bool { return slices.Contains(lost, int(was[i])) }
	var to []uint16
	for i, c := range row {
		if gone(i) {
			to = append(to, c)
		}
	}
	slices.Sort(to)
	for i := range row {
		if gone(i) {
			row[i], to = to[0], to[1:]
		}
	}
}
