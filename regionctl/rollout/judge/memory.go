package judge

import (
	"math"
	"slices"
	"strings"
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
	seconds  float64   // length of its windows
	served   uint64    // the version that it ran at the end
	requests float64
	extra    float64 // of them, those of clients that were set aside
	services []part
	hosts    []part
	loose    part // failures of no service, among all requests
	cpu      time.Duration
	rss      int64
}

// part is one stratum of it, without a client that came on top.
type part struct {
	id   string
	n    float32
	k    [counted]float32
	warm report.Span
	// heavy are the requests of clients that failed most, beside are all requests of the same windows, of so much time in s.
	heavy, beside, time float32
	// own are the requests of windows in which the heaviest client wasn't taken for the traffic, without it, and their time.
	own, ownTime float32
}

func servicesOf(u *unit) []part { return u.services }
func hostsOf(u *unit) []part    { return u.hosts }

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
	if known && was.boot != n.Boot || n.Counts.Requests > 1e9 || n.Window <= 0 || n.Window > time.Minute {
		return
	}
	if m.open == nil {
		m.open = &Round{From: m.begin(at), units: map[cells.NodeID]*unit{}}
	}
	m.add(n, at)
}

// aside says whether a stratum's heaviest client is set aside, as one of many or as one that hammers. Otherwise it is the
// traffic, and its failures are the node's.
func (m *Memory) aside(n report.Node, s report.Stratum, parts func(*unit) []part) bool {
	p := m.lately(n.ID, s.ID, parts)
	p.tell(s, n.Window)
	if p.heavy <= p.beside/2 {
		return true
	}
	return p.onTop() && !m.fromElsewhere(n, s)
}

// onTop says that the others ask as much as is usual in the part beside the heaviest client.
func (p *part) onTop() bool {
	others, usual := float64(p.beside-p.heavy), float64(p.own/p.ownTime*p.time)
	chance := 2 * math.Sqrt(usual)
	return time.Duration(p.ownTime*float32(time.Second)) >= minUsual && others >= .7*usual-chance && others <= 1.5*usual+chance+3
}

// fromElsewhere says that much of the node's traffic is a client's that doesn't come on top of the node's usual: the version
// has sent here what went elsewhere before. A little can't be told from chance.
func (m *Memory) fromElsewhere(n report.Node, s report.Stratum) bool {
	rate, known := m.usual(n.ID)
	h, all := float64(s.Heavy.Requests), float64(n.Counts.Requests)
	return known && h >= .15*all && all-rate*n.Window.Seconds() < h/2
}

// lately sums a part of a node up: what is usual in it, of all rounds that are kept, and what it had with clients that failed
// most, of the last ones.
func (m *Memory) lately(id cells.NodeID, stratum string, parts func(*unit) []part) (sum part) {
	for i, r := range m.rounds {
		u := r.units[id]
		if u == nil {
			continue
		}
		j, found := findPart(parts(u), stratum)
		if !found {
			continue
		}
		p := &parts(u)[j]
		sum.own, sum.ownTime = sum.own+p.own, sum.ownTime+p.ownTime
		if i >= len(m.rounds)-shareRounds {
			sum.heavy, sum.beside, sum.time = sum.heavy+p.heavy, sum.beside+p.beside, sum.time+p.time
		}
	}
	return sum
}

// shareRounds are the rounds in which a client's share is looked for.
const shareRounds = 10

// usual is how many requests per second a node has had in the rounds that are kept, without those that came on top.
func (m *Memory) usual(id cells.NodeID) (perSecond float64, known bool) {
	var requests, seconds float64
	for _, r := range m.rounds {
		if u := r.units[id]; u != nil {
			requests, seconds = requests+u.requests-u.extra, seconds+u.seconds
		}
	}
	return requests / seconds, seconds >= minUsual.Seconds()
}

// minUsual is the time from which on a node's traffic is known.
const minUsual = 10 * time.Second

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

// add puts a window into the round that is open.
func (m *Memory) add(n report.Node, at time.Time) {
	r := m.open
	u := r.units[n.ID]
	if u == nil {
		u = &unit{from: at.Add(-n.Window)}
		r.units[n.ID] = u
	}
	before := len(u.services) + len(u.hosts)
	if len(n.Services)+len(n.Hosts) == 0 && n.Counts.Requests > 0 { // a node that doesn't tell strata
		all := report.Stratum{ID: report.Other, Counts: n.Counts, Warm: report.SpanOf(n.Latency.Buckets)}
		n.Services, n.Hosts = []report.Stratum{all}, []report.Stratum{all}
	}
	rest := n.Counts
	for _, s := range n.Services {
		rest = less(rest, s.Counts)
	}
	var ofServices, ofHosts uint64
	u.services, ofServices = m.addParts(n, u.services, n.Services, servicesOf)
	u.hosts, ofHosts = m.addParts(n, u.hosts, n.Hosts, hostsOf)
	u.extra += float64(max(ofServices, ofHosts))
	u.seconds += n.Window.Seconds()
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

func findPart(all []part, id string) (at int, found bool) {
	return slices.BinarySearchFunc(all, id, func(p part, id string) int { return strings.Compare(p.id, id) })
}

// addParts adds strata to the parts of their names, without the clients that are set aside, of so many requests.
func (m *Memory) addParts(n report.Node, all []part, strata []report.Stratum, parts func(*unit) []part) (sum []part, aside uint64) {
	for _, s := range strata {
		i, found := findPart(all, s.ID)
		if !found {
			all = slices.Insert(all, i, part{id: s.ID})
		}
		p := &all[i]
		isTraffic := false
		if s.Heavy != nil {
			isTraffic = !m.aside(n, s, parts)
			p.tell(s, n.Window)
			if !isTraffic {
				aside += min(s.Heavy.Requests, s.Requests)
				s.Counts = less(s.Counts, *s.Heavy)
			}
		}
		if !isTraffic {
			p.own += float32(s.Requests)
			p.ownTime += float32(n.Window.Seconds())
		}
		p.add(s)
	}
	return all, aside
}

// tell notes a window with a client that failed.
func (p *part) tell(s report.Stratum, window time.Duration) {
	p.heavy += float32(s.Heavy.Requests)
	p.beside += float32(s.Requests)
	p.time += float32(window.Seconds())
}

func (p *part) add(s report.Stratum) {
	n := min(s.Requests, 1e9)
	p.n += float32(n)
	for cause, k := range byCause(s.Counts) {
		p.k[cause] += float32(min(k, n))
	}
	p.k[cold] += float32(min(s.Cold, n))
	p.warm.Merge(s.Warm)
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
