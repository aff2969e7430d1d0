package e2e

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// The two quickest drills; `make drills` runs all.
func TestQuickestDrillsPassAndAreOnRecord(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, time.Minute)
	for _, name := range []string{"leaked-key", "gateway-process"} {
		res := w.regionctl(t, "drill", "run", name, "-o", "json")
		t.Logf("%s\n%s", res.Stderr, res.Stdout)
		var run struct {
			Drill   string `json:"drill"`
			Outcome string `json:"outcome"`
			Figures []struct {
				Name string `json:"name"`
				Pass bool   `json:"pass"`
			} `json:"figures"`
		}
		if err := json.Unmarshal([]byte(res.Stdout), &run); err != nil {
			t.Fatalf("%s: %v: %s", name, err, res.Stdout)
		}
		if res.Code != 0 || run.Outcome != "passed" || len(run.Figures) < 4 {
			t.Errorf("%s: exit %d, %+v", name, res.Code, run)
		}
		if list := w.mustRegionctl(t, "drill", "history"); !strings.Contains(list, "-"+name) {
			t.Errorf("%s is not on record:\n%s", name, list)
		}
	}
	w.healthy(t, 5*time.Second)
}

// In a world that is not in order a drill would prove nothing; in one without a supervisor it can't be done.
func TestDrillsSayWhyTheyDoNotRun(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, time.Minute)
	name := w.Processes[len(w.Processes)-1].Role + "/" + w.Processes[len(w.Processes)-1].ID
	w.cellgate(t, "stop", name)
	defer w.cellgate(t, "start", name)
	if res := w.regionctl(t, "drill", "run", "cell"); res.Code != 3 || !strings.Contains(res.Stderr, name+" is down") || !strings.Contains(res.Stderr, "--force") {
		t.Errorf("exit %d: %s", res.Code, res.Stderr)
	}
	if res := w.regionctl(t, "drill", "run", "cell", "--dry-run", "--force", "-o", "json"); res.Code != 0 || !strings.Contains(res.Stdout, `"not_in_order": [`) || !strings.Contains(res.Stdout, name+" is down") {
		t.Errorf("exit %d: %s%s", res.Code, res.Stdout, res.Stderr)
	}
	env := []string{"REGIONCTL_SERVER=" + w.Admin, "REGIONCTL_TOKEN=" + w.Tokens.Admin, "REGIONCTL_CA=" + w.CA}
	if res := harness.RunWith(t, env, "regionctl", "drill", "run", "cell"); res.Code != 1 || !strings.Contains(res.Stderr, "supervisor") {
		t.Errorf("exit %d: %s", res.Code, res.Stderr)
	}
	for _, args := range [][]string{{"drill", "run", "flood"}, {"drill", "run", "leaked-key", "--target", "x"}, {"drill", "run", "cell", "--rate", "0"}} {
		if res := w.regionctl(t, args...); res.Code != 2 {
			t.Errorf("%v: exit %d: %s", args, res.Code, res.Stderr)
		}
	}
}
