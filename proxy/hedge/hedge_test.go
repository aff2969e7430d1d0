package hedge

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/proxy/retry"
)

var start = time.Unix(1e9, 0)

func TestBucketsHoldWhatFallsIntoThem(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := time.Duration(rapid.Int64Range(1<<first, int64(time.Minute)).Draw(t, "d"))
		i := bucket(d)
		if upper(i) <= d || i > 0 && upper(i-1) > d || float64(upper(i)) > float64(d)*1.13 {
			t.Fatalf("%v is in bucket %d, up to %v", d, i, upper(i))
		}
	})
	if bucket(0) != 0 || bucket(-1) != 0 || bucket(time.Hour) != buckets-1 {
		t.Fatal("the ends")
	}
}

func TestAfterIsTheNinetyFifthOfRecentAnswers(t *testing.T) {
	tail, now := new(Tail), start
	if _, ok := tail.After(now); ok {
		t.Fatal("known before anything was seen")
	}
	for i := range 1000 {
		took := 10 * time.Millisecond
		if i%10 == 9 {
			took = 100 * time.Millisecond
		}
		if i%20 == 9 {
			took = 20 * time.Millisecond
		}
		tail.Observe(took, now)
	}
	if got, ok := tail.After(now.Add(time.Second)); !ok || got < 20*time.Millisecond || got > 23*time.Millisecond {
		t.Fatalf("%v, %v", got, ok)
	}
	now = now.Add(20 * time.Second)
	for range enough - 1 {
		tail.Observe(time.Millisecond, now)
	}
	if got, ok := tail.After(now.Add(time.Second)); ok {
		t.Fatalf("%v by too few recent answers", got)
	}
	tail.Observe(time.Millisecond, now)
	if got, ok := tail.After(now.Add(2 * time.Second)); !ok || got > 1200*time.Microsecond {
		t.Fatalf("what was 20 s ago counts: %v, %v", got, ok)
	}
}

// I8: of answers that take about 10 ms one in a hundred takes ten times as long. Hedging halves the p99 at least, and costs 5%
// more requests at the most.
func TestHedgesHalveATailOfOnePercentForFivePercentMoreLoad(t *testing.T) {
	r, tail, budget := rand.New(rand.NewPCG(3, 4)), new(Tail), new(retry.Budget)
	answer := func() time.Duration {
		took := 8*time.Millisecond + time.Duration(r.ExpFloat64()*float64(2*time.Millisecond))
		if r.IntN(100) == 0 {
			took *= 10
		}
		return took
	}
	var plain, hedged []time.Duration
	extra, n := 0, 40_000
	for i := range n {
		now := start.Add(time.Duration(i) * time.Millisecond)
		budget.Original(now)
		one := answer()
		plain = append(plain, one)
		after, ok := tail.After(now)
		tail.Observe(one, now)
		if ok && one > after && budget.Hedge(now) {
			extra++
			one = min(one, after+answer())
		}
		hedged = append(hedged, one)
	}
	p99 := func(all []time.Duration) time.Duration {
		slices.Sort(all)
		return all[len(all)*99/100]
	}
	before, with := p99(plain[n/10:]), p99(hedged[n/10:])
	if with > before/2 || extra*20 > n {
		t.Fatalf("p99 %v with %d hedges for %d requests, %v without", with, extra, n, before)
	}
	t.Logf("p99 %v with %.1f%% more load, %v without", with, 100*float64(extra)/float64(n), before)
}

func TestNothingAllocates(t *testing.T) {
	tail, now := new(Tail), start
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Millisecond)
		tail.Observe(time.Millisecond, now)
		tail.After(now)
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}
