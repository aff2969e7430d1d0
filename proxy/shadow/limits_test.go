package shadow

import (
	"context"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
)

const limitedDocument = `
version: v1
routes: [{id: r, match: {host: a.example, path: /r}, upstream: up, limits: {tenant: 2/hour, user: 1/hour, mode: shadow}}]
upstreams: [{id: up, endpoints: ["127.0.0.1:1"]}]
`

// from runs a request of this address, which never waits, and says why it was refused.
func from(t *testing.T, s *proxy.Server, address string) reason.Reason {
	t.Helper()
	x := s.Acquire()
	defer s.Release(x)
	x.Start, x.Peer, x.PeerText = time.Now(), netip.MustParseAddr(address), address
	if _, err := x.Request.Parse([]byte("GET /r HTTP/1.1\r\nHost: a.example\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if v := x.Run(time.Now()); v == proxy.Park || x.Parked {
		t.Fatal("it waits")
	}
	return x.Reason
}

// J3: limits in shadow mode spend for the requests that enforcing them would have let pass, and neither refuse nor give back.
func TestLimitsInShadowModeCountWhatTheyWouldHaveRefused(t *testing.T) {
	w := New(byPolicy{}, nil, slog.New(slog.DiscardHandler))
	s := serverOf(t, limitedDocument+"tenants: [{id: acme, hosts: [a.example], limits: {rate: 5/hour}}]\n", callers.NewLimiter(time.Now()), w)
	const first, second, third = "192.0.2.1", "192.0.2.2", "192.0.2.3"
	for i, address := range []string{first, first, second, third, first} {
		if why := from(t, s, address); why != reason.None {
			t.Errorf("request %d: %v", i, why)
		}
	}
	if why := from(t, s, third); why != reason.RateTenant {
		t.Errorf("beyond what is enforced: %v", why)
	}
	c := w.of(subject{"limits", "r"})
	if pass, user, tenant := c[reason.None].Load(), c[reason.RateUser].Load(), c[reason.RateTenant].Load(); pass != 2 || user != 2 || tenant != 1 {
		t.Errorf("%d pass, %d are beyond the user's limit, %d beyond the tenant's", pass, user, tenant)
	}
}

// The limits of platform, tenant, plan and route are tried each by itself: what one would have refused another may count.
func TestRatesOfTenantsAndPlansAreTriedByThemselves(t *testing.T) {
	w := New(byPolicy{}, nil, slog.New(slog.DiscardHandler))
	s := serverOf(t, strings.Replace(limitedDocument, "upstream: up,", "upstream: up, auth: now,", 1)+`
policies: [{id: now, api_key: {}}]
plans: [{id: pro, rate_per_sec: 3, quota_per_day: 2, mode: shadow}]
consumers: [{id: c, plan: pro}]
tenants: [{id: "*", limits: {rate: 4/hour, mode: shadow}}, {id: acme, hosts: [a.example], limits: {rate: 3/hour, mode: shadow}}]
`, callers.NewLimiter(time.Now()), w)
	for range 6 {
		if why := from(t, s, "192.0.2.1"); why != reason.None {
			t.Error(why)
		}
	}
	for s, want := range map[subject][2]uint64{{"tenant", "*"}: {4, 2}, {"tenant", "acme"}: {3, 3}, {"plan", "pro"}: {2, 4}, {"limits", "r"}: {1, 5}} {
		c, refused := w.of(s), uint64(0)
		for _, why := range []reason.Reason{reason.RatePlatform, reason.RateTenant, reason.RateConsumer, reason.QuotaConsumer, reason.RateUser} {
			refused += c[why].Load()
		}
		if got := [2]uint64{c[reason.None].Load(), refused}; got != want {
			t.Errorf("%s: %d pass, %d don't, want %d", s, got[0], got[1], want)
		}
	}
}

// late is a limiter that has to be waited for twice, and then refuses; who has waited enough passes.
type late chan struct{}

func (late) Aim([]proxy.Claim) {}

func (l late) Take(_ []proxy.Claim, waits int, _ time.Time) (int, <-chan struct{}) {
	switch {
	case waits < 2:
		return -1, l
	case waits == enough:
		return -1, nil
	}
	return 0, nil
}

func TestALeaseIsWaitedForInPlaceOfTheRequest(t *testing.T) {
	w, gate := New(byPolicy{}, nil, slog.New(slog.DiscardHandler)), make(late)
	s := serverOf(t, strings.Replace(limitedDocument, "tenant: 2/hour, ", "", 1), gate, w)
	for range waits + 10 {
		if why := from(t, s, "192.0.2.1"); why != reason.None {
			t.Fatal(why)
		}
	}
	c := w.of(subject{"limits", "r"})
	if n := c[reason.None].Load(); n != 10 {
		t.Errorf("%d are decided at once, for want of room", n)
	}
	close(gate)
	comes(t, c, reason.RateUser, waits)
}

// The same with leases of a node that hears nothing from its region: a strict limit would have refused once its patience has ended.
func TestLeasesThatNobodyGrantsAreDecidedInTime(t *testing.T) {
	w, limits := New(byPolicy{}, nil, slog.New(slog.DiscardHandler)), callers.NewShared(time.Now().Add(-time.Minute))
	limits.Leases().Connected()
	s := serverOf(t, strings.Replace(limitedDocument, "tenant: 2/hour", "on_store_loss: deny", 1), limits, w)
	if why := from(t, s, "192.0.2.1"); why != reason.None {
		t.Fatal(why)
	}
	if len(w.waiting) != 1 {
		t.Fatal("the lease isn't waited for")
	}
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() { _ = limits.Leases().Watch(ctx) })
	t.Cleanup(func() { cancel(); watch.Wait() })
	comes(t, w.of(subject{"limits", "r"}), reason.RateUser, 1)
}

func TestSpendDoesNotAllocate(t *testing.T) {
	w, limits := New(byPolicy{}, nil, slog.New(slog.DiscardHandler)), callers.NewLimiter(time.Now())
	list := []proxy.Claim{{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.RateTenant, Route: "r"}}}
	list[0].Limit.Rate, list[0].Limit.Burst = 1e9, 1e9
	at := &program.Match{Route: &program.Route{ID: "r"}, Tenant: "acme"}
	if n := testing.AllocsPerRun(1000, func() { w.Spend(at, "id", limits, list, time.Now()) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if n := w.of(subject{"limits", "r"})[reason.None].Load(); n < 1000 {
		t.Errorf("%d pass", n)
	}
}
