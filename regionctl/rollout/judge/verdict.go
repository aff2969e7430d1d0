package judge

import (
	"fmt"
	"math"
	"strings"
)

// Verdict is what is known after a round.
type Verdict struct {
	// Worse says what the canary is worse by; empty = not worse as far as is known.
	Worse string
	// Enough: there is enough evidence for a pass. Never set together with Worse.
	Enough bool
	// Judged: there were enough rounds for a great fault to show, or no requests at all.
	Judged bool
	// Suspect: it looks worse, but not enough so.
	Suspect bool
	// Against says what the canary was compared with.
	Against string
	// Summary is the evidence in words, with what is missing.
	Summary string
}

// Verdict tells what the rounds so far come to. The state may be nil: nothing was seen.
func (s *State) Verdict() Verdict {
	if s.Known() == nil {
		return Verdict{Summary: "nothing was seen yet", Judged: true, Against: "the rest"}
	}
	p := &s.Tracks[gateway][pooled]
	v := Verdict{Worse: s.Worse, Judged: s.Windows >= minWindows || s.Requests == 0, Suspect: s.E >= suspect, Against: s.against(), Summary: fmt.Sprintf("%.0f requests against %.0f of %s", s.Requests, p.rest, s.against())}
	if v.Worse != "" {
		return v
	}
	missing, note := s.missing()
	if v.Enough = len(missing) == 0; v.Enough {
		v.Summary += note
		return v
	}
	const show = 3
	if more := len(missing) - show; more > 0 {
		missing = append(missing[:show:show], fmt.Sprintf("%d more", more))
	}
	v.Summary += "; missing: " + strings.Join(missing, "; ")
	return v
}

func (s *State) against() string {
	if s.Alone {
		return "the time before"
	}
	return "the rest"
}

// evidence is one track in words.
func (s *State) evidence(c cause, i int) string {
	t := &s.Tracks[c][i]
	what := rules()[c].name
	if name := s.strataName(c, i); name != "" {
		what += " (" + name + ")"
	}
	seen := math.Max(1, float64(t.seen))
	return fmt.Sprintf("%s: %.1f%% of %.0f requests lately, against %.1f%% of %s", what,
		100*math.Min(1, float64(t.lately)/seen), seen, 100*math.Min(1, float64(t.expected)/seen), s.against())
}

// missing lists what stands between the evidence and a pass; note is what to say beside a pass.
func (s *State) missing() (missing []string, note string) {
	p := &s.Tracks[gateway][pooled]
	if need := max(minWindows, s.Bake*3/4); s.Windows < need { // a new leader begins where the last stored state was
		missing = append(missing, fmt.Sprintf("%d of %d windows", need-s.Windows, need))
	}
	if p.requests < minRequests || p.rest < minRequests {
		return append(missing, fmt.Sprintf("%d requests are needed", minRequests)), ""
	}
	if s.E >= suspect {
		missing = append(missing, fmt.Sprintf("it looks worse by %s (evidence %.0f, %d would be enough)", s.Most, s.E, convict))
	}
	if why := s.starved(services, pooled); why != "" {
		missing = append(missing, why)
	}
	most, unseen := bound{excess: math.Inf(-1)}, []string{}
	for c := range failures {
		b, faults := s.passes(c)
		missing = append(missing, faults...)
		if b.excess > most.excess {
			most = b
		}
	}
	for kind := services; kind <= hosts; kind++ {
		for i := others; i < firstNamed+len(*s.names(kind)); i++ {
			why, few := s.seen(kind, i)
			if i == loose {
				continue
			}
			if why != "" {
				missing = append(missing, why)
			} else if few && i >= firstNamed {
				unseen = append(unseen, (*s.names(kind))[i-firstNamed])
			}
		}
	}
	note = fmt.Sprintf(", at most %.1f points more %s", 100*math.Max(0, most.excess), most.name)
	if len(unseen) > 0 {
		note += fmt.Sprintf("; too few requests to judge alone: %s", strings.Join(unseen[:min(len(unseen), 4)], ", "))
	}
	return missing, note
}

// bound is the upper bound of what a cause may be worse by.
type bound struct {
	excess float64
	name   string
}

// passes bounds a cause: over all strata; in each whose requests are enough for it; and over those whose are not. In one of
// the latter, more failures than chance explains stand in the way as well.
func (s *State) passes(c cause) (bound, []string) {
	var faults []string
	name := rules()[c].name
	check := func(n tally, where string) bound {
		b := bound{n.excess(n.events), name + where}
		if b.excess > maxExcess {
			faults = append(faults, fmt.Sprintf("%s: up to %.1f points more%s are possible, %.0f may be", name, 100*b.excess, where, 100*maxExcess))
		}
		return b
	}
	most := check(s.tally(c, pooled), "")
	var small tally
	for i := others; i < len(s.Tracks[c]); i++ {
		n, where := s.tally(c, i), ""
		if of := s.strataName(c, i); of != "" {
			where = " (" + of + ")"
		}
		if n.within() {
			if b := check(n, where); b.excess > most.excess {
				most = b
			}
			continue
		}
		small.add(n)
		if n.events >= 2 && n.events > limit(n.due*n.phi) {
			faults = append(faults, fmt.Sprintf("%s%s: %.0f of only %.0f requests, %.1f expected", name, where, n.events, n.requests, n.due))
		}
	}
	if small.within() {
		check(small, " (all with few requests)")
	}
	return most, faults
}

// tally is what a bound is computed from.
type tally struct{ events, due, requests, phi float64 }

func (s *State) tally(c cause, i int) tally {
	t := &s.Tracks[c][i]
	return tally{float64(t.events), float64(t.due * t.own), float64(t.requests), s.phi(c, i, 0, 0)}
}

func (n *tally) add(b tally) {
	*n = tally{n.events + b.events, n.due + b.due, n.requests + b.requests, math.Max(n.phi, b.phi)}
}

// within says that the requests are enough for a bound that a canary which is not worse keeps, with room for chance.
func (n *tally) within() bool {
	return n.requests >= minRequests && n.excess(n.due) <= withinReach
}

// excess is the Wilson upper bound of the rate of so many events, counts divided by the dispersion, less the expected rate.
func (n *tally) excess(events float64) float64 {
	if n.requests <= 0 {
		return 0
	}
	size := n.requests / n.phi
	p, z := math.Min(1, events/n.requests), float64(passZ)
	up := (p + z*z/(2*size) + z*math.Sqrt(p*(1-p)/size+z*z/(4*size*size))) / (1 + z*z/size)
	return up - n.due/n.requests
}

// seen says why a stratum's traffic is not what it was, and whether it is too little to be judged by itself.
func (s *State) seen(kind, i int) (why string, few bool) {
	c := gateway
	if kind == hosts {
		c = noRoute
	}
	n := s.tally(c, i)
	if kind == hosts { // what share an upstream gets is the version's to decide
		why = s.starved(kind, i)
	}
	return why, !n.within() && s.Tracks[c][i].rest > 0
}

// starved says that the canary gets less than half of the traffic that it had beside the rest's, node by node.
func (s *State) starved(kind, i int) string {
	c := gateway
	if kind == hosts {
		c = noRoute
	}
	t := &s.Tracks[c][i]
	if s.Alone || t.pastRest == 0 || t.pastRequests < shareAsksFor || s.Present[canaryBefore] == 0 || s.Present[restNow] == 0 {
		return ""
	}
	nodes := float64(s.Present[canaryNow]/s.Present[restNow]) / float64(s.Present[canaryBefore]/s.Present[restBefore])
	due := float64(t.rest) * float64(t.pastRequests) / float64(t.pastRest) * nodes
	if due < shareAsksFor || float64(t.requests) >= minShare*due {
		return ""
	}
	of := s.strataName(c, i)
	if of == "" {
		of = "all traffic"
	}
	return fmt.Sprintf("it gets %.0f of the %.0f requests of %s that were its share", t.requests, due, of)
}
