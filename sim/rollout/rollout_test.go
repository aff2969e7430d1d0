package rollout

import (
	"math"
	"testing"
	"time"
)

// The figures of docs/rollout-judge.md, loosely, from a few seeded rollouts; with the tag long from more, and by
// `make simulate` from all.
func TestGoodVersionsAreHardlyEverBlamed(t *testing.T) {
	n := 12
	if full {
		n = 200
	}
	s := Summarize(Good(), Run(Good(), n, 1, 2, ""))
	if s.Convicted > 0.02 {
		t.Errorf("%.1f%% of good rollouts were blamed: %s", 100*s.Convicted, s.Causes)
	}
	if s.Passed < 0.7 {
		t.Errorf("%.1f%% of good rollouts passed within one bake", 100*s.Passed)
	}
	if s.By["incident for all"][1] == 0 || s.By["hammering client"][1] == 0 || s.By["cold canary"][1] == 0 || s.By["noisy canary"][1] == 0 {
		t.Errorf("the world is not as hostile as it should be: %v", s.By)
	}
}

func TestBadVersionsAreFoundInTime(t *testing.T) {
	within := map[string]time.Duration{ // by which half of them must be found
		"+5 points upstream failures":               10 * time.Second,
		"the same from second 60 on":                14 * time.Second,
		"authentication broken (× 60)":              8 * time.Second,
		"latency × 2":                               10 * time.Second,
		"slowest 4% × 2":                            50 * time.Second,
		"30% of one service with 4% of the traffic": 20 * time.Second,
		"half of one service with 4% of the traffic is answered 404 by its upstream": 14 * time.Second,
		"half of the requests need a new connection":                                 30 * time.Second,
		"+50 points, 2 requests/s a node":                                            40 * time.Second,
	}
	n := 3
	if full {
		n = 10
	}
	for _, f := range Faults() {
		limit, ok := within[f.Name]
		if !ok {
			continue
		}
		s := Summarize(f, Run(f, n, 1, 2, ""))
		if s.P50 < 0 || s.P50 > limit || s.Passed > 0 {
			t.Errorf("%s: found %.0f%%, half of them within %v, passed %.0f%%", f.Name, 100*s.Convicted, s.P50, 100*s.Passed)
		}
		delete(within, f.Name)
	}
	if len(within) > 0 {
		t.Errorf("no such faults: %v", within)
	}
}

func TestHardlyAnyTrafficIsNeverEnough(t *testing.T) {
	for _, f := range Faults() {
		if f.Load != .01 || f.Upstream == 0 {
			continue
		}
		if s := Summarize(f, Run(f, 10, 1, 2, "")); s.Passed > 0 {
			t.Errorf("%s: passed in %.0f%%", f.Name, 100*s.Passed)
		}
	}
}

func TestTheSameSeedIsTheSameRollout(t *testing.T) {
	f := Faults()[4]
	a, b := Run(f, 2, 7, 1, ""), Run(f, 2, 7, 2, "")
	for i := range a {
		if a[i] != b[i] {
			t.Errorf("%+v, then %+v", a[i], b[i])
		}
	}
}

func TestIntervalHoldsTheShareAsExactlyAsItIsKnown(t *testing.T) {
	for _, c := range []struct {
		k, n      int
		low, high float64
	}{{0, 100, 0, .0362}, {3, 4000, .000155, .00219}, {5, 10, .187, .813}, {10, 10, .692, 1}} { // Clopper and Pearson (1934)
		low, high := Interval(c.k, c.n)
		if math.Abs(low-c.low) > .01*c.low+1e-6 || math.Abs(high-c.high) > .01*c.high {
			t.Errorf("%d of %d: %v to %v", c.k, c.n, low, high)
		}
	}
}
