// Package judge compares the nodes that run a new version with those that don't, and says after every window what is known:
// worse, good enough, or not enough evidence.
//
//	memory := judge.NewMemory(judge.Window(bake))    // beside the reports: what every node said lately
//	memory.Hear(report, arrived)
//	s := judge.Start(before, memory.Rounds(now), sides, bake)  // at the swap; sides are the canary's and the rest's nodes
//	s.Step(round, sides)                             // each round once
//	v := s.Verdict()                                 // Worse, Enough, and the evidence in words
//
// How. Each failure since the swap is asked only one question: given that it happened, was it on the canary or on the rest?
// Under "no worse" the answer is a coin whose odds are the traffic's, so whatever hits both alike cancels. The answers are
// multiplied up into e-processes, for each cause in each stratum of the traffic and over all of them, and averaged with fixed
// weights: the average E exceeds 100 with probability ≤ 1% over all looks of a good rollout if failures are independent
// (Ville; Lindon & Malek, "Anytime-valid inference for multinomial count data", 2020). Failures are not independent, so the
// rest's over-dispersion is divided out, each node's heaviest client is set aside, single windows are capped, and the canary
// may be as much worse as it was before. What that is worth is measured by package sim, not proved: docs/rollout-judge.md.
//
// Latency is three more causes: warm requests slower than the rest's p50, p90 and p99 of earlier windows.
package judge

import (
	"math"
	"time"
)

// cause is what a request may have come to grief by.
type cause int

const (
	gateway cause = iota
	upstream
	auth
	noRoute
	rejected
	missing
	cold
	slow50
	slow90
	slow99
	causes

	failures = missing // causes that are failures, of which a pass bounds the excess; the others are what clients ask for, and slowness
	counted  = slow50  // causes that the nodes count; the others are read off the latencies
)

// rule is what counts as the same for a cause.
type rule struct {
	name string
	// Null: the canary's rate ≤ tol × own past × the rest's rate + slack + warm·exp(−t/warmUp).
	tol, slack, warm float64
	// material is the excess of the rate below which nobody would roll back.
	material float64
	// past is the most that the canary's own past may excuse: a sick node can't hide behind it, but how often clients ask for
	// what isn't there, or connect anew, is theirs alone.
	past float64
}

func rules() [causes]rule {
	return [causes]rule{
		gateway:  {"gateway failures", 1.15, .0005, .01, .002, 3},
		upstream: {"upstream failures", 1.15, .001, .005, .005, 3},
		auth:     {"authentication refusals", 1.15, .002, 0, .005, 3},
		noRoute:  {"known hosts' paths answered 404", 1.15, .0005, 0, .002, 3},
		missing:  {"upstreams' answers 404, 405 and 410", 1.15, .002, 0, .01, 10},
		rejected: {"rejects", 1.15, .002, 0, .01, 3},
		cold:     {"requests that waited for a connection or a key", 1.15, .02, .3, .1, 10},
		slow50:   {"requests slower than the rest's median", 1.05, .02, .03, .05, 3},
		slow90:   {"requests slower than the rest's p90", 1.05, .005, .03, .02, 3},
		slow99:   {"requests slower than the rest's p99", 1.05, .0005, .03, .004, 3},
	}
}

const warmUp = 6 * time.Second

// factors are the alternatives: so many times the odds.
func factors() [nFactors]float64 { return [nFactors]float64{1.25, 1.7, 3, 8, 30} }

const (
	nFactors = 5
	// convict is where E says worse: a false alarm in at most one of so many rollouts.
	convict = 100
	// suspect is where E stands in the way of a pass.
	suspect = 10
	// windowCap is the most that one window may add to the logarithm of an e-process: ln(convict), so that one can't convict.
	windowCap = 4.6
	// pauseCap is the same for slow and cold requests as they are counted: a pause of the process makes dozens in one window,
	// and two pauses soon after each other are no fault of the version's. The sums that are cut know no such bursts.
	pauseCap = 3.5
	maxE     = 1e30

	// Shares of the parts of E.
	pooledShare, strataShare, gaugeShare = .6, .3, .1

	// Prior over the window in which the fault begins: at the swap, once things have settled, or spread over the bake.
	atSwap, settled = .4, .3
	settle          = 16 * time.Second

	// pastTol and pastSlack widen the null where the canary is compared with its own past only: the world may have changed.
	pastTol, pastSlack = 1.6, 3
	// While the rest fails more than troubleFrom times as often as before the swap, the canary's tolerance grows, up to maxTrouble.
	troubleFrom, maxTrouble = 2, 1.6
	// noDispersion is taken for the dispersion where nothing is known of it, as much as shrink events say.
	noDispersion = 1.5
	shrink       = 20
)

// Bounds. Strata beyond maxStrata of each kind are judged together as report.Other; so are those that appear later than
// the first rounds beyond latecomers.
const (
	maxStrata  = 24
	latecomers = 4
	maxGauged  = 64 // nodes whose gauges are kept
	past       = 2 * time.Minute
	// maxParts bounds the memory: so many strata of nodes of rounds. Beyond it the past is shorter.
	maxParts = 200_000
)

// What a pass needs.
const (
	minWindows   = 3
	minRequests  = 200
	maxExcess    = .03
	passZ        = 2.33
	withinReach  = .02 // what the bound of a canary that is no worse may be, for its stratum to be asked for one
	minShare     = .5
	shareAsksFor = 20 // expected requests from which on a stratum's share is looked at
)

// Window is the length of the rounds for a bake: 2 s, less if the bake is too short for enough of them, but no less than nodes report.
func Window(bake time.Duration) time.Duration {
	return min(max(bake/10, time.Second), 2*time.Second).Round(time.Second)
}

// clamp keeps what is stored finite, whatever nodes report.
func clamp(v float64) float32 {
	if math.IsNaN(v) {
		return 0
	}
	return float32(math.Max(-maxE, math.Min(maxE, v)))
}
