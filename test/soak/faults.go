package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"
)

// chaos does things to the world: what and to whom is the seed's, when is the clock's. At most two at once, and never two
// that together take more than the world promises to bear: a resource is held while something is done to it.
type chaos struct {
	w    *world
	l    *ledger
	c    *watch
	docs *library
	// others may be denied.
	others []caller

	mu   sync.Mutex
	held map[string]bool
	busy sync.WaitGroup
	slot chan struct{}
}

const (
	atOnce = 2
	// backIn is how long a killed process may be away: a second until it is started again, and its start on a busy machine.
	backIn = 8 * time.Second
	// gone is how long clients may be sent to a cell that is down: detection, the answer's TTL, and the client's timer.
	gone = 18 * time.Second
	// dying is how long after a kill its sockets may still be connected to.
	dying = 400 * time.Millisecond
)

// fault is one thing to do. It holds its resources from before it begins until do returns.
type fault struct {
	holds []string
	do    func(ctx context.Context)
}

func (h *chaos) run(ctx context.Context, r *rand.Rand) {
	h.held, h.slot = map[string]bool{}, make(chan struct{}, atOnce)
	h.everyKind(ctx, r)
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(500+r.IntN(4000)) * time.Millisecond):
			if f := h.draw(r); h.take(f.holds) {
				h.start(ctx, f)
			}
		}
	}
	h.busy.Wait()
}

// each kills one process of every role in turn.
func (h *chaos) each(ctx context.Context, r *rand.Rand) {
	all, _ := h.w.processes()
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	done := map[string]bool{}
	for _, p := range all {
		role := holds(p)[0]
		if role, _, _ = strings.Cut(role, " "); p.Role == "regionctl" || p.Role == "healthd" {
			role = p.Role
		}
		if done[role] || ctx.Err() != nil {
			continue
		}
		done[role] = true
		h.kill(p)
		time.Sleep(2 * time.Second)
	}
}

func (h *chaos) start(ctx context.Context, f fault) {
	h.slot <- struct{}{}
	h.busy.Add(1)
	go func() {
		defer func() { h.free(f.holds); <-h.slot; h.busy.Done() }()
		f.do(ctx)
	}()
}

func (h *chaos) take(names []string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range names {
		if h.held[n] {
			return false
		}
	}
	for _, n := range names {
		h.held[n] = true
	}
	return true
}

func (h *chaos) free(names []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, n := range names {
		delete(h.held, n)
	}
}

// holds are what a fault of one process needs for itself.
func holds(p process) []string {
	switch p.Role {
	case "proxy":
		return []string{"cell " + p.ID[:strings.LastIndex(p.ID, "/")]}
	case "etcd":
		if strings.HasPrefix(p.ID, "global/") {
			return []string{"global store"}
		}
		return []string{"store " + p.ID}
	case "globalrouter", "backend", "idp", "capacityd":
		return []string{p.Role}
	}
	return []string{p.name()}
}

func (h *chaos) address(p process) netip.Addr {
	for _, c := range h.w.cells() {
		if p.Role == "proxy" && strings.HasPrefix(p.ID, c.ID+"/") {
			return c.Address
		}
	}
	return netip.Addr{}
}

// inFlight lets fail what is in flight on a process that dies now.
func (h *chaos) inFlight(p process, length time.Duration) {
	if p.Role == "proxy" || p.Role == "backend" {
		h.l.allow("what was in flight on "+p.name(), h.address(p), length, inFlight)
	}
}

func (h *chaos) kill(p process) {
	pid := h.w.pid(p.name())
	if pid == 0 {
		return
	}
	h.l.inject("kill", "%s (pid %d)", p.name(), pid)
	h.c.hit(p.name(), backIn)
	h.inFlight(p, dying)
	_ = syscall.Kill(pid, syscall.SIGKILL)
	h.back(p.name(), pid)
}

// back waits until a process runs under another id, as its supervisor promises.
func (h *chaos) back(name string, old int) {
	for end := time.Now().Add(backIn); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if pid := h.w.pid(name); pid != 0 && pid != old {
			return
		}
	}
	h.l.fail("%s was not started again within %v", name, backIn)
}

// hang stops a process with SIGSTOP. A proxy is replaced by its supervisor; everything else is let go on.
func (h *chaos) hang(p process, length time.Duration) {
	pid := h.w.pid(p.name())
	if pid == 0 {
		return
	}
	h.l.inject("hang", "%s (pid %d) for %v", p.name(), pid, length)
	h.c.hit(p.name(), length+backIn)
	if p.Role == "proxy" {
		e := h.l.allow("what hung with "+p.name(), h.address(p), 0, clients)
		_ = syscall.Kill(pid, syscall.SIGSTOP)
		h.back(p.name(), pid)
		h.l.close(e, dying)
		return
	}
	_ = syscall.Kill(pid, syscall.SIGSTOP)
	time.Sleep(length)
	_ = syscall.Kill(pid, syscall.SIGCONT)
	h.l.note("%s goes on", p.name())
}

// stopStart is orderly: nothing fails.
func (h *chaos) stopStart(p process, length time.Duration) {
	h.l.inject("stop", "%s for %v", p.name(), length)
	h.c.hit(p.name(), length+20*time.Second)
	h.order("stop", p.name())
	time.Sleep(length)
	h.c.hit(p.name(), backIn)
	h.order("start", p.name())
}

func (h *chaos) stopAll(glob string, length time.Duration) {
	h.l.inject("stop all", "%s for %v", glob, length)
	h.order("stop", glob)
	time.Sleep(length)
	h.order("start", glob)
}

func (h *chaos) killAll(glob string) {
	h.l.inject("kill all", "%s", glob)
	h.order("kill", glob)
	time.Sleep(3 * time.Second)
	h.order("start", glob)
}

func (h *chaos) order(verb, glob string) {
	began := time.Now()
	if out, code := h.w.cellgate(verb, glob); code != 0 && !strings.Contains(out, "down") {
		h.l.fail("cellgate %s %s: exit %d after %v: %s", verb, glob, code, time.Since(began).Round(time.Millisecond), strings.TrimSpace(out))
	}
}

func (h *chaos) killCell(x cell) {
	h.l.inject("kill cell", "%s", x.ID)
	for _, p := range x.Proxies {
		h.c.hit("proxy/"+p.ID, backIn)
	}
	e := h.l.allow("the death of "+x.ID, x.Address, 0, 40*clients)
	h.order("kill", "proxy/"+x.ID+"/*")
	time.Sleep(1500 * time.Millisecond)
	h.order("start", "proxy/"+x.ID+"/*")
	h.l.close(e, dying)
}

func (h *chaos) loseCell(x cell, length time.Duration) {
	h.l.inject("lose cell", "%s for %v", x.ID, 2*length)
	for _, p := range x.Proxies {
		h.c.hit("proxy/"+p.ID, gone)
	}
	e := h.l.allow("the loss of "+x.ID, x.Address, gone, 60*clients)
	h.order("stop", "proxy/"+x.ID+"/*")
	time.Sleep(2 * length)
	h.order("start", "proxy/"+x.ID+"/*")
	h.l.close(e, dying)
}

func (h *chaos) publish(bad string) {
	g, err := h.docs.write(bad)
	if err != nil {
		h.l.fail("the soak's own document: %v", err)
		return
	}
	kind, word := "publish", "good"
	if bad != "" {
		kind, word = "publish bad", bad
		e := h.l.allow("a version that is bad: "+bad, netip.Addr{}, 0, 100*clients, 403, 502, 503, 504)
		defer h.l.close(e, 6*time.Second)
	}
	h.l.inject(kind, "generation %d (%s)", g.number, word)
	out, code := h.w.regionctl("publish", g.file, "--allow-upstreams", "127.0.0.0/8", "--message", fmt.Sprintf("generation %d: %s", g.number, word))
	h.l.note("publish of generation %d: exit %d %s", g.number, code, firstLine(out))
	if code == 1 && strings.Contains(out, ".yaml:") {
		h.l.fail("generation %d was refused: %s", g.number, out)
	}
	h.rolloutEnds(fmt.Sprintf("of generation %d", g.number))
	if s, err := h.w.status(); err == nil && bad != "" && s.settled() && h.live(s) == g {
		h.l.fail("generation %d went live everywhere although it is bad: %s", g.number, g.bad)
		h.rollBack(0)
	}
}

// live is the generation that the newest version holds.
func (h *chaos) live(s status) *generation {
	for _, v := range h.versions() {
		if v.Number == s.Version {
			return h.docs.of(v.Checksum)
		}
	}
	return nil
}

// rolloutEnds waits until no rollout is under way, as long as one may take when it is disturbed.
func (h *chaos) rolloutEnds(what string) {
	began, last := time.Now(), ""
	for time.Since(began) < 3*time.Minute {
		time.Sleep(time.Second)
		s, err := h.w.status()
		if err != nil {
			continue
		}
		if s.Rollout != nil {
			last = fmt.Sprintf("version %d %s %s", s.Rollout.Version, s.Rollout.State, s.Rollout.Why)
		}
		if s.settled() && time.Since(began) > 2*time.Second {
			break
		}
	}
	h.l.note("the rollout %s ended after %v: %s", what, time.Since(began).Round(time.Second), last)
}

type version struct {
	Number   uint64 `json:"number"`
	Checksum string `json:"checksum"`
}

func (h *chaos) versions() []version {
	out, code := h.w.regionctl("versions", "-o", "json")
	var list []version
	if code != 0 || decode(out, &list) != nil {
		return nil
	}
	return list
}

func (h *chaos) rollBack(pick uint64) {
	var good []version
	for _, v := range h.versions() {
		if g := h.docs.of(v.Checksum); g != nil && g.bad == "" {
			good = append(good, v)
		}
	}
	if len(good) == 0 {
		return
	}
	to := good[pick%uint64(len(good))]
	h.l.inject("roll back", "to version %d", to.Number)
	out, code := h.w.regionctl("rollback", fmt.Sprint(to.Number), "--message", "soak")
	h.l.note("rollback to %d: exit %d %s", to.Number, code, firstLine(out))
	h.rolloutEnds(fmt.Sprintf("back to version %d", to.Number))
}

func (h *chaos) evacuate(ctx context.Context, what string, length time.Duration) {
	h.l.inject("evacuate", "%s over %v", what, length)
	out, code := h.w.regionctl("evacuate", what, "--reason", "soak", "--over", length.String(), "--expires", "10m")
	h.l.note("evacuate %s: exit %d %s", what, code, firstLine(out))
	if code == 3 {
		return
	}
	sleep(ctx, 3*length+10*time.Second)
	if !h.restore(what) {
		h.l.note("%s was not restored; its order expires", what)
	}
}

// restore ends an evacuation; its order may have been stored although its command failed.
func (h *chaos) restore(what string) bool {
	for range 20 {
		out, code := h.w.regionctl("restore", what)
		h.l.note("restore %s: exit %d %s", what, code, firstLine(out))
		if code == 0 || strings.Contains(out, "is not evacuated") {
			return true
		}
		time.Sleep(3 * time.Second)
	}
	return false
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
