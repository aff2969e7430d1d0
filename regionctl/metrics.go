package regionctl

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cellgate/cellgate/cells"
)

// collector reads the controller's state when it is scraped.
type collector struct {
	*Controller
	leader, head, attached, store, age, served, verdict, headroom, plan, denied, regional,
	size, inUse, quota, full,
	buckets, leaseLag, leaseLost *prometheus.Desc
}

var _ prometheus.Collector = (*collector)(nil)

func newCollector(c *Controller) *collector {
	d := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("cellgate_regionctl_"+name, help, labels, nil)
	}
	return &collector{
		Controller: c,
		leader:     d("leader", "1 while this controller leads the world."),
		head:       d("published_version", "The newest published version."),
		attached:   d("attached_processes", "Processes attached to this controller."),
		store:      d("store_up", "1 while the store answers.", "store"),
		age:        d("node_report_age_seconds", "Time since the node was last heard.", "node"),
		served:     d("node_served_version", "The version that the node serves.", "node"),
		verdict:    d("cell_healthy", "1 healthy, 0 unhealthy, absent while unknown.", "cell"),
		headroom:   d("cell_headroom_ratio", "The free part of the cell's target; absent while unknown.", "cell"),
		plan:       d("plan_number", "The number of the newest steering plan."),
		denied:     d("denylist_entries", "Entries of the denylist; an alarm from 8,000, full at 10,000."),
		regional:   d("regional_orders", "Evacuations that were ordered through the regions and stand."),
		size:       d("store_size_bytes", "Size of the member's file; writes are refused when it reaches the quota.", "store", "member"),
		inUse:      d("store_in_use_bytes", "What of the member's file is in use, history included.", "store", "member"),
		quota:      d("store_quota_bytes", "The size at which the member refuses writes.", "store", "member"),
		buckets:    d("quota_buckets", "Limits whose buckets this region keeps."),
		leaseLag:   d("quota_sync_lag_seconds", "How long the last answer of another region's quota service took, or has not come for.", "region"),
		leaseLost:  d("quota_lost", "1 while another region's quota service doesn't answer and its limits are kept by the region's share.", "region"),
		full:       d("store_nospace", "1 while the member's alarm NOSPACE is raised and writes are refused.", "store", "member"),
	}
}

// Describe sends the fixed descriptions.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.leader, c.head, c.attached, c.store, c.age, c.served, c.verdict, c.headroom, c.plan, c.denied, c.regional, c.size, c.inUse, c.quota, c.full, c.buckets, c.leaseLag, c.leaseLost} {
		ch <- d
	}
}

// Collect reads everything once.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	now := c.opt.Now()
	gauge(c.leader, one(c.leading.Load()))
	gauge(c.head, float64(c.headNumber()))
	gauge(c.attached, float64(len(c.nodes.Attached())))
	gauge(c.store, one(!c.globalSeen.lost.Load()), "global")
	gauge(c.store, one(!c.regionalSeen.lost.Load()), "regional")
	gauge(c.denied, float64(c.ledger.size(now)))
	standing := 0
	for _, e := range c.ledger.evacuations() {
		if e.Standing(now) {
			standing++
		}
	}
	gauge(c.regional, float64(standing))
	for _, which := range []string{"global", "regional"} {
		c.collectSpace(gauge, which)
	}
	for _, n := range c.nodeStatuses(now) {
		if n.AgeS >= 0 {
			gauge(c.age, n.AgeS, string(n.ID))
			gauge(c.served, float64(n.Served), string(n.ID))
		}
	}
	for _, s := range c.cellStatuses(now) {
		c.collectCell(gauge, s.ID, s)
	}
	gauge(c.buckets, float64(c.Controller.quota.Buckets()))
	for _, r := range c.Controller.quota.Regions() {
		st := c.Controller.quota.Abroad(r).Stats()
		gauge(c.leaseLag, st.Lag.Seconds(), string(r))
		gauge(c.leaseLost, one(st.Lost), string(r))
	}
	if from := c.Controller.quota.Backend(); from != nil {
		st := from.Stats()
		gauge(c.leaseLag, st.Lag.Seconds(), "backend")
		gauge(c.leaseLost, one(st.Lost), "backend")
	}
	if p, ok := c.Controller.plan(); ok {
		gauge(c.plan, float64(p.Number))
	}
}

func (c *collector) collectCell(gauge func(*prometheus.Desc, float64, ...string), id cells.CellID, s CellStatus) {
	if s.Healthy != nil {
		gauge(c.verdict, one(*s.Healthy), string(id))
	}
	if s.Headroom != nil {
		gauge(c.headroom, *s.Headroom, string(id))
	}
}

func (c *collector) collectSpace(gauge func(*prometheus.Desc, float64, ...string), which string) {
	for _, u := range c.space.get(which) {
		if u.Lost {
			continue
		}
		gauge(c.size, float64(u.Size), which, u.Member)
		gauge(c.inUse, float64(u.InUse), which, u.Member)
		gauge(c.quota, float64(u.Quota), which, u.Member)
		gauge(c.full, one(u.Full), which, u.Member)
	}
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

func (c *Controller) metricsHandler() http.Handler {
	reg := prometheus.NewRegistry()
	reg.MustRegister(newCollector(c), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
}
