package rollout

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/report"
)

// nextRing is the first ring of the world, in the order of the topology, that does not run the version yet.
func (m *machine) nextRing() (Ring, bool) {
	if m.Stable.Number == 0 {
		if m.Ring.Kind == RingAll {
			return Ring{}, false
		}
		all := m.everyCell()
		return Ring{Kind: RingAll, Cells: all}, true
	}
	for _, region := range m.ev.Topology.Regions {
		if ring, ok := m.regionRing(region); ok {
			return ring, true
		}
	}
	return Ring{}, false
}

// regionRing is the region's next ring: its canary node, that node's cell, the other cells.
func (m *machine) regionRing(region cells.Region) (Ring, bool) {
	var todo, done []cells.CellID
	for _, c := range region.Cells {
		if m.cell(c.ID) == m.Version {
			done = append(done, c.ID)
		} else {
			todo = append(todo, c.ID)
		}
	}
	if len(todo) == 0 {
		return Ring{}, false
	}
	if len(done) > 0 {
		return m.ring(region.ID, RingRest, todo), true
	}
	canary := m.canaryCell(region)
	if canary == "" { // nobody is alive here
		return m.ring(region.ID, RingRest, todo), true
	}
	alive := m.aliveIn([]cells.CellID{canary})
	for id := range m.Nodes {
		if id.Cell() == canary && m.Nodes[id] == m.Version {
			return m.ring(region.ID, RingCell, []cells.CellID{canary}), true
		}
	}
	if len(alive) <= 1 { // the node is the cell
		return m.ring(region.ID, RingCell, []cells.CellID{canary}), true
	}
	node := m.draw(region.ID, alive)
	return Ring{Region: region.ID, Kind: RingNode, Cells: []cells.CellID{canary}, Nodes: map[cells.NodeID]string{node: alive[node]}}, true
}

func (m *machine) ring(region cells.RegionID, kind RingKind, in []cells.CellID) Ring {
	r := Ring{Region: region, Kind: kind, Cells: in, Nodes: m.aliveIn(in)}
	for _, id := range m.nodesOf(in) {
		if _, ok := r.Nodes[id]; !ok {
			r.Skipped = append(r.Skipped, id)
		}
	}
	return r
}

// canaryCell stays the one whose canary node runs the version already; else it is the first with a living node.
func (m *machine) canaryCell(region cells.Region) cells.CellID {
	for _, c := range region.Cells {
		for _, n := range c.Nodes {
			if m.Nodes[n.ID] == m.Version && m.Version.Number != 0 {
				return c.ID
			}
		}
	}
	for _, c := range region.Cells {
		if len(m.aliveIn([]cells.CellID{c.ID})) > 0 {
			return c.ID
		}
	}
	return ""
}

// draw picks the canary node: another one in each rollout, so that nothing special about one node adds up.
func (m *machine) draw(region cells.RegionID, alive map[cells.NodeID]string) cells.NodeID {
	h := fnv.New64a()
	h.Write([]byte(region))
	rng := rand.New(rand.NewPCG(m.Seed, h.Sum64()))
	ids := slices.Sorted(maps.Keys(alive))
	return ids[rng.IntN(len(ids))]
}

func (m *machine) everyCell() []cells.CellID {
	var out []cells.CellID
	for _, c := range m.ev.Topology.Cells() {
		out = append(out, c.ID)
	}
	return out
}

func (m *machine) nodesOf(in []cells.CellID) []cells.NodeID {
	var out []cells.NodeID
	for _, c := range m.ev.Topology.Cells() {
		if !slices.Contains(in, c.ID) {
			continue
		}
		for _, n := range c.Nodes {
			out = append(out, n.ID)
		}
	}
	return out
}

// aliveIn are the nodes of the cells that report and are ready, each with the process that it is.
func (m *machine) aliveIn(in []cells.CellID) map[cells.NodeID]string {
	out := map[cells.NodeID]string{}
	for _, id := range m.nodesOf(in) {
		if m.reports(id) && m.ev.Nodes[id].Report.Ready {
			out[id] = m.ev.Nodes[id].Report.Boot
		}
	}
	return out
}

// reports says that the node's newest report is recent.
func (m *machine) reports(id cells.NodeID) bool {
	n, ok := m.ev.Nodes[id]
	return ok && m.now.Sub(n.At) <= m.cfg.Silence
}

// silent says that no report of the node has come for long enough to mean something.
func (m *machine) silent(id cells.NodeID) bool {
	last := m.ev.Since
	if n, ok := m.ev.Nodes[id]; ok && n.At.After(last) {
		last = n.At
	}
	return m.now.Sub(last) > m.cfg.Silence
}

// blind says that the whole region is silent: that says something about the reports' way here, not about the version.
func (m *machine) blind() bool {
	for _, id := range m.nodesOf(m.everyCell()) {
		if id.Region() == m.Ring.Region && m.reports(id) {
			return false
		}
	}
	return true
}

// deaf says that no node of the world reports.
func (m *machine) deaf() bool {
	for _, id := range m.nodesOf(m.everyCell()) {
		if m.reports(id) {
			return false
		}
	}
	return true
}

// notServing are the ring's nodes that don't serve v, with what is known of each.
func (m *machine) notServing(v Version) reasons {
	var out reasons
	ids := slices.Sorted(maps.Keys(m.Ring.Nodes))
	if m.Ring.Kind == RingAll {
		ids = m.nodesOf(m.everyCell())
		slices.Sort(ids)
	}
	for _, id := range ids {
		n, ok := m.ev.Nodes[id]
		switch {
		case !ok && m.Phase == RollingBack, ok && m.Phase == RollingBack && m.silent(id): // takes it when it comes back
		case !ok:
			out = append(out, reason{id, "has not reported"})
		case n.Report.Snapshot.Served == v.Number && n.Report.Ready:
		case n.Report.Snapshot.Served == v.Number:
			out = append(out, reason{id, "is not ready"})
		case n.Report.Snapshot.Nack != "":
			out = append(out, reason{id, fmt.Sprintf("refuses: %s", n.Report.Snapshot.Nack)})
		default:
			out = append(out, reason{id, fmt.Sprintf("serves %d", n.Report.Snapshot.Served)})
		}
	}
	return out
}

// worse is evidence that needs no statistics: a ring's node that refuses the version, restarts, falls silent or stops
// being ready, or a ring's cell that fails its probes. Empty when there is none.
func (m *machine) worse() string {
	if m.Ring.Kind == RingAll {
		return m.refusedBy(m.nodesOf(m.everyCell()))
	}
	blind := m.blind()
	for _, id := range slices.Sorted(maps.Keys(m.Ring.Nodes)) {
		if why := m.nodeWorse(id, m.Ring.Nodes[id], blind); why != "" {
			return fmt.Sprintf("%s %s", id, why)
		}
	}
	if why := m.refusedBy(m.Ring.Skipped); why != "" {
		return why
	}
	if why := m.contradicted(); why != "" {
		return why
	}
	if m.Phase == Baking && m.Ring.Kind != RingNode {
		for _, cell := range m.Ring.Cells {
			if m.ev.Probes[cell] == health.Unhealthy {
				return fmt.Sprintf("cell %s fails its probes", cell)
			}
		}
	}
	return ""
}

func (m *machine) nodeWorse(id cells.NodeID, boot string, blind bool) string {
	n, ok := m.ev.Nodes[id]
	switch {
	case m.silent(id) && !blind:
		return "no longer reports"
	case !ok || !m.reports(id):
		return ""
	case n.Report.Boot != boot:
		return "has restarted"
	case m.refuses(n):
		return "refuses it: " + n.Report.Snapshot.Nack
	case m.Ring.Baked.IsZero():
		return ""
	case !n.Report.Ready:
		return "is not ready"
	case n.Report.Snapshot.Served != m.Version.Number && n.At.After(m.Ring.Baked.Add(time.Second)):
		return fmt.Sprintf("serves %d again", n.Report.Snapshot.Served)
	}
	return ""
}

func (m *machine) refusedBy(ids []cells.NodeID) string {
	for _, id := range ids {
		if n, ok := m.ev.Nodes[id]; ok && m.refuses(n) {
			return fmt.Sprintf("%s refuses it: %s", id, n.Report.Snapshot.Nack)
		}
	}
	return ""
}

// refuses says that the node knows the version and has answered no.
func (m *machine) refuses(n Node) bool {
	return n.Report.Snapshot.Nack != "" && n.Report.Snapshot.Known == m.Version.Number && n.At.After(m.Ring.Released)
}

// What a changed route needs, and what contradicts a version.
const (
	changedAsked   = 20 // requests of each changed route without which there is not enough evidence
	contradictions = 3  // requests that were let through before and are refused now
)

// changes calls each for what the ring's nodes say of the version that they serve beside the one before it.
func (m *machine) changes(each func(*report.Change)) {
	for id := range m.Ring.Nodes {
		n, ok := m.ev.Nodes[id]
		if c := n.Report.Change; ok && c != nil && c.Version == m.Version.Number && n.Report.Snapshot.Served == m.Version.Number {
			each(c)
		}
	}
}

// contradicted says which requests the version refuses that the one before it let through, though it has their route.
func (m *machine) contradicted() string {
	if m.Ring.Baked.IsZero() {
		return ""
	}
	refused, lost := map[string]uint64{}, map[string]bool{}
	m.changes(func(c *report.Change) {
		for route, n := range c.Refused {
			refused[route] += min(n, 1e9)
		}
		for _, route := range c.Lost {
			lost[route] = true
		}
	})
	for _, route := range slices.Sorted(maps.Keys(lost)) {
		return fmt.Sprintf("it has no route for a request that route %s answered lately", route)
	}
	for _, route := range slices.Sorted(maps.Keys(refused)) {
		if n := refused[route]; n >= contradictions {
			return fmt.Sprintf("it refuses what the version before let through: %d requests of route %s", n, route)
		}
	}
	return ""
}

// unasked says which changed routes had too few requests for anything to be known of them; empty = none.
func (m *machine) unasked() string {
	asked := map[string]uint64{}
	m.changes(func(c *report.Change) {
		for route, n := range c.Asked {
			asked[route] += min(n, 1e9)
		}
	})
	var few []string
	for _, route := range slices.Sorted(maps.Keys(asked)) {
		if n := asked[route]; n < changedAsked {
			few = append(few, fmt.Sprintf("%s has had %d", route, n))
		}
	}
	if len(few) == 0 {
		return ""
	}
	const show = 4
	if more := len(few) - show; more > 0 {
		few = append(few[:show:show], fmt.Sprintf("%d more", more))
	}
	return fmt.Sprintf("%d requests of each changed route are needed: %s", changedAsked, strings.Join(few, ", "))
}

// synthetics is the worst verdict of the probers on the ring's cells.
func (m *machine) synthetics() health.Status {
	worst := health.Healthy
	for _, cell := range m.Ring.Cells {
		switch m.ev.Probes[cell] {
		case health.Unhealthy:
			return health.Unhealthy
		case health.Unknown:
			worst = health.Unknown
		}
	}
	return worst
}

// evacuation is an evacuation that stands in the region; region "" is none.
func (m *machine) evacuation(region cells.RegionID) (cells.Evacuation, bool) {
	for _, e := range m.ev.Evacuations {
		if e.Cell.Region() == region && e.Standing(m.now) {
			return e, true
		}
	}
	return cells.Evacuation{}, false
}
