package load

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Summary of a run.
type Summary struct {
	Requests, Failed, Repeated int
	// First failures, at most ten, in words.
	Failures []string
	Cells    map[netip.Addr]*Cell
	P50, P99 time.Duration
}

// Cell is what one cell got.
type Cell struct {
	Requests int
	Last     time.Time // start of the last request that went there
	Peak     float64   // requests per second in the busiest five seconds
}

// Sum sums requests up.
func Sum(all []Request) Summary {
	s := Summary{Cells: map[netip.Addr]*Cell{}}
	starts := map[netip.Addr][]time.Time{}
	var took []time.Duration
	for _, q := range all {
		s.Requests++
		took = append(took, q.Took)
		if q.Repeated {
			s.Repeated++
		}
		if q.Failed() {
			s.Failed++
			if len(s.Failures) < 10 {
				s.Failures = append(s.Failures, fmt.Sprintf("%s %s status %d after %v: %v", q.Start.Format("15:04:05.000"), q.Cell, q.Status, q.Took, q.Err))
			}
		}
		if q.Cell.IsValid() {
			starts[q.Cell] = append(starts[q.Cell], q.Start)
		}
	}
	for cell, times := range starts {
		slices.SortFunc(times, time.Time.Compare)
		s.Cells[cell] = &Cell{Requests: len(times), Last: times[len(times)-1], Peak: peak(times, 5*time.Second)}
	}
	slices.Sort(took)
	if n := len(took); n > 0 {
		s.P50, s.P99 = took[n/2], took[n*99/100]
	}
	return s
}

// peak is the highest rate in any window of sorted times.
func peak(times []time.Time, window time.Duration) float64 {
	most, from := 0, 0
	for i, t := range times {
		for t.Sub(times[from]) >= window {
			from++
		}
		most = max(most, i-from+1)
	}
	return float64(most) / window.Seconds()
}

func (s Summary) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d requests, %d failed, %d repeated, p50 %v, p99 %v", s.Requests, s.Failed, s.Repeated, s.P50.Round(100*time.Microsecond), s.P99.Round(100*time.Microsecond))
	var cells []netip.Addr
	for c := range s.Cells {
		cells = append(cells, c)
	}
	slices.SortFunc(cells, netip.Addr.Compare)
	for _, c := range cells {
		fmt.Fprintf(&b, "\n  %s: %d, peak %.0f/s", c, s.Cells[c].Requests, s.Cells[c].Peak)
	}
	for _, f := range s.Failures {
		b.WriteString("\n  " + f)
	}
	return b.String()
}
