package proxy

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/discovery/consul"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/balance"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/shadow"
	"github.com/cellgate/cellgate/proxy/traces"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

const mostSeries = 50_000

// series counts what a registry shows, each bucket, sum and count of a histogram for itself.
func series(t *testing.T, reg *prometheus.Registry) (n int) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			n++
			if h := m.GetHistogram(); h != nil {
				n += len(h.GetBucket()) + 2 // the last bucket, the sum
			}
		}
	}
	return n
}

// K1: tenants, routes, consumers, upstreams, zones and services without end, every status, every outcome, come to a bounded number
// of series.
func TestANodeNeverHasMoreThan50000Series(t *testing.T) {
	c, err := newCore(slog.New(slog.DiscardHandler), time.Now(), callers.NewShared(time.Now()), snapshot.Loopback(), snapshot.Locality{}, nil, consul.Options{}, traces.Options{URL: "http://127.0.0.1:1"}, "", "", "")
	if err != nil {
		t.Fatal(err)
	}
	results := []record.Attempt{{Status: 500}}
	for r := retry.Answered; r <= retry.Fatal; r++ {
		results = append(results, record.Attempt{Result: r})
	}
	for status := 100; status < 600; status++ { // every route has had every status
		for i := range 410 {
			c.meter.Record(&proxy.Record{Start: time.Now(), Tenant: fmt.Sprint("t", i%50), Route: fmt.Sprint("r", i), Status: status, Truncated: true})
		}
	}
	for i := range 5000 {
		r := proxy.Record{Start: time.Now(), Tenant: fmt.Sprint("t", i%50), Route: fmt.Sprint("r", i%410), Consumer: fmt.Sprint("c", i), UpstreamID: fmt.Sprint("u", i%300),
			Status: 429, Reason: reason.RateConsumer, BytesIn: 1, BytesOut: 1, Tries: results}
		c.meter.Record(&r)
		r.Status, r.Reason = 503, []reason.Reason{reason.Internal, reason.NoEndpoint}[i/2500]
		c.meter.Record(&r)
	}
	var pools stats
	for i := range 5 * maxUpstreams {
		u := upstream.Stats{ID: fmt.Sprintf("u%05d", i), Discovered: true, Heard: time.Now()}
		for z := range balance.Slices {
			u.Breakers = append(u.Breakers, upstream.BreakerStats{Zone: snapshot.Locality{Region: "r", Zone: fmt.Sprint(z)}})
		}
		pools = append(pools, u)
	}
	reg := c.registry(func() origin { return origin{} })
	reg.MustRegister(pools)
	services := make([]ask.Stats, 10_000)
	n := series(t, reg) + shadow.MaxSeries + 5*len(fewServices(services))
	t.Logf("%d series", n)
	if n > mostSeries || n < mostSeries/2 {
		t.Errorf("%d series, at most %d", n, mostSeries)
	}
}

func TestZonesBeyondTheBoundAreToldByTheirWorst(t *testing.T) {
	all := []upstream.BreakerStats{{Opened: 1}, {Opened: 2, State: 3}, {Opened: 3, State: 1}, {Opened: 4}}
	got := withRest(all, 1)
	if len(got) != 2 || got[1].Zone.Region != "other" || got[1].State != 1 || got[1].Opened != 9 || got[0] != all[0] {
		t.Errorf("%+v", got)
	}
	if len(withRest(all, len(all))) != len(all) {
		t.Error("all fit, and one is told as other")
	}
}
