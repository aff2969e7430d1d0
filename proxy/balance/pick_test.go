package balance

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

func methods() []Method { return []Method{P2C, P2CPeak, RoundRobin, LeastRequests, Hash} }

// named makes members with ids of their own, in tiers and slices as given.
func named(tiers ...int) (all []Member) {
	for i, tier := range tiers {
		all = append(all, Member{ID: KeyOf(fmt.Append(nil, "10.0.0.", i, ":80")), Tier: tier, Slice: tier})
	}
	return all
}

// spread counts picks, of which none ends.
func spread(s *Set, n int, now time.Time) []int {
	r, hits := rand.New(rand.NewPCG(7, 8)), make([]int, s.Len())
	for range n {
		a := ask(r.Uint64(), now)
		a.Key = r.Uint64()
		if i := s.Pick(a); i >= 0 {
			hits[i]++
			s.Begin(i)
		}
	}
	return hits
}

func TestAnEndpointFillsTwoCacheLines(t *testing.T) {
	var e endpoint
	if size, hot := unsafe.Sizeof(e), unsafe.Offsetof(e.out); size != 128 || hot > 64 {
		t.Fatalf("%d bytes, %d of them touched by every exchange", size, hot)
	}
}

func TestNearEndpointsComeFirst(t *testing.T) {
	for _, m := range methods() {
		s := New(Spec{Method: m}, named(2, 0, 1, 0))
		hits := spread(s, 400, start)
		if hits[0]+hits[2] != 0 || hits[1] < 100 || hits[3] < 100 {
			t.Errorf("method %d: %v", m, hits)
		}
		for _, i := range []int{1, 3} {
			s.Mark(i, true, start)
		}
		if i := s.Pick(ask(9, start)); i != 2 {
			t.Errorf("method %d: with the near ones down, %d", m, i)
		}
		s.Mark(2, true, start)
		if i := s.Pick(ask(9, start)); i != 0 {
			t.Errorf("method %d: with the region down, %d", m, i)
		}
		s.Mark(0, true, start)
		if i := s.Pick(ask(9, start)); i < 0 {
			t.Errorf("method %d: all down is not taken for all up", m)
		}
	}
}

// The near tier passes on a growing part before it is full, and no tier gets more than its room while another has some.
func TestTiersSpillBeforeTheyAreFull(t *testing.T) {
	for _, m := range methods() {
		s := New(Spec{Method: m, Places: 600}, named(0, 0, 1, 1, 2, 2))
		hits := spread(s, 120, start)
		if hits[2]+hits[3]+hits[4]+hits[5] != 0 {
			t.Errorf("method %d: %v spilled at 60%%", m, hits)
		}
		spread(s, 80, start)
		if near := s.load[0].Load(); near < 140 || near >= 200 {
			t.Errorf("method %d: %d of 200 near ones are taken by 200", m, near)
		}
		spread(s, 400, start)
		for tier := range Tiers {
			if got := s.load[tier].Load(); got < 170 || got > 215 {
				t.Errorf("method %d: tier %d has %d of 200, with 600 in all", m, tier, got)
			}
		}
	}
}

// A key stays where it is. When an endpoint goes, its keys alone move, and when it comes back they return.
func TestKeysMoveOnlyWithTheirEndpoint(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 20).Draw(t, "n")
		gone := rapid.IntRange(0, n-1).Draw(t, "gone")
		s := New(Spec{Method: Hash}, named(make([]int, n)...))
		before := make([]int, 200)
		at := func(k int) int { return s.Pick(Ask{Now: start, Key: KeyOf(fmt.Append(nil, "user", k))}) }
		for k := range before {
			before[k] = at(k)
		}
		s.Have(func(i int) bool { return i != gone }, start)
		for k := range before {
			if now := at(k); now == gone || before[k] != gone && now != before[k] {
				t.Fatalf("key %d went from %d to %d when %d left", k, before[k], now, gone)
			}
		}
		s.Have(func(int) bool { return true }, start)
		for k := range before {
			if now := at(k); now != before[k] {
				t.Fatalf("key %d is at %d, not back at %d", k, now, before[k])
			}
		}
	})
}

// However the keys are chosen, no endpoint has more than the bound lets it.
func TestHashingKeepsItsBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(2, 12).Draw(t, "n")
		bound := rapid.SampledFrom([]int{0, 110, 125, 200}).Draw(t, "bound")
		s := New(Spec{Method: Hash, Bound: bound}, named(make([]int, n)...))
		one := rapid.Uint64().Draw(t, "the only key")
		under := 0
		for range 300 {
			i := s.Pick(Ask{Now: start, Key: one})
			s.Begin(i)
			under++
			if bound == 0 {
				bound = usualBound
			}
			most := int32(under*bound/100/n) + 1
			if got := s.now.Load().all[i].inflight.Load(); got > most {
				t.Fatalf("one of %d endpoints has %d of %d exchanges, more than %d", n, got, under, most)
			}
		}
	})
}

func TestHashingIsEven(t *testing.T) {
	s, hits := New(Spec{Method: Hash}, named(make([]int, 10)...)), make([]int, 10)
	for k := range 100_000 {
		hits[s.Pick(Ask{Now: start, Key: KeyOf(fmt.Append(nil, "session-", k))})]++
	}
	for i, n := range hits {
		if n < 9_500 || n > 10_500 {
			t.Errorf("endpoint %d has %d of 100000 keys", i, n)
		}
	}
}

// An endpoint that is new gets a tenth at first and its part at the end; one that comes back is new.
func TestNewEndpointsAreStartedSlowly(t *testing.T) {
	for _, m := range []Method{P2C, RoundRobin, LeastRequests} {
		s := New(Spec{Method: m, SlowStart: 10 * time.Second}, named(0, 0))
		got := func(now time.Time) int {
			hits := spread(s, 1000, now)
			for i, n := range hits {
				for range n {
					s.Cancel(i)
				}
			}
			return hits[len(hits)-1]
		}
		if n := got(start); n < 400 {
			t.Fatalf("method %d: a set that begins gives its last endpoint %d of 1000", m, n)
		}
		s.Grow(named(0, 0, 0)[2], start)
		early, half, late := got(start.Add(time.Millisecond)), got(start.Add(5*time.Second)), got(start.Add(10*time.Second))
		if early > 120 || half < early || half > 300 || late < 280 {
			t.Errorf("method %d: %d, %d and %d of 1000 over the time of a slow start", m, early, half, late)
		}
		now := start.Add(time.Hour)
		s.Have(func(i int) bool { return i < 2 }, now)
		s.Have(func(int) bool { return true }, now)
		if n := got(now.Add(time.Millisecond)); n > 120 {
			t.Errorf("method %d: one that comes back gets %d of 1000 at once", m, n)
		}
	}
}

// One of two endpoints stalls once. By its peak it is left alone at once, even if the other has twenty exchanges under way,
// and found again when time has passed.
func TestPeakLatencyLeavesAStallingEndpointAtOnce(t *testing.T) {
	for m, want := range map[Method]int{P2C: 0, P2CPeak: 1} {
		s := of(m, 2)
		for i := range 2 {
			s.Begin(i)
			s.End(i, true, 2*time.Millisecond, start)
		}
		s.Begin(0)
		s.End(0, true, 200*time.Millisecond, start)
		for range 20 {
			s.Begin(1)
		}
		if i := s.Pick(ask(rand.Uint64(), start)); i != want {
			t.Errorf("method %d picks %d", m, i)
		}
	}
	s := of(P2CPeak, 2)
	for i, took := range []time.Duration{time.Second, time.Millisecond} {
		s.Begin(i)
		s.End(i, true, took, start)
	}
	if hits := spread(s, 20, start); hits[0] != 0 {
		t.Fatalf("a second is as good as a millisecond: %v", hits)
	}
	for range 20 {
		s.Cancel(1)
	}
	if later := spread(s, 20, start.Add(time.Hour)); later[0] < 5 {
		t.Fatalf("who was slow an hour ago gets %v", later)
	}
}

func TestRateEjectsWhatNeverFailsFiveTimesInARow(t *testing.T) {
	s, now := of(RoundRobin, 4), start
	for n := range 400 {
		i := s.Pick(ask(uint64(n), now))
		s.Begin(i)
		if s.End(i, i != 1 || n%12 >= 8, time.Millisecond, now) { // of three two fail
			if i != 1 || n < callsToEject {
				t.Fatalf("%d was ejected at request %d", i, n)
			}
			return
		}
		now = now.Add(10 * time.Millisecond)
	}
	t.Fatal("two failures of three were not enough")
}

// I3: one of ten endpoints fails fast. Within three seconds it has less than 2% of the traffic, and keeps less.
func TestOneOfTenThatFailsFastGetsLessThanTwoPercent(t *testing.T) {
	for _, m := range methods() {
		r, s, now := rand.New(rand.NewPCG(5, uint64(m))), of(m, 10), start
		all, bad := 0, 0
		for range 20_000 { // 1,000/s over 20 s
			a := ask(r.Uint64(), now)
			a.Key = r.Uint64()
			i := s.Pick(a)
			s.Begin(i)
			took := time.Duration(5+r.IntN(10)) * time.Millisecond
			if i == 3 {
				took = 200 * time.Microsecond
			}
			s.End(i, i != 3, took, now)
			if now.Sub(start) > 3*time.Second {
				all++
				if i == 3 {
					bad++
				}
			}
			if failing, n := s.Failing(0, now); failing*3 > n {
				t.Fatal("the slice as a whole counts as failing")
			}
			now = now.Add(time.Millisecond)
		}
		if bad*50 >= all {
			t.Errorf("method %d: %d of %d requests", m, bad, all)
		}
	}
}

func TestABarKeepsEverybodyFromASlice(t *testing.T) {
	for _, m := range methods() {
		s := New(Spec{Method: m}, []Member{{ID: 1, Slice: 1}, {ID: 2, Slice: 2}, {ID: 3, Slice: 2}})
		s.Bar(2, start.Add(time.Second))
		for range 50 {
			if i := s.Pick(ask(rand.Uint64(), start)); i != 0 {
				t.Fatalf("method %d picked %d of a barred slice", m, i)
			}
		}
		s.Bar(1, start.Add(2*time.Second))
		if i := s.Pick(ask(1, start)); i >= 0 {
			t.Fatalf("method %d picked %d with every slice barred", m, i)
		}
		if i := s.Pick(ask(1, start.Add(time.Second))); i < 1 {
			t.Fatalf("method %d: %d when the first bar has ended", m, i)
		}
		a := ask(1, start.Add(time.Hour))
		a.Closed = 1 << 2
		if i := s.Pick(a); i != 0 {
			t.Fatalf("method %d picked %d of a closed slice", m, i)
		}
	}
}

func TestNumbersOfThoseThatLeftLongAgoAreGivenAnew(t *testing.T) {
	s, now := of(RoundRobin, 3), start
	s.Begin(1)
	s.Have(func(i int) bool { return i == 0 }, now)
	now = now.Add(time.Minute)
	anybody, put := func(int) bool { return true }, -1
	replace := func(free func(int) bool) int {
		put = -1
		return s.Replace(Member{ID: 9, Tier: 1}, time.Minute, now, free, func(i int) { put = i })
	}
	if i := replace(func(i int) bool { return i != 2 }); i != -1 || put != -1 {
		t.Fatalf("%d was given, which has left with something under way, or is objected to", i)
	}
	if i := replace(anybody); i != 2 || put != 2 || !s.In(2) || s.In(1) {
		t.Fatalf("number %d", i)
	}
	s.End(1, true, time.Millisecond, now)
	if i := replace(anybody); i != -1 {
		t.Fatal("a number was given that was in use a moment ago")
	}
	now = now.Add(2 * time.Minute)
	if i := replace(anybody); i != 1 {
		t.Fatalf("number %d", i)
	}
}

// A race of everything with everything: only that nothing breaks, and that counts come to nothing at the end.
func TestManyAtOnce(t *testing.T) {
	s, done := New(Spec{SlowStart: time.Second, Places: 16}, named(0, 0, 1, 2)), make(chan struct{})
	for g := range 4 {
		go func() {
			defer func() { done <- struct{}{} }()
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for n := range 2000 {
				now := start.Add(time.Duration(n) * 50 * time.Millisecond)
				if i := s.Pick(ask(r.Uint64(), now)); i >= 0 {
					s.Begin(i)
					s.End(i, r.IntN(3) > 0, time.Millisecond, now)
				}
				switch n % 50 {
				case 1:
					s.Mark(r.IntN(4), n%100 == 1, now)
				case 2:
					s.Have(func(i int) bool { return i != g }, now)
				case 3:
					s.Grow(Member{ID: r.Uint64()}, now)
				}
			}
		}()
	}
	for range 4 {
		<-done
	}
	for t2 := range Tiers {
		if n := s.load[t2].Load(); n != 0 {
			t.Errorf("tier %d still has %d", t2, n)
		}
	}
}
