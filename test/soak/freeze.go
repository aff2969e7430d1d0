package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// readyIn is how long a proxy with an empty disk may take to serve.
const readyIn = 10 * time.Second

// freeze stops all that steers and watches a region as if the rest of the world could not reach it, and lets it go on where it
// was: what led may believe that it leads still.
func (h *chaos) freeze(region string, length time.Duration) {
	all, err := h.w.processes()
	if err != nil {
		h.l.fail("world.json: %v", err)
		return
	}
	h.l.inject("freeze", "controllers, store and probers of %s for %v", region, length)
	var frozen []process
	for _, p := range all {
		control := p.Role == "regionctl" || p.Role == "healthd" || p.Role == "etcd"
		if control && p.PID > 0 && (strings.HasPrefix(p.ID, region+"/") || p.ID == region || p.ID == "global/"+region) {
			h.c.hit(p.name(), length+backIn)
			_ = syscall.Kill(p.PID, syscall.SIGSTOP)
			frozen = append(frozen, p)
		}
	}
	time.Sleep(length)
	for _, p := range frozen {
		_ = syscall.Kill(p.PID, syscall.SIGCONT)
	}
	h.l.note("the control of %s goes on", region)
}

// loseDisk gives a proxy an empty disk while it is down. It has no memory of its own then, and its cell still has one.
func (h *chaos) loseDisk(p process, length time.Duration) {
	h.l.inject("lose disk", "%s, down for %v", p.name(), length)
	h.c.hit(p.name(), length+20*time.Second)
	h.order("stop", p.name())
	time.Sleep(length)
	dir := filepath.Join(h.w.dir, "data", "proxy", strings.ReplaceAll(p.ID, "/", "-"))
	if entries, err := os.ReadDir(dir); err != nil || len(entries) == 0 {
		h.l.fail("%s keeps nothing in %s: %v", p.name(), dir, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		h.l.fail("the disk of %s: %v", p.name(), err)
	}
	h.c.emptied(p.name())
	began := time.Now()
	h.order("start", p.name())
	took := time.Since(began)
	h.l.note("%s began with an empty disk and was ready after %v", p.name(), took.Round(10*time.Millisecond))
	if took > readyIn && !h.c.starved() {
		h.l.fail("%s with an empty disk was ready only after %v", p.name(), took.Round(10*time.Millisecond))
	}
}
