package quota

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/limit"
	"github.com/cellgate/cellgate/quota"
)

const ms = int64(time.Millisecond)

// bench is a table of leases with a clock that stands still, whose grantor is a bucket.
type bench struct {
	*Leases
	now    int64
	keys   *limit.Table
	bucket quota.Bucket
}

func newBench(most int) *bench {
	b := &bench{now: 10_000 * ms, keys: limit.New(64)}
	b.Leases = New(most, func() int64 { return b.now })
	b.SetFleet(Fleet{World: 50, Region: 10, Cell: 2})
	return b
}

func (b *bench) take(user string, to quota.Limit, waits int) Decision {
	return b.Take(Name{Kind: "user", Tenant: "acme", Caller: user}, b.keys.Key(limit.User, "acme", "r", user), to, b.now, waits)
}

// settle answers everything that is due.
func (b *bench) settle(urgent bool, serve bool) (asks int) {
	batch := b.Table.Due(b.now, urgent, 1000)
	var grants []quota.Grant
	for _, i := range batch.Items {
		g := quota.Grant{Tokens: -1}
		if serve {
			g = b.bucket.Grant(b.now, 0, i.Limit, i.Ask, quota.OfNodes(), 0)
		}
		grants = append(grants, g)
	}
	batch.Granted(b.now, grants)
	return len(batch.Items)
}

// The grantor counts as lost until a connection is made; a bench has none.
func (b *bench) connect() { b.Connected() }

func TestAColdKeyWaitsForItsLeaseAndIsThenServedWithoutAnyone(t *testing.T) {
	b, to := newBench(1000), quota.Limit{Rate: 1000, Burst: 200}
	b.connect()
	first, second := b.take("u", to, 0), b.take("u", to, 0)
	if first.Wait == nil || second.Wait == nil {
		t.Fatalf("%+v %+v", first, second)
	}
	if n := b.settle(true, true); n != 1 {
		t.Fatalf("%d asks for one key", n)
	}
	<-first.Wait
	<-second.Wait
	for i, waits := range []int{1, 1, 0} {
		if !b.take("u", to, waits).OK {
			t.Fatalf("request %d refused with a lease at hand", i)
		}
	}
	if n := b.settle(true, true); n != 0 {
		t.Fatalf("%d asks that nobody waits for", n)
	}
}

func TestNobodyWaitsLongerThanItsPatience(t *testing.T) {
	b, to := newBench(1000), quota.Limit{Rate: 1000, Burst: 200, Strict: true}
	b.connect()
	d := b.take("u", to, 0)
	if !b.Table.Pressing(b.now+8*ms, 9*ms) {
		t.Fatal("nobody waits")
	}
	select {
	case <-d.Wait:
		t.Fatal("woken before its time")
	default:
	}
	b.Table.Pressing(b.now+9*ms, 9*ms)
	<-d.Wait
	if d := b.take("u", to, 2); d.OK || d.Wait != nil || d.RetryAfter <= 0 {
		t.Fatalf("who has waited twice: %+v", d)
	}
	to.Strict = false
	if d := b.take("u", to, 2); !d.OK {
		t.Fatalf("of a limit that isn't strict, who has waited twice has a part of the limit: %+v", d)
	}
}

func TestWithoutAServiceANodeHasItsPartOfTheLimit(t *testing.T) {
	for scope, want := range map[quota.Scope]int{quota.World: 20, quota.Region: 100, quota.Cell: 500} {
		b := newBench(1000)
		to := quota.Limit{Rate: 1000, Burst: 200, Scope: scope}
		admitted := 0
		for range 10_000 {
			b.now += ms
			if b.take("u", to, 0).OK {
				admitted++
			}
			b.settle(false, false)
		}
		if admitted < want*10*95/100 || admitted > want*10*105/100+want/10 {
			t.Errorf("scope %d: %d admitted in 10 s, want %d a second", scope, admitted, want)
		}
		to.Strict = true
		if b.take("v", to, 0).OK {
			t.Errorf("scope %d: a strict limit admits without the service", scope)
		}
	}
}

// H5: made-up keys find no room, and nobody gets a fresh bucket by them.
func TestAFloodOfMadeUpKeysNeitherGrowsTheTableNorFreshens(t *testing.T) {
	b, to := newBench(640), quota.Limit{Rate: 10, Burst: 10}
	admitted := 0
	for i := range 50_000 { // without a service everyone without a bucket of its own has a part of one
		if b.take(fmt.Sprint("made up ", i), to, 0).OK {
			admitted++
		}
	}
	if n := b.Table.Len(); n > 640 {
		t.Errorf("%d keys", n)
	}
	if admitted > 640+8*128+1024 {
		t.Errorf("%d admitted", admitted)
	}
	if d := b.take("one more", quota.Limit{Rate: 1, Burst: 1, Strict: true}, 0); d.OK {
		t.Error("a strict limit admits without room")
	}
	b.now += 3600_000 * ms
	for range 20 {
		b.now += 100 * ms
		b.settle(false, false)
	}
	b.now += 2000 * ms
	b.connect()
	for i := range 100 {
		if b.take(fmt.Sprint("later ", i), to, 0).Wait == nil {
			t.Fatalf("key %d has no room in an idle table", i)
		}
	}
}

func TestAKeyThatTheServiceHasNoRoomForIsServedByTheNodesPart(t *testing.T) {
	b, to := newBench(1000), quota.Limit{Rate: 1000, Burst: 200}
	b.connect()
	b.take("u", to, 0)
	b.settle(true, false)
	admitted := 0
	for range 1000 {
		b.now += ms
		if b.take("u", to, 1).OK {
			admitted++
		}
	}
	if admitted < 15 || admitted > 25 {
		t.Errorf("%d admitted in a second, the node's part is 20", admitted)
	}
}

func TestWhatAnotherLimitRefusedIsGivenBack(t *testing.T) {
	b, to := newBench(1000), quota.Limit{Rate: 10, Burst: 3}
	b.connect()
	b.take("u", to, 0)
	b.settle(true, true)
	k := b.keys.Key(limit.User, "acme", "r", "u")
	for range 100 {
		if !b.take("u", to, 1).OK {
			t.Fatal("refused")
		}
		b.GiveBack(k)
	}
}

func TestConcurrentRequestsSpendNoMoreThanIsOnLease(t *testing.T) {
	b, to := newBench(1000), quota.Limit{Rate: 1000, Burst: 500, Strict: true}
	b.connect()
	for range 400 {
		b.take("u", to, 0)
	}
	b.now += 100 * ms
	b.settle(false, true)
	var wg sync.WaitGroup
	var mu sync.Mutex
	admitted := 0
	for range 8 {
		wg.Go(func() {
			for range 2000 {
				if b.take("u", to, 2).OK {
					mu.Lock()
					admitted++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if admitted < 100 || admitted > 500 {
		t.Errorf("%d admitted of a bucket of 500", admitted)
	}
}

// H3: however hot a key is, it costs ten asks a second, and four that were saved up.
func TestAHotKeyCostsTenAsksASecond(t *testing.T) {
	b, to := newBench(1000), quota.Limit{Rate: 1000, Burst: 200}
	b.connect()
	asks := 0
	for i := range 5000 {
		b.now += ms
		for range 20 { // of 20,000 requests a second 1,000 are admitted
			b.take("hot", to, 0)
		}
		asks += b.settle(i%100 != 0, true)
	}
	if asks < 45 || asks > 50+4+1 {
		t.Errorf("%d asks in 5 s", asks)
	}
}

func TestTakeDoesNotAllocate(t *testing.T) {
	b, to := newBench(1000), quota.Limit{Rate: 1e6, Burst: 1e6}
	b.connect()
	b.take("u", to, 0)
	b.settle(true, true)
	if n := testing.AllocsPerRun(1000, func() { b.take("u", to, 0) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkTake(b *testing.B) {
	h, to := newBench(1000), quota.Limit{Rate: 1e12, Burst: 1e12}
	h.connect()
	name, k := Name{Kind: "user", Tenant: "acme", Caller: "u"}, h.keys.Key(limit.User, "acme", "r", "u")
	for range 100_000 {
		h.Take(name, k, to, h.now, 0)
	}
	h.now += 100 * ms
	h.settle(false, true)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if !h.Take(name, k, to, h.now, 0).OK {
			b.StopTimer()
			h.now += 100 * ms
			h.settle(false, true)
			b.StartTimer()
		}
	}
}
