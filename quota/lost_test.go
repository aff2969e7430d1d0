package quota

import (
	"math/rand/v2"
	"testing"
	"time"
)

// H4: whoever can't reach the service goes on with a local share, together at most 1.5 times the limit; strict limits deny.
func TestWithoutAGrantorNoMoreThanOneAndAHalfTimesTheLimitIsAdmitted(t *testing.T) {
	for _, strict := range []bool{false, true} {
		for _, regions := range []int{1, 3} {
			w := newWorld(5, Limit{Rate: 1000, Burst: 200, Strict: strict}, regions, 50)
			w.alone = true
			r := rand.New(rand.NewPCG(1, 2))
			load := func(ns int64) (admitted float64) {
				before := w.admitted
				for at := int64(0); at < ns; at += step {
					w.tick()
					for _, n := range w.nodes[:20] { // those with the load keep a part of it
						for range poisson(r, 100*seconds(step)) {
							w.request(n)
						}
					}
				}
				return w.admitted - before
			}
			load(3000 * ms)
			w.home.down = true
			w.deaf = func(from, to int) bool { return from >= 0 && to != -1 && regions > 1 && from%2 == 0 }
			spent := load(2000 * ms)
			lost := load(10_000*ms) / 10
			if strict && lost > 0 {
				t.Errorf("%d regions, strict: %.0f/s admitted without a grantor", regions, lost)
			}
			if !strict && (lost > 1.5*1000+50 || lost < 300) {
				t.Errorf("%d regions: %.0f/s admitted without a grantor, of a limit of 1000/s", regions, lost)
			}
			t.Logf("%d regions, strict %v: %.0f in the first 2 s, then %.0f/s", regions, strict, spent, lost)
			w.home.down, w.deaf = false, func(int, int) bool { return false }
			load(1000 * ms)
			if again := load(10_000*ms) / 10; again < 950 || again > 1050 {
				t.Errorf("%d regions, strict %v: %.0f/s after the grantor is back", regions, strict, again)
			}
		}
	}
}

// A daily quota is given out to the last request and no further, is the holder's own part while the grantor is lost, and
// new at midnight.
func TestADailyQuotaIsSpentToItsEndAndNewTheNextDay(t *testing.T) {
	for _, regions := range []int{1, 3} {
		w := newWorld(9, PerDay(20_000), regions, 12)
		w.alone, w.day = true, 20_000
		r := rand.New(rand.NewPCG(1, 2))
		load := func(ns int64) (admitted float64) {
			before := w.admitted
			for at := int64(0); at < ns; at += step {
				w.tick()
				for _, n := range w.nodes {
					for range poisson(r, 200*seconds(step)) {
						w.request(n)
					}
				}
			}
			return w.admitted - before
		}
		first := load(4000 * ms)
		w.home.down = true
		without := load(60_000 * ms)
		if left := 20_000 - first; without > left || without < left/4 {
			t.Errorf("%d regions: %.0f admitted while the grantor was lost, %.0f were left", regions, without, left)
		}
		w.home.down = false
		total := first + without + load(20_000*ms)
		if total < 19_900 || total > 20_000+240 { // what a sync interval brings
			t.Errorf("%d regions: %.0f admitted of 20000", regions, total)
		}
		if more := load(5000 * ms); more > 0 {
			t.Errorf("%d regions: %.0f admitted when all was spent", regions, more)
		}
		w.day++
		if more := load(1000 * ms); more < 2000 {
			t.Errorf("%d regions: %.0f admitted of 2400 after midnight", regions, more)
		}
		t.Logf("%d regions: %.0f, %.0f without the grantor, %.0f in all", regions, first, without, total)
	}
}

// What is left of yesterday's leases is no part of the new day's quota: none of it is given out a second time, wherever it lies.
func TestYesterdaysLeasesAreNoGiftToTheNewDay(t *testing.T) {
	const quota = 40_000
	for _, regions := range []int{1, 3} {
		w := newWorld(3, PerDay(quota), regions, 12)
		w.day = 20_000
		r := rand.New(rand.NewPCG(1, 2))
		load := func(ns int64, busy []*simNode) (admitted float64) {
			before := w.admitted
			for at := int64(0); at < ns; at += step {
				w.tick()
				for _, n := range busy {
					for range poisson(r, 300*seconds(step)) {
						w.request(n)
					}
				}
			}
			return w.admitted - before
		}
		load(5000*ms, w.nodes[:6])
		held, _ := w.outstanding()
		w.day++ // and others have the load from now on
		spent := load(30_000*ms, w.nodes[6:])
		if held < 500 {
			t.Fatalf("%d regions: only %.0f on lease at midnight", regions, held)
		}
		// What is told late, of a sync interval of those with the load, is yesterday's.
		if spent > quota+6*300*.1 || spent < .98*quota {
			t.Errorf("%d regions: %.0f admitted of the new day's %d; %.0f of yesterday's were on lease", regions, spent, quota, held)
		}
		t.Logf("%d regions: %.0f on lease at midnight, %.0f admitted the next day", regions, held, spent)
	}
}

func TestAGrantorThatHasJustStartedGivesHalfABurstTwice(t *testing.T) {
	l := Limit{Rate: 1000, Burst: 200}
	var b Bucket
	ask := Ask{Tries: 300, Elapsed: 100 * ms, Want: 300}
	if g := b.Grant(0, 0, l, ask, OfNodes(), 0); g.Tokens != 100 || g.Calm {
		t.Errorf("at its start it gave %+v", g)
	}
	var slow Bucket
	if g := slow.Grant(0, 0, Per(1, time.Hour), ask, OfNodes(), 0); g.Tokens != 1 {
		t.Errorf("of one an hour it gave %+v at its start", g)
	}
	var later Bucket
	if g := later.Grant(1000*ms, 0, l, ask, OfNodes(), 0); g.Tokens != 200 {
		t.Errorf("after a second it gave %+v", g)
	}
	if later.Full(1000*ms, 0, l) || !later.Full(1200*ms, 0, l) || b.Full(99*ms, 0, l) || !b.Full(201*ms, 0, l) || !(&Bucket{}).Full(0, 3, PerDay(5)) {
		t.Error("Full")
	}
}

func TestNoHolderCanShutACallerOutForLong(t *testing.T) {
	l := Limit{Rate: 10, Burst: 10}
	var b Bucket
	b.Grant(10_000*ms, 0, l, Ask{Debt: maxTokens}, OfNodes(), 0)
	if g := b.Grant(72_000*ms, 0, l, Ask{Tries: 1, Want: 1}, OfNodes(), 0); g.Tokens != 1 {
		t.Errorf("a minute later: %+v", g)
	}
}

func TestWhatAnotherProcessSaysIsBounded(t *testing.T) {
	for _, l := range []Limit{{}, {Rate: -1, Burst: 1}, {Rate: 1}, {Rate: 1, Burst: 1, Scope: scopes}, {Rate: 1e300, Burst: 1}, {Rate: 1, Burst: 1, Day: 1 << 60}} {
		if l.Valid() {
			t.Errorf("%+v", l)
		}
	}
	for _, a := range []Ask{{Tries: -1}, {Want: 1 << 60}, {Back: -1}, {Debt: -1}, {Elapsed: -1}} {
		if a.Valid() {
			t.Errorf("%+v", a)
		}
	}
	for _, g := range []Grant{{Tokens: -1}, {Share: 2}, {Credit: -1}, {Left: -1}, {Pause: -1}, {Pause: 1 << 60}} {
		if g.Valid() {
			t.Errorf("%+v", g)
		}
	}
	if !(Limit{Rate: 1, Burst: 1}).Valid() || !(Ask{Want: 5}).Valid() || !(Grant{Tokens: 5, Share: 1}).Valid() || !PerDay(1).Valid() {
		t.Error("what can be is refused")
	}
}

func TestADayIsNotCountedTwice(t *testing.T) {
	for _, c := range []struct{ today, last, want int64 }{{100, 0, 100}, {100, 99, 100}, {100, 100, 100}, {100, 101, 101}, {100, 102, 100}} {
		if got := Day(time.Unix(c.today*86400+5, 0), c.last); got != c.want {
			t.Errorf("on day %d after %d: %d", c.today, c.last, got)
		}
	}
}

func TestNamesAreNotRunTogether(t *testing.T) {
	parts := []string{"a", "b"}
	if Name("a", "bc") == Name("ab", "c") || Name("a") == Name("a", "") || Name(parts...) != Name("a", "b") {
		t.Error("names")
	}
}
