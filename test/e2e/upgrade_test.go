package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// restarts is how often each process was started again.
func (w *world) restarts(t *testing.T) map[string]int {
	t.Helper()
	var status struct {
		Processes []struct {
			Name     string
			Restarts int
		}
	}
	if err := json.Unmarshal([]byte(w.cellgate(t, "status", "-o", "json")), &status); err != nil {
		t.Fatal(err)
	}
	all := map[string]int{}
	for _, p := range status.Processes {
		all[p.Name] = p.Restarts
	}
	return all
}

// All proxies of a region are replaced by new processes at once, under load: no request fails, no cell is unhealthy at any
// time, and nobody takes it for a restart.
func TestProxiesAreReplacedUnderLoadWithoutAFailure(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, 2*time.Minute)
	region, before := w.Regions[0], map[string]int{}
	for _, p := range w.Processes {
		before[p.Role+"/"+p.ID] = p.PID
	}
	restarts := w.restarts(t)
	h1, h2 := w.load(t, 8, 100*time.Millisecond)
	time.Sleep(time.Second)
	replaced := strings.Fields(w.cellgate(t, "upgrade", "proxy/"+region.ID+"/*"))
	if len(replaced) != len(region.Cells)*len(region.Cells[0].Proxies) {
		t.Errorf("replaced: %v", replaced)
	}
	for _, c := range w.status(t).Cells {
		if c.Healthy == nil || !*c.Healthy {
			t.Errorf("%s is not healthy", c.ID)
		}
	}
	for _, name := range replaced {
		harness.Eventually(t, 5*time.Second, "world.json to tell the new process", func() bool {
			pid := w.pid(t, name)
			return pid != before[name] && alive(pid)
		})
		if alive(before[name]) {
			t.Errorf("%s: the old process is there still", name)
		}
	}
	time.Sleep(time.Second)
	for proto, run := range map[string]fmt.Stringer{"h1": h1.Stop(), "h2": h2.Stop()} {
		t.Logf("%s: %s", proto, run)
	}
	for _, q := range append(h1.Requests(), h2.Requests()...) {
		if q.Failed() {
			t.Errorf("failed at %v, status %d: %v", q.Start, q.Status, q.Err)
		}
	}
	if after := w.restarts(t); !maps.Equal(after, restarts) {
		t.Errorf("restarts: %v, then %v", restarts, after)
	}
	boot := filepath.Join(w.Dir, "boot", strings.ReplaceAll(replaced[0], "/", "-")+".json")
	if r := harness.Run(t, "proxy", "upgrade", "--bootstrap", boot); r.Code != 3 || !strings.Contains(r.Stderr, "cellgate upgrade "+replaced[0]) {
		t.Errorf("behind the supervisor's back: exit %d, %s", r.Code, r.Stderr)
	}
	for _, name := range []string{"backend/*", "proxy/nowhere"} {
		if r := harness.Run(t, "cellgate", "upgrade", name, "--dir", w.Dir); r.Code != 1 {
			t.Errorf("upgrade %s: exit %d, %s", name, r.Code, r.Stderr)
		}
	}
}
