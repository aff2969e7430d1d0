package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/test/harness"
)

// A small world of binaries built with the race detector publishes, evacuates and loses a proxy under load. Without a C
// compiler there is no race detector, and the same happens with ordinary binaries.
func TestWorldRunsWithoutDataRaces(t *testing.T) {
	t.Parallel()
	bin := harness.Bin(t, "cellgate")
	if cc, err := exec.Command("go", "env", "CC").Output(); err == nil {
		if _, err := exec.LookPath(strings.TrimSpace(string(cc))); err == nil {
			dir := t.TempDir()
			if err := harness.Build(dir, "-race"); err != nil {
				t.Fatal(err)
			}
			bin = filepath.Join(dir, "cellgate")
		} else {
			t.Log("no C compiler: ordinary binaries")
		}
	}
	w, err := up(bin, filepath.Join(t.TempDir(), "w"), "--net", loopback.For(t).String(), "--regions", "2", "--cells", "2", "--proxies", "2")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = exec.Command(bin, "down", "--dir", w.Dir).Run() }()
	h1, h2 := w.load(t, 6, 500*time.Millisecond)
	w.mustRegionctl(t, "config", "publish", filepath.Join(w.Dir, "sample.yaml"))
	w.mustRegionctl(t, "evacuate", w.cells()[0].ID, "--reason", "e2e", "--over", "2s")
	time.Sleep(3 * time.Second)
	name := "proxy/" + w.cells()[1].Proxies[0].ID
	before := w.pid(t, name)
	sigkill(t, before)
	harness.Eventually(t, 20*time.Second, "the proxy runs again", func() bool { pid := w.pid(t, name); return pid != 0 && pid != before })
	w.mustRegionctl(t, "restore", w.cells()[0].ID)
	time.Sleep(3 * time.Second)
	if sum := h1.Stop(); sum.Requests == sum.Failed {
		t.Errorf("h1: %s", sum)
	}
	if sum := h2.Stop(); sum.Requests == sum.Failed {
		t.Errorf("h2: %s", sum)
	}
	if out, err := exec.Command(bin, "down", "--dir", w.Dir).CombinedOutput(); err != nil {
		t.Errorf("down: %v %s", err, out)
	}
	logs, err := filepath.Glob(filepath.Join(w.Dir, "logs", "*"))
	if err != nil || len(logs) == 0 {
		t.Fatalf("logs: %v, %v", logs, err)
	}
	for _, file := range logs {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, bad := range []string{"WARNING: DATA RACE", "panic: "} {
			if i := strings.Index(string(raw), bad); i >= 0 {
				t.Errorf("%s: %s", filepath.Base(file), raw[i:min(len(raw), i+3000)])
			}
		}
	}
}
