package cells

import "time"

// State is where a cell is in its life.
//
//	active ──evacuate──▶ evacuating ──over──▶ evacuated
//	   ▲                     │                    │
//	   └──ramped── restoring ◀──────restore───────┘
type State string

// The lifecycle states of a cell.
const (
	Active     State = "active"
	Evacuating State = "evacuating"
	Evacuated  State = "evacuated"
	Restoring  State = "restoring"
)

// Evacuation is an operator's order to move clients off a cell. It is a stored form: see Form.
type Evacuation struct {
	Form    int           `json:"form"`
	Cell    CellID        `json:"cell"`
	Reason  string        `json:"reason"`
	By      string        `json:"by"`
	Started time.Time     `json:"started"`
	Over    time.Duration `json:"over_ns"`
	Expires time.Time     `json:"expires"`
	// Restored is when restore was ordered; zero while the evacuation stands.
	Restored time.Time `json:"restored,omitzero"`
	Force    bool      `json:"force,omitempty"`
	// Withdrawn: a safety rule refused the order after some regions had taken it; it never stands.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// NoForward: requests that still come are served by the cell itself, not handed to the cells that its clients went to.
	NoForward bool `json:"no_forward,omitempty"`
}

// EvacuationForm is the version of the stored form of Evacuation.
const EvacuationForm = 1

// Standing says whether the order keeps clients away at now: ordered, not restored, not expired.
func (e Evacuation) Standing(now time.Time) bool {
	return e.Restored.IsZero() && !e.Withdrawn && now.Before(e.Expires)
}

// Age is how long the order has run at now. One that was given by a clock which is ahead of this one has begun all the same.
func (e Evacuation) Age(now time.Time) time.Duration { return max(now.Sub(e.Started), 0) }

// Ended is when the order stopped standing: its restoration or its expiry. Only meaningful once Standing is false.
func (e Evacuation) Ended() time.Time {
	if e.Withdrawn {
		return e.Started
	}
	if !e.Restored.IsZero() && e.Restored.Before(e.Expires) {
		return e.Restored
	}
	return e.Expires
}

// State is the cell's lifecycle state under this order at now, with ramp the time a restored cell takes to be full again.
func (e Evacuation) State(now time.Time, ramp time.Duration) State {
	switch {
	case e.Withdrawn:
		return Active
	case e.Standing(now) && e.Age(now) < e.Over:
		return Evacuating
	case e.Standing(now):
		return Evacuated
	case now.Before(e.Ended().Add(ramp)):
		return Restoring
	default:
		return Active
	}
}
