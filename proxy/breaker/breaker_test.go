package breaker

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1e9, 0)

func usual() *Rule {
	return &Rule{Failures: 50, Calls: 20, Window: 10 * time.Second, For: 30 * time.Second, Probes: 3, Restore: 10 * time.Second}
}

// tell reports results one by one and opens the breaker as its owner would.
func tell(b *Breaker, r *Rule, n int, ok bool, now time.Time) {
	for range n {
		if b.Done(r, ok, time.Millisecond, now) {
			b.Open(r, now)
		}
	}
}

func TestMoreThanHalfOfTwentyOpenIt(t *testing.T) {
	b, r := new(Breaker), usual()
	tell(b, r, 19, false, start)
	if b.State(r, start) != Closed {
		t.Fatal("open before the twentieth call")
	}
	tell(b, r, 1, false, start)
	if b.State(r, start) != Open || b.Allow(r, 0, start) || !b.Until().Equal(start.Add(r.For)) {
		t.Fatalf("%v until %v", b.State(r, start), b.Until())
	}
	b = new(Breaker)
	for range 500 {
		tell(b, r, 1, true, start)
		tell(b, r, 1, false, start)
	}
	if b.State(r, start) != Closed {
		t.Fatal("half is not more than half")
	}
	b = new(Breaker)
	for i := range 100 { // 19 in any ten seconds
		tell(b, r, 1, false, start.Add(time.Duration(i)*530*time.Millisecond))
	}
	if b.State(r, start.Add(time.Minute)) != Closed {
		t.Fatal("opened by fewer than 20 calls in the window")
	}
}

func opened(r *Rule) *Breaker {
	b := new(Breaker)
	tell(b, r, r.Calls, false, start)
	return b
}

func TestThreeProbesDecide(t *testing.T) {
	r := usual()
	b := opened(r)
	if b.Allow(r, 0, start.Add(r.For-1)) {
		t.Fatal("somebody passed before the time was up")
	}
	now := start.Add(r.For)
	for range 3 {
		if !b.Allow(r, ^uint64(0), now) {
			t.Fatal("a probe may not pass")
		}
	}
	if b.Allow(r, 0, now) {
		t.Fatal("a fourth probe passed")
	}
	b.Done(r, true, 40*time.Second, now) // from before it opened
	b.Cancel()
	if !b.Allow(r, 0, now) || b.Allow(r, 0, now) {
		t.Fatal("a cancelled probe is not made up for by one")
	}
	tell(b, r, 2, true, now.Add(time.Millisecond))
	if b.State(r, now) != Probing {
		t.Fatal("two of three are enough")
	}
	tell(b, r, 1, false, now.Add(time.Millisecond))
	if b.State(r, now) != Open || b.Opened() != 2 || !b.Until().Equal(now.Add(r.For+time.Millisecond)) {
		t.Fatal("a failed probe doesn't open it again")
	}
	now = now.Add(r.For + time.Millisecond)
	for range 3 {
		b.Allow(r, 0, now)
	}
	tell(b, r, 3, true, now.Add(time.Millisecond))
	if b.State(r, now) != Restoring {
		t.Fatal("three good probes don't begin to restore")
	}
}

func TestLostProbesAreSentAgain(t *testing.T) {
	r := usual()
	b, now := opened(r), start.Add(30*time.Second)
	for range 3 {
		b.Allow(r, 0, now)
	}
	if b.Allow(r, 0, now.Add(r.For-1)) || !b.Allow(r, 0, now.Add(r.For)) {
		t.Fatal("probes that nobody reported on block it for ever")
	}
}

// A probe counts although its time, by another clock, is a little longer than the breaker has been probing for.
func TestProbesAreHeardThoughClocksDiffer(t *testing.T) {
	for _, off := range []time.Duration{100 * time.Nanosecond, 5 * time.Millisecond} {
		r := usual()
		b := opened(r)
		now := start.Add(r.For)
		for range r.Probes {
			b.Allow(r, 0, now)
			b.Done(r, true, time.Second+off, now.Add(time.Second))
		}
		if s := b.State(r, now.Add(time.Second)); s != Restoring {
			t.Errorf("%v: %v", off, s)
		}
	}
}

func TestItIsRestoredLittleByLittle(t *testing.T) {
	r, rng := usual(), rand.New(rand.NewPCG(1, 2))
	b, now := opened(r), start.Add(30*time.Second)
	for range 3 {
		b.Allow(r, 0, now)
	}
	tell(b, r, 3, true, now.Add(time.Millisecond))
	now = now.Add(time.Millisecond)
	for after, want := range map[time.Duration]int{0: 100, 2 * time.Second: 200, 5 * time.Second: 500, 9 * time.Second: 900} {
		passed := 0
		for range 1000 {
			if b.Allow(r, rng.Uint64(), now.Add(after)) {
				passed++
			}
		}
		if passed < want-60 || passed > want+60 {
			t.Errorf("%d of 1000 pass after %v", passed, after)
		}
	}
	tell(b, r, 20, false, now.Add(9*time.Second))
	if b.State(r, now.Add(9*time.Second)) != Open {
		t.Fatal("failures while it is restored don't open it")
	}
	now = now.Add(9*time.Second + r.For)
	for range 3 {
		b.Allow(r, 0, now)
	}
	tell(b, r, 3, true, now.Add(time.Millisecond))
	if end := now.Add(r.Restore + time.Millisecond); b.State(r, end) != Closed || !b.Allow(r, ^uint64(0), end) {
		t.Fatal("not closed at the end")
	}
}

// Whatever happens in whatever order, nobody passes while it is open, and everybody while it is closed.
func TestNobodyPassesAnOpenBreaker(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, r, now := new(Breaker), usual(), start
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 3000).Draw(t, "ms")) * time.Millisecond)
			before := b.State(r, now)
			switch rapid.IntRange(0, 2).Draw(t, "what") {
			case 0:
				passed := b.Allow(r, rapid.Uint64().Draw(t, "random"), now)
				if before == Open && passed || before == Closed && !passed {
					t.Fatalf("%v: passed %v", before, passed)
				}
			case 1:
				tell(b, r, rapid.IntRange(1, 25).Draw(t, "n"), rapid.Bool().Draw(t, "ok"), now)
			case 2:
				b.Cancel()
			}
		}
	})
}

func TestNothingAllocates(t *testing.T) {
	b, r := new(Breaker), usual()
	if n := testing.AllocsPerRun(1000, func() {
		b.Allow(r, 1, start)
		b.Done(r, true, time.Millisecond, start)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func TestOffIsClosed(t *testing.T) {
	b, r := new(Breaker), usual()
	r.Off = true
	tell(b, r, 100, false, start)
	if !b.Allow(r, 0, start) || b.State(r, start) != Closed {
		t.Fatal("a breaker that is off opened")
	}
}
