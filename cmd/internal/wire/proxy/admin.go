package proxy

import (
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/http3"
)

// adminHandler serves /healthz /readyz /metrics /config. /config shows what is served, no secrets: key hashes and
// certificates stay out.
func adminHandler(s *proxy.Server, metrics prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !s.Ready() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		_, _ = w.Write([]byte("ready\n"))
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(metrics, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(config(s))
	})
	return mux
}

type configView struct {
	Version   uint64         `json:"version"`
	Checksum  string         `json:"checksum"`
	Ready     bool           `json:"ready"`
	Upstreams []upstreamView `json:"upstreams"`
	Policies  []string       `json:"policies"`
	Consumers []string       `json:"consumers"`
}

type upstreamView struct {
	ID        string   `json:"id"`
	Endpoints []string `json:"endpoints"`
	Balance   string   `json:"balance"`
	Open      int      `json:"open_connections"`
	Idle      int      `json:"idle_connections"`
	Pending   int      `json:"pending"`
	Ejected   int      `json:"ejected"`
	Down      int      `json:"down"`
}

func config(s *proxy.Server) configView {
	st, p := s.Snapshot(), s.Program()
	v := configView{Version: st.Snapshot, Checksum: string(st.Checksum), Ready: st.Ready}
	if p == nil {
		return v
	}
	for _, u := range p.Upstreams {
		view := upstreamView{ID: u.ID, Endpoints: u.Endpoints, Balance: u.Balance}
		for _, n := range st.Upstreams {
			if n.ID == u.ID {
				view.Open, view.Idle, view.Pending, view.Ejected, view.Down = n.Open, n.Idle, n.Pending, n.Ejected, n.Down
			}
		}
		v.Upstreams = append(v.Upstreams, view)
	}
	for _, x := range p.Policies {
		v.Policies = append(v.Policies, x.ID)
	}
	for _, c := range p.Consumers {
		v.Consumers = append(v.Consumers, c.ID)
	}
	return v
}

// origin is where the configuration comes from: the highest version heard of, since when the served one is active, and
// when its source was last in touch.
type origin struct {
	known        uint64
	since, heard time.Time
	denied       int
	deniedAge    time.Duration // 0 where there is no denylist
}

// registry holds all metrics of the node.
func (c *core) registry(from func() origin) *prometheus.Registry {
	reg := prometheus.NewRegistry()
	reg.MustRegister(collector{c, from}, c.meter, c.shadow, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if c.traces != nil {
		reg.MustRegister(c.traces)
	}
	return reg
}

// collector reads the server's numbers when they are asked for.
type collector struct {
	*core
	from func() origin
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("cellgate_proxy_"+name, help, labels, nil)
}

func (c collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

func (c collector) Collect(ch chan<- prometheus.Metric) {
	st, from := c.server.Snapshot(), c.from()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	count(desc("exchanges_total", "Finished exchanges."), st.Requests)
	if c.access != nil {
		count(desc("access_log_lines_total", "Lines accepted by the access log."), c.access.Lines())
		count(desc("access_log_dropped_total", "Lines that the access log lost."), c.access.Dropped())
	}
	gauge(desc("snapshot_known", "Highest number of a snapshot that the node has heard of."), float64(from.known))
	if !from.since.IsZero() {
		gauge(desc("snapshot_active_seconds", "Time since the served snapshot was activated."), time.Since(from.since).Seconds())
	}
	gauge(desc("config_age_seconds", "Time since the source of the configuration was last in touch."), time.Since(from.heard).Seconds())
	gauge(desc("denylist_entries", "Callers and routes that are denied."), float64(from.denied))
	gauge(desc("denylist_age_seconds", "Time since a controller last confirmed the denylist; an alarm above 60."), from.deniedAge.Seconds())
	if l := c.limits.Leases(); l != nil {
		q := l.Stats()
		count(desc("quota_messages_total", "Messages to the region's quota service."), uint64(q.Messages))
		count(desc("quota_asks_total", "Keys in these messages."), uint64(q.Asks))
		count(desc("quota_errors_total", "Messages to the quota service that got no answer."), uint64(q.Failed))
		gauge(desc("quota_sync_lag_seconds", "How long the last answer of the quota service took, or has not come for."), q.Lag.Seconds())
		gauge(desc("quota_lost", "1 while the quota service doesn't answer and limits are kept by local shares."), one(q.Lost))
		gauge(desc("quota_keys", "Limits that the node has leases of."), float64(q.Keys))
	}
	c.collectLookups(ch)
	gauge(desc("connections", "Open client connections."), float64(st.Connections))
	count(desc("connections_refused_total", "Client connections that were closed at once, because there were as many as there may be."), st.NoRoom)
	count(desc("connections_evicted_total", "Idle client connections that were closed to make room for others."), st.Evicted)
	gauge(desc("loop_lag_seconds", "The longest that what was ready waited since this was last read: for its event loop, or, of engines without loops, of 99 in 100 goroutines for a core."), c.lag().Seconds())
	if c.cert != nil {
		c.collectHandshakes(ch)
	}
	gauge(desc("shed_level", "How much the node sheds for its own sake: background up to 1, normal up to 2, critical up to 3."), float64(st.Level)/1000)
	sheds := desc("shed_total", "Exchanges that the node did not take for its own sake.", "priority")
	for class, n := range st.Shed {
		ch <- prometheus.MustNewConstMetric(sheds, prometheus.CounterValue, float64(n), priorityName(class))
	}
	gauge(desc("in_flight", "Exchanges under way."), float64(st.InFlight))
	gauge(desc("tunnels", "Open WebSocket connections, each of which is an exchange under way."), float64(st.Tunnels))
	gauge(desc("snapshot", "Number of the snapshot that is served."), float64(st.Snapshot))
	faults := desc("http2_connection_faults_total", "HTTP/2 connections that were ended for what the client did, by error code; floods are ENHANCE_YOUR_CALM, with --engine nethttp those alone are counted.", "code")
	for code, n := range st.Faults {
		ch <- prometheus.MustNewConstMetric(faults, prometheus.CounterValue, float64(n), http2.Code(code).String())
	}
	faults = desc("http3_connection_faults_total", "HTTP/3 connections that were ended for what the client did, by error code; floods are H3_EXCESSIVE_LOAD.", "code")
	for place, n := range st.Faults3 {
		ch <- prometheus.MustNewConstMetric(faults, prometheus.CounterValue, float64(n), http3.Name(place))
	}
	collectUpstreams(ch, st.Upstreams)
}

// collectLookups tells what services were asked on behalf of requests.
func (c collector) collectLookups(ch chan<- prometheus.Metric) {
	total := desc("lookups_total", "Questions to services on behalf of requests: answered, failed, joined (another one's answer served), refused (no budget).", "service", "outcome")
	flight := desc("lookups_in_flight", "Questions to services under way.", "service")
	for _, s := range fewServices(c.asked.Stats()) {
		for outcome, n := range map[string]uint64{"answered": s.Answered, "failed": s.Failed, "joined": s.Joined, "refused": s.Refused} {
			ch <- prometheus.MustNewConstMetric(total, prometheus.CounterValue, float64(n), s.Name, outcome)
		}
		ch <- prometheus.MustNewConstMetric(flight, prometheus.GaugeValue, float64(s.InFlight), s.Name)
	}
}

// maxServices have series of their own: the first by name. All others are added up under "other".
const maxServices = 200

// fewServices are at most that many, and "other".
func fewServices(all []ask.Stats) []ask.Stats {
	if len(all) <= maxServices {
		return all
	}
	slices.SortFunc(all, func(a, b ask.Stats) int { return strings.Compare(a.Name, b.Name) })
	rest := ask.Stats{Name: "other"}
	for _, s := range all[maxServices:] {
		rest.Add(s)
	}
	return append(all[:maxServices], rest)
}

// collectHandshakes tells how clients' TLS connections begin.
func (c collector) collectHandshakes(ch chan<- prometheus.Metric) {
	begun, done := c.cert.Handshakes()
	ch <- prometheus.MustNewConstMetric(desc("tls_handshakes_started_total", "TLS handshakes that clients began; those that neither ended well nor are under way have failed."), prometheus.CounterValue, float64(begun))
	ch <- prometheus.MustNewConstMetric(desc("tls_handshakes_refused_total", "TLS handshakes that were ended before they had cost anything, because too many were ahead of them."), prometheus.CounterValue, float64(c.server.Unshaken.Load()))
	kinds := desc("tls_handshakes_total", "TLS handshakes that ended well.", "version", "resumed")
	for _, k := range done {
		ch <- prometheus.MustNewConstMetric(kinds, prometheus.CounterValue, float64(k.Count), k.Version, strconv.FormatBool(k.Resumed))
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
