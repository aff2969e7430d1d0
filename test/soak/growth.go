package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// size is what a process holds at one moment. Goroutines is -1 when it doesn't say.
type size struct {
	fds, goroutines, rssMiB int
	at                      time.Time
}

func (s size) String() string {
	return fmt.Sprintf("%d files, %d goroutines, %d MiB", s.fds, s.goroutines, s.rssMiB)
}

// growth samples every process and keeps the samples of those that live.
type growth struct {
	w     *world
	mu    sync.Mutex
	lives map[life][]size
}

// life is one process: the system gives a pid to another once it is free.
type life struct {
	name string
	pid  int
}

func newGrowth(w *world) *growth {
	return &growth{w: w, lives: map[life][]size{}}
}

func (g *growth) sample(context.Context) {
	for _, p := range g.now() {
		g.mu.Lock()
		if one := (life{p.name(), p.PID}); p.rssMiB > 0 {
			g.lives[one] = append(g.lives[one], p.size)
		}
		g.mu.Unlock()
	}
}

type sized struct {
	process
	size
}

// now measures every process that runs.
func (g *growth) now() []sized {
	all, err := g.w.processes()
	if err != nil {
		return nil
	}
	var out []sized
	for _, p := range all {
		if p.PID > 0 {
			out = append(out, sized{p, g.measure(p)})
		}
	}
	return out
}

var goroutines = regexp.MustCompile(`(?m)^go_goroutines (\d+)`)

func (g *growth) measure(p process) size {
	s := size{goroutines: -1, at: time.Now()}
	fds, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", p.PID))
	s.fds = len(fds)
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID))
	for _, line := range strings.Split(string(raw), "\n") {
		if kib, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kib), "kB")))
			s.rssMiB = n >> 10
		}
	}
	if addr := g.w.adminOf(p); addr != "" {
		if page, err := g.w.admin(addr, "/metrics"); err == nil {
			if m := goroutines.FindSubmatch(page); m != nil {
				s.goroutines, _ = strconv.Atoi(string(m[1]))
			}
		}
	}
	return s
}

// What a process may hold more than before without being said to grow.
const (
	slackFiles      = 24
	slackGoroutines = 40
	slackMiB        = 48
	longLife        = 8 * time.Minute
)

// grown compares two sizes; more is how many clients may have come to the process meanwhile, from where they were before.
func grown(before, after size, more int) bool {
	return after.fds > before.fds*5/4+slackFiles+more ||
		before.goroutines >= 0 && after.goroutines > before.goroutines*5/4+slackGoroutines+more ||
		after.rssMiB > before.rssMiB*3/2+slackMiB
}

// idle compares the idle world after the run with the idle world before it, by process.
func (g *growth) idle(before, after []sized) []string {
	was := map[string]size{}
	for _, p := range before {
		was[p.name()] = p.size
	}
	var out []string
	for _, p := range after {
		if b, ok := was[p.name()]; ok && grown(b, p.size, 0) {
			out = append(out, fmt.Sprintf("%s held %v when the world was new and idle, and holds %v when it is idle again", p.name(), b, p.size))
		}
	}
	return out
}

// trends compares the second quarter of every long life with its last.
func (g *growth) trends() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []string
	for one, sizes := range g.lives {
		n := len(sizes)
		if n < 12 || sizes[n-1].at.Sub(sizes[0].at) < longLife {
			continue
		}
		before, after := middle(sizes[n/4:n/2]), middle(sizes[3*n/4:])
		if grown(before, after, clients) {
			out = append(out, fmt.Sprintf("%s (pid %d) grew in %v from %v to %v", one.name, one.pid, sizes[n-1].at.Sub(sizes[0].at).Round(time.Second), before, after))
		}
	}
	return out
}

func middle(sizes []size) size {
	pick := func(of func(size) int) int {
		var all []int
		for _, s := range sizes {
			all = append(all, of(s))
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return size{pick(func(s size) int { return s.fds }), pick(func(s size) int { return s.goroutines }), pick(func(s size) int { return s.rssMiB }), time.Time{}}
}
