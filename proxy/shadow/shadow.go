// Package shadow tries policies and limits that are not enforced yet on the exchanges that have come past those that are (J3): it
// counts their verdicts and writes a sample of the refusals to the log.
//
//	w := shadow.New(authenticator, decisions, logger)   // a proxy.Shadow and a prometheus.Collector
//	go w.Run(ctx)                                        // writes the sample
//
// Nothing of it reaches the request: it takes no token of a limit that is enforced, waits for nothing, and answers nothing. At the
// bound: policies, and routes, tenants and plans with limits, beyond maxPolicies are counted under "other"; when too many verdicts are waited for, that of
// a service counts as unavailable, and that of limits is the one of a request that has waited enough; a sample that doesn't fit into
// the queue is dropped and counted.
package shadow

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/decide"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
)

const (
	maxPolicies = 50
	sampled     = 100 // one of so many refusals is written
	queued      = 64
	waits       = 64 // verdicts that services are asked for at once
	other       = "other"
)

// MaxSeries is how many series its metrics have at most.
const MaxSeries = (maxPolicies+1)*reasons + 1

// reasons is more than there are.
const reasons = 64

// Watcher tries and counts. It is safe for concurrent use.
type Watcher struct {
	auth      proxy.Authenticator
	decisions *decide.Decisions
	log       *slog.Logger
	every     uint32
	queue     chan evidence
	waiting   chan struct{} // one for each verdict that is waited for
	dropped   atomic.Uint64

	mu     sync.RWMutex
	counts map[subject]*counts
}

// subject is what is tried: a policy, which has no kind here, or the limits of a route ("limits"), a tenant or a plan. Ids have no
// colon.
type subject struct{ kind, id string }

func (s subject) String() string {
	if s.kind != "" {
		return s.kind + ":" + s.id
	}
	return s.id
}

// counts are of one subject, by the reason of the verdict; None = it would have let the exchange pass.
type counts [reasons]atomic.Uint64

// evidence is what is written of a refusal: nothing that the client has sent but where it came to.
type evidence struct {
	subject
	route, tenant, id string
	why               reason.Reason
}

var (
	_ proxy.Shadow         = (*Watcher)(nil)
	_ prometheus.Collector = (*Watcher)(nil)
)

// New makes a watcher that asks these about callers and requests. Without decisions what a service says is unknown.
func New(auth proxy.Authenticator, decisions *decide.Decisions, log *slog.Logger) *Watcher {
	return &Watcher{auth: auth, decisions: decisions, log: log, every: sampled, queue: make(chan evidence, queued), waiting: make(chan struct{}, waits), counts: map[subject]*counts{}}
}

// Try implements proxy.Shadow.
func (w *Watcher) Try(x *proxy.Exchange, route *program.Route, let *proxy.Identity, now time.Time) {
	for _, n := range route.Shadows {
		c, doubled := x.Shown(n)
		e := evidence{subject: subject{id: c.Policy.ID}, route: route.ID, tenant: c.Tenant, id: x.ID()}
		var later *answer
		if e.why, later = w.judge(x, n, &c, doubled, let, now); later == nil || !w.await(e, later) {
			w.count(e)
		}
	}
}

// answer is a verdict that a service gives later.
type answer struct {
	done <-chan struct{}
	why  func() reason.Reason // once done
}

// judge is the verdict of one policy. What is asked for and isn't known yet is later's; everything else that would have to be
// waited for is unknown.
func (w *Watcher) judge(x *proxy.Exchange, n int32, c *proxy.Credentials, doubled reason.Reason, let *proxy.Identity, now time.Time) (why reason.Reason, later *answer) {
	switch {
	case c.Policy.Decision != nil:
		q := x.Case(c.Policy.Decision)
		q.Peer = netip.Addr{} // nobody is charged
		why, wait := w.decisions.Decide(&q, now)
		if wait == nil {
			return why, nil
		}
		asked := q.Asked
		return why, &answer{wait, func() reason.Reason { return decide.Verdict(asked.Answer()) }}
	case c.Policy.Authz != nil, c.Policy.CORS != nil:
		return c.Program.Try(n, &x.Request, let.Facts, let.Consumer), nil
	case doubled != reason.None:
		return doubled, nil
	}
	var id proxy.Identity
	c.Peer = netip.Addr{} // nor for signatures that don't hold
	why, wait := w.auth.Authenticate(c, &id, now)
	switch asked := c.Asked; {
	case wait == nil:
		return why, nil
	case asked == nil:
		return reason.AuthUnavailable, nil
	default:
		return reason.AuthUnavailable, &answer{wait, func() reason.Reason {
			if r, ok := asked.Answer(); ok {
				return r.Reason
			}
			return reason.AuthUnavailable
		}}
	}
}

// await counts the verdict once it is there, if there is room to wait: services answer within the time of their policies.
func (w *Watcher) await(e evidence, a *answer) bool {
	select {
	case w.waiting <- struct{}{}:
	default:
		return false
	}
	e.id = strings.Clone(e.id)
	go func() {
		<-a.done
		e.why = a.why()
		w.count(e)
		<-w.waiting
	}()
	return true
}

// count counts a verdict, and keeps one refusal of many.
func (w *Watcher) count(e evidence) {
	w.of(e.subject)[e.why].Add(1)
	if e.why != reason.None && rand.Uint32N(w.every) == 0 {
		w.keep(e)
	}
}

func (w *Watcher) of(s subject) *counts {
	w.mu.RLock()
	c := w.counts[s]
	w.mu.RUnlock()
	if c != nil {
		return c
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.counts) >= maxPolicies {
		s = subject{id: other}
	}
	if c = w.counts[s]; c == nil {
		c = new(counts)
		w.counts[subject{s.kind, strings.Clone(s.id)}] = c
	}
	return c
}

// keep queues evidence, whose strings belong to the exchange.
func (w *Watcher) keep(e evidence) {
	e.id = strings.Clone(e.id)
	select {
	case w.queue <- e:
	default:
		w.dropped.Add(1)
	}
}

// Run writes the sample until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.queue:
			w.log.Info("a policy in shadow mode would have refused", "policy", e.subject.String(), "reason", e.why.String(), "tenant", e.tenant, "route", e.route, "id", e.id)
		}
	}
}

// Describe implements prometheus.Collector.
func (w *Watcher) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(w, ch) }

// Collect implements prometheus.Collector.
func (w *Watcher) Collect(ch chan<- prometheus.Metric) {
	verdicts := prometheus.NewDesc("cellgate_proxy_shadow_verdicts_total", "What policies and limits in shadow mode would have said.", []string{"policy", "verdict", "reason"}, nil)
	w.mu.RLock()
	defer w.mu.RUnlock()
	for s, c := range w.counts {
		for _, why := range append(reason.All(), reason.None) {
			verdict := "refuse"
			if why == reason.None {
				verdict = "allow"
			}
			if n := c[why].Load(); n > 0 {
				ch <- prometheus.MustNewConstMetric(verdicts, prometheus.CounterValue, float64(n), s.String(), verdict, why.String())
			}
		}
	}
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("cellgate_proxy_shadow_samples_dropped_total", "Sampled refusals that were not written.", nil, nil), prometheus.CounterValue, float64(w.dropped.Load()))
}
