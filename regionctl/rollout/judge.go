package rollout

import (
	"fmt"
	"maps"
	"math"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/report"
)

// Tally is the sum of some nodes' windows.
type Tally struct {
	Counts  report.Counts `json:"counts"`
	Latency report.Sketch `json:"latency,omitzero"`
}

func (t *Tally) add(n report.Node) {
	t.Counts.Add(n.Counts)
	t.Latency.Merge(n.Latency)
}

func (t Tally) clone() Tally {
	var c report.Sketch
	c.Merge(t.Latency)
	t.Latency = c
	return t
}

// Book is the evidence of one bake. Each window counts once, whoever is the leader.
type Book struct {
	Ring Tally `json:"ring,omitzero"`
	Rest Tally `json:"rest,omitzero"`
	// Past is the rest of the ring before: what the last ring, which has no rest, is compared with.
	Past Tally                 `json:"past,omitzero"`
	Seen map[cells.NodeID]Mark `json:"seen,omitempty"`
}

// Mark is the last window of a node that was counted.
type Mark struct {
	Boot string `json:"boot"`
	Seq  uint64 `json:"seq"`
}

func (b Book) clone() Book {
	b.Ring, b.Rest, b.Past, b.Seen = b.Ring.clone(), b.Rest.clone(), b.Past.clone(), maps.Clone(b.Seen)
	return b
}

// past is what the next ring may be compared with when it has no rest of its own.
func (b Book) past() Tally {
	if b.Rest.Counts.Requests > 0 {
		return b.Rest
	}
	return b.Past
}

// count adds the windows that began after the bake did, each once. The rest are the region's nodes that should run an
// older version, or the world's when the region has none left.
func (m *machine) count() {
	if m.Ring.Baked.IsZero() || m.Ring.Waits {
		return
	}
	rest := m.rest()
	for id, n := range m.ev.Nodes {
		_, inRing := m.Ring.Nodes[id]
		if !inRing && !rest[id] || m.now.Sub(n.At) > m.cfg.Silence || n.At.Add(-n.Report.Window).Before(m.Ring.Baked) {
			continue
		}
		mark := Mark{Boot: n.Report.Boot, Seq: n.Report.Seq}
		if was := m.Book.Seen[id]; was.Boot == mark.Boot && was.Seq >= mark.Seq {
			continue
		}
		if m.Book.Seen == nil {
			m.Book.Seen = map[cells.NodeID]Mark{}
		}
		m.Book.Seen[id] = mark
		if inRing {
			m.Book.Ring.add(n.Report)
		} else {
			m.Book.Rest.add(n.Report)
		}
	}
}

func (m *machine) rest() map[cells.NodeID]bool {
	near, far := map[cells.NodeID]bool{}, map[cells.NodeID]bool{}
	for _, c := range m.ev.Topology.Cells() {
		for _, n := range c.Nodes {
			if m.node(n.ID) == m.Version {
				continue
			}
			far[n.ID] = true
			if n.ID.Region() == m.Ring.Region {
				near[n.ID] = true
			}
		}
	}
	if len(near) > 0 {
		return near
	}
	return far
}

// verdict is what the counts say of a ring.
type verdict struct {
	worse   string // empty = not worse as far as is known
	enough  bool
	summary string
}

func (m *machine) judge() verdict {
	rest := m.Book.Rest
	against := "the rest"
	if rest.Counts.Requests < m.cfg.MinRequests && m.Book.Past.Counts.Requests > rest.Counts.Requests {
		rest, against = m.Book.Past, "the time before"
	}
	return compare(m.Book.Ring, rest, against, m.cfg.MinRequests)
}

// Bounds of the comparison. What a person would roll back for is a difference of points, of a factor, of latency; beyond
// that it must be no accident: z standard errors, and a number of events that one client's retry does not make.
const (
	worsePoints  = 0.01
	worseAuth    = 3.0
	worseLatency = 1.5
	minLatency   = 5 * time.Millisecond // by which p99 must be longer at least
	minEvents    = 5
	minZ         = 4.0
)

// compare judges the ring's counts by the rest's.
func compare(ring, rest Tally, against string, minRequests uint64) verdict {
	n, r := ring.Counts.Requests, rest.Counts.Requests
	v := verdict{enough: n >= minRequests && r >= minRequests}
	v.summary = fmt.Sprintf("%d requests against %d of %s", n, r, against)
	if !v.enough {
		v.summary += fmt.Sprintf(", %d are needed", minRequests)
		return v
	}
	causes := []struct {
		name        string
		ring, rest  uint64
		factor, add float64
	}{
		{"gateway failures", ring.Counts.Gateway, rest.Counts.Gateway, 1, worsePoints},
		{"upstream failures", ring.Counts.Upstream, rest.Counts.Upstream, 1, worsePoints},
		{"known paths answered 404", ring.Counts.NoRoute, rest.Counts.NoRoute, 1, worsePoints},
		{"shed requests", ring.Counts.Shed, rest.Counts.Shed, 1, worsePoints},
		{"authentication refusals", ring.Counts.Auth, rest.Counts.Auth, worseAuth, 0},
	}
	for _, c := range causes {
		p, q := float64(c.ring)/float64(n), float64(c.rest)/float64(r)
		if p > c.factor*q+c.add && c.ring >= minEvents && zScore(c.ring, n, c.rest, r) >= minZ {
			v.worse = fmt.Sprintf("%s: %.2f%% of %d requests against %.2f%% of %d of %s", c.name, 100*p, n, 100*q, r, against)
			return v
		}
	}
	v.worse = slower(ring.Latency, rest.Latency, against)
	return v
}

// slower says that the ring's p99 is longer by half, and that too many of its requests are that slow for an accident.
func slower(ring, rest report.Sketch, against string) string {
	a, b := ring.Quantile(0.99), rest.Quantile(0.99)
	limit := time.Duration(worseLatency * float64(b))
	if b == 0 || a <= limit || a-b < minLatency {
		return ""
	}
	n, over := ring.Count(), uint64(0)
	for i, c := range ring.Buckets {
		if report.Upper(i) > limit {
			over += uint64(c)
		}
	}
	expected := 0.01 * float64(n)
	if over < 2*minEvents || float64(over) < expected+minZ*math.Sqrt(expected) {
		return ""
	}
	return fmt.Sprintf("p99 %v against %v of %s, %d of %d requests slower than %v", a, b, against, over, n, limit)
}

// zScore is the difference of two rates in standard errors, with one pseudo-event so that a rate of zero has an error too.
func zScore(x, n, y, m uint64) float64 {
	p, q := float64(x)/float64(n), float64(y)/float64(m)
	pool := (float64(x) + float64(y) + 1) / (float64(n) + float64(m) + 1)
	return (p - q) / math.Sqrt(pool*(1-pool)*(1/float64(n)+1/float64(m)))
}
