package supervise

import "time"

// vigil counts the probes in a row that a process has not answered. A probe for which the supervisor itself was late says
// nothing, and the count begins anew: where the machine starves or stood still, the process had no more time than we had.
type vigil struct {
	every time.Duration // from the beginning of one probe to that of the next, also of one that hangs
	due   time.Time     // when the next probe is to begin
	lost  int
}

const (
	fatal     = 3                      // so many lost probes in a row, and the process is taken for hung
	tolerance = 100 * time.Millisecond // who runs later than this is no judge
)

func newVigil(every time.Duration, now time.Time) vigil {
	return vigil{every: every, due: now.Add(every)}
}

// probeLimit is how long a probe may take.
func probeLimit(every time.Duration) time.Duration { return every * 6 / 7 }

// probed takes in what came of the probe that was due, and says whether the process is hung.
func (v *vigil) probed(began, ended time.Time, err error) (hung bool) {
	late := began.Sub(v.due) > tolerance || ended.Sub(began) > probeLimit(v.every)+tolerance
	if v.lost++; err == nil || late {
		v.lost = 0
	}
	if v.due = v.due.Add(v.every); v.due.Before(ended) {
		v.due = ended
	}
	return v.lost >= fatal
}
