package proxy

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/proxy/breaker"
	"github.com/cellgate/cellgate/proxy/shed"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/snapshot"
)

// stats collects the metrics of these pools alone.
type stats []upstream.Stats

func (s stats) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(s, ch) }
func (s stats) Collect(ch chan<- prometheus.Metric) { collectUpstreams(ch, s) }

func gathered(t *testing.T, s stats) map[string][]map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(s)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			one := map[string]float64{}
			for _, l := range m.GetLabel() {
				one[l.GetName()+"="+l.GetValue()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
			all[f.GetName()] = append(all[f.GetName()], one)
		}
	}
	return all
}

// K1, of upstreams.
func TestUpstreamsHaveTheirMetrics(t *testing.T) {
	one := upstream.Stats{ID: "u", Open: 3, Pending: 2, Endpoints: 9, Ejected: 2, Down: 1, Ejections: 7}
	one.Load[1], one.Under, one.Bound = 5, 4, 100
	one.Hedges, one.HedgesWon, one.Max, one.Originals, one.Repeats = 5, 2, 64, 100, 50
	one.Discovered, one.Refused, one.Heard = true, 3, time.Now().Add(-time.Hour)
	one.Shed = [shed.Classes]uint64{6, 1, 0}
	one.Breakers = []upstream.BreakerStats{{Zone: snapshot.Locality{Region: "eu", Zone: "a"}, State: breaker.Probing, Opened: 3}}
	got := gathered(t, stats{one, one}) // a pool and its successor
	for name, labels := range map[string]map[string]float64{
		"cellgate_proxy_upstream_connections":             {"upstream=u": 6},
		"cellgate_proxy_upstream_pending":                 {"upstream=u": 4},
		"cellgate_proxy_upstream_ejected":                 {"upstream=u": 4},
		"cellgate_proxy_upstream_ejections_total":         {"upstream=u": 14},
		"cellgate_proxy_upstream_endpoints":               {"state=usable": 12, "state=ejected": 4, "state=down": 2},
		"cellgate_proxy_upstream_breaker_state":           {"zone=eu/a": 2},
		"cellgate_proxy_upstream_breaker_opened_total":    {"zone=eu/a": 3},
		"cellgate_proxy_upstream_limit":                   {"upstream=u": 200},
		"cellgate_proxy_upstream_connections_limit":       {"upstream=u": 128},
		"cellgate_proxy_upstream_amplification_ratio":     {"upstream=u": 1.5},
		"cellgate_proxy_upstream_exchanges":               {"upstream=u": 8},
		"cellgate_proxy_upstream_shed_total":              {"priority=background": 12, "priority=normal": 2, "priority=critical": 0},
		"cellgate_proxy_upstream_hedges_total":            {"won=true": 4, "won=false": 6},
		"cellgate_proxy_upstream_refused_addresses_total": {"upstream=u": 6},
		"cellgate_proxy_upstream_in_flight":               {"distance=zone": 0, "distance=region": 10, "distance=far": 0},
	} {
		for label, want := range labels {
			if !slices.ContainsFunc(got[name], func(m map[string]float64) bool { v, ok := m[label]; return ok && v == want }) {
				t.Errorf("%s: no %s of %v in %v", name, label, want, got[name])
			}
		}
	}
	if age := got["cellgate_proxy_upstream_endpoints_age_seconds"]; len(age) != 1 || age[0]["upstream=u"] < 3600 {
		t.Errorf("the age of what discovery told is %v", age)
	}
	var many stats
	for i := range 5 * maxUpstreams {
		many = append(many, upstream.Stats{ID: fmt.Sprintf("u%04d", i), Open: 1})
	}
	open := gathered(t, many)["cellgate_proxy_upstream_connections"]
	if len(open) != maxUpstreams+1 || !slices.ContainsFunc(open, func(m map[string]float64) bool { return m["upstream=other"] == 4*maxUpstreams }) {
		t.Errorf("%d series of %d upstreams", len(open), len(many))
	}
}
