package quota

import (
	"math"
	"slices"
)

// maxParked is how many requests of one key wait for one grant, maxWaits how often one may.
const (
	maxParked = 64
	maxWaits  = 2
)

// pulls is how many Asks may be saved up for the moment at which traffic suddenly comes to a holder; one an interval.
const pulls = 4

// Of a daily quota, which no rate bounds, a holder keeps a stock of dailyStock intervals, as far as all holders together have
// no more than one in dailyPart of what is left: it is what their death burns. Its leases don't end by time.
const (
	dailyStock = 20
	dailyPart  = 32
	dailyTTL   = 3600 * 1000 * ms
)

// Verdict is what becomes of one request.
type Verdict uint8

// The verdicts. Wait: a grant is due; ask again when it is there, or late. Alone: admitted by the local share, since the
// grantor is lost or late; no token of a lease was spent.
const (
	Refuse Verdict = iota
	Admit
	Alone
	Wait
)

// Lease is what one holder has of one key. The zero value holds nothing and has heard nothing.
type Lease struct {
	Limit Limit
	Terms Terms

	balance int64 // spent from until expires
	expires int64
	target  int64 // what it wants to hold
	tries   int64 // since the last Ask
	first   int64 // when the first of them came
	demand  float64
	last    int64     // when the last Ask was sent
	asked   []pending // those that have not been answered, oldest first; at most Terms.Asks
	lag     int64     // how long the last answer took
	pulls   float64
	parked  int64

	// As the last Grant said, believed until known.
	known  int64
	share  float64
	calm   bool
	credit int64
	left   int64
	day    int64
	pause  int64 // an instant

	debt int64 // spent without a grant and not yet told
	owed int64 // told in the Asks that are on their way

	shut int64 // until this instant the grantor has no room for the key

	own   float64 // tokens of the local bucket, while the grantor is lost
	ownAt int64
}

// pending is an Ask on its way: when it was sent, what it wants and what it pays.
type pending struct{ sent, want, debt int64 }

// Take asks for one request. Lost is the instant from which on the grantor doesn't answer, 0 = it does; weight is the
// holder's part of all holders, in case it is. Waits is how often the request has waited: it may twice, since the first
// answer may have been given by a Branch that waits for its own.
func (l *Lease) Take(now, lost int64, weight float64, waits int) Verdict {
	if waits == 0 {
		if l.tries == 0 {
			l.first = now
		}
		l.tries++
	}
	if lost == 0 && now < l.shut {
		lost = now - l.Terms.TTL
	}
	switch {
	case l.balance >= 1 && now < l.expires:
		l.balance--
		return Admit
	case lost != 0:
		return l.alone(now, lost, weight)
	case now < l.known && l.calm && l.debt < l.credit:
		l.debt++
		return Admit
	case l.mayWait(now, waits):
		l.parked++
		return Wait
	case (l.calm || now >= l.known && !l.Over()) && l.ahead(now, weight):
		l.debt++
		return Admit
	}
	return Refuse
}

// ahead says whether a request is admitted ahead of an answer that is late, or that too many wait for: of a key that is not
// known to be scarce, within the local share. It will be paid.
func (l *Lease) ahead(now int64, weight float64) bool {
	if l.Limit.Strict {
		return false
	}
	if l.Limit.Day > 0 { // no more than an interval's demand, or a few
		return float64(l.debt+l.owed) < max(min(l.demand, l.budget()), l.Limit.Burst)
	}
	if l.local(now, now, weight); l.own < 1 {
		return false
	}
	l.own--
	return true
}

func (l *Lease) mayWait(now int64, waits int) bool {
	return (l.calm || now >= l.known) && l.parked < maxParked && waits < maxWaits && (l.flying() || l.saved(now) >= 1)
}

// GiveBack returns the token of an Admit, for a request that another limit refused.
func (l *Lease) GiveBack() {
	if l.debt > 0 {
		l.debt--
	} else {
		l.balance++
	}
}

// alone decides without the grantor: by what is left of a daily quota, as far as it was the holder's, else by the local rate.
func (l *Lease) alone(now, lost int64, weight float64) Verdict {
	if l.Limit.Strict {
		return Refuse
	}
	if l.budget() >= 1 {
		l.debt++
		return Alone
	}
	if l.local(now, lost, weight); l.own < 1 {
		return Refuse
	}
	l.own--
	if l.Limit.Day > 0 {
		l.debt++
	}
	return Alone
}

// budget is what is left of the holder's own part of a daily quota, while its grantor is lost; 0 of a rate.
func (l *Lease) budget() float64 {
	if l.Limit.Day == 0 {
		return 0
	}
	return max(math.Floor(ownPart*l.share*float64(l.left))-float64(l.debt+l.owed), 0)
}

// local fills the bucket of a holder whose grantor is lost. It holds what its rate brings in an interval, at least one.
func (l *Lease) local(now, lost int64, weight float64) {
	r := l.Limit.local(now-lost, l.share, weight)
	l.own = min(max(1, r*seconds(l.Terms.Interval)), l.own+r*seconds(max(now-l.ownAt, 0)))
	l.ownAt = now
}

// saved is how many Asks may be sent now.
func (l *Lease) saved(now int64) float64 {
	return min(pulls, l.pulls+float64(now-l.last)/float64(l.Terms.Interval))
}

// Urgent says whether requests wait for an Ask that may be sent ahead of its time.
func (l *Lease) Urgent(now int64) bool { return l.parked > 0 && !l.flying() && l.saved(now) >= 1 }

func (l *Lease) flying() bool { return len(l.asked) > 0 }

// Quiet says whether there is nothing to tell, nothing to give back, and nothing to be heard. A quiet Lease may be left alone,
// and, once it is no longer known, forgotten.
func (l *Lease) Quiet(now int64) bool { return !l.flying() && l.told(now) }

// told says whether there is nothing to tell, and nothing to give back.
func (l *Lease) told(now int64) bool {
	return l.tries == 0 && l.debt == 0 && l.demand == 0 && l.parked == 0 && (l.balance == 0 || now >= l.expires)
}

// Forgettable says whether a new Lease would be no better for anybody.
func (l *Lease) Forgettable(now int64) bool { return l.Quiet(now) && now >= l.known && now >= l.pause }

// RetryAfter is how long it is until a token may be there, in ns.
func (l *Lease) RetryAfter(now int64) int64 { return max(l.pause-now, l.Terms.Interval) }

// Over says whether a daily quota is spent, as far as the holder has heard.
func (l *Lease) Over() bool { return l.Limit.Day > 0 && l.known > 0 && !l.calm && l.left == 0 }

// Spare is what could be admitted at once.
func (l *Lease) Spare(now int64) int64 {
	n := int64(0)
	if now < l.expires {
		n = l.balance
	}
	if now < l.known && l.calm {
		n += max(l.credit-l.debt, 0)
	}
	return n
}

// Due gives the Ask to send now, if one is due. The caller sends it, and calls Granted or Failed.
func (l *Lease) Due(now int64) (a Ask, due bool) {
	for l.flying() && now-l.asked[0].sent >= l.Terms.TTL {
		l.Failed(l.asked[0].sent)
	}
	past := now - l.last
	if len(l.asked) >= l.Terms.Asks || past < l.Terms.Interval/2 && !l.Urgent(now) {
		return Ask{}, false
	}
	ending := now+l.Terms.Interval >= l.expires
	low := l.balance <= l.target/2 || ending || l.Limit.Day > 0 // whose stock must not hide its demand
	idle := ending && l.tries == 0 && l.balance > 0             // a slow bucket would miss what is burnt
	if !(l.parked > 0 || l.tries > 0 && low || idle || past >= 2*l.Terms.Interval && !l.told(now)) {
		return Ask{}, false
	}
	if l.tries > 0 { // silence before it doesn't thin a burst
		past = min(past, now-l.first+l.Terms.Interval)
	}
	l.estimate(past)
	if idle {
		l.demand, l.target = 0, 0
	}
	if now >= l.expires {
		l.balance = 0
	}
	a = Ask{Tries: l.tries, Elapsed: past, Back: max(l.balance-l.target, 0), Debt: l.debt, Day: l.day}
	l.balance -= a.Back
	a.Want = max(l.target+l.parked-l.balance-l.wanted(), 0)
	l.pulls = l.saved(now) - 1
	l.asked = append(l.asked, pending{now, a.Want, a.Debt})
	l.tries, l.debt, l.owed, l.last = 0, 0, l.owed+l.debt, now
	return a, true
}

// estimate says how much is to be held: what may come until the answer after the next Ask, and a little more.
func (l *Lease) estimate(past int64) {
	i := float64(l.Terms.Interval)
	x := float64(l.tries) * i / min(max(float64(past), .3*i), 4*i)
	l.demand = max(.7*l.demand+.3*x, .8*x)
	if l.tries == 0 && (l.demand < .5 || l.demand > 4) { // so many don't pause by chance: they have gone elsewhere
		l.demand = 0
	}
	n := l.demand * (1 + float64(l.lag)/i)
	if l.Limit.Day > 0 {
		n = max(n, min(n*dailyStock, l.share*float64(l.left)/dailyPart))
	}
	l.target = int64(math.Ceil(n + 1.2*math.Sqrt(n)))
}

// wanted is what the Asks on their way want.
func (l *Lease) wanted() (n int64) {
	for _, p := range l.asked {
		n += p.want
	}
	return n
}

// landed takes the Ask that was sent at that instant off those on their way. It says whether it was one of them.
func (l *Lease) landed(sent int64) (p pending, ok bool) {
	i := slices.IndexFunc(l.asked, func(p pending) bool { return p.sent == sent })
	if i < 0 {
		return pending{}, false
	}
	p = l.asked[i]
	l.asked = slices.Delete(l.asked, i, i+1)
	l.owed -= p.debt
	l.parked = 0
	return p, true
}

// Granted takes the answer to the Ask that was sent at the instant sent. The tokens of one that was given up meanwhile are burnt.
func (l *Lease) Granted(now, sent int64, g Grant) {
	if _, ok := l.landed(sent); !ok {
		return
	}
	if now >= l.expires || l.day != 0 && g.Day != l.day {
		l.balance = 0
	}
	l.balance += g.Tokens
	l.expires, l.known = sent+l.Terms.TTL, now+3*l.Terms.Interval
	if l.Limit.Day > 0 {
		l.expires = sent + dailyTTL
	}
	l.share, l.calm, l.credit, l.left, l.day, l.pause = g.Share, g.Calm, g.Credit, g.Left, g.Day, now+g.Pause
	l.lag = min(now-sent, l.Terms.TTL)
}

// Failed says that the Ask that was sent at the instant sent will not be answered. It may have arrived: what it gave back stays
// given, and the debt in it is told again, so that it is paid at least once.
func (l *Lease) Failed(sent int64) {
	p, _ := l.landed(sent)
	l.debt += p.debt
}

// Unserved says that the grantor has no room for the key: for the next second it is served as if there were no grantor.
func (l *Lease) Unserved(now, sent int64) {
	l.Failed(sent)
	l.shut = now + 1000*ms
}
