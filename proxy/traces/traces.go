// Package traces sends spans of exchanges and of their attempts to an OpenTelemetry collector (OTLP over HTTP, protocol buffers,
// https://opentelemetry.io/docs/specs/otlp/), without ever making an exchange wait.
//
//	e, err := traces.New(traces.Options{URL: "https://collector:4318/v1/traces", …})
//	server := proxy.New(proxy.Options{Recorders: {e}, Sample: e.Sample(), …})
//	go e.Run(ctx)                        // sends once a second, and what is left when ctx ends
//
// Kept are the exchanges of sampled traces, and of the others that began here those that failed or were slow, up to mostExtra a
// second. They are written into buffers as they will be sent. At the bound: what doesn't fit any more, or can't be sent in time,
// is dropped and counted. Spans have no query, no header and no body, and say nothing of who the caller is but its address.
package traces

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/snapshot"
)

const (
	every     = time.Second
	buffered  = 256 << 10 // bytes of a shard that wait; a node has at most maxShards of them, and as much again while it sends
	hurry     = buffered / 2
	maxShards = 8
	mostExtra = 10 // failed and slow ones a second that no sample has taken
)

// Options are what an exporter is made of.
type Options struct {
	// URL is the collector's for traces; one without a path gets /v1/traces.
	URL string
	// HeadersFile has lines of "Name: value" that go along with every message, such as a key; empty = none. It is read for each
	// message, so that a key may be changed.
	HeadersFile string
	// CAFile has the authorities, in PEM, of which one has to stand for the collector's certificate; empty = those of the system.
	CAFile string
	// Ratio is the share of the traces that begin here which are sampled, 0 to 1.
	Ratio float64
	// Allow says where the URL may lead, when it is given and at every connection.
	Allow snapshot.Allow
	// Node, Cell and Region are who sends; empty = not said.
	Node, Cell, Region string
	Log                *slog.Logger // nil = none
}

// Exporter is safe for concurrent use.
type Exporter struct {
	opts   Options
	to     *sender
	prefix buffer // of every message
	mask   uint32
	shards []shard
	full   chan struct{}
	every  time.Duration

	second, extra atomic.Int64 // failed and slow ones that were kept within a second

	exported, overflown, refused, unreachable atomic.Uint64 // spans
}

// shard is a buffer of encoded spans. The padding keeps neighbours off its cache lines.
type shard struct {
	mu    sync.Mutex
	spans buffer
	count uint64
	spare buffer // the exporter's own, while it isn't in use
	_     [64]byte
}

var (
	_ proxy.Recorder       = (*Exporter)(nil)
	_ prometheus.Collector = (*Exporter)(nil)
)

// New makes an exporter, or says why its options can't work.
func New(o Options) (*Exporter, error) {
	if !(o.Ratio >= 0 && o.Ratio <= 1) { // NaN neither
		return nil, fmt.Errorf("the share of traces is %v: must be 0 to 1", o.Ratio)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	to, err := newSender(o)
	if err != nil {
		return nil, err
	}
	n := uint32(1)
	for int(n) < runtime.GOMAXPROCS(0) && n < maxShards {
		n *= 2
	}
	return &Exporter{opts: o, to: to, prefix: resource(o), mask: n - 1, shards: make([]shard, n), full: make(chan struct{}, 1), every: every}, nil
}

// Sample is the share that the server marks as sampled.
func (e *Exporter) Sample() tracecontext.Ratio { return tracecontext.RatioOf(e.opts.Ratio) }

// Record implements proxy.Recorder. The node's answers to readiness probes are nobody's requests.
func (e *Exporter) Record(r *proxy.Record) {
	if !e.keeps(r) || r.Route == "" && r.Path == proxy.ReadyPath {
		return
	}
	s := &e.shards[rand.Uint32()&e.mask]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spans == nil {
		s.spans = make(buffer, 0, buffered)
	}
	if cap(s.spans)-len(s.spans) < maxSpans {
		e.overflown.Add(uint64(1 + len(r.Tries)))
		return
	}
	before := len(s.spans)
	s.count += uint64(s.spans.spans(r))
	if before < hurry && len(s.spans) >= hurry {
		select {
		case e.full <- struct{}{}:
		default:
		}
	}
}

// keeps says whether an exchange is of interest. Of a trace that began elsewhere its beginner decides.
func (e *Exporter) keeps(r *proxy.Record) bool {
	switch {
	case !r.Trace.Valid():
		return false
	case r.Trace.Sampled():
		return true
	case continued(r), !r.Notable():
		return false
	}
	now := r.Start.Add(r.Total).Unix()
	if e.second.Swap(now) != now {
		e.extra.Store(0)
	}
	return e.extra.Add(1) <= mostExtra
}

// Run sends until ctx ends, and then once more what is left.
func (e *Exporter) Run(ctx context.Context) error {
	sending, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() { time.AfterFunc(lastTime, stop) })
	tick := time.NewTicker(e.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			e.flush(sending)
			return nil
		case <-tick.C:
		case <-e.full:
		}
		e.flush(sending)
	}
}

// flush sends all that waits, shard by shard, as one message each.
func (e *Exporter) flush(ctx context.Context) {
	for i := range e.shards {
		s := &e.shards[i]
		s.mu.Lock()
		spans, count := s.spans, s.count
		if count > 0 {
			s.spans, s.count, s.spare = s.spare[:0], 0, nil
		}
		s.mu.Unlock()
		if count == 0 {
			continue
		}
		e.account(count, e.to.send(ctx, e.message(spans)))
		s.spare = spans
	}
}

// account counts what became of spans.
func (e *Exporter) account(count uint64, o outcome) {
	switch {
	case o.unreachable:
		e.unreachable.Add(count)
	default:
		lost := min(o.refused, count)
		e.refused.Add(lost)
		e.exported.Add(count - lost)
	}
}

// Describe implements prometheus.Collector.
func (e *Exporter) Describe(ch chan<- *prometheus.Desc) { prometheus.DescribeByCollect(e, ch) }

// Collect implements prometheus.Collector.
func (e *Exporter) Collect(ch chan<- prometheus.Metric) {
	sent := prometheus.NewDesc("cellgate_proxy_trace_spans_exported_total", "Spans that the collector has taken.", nil, nil)
	dropped := prometheus.NewDesc("cellgate_proxy_trace_spans_dropped_total", "Spans that were lost: full (no room to wait in), refused (by the collector), unreachable (it gave no answer).", []string{"cause"}, nil)
	ch <- prometheus.MustNewConstMetric(sent, prometheus.CounterValue, float64(e.exported.Load()))
	for cause, n := range map[string]*atomic.Uint64{"full": &e.overflown, "refused": &e.refused, "unreachable": &e.unreachable} {
		ch <- prometheus.MustNewConstMetric(dropped, prometheus.CounterValue, float64(n.Load()), cause)
	}
}
