package quota

import "math"

// coldCredit is the part of a burst that a region may spend of a worldwide limit before it has heard of the key: the answer
// of the region that owns it may be an ocean away, and no request waits for it.
const coldCredit = 0.5

// Branch grants a region's nodes what the region has on lease from the one that owns the key.
type Branch struct {
	demand
	Lease Lease
}

// Grant settles one node's Ask. Terms are those of the nodes; lost and weight are as in Lease.Take.
func (b *Branch) Grant(now, lost int64, weight float64, a Ask, t Terms, chance float64) Grant {
	l := &b.Lease
	share := b.hear(now, a, t.Interval)
	if l.tries == 0 {
		l.first = now
	}
	l.tries += a.Tries
	b.settle(now, lost, a)
	free := b.free(now, lost, weight)
	cold := lost == 0 && now >= l.known && now >= l.pause && !l.Over() // what was scarce is so until it may be there again
	g := Grant{Share: share * l.share, Left: l.left, Day: l.day, Pause: max(l.pause-now, 0)}
	if cold {
		g.Share = share
	}
	g.Calm = cold || free >= b.all() && free > 0 || lost == 0 && now < l.known && l.calm
	n := b.portion(float64(a.Want), free, free, share, chance)
	rest := n - b.fromBalance(now, n)
	if lost != 0 {
		b.goAlone(rest)
	} else {
		n += b.advance(now, float64(a.Want)-n, cold)
		l.parked = min(l.parked+max(a.Want-int64(n), 0), maxParked)
	}
	g.Credit = b.credit(now, lost, weight)
	g.Tokens = int64(n)
	return g
}

// credit is each node's part of what they may all spend in advance.
func (b *Branch) credit(now, lost int64, weight float64) int64 {
	l, n := &b.Lease, 0.0
	switch {
	case l.Limit.Strict:
		return 0
	case lost != 0 && l.Limit.Day == 0:
		n = overdraft * l.Limit.local(now-lost, l.share, weight)
	case now < l.known:
		n = float64(l.credit)
	}
	return int64(max(1, math.Floor(n/b.holders())))
}

// settle takes back what a node gives back, and pays its debt, as far as it goes. While the owner of a rate is lost, the
// region's own part pays the rest. What was granted in advance and comes back lives as if it had been on lease.
func (b *Branch) settle(now, lost int64, a Ask) {
	l, back := &b.Lease, a.back(b.Lease.day)
	if now >= l.expires {
		l.balance = 0
		if back > 0 {
			l.expires = now + l.Terms.TTL
		}
	}
	l.balance += back
	paid := min(l.balance, a.Debt)
	l.balance -= paid
	if lost != 0 && l.Limit.Day == 0 {
		l.own -= float64(a.Debt - paid)
	} else {
		l.debt += a.Debt - paid
	}
}

// free is what can be granted now.
func (b *Branch) free(now, lost int64, weight float64) (free float64) {
	l := &b.Lease
	if now < l.expires {
		free = float64(l.balance)
	}
	if lost != 0 && !l.Limit.Strict {
		l.local(now, lost, weight)
		free += l.own + l.budget()
	}
	return free
}

// goAlone spends n tokens that the lost grantor did not give.
func (b *Branch) goAlone(n float64) {
	l := &b.Lease
	budget := l.budget()
	l.own -= max(n-budget, 0)
	if l.Limit.Day > 0 {
		l.debt += int64(n)
	}
}

// fromBalance spends up to n of what is on lease and says how many that were.
func (b *Branch) fromBalance(now int64, n float64) float64 {
	l := &b.Lease
	if now >= l.expires {
		return 0
	}
	k := min(int64(n), l.balance)
	l.balance -= k
	return float64(k)
}

// advance is what is granted without having it: the overdraft of a calm key, a few for a key that is not known yet.
func (b *Branch) advance(now int64, want float64, cold bool) float64 {
	l := &b.Lease
	credit := int64(0)
	switch {
	case cold && l.Limit.Strict:
		credit = 1
	case cold:
		credit = int64(max(1, math.Floor(coldCredit*l.Limit.Burst)))
	case l.calm:
		credit = l.credit
	}
	n := min(max(int64(want), 0), max(credit-l.debt-l.owed, 0))
	l.debt += n
	return float64(n)
}
