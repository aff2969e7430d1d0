package judge

import "math"

// table is one cause's events and requests in one round, by stratum and unit; unit 0 is the canary.
type table struct{ n, k [][]float64 }

// tables are all causes'.
type tables [causes]table

// tabulate reads a round. The latencies of the rest go into s.Slow, for the rounds after it.
func (s *State) tabulate(r *Round, sides Sides) *tables {
	beside := s.beside(sides)
	units := 1 + len(beside)
	var t tables
	var n [kinds][][]float64
	for kind := range kinds {
		n[kind] = grid(firstNamed+len(*s.names(kind)), units)
	}
	for c := range causes {
		t[c] = table{n: n[c.kind()], k: grid(firstNamed+len(*s.names(c.kind())), units)}
	}
	index := [2]map[string]int{s.index(services), s.index(hosts)}
	at := make([][causes - counted]int, firstNamed+len(s.Services))
	for i := range at {
		var ok bool
		if at[i], ok = s.Slow[i].thresholds(); !ok {
			at[i][0] = -1
		}
		if !s.Alone {
			s.Slow[i].fade()
		}
	}
	for i := range units {
		nodes := sides.Canary
		if i > 0 {
			nodes = beside[i-1]
		}
		for _, id := range nodes {
			if u := r.units[id]; u != nil {
				s.read(&t, u, i, index, at)
			}
		}
	}
	moved := false
	if !s.Alone {
		moved = s.follow(&t)
		t.loosen()
	}
	t.choose(moved)
	return &t
}

// follow compares the requests that the canary sends to upstreams which the rest has never asked with those of the upstreams
// that it asks less than its share: as much of the rest's there counts as the rest's of the new ones. It says whether there
// are such upstreams.
func (s *State) follow(t *tables) bool {
	n := t[gateway].n
	fresh, total := make([]float64, len(n)), 0.0
	for i := firstNamed; i < len(n); i++ {
		if s.Tracks[gateway][i].pastRest == 0 && sum(n[i][1:]) == 0 && n[i][0] > .01*n[loose][0] {
			fresh[i] = n[i][0]
			total += n[i][0]
		}
	}
	if total == 0 {
		return false
	}
	for from := firstNamed; from < len(n); from++ {
		share := s.left(from, n[from])
		if share == 0 {
			continue
		}
		for to, part := range fresh {
			if part > 0 {
				t.lend(from, to, share*part/total)
			}
		}
		t.lend(from, from, 1-share)
	}
	return true
}

// left is the share of its requests to an upstream that the canary sends there no longer.
func (s *State) left(i int, n []float64) float64 {
	tr, rest := &s.Tracks[gateway][i], sum(n[1:])
	if rest == 0 || tr.pastRest == 0 && n[0] > 0 {
		return 0
	}
	if n[0] == 0 || tr.pastRequests == 0 {
		return 1
	}
	now, before := (float64(tr.requests)+n[0])/(float64(tr.rest)+rest), float64(tr.pastRequests)/float64(tr.pastRest)
	return math.Max(0, 1-now/before)
}

// lend adds a share of the rest's requests and failures of one upstream to another's; to itself it leaves it that share.
func (t *tables) lend(from, to int, share float64) {
	move := func(rows [][]float64) {
		for i := 1; i < len(rows[from]); i++ {
			if v := rows[from][i] * share; from == to {
				rows[to][i] = v
			} else {
				rows[to][i] += v
			}
		}
	}
	move(t[gateway].n)
	for c := range counted {
		if c.kind() == services {
			move(t[c].k)
		}
	}
}

// choose decides what latencies are compared: upstream by upstream, or, when requests have moved from one upstream to
// another and so none is what it was, those of all requests.
func (t *tables) choose(moved bool) {
	for c := counted; c < causes; c++ {
		for i := others; i < len(t[c].n); i++ {
			if (i == loose) != moved {
				clear(t[c].n[i])
				clear(t[c].k[i])
			}
		}
	}
}

// whole says that the stratum's requests are part of the sum of all: loose has all of them, if they are counted there.
func (t *table) whole(i int) bool {
	return (i == loose) == (sum(t.n[loose]) > 0)
}

// loosen counts the failures of strata that only one side has among all of its requests: what one version sends to one
// upstream the other may send to another.
func (t *tables) loosen() {
	for c := range counted {
		for j := others; j < len(t[c].n); j++ {
			if j == loose || t[c].n[j][0] > 0 && sum(t[c].n[j][1:]) > 0 {
				continue
			}
			for i, k := range t[c].k[j] {
				t[c].k[loose][i] += k
				t[c].k[j][i] = 0
			}
		}
	}
}

// read adds one node's part to unit i.
func (s *State) read(t *tables, u *unit, i int, index [2]map[string]int, at [][causes - counted]int) {
	for _, p := range u.services {
		j := lookUp(index[services], p.id)
		t[gateway].n[j][i] += float64(p.n)
		for c := range counted {
			if c.kind() == services {
				t[c].k[j][i] += float64(p.k[c])
			}
		}
		for _, j := range [...]int{j, loose} {
			if at[j][0] >= 0 {
				t[slow50].n[j][i] += float64(p.warm.Count())
				for c := slow50; c < causes; c++ {
					t[c].k[j][i] += float64(p.warm.Above(at[j][c-counted]))
				}
			}
			if i > 0 && !s.Alone {
				s.Slow[j].add(p.warm)
			}
		}
	}
	for _, p := range u.hosts {
		j := lookUp(index[hosts], p.id)
		t[noRoute].n[j][i] += float64(p.n)
		t[noRoute].k[j][i] += float64(p.k[noRoute])
		t[missing].k[j][i] += float64(p.k[missing])
	}
	t[gateway].n[loose][i] += float64(u.loose.n)
	t[noRoute].n[loose][i] += float64(u.loose.n)
	for c := range counted {
		if c.kind() == services {
			t[c].k[loose][i] += float64(u.loose.k[c])
		}
	}
}

func (s *State) index(kind int) map[string]int {
	out := map[string]int{}
	for i, id := range *s.names(kind) {
		out[id] = firstNamed + i
	}
	return out
}

func lookUp(index map[string]int, id string) int {
	if i, ok := index[id]; ok {
		return i
	}
	return others
}

func grid(rows, columns int) [][]float64 {
	all := make([]float64, rows*columns)
	out := make([][]float64, rows)
	for i := range out {
		out[i] = all[i*columns : (i+1)*columns]
	}
	return out
}

func sum(v []float64) (t float64) {
	for _, x := range v {
		t += x
	}
	return t
}

// limit is how many events a unit may have in one round before the rest of them are cut away; mean is its share.
func limit(mean float64) float64 { return mean + 3*math.Sqrt(mean) + 1 }

// spread is the dispersion of the rest's units in one round, by stratum; the pooled place is over all of them.
type spread struct {
	num, den, numCut, denCut []float64
	cut                      []float64 // the rest's events with each unit's stratum cut at its limit
	cutPooled                []float64 // the rest's events with each unit's total cut at its limit
	scale                    float64   // cut mean over mean
}

// disperse computes Pearson's squares of the rest's units around their share of the events.
func (t *table) disperse(binomial bool) spread {
	rows, units := len(t.n), len(t.n[0])
	d := spread{num: make([]float64, rows), den: make([]float64, rows), numCut: make([]float64, rows), denCut: make([]float64, rows),
		cut: make([]float64, rows), cutPooled: make([]float64, rows), scale: 1}
	residual, total, mean := make([]float64, units), make([]float64, units), make([]float64, units)
	for s := others; s < rows; s++ {
		y, n := sum(t.k[s][1:]), sum(t.n[s][1:])
		if y == 0 || n == 0 {
			continue
		}
		for i := 1; i < units; i++ {
			k, share := t.k[s][i], t.n[s][i]/n
			mu := y * share
			v := mu * (1 - share)
			if binomial {
				v *= 1 - math.Min(1, y/n)
			}
			d.num[s] += (k - mu) * (k - mu)
			d.den[s] += v
			d.den[pooled] += v
			residual[i], total[i], mean[i] = residual[i]+k-mu, total[i]+k, mean[i]+mu
			d.cut[s] += math.Min(k, limit(mu))
		}
		for i := 1; i < units; i++ {
			share := t.n[s][i] / n
			mu := d.cut[s] * share
			res := math.Min(t.k[s][i], limit(y*share)) - mu
			d.numCut[s] += res * res
			d.denCut[s] += mu * (1 - share)
		}
	}
	t.cutTotals(&d, residual, total, mean)
	return d
}

// cutTotals does the same with the units' totals, since many strata that are each a little above their share add up.
// The mean that the limit is computed from must itself be of what is left after the cut.
func (t *table) cutTotals(d *spread, residual, total, mean []float64) {
	for range 3 {
		var left, all float64
		for i := 1; i < len(total); i++ {
			left += math.Min(total[i], limit(mean[i]*d.scale))
			all += total[i]
		}
		if all > 0 {
			d.scale = left / all
		}
	}
	keep, res := make([]float64, len(total)), make([]float64, len(total))
	for i := 1; i < len(total); i++ {
		d.num[pooled] += residual[i] * residual[i]
		keep[i] = 1
		if l := limit(mean[i] * d.scale); total[i] > l {
			keep[i] = l / total[i]
		}
	}
	for s := others; s < len(t.n); s++ {
		n := sum(t.n[s][1:])
		if n == 0 {
			continue
		}
		for i := 1; i < len(total); i++ {
			d.cutPooled[s] += t.k[s][i] * keep[i]
		}
		for i := 1; i < len(total); i++ {
			share := t.n[s][i] / n
			mu := d.cutPooled[s] * share
			res[i] += t.k[s][i]*keep[i] - mu
			d.denCut[pooled] += mu * (1 - share)
		}
	}
	for i := 1; i < len(total); i++ {
		d.numCut[pooled] += res[i] * res[i]
	}
}

// keep adds the round's dispersion to the long run's.
func (s *State) keep(c cause, d *spread) {
	for i := range s.Tracks[c] {
		t := &s.Tracks[c][i]
		t.num, t.den = clamp(float64(t.num)+d.num[i]), clamp(float64(t.den)+d.den[i])
		t.numCut, t.denCut = clamp(float64(t.numCut)+d.numCut[i]), clamp(float64(t.denCut)+d.denCut[i])
	}
}

// phi is the larger of the long run's and this round's dispersion, drawn to the cause's pooled one by a few events' worth.
func (s *State) phi(c cause, i int, num, den float64) float64 {
	t, p := &s.Tracks[c][i], &s.Tracks[c][pooled]
	return phi(t.num, t.den, p.num, p.den, num, den)
}

func (s *State) phiCut(c cause, i int, num, den float64) float64 {
	t, p := &s.Tracks[c][i], &s.Tracks[c][pooled]
	return phi(t.numCut, t.denCut, p.numCut, p.denCut, num, den)
}

func phi(num, den, allNum, allDen float32, nowNum, nowDen float64) float64 {
	all := math.Max(1, (float64(allNum)+shrink*noDispersion)/(float64(allDen)+shrink))
	f := (float64(num) + shrink*all) / (float64(den) + shrink)
	return math.Max(1, math.Max(f, (nowNum+shrink*f)/(nowDen+shrink)))
}

// present counts the nodes of either side that are in the round.
func present(r *Round, sides Sides) (canary, rest float32) {
	for _, id := range sides.Canary {
		if r.units[id] != nil {
			canary++
		}
	}
	for _, unit := range sides.Rest {
		for _, id := range unit {
			if r.units[id] != nil {
				rest++
			}
		}
	}
	return canary, rest
}
