package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/test/harness"
)

func TestCellIsEvacuatedAndRestoredUnderLoadWithoutAFailure(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, time.Minute)
	target := w.Regions[0].Cells[0]

	dry := w.mustRegionctl(t, "evacuate", target.ID, "--reason", "e2e", "--over", "6s", "--dry-run")
	if !strings.Contains(dry, w.Regions[0].Cells[1].ID) {
		t.Errorf("the dry run does not say where the traffic goes:\n%s", dry)
	}
	if s := w.status(t); s.cellState(target.ID) != "active" {
		t.Fatalf("the dry run changed the cell: %s", s.cellState(target.ID))
	}

	h1, h2 := w.load(t, 16, 400*time.Millisecond) // 16 clients × 3 regions × 2 protocols × 2.5/s = 240/s
	time.Sleep(4 * time.Second)
	const over = 6 * time.Second
	ordered := time.Now()
	w.mustRegionctl(t, "evacuate", target.ID, "--reason", "e2e", "--over", over.String(), "--expires", "10m")
	end := ordered.Add(over)
	harness.Eventually(t, over+10*time.Second, "the cell is evacuated", func() bool {
		return w.status(t).cellState(target.ID) == "evacuated"
	})
	ttl := time.Duration(w.TTL) * time.Second
	time.Sleep(time.Until(end.Add(3*ttl + 2*time.Second)))
	restored := time.Now()
	w.mustRegionctl(t, "restore", target.ID)
	harness.Eventually(t, 90*time.Second, "the cell is active again", func() bool {
		return w.status(t).cellState(target.ID) == "active"
	})
	// Clients with open connections have no reason to come back; new ones do.
	new1, new2 := w.load(t, 16, 400*time.Millisecond)
	time.Sleep(6 * time.Second)
	fresh := load.Sum(append(new1.Wait(), new2.Wait()...))
	if c := fresh.Cells[target.Address]; fresh.Failed > 0 || c == nil {
		t.Errorf("after the restoration: the cell got %+v of %s", c, fresh)
	}

	for name, run := range map[string]*load.Run{"h1": h1, "h2": h2} {
		sum := run.Stop()
		t.Logf("%s: %s", name, sum)
		if sum.Failed > 0 {
			t.Errorf("%s: %d of %d requests failed", name, sum.Failed, sum.Requests)
		}
		if sum.Repeated*500 > sum.Requests {
			t.Errorf("%s: %d of %d requests were repeated", name, sum.Repeated, sum.Requests)
		}
		before, during := 0, 0
		for _, q := range run.Requests() {
			switch {
			case q.Cell != target.Address:
			case q.Start.Before(ordered):
				before++
			case q.Start.After(end.Add(3*ttl)) && q.Start.Before(restored):
				during++
			}
		}
		if before == 0 || during > 0 {
			t.Errorf("%s: the cell got %d requests before and %d when it should be empty", name, before, during)
		}
	}
	total := load.Sum(append(h1.Requests(), h2.Requests()...))
	for addr, c := range total.Cells {
		if c.Peak > 0.70*cellLimit {
			t.Errorf("cell %s had %.0f requests per second, above its target of %.0f", addr, c.Peak, 0.70*cellLimit)
		}
	}
}

func TestEvacuationThatTheRestCannotCarryIsRefused(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, time.Minute)
	for _, args := range [][]string{
		{"evacuate", w.Regions[0].Cells[0].ID, "--over", "10s"},
		{"evacuate", "nowhere/x", "--reason", "e2e"},
	} {
		if res := w.regionctl(t, args...); res.Code == 0 || res.Stderr == "" {
			t.Errorf("%v: exit %d %s", args, res.Code, res.Stderr)
		}
	}
	// Every region has 28 × 2 × 2.5 = 140 requests per second. One region may carry 2 × 210 by its target, so with the
	// other two evacuated onto it, it can't spare a cell.
	h1, h2 := w.load(t, 28, 400*time.Millisecond)
	defer h1.Stop()
	defer h2.Stop()
	time.Sleep(8 * time.Second)
	for _, r := range w.Regions[:2] {
		w.mustRegionctl(t, "evacuate", r.ID, "--reason", "e2e", "--over", "1s", "--expires", "5m", "--force")
		defer w.mustRegionctl(t, "restore", r.ID)
	}
	time.Sleep(3 * time.Second)
	last := w.Regions[2].Cells[0].ID
	res := w.regionctl(t, "evacuate", last, "--reason", "e2e", "--over", "1s")
	if res.Code != 3 || !strings.Contains(res.Stderr+res.Stdout, "--force") {
		t.Errorf("exit %d, want 3 and the way around it:\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	if res.Code == 0 {
		defer w.mustRegionctl(t, "restore", last)
	}
}
