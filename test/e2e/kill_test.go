package e2e

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/test/harness"
)

// Every role is killed once under load. Only what was in flight on a killed proxy or backend may fail.
func TestAnyProcessMayDieUnderLoad(t *testing.T) {
	const clients = 16
	w := sharedWorld(t)
	w.healthy(t, 2*time.Minute)
	names := map[string]string{}
	for _, p := range w.Processes {
		role := p.Role
		if strings.HasPrefix(p.ID, "global/") {
			role += "/global"
		}
		if _, ok := names[role]; !ok {
			names[role] = p.Role + "/" + p.ID
		}
	}
	h1, h2 := w.load(t, clients, 400*time.Millisecond)
	time.Sleep(2 * time.Second)
	var all []*death
	for _, role := range []string{"proxy", "globalrouter", "regionctl", "healthd", "capacityd", "etcd", "etcd/global", "backend", "idp"} {
		t.Run(strings.ReplaceAll(role, "/", "-"), func(t *testing.T) { all = append(all, w.survives(t, names[role], clients)) })
	}
	time.Sleep(3 * time.Second)
	for proto, sum := range map[string]interface{ String() string }{"h1": h1.Stop(), "h2": h2.Stop()} {
		t.Logf("%s: %s", proto, sum)
	}
	for _, q := range append(h1.Requests(), h2.Requests()...) {
		if q.Failed() && !slices.ContainsFunc(all, func(d *death) bool { return d.explains(q) }) {
			t.Errorf("failed at %v, status %d: %v, and it was in flight on no process that was killed", q.Start, q.Status, q.Err)
		}
	}
}

// death is a kill and how many requests may have been in flight.
type death struct {
	at       time.Time
	inFlight int
}

func (w *world) survives(t *testing.T, name string, clients int) *death {
	before := w.pid(t, name)
	sigkill(t, before)
	d := &death{at: time.Now()}
	if strings.HasPrefix(name, "proxy/") || strings.HasPrefix(name, "backend/") {
		d.inFlight = clients // of one protocol in the region: its share of the clients
	}
	harness.Eventually(t, 10*time.Second, name+" runs again", func() bool {
		pid := w.pid(t, name)
		return pid != 0 && pid != before
	})
	w.cellgate(t, "start", name) // returns when it is ready
	if back := time.Since(d.at); back > harness.Slack*3*time.Second {
		t.Errorf("%s served again only after %v", name, back)
	}
	w.healthy(t, 90*time.Second)
	return d
}

// explains says whether the request was under way when the process died.
func (d *death) explains(q load.Request) bool {
	if q.Start.Add(q.Took).Before(d.at) || q.Start.After(d.at.Add(harness.Slack*100*time.Millisecond)) || d.inFlight == 0 {
		return false
	}
	d.inFlight--
	return true
}

// A proxy that hangs keeps its place behind the cell's address, so its supervisor, the cell's load balancer, replaces it.
func TestHungProxyIsReplaced(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, time.Minute)
	name := "proxy/" + w.cells()[2].Proxies[1].ID
	before := w.pid(t, name)
	if err := syscall.Kill(before, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	harness.Eventually(t, 3*time.Second, "the hung process to leave its cell", func() bool { return !alive(before) })
	t.Logf("left its cell after %v", time.Since(began))
	harness.Eventually(t, 8*time.Second, "another process serves", func() bool {
		pid := w.pid(t, name)
		return pid != 0 && pid != before
	})
	w.healthy(t, time.Minute)
}

// Stopping is no death: a proxy that is told to go finishes what it has, tells its clients to reconnect and stays down.
func TestStoppedProxyFailsNobodyAndStaysDown(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, time.Minute)
	h1, h2 := w.load(t, 16, 400*time.Millisecond)
	time.Sleep(2 * time.Second)
	name := "proxy/" + w.cells()[0].Proxies[0].ID
	w.cellgate(t, "stop", name)
	if pid := w.pid(t, name); pid != 0 {
		t.Errorf("world.json says that %s runs as %d", name, pid)
	}
	time.Sleep(3 * time.Second)
	if pid := w.pid(t, name); pid != 0 {
		t.Errorf("%s came back by itself as %d", name, pid)
	}
	w.cellgate(t, "start", name)
	if pid := w.pid(t, name); !alive(pid) {
		t.Errorf("after start: pid %d", pid)
	}
	for proto, run := range map[string]*load.Run{"h1": h1, "h2": h2} {
		sum := run.Stop()
		t.Logf("%s: %s", proto, sum)
		if sum.Failed > 0 {
			t.Errorf("%s: %d failed", proto, sum.Failed)
		}
	}
	w.healthy(t, time.Minute)
}

// A script reads world.json right after the command that changed the world.
func TestWorldFileIsTrueWhenTheCommandReturns(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, time.Minute)
	name := "proxy/" + w.cells()[1].Proxies[1].ID
	for range 3 {
		w.cellgate(t, "stop", name)
		if pid := w.pid(t, name); pid != 0 {
			t.Errorf("after stop, %s runs as %d", name, pid)
		}
		w.cellgate(t, "start", name)
		if pid := w.pid(t, name); !alive(pid) {
			t.Errorf("after start, %s has pid %d", name, pid)
		}
	}
	w.healthy(t, time.Minute)
}

// When a whole cell is down, its clients are sent elsewhere, and return when it is back.
func TestClientsLeaveADeadCellAndReturn(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, time.Minute)
	dead := w.Regions[1].Cells[0]
	answersWith := func() int {
		n := 0
		for _, client := range w.clients(32) {
			addrs, _, err := load.Lookup(t.Context(), w.DNS, w.Host, client)
			if err != nil {
				t.Fatal(err)
			}
			if addrs[0] == dead.Address {
				n++
			}
		}
		return n
	}
	if answersWith() == 0 {
		t.Fatalf("nobody is sent to %s", dead.ID)
	}
	w.cellgate(t, "stop", "proxy/"+dead.ID+"/*")
	harness.Eventually(t, 10*time.Second, "nobody is sent to the dead cell", func() bool { return answersWith() == 0 })
	w.cellgate(t, "start", "proxy/"+dead.ID+"/*")
	harness.Eventually(t, time.Minute, "clients are sent there again", func() bool { return answersWith() > 0 })
	w.healthy(t, 90*time.Second)
}
