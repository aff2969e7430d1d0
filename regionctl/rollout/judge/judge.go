package judge

import (
	"fmt"
	"math"
	"time"
)

// Start begins to judge. The rounds are those that ended before the swap; before is what was judged last, whose rest a
// canary that is alone and has no past of its own is compared with; nil = nothing was.
func Start(before *State, rounds []*Round, sides Sides, bake, window time.Duration) *State {
	s := &State{Window: window, Bake: max(1, int(bake/window)), Alone: len(sides.Rest) == 0, Slow: make([]decayed, firstNamed)}
	rounds = since(rounds, sides.Canary)
	if before != nil && before.Last != nil {
		before = before.Last
	}
	for c := range causes {
		s.Tracks[c] = make([]track, firstNamed)
		for i := range s.Tracks[c] {
			s.Tracks[c][i].own = 1
		}
	}
	s.admit(rounds, maxStrata)
	s.share()
	if s.Alone {
		s.remember(rounds, sides)
		s.inherit(before)
		return s
	}
	s.Last = before
	s.learn(rounds, sides)
	for _, r := range rounds {
		s.Gauges.see(r, sides, s.Window)
	}
	s.Gauges.swap()
	return s
}

// share fixes among how many strata the weights are divided.
func (s *State) share() {
	for kind := services; kind <= hosts; kind++ {
		s.Places[kind] = firstNamed - 1 + min(len(*s.names(kind))+latecomers, maxStrata)
	}
}

// learn takes in the time before the swap: the rest's dispersion and latencies, and the canary's own past.
func (s *State) learn(rounds []*Round, sides Sides) {
	var own, due [causes][]float64
	for c := range causes {
		own[c], due[c] = make([]float64, len(s.Tracks[c])), make([]float64, len(s.Tracks[c]))
	}
	for _, r := range rounds {
		canary, rest := present(r, sides)
		s.Present[canaryBefore] += canary
		s.Present[restBefore] += rest
		t := s.tabulate(r, sides)
		for c := range causes {
			d := t[c].disperse(c >= failures)
			s.keep(c, &d)
			s.compareBefore(c, &t[c], &d, own[c], due[c])
		}
	}
	for c := range causes {
		for i := range s.Tracks[c] {
			s.Tracks[c][i].own = clamp(ownPast(own[c][i], due[c][i], s.phiCut(c, i, 0, 0), rules()[c].past))
		}
	}
}

// compareBefore sums up what the canary had, cut at what chance explains, and what its share of the rest's was.
func (s *State) compareBefore(c cause, t *table, d *spread, own, due []float64) {
	cut := math.Min
	if c == missing || c == cold { // what clients ask for comes in no bursts
		cut = func(x, _ float64) float64 { return x }
	}
	var x, e, uncut float64
	for i := others; i < len(t.n); i++ {
		n, rest := t.n[i][0], sum(t.n[i][1:])
		tr, all := &s.Tracks[c][i], &s.Tracks[c][pooled]
		tr.pastRequests, tr.pastRest = tr.pastRequests+float32(n), tr.pastRest+float32(rest)
		tr.pastEvents += float32(sum(t.k[i][1:]))
		if t.whole(i) {
			all.pastRequests, all.pastRest = all.pastRequests+float32(n), all.pastRest+float32(rest)
		}
		if n <= 0 || rest <= 0 {
			continue
		}
		y := sum(t.k[i][1:])
		x += t.k[i][0]
		e += d.cutPooled[i] * n / rest
		uncut += y * n / rest
		own[i] += cut(t.k[i][0], limit(y*n/rest))
		due[i] += d.cut[i] * n / rest
	}
	own[pooled] += cut(x, limit(uncut*d.scale))
	due[pooled] += e
}

// ownPast is how much worse than the rest the canary was, half a standard error up, drawn to 1 by ten events.
func ownPast(own, due, phi, most float64) float64 {
	const prior = 10
	f := (own/phi + prior) / (due/phi + prior) * (1 + .5/math.Sqrt(own/phi+prior))
	return math.Min(most, math.Max(1, f))
}

// remember takes the canary's own past as what it is compared with.
func (s *State) remember(rounds []*Round, sides Sides) {
	for _, r := range rounds {
		for _, id := range sides.Canary {
			if u := r.units[id]; u != nil {
				index := s.index(services)
				for _, p := range u.services {
					s.Slow[lookUp(index, p.id)].add(p.warm)
				}
			}
		}
	}
	for _, r := range rounds {
		t := s.tabulate(r, sides)
		for c := range causes {
			for i := others; i < len(t[c].n); i++ {
				tr, all := &s.Tracks[c][i], &s.Tracks[c][pooled]
				tr.pastEvents += float32(t[c].k[i][0])
				tr.pastRequests += float32(t[c].n[i][0])
				tr.oldEvents += float32(sum(t[c].k[i][1:]))
				tr.oldRequests += float32(sum(t[c].n[i][1:]))
				all.pastEvents += float32(t[c].k[i][0])
				if t[c].whole(i) {
					all.pastRequests += float32(t[c].n[i][0])
				}
			}
		}
	}
}

// inherit takes what was judged last for the past, if the canary's own is too short.
func (s *State) inherit(before *State) {
	if before == nil || s.past() >= minRequests || s.past() >= max(before.past(), before.Tracks[gateway][pooled].rest) {
		return
	}
	c := before.Clone()
	s.Services, s.Hosts, s.Slow = c.Services, c.Hosts, c.Slow
	for m := range causes {
		s.Tracks[m] = c.Tracks[m]
		for i, t := range s.Tracks[m] {
			to := track{own: 1, pastEvents: t.pastEvents, pastRequests: t.pastRequests}
			if !before.Alone {
				to.pastEvents, to.pastRequests = t.restEvents, t.rest
			}
			if m >= counted {
				to.pastEvents, to.pastRequests = 0, 0
			}
			s.Tracks[m][i] = to
		}
	}
	s.readSlow()
	s.share()
	for m := range causes { // the veterans were no worse than that
		for i := range s.Tracks[m] {
			t := &s.Tracks[m][i]
			t.oldEvents, t.oldRequests = t.pastEvents, t.pastRequests
		}
	}
}

// readSlow counts the slow requests of the past by the thresholds that hold from now on.
func (s *State) readSlow() {
	for i := others; i < len(s.Slow); i++ {
		at, ok := s.Slow[i].thresholds()
		if !ok || i == loose {
			continue
		}
		for m := counted; m < causes; m++ {
			t, all := &s.Tracks[m][i], &s.Tracks[m][pooled]
			for b, n := range s.Slow[i].Buckets {
				t.pastRequests += n
				if s.Slow[i].From+b > at[m-counted] {
					t.pastEvents += n
				}
			}
			all.pastEvents, all.pastRequests = all.pastEvents+t.pastEvents, all.pastRequests+t.pastRequests
		}
	}
}

// past is how many requests the canary had before.
func (s *State) past() float32 { return s.Tracks[gateway][pooled].pastRequests }

// Step takes one round in. A round in which one side is missing is none.
func (s *State) Step(r *Round, sides Sides) {
	s.Until = r.To
	if s.Alone {
		sides.Rest = nil
	}
	canary, rest := present(r, sides)
	if canary == 0 || rest == 0 && !s.Alone {
		return
	}
	s.Present[canaryNow] += canary
	s.Present[restNow] += rest
	if s.Windows == 0 && len(s.Services) == 0 && len(s.Hosts) == 0 {
		s.admit([]*Round{r}, maxStrata)
		s.share()
	}
	s.admit([]*Round{r}, min(s.Places[services], s.Places[hosts])-(firstNamed-1))
	t := s.tabulate(r, sides)
	begin, _ := s.prior()
	for c := range causes {
		s.stepCause(c, &t[c], begin)
	}
	if !s.Alone {
		s.Gauges.see(r, sides, s.Window)
	}
	_, left := s.prior()
	s.Windows++
	s.Requests += float32(t[gateway].n[loose][0])
	if s.Windows >= minWindows && s.Tracks[gateway][pooled].rest >= minRequests {
		s.Last = nil
	}
	s.total(left)
}

// prior is the probability that the fault begins in this window, and that it begins later.
func (s *State) prior() (begin, left float64) {
	settleAt, even := int(settle/s.Window), 1-atSwap-settled
	if settleAt >= s.Bake {
		settleAt, even = -1, 1-atSwap
	}
	if s.Windows < s.Bake {
		begin = even / float64(s.Bake)
		left = even * float64(s.Bake-1-s.Windows) / float64(s.Bake)
	}
	if s.Windows == 0 {
		begin += atSwap
	}
	if s.Windows == settleAt {
		begin += settled
	} else if s.Windows < settleAt {
		left += settled
	}
	return begin, left
}

// answer is the logarithm of the likelihood ratio of x events here and y there, for odds that are g times as great.
func answer(x, y, odds, g float64) float64 {
	p0, p1 := odds/(1+odds), odds*g/(1+odds*g)
	return x*math.Log(p1/p0) + y*math.Log((1-p1)/(1-p0))
}

// step is one stratum's part of a round.
type step struct {
	x, y, n, rest float64
	due           float64 // y in proportion to the traffic
	odds, oddsAll float64 // under the null: of the stratum by itself, and as a part of the pooled one
}

// stepCause moves one cause's e-processes on by a round.
func (s *State) stepCause(c cause, t *table, begin float64) {
	rule, factors := rules()[c], factors()
	d := t.disperse(c >= failures)
	slack := rule.slack + rule.warm*math.Exp(-float64(s.Windows)*float64(s.Window)/float64(warmUp))
	tol, most := rule.tol, windowCap
	if c >= cold {
		most = pauseCap
	}
	if s.Alone {
		tol, slack = tol*pastTol, slack+rule.slack*(pastSlack-1)
	}
	steps := make([]step, len(t.n))
	all := step{}
	var l, lCut [nFactors]float64
	for i := others; i < len(t.n); i++ {
		st := s.compare(c, i, t, &d, tol, slack)
		if steps[i] = st; st.odds == 0 {
			continue
		}
		var one, oneCut [nFactors]float64
		for g := range factors {
			one[g] = answer(st.x, st.y, st.odds, factors[g])
			oneCut[g] = answer(math.Min(st.x, limit(st.due)), d.cut[i], st.odds, factors[g])
			l[g] += answer(st.x, st.y, st.oddsAll, factors[g])
		}
		s.Tracks[c][i].move(&one, &oneCut, s.phi(c, i, d.num[i], d.den[i]), s.phiCut(c, i, d.numCut[i], d.denCut[i]), begin, most)
		s.Tracks[c][i].count(&st)
		all.x, all.due, all.y = all.x+st.x, all.due+st.due, all.y+st.y
		if t.whole(i) {
			all.n, all.rest = all.n+st.n, all.rest+st.rest
		}
	}
	keep := 1.0
	if most := limit(all.due * d.scale); all.x > most {
		keep = most / all.x
	}
	for i, st := range steps {
		for g := 0; g < nFactors && st.oddsAll > 0; g++ {
			lCut[g] += answer(st.x*keep, d.cutPooled[i], st.oddsAll, factors[g])
		}
	}
	p := &s.Tracks[c][pooled]
	if all.n > 0 {
		p.move(&l, &lCut, s.phi(c, pooled, d.num[pooled], d.den[pooled]), s.phiCut(c, pooled, d.numCut[pooled], d.denCut[pooled]), begin, most)
		p.count(&all)
	}
	s.keep(c, &d)
}

// compare reads one stratum and puts the null's odds to it; odds 0 = there is nothing to compare.
func (s *State) compare(c cause, i int, t *table, d *spread, tol, slack float64) step {
	tr := &s.Tracks[c][i]
	st := step{x: t.k[i][0], n: t.n[i][0], y: sum(t.k[i][1:]), rest: sum(t.n[i][1:])}
	drift := 1.0
	if s.Alone { // the past, an equal part of it for each window of a bake
		if c != gateway && c != noRoute { // those are nobody's doing but the gateway's
			drift = tr.drift(st.y, st.rest, slack)
		}
		st.y, st.rest = float64(tr.pastEvents)/float64(s.Bake), float64(tr.pastRequests)/float64(s.Bake)
		d.cut[i], d.cutPooled[i] = st.y, st.y
	}
	if st.n <= 0 || st.rest <= 0 {
		return step{}
	}
	ratio := st.n / st.rest
	rate := (float64(tr.restLately) + 1) / (float64(tr.restSeen) + 1/slack)
	more := ratio * slack / rate
	tol *= drift * s.trouble(tr, st.y, st.rest, slack)
	tr.restLately, tr.restSeen = clamp(.8*float64(tr.restLately)+st.y), clamp(.8*float64(tr.restSeen)+st.rest)
	if c == cold { // so large a slack, beside a rest that has hardly any, is no matter of odds: the rest is taken to have had it too
		more = 0
		st.y, d.cut[i], d.cutPooled[i] = st.y+slack*st.rest, d.cut[i]+slack*st.rest, d.cutPooled[i]+slack*st.rest
	}
	st.due = st.y * ratio * drift
	st.odds = tol*float64(tr.own)*ratio + more
	st.oddsAll = tol*float64(s.Tracks[c][pooled].own)*ratio + more
	return st
}

// trouble is how much more a canary may be off while the rest itself fails far more than before: what hits everybody doesn't
// hit every node alike.
func (s *State) trouble(t *track, y, rest, slack float64) float64 {
	if s.Alone || t.pastRest == 0 {
		return 1
	}
	before := (float64(t.pastEvents) + 1) / (float64(t.pastRest) + 1/slack)
	now := (.8*float64(t.restLately) + y + before/slack) / (.8*float64(t.restSeen) + rest + 1/slack)
	return math.Max(1, math.Min(maxTrouble, now/before/troubleFrom))
}

// drift is how much more often than before the swap the veterans meet with it, since they met with it under the same version.
func (t *track) drift(y, n, slack float64) float64 {
	if t.oldRequests == 0 {
		return 1
	}
	const few = 50 // requests that count as before
	before := (float64(t.oldEvents) + 1) / (float64(t.oldRequests) + 1/slack)
	t.newEvents, t.newRequests = clamp(.8*float64(t.newEvents)+y), clamp(.8*float64(t.newRequests)+n)
	lately := (float64(t.newEvents) + before*few) / (float64(t.newRequests) + few)
	return math.Max(1, math.Max(lately, (y+before*few)/(n+few))/before)
}

// move multiplies a round's answers in.
func (t *track) move(l, lCut *[nFactors]float64, phi, phiCut, begin, most float64) {
	for g := range l {
		t.raw[g] = clamp((float64(t.raw[g]) + begin) * math.Exp(math.Min(l[g]/phi, most)))
		t.cut[g] = clamp((float64(t.cut[g]) + begin) * math.Exp(math.Min(lCut[g]/phiCut, windowCap)))
	}
}

// count keeps what a person would want to know.
func (t *track) count(st *step) {
	add := func(f *float32, v float64) { *f = clamp(float64(*f) + v) }
	t.lately, t.expected, t.seen = .9*t.lately, .9*t.expected, .9*t.seen
	add(&t.lately, st.x)
	add(&t.expected, st.due)
	add(&t.seen, st.n)
	if st.x > 1.2*st.due {
		t.hot++
	} else if t.hot > 0 && st.n > 0 && st.x <= st.due {
		t.hot--
	}
	add(&t.events, st.x)
	add(&t.due, st.due)
	add(&t.requests, st.n)
	add(&t.restEvents, st.y)
	add(&t.rest, st.rest)
}

// e is the track's e-value; left is the prior of a fault that has not begun yet.
func (t *track) e(left float64) float64 {
	total := 0.0
	for g := range t.raw {
		total += .5*float64(t.raw[g]) + .5*float64(t.cut[g])
	}
	return total/nFactors + left
}

// material says that the excess is more than one window's, and worth a rollback.
func (t *track) material(r *rule) bool {
	return t.hot >= 2 && t.lately >= 4 && float64(t.lately-t.expected) > r.material*float64(t.seen)
}

// places is the number of strata that the weights of a cause are divided among.
func (s *State) places(c cause) int {
	if c.kind() == hosts {
		return s.Places[hosts]
	}
	return s.Places[services]
}

// total averages all e-values. What is not material counts nothing.
func (s *State) total(left float64) {
	total, most, name := 0.0, 0.0, ""
	add := func(v float64, what func() string) {
		if total += v; v > most {
			most, name = v, what()
		}
	}
	rules := rules()
	for c := range causes {
		for i := range s.Tracks[c] {
			t := &s.Tracks[c][i]
			if !t.material(&rules[c]) {
				continue
			}
			weight := pooledShare / float64(causes)
			if i != pooled {
				weight = strataShare / float64(int(causes)*s.places(c))
			}
			add(weight*t.e(left), func() string { return s.evidence(c, i) })
		}
	}
	e, words := s.Gauges.e()
	add(gaugeShare*e, func() string { return words })
	s.E, s.Most = clamp(total), name
	if total >= convict && s.Worse == "" {
		s.Worse = fmt.Sprintf("%s (evidence %.0f, %d needed)", name, math.Min(total, 1e6), convict)
	}
}
