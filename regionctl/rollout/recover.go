package rollout

import (
	"fmt"
	"maps"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// Running is what the regions' copies say every cell and every node of its own version should run.
type Running struct {
	Cells map[cells.CellID]Version
	Nodes map[cells.NodeID]Version
}

// Recovered is the state after the store was restored from a backup: nothing changes where it runs. What the regions run
// counts, not what the backup remembers; head is the highest number that anyone has seen. A rollout that was under way
// ends if it has moved since the backup; the next publication takes all cells.
func (s State) Recovered(run Running, head uint64, now time.Time) State {
	s = s.clone()
	s.Head = max(s.Highest(), head)
	if s.agrees(run) && s.Phase != "" && (s.Head == latestOf(s) || len(run.Cells) > 0) {
		s.touch(now)
		return s
	}
	stable := run.most()
	cellsOf := maps.Clone(run.Cells)
	maps.DeleteFunc(cellsOf, func(_ cells.CellID, v Version) bool { return v == stable })
	s.Version, s.Stable, s.Cells, s.Nodes = stable, stable, cellsOf, maps.Clone(run.Nodes)
	s.Ring, s.Judge, s.Next, s.Want, s.Force, s.Resume, s.End = Ring{}, nil, nil, nil, false, "", ""
	s.decide(Live, fmt.Sprintf("recovered after a restore of the store; numbers go on above %d", s.Head), now)
	return s
}

func latestOf(s State) uint64 { s.Head = 0; return s.Highest() }

// agrees says whether the state's targets are what runs, as far as that is known.
func (s State) agrees(run Running) bool {
	for id, v := range run.Cells {
		if s.cell(id) != v {
			return false
		}
	}
	for id, v := range run.Nodes {
		if s.node(id) != v {
			return false
		}
	}
	return true
}

// most is the version that most cells run, the higher number of two. It is zero when nothing is known: then targets name
// no version, and nodes keep what they serve.
func (r Running) most() Version {
	count := map[Version]int{}
	for _, v := range r.Cells {
		count[v]++
	}
	var best Version
	for v, n := range count {
		if n > count[best] || n == count[best] && v.Number > best.Number {
			best = v
		}
	}
	return best
}
