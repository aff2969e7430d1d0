package probe

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector shows the newest looks as metrics, read when they are asked for.
func (p *Prober) Collector() prometheus.Collector {
	labels := []string{"cell", "node"}
	return &collector{
		prober:  p,
		ok:      prometheus.NewDesc("cellgate_probe_success", "1 when the newest look reached the target, else 0; node is empty for a cell's front door.", labels, nil),
		latency: prometheus.NewDesc("cellgate_probe_duration_seconds", "How long the newest look took, handshake included.", labels, nil),
		total:   prometheus.NewDesc("cellgate_probes_total", "Looks since the start, by outcome.", []string{"ok"}, nil),
	}
}

type collector struct {
	prober             *Prober
	ok, latency, total *prometheus.Desc
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.ok
	ch <- c.latency
	ch <- c.total
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	p := c.prober
	p.mu.Lock()
	defer p.mu.Unlock()
	for t, s := range p.seen {
		success := 0.0
		if s.probe.OK {
			success = 1
		}
		labels := []string{string(t.cell), string(t.node)}
		ch <- prometheus.MustNewConstMetric(c.ok, prometheus.GaugeValue, success, labels...)
		ch <- prometheus.MustNewConstMetric(c.latency, prometheus.GaugeValue, s.probe.Latency.Seconds(), labels...)
	}
	for ok, n := range p.total {
		ch <- prometheus.MustNewConstMetric(c.total, prometheus.CounterValue, float64(n), strconv.FormatBool(ok))
	}
}
