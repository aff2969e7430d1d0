package globalrouter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/globalrouter/steer"
)

// Collector reads the server's counters, and the age of the plan when the metrics are asked for.
type Collector struct {
	Server  *Server
	Outlook *Outlook // nil = a router without a view of its own
	Now     func() time.Time
}

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("cellgate_globalrouter_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (c Collector) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(c, ch) }

// Collect implements prometheus.Collector.
func (c Collector) Collect(ch chan<- prometheus.Metric) {
	s := c.Server.Stats()
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	answers := desc("answers_total", "Answers by response code.", "rcode")
	for _, rcode := range rcodes {
		count(answers, s.Answers[rcode], rcode)
	}
	count(desc("slow_answers_total", "Answers by the slow path."), s.Slow)
	count(desc("truncated_answers_total", "Answers that sent the client to TCP."), s.Truncated)
	count(desc("dropped_total", "Packets that were not answered, and answers that the kernel did not take."), s.Dropped)
	count(desc("tcp_connections_total", "TCP connections accepted."), s.TCP)
	count(desc("tcp_refused_total", "TCP connections closed at the bound."), s.Refused)
	if c.Outlook != nil {
		c.collectView(ch, c.Outlook.Page())
	}
	t := c.Server.Table()
	if t == nil || t.Plan() == nil {
		gauge(desc("plan_number", "Number of the served plan; 0 = none."), 0)
		return
	}
	p := t.Plan()
	gauge(desc("plan_number", "Number of the served plan; 0 = none."), float64(p.Number))
	gauge(desc("plan_epoch", "Epoch of the served plan."), float64(p.Epoch))
	gauge(desc("plan_age_seconds", "Time since the served plan was made."), c.Now().Sub(p.Created).Seconds())
	gauge(desc("plan_all_down", "1 when the plan answers as if all were up because nothing is."), float64(b2i(p.AllDown)))
}

func (c Collector) collectView(ch chan<- prometheus.Metric, p Page) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	gauge(desc("view_blind", "1 when so much looks dead that the router takes itself for blind and serves the plan as it is."), float64(b2i(p.Blind)))
	gauge(desc("view_all_up_sets", "Sets without a living cell, answered as if all were up."), float64(len(p.AllUp)))
	gauge(desc("view_orders", "Evacuations that the router knows from signed overrides."), float64(len(p.Orders)))
	withdrawn := desc("view_withdrawn_ratio", "Part of a cell's slots that the router takes out of the plan by its own view.", "cell")
	for id, cell := range p.Cells {
		if cell.Share > 0 {
			gauge(withdrawn, float64(cell.Share)/steer.Slots, string(id))
		}
	}
}
