package balance

import (
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

var start = time.Unix(1e9, 0)

// of makes a set of n endpoints that are all near.
func of(m Method, n int) *Set { return New(Spec{Method: m}, make([]Member, n)) }

func ask(random uint64, now time.Time) Ask { return Ask{Random: random, Now: now} }

func fail(s *Set, i, n int, now time.Time) (ejected bool) {
	for range n {
		s.Begin(i)
		ejected = s.End(i, false, time.Millisecond, now) || ejected
	}
	return ejected
}

func TestFiveConsecutiveFailuresEjectForGrowingTimes(t *testing.T) {
	s, now := of(P2C, 4), start
	for n := 1; n <= 3; n++ {
		if fail(s, 2, FailuresToEject-1, now) {
			t.Fatal("ejected before the fifth failure")
		}
		if !fail(s, 2, 1, now) {
			t.Fatalf("round %d: the fifth failure did not eject", n)
		}
		until := time.Duration(n) * EjectFor
		if !s.Ejected(2, now.Add(until-1)) || s.Ejected(2, now.Add(until)) {
			t.Fatalf("round %d: not out for exactly %v", n, until)
		}
		for r := range 100 {
			if s.Pick(ask(rand.Uint64(), now.Add(time.Duration(r)*time.Millisecond))) == 2 {
				t.Fatal("an ejected endpoint was picked")
			}
		}
		now = now.Add(until)
	}
}

func TestASuccessEndsTheRunOfFailures(t *testing.T) {
	s := New(Spec{Outlier: Outlier{Rate: 100}}, make([]Member, 4))
	for range 20 {
		fail(s, 1, FailuresToEject-1, start)
		s.Begin(1)
		s.End(1, true, time.Millisecond, start)
	}
	if s.Ejected(1, start) {
		t.Fatal("ejected without five failures in a row")
	}
}

func TestNeverMoreThanHalfIsEjected(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 9).Draw(t, "n")
		s := of(P2C, n)
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			fail(s, rapid.IntRange(0, n-1).Draw(t, "i"), 30, start)
		}
		out := 0
		for i := range n {
			if s.Ejected(i, start) {
				out++
			}
		}
		if out*2 > n {
			t.Fatalf("%d of %d are out", out, n)
		}
		if s.Pick(ask(7, start)) < 0 {
			t.Fatal("nothing left to pick")
		}
	})
}

// One of two endpoints restarts, and the other one dies soon after: what still counts as ejected is the last resort, and is
// in again with its first success. What had begun before the ejection proves nothing.
func TestASuccessDuringAnEjectionEndsIt(t *testing.T) {
	s := of(P2C, 2)
	fail(s, 1, FailuresToEject, start)
	now := start.Add(2 * time.Second)
	s.Begin(1)
	s.End(1, true, 3*time.Second, now)
	if !s.Ejected(1, now) {
		t.Fatal("an answer to a request from before the ejection ended it")
	}
	a := ask(7, now)
	a.Tried.Add(0)
	if i := s.Pick(a); i != 1 {
		t.Fatalf("with 0 tried the last resort is %d", i)
	}
	s.Begin(1)
	s.End(1, true, time.Millisecond, now)
	if s.Ejected(1, now) {
		t.Fatal("it answers, and stays ejected")
	}
	fail(s, 0, stormFactor*FailuresToEject, now)
	if !s.Ejected(0, now) {
		t.Fatal("the one that died can't be ejected")
	}
	fail(s, 1, stormFactor*FailuresToEject, now)
	fail(s, 1, stormFactor*FailuresToEject, now.Add(EjectFor))
	if !s.Ejected(1, now.Add(2*EjectFor)) {
		t.Fatal("the second ejection is no longer than the first")
	}
}

func TestABlipOfEveryFifthAnswerOnAllEjectsNone(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	s, now := of(P2C, 6), start
	for range 20000 {
		i := s.Pick(ask(r.Uint64(), now))
		s.Begin(i)
		if s.End(i, r.IntN(5) > 0, time.Millisecond, now) {
			t.Fatal("an endpoint was ejected for what all did")
		}
		now = now.Add(500 * time.Microsecond)
	}
}

func TestAFastFailingEndpointAttractsNoTraffic(t *testing.T) {
	for _, n := range []int{2, 3} {
		r := rand.New(rand.NewPCG(3, 4))
		s, now, hits := of(P2C, n), start, 0
		for range 2000 {
			i := s.Pick(ask(r.Uint64(), now))
			s.Begin(i)
			took := 10 * time.Millisecond
			if i == 0 {
				hits++
				took = 100 * time.Microsecond
			}
			s.End(i, i != 0, took, now)
			now = now.Add(time.Millisecond)
		}
		if hits > 100 {
			t.Fatalf("of %d endpoints the failing one got %d of 2000 requests", n, hits)
		}
	}
}

func TestP2CPrefersTheLessLoaded(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	s := of(P2C, 2)
	for range 50 {
		s.Begin(0)
	}
	for range 100 {
		if s.Pick(ask(r.Uint64(), start)) != 1 {
			t.Fatal("the loaded endpoint was picked")
		}
	}
}

func TestTriedEndpointsAreNotPickedAgain(t *testing.T) {
	for _, m := range methods() {
		s, a := of(m, 3), ask(0, start)
		for range 3 {
			a.Random, a.Key = rand.Uint64(), rand.Uint64()
			i := s.Pick(a)
			if i < 0 || a.Tried.Has(i) {
				t.Fatalf("method %d picked %d with %v tried", m, i, a.Tried)
			}
			a.Tried.Add(i)
		}
		if i := s.Pick(a); i >= 0 {
			t.Fatalf("method %d picked %d although all were tried", m, i)
		}
		if of(m, 0).Pick(ask(1, start)) != -1 {
			t.Fatal("an empty set gave an endpoint")
		}
	}
}

func TestPickAllocatesNothing(t *testing.T) {
	for _, m := range methods() {
		s := of(m, 8)
		if n := testing.AllocsPerRun(1000, func() {
			a := ask(rand.Uint64(), start)
			a.Key = a.Random
			i := s.Pick(a)
			s.Begin(i)
			s.End(i, true, time.Millisecond, start)
		}); n != 0 {
			t.Fatalf("method %d: %v allocations", m, n)
		}
	}
}
