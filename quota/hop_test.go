package quota

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// hop is a run of a limit of 1,000 a second on 50 nodes whose whole load comes to two of them, other two every 5 s.
type hop struct {
	name    string
	regions int
	between int64   // one way between regions
	load    float64 // requests a second
	trouble func(w *world, at int64)
	least   float64 // admitted in any 10 s, in parts of the limit
	most    float64
}

func hops() []hop {
	cut := func(w *world, at int64) {
		w.deaf = func(from, to int) bool { return at >= 5000*ms && max(from, to) >= 0 && max(from, to)%10 == 0 }
		w.alone = true
	}
	kill := func(w *world, at int64) {
		if at%(7000*ms) == 0 {
			w.boot(w.nodes[hot(w, at)[0]])
		}
	}
	silence := func(w *world, at int64) {
		w.home.down = at >= 8000*ms && at < 13000*ms
		w.alone = true
	}
	return []hop{
		{name: "one region", regions: 1, load: 1500, least: .95, most: 1.05},
		{name: "one region, barely over", regions: 1, load: 1100, least: .95, most: 1.05},
		{name: "three regions on one machine", regions: 3, load: 1500, least: .95, most: 1.05},
		{name: "three regions, 60 ms apart", regions: 3, between: 60 * ms, load: 1500, least: .95, most: 1.05},
		{name: "three regions, 60 ms apart, barely over", regions: 3, between: 60 * ms, load: 1100, least: .95, most: 1.05},
		{name: "three regions, 100 ms apart", regions: 3, between: 100 * ms, load: 1500, least: .95, most: 1.05},
		{name: "three regions, 150 ms apart", regions: 3, between: 150 * ms, load: 1500, least: .93, most: 1.05},
		{name: "a tenth of the nodes cut off", regions: 1, load: 1500, trouble: cut, least: .45, most: 1.05}, // both hot nodes may be among them
		{name: "a hot node killed every 7 s", regions: 1, load: 1500, trouble: kill, least: .95, most: 1.05},
		{name: "service lost for 5 s", regions: 1, load: 1500, trouble: silence, least: .5, most: 1.5},
		{name: "the owner's service lost for 5 s", regions: 3, load: 1500, trouble: silence, least: .5, most: 1.5},
	}
}

// hot are the two nodes that have the load.
func hot(w *world, at int64) [2]int {
	i := int(at/(5000*ms)) * 7 % len(w.nodes)
	return [2]int{i, (i + 10) % len(w.nodes)}
}

// run gives the least and most that was admitted in any 10 s after the first second, and messages per request.
func (h hop) run(seed uint64, length int64) (least, most, messages float64) {
	limit := Limit{Rate: 1000, Burst: 200}
	w := newWorld(seed, limit, h.regions, 50)
	w.between = h.between
	r := rand.New(rand.NewPCG(seed, 3))
	var history []float64
	requests := 0
	for at := int64(0); at < length; at += step {
		if h.trouble != nil {
			h.trouble(w, at)
		}
		w.tick()
		for _, i := range hot(w, at) {
			for range poisson(r, h.load/2*seconds(step)) {
				w.request(w.nodes[i])
				requests++
			}
		}
		history = append(history, w.admitted)
	}
	const window = int(10 * 1000 * ms / step)
	least = 1e9
	for i := int(1000 * ms / step); i+window < len(history); i++ {
		n := (history[i+window] - history[i]) / (10 * limit.Rate)
		least, most = min(least, n), max(most, n)
	}
	return least, most, w.asks / float64(requests)
}

func TestLoadThatHopsBetweenNodesIsAdmittedAtTheLimit(t *testing.T) {
	hopsKeepTheLimit(t, 1, 30_000*ms)
}

func hopsKeepTheLimit(t *testing.T, seeds uint64, length int64) {
	for _, h := range hops() {
		t.Run(h.name, func(t *testing.T) {
			least, most, messages := 1e9, 0.0, 0.0
			for seed := range seeds {
				a, b, m := h.run(seed, length)
				least, most, messages = min(least, a), max(most, b), max(messages, m)
			}
			figures := fmt.Sprintf("admitted in any 10 s: %.3f to %.3f of the limit; %.2f%% messages", least, most, 100*messages)
			t.Log(figures)
			if most > h.most || least < h.least || messages > 0.02 {
				t.Error(figures)
			}
		})
	}
}

// An evacuation, or anything else that moves load to another region, takes the limit with it within two seconds (H2).
func TestALimitFollowsItsLoadToAnotherRegionWithinTwoSeconds(t *testing.T) {
	for _, between := range []int64{0, 75 * ms} {
		w := newWorld(3, Limit{Rate: 1000, Burst: 200}, 3, 30)
		w.between = between
		r := rand.New(rand.NewPCG(3, 3))
		load := func(region int, ns int64) float64 {
			before := w.admitted
			for at := int64(0); at < ns; at += step {
				w.tick()
				for _, n := range w.nodes {
					if n.region == region {
						for range poisson(r, 150*seconds(step)) {
							w.request(n)
						}
					}
				}
			}
			return w.admitted - before
		}
		load(1, 5000*ms)
		move := load(2, 2000*ms)
		there := load(2, 2000*ms) / 2
		t.Logf("%d ms apart: %.0f in the two seconds of the move, then %.0f/s", between/ms, move, there)
		if there < 950 || there > 1050 || move > 2*1000+200+200 {
			t.Errorf("%d ms apart: %.0f in the two seconds of the move, then %.0f/s of a limit of 1000/s", between/ms, move, there)
		}
	}
}
