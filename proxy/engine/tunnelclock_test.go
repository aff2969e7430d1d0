package engine

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/websocket"
)

// Whoever is asked to close has closeTime for it, however often the clock rings meanwhile: a half that ends sets it anew.
func TestATunnelThatIsAskedToCloseHasItsTime(t *testing.T) {
	now := time.Now()
	tn := &tunnel{timer: time.NewTimer(time.Hour), idle: time.Hour, end: now}
	defer tn.timer.Stop()
	if code, over := tn.due(now); code != websocket.ServiceRestart || over {
		t.Fatal(code, over)
	}
	for _, c := range []struct {
		after time.Duration
		over  bool
	}{{0, false}, {closeTime / 2, false}, {closeTime - 1, false}, {closeTime, true}} {
		if code, over := tn.due(now.Add(c.after)); code != 0 || over != c.over {
			t.Errorf("after %v: %d %v", c.after, code, over)
		}
	}
}
