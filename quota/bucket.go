package quota

import "math"

// maxDebt is how many seconds of its rate a bucket may owe at most; holders that behave owe less than one. Nobody who speaks
// for a node can shut a caller out for longer.
const maxDebt = 60

// demand is what all holders of a key ask for, without knowing any of them.
type demand struct {
	smooth float64 // tries an interval over all holders
	sum    float64 // of the interval under way
	active float64 // holders that ask
	asked  float64 // of the interval under way
	began  int64   // when the interval under way did
}

// hear counts an Ask and gives the holder's part of all demand.
func (d *demand) hear(now int64, a Ask, interval int64) (share float64) {
	if past := now - d.began; past >= interval {
		old := math.Exp2(-float64(past / interval))
		d.smooth = old*d.smooth + (1-old)*d.sum*float64(interval)/float64(past)
		d.active = max(.8*d.active, d.asked)
		d.sum, d.asked, d.began = 0, 0, now
	}
	tries := float64(a.Tries) * float64(interval) / float64(min(max(a.Elapsed, interval), 2*interval))
	d.sum += tries
	d.asked++
	return min(tries/max(d.all(), 1e-9), 1)
}

func (d *demand) all() float64     { return max(d.smooth, d.sum) }
func (d *demand) holders() float64 { return max(d.active, d.asked, 1) }

// portion is what an Ask gets when there are free tokens for everybody: all that it wants, or, when they are scarce, the
// holder's share of what an interval brings, and all that is more than that: others have left it. What is left of a token after
// that is drawn for, since a hundred holders who share two tokens would get none by rounding; chance is uniform in [0, 1).
func (d *demand) portion(want, free, fresh, share, chance float64) float64 {
	g := want
	if free < max(want, d.all()) {
		g = min(want, share*max(fresh, free)+max(free-fresh, 0))
		whole := math.Floor(g)
		if chance < g-whole {
			whole++
		}
		g = whole
	}
	return math.Floor(min(max(g, 0), max(free, 0)))
}

// atStart is the part of a burst that a bucket holds when its grantor starts, at least one token: a grantor that has lost its
// memory gives no more than that twice, and doesn't refuse everybody for as long as a slow limit takes to fill.
const atStart = 0.5

// Bucket is the one that every token of a key comes from. The zero value was filled to atStart at instant 0 and has filled up since, so
// that a grantor that has been up for a while begins with full buckets; a bucket that is Full may be forgotten.
type Bucket struct {
	demand
	begun  bool
	tokens float64 // below 0: overdrafts, which are paid before anything is granted
	last   int64

	// Of a daily quota.
	used float64
	day  int64 // days since 1970 that used is of
}

// Full says whether a new Bucket would be no different.
func (b *Bucket) Full(now, day int64, l Limit) bool {
	if l.Day > 0 {
		return b.Used(day) == 0
	}
	return !b.begun || b.tokens+l.Rate*seconds(now-b.last) >= min(l.Burst, l.atStart()+l.Rate*seconds(now))
}

// Rush is how many tries a second the key has.
func (b *Bucket) Rush(t Terms) float64 { return b.all() / seconds(t.Interval) }

// Used is what has been spent and is on lease of the day's quota.
func (b *Bucket) Used(day int64) uint64 {
	if b.day != day {
		return 0
	}
	return uint64(b.used)
}

// Resume goes on where a former grantor ended.
func (b *Bucket) Resume(day int64, used uint64) { b.day, b.used = day, float64(used) }

// fill brings the bucket to now.
func (b *Bucket) fill(now, day int64, l Limit) {
	if l.Day > 0 {
		if b.day != day {
			b.day, b.used = day, 0
		}
		b.tokens = float64(l.Day) - b.used
		return
	}
	if !b.begun {
		b.begun, b.tokens = true, l.atStart()
	}
	b.tokens = min(l.Burst, b.tokens+l.Rate*seconds(max(now-b.last, 0)))
	b.last = max(now, b.last)
}

func (l Limit) atStart() float64 { return max(1, atStart*l.Burst) }

// spend takes tokens out, or, below zero, puts them back.
func (b *Bucket) spend(n float64, l Limit) {
	if l.Day > 0 {
		b.used = max(b.used+n, 0)
		b.tokens = float64(l.Day) - b.used
		return
	}
	b.tokens = max(min(l.Burst, b.tokens-n), -maxDebt*l.Rate-l.Burst)
}

// Grant settles one holder's Ask. Day is days since 1970 in UTC; only daily quotas look at it.
func (b *Bucket) Grant(now, day int64, l Limit, a Ask, t Terms, chance float64) Grant {
	b.fill(now, day, l)
	share := b.hear(now, a, t.Interval)
	b.spend(float64(a.Debt-a.back(b.day)), l)
	fresh, rate := l.Rate*seconds(t.Interval), l.Rate
	if l.Day > 0 {
		fresh, rate = b.tokens, max(b.tokens, 0)/dailyPart/overdraft
	}
	g := Grant{Share: share, Day: b.day, Calm: b.tokens >= b.all() && b.tokens > 0 || b.all() <= .9*fresh && b.tokens > 0}
	if !l.Strict {
		g.Credit = int64(max(1, math.Floor(overdraft*rate/b.holders())))
	}
	n := b.portion(float64(a.Want), b.tokens, fresh, share, chance)
	b.spend(n, l)
	g.Tokens, g.Left = int64(n), int64(max(b.tokens, 0))
	if b.tokens < 1 && l.Day == 0 {
		g.Pause = int64(min((1-b.tokens)/l.Rate*1e9, maxPause))
	}
	return g
}
