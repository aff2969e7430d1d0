package upstream

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/proxy/breaker"
	"github.com/cellgate/cellgate/snapshot"
)

// I3, I9: one endpoint of ten fails fast, whatever balances. It has less than 2% of the traffic after three seconds, and no
// breaker opens.
func TestOneOfTenEndpointsNeverOpensTheBreaker(t *testing.T) {
	for _, by := range []string{"p2c", "p2c_peak", "round_robin", "least_requests", "hash"} {
		u := snapshot.Upstream{ID: "u", Balance: by}
		for port := range 10 {
			u.Endpoints = append(u.Endpoints, "127.22.1.1:"+string(rune('0'+port%10))+"1")
		}
		_, p := one(t, u, Options{})
		r, start := rand.New(rand.NewPCG(1, 2)), time.Unix(1e9, 0)
		all, bad := 0, 0
		for n := range 15_000 { // 500/s over 30 s
			now := start.Add(time.Duration(n) * 2 * time.Millisecond)
			i, barred := p.Choose(balance.Ask{Now: now, Random: r.Uint64(), Key: r.Uint64()})
			if i < 0 || barred {
				t.Fatalf("%s: the breaker is open at %v", by, now.Sub(start))
			}
			took := 10 * time.Millisecond
			if i == 4 {
				took = 100 * time.Microsecond
			}
			if p.End(i, i != 4, took, now); now.Sub(start) > 3*time.Second {
				all++
				if i == 4 {
					bad++
				}
			}
		}
		if bad*50 >= all {
			t.Errorf("%s: %d of %d", by, bad, all)
		}
		if s := p.stats(start); s.Breakers[0].Opened != 0 {
			t.Errorf("%s: opened %d times", by, s.Breakers[0].Opened)
		}
	}
}

// A zone dies: its breaker opens, the other zone has all the traffic, nobody is refused; and it is let back in little by little.
func TestADeadZoneIsLeftAloneAndLetBackIn(t *testing.T) {
	a, b := snapshot.Locality{Zone: "a"}, snapshot.Locality{Zone: "b"}
	u := snapshot.Upstream{ID: "u", Endpoints: []string{"127.22.1.1:1", "127.22.1.1:2", "127.22.1.1:3", "127.22.1.1:4"}, Where: []snapshot.Locality{a, a, b, b}, Outlier: snapshot.Outlier{Off: true}}
	reg, p := one(t, u, Options{})
	r, now := rand.New(rand.NewPCG(1, 2)), time.Unix(1e9, 0)
	second := func(dead bool) (inA int) {
		for range 200 {
			i, _ := p.Choose(balance.Ask{Now: now, Random: r.Uint64()})
			if i < 0 {
				t.Fatal("refused although a zone is well")
			}
			if i < 2 {
				inA++
			}
			p.End(i, i >= 2 || !dead, time.Millisecond, now.Add(time.Millisecond))
			now = now.Add(5 * time.Millisecond)
		}
		return inA
	}
	if n := second(false); n < 60 {
		t.Fatalf("%d of 200 in zone a to begin with", n)
	}
	for range 10 {
		second(true)
	}
	if s := p.stats(now); s.Breakers[0].State == breaker.Closed || s.Breakers[1].State != breaker.Closed || s.Breakers[0].Zone != a {
		t.Fatalf("%+v", s.Breakers)
	}
	if n := second(true); n > 3 {
		t.Fatalf("the dead zone gets %d of 200", n)
	}
	u.Pool.MaxPending = 7 // another definition
	pools, err := reg.Pools([]snapshot.Upstream{u})
	if err != nil {
		t.Fatal(err)
	}
	reg.Retire(pools)
	if p = pools[0]; p.Shut(now) {
		t.Fatal("all slices are shut")
	}
	if n := second(true); n > 3 {
		t.Fatalf("after a change of the definition the dead zone gets %d of 200", n)
	}
	for range 60 {
		second(false)
	}
	if n := second(false); n < 60 {
		t.Fatalf("zone a gets %d of 200 a minute after it is well", n)
	}
}

func TestWhenEverySliceIsOpenTheAnswerSaysWhenToComeBack(t *testing.T) {
	_, p := one(t, snapshot.Upstream{ID: "u", Endpoints: []string{"127.22.1.1:1", "127.22.1.1:2"}}, Options{})
	now := time.Unix(1e9, 0)
	for n := range uint64(40) {
		if i, barred := p.Choose(balance.Ask{Now: now, Random: n << 58}); !barred {
			p.End(i, false, time.Millisecond, now)
		}
	}
	if i, barred := p.Choose(balance.Ask{Now: now}); i >= 0 || !barred || p.RetryIn(now) != 30*time.Second {
		t.Fatalf("%d, %v, in %v", i, barred, p.RetryIn(now))
	}
	now = now.Add(30 * time.Second)
	for range 3 {
		i, _ := p.Choose(balance.Ask{Now: now})
		if i < 0 {
			t.Fatal("no probe passes")
		}
		defer p.Cancel(i)
	}
	if i, barred := p.Choose(balance.Ask{Now: now}); i >= 0 || !barred {
		t.Fatal("a fourth probe passes")
	}
}

// I11: writes go to the region that owns them; another stands in only where it may, and only while the owner has nothing usable.
func TestWritesFollowTheOwner(t *testing.T) {
	region := func(r string) snapshot.Locality { return snapshot.Locality{Region: r} }
	u := snapshot.Upstream{ID: "u", Endpoints: []string{"127.22.1.1:1", "127.22.1.1:2", "127.22.1.1:3"}, Where: []snapshot.Locality{region("near"), region("owner"), region("other")}, OwnerRegion: "owner"}
	here := Options{Here: region("near")}
	now := time.Unix(1e9, 0)
	where := func(p *Pool, write bool) int {
		choose := p.Choose
		if write {
			choose = p.ChooseOwner
		}
		i, _ := choose(balance.Ask{Now: now, Random: rand.Uint64()})
		if i >= 0 {
			p.Cancel(i)
		}
		return i
	}
	_, p := one(t, u, here)
	if where(p, true) != 1 || where(p, false) != 0 {
		t.Fatal("a write doesn't go to its owner, or a read does")
	}
	p.Set.Mark(1, true, now)
	if i := where(p, true); i != 1 {
		t.Fatalf("without permission %d stands in for the owner", i)
	}
	u.FailoverRegions = []string{"nowhere", "other"}
	_, p = one(t, u, here)
	if where(p, true) != 1 {
		t.Fatal("the owner is well and passed over")
	}
	p.Set.Mark(1, true, now)
	if i := where(p, true); i != 2 {
		t.Fatalf("%d stands in for the owner", i)
	}
	p.Set.Mark(2, true, now)
	if i := where(p, true); i != 1 {
		t.Fatalf("with both down %d has the writes", i)
	}
}

// Who waits for a connection takes one to another endpoint only where balancing could have sent it there as well.
func TestWhatStandsInIsOfTheSameZoneAndOfNoKey(t *testing.T) {
	zone := func(z string) snapshot.Locality { return snapshot.Locality{Region: "r", Zone: z} }
	u := snapshot.Upstream{ID: "u", Endpoints: []string{"127.22.1.1:1", "127.22.1.1:2", "127.22.1.1:3"}, Where: []snapshot.Locality{zone("a"), zone("a"), zone("b")}}
	_, p := one(t, u, Options{})
	if !p.StandsIn(1, 0) || p.StandsIn(2, 0) {
		t.Error("one of the zone doesn't stand in, or one of another does")
	}
	p.Set.Have(func(i int) bool { return i != 1 }, time.Unix(1e9, 0))
	if p.StandsIn(1, 0) || !p.StandsIn(1, 1) {
		t.Error("one that has left stands in, or not for itself")
	}
	u.Balance, u.Hash.On = "hash", snapshot.HashClient
	if _, p = one(t, u, Options{}); p.StandsIn(1, 0) {
		t.Error("another endpoint stands in for that of a key")
	}
}

// A version that sends an upstream somewhere dead opens its breaker. Once it is rolled back, nobody is refused for that.
func TestWhatOtherEndpointsHaveDoneIsForgotten(t *testing.T) {
	reg := NewRegistry(Options{})
	pools, err := reg.Pools([]snapshot.Upstream{{ID: "u", Endpoints: []string{"127.22.1.1:1"}}})
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1e9, 0)
	for n := range uint64(40) {
		if i, barred := pools[0].Choose(balance.Ask{Now: now, Random: n << 58}); !barred {
			pools[0].End(i, false, time.Millisecond, now)
		}
	}
	if !pools[0].Shut(now) {
		t.Fatal("the breaker is closed")
	}
	back, err := reg.Pools([]snapshot.Upstream{{ID: "u", Endpoints: []string{"127.22.1.2:1"}}})
	if err != nil {
		t.Fatal(err)
	}
	reg.Retire(back)
	if back[0].Shut(now) {
		t.Fatal("other endpoints are refused for it")
	}
	if back[0].Limit == pools[0].Limit {
		t.Fatal("other endpoints have the bound that these have learnt")
	}
}
