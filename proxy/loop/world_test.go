//go:build linux

package loop

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/program/programtest"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// What every engine promises is tested in package engine; here is what only loops have.

func TestMain(m *testing.M) {
	runtime.GOMAXPROCS(max(4, runtime.GOMAXPROCS(0))) // as in the proxy: loops hold one of Go's processors each through short sleeps
	goleak.VerifyTestMain(m)
}

const document = `
version: v1
routes:
  - {id: any, match: {host: a.example, path_prefix: /, allow_catch_all: true}, upstream: up, timeout: 3s, retry: {attempts: 1, conditions: [connect-failure, reset-before-headers]}}
upstreams:
  - {id: up, endpoints: [UP], pool: {POOL}}
`

func compile(t testing.TB, number uint64, up, pool string) *program.Program {
	t.Helper()
	return programtest.Compile(t, number, strings.NewReplacer("[UP]", "["+up+"]", "{POOL}", "{"+pool+"}").Replace(document))
}

type nobody struct{}

func (nobody) Foresee(*proxy.Credentials) {}

func (nobody) Authenticate(*proxy.Credentials, *proxy.Identity, time.Time) (reason.Reason, <-chan struct{}) {
	return reason.AuthUnavailable, nil
}

// world is an engine in front of one upstream.
type world struct {
	t      testing.TB
	server *proxy.Server
	engine *Engine
	addr   string
	stop   func()
}

// opened has its sockets and loops, which don't run yet; tests may look at them.
func opened(t testing.TB, up, pool string, secure *tls.Config, o Options) *world {
	t.Helper()
	w := &world{t: t}
	w.server = proxy.New(proxy.Options{Auth: nobody{}, Limits: callers.NewLimiter(time.Now()), Upstream: upstream.Options{Allow: snapshot.Loopback()}})
	if err := w.server.Apply(compile(t, 1, up, pool)); err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	w.addr = l.Addr().String()
	w.engine = New(w.server, o)
	if err := w.engine.open([]engine.Listener{{Listener: l, TLS: secure}}); err != nil {
		t.Fatal(err)
	}
	return w
}

func start(t testing.TB, up, pool string, o Options) *world {
	t.Helper()
	if o.HardStop == 0 {
		o.HardStop = 3 * time.Second
	}
	w := opened(t, up, pool, nil, o)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- w.server.Run(ctx) }()
	go func() { ended <- w.engine.serve(ctx, nil) }()
	w.stop = func() {
		if cancel == nil {
			return
		}
		cancel()
		cancel = nil
		for range 2 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(w.stop)
	return w
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	cfg := net.ListenConfig{}
	cfg.SetMultipathTCP(false)
	l, err := cfg.Listen(context.Background(), "tcp", "127.40.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// on runs something on a loop and waits for it.
func (w *world) on(l *loop, do func()) {
	w.t.Helper()
	done := make(chan struct{})
	if !l.post(func() { defer close(done); do() }) {
		w.t.Fatal("the loop has ended")
	}
	<-done
}

// check looks whether everything of every loop has exactly one owner. A test that finds otherwise says what it found.
func (w *world) check() {
	w.t.Helper()
	for i, l := range w.engine.loops {
		var faults []string
		w.on(l, func() { faults = l.faults() })
		for _, f := range faults {
			w.t.Errorf("loop %d: %s", i, f)
		}
	}
}

func (l *loop) faults() (all []string) {
	say := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	clients, held := 0, map[*lane]int{}
	streams := map[*h2stream]bool{}
	flights := map[*flight]bool{}
	for _, f := range l.flights {
		if f.client != nil || f.conn != nil || f.wish != nil || flights[f] {
			say("a free flight belongs to somebody")
		}
		flights[f] = true
	}
	for _, s := range l.streams {
		if s.h != nil || s.flight != nil || s.errand != nil || s.timer.at != 0 || streams[s] {
			say("a free stream belongs to somebody")
		}
		streams[s] = true
	}
	idle := map[*conn]bool{}
	for _, a := range l.lanes {
		n := 0
		for endpoint, conns := range a.idle {
			for _, u := range conns {
				n++
				if idle[u] || u.flight != nil || u.fd < 0 || u.endpoint != endpoint || u.lane != a {
					say("an idle connection is elsewhere too")
				}
				idle[u] = true
			}
		}
		if n != a.idles || int64(n) != a.share.Idle.Load() {
			say("%d idle connections counted as %d", n, a.idles)
		}
	}
	for _, u := range l.released {
		if idle[u] || u.flight != nil {
			say("a released connection is elsewhere too")
		}
		idle[u] = true
	}
	for i := range l.slots {
		s := &l.slots[i]
		switch {
		case s.client != nil:
			c := s.client
			clients++
			if c.fd != s.fd || int(c.slot) != i || c.l != l {
				say("slot %d: not its client", i)
			}
			f := c.flight
			if (f != nil) != (c.state == heading || c.state == busy) {
				say("a client in state %d with flight %v", c.state, f != nil)
			}
			if (c.h2 != nil) != (c.state == framed) {
				say("a client in state %d with HTTP/2 %v", c.state, c.h2 != nil)
			}
			if c.h2 != nil {
				for _, f := range c.h2.faults(say, streams) {
					if f.client != c || flights[f] {
						say("a flight with two owners")
					}
					flights[f] = true
					if f.phase == resolving {
						held[f.lane]++
					}
				}
			}
			if f != nil {
				if f.client != c || flights[f] {
					say("a flight with two owners")
				}
				flights[f] = true
				if f.phase == resolving {
					held[f.lane]++
				}
			}
			if c.state == waiting && c.r == c.w && c.in != nil && !c.queued {
				say("an idle client holds a buffer")
			}
		case s.conn != nil:
			u := s.conn
			held[u.lane]++
			if u.fd != s.fd || int(u.slot) != i {
				say("slot %d: not its connection", i)
			}
			if u.flight == nil && !idle[u] {
				say("a connection without an owner")
			}
			if u.flight != nil && (u.flight.conn != u || u.flight.client == nil) {
				say("a connection whose flight doesn't know it")
			}
		}
	}
	if clients != l.clients {
		say("%d clients counted as %d", clients, l.clients)
	}
	for a, n := range held {
		if a.open != n {
			say("a lane holds %d places for %d connections", a.open, n)
		}
	}
	seen := map[*byte]bool{}
	for _, b := range append(append([][]byte{}, l.small...), l.big...) {
		if p := &b[:1][0]; seen[p] {
			say("a buffer is free twice")
		} else {
			seen[p] = true
		}
	}
	return all
}

// queuedByTheLoop says whether this turn or the next will go on with the flight.
func (f *flight) queuedByTheLoop() bool {
	return f.phase == sending || f.phase == judged && slices.Contains(f.l.judging, sender{f, f.gen})
}

// faults looks at the streams of a connection and gives their flights.
func (h *h2conn) faults(say func(string, ...any), streams map[*h2stream]bool) (all []*flight) {
	held := map[*h2stream]bool{}
	for s := range h.codec.Held {
		s := s.Owner.(*h2stream)
		held[s] = true
		if s.h != h || streams[s] || (s.flight != nil) == (s.errand != nil) {
			say("a stream with two owners, or none")
		}
		if streams[s] = true; s.flight != nil {
			all = append(all, s.flight)
			if s.flight.side != s || s.timer.at == 0 && !s.flight.queuedByTheLoop() {
				say("a stream whose flight doesn't know it, or has no time")
			}
		}
	}
	for _, line := range [][]*h2stream{h.eager, h.line} {
		for _, s := range line {
			if !held[s] {
				say("a stream is waited for that has ended")
			}
		}
	}
	if h.codec.Streams() == 0 && h.open && len(h.c.out) == 0 && !h.due {
		say("a connection at rest holds a buffer")
	}
	return all
}

// descriptors is how many files the process has open.
func descriptors(t testing.TB) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// until waits for a condition.
func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}
