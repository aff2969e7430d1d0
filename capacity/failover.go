package capacity

import (
	"cmp"
	"slices"

	"github.com/cellgate/cellgate/cells"
)

// Loss says which cells are gone.
type Loss func(cells.CellID) bool

// Cell is the loss of one cell.
func Cell(id cells.CellID) Loss { return func(c cells.CellID) bool { return c == id } }

// Region is the loss of a whole region.
func Region(id cells.RegionID) Loss { return func(c cells.CellID) bool { return c.Region() == id } }

// Outcome is what a loss comes to.
type Outcome struct {
	Displaced cells.MilliRPS
	// Unplaced found no confirmed room below the target; Classes names it by traffic class, largest first.
	Unplaced cells.MilliRPS
	Classes  []Shortage
	// After is the headroom of what is left once the displaced load is placed.
	After Total
	// Uncertain counts lost cells whose load is a held or doubtful figure.
	Uncertain int
}

// Shortage is unplaced load of one class.
type Shortage struct {
	Class    cells.Class
	Unplaced cells.MilliRPS
}

// Fits says whether the rest carries everything below the target.
func (o Outcome) Fits() bool { return o.Unplaced == 0 }

// Fail computes a loss. Classes don't mix: the load of a class is placed on cells of that class alone.
func Fail(loads []Load, lost Loss, cfg Config) Outcome {
	cfg = cfg.withDefaults()
	var out Outcome
	var left []Load
	displaced := map[cells.Class]cells.MilliRPS{}
	room := map[cells.Class]cells.MilliRPS{}
	for _, l := range loads {
		if !lost(l.Cell) {
			left = append(left, l)
			room[l.class()] += l.room(cfg)
			continue
		}
		displaced[l.class()] += l.demand()
		out.Displaced += l.demand()
		if !l.trusted(cfg) {
			out.Uncertain++
		}
	}
	out.After = Sum(left, cfg)
	for class, load := range displaced {
		placed := min(load, room[class])
		out.After.Load += placed
		out.After.Room -= placed
		if short := load - placed; short > 0 {
			out.Unplaced += short
			out.Classes = append(out.Classes, Shortage{class, short})
		}
	}
	slices.SortFunc(out.Classes, func(a, b Shortage) int {
		return cmp.Or(cmp.Compare(b.Unplaced, a.Unplaced), cmp.Compare(a.Class, b.Class))
	})
	return out
}

// Case is one loss of a survey: of Cell, or of a whole Region when Cell is empty.
type Case struct {
	Region  cells.RegionID
	Cell    cells.CellID
	Outcome Outcome
}

// Survey computes the loss of every cell and of every region, in the order of loads; a region after its first cell.
func Survey(loads []Load, cfg Config) []Case {
	var cases []Case
	seen := map[cells.RegionID]bool{}
	for _, l := range loads {
		region := l.Cell.Region()
		cases = append(cases, Case{Region: region, Cell: l.Cell, Outcome: Fail(loads, Cell(l.Cell), cfg)})
		if !seen[region] {
			seen[region] = true
			cases = append(cases, Case{Region: region, Outcome: Fail(loads, Region(region), cfg)})
		}
	}
	return cases
}
