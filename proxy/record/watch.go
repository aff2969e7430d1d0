package record

import "time"

// Part is a part of the pipeline.
type Part uint8

// The parts: finding the route, finding out who calls, and all other rules.
const (
	Route Part = iota
	Auth
	Policy
	Parts = iota
)

// Watch measures what the parts of the pipeline take of one exchange. It is for those that are On.
type Watch struct {
	On    bool
	since time.Time
	Parts [Parts]time.Duration
}

// Start is the begin of a step, unless it waits: then it has begun already.
func (w *Watch) Start(clock func() time.Time) {
	if w.On && w.since.IsZero() {
		w.since = clock()
	}
}

// Stop is the end of a step of the part; one that waits has not ended.
func (w *Watch) Stop(p Part, waits bool, clock func() time.Time) {
	if w.On && !waits {
		w.Parts[p] += clock().Sub(w.since)
		w.since = time.Time{}
	}
}
