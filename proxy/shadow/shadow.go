// Package shadow tries policies that are not enforced yet on the exchanges that have come past those that are (J3): it counts their
// verdicts and writes a sample of the refusals to the log.
//
//	w := shadow.New(authenticator, logger)   // a proxy.Shadow and a prometheus.Collector
//	go w.Run(ctx)                             // writes the sample
//
// Nothing of it reaches the request: it takes no token, waits for nothing, and answers nothing. At the bound: policies beyond
// maxPolicies are counted under "other"; a sample that doesn't fit into the queue is dropped and counted.
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
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/reason"
)

const (
	maxPolicies = 50
	sampled     = 100 // one of so many refusals is written
	queued      = 64
	other       = "other"
)

// MaxSeries is how many series its metrics have at most.
const MaxSeries = (maxPolicies+1)*reasons + 1

// reasons is more than there are.
const reasons = 64

// Watcher tries and counts. It is safe for concurrent use.
type Watcher struct {
	auth    proxy.Authenticator
	log     *slog.Logger
	every   uint32
	queue   chan evidence
	dropped atomic.Uint64

	mu     sync.RWMutex
	counts map[string]*counts
}

// counts are of one policy, by the reason of the verdict; None = it would have let the exchange pass.
type counts [reasons]atomic.Uint64

// evidence is what is written of a refusal: nothing that the client has sent but where it came to.
type evidence struct {
	policy, route, tenant, id string
	why                       reason.Reason
}

var (
	_ proxy.Shadow         = (*Watcher)(nil)
	_ prometheus.Collector = (*Watcher)(nil)
)

// New makes a watcher that asks this authenticator about callers.
func New(auth proxy.Authenticator, log *slog.Logger) *Watcher {
	return &Watcher{auth: auth, log: log, every: sampled, queue: make(chan evidence, queued), counts: map[string]*counts{}}
}

// Try implements proxy.Shadow.
func (w *Watcher) Try(x *proxy.Exchange, route *program.Route, let *proxy.Identity, now time.Time) {
	for _, n := range route.Shadows {
		c, whole := x.Shown(n)
		why := w.judge(x, n, &c, whole, let, now)
		w.of(c.Policy.ID)[why].Add(1)
		if why != reason.None && rand.Uint32N(w.every) == 0 {
			w.keep(evidence{c.Policy.ID, route.ID, c.Tenant, x.ID(), why})
		}
	}
}

// judge is the verdict of one policy. What would have to be waited for is unknown as yet.
func (w *Watcher) judge(x *proxy.Exchange, n int32, c *proxy.Credentials, whole bool, let *proxy.Identity, now time.Time) reason.Reason {
	if c.Policy.JWT == nil && c.Policy.APIKey == nil && c.Policy.MTLS == nil {
		return c.Program.Try(n, &x.Request, let.Facts, let.Consumer)
	}
	if !whole {
		return reason.TokenInvalid
	}
	var id proxy.Identity
	c.Peer = netip.Addr{} // signatures that don't hold are not charged to the source
	why, wait := w.auth.Authenticate(c, &id, now)
	if wait != nil {
		return reason.AuthUnavailable
	}
	return why
}

func (w *Watcher) of(policy string) *counts {
	w.mu.RLock()
	c := w.counts[policy]
	w.mu.RUnlock()
	if c != nil {
		return c
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.counts) >= maxPolicies {
		policy = other
	}
	if c = w.counts[policy]; c == nil {
		c = new(counts)
		w.counts[strings.Clone(policy)] = c
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
			w.log.Info("a policy in shadow mode would have refused", "policy", e.policy, "reason", e.why.String(), "tenant", e.tenant, "route", e.route, "id", e.id)
		}
	}
}

// Describe implements prometheus.Collector.
func (w *Watcher) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(w, ch) }

// Collect implements prometheus.Collector.
func (w *Watcher) Collect(ch chan<- prometheus.Metric) {
	verdicts := prometheus.NewDesc("cellgate_proxy_shadow_verdicts_total", "What policies in shadow mode would have said.", []string{"policy", "verdict", "reason"}, nil)
	w.mu.RLock()
	defer w.mu.RUnlock()
	for policy, c := range w.counts {
		for _, why := range append(reason.All(), reason.None) {
			verdict := "refuse"
			if why == reason.None {
				verdict = "allow"
			}
			if n := c[why].Load(); n > 0 {
				ch <- prometheus.MustNewConstMetric(verdicts, prometheus.CounterValue, float64(n), policy, verdict, why.String())
			}
		}
	}
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc("cellgate_proxy_shadow_samples_dropped_total", "Sampled refusals that were not written.", nil, nil), prometheus.CounterValue, float64(w.dropped.Load()))
}
