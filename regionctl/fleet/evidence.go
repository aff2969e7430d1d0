// Package fleet is a controller's side of the node protocol: what it tells the processes of its region and what it hears from them.
//
//	board := fleet.NewBoard()                      // the newest message of each kind
//	ears := fleet.NewEvidence(time.Now)            // the newest report of each node, the newest probes of each region
//	srv := fleet.NewServer(fleet.Config{…})        // Attach, Poll, Fetch, Rollups
//	peers := fleet.NewPeers(…)                     // hears the other regions' roll-ups
//
// Nothing here is stored: evidence lives in bounded memory and is replaced by the next window.
package fleet

import (
	"sort"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/report"
)

// Bounds of the memory that evidence may take. Beyond MaxNodes the node heard of longest ago is forgotten;
// a round of more than MaxProbes probes is refused.
const (
	MaxNodes  = 20_000
	MaxProbes = 20_000
)

// freshRound is how old a round of probes may be when it is passed on.
const freshRound = 2 * time.Second

// Node is the newest evidence of one proxy.
type Node struct {
	Report report.Node
	// Arrived is when this window reached the first controller that heard it, by this controller's clock.
	Arrived time.Time
	// Via is the region whose controller heard the node.
	Via cells.RegionID
	// Boots counts process starts seen since this controller runs; 1 = no restart seen.
	Boots int

	raw []byte
}

// Round is the newest round of one region's prober.
type Round struct {
	From    cells.RegionID
	Probes  []report.Probe
	Arrived time.Time

	via cells.RegionID
	raw []byte
}

// Peer is what is known of another region's controller.
type Peer struct {
	Region cells.RegionID
	// Heard is when its last roll-up came; zero = never since this controller runs.
	Heard  time.Time
	Leader bool
	// Seen is what the controller knows to have been published, as it says it; nil = not told yet.
	Seen []byte
}

// Evidence holds the newest window of everything that reports. It is safe for concurrent use.
type Evidence struct {
	now  func() time.Time
	self cells.RegionID

	mu     sync.Mutex
	nodes  map[cells.NodeID]*Node
	rounds map[cells.RegionID]*Round
	peers  map[cells.RegionID]Peer
}

// NewEvidence is the empty memory of the controller of region self.
func NewEvidence(self cells.RegionID, now func() time.Time) *Evidence {
	return &Evidence{
		now: now, self: self,
		nodes:  map[cells.NodeID]*Node{},
		rounds: map[cells.RegionID]*Round{},
		peers:  map[cells.RegionID]Peer{},
	}
}

// Hear takes a report that came over a stream of this controller.
func (e *Evidence) Hear(n report.Node, raw []byte) { e.hear(n, raw, e.self) }

func (e *Evidence) hear(n report.Node, raw []byte, via cells.RegionID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	old := e.nodes[n.ID]
	boots := 1
	if old != nil {
		if old.Report.Boot == n.Boot && n.Seq <= old.Report.Seq {
			return // the same window by another way, or one overtaken
		}
		boots = old.Boots
		if old.Report.Boot != n.Boot {
			boots++
		}
	} else if len(e.nodes) >= MaxNodes {
		e.forgetOldest()
	}
	e.nodes[n.ID] = &Node{Report: n, Arrived: e.now(), Via: via, Boots: boots, raw: raw}
}

func (e *Evidence) forgetOldest() {
	var oldest cells.NodeID
	for id, n := range e.nodes {
		if oldest == "" || n.Arrived.Before(e.nodes[oldest].Arrived) {
			oldest = id
		}
	}
	delete(e.nodes, oldest)
}

// HearProbes takes a round of the prober of region from that came over a stream of this controller.
func (e *Evidence) HearProbes(from cells.RegionID, ps []report.Probe, raw []byte) {
	e.hearProbes(from, ps, raw, e.self)
}

func (e *Evidence) hearProbes(from cells.RegionID, ps []report.Probe, raw []byte, via cells.RegionID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if old := e.rounds[from]; old != nil && old.via != via && via != from && e.now().Sub(old.Arrived) < 3*time.Second {
		return // the prober's own region speaks for it while it is heard
	}
	e.rounds[from] = &Round{From: from, Probes: ps, Arrived: e.now(), via: via, raw: raw}
}

// hearPeer takes another region's roll-up.
func (e *Evidence) hearPeer(region cells.RegionID, r *nodeapi.Rollup) error {
	nodes := make([]report.Node, len(r.Reports))
	for i, raw := range r.Reports {
		n, err := report.DecodeNode(raw)
		if err != nil {
			return err
		}
		nodes[i] = n
	}
	e.mu.Lock()
	seen := r.Seen
	if seen == nil {
		seen = e.peers[region].Seen
	}
	e.peers[region] = Peer{Region: region, Heard: e.now(), Leader: r.Leader, Seen: seen}
	e.mu.Unlock()
	for i, n := range nodes {
		e.hear(n, r.Reports[i], region)
	}
	if len(r.Probes) == 0 {
		return nil
	}
	ps, err := report.DecodeProbes(r.Probes)
	if err != nil || len(ps) == 0 {
		return err
	}
	e.hearProbes(ps[0].From, ps, r.Probes, region)
	return nil
}

// Nodes lists the newest evidence of every node, ordered by id.
func (e *Evidence) Nodes() []Node {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]Node, 0, len(e.nodes))
	for _, n := range e.nodes {
		all = append(all, *n)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Report.ID < all[j].Report.ID })
	return all
}

// Rounds lists the newest round of every region's prober, ordered by region.
func (e *Evidence) Rounds() []Round {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]Round, 0, len(e.rounds))
	for _, r := range e.rounds {
		all = append(all, *r)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].From < all[j].From })
	return all
}

// Peers lists what is known of the other controllers, ordered by region.
func (e *Evidence) Peers() []Peer {
	e.mu.Lock()
	defer e.mu.Unlock()
	all := make([]Peer, 0, len(e.peers))
	for _, p := range e.peers {
		all = append(all, p)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].Region < all[j].Region })
	return all
}

// rollup is what this controller itself heard lately, for its peers. What it has from peers is not passed on. A round of
// probes is told once, since rounds have no number and a repeated one would look new; sent holds when the round that was
// told last came, by vantage point. One round fits a roll-up: the vantage point that waited longest goes first.
func (e *Evidence) rollup(sent map[cells.RegionID]time.Time) *nodeapi.Rollup {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := &nodeapi.Rollup{Region: string(e.self)}
	for _, n := range e.nodes {
		if n.Via == e.self && e.now().Sub(n.Arrived) < time.Minute {
			r.Reports = append(r.Reports, n.raw)
		}
	}
	var next *Round
	for _, p := range e.rounds {
		news := p.via == e.self && p.Arrived.After(sent[p.From]) && e.now().Sub(p.Arrived) < freshRound
		if news && (next == nil || sent[p.From].Before(sent[next.From])) {
			next = p
		}
	}
	if next != nil {
		r.Probes, sent[next.From] = next.raw, next.Arrived
	}
	return r
}
