package proxy

import (
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/report"
)

// usage remembers the process's CPU time at the last observation.
type usage struct{ cpu time.Duration }

// observe says what the node saw since the last call.
func (n *worldNode) observe(now time.Time) report.Node {
	w := n.meter.Window(now)
	return report.Node{
		Ready: n.server.Ready(), Counts: w.Counts, Latency: w.Latency, Added: w.Added, Services: w.Services, Hosts: w.Hosts,
		Connections: n.server.Connections.Load(), InFlight: n.server.InFlight.Load(),
		CPU: n.used.since(), RSS: rss(), Busy: n.busy.observe(now, n.meter.Routes), Change: n.change.observe(n.meter.Routes, n.server.Refused()),
	}
}

func (u *usage) since() time.Duration {
	var r syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &r); err != nil {
		return 0
	}
	now := time.Duration(r.Utime.Nano() + r.Stime.Nano())
	spent := now - u.cpu
	u.cpu = now
	return spent
}

// rss is the resident memory in bytes, 0 where the system doesn't say.
func rss() int64 {
	raw, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(raw), " ")
	pages, _, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseInt(pages, 10, 64)
	if err != nil {
		return 0
	}
	return n * int64(os.Getpagesize())
}
