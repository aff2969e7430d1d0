// Package rollout moves one version through the rings of the world as a state machine, and is the only judge of going on.
// Step is pure: the same state, evidence and time give the same next state; the caller persists it before acting on it.
package rollout

import (
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/snapshot"
)

// TargetForm is the version of the sent form of Target.
const TargetForm = 1

// Target says what every node of one region should run. Targets are ordered by (Epoch, Number); nodes refuse older ones.
type Target struct {
	Form    int            `json:"form"`
	Region  cells.RegionID `json:"region"`
	Epoch   uint64         `json:"epoch"`
	Number  uint64         `json:"number"`
	Created time.Time      `json:"created"`
	// Head is the highest version number given out when the target was made. It never falls, so who has seen a higher one
	// refuses the target: it comes from a store that went back. 0 = not told.
	Head uint64 `json:"head,omitempty"`
	// Cells holds the version of each cell of the region.
	Cells map[cells.CellID]Version `json:"cells"`
	// Nodes holds nodes that run another version than their cell: the canary.
	Nodes map[cells.NodeID]Version `json:"nodes,omitempty"`
	// Share[cell] is the number of nodes that divide the cell's limits.
	Share map[cells.CellID]int `json:"share"`
}

// Version points at one snapshot by number and by the digest of its encoded, signed manifest.
type Version struct {
	Number   uint64          `json:"number"`
	Manifest snapshot.Digest `json:"manifest"`
}

// For is the version that the node should run; ok is false when the target does not speak of its cell.
func (t *Target) For(node cells.NodeID) (v Version, ok bool) {
	if v, ok := t.Nodes[node]; ok {
		return v, true
	}
	v, ok = t.Cells[node.Cell()]
	return v, ok
}

// Targets is what every region should run under this state, in the order of the topology. Epoch is the leader's; Number
// is the state's Rev. Before the first publication there are none.
func (s State) Targets(topology cells.Topology, epoch uint64) []Target {
	if s.Phase == "" {
		return nil
	}
	var out []Target
	for _, region := range topology.Regions {
		t := Target{
			Form: TargetForm, Region: region.ID, Epoch: epoch, Number: s.Rev, Created: s.Changed, Head: s.Highest(),
			Cells: map[cells.CellID]Version{}, Nodes: map[cells.NodeID]Version{}, Share: map[cells.CellID]int{},
		}
		for _, cell := range region.Cells {
			if v := s.cell(cell.ID); v.Number != 0 {
				t.Cells[cell.ID] = v
			}
			t.Share[cell.ID] = max(len(cell.Nodes), 1)
			for _, n := range cell.Nodes {
				if v, ok := s.Nodes[n.ID]; ok {
					t.Nodes[n.ID] = v
				}
			}
		}
		out = append(out, t)
	}
	return out
}

// cell is the version that the cell should run.
func (s State) cell(id cells.CellID) Version {
	if v, ok := s.Cells[id]; ok {
		return v
	}
	return s.Stable
}

// node is the version that the node should run.
func (s State) node(id cells.NodeID) Version {
	if v, ok := s.Nodes[id]; ok {
		return v
	}
	return s.cell(id.Cell())
}
