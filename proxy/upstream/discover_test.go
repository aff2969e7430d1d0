package upstream

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/snapshot"
)

// told is a finder that says what it is told to.
type told struct{ sets chan []snapshot.Endpoint }

func (f told) Follow(ctx context.Context, _ snapshot.Discovery, found func([]snapshot.Endpoint)) {
	for {
		select {
		case <-ctx.Done():
			return
		case all := <-f.sets:
			found(all)
		}
	}
}

func set(addresses ...string) (all []snapshot.Endpoint) {
	for _, a := range addresses {
		all = append(all, snapshot.Endpoint{Address: a})
	}
	return all
}

// choices are the endpoints that may be chosen, by name.
func choices(p *Pool) map[string]bool {
	all := map[string]bool{}
	for n := range uint64(64) {
		if i, _ := p.Choose(balance.Ask{Now: time.Now(), Random: n * 0x0404040404040404}); i >= 0 {
			all[p.Name(i)] = true
			p.Cancel(i)
		}
	}
	return all
}

func settles(t *testing.T, p *Pool, want ...string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		got := choices(p)
		ok := len(got) == len(want)
		for _, name := range want {
			ok = ok && got[name]
		}
		if ok {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%v may be chosen, not %v", got, want)
		}
	}
}

func TestEndpointsComeAndGoWithDiscovery(t *testing.T) {
	f := told{make(chan []snapshot.Endpoint, 4)}
	a, b := sink(t), sink(t)
	f.sets <- set(a, b)
	u := snapshot.Upstream{ID: "u", Discovery: snapshot.Discovery{DNS: "orders.internal:80"}, SlowStart: snapshot.Never}
	file := filepath.Join(t.TempDir(), "endpoints.json")
	r, p := one(t, u, Options{Finder: f, EndpointsFile: file})
	settles(t, p, a, b)
	c, err := p.Acquire(0, false, time.Now(), in(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	p.Release(c, true, time.Now())
	f.sets <- set(b)
	settles(t, p, b)
	if s := p.stats(time.Now()); s.Idle != 0 || s.Endpoints != 1 {
		t.Fatalf("%d connections to one that has left, %d endpoints", s.Idle, s.Endpoints)
	}
	f.sets <- append(set(b, "169.254.169.254:80", "not an address"), snapshot.Endpoint{Address: a})
	settles(t, p, a, b)
	if s := p.stats(time.Now()); s.Refused != 2 || p.Set.Len() != 2 {
		t.Fatalf("%d addresses refused, %d numbers given", s.Refused, p.Set.Len())
	}
	f.sets <- set("169.254.169.254:80", "0.0.0.0:80") // nothing of it is an endpoint's
	for end := time.Now().Add(5 * time.Second); p.stats(time.Now()).Refused < 4 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	settles(t, p, a, b)
	u.Pool.MaxPending = 9 // what is known stays known under another definition
	pools, err := r.Pools([]snapshot.Upstream{u})
	if err != nil {
		t.Fatal(err)
	}
	r.Retire(pools)
	settles(t, pools[0], a, b)
	r.Sweep(time.Now())

	_, again := one(t, u, Options{Finder: told{make(chan []snapshot.Endpoint)}, EndpointsFile: file}) // discovery is dead
	settles(t, again, a, b)
	f.sets <- nil // it is believed
	settles(t, pools[0])
}

func TestWhatIsFoundBeyondTheBoundIsPassedOver(t *testing.T) {
	f := told{make(chan []snapshot.Endpoint, 4)}
	var many []string
	for i := range maxFound + 10 {
		many = append(many, fmt.Sprintf("127.22.%d.%d:80", 2+i/200, 1+i%200))
	}
	f.sets <- set(many...)
	r, p := one(t, snapshot.Upstream{ID: "u", Discovery: snapshot.Discovery{Consul: "u"}}, Options{Finder: f})
	for end := time.Now().Add(5 * time.Second); p.Set.Len() < maxFound && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	f.sets <- set(many[0], "127.22.9.9:80")
	settles(t, p, many[0])
	r.Sweep(time.Now().Add(3 * time.Minute)) // others have left for long
	settles(t, p, many[0], "127.22.9.9:80")
}
