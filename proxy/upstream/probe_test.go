package upstream

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/snapshot"
)

// probed is an endpoint that answers its probes with the status, over HTTP/1.1 or HTTP/2 alone.
func probed(t *testing.T, status *atomic.Int32, over2 bool) (addr string, asked *atomic.Int32) {
	asked = new(atomic.Int32)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/up" || r.Host != "orders.internal" {
			t.Errorf("a probe asks %s of %s", r.URL.Path, r.Host)
		}
		asked.Add(1)
		w.WriteHeader(int(status.Load()))
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetHTTP1(!over2)
	s.Config.Protocols.SetUnencryptedHTTP2(over2)
	s.Start()
	t.Cleanup(s.Close)
	return s.Listener.Addr().String(), asked
}

func TestThreeProbesTakeAnEndpointOutAndTwoBringItBack(t *testing.T) {
	for _, protocol := range []string{snapshot.DefaultProtocol, snapshot.ProtocolH2C} {
		t.Run(protocol, func(t *testing.T) { threeProbes(t, protocol) })
	}
}

func threeProbes(t *testing.T, protocol string) {
	var bad, good atomic.Int32
	bad.Store(500)
	good.Store(204)
	a, _ := probed(t, &bad, protocol != snapshot.DefaultProtocol)
	b, asked := probed(t, &good, protocol != snapshot.DefaultProtocol)
	h := snapshot.Health{Path: "/up", Host: "orders.internal", Interval: 100 * time.Millisecond, Timeout: 80 * time.Millisecond}
	r, p := one(t, snapshot.Upstream{ID: "u", Endpoints: []string{a, b}, Health: h, Protocol: protocol}, Options{})
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal(what)
			}
		}
	}
	until("500 three times is not down", func() bool { return p.Set.Down(0) })
	for n := range uint64(50) {
		if i := p.Set.Pick(balance.Ask{Now: time.Now(), Random: n << 56}); i != 1 {
			t.Fatalf("picked %d while 0 is down", i)
		}
	}
	if s := p.stats(time.Now()); s.Down != 1 || s.Endpoints != 2 {
		t.Fatalf("%+v", s)
	}
	bad.Store(302)
	until("302 twice is not up", func() bool { return !p.Set.Down(0) })
	bad.Store(500)
	until("not down again", func() bool { return p.Set.Down(0) })
	pools, err := r.Pools([]snapshot.Upstream{{ID: "u", Endpoints: []string{a, b}, Protocol: protocol}})
	if err != nil {
		t.Fatal(err)
	}
	if r.Retire(pools); pools[0].Set.Down(0) {
		t.Fatal("down for ever, with nobody left to ask")
	}
	n := asked.Load()
	time.Sleep(250 * time.Millisecond)
	if asked.Load() != n || n < 3 {
		t.Fatalf("%d probes, then %d after the end", n, asked.Load())
	}
}

func TestAVerdictNeedsItsRow(t *testing.T) {
	v := verdict{down: 3, up: 2}
	for i, step := range []struct{ ok, down, changed bool }{
		{false, false, false}, {false, false, false}, {true, false, false}, {false, false, false}, {false, false, false}, {false, true, true},
		{false, true, false}, {true, true, false}, {false, true, false}, {true, true, false}, {true, false, true}, {true, false, false},
	} {
		if changed := v.take(step.ok); changed != step.changed || v.isDown != step.down {
			t.Fatalf("step %d: changed %v, down %v", i, changed, v.isDown)
		}
	}
}
