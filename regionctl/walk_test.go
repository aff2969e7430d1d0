package regionctl

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// allServe says that every region's status lists every node as serving the version, which no rollout runs for any more.
func (w *world) allServe(version uint64) bool {
	for _, r := range w.topology.Regions {
		s := w.status(r.ID)
		if s.Version != version || s.Rollout != nil || len(s.Nodes) != 8 {
			return false
		}
		for _, n := range s.Nodes {
			if n.Served != version {
				return false
			}
		}
	}
	return true
}

func TestPublishedVersionReachesEveryNodeAndEveryRegionSaysSo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAll()
	p := w.publishRoutes("us-east", 3)
	if p.Version != 1 {
		t.Fatalf("first version is %d", p.Version)
	}
	w.eventually("version 1 everywhere", 10*time.Second, func() bool { return w.allServe(1) })
	p = w.publishRoutes("eu-west", 4)
	if p.Version != 2 || p.Added != 1 {
		t.Fatalf("second publication: %+v", p)
	}
	w.eventually("version 2 everywhere", 20*time.Second, func() bool { return w.allServe(2) })
}

func TestEvacuationChangesThePlanAndRestores(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.startAll()
	w.publishRoutes("eu-west", 3)
	w.eventually("version 1 everywhere", 10*time.Second, func() bool { return w.allServe(1) })
	w.eventually("cells healthy", 10*time.Second, func() bool {
		for _, c := range w.status("us-east").Cells {
			if c.Healthy == nil || !*c.Healthy || c.Share == 0 {
				return false
			}
		}
		return true
	})
	var e Evacuated
	if code, f := w.ask("us-east", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "test", Over: "1s", Expires: "1m"}, &e); code != 200 {
		t.Fatalf("evacuate: %d %v", code, f)
	}
	cell := func(id cells.CellID) CellStatus {
		for _, c := range w.status("eu-west").Cells {
			if c.ID == id {
				return c
			}
		}
		return CellStatus{}
	}
	if s := cell("eu-west/a").State; s != cells.Evacuating && s != cells.Evacuated { // a busy machine asks late
		t.Fatalf("state %s", s)
	}
	w.eventually("evacuated, no slot left", 10*time.Second, func() bool {
		c := cell("eu-west/a")
		return c.State == cells.Evacuated && c.Share == 0
	})
	w.eventually("nodes know", 5*time.Second, func() bool {
		w.nodes[0].mu.Lock()
		defer w.nodes[0].mu.Unlock()
		return len(w.nodes[0].orders) == 1 && w.nodes[0].plans > 0
	})
	if code, f := w.ask("eu-west", "POST", "/v1/restorations", RestoreRequest{What: "eu-west/a"}, &e); code != 200 {
		t.Fatalf("restore: %d %v", code, f)
	}
	w.eventually("active again with its share", 20*time.Second, func() bool {
		c := cell("eu-west/a")
		return c.State == cells.Active && c.Share > 0.2
	})
}
