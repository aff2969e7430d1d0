package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// Every role is killed once under load. Only what was in flight on a killed proxy or backend may fail.
func TestAnyProcessMayDieUnderLoad(t *testing.T) {
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
	for _, role := range []string{"proxy", "globalrouter", "regionctl", "healthd", "capacityd", "etcd", "etcd/global", "backend", "idp"} {
		t.Run(strings.ReplaceAll(role, "/", "-"), func(t *testing.T) { w.survives(t, names[role]) })
	}
}

func (w *world) survives(t *testing.T, name string) {
	const clients = 16
	before := w.pid(t, name)
	h1, h2 := w.load(t, clients, 400*time.Millisecond)
	time.Sleep(2 * time.Second)
	sigkill(t, before)
	killed := time.Now()
	harness.Eventually(t, 10*time.Second, name+" runs again", func() bool {
		pid := w.pid(t, name)
		return pid != 0 && pid != before
	})
	w.cellgate(t, "start", name) // returns when it is ready
	if back := time.Since(killed); back > 3*time.Second {
		t.Errorf("%s served again only after %v", name, back)
	}
	time.Sleep(4 * time.Second)
	inFlight := 0
	if strings.HasPrefix(name, "proxy/") || strings.HasPrefix(name, "backend/") {
		inFlight = clients // of one protocol in the region: its share of the clients
	}
	for proto, sum := range map[string]interface{ String() string }{"h1": h1.Stop(), "h2": h2.Stop()} {
		t.Logf("%s: %s", proto, sum)
	}
	for _, q := range append(h1.Requests(), h2.Requests()...) {
		if !q.Failed() {
			continue
		}
		if inFlight--; inFlight < 0 || q.Start.Add(q.Took).Before(killed) || q.Start.After(killed.Add(100*time.Millisecond)) {
			t.Errorf("failed at %v of the kill, status %d: %v", q.Start.Sub(killed), q.Status, q.Err)
		}
	}
	w.healthy(t, 90*time.Second)
}
