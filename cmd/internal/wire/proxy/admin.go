package proxy

import (
	"encoding/json"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http2"
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
				view.Open, view.Idle, view.Pending, view.Ejected = n.Open, n.Idle, n.Pending, n.Ejected
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
	reg.MustRegister(collector{c, from}, c.meter, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
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
	gauge(desc("connections", "Open client connections."), float64(st.Connections))
	if lag, ok := c.lag(); ok {
		gauge(desc("loop_lag_seconds", "The longest that an event loop took for one turn since this was last read."), lag.Seconds())
	}
	gauge(desc("in_flight", "Exchanges under way."), float64(st.InFlight))
	gauge(desc("tunnels", "Open WebSocket connections, each of which is an exchange under way."), float64(st.Tunnels))
	gauge(desc("snapshot", "Number of the snapshot that is served."), float64(st.Snapshot))
	faults := desc("http2_connection_faults_total", "HTTP/2 connections that were ended for what the client did, by error code; floods are ENHANCE_YOUR_CALM.", "code")
	for code, n := range st.Faults {
		ch <- prometheus.MustNewConstMetric(faults, prometheus.CounterValue, float64(n), http2.Code(code).String())
	}
	open, pending := desc("upstream_connections", "Open connections to an upstream.", "upstream"), desc("upstream_pending", "Exchanges that wait for a connection.", "upstream")
	ejected := desc("upstream_ejected", "Endpoints that are out for failing.", "upstream")
	for _, u := range st.Upstreams {
		gauge(open, float64(u.Open), u.ID)
		gauge(pending, float64(u.Pending), u.ID)
		gauge(ejected, float64(u.Ejected), u.ID)
	}
}
