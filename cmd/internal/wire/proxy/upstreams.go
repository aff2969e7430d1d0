package proxy

import (
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy/breaker"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/snapshot"
)

// maxUpstreams have series of their own: the first by id. All others are added up under "other".
const maxUpstreams = 250

// maxZones of upstreams have series of their own; of an upstream's further ones the worst is told as "other".
const maxZones = 1000

// priorityName is the priority of a class.
func priorityName(class int) string {
	return string([]cells.Priority{cells.PriorityBackground, cells.PriorityNormal, cells.PriorityCritical}[class])
}

// collectUpstreams gives the numbers of the pools, sorted by id. One id may have two pools while one of them retires.
func collectUpstreams(ch chan<- prometheus.Metric, pools []upstream.Stats) {
	var all []upstream.Stats
	for _, p := range pools {
		n := len(all)
		switch {
		case n > 0 && all[n-1].ID == p.ID:
			all[n-1].Add(p)
		case n < maxUpstreams:
			all = append(all, p)
		case n == maxUpstreams:
			p.ID, p.Breakers = "other", nil
			all = append(all, p)
		default:
			all[n-1].Add(p)
		}
	}
	open, pending := desc("upstream_connections", "Open connections to an upstream.", "upstream"), desc("upstream_pending", "Exchanges that wait for a connection.", "upstream")
	ejected := desc("upstream_ejected", "Endpoints that are out for failing.", "upstream")
	endpoints := desc("upstream_endpoints", "Endpoints of an upstream: usable, out for failing, down by active probes.", "upstream", "state")
	ejections := desc("upstream_ejections_total", "Endpoints that were taken out for failing.", "upstream")
	bound := desc("upstream_connections_limit", "Connections to an upstream that may be open; of one that speaks HTTP/2, exchanges on them.", "upstream")
	amplified := desc("upstream_amplification_ratio", "Requests sent for each one that came, with retries and hedges, of the last ten seconds; 1 when none came.", "upstream")
	load := desc("upstream_in_flight", "Attempts under way, by how far the endpoint is.", "upstream", "distance")
	circuit := desc("upstream_breaker_state", "Breaker of a zone of an upstream: 0 closed, 1 open, 2 probing, 3 restoring.", "upstream", "zone")
	opened := desc("upstream_breaker_opened_total", "How often breakers have opened.", "upstream", "zone")
	limit := desc("upstream_limit", "Exchanges that may be under way at an upstream, queued ones included.", "upstream")
	under := desc("upstream_exchanges", "Exchanges under way at an upstream, queued ones included.", "upstream")
	sheds := desc("upstream_shed_total", "Exchanges that found no room at an upstream.", "upstream", "priority")
	hedges := desc("upstream_hedges_total", "Late reads that were sent once more, by whether the second answer was the first to come.", "upstream", "won")
	refused := desc("upstream_refused_addresses_total", "Addresses that discovery told and that may not be dialled.", "upstream")
	heard := desc("upstream_endpoints_age_seconds", "Time since discovery last changed the endpoints.", "upstream")
	zones := maxZones
	for _, u := range all {
		if u.Discovered {
			ch <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(u.Refused), u.ID)
			if !u.Heard.IsZero() {
				ch <- prometheus.MustNewConstMetric(heard, prometheus.GaugeValue, time.Since(u.Heard).Seconds(), u.ID)
			}
		}
		gauge := func(d *prometheus.Desc, v int, labels ...string) {
			ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(v), append([]string{u.ID}, labels...)...)
		}
		gauge(open, u.Open)
		gauge(pending, u.Pending)
		gauge(ejected, u.Ejected)
		gauge(endpoints, max(0, u.Endpoints-u.Ejected-u.Down), "usable")
		gauge(endpoints, u.Ejected, "ejected")
		gauge(endpoints, u.Down, "down")
		for i, distance := range []string{"zone", "region", "far"} {
			gauge(load, u.Load[i], distance)
		}
		ch <- prometheus.MustNewConstMetric(hedges, prometheus.CounterValue, float64(u.HedgesWon), u.ID, "true")
		ch <- prometheus.MustNewConstMetric(hedges, prometheus.CounterValue, float64(u.Hedges-u.HedgesWon), u.ID, "false")
		gauge(limit, u.Bound)
		gauge(bound, u.Max)
		ch <- prometheus.MustNewConstMetric(amplified, prometheus.GaugeValue, 1+float64(u.Repeats)/float64(max(1, u.Originals)), u.ID)
		gauge(under, u.Under)
		for class, n := range u.Shed {
			ch <- prometheus.MustNewConstMetric(sheds, prometheus.CounterValue, float64(n), u.ID, priorityName(class))
		}
		own := min(len(u.Breakers), zones)
		zones -= own
		for _, b := range withRest(u.Breakers, own) {
			zone := strings.Trim(b.Zone.Region+"/"+b.Zone.Zone, "/")
			gauge(circuit, int(b.State), zone)
			ch <- prometheus.MustNewConstMetric(opened, prometheus.CounterValue, float64(b.Opened), u.ID, zone)
		}
		ch <- prometheus.MustNewConstMetric(ejections, prometheus.CounterValue, float64(u.Ejections), u.ID)
	}
}

// withRest are the first breakers as they are, and the others as one: open if any of them is, else the next worst.
func withRest(all []upstream.BreakerStats, first int) []upstream.BreakerStats {
	if first == len(all) {
		return all
	}
	rest := upstream.BreakerStats{Zone: snapshot.Locality{Region: "other"}}
	for _, b := range all[first:] {
		rest.Opened += b.Opened
		if b.State != breaker.Closed && (rest.State == breaker.Closed || b.State < rest.State) {
			rest.State = b.State
		}
	}
	return append(all[:first:first], rest)
}
