package main

import (
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/load"
)

// ledger keeps what was done to the world, what may therefore fail, and what failed for no reason.
type ledger struct {
	mu       sync.Mutex
	began    time.Time
	events   []string // the last keptEvents
	excuses  []*excuse
	broken   []string
	requests int
	failed   int
	repeated int
	injected map[string]int // by kind
	spent    map[string]int // failures by what explains them
	over     chan struct{}  // closed when there is no use in going on
}

const (
	keptEvents = 400
	maxBroken  = 12
	// settle is how long a failure waits for its excuse: what is done to the world is noted just before it is done.
	settle = 2 * time.Second
)

// excuse lets requests fail that overlap a fault. A zero cell stands for all; open ones have no end yet.
type excuse struct {
	why      string
	from, to time.Time
	cell     netip.Addr
	budget   int
	statuses []int // nil = any
}

func newLedger() *ledger {
	return &ledger{began: time.Now(), injected: map[string]int{}, spent: map[string]int{}, over: make(chan struct{})}
}

func (l *ledger) note(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.add(fmt.Sprintf(format, args...))
}

// add keeps and prints an event, and gives it as it was printed.
func (l *ledger) add(text string) string {
	line := fmt.Sprintf("%s +%-7s %s", time.Now().Format("15:04:05.000"), time.Since(l.began).Round(100*time.Millisecond), text)
	if l.events = append(l.events, line); len(l.events) > keptEvents {
		l.events = l.events[len(l.events)-keptEvents:]
	}
	fmt.Println(line)
	return line
}

// inject notes a fault of a kind.
func (l *ledger) inject(kind, format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.injected[kind]++
	l.add(kind + ": " + fmt.Sprintf(format, args...))
}

// fail notes a broken invariant.
func (l *ledger) fail(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	line := l.add("BROKEN " + fmt.Sprintf(format, args...))
	if len(l.broken) < maxBroken {
		if l.broken = append(l.broken, line); len(l.broken) == maxBroken {
			close(l.over)
		}
	}
}

// progress prints the counts.
func (l *ledger) progress(more string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	faults := 0
	for _, n := range l.injected {
		faults += n
	}
	l.add(fmt.Sprintf("progress: %d requests, %d failed, %d repeated, %d faults, %d broken invariants; %s", l.requests, l.failed, l.repeated, faults, len(l.broken), more))
}

// allow opens an excuse; a zero length leaves it open until close.
func (l *ledger) allow(why string, cell netip.Addr, length time.Duration, budget int, statuses ...int) *excuse {
	e := &excuse{why: why, from: time.Now(), cell: cell, budget: budget, statuses: statuses}
	if length > 0 {
		e.to = e.from.Add(length)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.excuses = append(l.excuses, e)
	return e
}

func (l *ledger) close(e *excuse, in time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e.to = time.Now().Add(in)
}

// request takes one request of the load.
func (l *ledger) request(q load.Request) {
	l.mu.Lock()
	l.requests++
	if q.Repeated {
		l.repeated++
	}
	if q.Failed() {
		l.failed++
	}
	l.mu.Unlock()
	if q.Failed() {
		time.AfterFunc(settle, func() { l.judge(q) })
	}
}

func (l *ledger) judge(q load.Request) {
	if why := l.spend(q); why != "" {
		l.fail("a request failed: begun %s, took %v, cell %s, status %d, %v (%s)", q.Start.Format("15:04:05.000"), q.Took.Round(time.Millisecond), q.Cell, q.Status, q.Err, why)
	}
}

// spend finds the failure an excuse with something left, or says why there is none.
func (l *ledger) spend(q load.Request) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	why := "nothing explains it"
	for _, e := range l.excuses {
		if !e.covers(q) {
			continue
		}
		if e.budget > 0 {
			e.budget--
			l.spent[e.why]++
			return ""
		}
		why = "more failed than " + e.why + " explains"
	}
	return why
}

func (e *excuse) covers(q load.Request) bool {
	if q.Start.Add(q.Took).Before(e.from) || (!e.to.IsZero() && q.Start.After(e.to)) {
		return false
	}
	if e.cell.IsValid() && e.cell != q.Cell && (q.Err == nil || !strings.Contains(q.Err.Error(), e.cell.String()+":")) {
		return false
	}
	for _, s := range e.statuses {
		if s == q.Status {
			return true
		}
	}
	return len(e.statuses) == 0
}
