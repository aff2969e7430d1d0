package meter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/reason"
)

// outcomes are what attempts come to: those of retry.Result, and an answer that says that the upstream has failed.
const (
	failed   = int(retry.Fatal) + 1
	outcomes = failed + 1
)

func outcomeName(i int) string {
	if i == failed {
		return "failed"
	}
	return retry.Result(i).String()
}

// target are the counters of one upstream's attempts.
type target struct {
	outcomes [outcomes]uint64
	took     histogram
}

// histogram counts durations.
type histogram struct {
	buckets [nBounds]uint64
	sum     time.Duration
}

func (h *histogram) add(b *histogram) {
	for i := range h.buckets {
		h.buckets[i] += b.buckets[i]
	}
	h.sum += b.sum
}

// count adds a duration, given the upper bounds of the buckets but the last, inclusive.
func (h *histogram) count(bounds []time.Duration, d time.Duration) {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	h.buckets[i]++
	h.sum += d
}

func (h *histogram) total() (n uint64) {
	for _, b := range h.buckets {
		n += b
	}
	return n
}

func (t *target) add(b *target) {
	for i := range t.outcomes {
		t.outcomes[i] += b.outcomes[i]
	}
	t.took.add(&b.took)
}

// tries counts the attempts of an exchange. The shard is locked.
func (s *shard) tries(number int, m *Meter, r *proxy.Record) {
	t := s.targets[number]
	if t == nil {
		t = &target{}
		s.targets[number] = t
	}
	for i := range r.Tries {
		a := &r.Tries[i]
		outcome := int(a.Result)
		if a.Status >= 500 {
			outcome = failed
		}
		t.outcomes[outcome]++
		t.took.count(m.bounds, a.Took)
	}
}

// The checks.
const (
	authn = iota
	authz
	limits
	nChecks
)

// What they say.
const (
	passed = iota
	refused
	unavailable
	nVerdicts
)

func checkNames() [nChecks]string     { return [nChecks]string{"authn", "authz", "limits"} }
func verdictNames() [nVerdicts]string { return [nVerdicts]string{"passed", "refused", "unavailable"} }

// checks are verdicts by check.
type checks [nChecks][nVerdicts]uint64

// refusal is the check that a reason comes from, and its verdict; ok is false for all other reasons.
func refusal(why reason.Reason) (check, verdict int, ok bool) {
	switch why {
	case reason.AuthUnavailable:
		return authn, unavailable, true
	case reason.ScopeMissing, reason.RoleMissing, reason.ClaimRefused, reason.ConsumerRefused, reason.DecisionDenied:
		return authz, refused, true
	case reason.DecisionUnavailable:
		return authz, unavailable, true
	case reason.CrossSite:
		return authn, refused, true
	case reason.RatePlatform:
		return limits, refused, true
	}
	switch why.Status() {
	case 401:
		return authn, refused, true
	case 429:
		return limits, refused, true
	}
	return 0, 0, false
}

// wires are the protocols of clients.
const nWires = 3

func wireNames() [nWires]string { return [nWires]string{"HTTP/1.1", "HTTP/2.0", "HTTP/3.0"} }

func wire(protocol string) int {
	switch protocol {
	case "HTTP/2.0":
		return 1
	case "HTTP/3.0":
		return 2
	}
	return 0
}

// judged counts how the exchange came, what the checks said, and how long the pipeline took. The shard is locked.
func (s *shard) judged(r *proxy.Record) {
	secure := 0
	if r.TLS {
		secure = 1
	}
	s.wires[wire(r.Protocol)][secure]++
	no, verdict, is := refusal(r.Reason)
	if is {
		s.checks[no][verdict]++
	}
	for check, bit := range [nChecks]record.Checks{record.Authenticated, record.Authorized, record.Admitted} {
		if r.Passed&bit != 0 && !(is && no == check) {
			s.checks[check][passed]++
		}
	}
	if !r.Timed {
		return
	}
	bounds := partBounds()
	for p := range r.Parts {
		s.parts[p].count(bounds[:], r.Parts[p])
	}
}

// partBounds are the upper bounds of the histograms of the pipeline's parts, which take microseconds unless they wait.
func partBounds() [nBounds - 1]time.Duration {
	us, ms := time.Microsecond, time.Millisecond
	return [...]time.Duration{us / 2, us, 2 * us, 5 * us, 10 * us, 20 * us, 50 * us, 100 * us, 500 * us, ms, 5 * ms, 20 * ms, 100 * ms, 500 * ms}
}

// retire moves what these upstreams had counted to "other". The shard is locked.
func (s *shard) retire(numbers []int) {
	for _, n := range numbers {
		if s.targets[n] == nil {
			continue
		}
		if s.targets[0] == nil {
			s.targets[0] = &target{}
		}
		s.targets[0].add(s.targets[n])
		s.targets[n] = nil
	}
}

// details are the sums of what this file counts.
type details struct {
	targets []target
	parts   [record.Parts]histogram
	checks  checks
	wires   [nWires][2]uint64
}

// take adds a shard, which is locked.
func (d *details) take(s *shard) {
	for n, t := range s.targets {
		if t != nil {
			d.targets[n].add(t)
		}
	}
	for p := range s.parts {
		d.parts[p].add(&s.parts[p])
	}
	for c := range s.checks {
		for v := range s.checks[c] {
			d.checks[c][v] += s.checks[c][v]
		}
	}
	for w := range s.wires {
		for secure := range s.wires[w] {
			d.wires[w][secure] += s.wires[w][secure]
		}
	}
}

func (m *Meter) collectDetails(ch chan<- prometheus.Metric, d *details) {
	counter := func(desc *prometheus.Desc, n uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
	}
	attempts := desc("upstream_attempts_total", "Attempts at an upstream by what they came to; failed is an answer of 500 or more.", "upstream", "outcome")
	took := desc("upstream_attempt_duration_seconds", "Attempts at an upstream, to the head of the answer.", "upstream")
	for k, p := range withOther(m.sent) {
		t := &d.targets[p]
		for i, n := range t.outcomes {
			if n > 0 {
				counter(attempts, n, k.name, outcomeName(i))
			}
		}
		if t.took.total() > 0 {
			ch <- t.took.metric(took, m.bounds, k.name)
		}
	}
	stage := desc("stage_duration_seconds", "What parts of the pipeline take, waits included, of one exchange in 64: route, auth (who calls), policy (all other rules).", "stage")
	bounds := partBounds()
	for p, name := range [record.Parts]string{"route", "auth", "policy"} {
		ch <- d.parts[p].metric(stage, bounds[:], name)
	}
	verdicts := desc("checks_total", "What checks of callers came to: authn, authz, limits.", "check", "verdict")
	for c, check := range checkNames() {
		for v, verdict := range verdictNames() {
			counter(verdicts, d.checks[c][v], check, verdict)
		}
	}
	protocols := desc("protocol_requests_total", "Exchanges by the client's protocol.", "protocol", "tls")
	for w, name := range wireNames() {
		counter(protocols, d.wires[w][0], name, "false")
		counter(protocols, d.wires[w][1], name, "true")
	}
}

func (h *histogram) metric(d *prometheus.Desc, bounds []time.Duration, labels ...string) prometheus.Metric {
	buckets, below := map[float64]uint64{}, uint64(0)
	for i, b := range bounds {
		below += h.buckets[i]
		buckets[b.Seconds()] = below
	}
	return prometheus.MustNewConstHistogram(d, h.total(), h.sum.Seconds(), buckets, labels...)
}
