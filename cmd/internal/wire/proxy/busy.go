package proxy

import (
	"time"

	"github.com/cellgate/cellgate/report"
)

// busyWindow is how long the routes' requests are counted before they are reported.
const busyWindow = 10 * time.Second

// busy turns counts since the start into counts of the last window. Owner: the agent's report loop.
type busy struct {
	since  time.Time
	before map[string]uint64
	last   report.Busy
}

// observe gives the last whole window. Counts that went back, because a series made room, begin anew.
func (b *busy) observe(now time.Time, counts func() map[string]uint64) report.Busy {
	if now.Sub(b.since) < busyWindow {
		return b.last
	}
	total, window := counts(), map[string]uint64{}
	for route, n := range total {
		if was := b.before[route]; n > was {
			window[route] = n - was
		}
	}
	if b.before != nil {
		b.last = report.BusyOf(window)
	}
	b.since, b.before = now, total
	return b.last
}
