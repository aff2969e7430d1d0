package meter

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/reason"
)

var _ prometheus.Collector = (*Meter)(nil)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("cellgate_proxy_"+name, help, labels, nil)
}

// Describe implements prometheus.Collector.
func (m *Meter) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(m, ch) }

// Collect implements prometheus.Collector: it adds the shards up, one lock at a time.
func (m *Meter) Collect(ch chan<- prometheus.Metric) {
	m.forget(time.Now().Add(-idle))
	sums, reasons, callers, known, more := m.sum()
	m.collectRoutes(ch, sums)
	m.collectReasons(ch, reasons)
	m.collectDetails(ch, more)
	ch <- prometheus.MustNewConstMetric(desc("authenticated_total", "Exchanges of callers whose credentials held."), prometheus.CounterValue, float64(known))
	limit := desc("limited_total", "Answers 429 by consumer.", "tenant", "consumer")
	for k, p := range withOther(m.called) {
		if n := callers[p]; n > 0 {
			ch <- prometheus.MustNewConstMetric(limit, prometheus.CounterValue, float64(n), k.tenant, k.name)
		}
	}
}

func (m *Meter) collectRoutes(ch chan<- prometheus.Metric, sums []series) {
	requests := desc("requests_total", "Exchanges by what was answered.", "tenant", "route", "code")
	latency := desc("request_duration_seconds", "Whole exchange as the client saw it.", "tenant", "route")
	own := desc("added_duration_seconds", "Whole exchange minus the time that the upstream took.", "tenant", "route")
	bytes := desc("body_bytes_total", "Bytes of bodies.", "tenant", "route", "direction")
	retries := desc("retries_total", "Attempts after the first, hedges apart.", "tenant", "route")
	errs := desc("errors_total", "Answers that were somebody's failure, by whose: the gateway's own, or the upstream's.", "tenant", "route", "cause")
	truncated := desc("truncated_total", "Answers that ended before their end.", "tenant", "route")
	counter := func(d *prometheus.Desc, n uint64, labels ...string) {
		if n > 0 {
			ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
		}
	}
	for k, p := range withOther(m.routes) {
		s := &sums[p]
		total := uint64(0)
		for i, n := range s.codes {
			total += n
			counter(requests, n, k.tenant, k.name, codeName(i))
		}
		if total == 0 {
			continue
		}
		ch <- s.latency.metric(latency, m.bounds, k.tenant, k.name)
		ch <- s.own.metric(own, m.bounds, k.tenant, k.name)
		counter(bytes, s.in, k.tenant, k.name, "in")
		counter(bytes, s.out, k.tenant, k.name, "out")
		counter(retries, s.retries, k.tenant, k.name)
		counter(truncated, s.truncated, k.tenant, k.name)
		counter(errs, s.gateway, k.tenant, k.name, "gateway")
		counter(errs, s.upstream, k.tenant, k.name, "upstream")
	}
}

// collectReasons gives every answer of the gateway's own by its reason, and the outcomes of authentication beside it.
func (m *Meter) collectReasons(ch chan<- prometheus.Metric, reasons [64]uint64) {
	rejects := desc("rejects_total", "Answers that the gateway gave itself, by reason.", "reason", "side")
	for _, why := range reason.All() {
		side := "upstream"
		if why.Gateway() {
			side = "gateway"
		}
		ch <- prometheus.MustNewConstMetric(rejects, prometheus.CounterValue, float64(reasons[why]), why.String(), side)
	}
}

func codeName(i int) string {
	if all := codes(); i < len(all) {
		return strconv.Itoa(all[i])
	}
	return strconv.Itoa(i-len(codes())+1) + "xx"
}

// withOther lists the keys with their numbers, and "other" as number 0.
func withOther(t *table) map[pair]int {
	all := map[pair]int{{other, other}: 0}
	for k, p := range t.keys.Load().all {
		all[k] = p.number
	}
	return all
}

func (m *Meter) sum() (sums []series, reasons [64]uint64, callers []uint64, known uint64, more *details) {
	more = &details{targets: make([]target, maxTargets+1)}
	sums, callers = make([]series, maxRoutes+1), make([]uint64, maxCallers+1)
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for n, one := range s.series {
			if one != nil {
				sums[n].add(one)
			}
		}
		known += s.known
		for r, n := range s.reasons {
			reasons[r] += n
		}
		for n, c := range s.limited {
			callers[n] += c
		}
		more.take(s)
		s.mu.Unlock()
	}
	return sums, reasons, callers, known, more
}

func (s *series) add(b *series) {
	for i := range s.codes {
		s.codes[i] += b.codes[i]
	}
	s.latency.add(&b.latency)
	s.own.add(&b.own)
	s.in, s.out, s.retries, s.truncated = s.in+b.in, s.out+b.out, s.retries+b.retries, s.truncated+b.truncated
	s.gateway, s.upstream = s.gateway+b.gateway, s.upstream+b.upstream
}

// forget ends the series that nobody has added to since the time; what they had counted goes to "other".
func (m *Meter) forget(before time.Time) {
	routes, callers, sent := m.routes.expire(before), m.called.expire(before), m.sent.expire(before)
	if len(routes)+len(callers)+len(sent) == 0 {
		return
	}
	for _, n := range routes {
		m.seen[n].Store(nil)
	}
	for i := range m.shards {
		s := &m.shards[i]
		s.mu.Lock()
		for _, n := range routes {
			if s.series[n] == nil {
				continue
			}
			if s.series[0] == nil {
				s.series[0] = &series{}
			}
			s.series[0].add(s.series[n])
			s.series[n] = nil
		}
		for _, n := range callers {
			s.limited[0] += s.limited[n]
			s.limited[n] = 0
		}
		s.retire(sent)
		s.mu.Unlock()
	}
	m.routes.release(routes)
	m.called.release(callers)
	m.sent.release(sent)
}
