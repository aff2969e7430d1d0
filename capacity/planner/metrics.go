package planner

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Collector shows the newest view as metrics, computed when they are asked for. Unknown figures are absent.
func (p *Planner) Collector() prometheus.Collector {
	return &collector{
		planner:  p,
		headroom: prometheus.NewDesc("cellgate_capacity_headroom_ratio", "Free part of the target of a cell, a region or the globe.", []string{"scope", "id"}, nil),
		unplaced: prometheus.NewDesc("cellgate_capacity_loss_unplaced_rps", "Requests per second without confirmed room if this cell or region were lost.", []string{"lost"}, nil),
		age:      prometheus.NewDesc("cellgate_capacity_status_age_seconds", "How old the status behind the figures is.", nil, nil),
		errors:   prometheus.NewDesc("cellgate_capacity_status_errors_total", "Readings of the status that failed.", nil, nil),
	}
}

type collector struct {
	planner                         *Planner
	headroom, unplaced, age, errors *prometheus.Desc
}

func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.headroom, c.unplaced, c.age, c.errors} {
		ch <- d
	}
}

func (c *collector) Collect(ch chan<- prometheus.Metric) {
	c.planner.mu.Lock()
	failed := c.planner.errors
	c.planner.mu.Unlock()
	ch <- prometheus.MustNewConstMetric(c.errors, prometheus.CounterValue, float64(failed))
	v := c.planner.View(time.Now())
	if v.AgeS >= 0 {
		ch <- prometheus.MustNewConstMetric(c.age, prometheus.GaugeValue, v.AgeS)
	}
	row := func(scope string, r Row) {
		if r.Headroom != nil {
			ch <- prometheus.MustNewConstMetric(c.headroom, prometheus.GaugeValue, *r.Headroom, scope, r.ID)
		}
	}
	row("globe", v.Globe)
	for _, r := range v.Regions {
		row("region", r)
	}
	for _, r := range v.Cells {
		row("cell", r)
	}
	for _, l := range v.Losses {
		ch <- prometheus.MustNewConstMetric(c.unplaced, prometheus.GaugeValue, l.UnplacedRPS, l.Lost)
	}
}
