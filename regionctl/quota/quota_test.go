package quota

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
)

const ms = int64(time.Millisecond)

// clocks are those of a test.
type clocks struct {
	at  int64
	day time.Time
}

func topology() cells.Topology {
	var t cells.Topology
	for _, r := range []cells.RegionID{"us", "eu", "ap"} {
		c := cells.Cell{ID: cells.CellID(r + "/a"), Nodes: []cells.Node{{ID: cells.NodeID(r + "/a/1")}, {ID: cells.NodeID(r + "/a/2")}}}
		t.Regions = append(t.Regions, cells.Region{ID: r, Cells: []cells.Cell{c}})
	}
	return t
}

func service(region cells.RegionID, c *clocks) *Service {
	return New(Options{Region: region, Topology: topology(), Clock: func() int64 { return c.at }, Now: func() time.Time { return c.day }})
}

func newClocks() *clocks {
	return &clocks{at: 10_000 * ms, day: time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)}
}

// ownedBy finds a key of the region's.
func ownedBy(s *Service, region cells.RegionID) quota.Key {
	for i := 0; ; i++ {
		if k := quota.Name(fmt.Sprint(i)); s.Owner(k) == region {
			return k
		}
	}
}

func want(k quota.Key, l quota.Limit, n int64) []quota.Item {
	return []quota.Item{{Key: k, Limit: l, Ask: quota.Ask{Tries: n, Elapsed: 100 * ms, Want: n}}}
}

func TestABucketReachesAsFarAsItsScope(t *testing.T) {
	c := newClocks()
	s := service("eu", c)
	for scope, total := range map[quota.Scope]int64{quota.Cell: 20, quota.Region: 10, quota.World: 10} {
		l, k := quota.Limit{Rate: 10, Burst: 10, Scope: scope}, ownedBy(s, "eu")
		got := s.ToNode("eu/a", want(k, l, 10))[0].Tokens + s.ToNode("eu/b", want(k, l, 10))[0].Tokens
		if got != total {
			t.Errorf("scope %d: two cells got %d tokens, want %d", scope, got, total)
		}
	}
}

func TestEveryControllerNamesTheSameOwnerAndOnlyThatGrants(t *testing.T) {
	c := newClocks()
	all := map[cells.RegionID]*Service{"us": service("us", c), "eu": service("eu", c), "ap": service("ap", c)}
	owned := map[cells.RegionID]int{}
	for i := range 900 {
		k, l := quota.Name(fmt.Sprint(i)), quota.Limit{Rate: 10, Burst: 10}
		granted := 0
		for region, s := range all {
			if s.Owner(k) != all["us"].Owner(k) {
				t.Fatal("the owner is not the same everywhere")
			}
			if g := s.ToRegion(want(k, l, 4))[0]; g.Valid() {
				granted++
				owned[region]++
			}
			l.Scope = quota.Region
			if g := s.ToRegion(want(k, l, 4))[0]; g.Valid() {
				t.Fatal("another region was given of a region's own limit")
			}
			l.Scope = quota.World
		}
		if granted != 1 {
			t.Fatalf("%d regions granted one key", granted)
		}
	}
	for region, n := range owned {
		if n < 200 {
			t.Errorf("%s owns %d of 900 keys", region, n)
		}
	}
}

func TestARegionPassesOnWhatItHasOnLease(t *testing.T) {
	c := newClocks()
	eu, us := service("eu", c), service("us", c)
	k, l := ownedBy(eu, "us"), quota.Limit{Rate: 100, Burst: 40}
	from := eu.Abroad("us")
	from.Connected()
	first := eu.ToNode("eu/a", want(k, l, 15))[0]
	if first.Tokens != 15 || !first.Calm { // half a burst before anything is known
		t.Fatalf("a cold key: %+v", first)
	}
	batch := from.Table.Due(c.at, false, 10)
	if len(batch.Items) != 1 || batch.Items[0].Ask.Debt != 15 {
		t.Fatalf("%+v", batch.Items)
	}
	batch.Granted(c.at, us.ToRegion(batch.Items))
	if second := eu.ToNode("eu/a", want(k, l, 15))[0]; second.Tokens != 15 {
		t.Fatalf("with a lease at hand: %+v", second)
	}
}

func TestTheTableOfBucketsIsBoundedAndFullOnesMakeRoom(t *testing.T) {
	c := newClocks()
	s := service("eu", c)
	l := quota.Limit{Rate: 1, Burst: 1, Scope: quota.Region}
	fill := func(from, n int) (served int) {
		for i := range n {
			if s.ToNode("eu/a", want(quota.Name(fmt.Sprint(from+i)), l, 1))[0].Valid() {
				served++
			}
		}
		return served
	}
	if n := fill(0, parts*perPart*9/8); n != parts*perPart || s.Buckets() != n {
		t.Errorf("%d keys served at once, %d buckets", n, s.Buckets())
	}
	c.at += 2000 * ms
	if n := fill(1<<30, 20_000); n < 19_000 || s.Buckets() > parts*perPart {
		t.Errorf("%d keys served when the first are full again, %d buckets", n, s.Buckets())
	}
}

// keep runs a service's store until the test has done what it does.
func keep(t *testing.T, s *Service, in store.Store, do func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Keep(ctx, in, func(error) {}) }()
	do()
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not yet: " + what)
		}
	}
}

func TestADailyQuotaSurvivesItsController(t *testing.T) {
	in, c := mem.New(), newClocks()
	s := service("eu", c)
	k, l := ownedBy(s, "eu"), quota.PerDay(1000)
	if s.ToNode("eu/a", want(k, l, 100))[0].Valid() {
		t.Fatal("granted before it was known what is spent")
	}
	keep(t, s, in, func() {
		eventually(t, "the store was read", func() bool { return s.ToNode("eu/a", want(k, l, 100))[0].Tokens == 100 })
	})
	next := service("eu", c)
	keep(t, next, in, func() {
		eventually(t, "the store was read", func() bool { return next.ToNode("eu/a", want(k, l, 0))[0].Valid() })
		if g := next.ToNode("eu/a", want(k, l, 2000))[0]; g.Tokens != 900 {
			t.Errorf("after a restart %d are left of 1000, 100 of which were spent", g.Tokens)
		}
		c.day, c.at = c.day.Add(24*time.Hour), c.at+500*ms
		if g := next.ToNode("eu/a", want(k, l, 2000))[0]; g.Tokens != 1000 {
			t.Errorf("the next day has %d", g.Tokens)
		}
	})
	back := service("eu", &clocks{at: c.at, day: c.day.Add(-24 * time.Hour)})
	keep(t, back, in, func() {
		eventually(t, "the store was read", func() bool { return back.ToNode("eu/a", want(k, l, 0))[0].Valid() })
		if g := back.ToNode("eu/a", want(k, l, 2000))[0]; g.Tokens != 0 {
			t.Errorf("a clock that is set back over midnight brings %d again", g.Tokens)
		}
	})
	yesterday := service("eu", &clocks{at: c.at, day: c.day.Add(24 * time.Hour)})
	keep(t, yesterday, in, func() {
		eventually(t, "the store was read", func() bool { return yesterday.ToNode("eu/a", want(k, l, 0))[0].Valid() })
		if g := yesterday.ToNode("eu/a", want(k, l, 2000))[0]; g.Tokens != 1000 {
			t.Errorf("what was spent on an earlier day counts: %d", g.Tokens)
		}
	})
}

// A controller that dies forgets nothing that was granted before the last marks were stored, and loses little.
func TestAControllerThatDiesGivesNothingOutTwice(t *testing.T) {
	in, c := mem.New(), newClocks()
	s := service("eu", c)
	k, l := ownedBy(s, "eu"), quota.PerDay(100_000)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if err := s.load(ctx, in); err != nil {
		t.Fatal(err)
	}
	granted, writes := int64(0), 0
	for range 400 {
		c.at += 100 * ms
		granted += s.ToNode("eu/a", want(k, l, 20))[0].Tokens
		before := revision(t, in)
		if err := s.flush(ctx, in, storeAtOnce); err != nil {
			t.Fatal(err)
		}
		if revision(t, in) != before {
			writes++
		}
	}
	if writes > 60 {
		t.Errorf("%d writes for %d requests", writes, granted)
	}
	next := service("eu", c) // nothing was stored at the end of the first one
	if err := next.load(ctx, in); err != nil {
		t.Fatal(err)
	}
	g := next.ToNode("eu/a", want(k, l, 1<<30))[0]
	if left := 100_000 - granted; g.Tokens > left || g.Tokens < left-1000 {
		t.Errorf("%d are given out, %d are left", g.Tokens, left)
	}
}

func revision(t *testing.T, in store.Store) store.Revision {
	_, rev, err := in.Keys(t.Context(), store.PrefixQuotas)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

// broken refuses commits, after applying them if late.
type broken struct {
	store.Store
	late bool
}

func (b broken) Commit(ctx context.Context, conds []store.Cond, ops []store.Op) (store.Revision, error) {
	if b.late {
		if _, err := b.Store.Commit(ctx, conds, ops); err != nil {
			return 0, err
		}
	}
	return 0, store.ErrUnavailable
}

// The store's fault is met twice: a commit failed, and a commit failed but was done.
func TestAMarkThatWasNotStoredIsStoredLater(t *testing.T) {
	for _, late := range []bool{false, true} {
		in, c := mem.New(), newClocks()
		s := service("eu", c)
		k, l := ownedBy(s, "eu"), quota.PerDay(1000)
		if err := s.load(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		s.ToNode("eu/a", want(k, l, 50))
		if err := s.flush(t.Context(), broken{in, late}, parts); !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
		if s.ToNode("eu/a", want(k, l, 50))[0].Tokens == 0 {
			t.Fatal("nothing is granted while the store is lost")
		}
		eventually(t, "the mark is stored", func() bool { return s.flush(t.Context(), in, parts) == nil })
		next := service("eu", c)
		if err := next.load(t.Context(), in); err != nil {
			t.Fatal(err)
		}
		if g := next.ToNode("eu/a", want(k, l, 1000))[0]; g.Tokens > 900 {
			t.Errorf("late %v: %d of 900 are given out", late, g.Tokens)
		}
	}
}

func TestTheStoredFormIsTheGoldenOne(t *testing.T) {
	d := days{date: 20_579, marks: map[quota.Key]*mark{quota.Name("a"): {used: 5, mark: 7}}, stored: map[quota.Key]uint64{quota.Name("b"): 3}}
	raw, err := d.encode()
	if err != nil {
		t.Fatal(err)
	}
	golden, err := os.ReadFile("testdata/quotas-1.json")
	if err != nil {
		t.Fatal(err)
	}
	if string(raw)+"\n" != string(golden) {
		t.Errorf("the stored form has changed:\n%s", raw)
	}
	day, used, err := decode(golden)
	if err != nil || day != d.date || used[quota.Name("a")] != 7 || used[quota.Name("b")] != 3 {
		t.Errorf("%d %v %v", day, used, err)
	}
	for _, bad := range []string{"", `{"form":2}`, `{"form":1,"day":1,"used":{"xx":1}}`, `{"form":1,"day":1,"used":{"00":1}}`} {
		if _, _, err := decode([]byte(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}
