package limit

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

// per is a limit of n requests in the period, with a burst as nodes have it.
func per(n uint64, period time.Duration) Limit {
	return PerSecond(float64(n)/period.Seconds(), max(float64(n)/5, min(float64(n), 20)))
}

func TestAdmittedNeverExceedsRateTimesTimePlusBurst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := per(rapid.Uint64Range(1, 5000).Draw(t, "requests"), rapid.SampledFrom([]time.Duration{time.Second, time.Minute, time.Hour}).Draw(t, "per"))
		table := New(64)
		k := table.Key(User, "acme", "r", "u")
		now := rapid.Int64Range(0, 1<<60).Draw(t, "start")
		var times []int64
		for range rapid.IntRange(1, 300).Draw(t, "n") {
			now += rapid.Int64Range(0, 3*l.interval).Draw(t, "step")
			if table.Take(k, l, now).OK {
				times = append(times, now)
			}
		}
		for i := range times {
			for j := i; j < len(times); j++ {
				if most := uint64((times[j]-times[i])/l.interval) + l.Burst; uint64(j-i+1) > most {
					t.Fatalf("%d admitted in %d ns, at most %d at an interval of %d ns and burst %d", j-i+1, times[j]-times[i], most, l.interval, l.Burst)
				}
			}
		}
	})
}

func TestRetryAfterIsExactlyWhenTheNextRequestIsAdmitted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := per(rapid.Uint64Range(1, 1000).Draw(t, "requests"), time.Second)
		table := New(64)
		k := table.Key(Tenant, "acme", "", "")
		now := int64(1)
		d := table.Take(k, l, now)
		for d.OK {
			d = table.Take(k, l, now)
		}
		if table.Take(k, l, now+int64(d.RetryAfter)-1).OK {
			t.Fatal("admitted before RetryAfter")
		}
		if !table.Take(k, l, now+int64(d.RetryAfter)).OK {
			t.Fatal("refused at RetryAfter")
		}
	})
}

// A goroutine may be held up between the clock and the bucket: by the scheduler, or because the whole process was stopped.
func TestWhoWasHeldUpAfterReadingTheClockIsNeitherRefusedNorFreshensTheBucket(t *testing.T) {
	table, l := New(64), PerSecond(1000, 200)
	k, crowd := table.Key(Consumer, "acme", "", "c"), int64(time.Second)
	table.Take(k, l, crowd)
	if d := table.Take(k, l, crowd-int64(900*time.Millisecond)); !d.OK || d.Remaining < 190 {
		t.Errorf("a caller from 0.9 s ago, of a bucket that is nearly full: %+v", d)
	}
	for table.Take(k, l, crowd).OK {
	}
	if d := table.Take(k, l, crowd-int64(900*time.Millisecond)); d.OK {
		t.Errorf("a caller from 0.9 s ago was admitted by an empty bucket")
	}
	if d := table.Take(k, l, crowd); d.OK {
		t.Errorf("a caller from 0.9 s ago filled an empty bucket again: %+v", d)
	}
}

func TestRemainingCountsDownToTheRefusal(t *testing.T) {
	l, table := per(20, time.Second), New(64)
	k := table.Key(User, "acme", "r", "u")
	for want := l.Burst; want > 0; want-- {
		if d := table.Take(k, l, 5); !d.OK || d.Remaining != want-1 {
			t.Fatalf("want %d remaining, got %+v", want-1, d)
		}
	}
	if d := table.Take(k, l, 5); d.OK || d.RetryAfter != 50*time.Millisecond {
		t.Fatalf("the 21st of 20/s: %+v", d)
	}
}

func TestTenantsKindsScopesAndIdsNeverShareABucket(t *testing.T) {
	table, l := New(1024), per(1, time.Hour)
	for _, k := range []Key{
		table.Key(User, "a", "r", "u"), table.Key(User, "b", "r", "u"), table.Key(Consumer, "a", "r", "u"),
		table.Key(User, "a", "s", "u"), table.Key(User, "a", "r", "v"), table.Key(User, "a", "", "ru"),
	} {
		if !table.Take(k, l, 7).OK || table.Take(k, l, 7).OK {
			t.Fatalf("%v does not have one request of its own", k)
		}
	}
}

func TestFloodOfMadeUpKeysNeitherGrowsNorFreshens(t *testing.T) {
	table, l := New(256), per(1, time.Hour)
	victim := table.Key(User, "acme", "r", "spent")
	table.Take(victim, l, 1)
	admitted := 0
	for i := range 100_000 {
		if table.Take(table.Key(User, "acme", "r", fmt.Sprint("made-up-", i)), l, 2).OK {
			admitted++
		}
	}
	if places := len(table.sets) * ways; admitted > places {
		t.Errorf("a flood was admitted %d times by %d places and one overflow bucket", admitted, places)
	}
	if table.Take(victim, l, 3).OK {
		t.Error("the flood gave a spent caller a fresh bucket")
	}
	if !table.Take(table.Key(User, "other", "r", "u"), l, 3).OK {
		t.Error("the flood of one tenant emptied the overflow bucket of another")
	}
}

func TestIdleBucketsMakeRoom(t *testing.T) {
	table, l := New(64), per(1, time.Second)
	now := int64(0)
	for i := range 10_000 {
		now += int64(time.Second) / 32
		if d := table.Take(table.Key(User, "acme", "r", fmt.Sprint(i)), l, now); !d.OK && !d.Overflow {
			t.Fatalf("caller %d was refused by a bucket of its own", i)
		}
	}
	now += int64(time.Hour)
	if d := table.Take(table.Key(User, "acme", "r", "new"), l, now); !d.OK || d.Overflow {
		t.Errorf("an idle table has no room: %+v", d)
	}
}

func TestRaisedLimitFreesACallerWhoWasFarInDebt(t *testing.T) {
	table := New(64)
	k := table.Key(User, "acme", "r", "u")
	table.Take(k, per(1, time.Hour), 0)
	fast := per(100, time.Second)
	if d := table.Take(k, fast, 1); d.RetryAfter > time.Second {
		t.Fatalf("still waits %v", d.RetryAfter)
	}
	if !table.Take(k, fast, int64(time.Second)).OK {
		t.Fatal("refused a second after the limit was raised")
	}
}

func TestConcurrentCallersOfFewPlacesKeepThePromise(t *testing.T) {
	table, l := New(64), per(50, time.Hour)
	var admitted [128]atomic.Int64
	var overflowed atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 20_000 {
				id := i % len(admitted)
				d := table.Take(table.Key(User, "acme", "r", fmt.Sprint(id)), l, int64(i/1000))
				if d.OK && d.Overflow {
					overflowed.Add(1)
				} else if d.OK {
					admitted[id].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for i := range admitted {
		if n := admitted[i].Load(); n > int64(l.Burst) {
			t.Errorf("key %d was admitted %d times with a burst of %d", i, n, l.Burst)
		}
	}
	if n := overflowed.Load(); n > int64(l.Burst) {
		t.Errorf("the overflow bucket admitted %d times with a burst of %d", n, l.Burst)
	}
}

func TestASetIsTwoCacheLines(t *testing.T) {
	table := New(64)
	if n := unsafe.Sizeof(set{}); n != 128 || uintptr(unsafe.Pointer(&table.sets[0]))%128 != 0 {
		t.Fatalf("%d bytes at %p", n, &table.sets[0])
	}
}

func TestTakeDoesNotAllocate(t *testing.T) {
	table, l := New(64), per(100, time.Second)
	now := int64(0)
	ids := make([]string, 4096)
	for i := range ids {
		ids[i] = fmt.Sprint(i)
	}
	if n := testing.AllocsPerRun(4000, func() {
		now++
		table.Take(table.Key(User, "acme", "route", ids[now&4095]), l, now)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTake(b *testing.B) {
	table, l := New(1<<16), per(1000, time.Second)
	now := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		now += 1000
		table.Take(table.Key(User, "acme", "orders-read", "user-12345"), l, now)
	}
}

func TestRefundGivesBackExactlyOne(t *testing.T) {
	table, l := New(64), PerSecond(10, 5)
	k := table.Key(Tenant, "acme", "r", "")
	table.Refund(k, l, Decision{OK: true})
	d := table.Take(k, l, 9)
	table.Refund(k, l, d)
	for want := range 6 {
		if got := table.Take(k, l, 9).OK; got != (want < 5) {
			t.Fatalf("request %d: %v", want, got)
		}
	}
	if !table.Refuses(k, l, 9) || table.Refuses(k, l, int64(time.Second)) || table.Refuses(table.Key(User, "x", "", ""), l, 9) {
		t.Error("Refuses and Take disagree")
	}
}

func TestRatesAndBurstsAreBounded(t *testing.T) {
	for _, c := range []struct {
		rate, burst float64
		interval    time.Duration
		want        uint64
	}{
		{0.1, 0, 10 * time.Second, 1}, {1000, 100.9, time.Millisecond, 100}, {3, 2, 333333334, 2},
		{math.Inf(1), math.Inf(1), 1, 1 << 61}, {1e-300, 1e300, 1 << 60, 1},
	} {
		if l := PerSecond(c.rate, c.burst); l.interval != int64(c.interval) || l.Burst != c.want || l.depth <= 0 {
			t.Errorf("%v: %+v", c, l)
		}
	}
	if !PerSecond(0, 5).None() || !PerSecond(-1, 5).None() || !PerSecond(math.NaN(), 5).None() || !New(64).Take(Key{}, Limit{}, 0).OK {
		t.Error("no rate limits")
	}
}
