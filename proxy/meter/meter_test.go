package meter

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/report"
)

func exchange(status int, why reason.Reason) *proxy.Record {
	return &proxy.Record{Start: time.Now(), Total: 3 * time.Millisecond, Upstream: 2 * time.Millisecond, Tenant: "acme", Route: "orders",
		Status: status, Reason: why, Consumer: "acme", BytesIn: 5, BytesOut: 7, Attempts: 2, UpstreamID: "orders", Protocol: "HTTP/2.0", TLS: true,
		Passed: record.Authenticated | record.Authorized, Timed: true,
		Tries: []record.Attempt{{Result: retry.ConnectFailed, Took: time.Millisecond}, {Status: uint16(status), Took: 2 * time.Millisecond}}}
}

func gather(t *testing.T, m *Meter) map[string]*dto.MetricFamily {
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(m)
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	by := map[string]*dto.MetricFamily{}
	for _, f := range all {
		by[f.GetName()] = f
	}
	return by
}

func labels(f *dto.MetricFamily) []string {
	var names []string
	for _, l := range f.GetMetric()[0].GetLabel() {
		names = append(names, l.GetName())
	}
	return names
}

func TestEachMetricHasItsNameAndLabels(t *testing.T) {
	m := New()
	m.Record(exchange(429, reason.RateUser))
	m.Record(exchange(503, reason.NoEndpoint))
	r := exchange(200, reason.None)
	r.Truncated = true
	m.Record(r)
	got := gather(t, m)
	want := map[string][]string{
		"cellgate_proxy_requests_total":           {"code", "route", "tenant"},
		"cellgate_proxy_request_duration_seconds": {"route", "tenant"},
		"cellgate_proxy_added_duration_seconds":   {"route", "tenant"},
		"cellgate_proxy_body_bytes_total":         {"direction", "route", "tenant"},
		"cellgate_proxy_retries_total":            {"route", "tenant"},
		"cellgate_proxy_truncated_total":          {"route", "tenant"},
		"cellgate_proxy_rejects_total":            {"reason", "side"},
		"cellgate_proxy_limited_total":            {"consumer", "tenant"},
		"cellgate_proxy_authenticated_total":      nil,

		"cellgate_proxy_errors_total":                      {"cause", "route", "tenant"},
		"cellgate_proxy_checks_total":                      {"check", "verdict"},
		"cellgate_proxy_protocol_requests_total":           {"protocol", "tls"},
		"cellgate_proxy_stage_duration_seconds":            {"stage"},
		"cellgate_proxy_upstream_attempts_total":           {"outcome", "upstream"},
		"cellgate_proxy_upstream_attempt_duration_seconds": {"upstream"},
	}
	if len(got) != len(want) {
		t.Errorf("%d metrics, want %d", len(got), len(want))
	}
	for name, l := range want {
		if got[name] == nil || !slices.Equal(labels(got[name]), l) {
			t.Errorf("%s: %v", name, got[name])
		}
	}
	h := got["cellgate_proxy_request_duration_seconds"].GetMetric()[0].GetHistogram()
	if h.GetSampleCount() != 3 || h.GetSampleSum() != 0.009 || h.GetBucket()[5].GetCumulativeCount() != 3 || h.GetBucket()[4].GetCumulativeCount() != 0 {
		t.Errorf("%v", h)
	}
}

// value is that of the series with these values of labels, in the order of their names.
func value(f *dto.MetricFamily, labels ...string) float64 {
	for _, m := range f.GetMetric() {
		if slices.EqualFunc(m.GetLabel(), labels, func(l *dto.LabelPair, v string) bool { return l.GetValue() == v }) {
			return m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return -1
}

func TestAnExchangeCountsForItsChecksItsAttemptsAndItsWay(t *testing.T) {
	m := New()
	m.Record(exchange(200, reason.None))
	m.Record(exchange(503, reason.None))
	m.Record(exchange(500, reason.Internal))
	m.Record(exchange(403, reason.ScopeMissing))
	m.Record(exchange(503, reason.AuthUnavailable))
	limited := exchange(429, reason.RateUser)
	limited.Protocol, limited.TLS, limited.Timed = "HTTP/1.0", false, false
	m.Record(limited)
	got := gather(t, m)
	for _, c := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"errors_total", []string{"gateway", "orders", "acme"}, 2},
		{"errors_total", []string{"upstream", "orders", "acme"}, 1},
		{"checks_total", []string{"authn", "passed"}, 5},
		{"checks_total", []string{"authn", "unavailable"}, 1},
		{"checks_total", []string{"authz", "passed"}, 5},
		{"checks_total", []string{"authz", "refused"}, 1},
		{"checks_total", []string{"limits", "refused"}, 1},
		{"protocol_requests_total", []string{"HTTP/2.0", "true"}, 5},
		{"protocol_requests_total", []string{"HTTP/1.1", "false"}, 1},
		{"stage_duration_seconds", []string{"auth"}, 5},
		{"upstream_attempts_total", []string{"connect_failed", "orders"}, 6},
		{"upstream_attempts_total", []string{"failed", "orders"}, 3},
		{"upstream_attempts_total", []string{"answered", "orders"}, 3},
		{"upstream_attempt_duration_seconds", []string{"orders"}, 12},
	} {
		if n := value(got["cellgate_proxy_"+c.name], c.labels...); n != c.want {
			t.Errorf("%s%v is %v, want %v", c.name, c.labels, n, c.want)
		}
	}
}

func TestSeriesAreBoundedAndIdleOnesMakeRoom(t *testing.T) {
	m := New()
	for i := range 100_000 {
		r := exchange(200+i%600, reason.RateConsumer)
		r.Route, r.Consumer, r.UpstreamID = fmt.Sprint("r", i), fmt.Sprint("c", i), fmt.Sprint("u", i)
		m.Record(r)
	}
	n := 0
	for _, f := range gather(t, m) {
		for _, one := range f.GetMetric() {
			n += 1 + len(one.GetHistogram().GetBucket())
		}
	}
	if n > 50_000 {
		t.Errorf("%d series", n)
	}
	if got := total(gather(t, m)["cellgate_proxy_requests_total"]); got != 100_000 {
		t.Errorf("%v requests in all", got)
	}
	m.forget(time.Now().Add(time.Hour))
	r := exchange(200, reason.None)
	r.Route = "newcomer"
	m.Record(r)
	f := gather(t, m)["cellgate_proxy_requests_total"]
	if total(f) != 100_001 || !slices.ContainsFunc(f.GetMetric(), func(x *dto.Metric) bool { return x.GetLabel()[1].GetValue() == "newcomer" }) {
		t.Errorf("%v requests in all after the idle series went", total(f))
	}
}

func total(f *dto.MetricFamily) (n float64) {
	for _, one := range f.GetMetric() {
		n += one.GetCounter().GetValue()
	}
	return n
}

func TestEveryReasonIsSomebodysOrNobodysFailure(t *testing.T) {
	m := New()
	for _, c := range []struct {
		status int
		why    reason.Reason
	}{
		{200, reason.None}, {404, reason.None}, {400, reason.None}, {502, reason.None}, {503, reason.NoEndpoint}, {504, reason.UpstreamTimeout},
		{500, reason.Internal}, {503, reason.Draining}, {504, reason.TotalTimeout}, {503, reason.Overloaded},
		{401, reason.TokenMissing}, {403, reason.ScopeMissing}, {503, reason.AuthUnavailable}, {404, reason.NoRoute}, {405, reason.MethodNotAllowed},
		{429, reason.RateTenant}, {429, reason.RateUser}, {400, reason.BadRequest}, {499, reason.ClientGone}, {504, reason.DeadlineExpired},
	} {
		m.Record(exchange(c.status, c.why))
	}
	m.Record(&proxy.Record{Path: proxy.ReadyPath, Status: 200})
	c := m.Window(time.Now()).Counts
	if c.Requests != 20 || c.Missing != 1 || c.Upstream != 3 || c.Gateway != 3 || c.Shed != 1 || c.Auth != 3 || c.NoRoute != 2 || c.Limited != 2 {
		t.Errorf("%+v", c)
	}
	if w := m.Window(time.Now()); w.Counts.Requests != 0 || w.Latency.Count() != 0 {
		t.Error("a window is told twice")
	}
}

func TestNothingIsLostBetweenWindowsUnderLoad(t *testing.T) {
	m := New()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 5000 {
				m.Record(exchange(200, reason.None))
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var requests, latencies, added uint64
	for last := false; !last; {
		select {
		case <-done:
			last = true
		default:
		}
		w := m.Window(time.Now())
		requests, latencies, added = requests+w.Counts.Requests, latencies+w.Latency.Count(), added+w.Added.Count()
	}
	if requests != 20_000 || latencies != 20_000 || added != 20_000 {
		t.Errorf("%d requests, %d latencies, %d added", requests, latencies, added)
	}
}

func find(all []report.Stratum, id string) report.Stratum {
	for _, s := range all {
		if s.ID == id {
			return s
		}
	}
	return report.Stratum{}
}

func TestStrataAddUpToTheWindowAndTellColdAndHeavyApart(t *testing.T) {
	m := New()
	for i := range 300 {
		r := exchange(200, reason.None)
		r.Service, r.Host, r.Cold = "orders", "api.acme.example", i%3 == 0
		r.User = fmt.Sprint("user", i%50)
		switch {
		case i%10 == 0:
			r.Status, r.Reason, r.User = 401, reason.TokenInvalid, "hammer"
		case i%25 == 1:
			r.Status = 502
		}
		m.Record(r)
	}
	for range 7 { // a host that is nobody's, and one that is somebody's
		m.Record(&proxy.Record{Start: time.Now(), Host: "made.up", Status: 404, Reason: reason.NoRoute})
		m.Record(&proxy.Record{Start: time.Now(), Host: "api.acme.example", Status: 404, Reason: reason.NoRoute})
	}
	w := m.Window(time.Now())
	orders, host, other := find(w.Services, "orders"), find(w.Hosts, "api.acme.example"), find(w.Hosts, report.Other)
	if len(w.Services) != 1 || orders.Requests != 300 || orders.Auth != 30 || orders.Upstream != 12 || orders.Cold != 100 || orders.Warm.Count() != 200 {
		t.Errorf("%+v", w.Services)
	}
	if orders.Heavy == nil || orders.Heavy.Auth != 30 || orders.Heavy.Requests != 30 {
		t.Errorf("heaviest client %+v", orders.Heavy)
	}
	if len(w.Hosts) != 2 || host.Requests != 307 || host.NoRoute != 7 || other.NoRoute != 7 || host.Warm.Count() != 0 {
		t.Errorf("%+v", w.Hosts)
	}
	if again := m.Window(time.Now()); len(again.Services)+len(again.Hosts) != 0 {
		t.Errorf("told twice: %+v", again)
	}
}

// A client that makes most of the traffic must be seen to, though it fails late in every window: it would seem to be one of
// many, and be set aside.
func TestAClientThatHasFailedIsCountedFromTheWindowsBeginning(t *testing.T) {
	m := New()
	ask := func(user string, status int) {
		r := exchange(status, reason.None)
		r.Service, r.Host, r.User = "orders", "api.acme.example", user
		m.Record(r)
	}
	window := func(most string) report.Stratum {
		for i := range 200 {
			ask(most, 200)
			ask(fmt.Sprint("user", i%50), 200)
		}
		for range 2 {
			ask(most, 502)
		}
		return find(m.Window(time.Now()).Services, "orders")
	}
	if first := window("one"); first.Heavy == nil || first.Heavy.Requests != 2 {
		t.Errorf("before it was known: %+v", first.Heavy)
	}
	for range 3 {
		if s := window("one"); s.Heavy == nil || s.Heavy.Requests != 202 || s.Heavy.Upstream != 2 {
			t.Errorf("once it is: %+v", s.Heavy)
		}
	}
	for i := range 20 { // others take its place, and the places stay as many
		window(fmt.Sprint("other", i))
	}
	if s := window("one"); s.Heavy == nil || s.Heavy.Requests != 2 {
		t.Errorf("after it had been away: %+v", s.Heavy)
	}
}

func TestStrataAreBoundedAndTheLargestAreTold(t *testing.T) {
	m := New()
	for i := range 20_000 {
		r := exchange(200, reason.None)
		r.Service, r.Host = fmt.Sprint("s", i%1000), fmt.Sprint("h", i)
		if i%2 == 0 {
			r.Service, r.Host = "big", "big"
		}
		m.Record(r)
	}
	w := m.Window(time.Now())
	if len(w.Services) != toldStrata || len(w.Hosts) != toldStrata {
		t.Fatalf("%d services, %d hosts", len(w.Services), len(w.Hosts))
	}
	var sum uint64
	for _, s := range w.Services {
		sum += s.Requests
	}
	if sum != 20_000 || find(w.Services, "big").Requests != 10_000 || find(w.Hosts, "big").Requests != 10_000 || find(w.Services, report.Other).Requests == 0 {
		t.Errorf("%d requests, services %+v", sum, w.Services[0])
	}
	raw, err := report.EncodeNode(report.Node{ID: "a/b/1", Services: w.Services, Hosts: w.Hosts})
	if err != nil || len(raw) > report.MaxBytes+1024 {
		t.Errorf("%d bytes, %v", len(raw), err)
	}
}

func TestRecordDoesNotAllocate(t *testing.T) {
	m, r, bad := New(), exchange(200, reason.None), exchange(401, reason.TokenInvalid)
	r.Service, r.Host, r.User = "orders", "api", "ann"
	bad.Service, bad.Host, bad.Consumer, bad.Peer = "orders", "api", "", netip.MustParseAddr("192.0.2.1")
	for range 1000 {
		m.Record(r)
		m.Record(bad)
	}
	if n := testing.AllocsPerRun(1000, func() { m.Record(r); m.Record(bad) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkRecord(b *testing.B) {
	m, r := New(), exchange(200, reason.None)
	r.Service, r.Host, r.User = "orders", "api.acme.example", "ann"
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			m.Record(r)
		}
	})
}
