package proxy

import (
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy"
)

func TestTheGuardSeesItsOwnProcess(t *testing.T) {
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(64 << 20))
	c := &core{cores: 1, server: proxy.New(proxy.Options{})}
	g := newGuard(c)
	if g.memory <= 0 || g.memory > 64<<20 || g.files <= 0 {
		t.Fatalf("%.0f bytes and %.0f descriptors may be had", g.memory, g.files)
	}
	now := time.Now()
	if _, ok := g.look(now); ok {
		t.Fatal("the first look has nothing to compare with")
	}
	held := make([]byte, 32<<20)
	runtime.GC()
	for end := time.Now().Add(50 * time.Millisecond); time.Now().Before(end); {
		held[len(held)-1]++
	}
	c.server.Connections.Store(int64(g.files / 2))
	at, ok := g.look(time.Now())
	if !ok || at.CPU <= 0 || at.Memory < 0.5 || at.Pools < 0.49 || at.Pools > 0.51 {
		t.Fatalf("%+v, %v", at, ok)
	}
	runtime.KeepAlive(held)
	if now = now.Add(-time.Hour); !g.last.After(now) {
		t.Fatal("time goes back")
	}
	if _, ok := g.look(now); ok {
		t.Fatal("a clock that went back gives a look")
	}
}

// A node that sheds for its memory's sake learns within seconds that it has it back, whether or not it makes garbage.
func TestMemoryThatIsGivenBackIsSeen(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	g := newGuard(&core{cores: 1, server: proxy.New(proxy.Options{})})
	g.memory = 256 << 20
	now := time.Now()
	g.look(now)
	held := make([]byte, 240<<20)
	runtime.GC()
	at, _ := g.look(time.Now())
	g.collect(2000, at, now)
	if at.Memory < muchMemory {
		t.Fatalf("%+v", at)
	}
	runtime.KeepAlive(held)
	g.collect(2000, at, now.Add(collectAfter-time.Millisecond))
	if at, _ = g.look(time.Now()); at.Memory < muchMemory {
		t.Fatal("a collection ahead of its time")
	}
	g.collect(2000, at, now.Add(collectAfter))
	if at, _ = g.look(time.Now()); at.Memory > muchMemory {
		t.Fatalf("%+v", at)
	}
}
