// Command simulate prints what the canary judge is worth: false alarms in good rollouts, and how soon faults are found.
package main

import (
	"flag"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"

	"github.com/cellgate/cellgate/sim/rollout"
)

func main() {
	good := flag.Int("good", 10_000, "good rollouts")
	runs := flag.Int("runs", 300, "rollouts of each fault")
	only := flag.String("only", "", "only rows whose name contains this")
	kind := flag.String("kind", "", "only rollouts of this kind, such as \"noisy canary\"")
	seed := flag.Uint64("seed", 1, "first seed")
	workers := flag.Int("workers", runtime.GOMAXPROCS(0), "goroutines")
	list := flag.Bool("list", false, "list the convictions")
	flag.Parse()
	fmt.Println("| version | runs | convicted | p10 s | p50 s | p90 s | passed at the end | by |\n|---|---|---|---|---|---|---|---|")
	for i, f := range append([]rollout.Fault{rollout.Good()}, rollout.Faults()...) {
		n := *runs
		if i == 0 {
			n = *good
		}
		if n == 0 || !strings.Contains(f.Name, *only) {
			continue
		}
		results := rollout.Run(f, n, *seed, *workers, *kind)
		for _, r := range results {
			if *list && r.Worse != "" {
				fmt.Printf("seed %d, second %.0f: %s %+v\n", r.Seed, r.After().Seconds(), r.Worse, r.Kinds)
			}
		}
		s := rollout.Summarize(f, results)
		fmt.Println(s.Row())
		if f.Upstream+f.Gateway+f.Missing+f.Cold+f.Auth+f.NoRoute+f.Slow+f.Tail+f.CPU+f.Leak == 0 {
			for _, kind := range slices.Sorted(maps.Keys(s.By)) {
				by := s.By[kind]
				low, high := rollout.Interval(by[0], by[1])
				fmt.Printf("| – %s | %d | %d: %.2f%% (%.2f–%.2f) | | | | | |\n", kind, by[1], by[0], 100*float64(by[0])/float64(max(by[1], 1)), 100*low, 100*high)
			}
		}
		if s.Early > 0 {
			fmt.Printf("| – before it began | %d | | | | | | |\n", s.Early)
		}
	}
}
