package steer

import (
	"fmt"
	"reflect"
	"slices"
	"time"
)

// Step turns the last state and the evidence into the next state, whose Plan is to be published when its number grew.
// It never blocks and never reads a clock: the same arguments give the same state on every machine.
//
// The order of work: match the old plan with today's cells, localities and names by id; estimate demand; say of every cell
// what it may keep and receive; re-place what may not stay; bring home slowly; number the plan if it changed.
func Step(old State, in Inputs, now time.Time) State {
	if in.Epoch < old.Plan.Epoch {
		old.Refused = fmt.Sprintf("epoch %d is older than the plan's %d", in.Epoch, old.Plan.Epoch)
		return old
	}
	w, refused := newWork(&old, &in, now)
	if refused != "" {
		old.Refused = refused
		return old
	}
	w.estimate()
	w.judge()
	w.displace()
	w.comeHome()
	w.name()
	return w.publish(&old)
}

// publish numbers the plan if its content changed.
func (w *work) publish(old *State) State {
	w.next.Stepped = w.now
	if w.moved {
		w.next.Moved = w.now
	}
	for c := range w.cells {
		w.next.Cells[c].Granted = w.cells[c].granted
	}
	p := &w.next.Plan
	p.AllDown = w.allDown
	p.Unplaced = w.unplaced
	p.Epoch, p.Number, p.Created, p.Head = old.Plan.Epoch, old.Plan.Number, old.Plan.Created, old.Plan.Head
	if sameLayout(p, &old.Plan) {
		p.Fallbacks = old.Plan.Fallbacks
	}
	same := sameContent(p, &old.Plan)
	if w.fallBack(old, !same || w.drifted(old.Plan.Created)) || !same || w.in.Epoch != old.Plan.Epoch {
		p.Epoch, p.Number, p.Created, p.Head = w.in.Epoch, old.Plan.Number+1, w.now, max(old.Plan.Head, w.in.Head)
		if err := p.Validate(); err != nil {
			kept := *old
			kept.Refused = err.Error() + ": the last plan stays"
			return kept
		}
	}
	return w.next
}

// sameContent says whether the plans answer alike: unplaced load changes with every measurement and does not count.
func sameContent(a, b *Plan) bool {
	x, y := *a, *b
	x.Epoch, x.Number, x.Created, x.Head = y.Epoch, y.Number, y.Created, y.Head
	if len(x.Unplaced) != len(y.Unplaced) {
		return false
	}
	for i := range x.Unplaced {
		if x.Unplaced[i].Set != y.Unplaced[i].Set || x.Unplaced[i].Locality != y.Unplaced[i].Locality || x.Unplaced[i].Why != y.Unplaced[i].Why {
			return false
		}
	}
	x.Unplaced, y.Unplaced = nil, nil
	if !slices.EqualFunc(x.Rows, y.Rows, sameRows) || !slices.EqualFunc(x.Localities, y.Localities, sameLocality) {
		return false
	}
	x.Rows, y.Rows, x.Localities, y.Localities = nil, nil, nil, nil // reflection is slow where the plan is large
	return reflect.DeepEqual(x, y)
}

func sameRows(a, b []Row) bool { return slices.EqualFunc(a, b, slices.Equal[Row]) }

func sameLocality(a, b Locality) bool {
	return a.ID == b.ID && slices.Equal(a.Prefixes, b.Prefixes) && slices.Equal(a.LatencyMS, b.LatencyMS)
}

// sameLayout says whether the indices of cells, localities and sets mean the same in both plans.
func sameLayout(a, b *Plan) bool {
	return slices.EqualFunc(a.Cells, b.Cells, func(x, y Cell) bool { return x.ID == y.ID }) &&
		slices.EqualFunc(a.Localities, b.Localities, func(x, y Locality) bool { return x.ID == y.ID }) &&
		slices.EqualFunc(a.Sets, b.Sets, func(x, y Set) bool { return x.ID == y.ID && slices.Equal(x.Cells, y.Cells) })
}
