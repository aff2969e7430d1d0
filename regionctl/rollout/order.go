package rollout

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// Publish begins the rollout of a version, or queues it behind the one under way: the newest waits, those before it are
// superseded, since every version is the whole configuration. The seed draws the canaries. A number that is not above
// all earlier ones changes nothing, so that a caller that isn't sure may publish again.
func (s State) Publish(v Version, seed uint64, now time.Time) State {
	if v.Number <= s.Version.Number || v.Number <= s.Stable.Number || s.Next != nil && v.Number <= s.Next.Version.Number {
		return s
	}
	s = s.clone()
	next := Queued{Version: v, Seed: seed}
	fresh := s.Phase == Pending && s.Ring.Kind == "" // nothing of it was released
	if s.Active() && !fresh && s.Phase != Held {
		if s.Next != nil { // superseded before it began
			s.record(s.Next.Version.Number, Superseded, "", fmt.Sprintf("version %d was published before it began", v.Number), now)
		}
		s.Next = &next
		s.touch(now)
		return s
	}
	if s.Active() {
		s.record(s.Version.Number, Superseded, s.Ring.name(), fmt.Sprintf("version %d was published while this one was %s", v.Number, s.Phase), now)
	}
	s.begin(next, now)
	return s
}

// begin makes a version the one that is rolled out. What runs where stays as it is.
func (s *State) begin(q Queued, now time.Time) {
	s.Version, s.Seed = q.Version, q.Seed
	s.Ring, s.Judge, s.Next, s.Want, s.Force, s.Resume, s.End = Ring{}, nil, nil, nil, false, "", ""
	s.decide(Pending, "published", now)
}

// OrderKind is what an operator may say about a rollout.
type OrderKind string

// The orders.
const (
	OrderPause   OrderKind = "pause"
	OrderResume  OrderKind = "resume"
	OrderPromote OrderKind = "promote" // go on to the next ring, whatever the evidence
	OrderAbort   OrderKind = "abort"   // back to the old contents
	OrderForce   OrderKind = "force"   // don't wait for evacuations
)

// Order is an operator's order.
type Order struct {
	Kind   OrderKind
	By     string
	Reason string
	// Version is what it is about; 0 = what is under way.
	Version uint64
	// ID is the same when the order is given again because its answer was lost; empty = it is given once.
	ID string
}

// maxOrdered bounds the orders that are remembered.
const maxOrdered = 16

// Order applies an operator's order. One that was applied already changes nothing, nor does one for what is so already; one that
// makes no sense in the phase is an error.
func (s State) Order(o Order, now time.Time) (State, error) {
	switch {
	case o.ID != "" && slices.Contains(s.Ordered, o.ID):
		return s, nil
	case !s.Active():
		return s, errors.New("rollout: none is under way")
	case o.Version != 0 && o.Version != s.Version.Number:
		return s, fmt.Errorf("rollout: version %d is under way, not %d", s.Version.Number, o.Version)
	case s.Phase == RollingBack && o.Kind != OrderAbort:
		return s, fmt.Errorf("rollout: version %d is rolling back already", s.Version.Number)
	}
	next := s.clone()
	if o.ID != "" {
		next.Ordered = append(next.Ordered[max(0, len(next.Ordered)+1-maxOrdered):], o.ID)
		next.touch(now)
	}
	why := fmt.Sprintf("%s by %s", o.Kind, o.By)
	if o.Reason != "" {
		why += ": " + o.Reason
	}
	switch o.Kind {
	case OrderPause:
		if s.Phase == Paused {
			break // as it is
		}
		next.Resume = s.Phase
		next.decide(Paused, why, now)
	case OrderResume:
		if s.Phase != Paused {
			return s, fmt.Errorf("rollout: it is %s, not paused", s.Phase)
		}
		next.unpause(why, now)
	case OrderPromote:
		if s.Phase == Paused {
			next.unpause(why, now)
		} else {
			next.decide(s.Phase, why, now)
		}
		next.Ring.Promoted = true
	case OrderAbort:
		if s.Phase == RollingBack {
			break
		}
		next.rollBack(Aborted, why, now)
	case OrderForce:
		next.Force = true
		next.decide(s.Phase, why, now)
	default:
		return s, fmt.Errorf("rollout: %q is no order", o.Kind)
	}
	return next, nil
}

// unpause goes back to what was interrupted. The bake, and the time to serve, begin again.
func (s *State) unpause(why string, now time.Time) {
	if !s.Ring.Baked.IsZero() {
		s.Ring.Baked = now
		s.Judge = s.Judge.Again()
	}
	if !s.Ring.Released.IsZero() {
		s.Ring.Released = now
	}
	phase := s.Resume
	s.Resume = ""
	s.decide(phase, why, now)
}

// rollBack returns every ring that has the version to the old contents at once, and asks for a number under which all
// of the world takes them. Without old contents there is no way back: the rollout is held.
func (s *State) rollBack(end Phase, why string, now time.Time) {
	if s.Stable.Number == 0 {
		s.decide(Held, why+"; there is no earlier version to go back to", now)
		return
	}
	touched := len(s.Nodes) > 0
	for _, v := range s.Cells {
		touched = touched || v.Number != s.Stable.Number
	}
	if !touched { // no node ever had it: the old version stays what it is
		s.End = ""
		s.Cells = nil
		s.decide(end, why+"; no node had taken it", now)
		return
	}
	s.Cells, s.Nodes, s.End = map[cells.CellID]Version{}, nil, end
	s.Want = &Want{Contents: s.Stable, Message: fmt.Sprintf("back to %d: %s", s.Stable.Number, why)}
	s.decide(RollingBack, why, now)
}

// Allocated answers Want: v has the wanted contents under a new number.
func (s State) Allocated(v Version, now time.Time) (State, error) {
	if s.Want == nil {
		return s, errors.New("rollout: no number was asked for")
	}
	if v.Number <= s.Version.Number || v.Number <= s.Stable.Number {
		return s, fmt.Errorf("rollout: number %d is not new", v.Number)
	}
	next := s.clone()
	next.Want = nil
	if s.Phase != RollingBack {
		next.Next = &Queued{Version: v, Seed: s.Next.Seed}
		next.touch(now)
		return next, nil
	}
	next.Stable = v
	next.Ring = Ring{Kind: RingAll, Released: now}
	next.record(v.Number, RollingBack, next.Ring.name(), fmt.Sprintf("holds the contents of %d again", s.Stable.Number), now)
	return next, nil
}
