package engine_test

import (
	"testing"
	"time"
)

// The time that a client takes over its head is not its upstream's: neither in the log, nor for balancer and timeouts.
func TestASlowHeadIsNotTheUpstreamsTime(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		const pause = 300 * time.Millisecond
		for range 5 { // a machine that is slow itself gets another chance
			c := w.dial().send(get("/x")[:20])
			time.Sleep(pause)
			c.send(get("/x")[20:]).answer("GET")
			if r := <-w.logged; r.Total-r.Upstream > pause/2 {
				return
			}
		}
		t.Error("the upstream's time begins with the head")
	})
}
