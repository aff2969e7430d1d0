package rollout

import (
	"maps"
	"slices"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/regionctl/rollout/judge"
)

// swap begins the judgement of a ring: what was seen before its release is the time before.
func (m *machine) swap() {
	var before []*judge.Round
	for _, r := range m.ev.Rounds {
		if !r.To.After(m.Ring.Released) {
			before = append(before, r)
		}
	}
	m.Judge = judge.Start(m.Judge.Known(), before, m.sides(), m.cfg.Bake, judge.Window(m.cfg.Bake))
}

// observe judges the rounds that began after the bake did, each once, until one convicts the ring.
func (m *machine) observe() {
	if !m.judging() {
		return
	}
	sides := m.sides()
	if m.Judge.Known() == nil || len(sides.Rest) == 0 && !m.Judge.Alone { // lost, or the rest has fallen silent
		m.swap()
	}
	for _, r := range m.ev.Rounds {
		if r.To.After(m.Judge.Until) && !r.Began(sides.Canary).Before(m.Ring.Baked) && m.Judge.Worse == "" {
			m.Judge.Step(r, sides)
		}
	}
}

// judging says that what nodes report is about the ring.
func (m *machine) judging() bool {
	if m.Ring.Baked.IsZero() || m.Ring.Waits || m.Ring.Kind == RingAll {
		return false
	}
	return m.Phase == Baking || m.Phase == Held || m.Phase == Paused
}

// sides are the ring's nodes and those that they are compared with: the region's that should run an older version, or the
// world's when the region has none left, without those that are silent. Where a ring is cells, so are the others if there are a few.
func (m *machine) sides() judge.Sides {
	s := judge.Sides{Canary: slices.Sorted(maps.Keys(m.Ring.Nodes))}
	rest, veterans := m.rest()
	s.Veterans = veterans
	by := map[cells.CellID][]cells.NodeID{}
	for _, id := range rest {
		by[id.Cell()] = append(by[id.Cell()], id)
	}
	if m.Ring.Kind != RingNode && len(by) >= fewCells {
		for _, cell := range slices.Sorted(maps.Keys(by)) {
			s.Rest = append(s.Rest, by[cell])
		}
		return s
	}
	for _, id := range rest {
		s.Rest = append(s.Rest, []cells.NodeID{id})
	}
	return s
}

// fewCells is how many cells are enough to see how cells differ.
const fewCells = 3

// rest are the nodes that should run an older version, those of the ring's region if there are any; veterans those outside
// the ring that run its version already.
func (m *machine) rest() (rest, veterans []cells.NodeID) {
	var near, far []cells.NodeID
	for _, c := range m.ev.Topology.Cells() {
		for _, n := range c.Nodes {
			if m.silent(n.ID) {
				continue
			}
			if m.node(n.ID) == m.Version {
				if _, in := m.Ring.Nodes[n.ID]; !in {
					veterans = append(veterans, n.ID)
				}
				continue
			}
			far = append(far, n.ID)
			if n.ID.Region() == m.Ring.Region {
				near = append(near, n.ID)
			}
		}
	}
	if len(near) > 0 {
		return near, veterans
	}
	return far, veterans
}
