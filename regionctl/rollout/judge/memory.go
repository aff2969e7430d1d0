package judge

import (
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/report"
)

// Memory gathers the nodes' windows into rounds and keeps those of the last two minutes. It has one owner.
// It is not stored: a new leader begins with an empty one, and lacks the canary's own past until the next ring.
type Memory struct {
	window time.Duration
	open   *Round
	rounds []*Round
	parts  int
	marks  map[cells.NodeID]mark
}

// mark is the last window of a node that was heard.
type mark struct {
	boot string
	seq  uint64
}

// Round is what every node saw in the same few seconds. It doesn't change once it is given out.
type Round struct {
	From, To time.Time
	units    map[cells.NodeID]*unit
	parts    int
}

// Began is when the first window of these nodes in the round began; the end of the round if they have none in it.
func (r *Round) Began(nodes []cells.NodeID) time.Time {
	first := r.To
	for _, id := range nodes {
		if u := r.units[id]; u != nil && u.from.Before(first) {
			first = u.from
		}
	}
	return first
}

// since are the last of the rounds in which the nodes ran what they run at the end: what an earlier version did is not their past.
func since(rounds []*Round, nodes []cells.NodeID) []*Round {
	served := map[cells.NodeID]uint64{}
	for i := len(rounds) - 1; i >= 0; i-- {
		for _, id := range nodes {
			u := rounds[i].units[id]
			if u == nil {
				continue
			}
			if v, known := served[id]; known && v != u.served {
				return rounds[i+1:]
			}
			served[id] = u.served
		}
	}
	return rounds
}

// unit is one node's part of a round.
type unit struct {
	from     time.Time // beginning of its first window
	served   uint64    // the version that it ran at the end
	requests float64
	services []part
	hosts    []part
	loose    part // failures of no service, among all requests
	cpu      time.Duration
	rss      int64
}

// part is one stratum of it, without its heaviest client.
type part struct {
	id   string
	n    float32
	k    [counted]float32
	warm report.Span
}

// NewMemory makes rounds of the given length.
func NewMemory(window time.Duration) *Memory {
	return &Memory{window: window, marks: map[cells.NodeID]mark{}}
}

// Hear takes a node's newest window in; one that was heard before is ignored. So is the first of a process that has just
// started: it saw no ordinary traffic.
func (m *Memory) Hear(n report.Node, at time.Time) {
	was, known := m.marks[n.ID]
	if known && was.boot == n.Boot && n.Seq <= was.seq {
		return
	}
	if !known && len(m.marks) >= 4*maxNodes {
		return
	}
	m.marks[n.ID] = mark{n.Boot, n.Seq}
	if known && was.boot != n.Boot || n.Counts.Requests > 1e9 || n.Window > time.Minute {
		return
	}
	if m.open == nil {
		m.open = &Round{From: m.begin(at), units: map[cells.NodeID]*unit{}}
	}
	m.open.add(n, at)
}

// begin is the end of the last round, if that is not long ago.
func (m *Memory) begin(at time.Time) time.Time {
	if n := len(m.rounds); n > 0 {
		if end := m.rounds[n-1].To; at.Sub(end) <= 2*m.window && at.After(end.Add(-m.window)) {
			return end
		}
	}
	return at
}

// maxNodes is the size of world for which everything is kept.
const maxNodes = 5_000

// Rounds closes the round that is under way if it is time, and gives those of the last two minutes, oldest first.
func (m *Memory) Rounds(now time.Time) []*Round {
	if m.open != nil && now.Sub(m.open.From) >= m.window-m.window/8 {
		m.open.To = now
		m.rounds = append(m.rounds, m.open)
		m.parts += m.open.parts
		m.open = nil
	}
	old := 0
	for old < len(m.rounds)-1 && (m.parts > maxParts || now.Sub(m.rounds[old].To) > past) {
		m.parts -= m.rounds[old].parts
		old++
	}
	m.rounds = append([]*Round(nil), m.rounds[old:]...)
	return m.rounds
}

func (r *Round) add(n report.Node, at time.Time) {
	u := r.units[n.ID]
	if u == nil {
		u = &unit{from: at.Add(-n.Window)}
		r.units[n.ID] = u
	}
	before := len(u.services) + len(u.hosts)
	services, hosts := n.Services, n.Hosts
	if len(services)+len(hosts) == 0 && n.Counts.Requests > 0 { // a node that doesn't tell strata
		all := report.Stratum{ID: report.Other, Counts: n.Counts, Warm: report.SpanOf(n.Latency.Buckets)}
		services, hosts = []report.Stratum{all}, []report.Stratum{all}
	}
	rest := n.Counts
	for _, s := range services {
		rest = less(rest, s.Counts)
		u.services = addPart(u.services, s)
	}
	for _, s := range hosts {
		u.hosts = addPart(u.hosts, s)
	}
	u.requests += float64(n.Counts.Requests)
	u.loose.n += float32(n.Counts.Requests)
	for c, k := range byCause(rest) {
		u.loose.k[c] += float32(min(k, n.Counts.Requests))
	}
	u.served = n.Snapshot.Served
	u.cpu += max(n.CPU, 0)
	u.rss = max(n.RSS, 0)
	r.parts += len(u.services) + len(u.hosts) - before
}

// addPart sets the stratum's heaviest client aside unless it is most of the traffic there, and adds the rest.
func addPart(all []part, s report.Stratum) []part {
	c := s.Counts
	if h := s.Heavy; h != nil && h.Requests <= c.Requests/2 {
		c = less(c, *h)
	}
	i, found := slices.BinarySearchFunc(all, s.ID, func(p part, id string) int {
		if p.id < id {
			return -1
		} else if p.id > id {
			return 1
		}
		return 0
	})
	if !found {
		all = slices.Insert(all, i, part{id: s.ID})
	}
	p := &all[i]
	n := min(c.Requests, 1e9)
	p.n += float32(n)
	for cause, k := range byCause(c) {
		p.k[cause] += float32(min(k, n))
	}
	p.k[cold] += float32(min(s.Cold, n))
	p.warm.Merge(s.Warm)
	return all
}

func byCause(c report.Counts) [counted]uint64 {
	return [counted]uint64{gateway: c.Gateway, upstream: c.Upstream, auth: c.Auth, noRoute: c.NoRoute, missing: c.Missing, rejected: c.Limited + c.Shed}
}

// less is a − b, nowhere below zero.
func less(a, b report.Counts) report.Counts {
	sub := func(x, y uint64) uint64 { return x - min(x, y) }
	return report.Counts{
		Requests: sub(a.Requests, b.Requests), Gateway: sub(a.Gateway, b.Gateway), Upstream: sub(a.Upstream, b.Upstream),
		Auth: sub(a.Auth, b.Auth), NoRoute: sub(a.NoRoute, b.NoRoute), Missing: sub(a.Missing, b.Missing), Limited: sub(a.Limited, b.Limited), Shed: sub(a.Shed, b.Shed),
	}
}
