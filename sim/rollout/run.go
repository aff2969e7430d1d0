package rollout

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/regionctl/rollout/judge"
)

// Fault is what is wrong with a version on the canary; the zero value is a good version.
type Fault struct {
	Name  string
	Start int // window after the swap in which it begins

	Upstream, Gateway float64 // added failures, as a share of the requests
	Missing           float64 // added answers 404 of the upstreams
	Only              int     // Upstream and Missing of this service alone; 0 = of all
	Auth              float64 // factor on authentication refusals
	NoRoute           float64 // requests per second whose route is gone
	Cold              float64 // share of the requests that need a new connection, for good
	Tail, Slow        float64 // factor on the latency of the slowest 4%, of all
	CPU, Leak         float64 // more CPU time per request; growth of memory per minute
	Traffic           float64 // factor on the canary's traffic; 0 = 1
	Load              float64 // factor on everybody's traffic; 0 = 1
}

// Good is a version that nothing is wrong with.
func Good() Fault { return Fault{Name: "good"} }

// Faults are the versions of docs/rollout-judge.md.
func Faults() []Fault {
	return []Fault{
		{Name: "good, 20 requests/s a node", Load: .1},
		{Name: "good, 2 requests/s a node", Load: .01},
		{Name: "+5 points upstream failures", Upstream: .05},
		{Name: "the same from second 60 on", Upstream: .05, Start: 30},
		{Name: "+1 point", Upstream: .01},
		{Name: "+5 points in one service with 4% of the traffic", Upstream: .05, Only: 5},
		{Name: "30% of one service with 4% of the traffic", Upstream: .3, Only: 5},
		{Name: "+50 points in the rarest service (2.7%)", Upstream: .5, Only: 11},
		{Name: "+0.5 point gateway failures", Gateway: .005},
		{Name: "authentication refusals × 3", Auth: 3},
		{Name: "authentication broken (× 60)", Auth: 60},
		{Name: "a route is gone, 1 request/s", NoRoute: 1},
		{Name: "a route is gone, 0.2/s", NoRoute: .2},
		{Name: "a route is gone, 0.03/s", NoRoute: .03},
		{Name: "half of one service with 4% of the traffic is answered 404 by its upstream", Missing: .5, Only: 5},
		{Name: "half of the requests need a new connection", Cold: .5},
		{Name: "latency × 2", Slow: 2},
		{Name: "latency × 1.5", Slow: 1.5},
		{Name: "latency × 1.2", Slow: 1.2},
		{Name: "slowest 4% × 2", Tail: 2},
		{Name: "slowest 4% × 1.5", Tail: 1.5},
		{Name: "CPU per request +50%", CPU: .5},
		{Name: "memory +30% a minute", Leak: .3},
		{Name: "+20 points, and a fifth of the traffic", Upstream: .2, Traffic: .2},
		{Name: "+5 points, 20 requests/s a node", Upstream: .05, Load: .1},
		{Name: "+5 points, 2 requests/s a node", Upstream: .05, Load: .01},
		{Name: "+50 points, 2 requests/s a node", Upstream: .5, Load: .01},
	}
}

// Result is what the judge said of one rollout.
type Result struct {
	Kinds
	Seed uint64
	// At is how many windows after the fault's beginning the canary was convicted (0 or less = before it); Worse why.
	At     int
	Worse  string
	Passed bool // at the end of the bake
}

// After is how long after the fault's beginning the canary was convicted.
func (r Result) After() time.Duration { return time.Duration(r.At) * window }

// Run plays n rollouts of a fault, seeded with seed, seed+1, …, on so many goroutines; of a kind alone, if it is named.
func Run(f Fault, n int, seed uint64, workers int, kind string) []Result {
	l, out := newLatency(), make([]Result, n)
	seeds := make([]uint64, 0, n)
	for ; len(seeds) < n; seed++ {
		if kind == "" || slices.Contains(newWorld(seed, f, l).names(), kind) {
			seeds = append(seeds, seed)
		}
	}
	var wg sync.WaitGroup
	for k := range workers {
		wg.Go(func() {
			for i := k; i < n; i += workers {
				out[i] = play(newWorld(seeds[i], f, l))
			}
		})
	}
	wg.Wait()
	return out
}

// play is one rollout, from two minutes before the swap to the end of the bake.
func play(w *world) Result {
	var sides judge.Sides
	for i := range nNodes {
		id := cells.NodeID(fmt.Sprintf("eu/a/%d", i))
		if i == 0 {
			sides.Canary = append(sides.Canary, id)
		} else {
			sides.Rest = append(sides.Rest, []cells.NodeID{id})
		}
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	memory := judge.NewMemory(window)
	hear := func(t int) []*judge.Round {
		at = at.Add(window)
		for _, n := range w.step(t) {
			memory.Hear(n, at.Add(-window/2))
		}
		return memory.Rounds(at.Add(window / 2))
	}
	var rounds []*judge.Round
	for t := -before; t < 0; t++ {
		rounds = hear(t)
	}
	s := judge.Start(nil, rounds, sides, after*window, window)
	for t := range after {
		rounds = hear(t)
		s.Step(rounds[len(rounds)-1], sides)
		if v := s.Verdict(); v.Worse != "" {
			return Result{Kinds: w.Kinds, Seed: w.seed, At: t + 1 - w.fault.Start, Worse: v.Worse}
		}
	}
	return Result{Kinds: w.Kinds, Seed: w.seed, Passed: s.Verdict().Enough}
}

// Summary is a row of the table.
type Summary struct {
	Name          string
	Runs          int
	Convicted     float64 // share
	Passed        float64 // share, at the end of the bake; the others were "not enough evidence"
	Early         int     // convicted before the fault began
	P10, P50, P90 time.Duration
	Causes        string
	By            map[string][2]int // convicted of how many, by kind
}

// Summarize counts results.
func Summarize(f Fault, results []Result) Summary {
	s := Summary{Name: f.Name, Runs: len(results), By: map[string][2]int{}}
	var at []int
	causes := map[string]int{}
	for _, r := range results {
		if r.Worse != "" {
			at = append(at, r.At)
			causes[causeOf(r.Worse)]++
			if r.At <= 0 {
				s.Early++
			}
		} else if r.Passed {
			s.Passed += 1 / float64(len(results))
		}
		for _, name := range r.names() {
			by := s.By[name]
			by[1]++
			if r.Worse != "" {
				by[0]++
			}
			s.By[name] = by
		}
	}
	s.Convicted = float64(len(at)) / float64(len(results))
	slices.Sort(at)
	q := func(p float64) time.Duration {
		if k := int(p * float64(len(results))); k < len(at) {
			return time.Duration(at[k]) * window
		}
		return -1
	}
	s.P10, s.P50, s.P90, s.Causes = q(.1), q(.5), q(.9), common(causes)
	return s
}

// causeOf is what a conviction is called by: its words up to the figures.
func causeOf(worse string) string {
	cause, _, _ := strings.Cut(worse, ":")
	cause, _, _ = strings.Cut(cause, " is ")
	return cause
}

// common names the most frequent causes.
func common(causes map[string]int) string {
	var names []string
	for c := range causes {
		names = append(names, c)
	}
	slices.SortFunc(names, func(a, b string) int {
		if causes[a] != causes[b] {
			return causes[b] - causes[a]
		}
		return strings.Compare(a, b)
	})
	var out []string
	for _, c := range names[:min(len(names), 3)] {
		out = append(out, fmt.Sprintf("%s %d", c, causes[c]))
	}
	return strings.Join(out, ", ")
}

// Row is the summary as a row of Markdown.
func (s Summary) Row() string {
	sec := func(d time.Duration) string {
		if d < 0 {
			return "–"
		}
		return fmt.Sprintf("%.0f", d.Seconds())
	}
	return fmt.Sprintf("| %s | %d | %s%% | %s | **%s** | %s | %.1f%% | %s |", s.Name, s.Runs, percent(s.Convicted), sec(s.P10), sec(s.P50), sec(s.P90), 100*s.Passed, s.Causes)
}

func percent(share float64) string {
	if share > 0 && share < .1 {
		return fmt.Sprintf("%.2f", 100*share)
	}
	return fmt.Sprintf("%.4g", math.Round(1000*share)/10)
}
