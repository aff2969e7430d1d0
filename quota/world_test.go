package quota

import (
	"math"
	"math/rand/v2"
	"slices"
)

// step is how finely the simulated worlds see time.
const step = 5 * ms

// world is one key on many nodes in some regions. Region 0 owns the key. Messages take time, get lost or come late; every
// process has a clock of its own.
type world struct {
	r       *rand.Rand
	limit   Limit
	now     int64
	home    grantor
	away    []*region // of the other regions; index = region - 1
	nodes   []*simNode
	mail    []letter
	deaf    func(from, to int) bool // whether a letter between two processes is lost; processes: node ≥ 0, regions −1, −2, …
	late    func() int64            // beyond a step
	between int64                   // one way between regions
	alone   bool                    // holders notice that they are cut off
	day     int64

	admitted, refused, waited, asks float64
	lone                            float64 // admitted without a grantor
	unpaid                          float64 // overdraft that died with its holder, and what grantors had at their start
}

type grantor struct {
	Bucket
	born int64
	down bool
}

type region struct {
	Branch
	clock int64 // offset
	heard int64 // the owner, by the world's clock
}

type simNode struct {
	Lease
	region int
	clock  int64
	heard  int64
	asked  int64
	parked int
	second int // of them those that wait the second time
	parkAt int64
	beat   int64
	frozen bool
	boot   int
}

type letter struct {
	at       int64
	from, to int // as in deaf
	boot     int
	sent     int64 // by the asker's clock
	ask      *Ask
	grant    Grant
}

func newWorld(seed uint64, limit Limit, regions, nodes int) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 7)), limit: limit, now: 1000 * step, deaf: func(int, int) bool { return false }, late: func() int64 { return 0 }}
	for range regions - 1 {
		w.away = append(w.away, &region{clock: w.r.Int64N(1e15), heard: w.now})
		w.bear(len(w.away))
	}
	for i := range nodes {
		w.nodes = append(w.nodes, &simNode{region: i % regions})
		w.boot(w.nodes[i])
	}
	return w
}

// bear starts the controller of a region with nothing in its memory.
func (w *world) bear(i int) {
	if i == 0 {
		w.unpaid += max(0, -w.home.tokens) + w.limit.atStart()
		w.home = grantor{born: w.now}
		return
	}
	r := w.away[i-1]
	_, debt := r.Lease.Outstanding()
	w.unpaid += float64(debt)
	r.Branch = Branch{Lease: Lease{Limit: w.limit, Terms: OfRegions()}}
}

func (w *world) boot(n *simNode) {
	_, debt := n.Outstanding()
	w.unpaid += float64(debt)
	*n = simNode{Lease: Lease{Limit: w.limit, Terms: OfNodes()}, region: n.region, clock: w.r.Int64N(1e15), heard: w.now, beat: w.r.Int64N(20) * step, boot: n.boot + 1}
}

func (w *world) weight() float64 { return 1 / float64(len(w.nodes)) }

// lost is since when a holder hears nothing, in its own time; 0 = it hears.
func (w *world) lost(heard, clock int64) int64 {
	if !w.alone || w.now-heard < 150*ms {
		return 0
	}
	return heard + clock
}

// request comes to a node.
func (w *world) request(n *simNode) {
	lost := w.lost(n.heard, n.clock)
	if n.asked == 0 { // nothing was to be told: silence says nothing
		lost = 0
	}
	switch n.Take(w.now+n.clock, lost, w.weight(), 0) {
	case Admit:
		w.admitted++
	case Alone:
		w.admitted, w.lone = w.admitted+1, w.lone+1
	case Refuse:
		w.refused++
	case Wait:
		w.waited++
		if n.parked == 0 {
			n.parkAt = w.now
		}
		n.parked++
	}
}

// resume asks again for those who have waited.
func (w *world) resume(n *simNode) {
	again := 0
	for ; n.parked > 0; n.parked-- {
		waits := maxWaits
		if n.second <= n.parked-1 {
			waits = 1
		}
		switch n.Take(w.now+n.clock, 0, w.weight(), waits) {
		case Admit:
			w.admitted++
		case Alone:
			w.admitted, w.lone = w.admitted+1, w.lone+1
		case Refuse:
			w.refused++
		case Wait:
			again++
		}
	}
	n.parked, n.second, n.parkAt = again, again, w.now
}

func (w *world) send(l letter) {
	if w.deaf(l.from, l.to) {
		return
	}
	l.at = w.now + step + w.late()
	if l.from < 0 && l.to < 0 {
		l.at += w.between
	}
	w.mail = append(w.mail, l)
}

// tick delivers what has arrived and has everybody ask who is due.
func (w *world) tick() {
	w.now += step
	due := w.mail
	w.mail = nil
	for _, l := range due {
		if l.at > w.now {
			w.mail = append(w.mail, l)
		} else {
			w.deliver(l)
		}
	}
	for i, n := range w.nodes {
		if n.frozen {
			continue
		}
		if n.parked > 0 && w.now-n.parkAt >= 15*ms {
			w.resume(n)
		}
		now := w.now + n.clock
		if (w.now+n.beat)%(100*ms) != 0 && !n.Urgent(now) {
			continue
		}
		if a, due := n.Due(now); due {
			w.asks++
			if n.asked == 0 {
				n.asked, n.heard = w.now, max(n.heard, w.now-100*ms)
			}
			w.send(letter{from: i, to: -1 - n.region, boot: n.boot, sent: now, ask: &a})
		}
	}
	for i, r := range w.away {
		now := w.now + r.clock
		if w.now%(100*ms) != 0 && !r.Lease.Urgent(now) {
			continue
		}
		if a, due := r.Lease.Due(now); due {
			w.send(letter{from: -2 - i, to: -1, sent: now, ask: &a})
		}
	}
}

func (w *world) deliver(l letter) {
	switch {
	case l.ask != nil && l.to == -1:
		if w.home.down {
			return
		}
		t := OfNodes()
		if l.from < 0 {
			t = OfRegions()
		}
		l.grant = w.home.Grant(w.now-w.home.born, w.day, w.limit, *l.ask, t, w.r.Float64())
	case l.ask != nil:
		r := w.away[-2-l.to]
		l.grant = r.Grant(w.now+r.clock, w.lost(r.heard, r.clock), 1/float64(1+len(w.away)), *l.ask, OfNodes(), w.r.Float64())
	case l.to >= 0:
		n := w.nodes[l.to]
		if n.boot != l.boot || n.frozen {
			return
		}
		if n.awaits(l.sent) {
			n.Granted(w.now+n.clock, l.sent, l.grant)
			n.heard, n.asked = w.now, 0
		}
		w.resume(n)
		return
	default:
		r := w.away[-2-l.to]
		if r.Lease.awaits(l.sent) {
			r.Lease.Granted(w.now+r.clock, l.sent, l.grant)
			r.heard = w.now
		}
		return
	}
	w.send(letter{from: l.to, to: l.from, boot: l.boot, sent: l.sent, grant: l.grant})
}

// outstanding is all that is on lease or on its way, and all that is owed.
func (w *world) outstanding() (tokens, debt float64) {
	add := func(l *Lease) {
		t, d := l.Outstanding()
		tokens, debt = tokens+float64(t), debt+float64(d)
	}
	for _, n := range w.nodes {
		add(&n.Lease)
	}
	for _, r := range w.away {
		add(&r.Lease)
	}
	for _, l := range w.mail {
		tokens += float64(l.grant.Tokens)
		if l.ask != nil {
			tokens += float64(l.ask.Back)
			debt += float64(l.ask.Debt)
		}
	}
	return tokens, debt + max(0, -w.home.tokens)
}

// awaits says whether the answer to that Ask still counts.
func (l *Lease) awaits(sent int64) bool {
	return slices.ContainsFunc(l.asked, func(p pending) bool { return p.sent == sent })
}

// Outstanding is what the holder may still spend of grants, and what it owes.
func (l *Lease) Outstanding() (tokens, debt int64) { return l.balance, l.debt + l.owed }

func poisson(r *rand.Rand, mean float64) int {
	if mean > 50 {
		return int(max(0, math.Round(mean+math.Sqrt(mean)*r.NormFloat64())))
	}
	k, p, floor := 0, 1.0, math.Exp(-mean)
	for {
		if p *= r.Float64(); p <= floor {
			return k
		}
		k++
	}
}
