package quota

import (
	"math"
	"math/rand/v2"
	"testing"
)

// worlds is how many random worlds the quick version looks at.
const worlds = 150

// The promise, for every interval of every world: admitted ≤ rate·T + burst + on lease at its start + unpaid at its end.
func TestNoIntervalAdmitsMoreThanIsPromised(t *testing.T) { keepsItsPromise(t, 0, worlds) }

func keepsItsPromise(t *testing.T, first, last uint64) {
	closest := math.Inf(-1)
	for seed := first; seed < last; seed++ {
		r := rand.New(rand.NewPCG(seed, 1))
		limit := Limit{Rate: math.Exp(math.Log(5) + r.Float64()*math.Log(400)), Strict: r.IntN(4) == 0}
		limit.Burst = max(1, limit.Rate*(.05+r.Float64()))
		w := newWorld(seed, limit, 1+r.IntN(3), 1+r.IntN(30))
		w.between = r.Int64N(30) * step
		closest = max(closest, trouble(t, w, r, seed)/limit.Rate)
	}
	t.Logf("%d worlds; closest to the bound: %.3f seconds of the limit below it", last-first, -closest)
}

// trouble lets one world live through random demand and faults, and gives how close it came to the bound.
func trouble(t *testing.T, w *world, r *rand.Rand, seed uint64) float64 {
	cut, rate := make([]bool, len(w.nodes)), make([]float64, len(w.nodes))
	apart := false
	w.deaf = func(from, to int) bool {
		node := max(from, to)
		return r.IntN(50) == 0 || node >= 0 && cut[node] || node < 0 && apart
	}
	w.late = func() int64 {
		if r.IntN(10) == 0 {
			return r.Int64N(80) * step
		}
		return 0
	}
	least, worst := math.Inf(1), math.Inf(-1)
	began := w.now
	for range 6 * 1000 * ms / step {
		w.tick()
		misfortune(w, r, rate, cut, &apart)
		for i, n := range w.nodes {
			for range poisson(r, rate[i]*seconds(step)) {
				if !n.frozen {
					w.request(n)
				}
			}
		}
		tokens, debt := w.outstanding()
		f := w.admitted - w.lone - w.limit.Rate*seconds(w.now-began)
		over := f - debt - w.unpaid - w.limit.Burst - least
		if over > 1e-6 {
			t.Fatalf("seed %d: %.2f above the promise after %d ms", seed, over, (w.now-began)/ms)
		}
		worst = max(worst, over)
		least = min(least, f+tokens-w.unpaid)
	}
	return worst
}

func misfortune(w *world, r *rand.Rand, rate []float64, cut []bool, apart *bool) {
	for i, n := range w.nodes {
		if r.IntN(100) == 0 {
			rate[i] = w.limit.Rate * math.Pow(10, -2+3*r.Float64())
		}
		if r.IntN(200) == 0 {
			cut[i] = r.IntN(3) == 0
		}
		if r.IntN(600) == 0 {
			w.boot(n)
		}
		if r.IntN(300) == 0 {
			n.frozen = r.IntN(4) == 0
		}
	}
	if r.IntN(300) == 0 {
		*apart = r.IntN(3) == 0
	}
	if r.IntN(400) == 0 {
		w.bear(r.IntN(len(w.away) + 1))
	}
}
