package proxy

import (
	"context"
	"math"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/proxy/shed"
)

const guardTick = 100 * time.Millisecond

// guard looks at the node ten times a second and sheds load when it is too much (I10).
type guard struct {
	*core
	judge   shed.Guard
	last    time.Time
	used    usage
	memory  float64 // bytes that the process may have; 0 = not known
	files   float64 // descriptors that it may have
	waits   []uint64
	samples []metrics.Sample

	collections uint64    // of garbage, so far
	collected   time.Time // when there was one more
}

// Names of runtime/metrics.
const (
	liveBytes  = "/gc/heap/live:bytes" // what the last collection has left: garbage is no need
	stackBytes = "/memory/classes/heap/stacks:bytes"
	schedWaits = "/sched/latencies:seconds"
	gcCycles   = "/gc/cycles/total:gc-cycles"
)

// What a collection has left is all that is known of the need for memory. A node that sheds for its sake makes little garbage,
// and the next collection would be up to two minutes away; it is not left to wait longer than this.
const (
	collectAfter = 5 * time.Second
	muchMemory   = 0.85
)

func newGuard(c *core) *guard {
	g := &guard{core: c, memory: memoryLimit(), samples: []metrics.Sample{{Name: liveBytes}, {Name: stackBytes}, {Name: schedWaits}, {Name: gcCycles}}}
	var lim syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &lim) == nil {
		g.files = float64(lim.Cur)
	}
	return g
}

// run sheds until ctx ends.
func (g *guard) run(ctx context.Context) error {
	tick := time.NewTicker(guardTick)
	defer tick.Stop()
	before := shed.Level(0)
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			at, ok := g.look(now)
			if !ok {
				continue
			}
			level := g.judge.Step(at)
			if g.server.Shed(level); (level > 0) != (before > 0) {
				g.log.Warn("the node sheds load", "shedding", level > 0, "cpu", at.CPU, "lag", at.Lag, "memory", at.Memory, "pools", at.Pools)
			}
			before = level
			g.collect(level, at, now)
		}
	}
}

// collect makes what is known of memory new while the node sheds for its sake.
func (g *guard) collect(level shed.Level, at shed.Gauges, now time.Time) {
	if n := g.samples[3].Value.Uint64(); n != g.collections {
		g.collections, g.collected = n, now
	}
	if level > 0 && at.Memory > muchMemory && now.Sub(g.collected) >= collectAfter {
		runtime.GC()
	}
}

// look reads the gauges; the first one only begins.
func (g *guard) look(now time.Time) (at shed.Gauges, ok bool) {
	metrics.Read(g.samples)
	lag := g.wait()
	if loops, has := g.loopLag(); has {
		lag = loops
	}
	g.lastLag.Store(int64(lag))
	g.longest.Store(max(g.longest.Load(), int64(lag)))
	used, began := g.used.since(), g.last
	if g.last = now; began.IsZero() || !now.After(began) {
		return at, false
	}
	at.CPU = float64(used) / float64(now.Sub(began)) / float64(max(1, g.cores))
	at.Lag = lag
	if g.memory > 0 {
		at.Memory = float64(g.samples[0].Value.Uint64()+g.samples[1].Value.Uint64()) / g.memory
	}
	if g.files > 0 { // each exchange under way has a connection of its client's and about one to its upstream
		at.Pools = float64(g.server.Connections.Load()+g.server.InFlight.Load()) / g.files
	}
	return at, true
}

// wait is how long 99 of 100 goroutines waited at most for a core since the last look.
func (g *guard) wait() time.Duration {
	h := g.samples[2].Value.Float64Histogram()
	if len(g.waits) != len(h.Counts) {
		g.waits = make([]uint64, len(h.Counts))
	}
	total := uint64(0)
	for i, n := range h.Counts {
		total += n - g.waits[i]
	}
	seen, at := uint64(0), 0.0
	for i, n := range h.Counts {
		if seen += n - g.waits[i]; total > 0 && seen*100 >= total*99 && at == 0 {
			at = h.Buckets[i] // the lower end: what is sure
		}
		g.waits[i] = n
	}
	if at <= 0 || math.IsInf(at, 0) {
		return 0
	}
	return time.Duration(at * float64(time.Second))
}

// memoryLimit is the least of what the runtime and the control group allow; 0 = neither says anything.
func memoryLimit() float64 {
	limit := int64(math.MaxInt64)
	if n := debug.SetMemoryLimit(-1); n > 0 {
		limit = n
	}
	for _, file := range []string{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"} {
		raw, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if n, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64); err == nil && n > 0 {
			limit = min(limit, n)
		}
	}
	if limit > 1<<50 {
		return 0
	}
	return float64(limit)
}

// lags are how long what was ready had to wait: at the last look, and at most since they were last asked for.
type lags struct {
	lastLag, longest atomic.Int64
}

// lag is the longest wait since the last call.
func (l *lags) lag() time.Duration { return time.Duration(l.longest.Swap(0)) }
