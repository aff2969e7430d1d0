package steer

import (
	"math/bits"
	"slices"
)

// Withdrawal is how much of a cell a router takes out of its answers by itself.
type Withdrawal struct {
	Share  int  // of every 256 of the cell's slots; 256 = all
	Closed bool // nobody new is sent there while another cell is left
	Dead   bool // nothing answers there; Share is 256
}

// Overlay gives the plan's rows without what is withdrawn, and the sets of which every cell is dead: these keep their rows,
// since all down is answered as all up. by runs parallel to Cells. Rows without a withdrawn slot are the plan's own.
//
// A slot goes where the fallback of its region says when something is withdrawn of every cell of the region, else where
// that of its cell says. When that cell is no good either, it goes to one that is, in the proportion in which they own the
// slots of the row. Only slots of withdrawn cells change.
func (p *Plan) Overlay(by []Withdrawal) (rows [][]Row, allUp []string) {
	o := p.overlay(by)
	rows = slices.Clone(p.Rows)
	for s := range p.Sets {
		if !o.enter(s) {
			continue
		}
		if o.least == worst {
			allUp = append(allUp, p.Sets[s].ID)
			continue
		}
		rows[s] = slices.Clone(p.Rows[s])
		for l, row := range rows[s] {
			if slices.ContainsFunc(row, func(c uint16) bool { return by[c].Share > 0 }) {
				rows[s][l] = o.row(s, l)
			}
		}
	}
	return rows, allUp
}

// How good a receiver a cell is; less is better.
const (
	carrying = iota // the plan sends clients there, and nothing is withdrawn
	unused          // the plan sends nobody there: it may know why
	leaving         // something is withdrawn or it is closed, but it answers
	worst           // dead
)

// overlay is one Overlay in the making.
type overlay struct {
	*Plan
	by      []Withdrawal
	detours []map[int]Row // [cell]: rows of the fallback to follow, by set·localities + locality; nil = nothing withdrawn

	grade []int // [cell], in the set at hand
	least int   // the best grade in the set
	any   []uint16
}

func (p *Plan) overlay(by []Withdrawal) *overlay {
	o := &overlay{Plan: p, by: by, detours: make([]map[int]Row, len(p.Cells)), grade: make([]int, len(p.Cells))}
	losses := p.losses()
	rows := make(map[string][]Detour, len(p.Fallbacks))
	for _, f := range p.Fallbacks {
		rows[f.Lost] = f.Rows
	}
	for c := range p.Cells {
		if by[c].Share == 0 {
			continue
		}
		id := string(p.Cells[c].ID)
		region := string(p.Cells[c].ID.Region())
		whole := !slices.ContainsFunc(losses[region], func(c int) bool { return by[c].Share == 0 })
		if _, has := rows[region]; has && whole {
			id = region
		}
		o.detours[c] = map[int]Row{}
		for _, d := range rows[id] {
			for _, l := range d.Localities {
				o.detours[c][d.Set*len(p.Localities)+l] = d.Row
			}
		}
	}
	return o
}

// enter grades the cells of a set; it says whether anything is withdrawn of them.
func (o *overlay) enter(s int) (touched bool) {
	carries := make([]bool, len(o.Cells))
	for _, row := range o.Rows[s] {
		for _, c := range row {
			carries[c] = true
		}
	}
	o.least = worst
	for _, c := range o.Sets[s].Cells {
		switch {
		case o.by[c].Dead:
			o.grade[c] = worst
		case o.by[c].Share > 0 || o.by[c].Closed:
			o.grade[c] = leaving
		case carries[c]:
			o.grade[c] = carrying
		default:
			o.grade[c] = unused
		}
		o.least = min(o.least, o.grade[c])
		touched = touched || o.by[c].Share > 0
	}
	o.any = o.any[:0]
	for _, c := range o.Sets[s].Cells {
		if o.grade[c] == o.least {
			o.any = append(o.any, c)
		}
	}
	return touched
}

// row is the row of an atom without what is withdrawn.
func (o *overlay) row(s, l int) Row {
	was := o.Rows[s][l]
	out := slices.Clone(was)
	var spare map[int][]uint16 // by the cell that is left: who takes what its detour can't
	for i, c := range was {
		// The order in which slots leave spreads over any run of slots, and is the same on every router.
		turn := int(bits.Reverse8(uint8(i)))
		if turn >= o.by[c].Share || o.grade[c] <= o.least {
			continue
		}
		detour := o.detours[c][s*len(o.Localities)+l]
		if detour != nil && o.grade[detour[i]] == o.least {
			out[i] = detour[i]
			continue
		}
		if spare == nil {
			spare = map[int][]uint16{}
		}
		if spare[int(c)] == nil {
			spare[int(c)] = o.receivers(detour, was)
		}
		to := spare[int(c)]
		out[i] = to[turn*len(to)/Slots]
	}
	return out
}

// receivers lists the good cells that a row names, as often as they own slots; the first of the rows that names any counts.
func (o *overlay) receivers(rows ...Row) []uint16 {
	for _, row := range rows {
		var to []uint16
		for _, c := range row {
			if o.grade[c] == o.least {
				to = append(to, c)
			}
		}
		if len(to) > 0 {
			return to
		}
	}
	return o.any
}
