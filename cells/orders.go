package cells

import (
	"cmp"
	"slices"
	"time"
)

// Unite merges lists of evacuations that were ordered and restored in places which could not always speak to each other.
// An order is known by its cell and start. What is said of one order twice counts in its strictest form, with the sooner end of
// the move; a restoration ends every order of its cell that started before it, also those that whoever restored had not heard
// of. A Restored that is not before Expires only notes the expiry of its own order.
//
// It is the join of a lattice: grouping, order and repetition of the lists don't matter, so places that exchange what
// they know end with the same list, and nobody's write is answered by somebody else's for ever.
func Unite(lists ...[]Evacuation) []Evacuation {
	type name struct {
		cell  CellID
		start int64
	}
	known, noted, withdrawn := map[name]Evacuation{}, map[name]time.Time{}, map[name]bool{}
	restored := map[CellID]time.Time{}
	for _, list := range lists {
		for _, e := range list {
			n := name{e.Cell, e.Started.UnixNano()}
			if old, ok := known[n]; !ok {
				known[n] = e
			} else {
				known[n] = strictest(old, e)
			}
			withdrawn[n] = withdrawn[n] || e.Withdrawn
			if !e.Restored.Before(e.Expires) {
				noted[n] = later(noted[n], e.Restored)
			} else {
				restored[e.Cell] = later(restored[e.Cell], e.Restored)
			}
		}
	}
	out := make([]Evacuation, 0, len(known))
	for n, e := range known {
		e.Restored, e.Withdrawn = time.Time{}, withdrawn[n]
		if r := restored[e.Cell]; !r.IsZero() && !e.Started.After(r) {
			e.Restored = r
		} else if !noted[n].Before(e.Expires) {
			e.Restored = noted[n]
		}
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Evacuation) int {
		return cmp.Or(cmp.Compare(a.Cell, b.Cell), a.Started.Compare(b.Started))
	})
	return out
}

// strictest is what two words about one order come to.
func strictest(a, b Evacuation) Evacuation {
	over := min(a.Over, b.Over)
	if stricter(b, a) > 0 {
		a = b
	}
	a.Over = over
	return a
}

// stricter is positive when a keeps clients away longer than b, whatever their moves; equal orders alone give 0. Restorations
// don't count.
func stricter(a, b Evacuation) int {
	flag := func(on bool) int {
		if on {
			return 1
		}
		return 0
	}
	return cmp.Or(a.Expires.Compare(b.Expires), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.By, b.By), cmp.Compare(flag(a.Force), flag(b.Force)), cmp.Compare(flag(a.NoForward), flag(b.NoForward)), cmp.Compare(a.Form, b.Form))
}

// Strictest gives one order per cell, sorted by cell: of those that stand at now the earliest start, the earliest end of
// the move and the latest expiry; when none stands, the one that ended last.
func Strictest(orders []Evacuation, now time.Time) []Evacuation {
	byCell := map[CellID]Evacuation{}
	for _, e := range orders {
		old, ok := byCell[e.Cell]
		switch {
		case !ok:
			byCell[e.Cell] = e
		case old.Standing(now) && e.Standing(now):
			byCell[e.Cell] = both(old, e)
		case e.Standing(now), !old.Standing(now) && (e.Ended().After(old.Ended()) || e.Ended().Equal(old.Ended()) && stricter(e, old) > 0):
			byCell[e.Cell] = e
		}
	}
	out := make([]Evacuation, 0, len(byCell))
	for _, e := range byCell {
		out = append(out, e)
	}
	slices.SortFunc(out, func(a, b Evacuation) int { return cmp.Compare(a.Cell, b.Cell) })
	return out
}

// Renewing is the order given again while old stands: the cell goes on emptying from where it began, and at the sooner of the two
// ends it has left.
func (e Evacuation) Renewing(old Evacuation) Evacuation {
	end := earlier(old.Started.Add(old.Over), e.Started.Add(e.Over))
	e.Started, e.Over = old.Started, end.Sub(old.Started)
	return e
}

// both is one order that is as strict as each of two.
func both(a, b Evacuation) Evacuation {
	out := a
	if stricter(b, a) > 0 {
		out = b
	}
	out.NoForward = a.NoForward || b.NoForward
	out.Started = earlier(a.Started, b.Started)
	out.Over = earlier(a.Started.Add(a.Over), b.Started.Add(b.Over)).Sub(out.Started)
	return out
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
