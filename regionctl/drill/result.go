package drill

import (
	"fmt"
	"math"
	"strconv"
	"time"
)

// Figure is one measured value against the limit that it must keep.
type Figure struct {
	Name string `json:"name"`
	Unit string `json:"unit,omitempty"` // s, ms, % or nothing
	// Least: the value must be at least the limit; else at most.
	Least    bool    `json:"at_least,omitempty"`
	Limit    float64 `json:"limit"`
	Measured float64 `json:"measured"`
	Pass     bool    `json:"pass"`
}

func most(name, unit string, limit, measured float64) Figure {
	limit, measured = round(limit), round(measured)
	return Figure{Name: name, Unit: unit, Limit: limit, Measured: measured, Pass: measured <= limit}
}

func least(name, unit string, limit, measured float64) Figure {
	limit, measured = round(limit), round(measured)
	return Figure{Name: name, Unit: unit, Least: true, Limit: limit, Measured: measured, Pass: measured >= limit}
}

// round keeps thousandths: finer is no measurement.
func round(v float64) float64 { return math.Round(v*1000) / 1000 }

func (f Figure) amount(v float64) string {
	decimals := 0
	switch f.Unit {
	case "s":
		decimals = 2
	case "ms", "%":
		decimals = 1
	}
	text := strconv.FormatFloat(v, 'f', decimals, 64)
	if f.Unit == "" || f.Unit == "%" {
		return text + f.Unit
	}
	return text + " " + f.Unit
}

// LimitText is the limit as people read it.
func (f Figure) LimitText() string {
	if f.Least {
		return "≥ " + f.amount(f.Limit)
	}
	return "≤ " + f.amount(f.Limit)
}

// MeasuredText is the value as people read it.
func (f Figure) MeasuredText() string { return f.amount(f.Measured) }

// Outcome is how a run ended.
type Outcome string

// The outcomes.
const (
	Running   Outcome = "running"
	Passed    Outcome = "passed"
	Failed    Outcome = "failed"     // a figure is over its limit
	BrokenOff Outcome = "broken off" // by its operator
	Unproved  Outcome = "unproved"   // something went wrong that says nothing about the figures

	// What List finds and no run says of itself.
	Killed     Outcome = "killed"     // before it could undo what it did
	Unreadable Outcome = "unreadable" // damaged, or of a newer version
)

// Form is the version of the stored form of Result.
const Form = 1

// Result is one run. It is a stored form.
type Result struct {
	Form    int       `json:"form"`
	ID      string    `json:"id"`
	Drill   string    `json:"drill"`
	Target  string    `json:"target,omitempty"`
	Began   time.Time `json:"began"`
	Ended   time.Time `json:"ended,omitzero"`
	Outcome Outcome   `json:"outcome"`
	Why     string    `json:"why,omitempty"`
	Version uint64    `json:"version"` // of the configuration when it began
	// Rate is the load that was ordered, Requests what came of it.
	Rate     float64  `json:"rate"`
	Requests int      `json:"requests"`
	Figures  []Figure `json:"figures,omitempty"`
	// Undone says what was put back, and what could not be.
	Undone []string `json:"undone,omitempty"`
}

// judge sets the outcome by the figures.
func (r *Result) judge() {
	over := 0
	for _, f := range r.Figures {
		if !f.Pass {
			over++
		}
	}
	r.Outcome = Passed
	if over > 0 {
		r.Outcome, r.Why = Failed, fmt.Sprintf("%d of %d figures are over their limits", over, len(r.Figures))
	}
}
