package regionctl

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/store"
)

// reach is whether a store answers.
type reach struct{ lost atomic.Bool }

// watchReach asks both stores every two seconds, for status and for clear words in the log.
func (c *Controller) watchReach(ctx context.Context) error {
	for {
		c.ask(ctx, "global", c.opt.Global, store.KeyHead, &c.globalSeen)
		c.ask(ctx, "regional", c.opt.Regional, store.KeyCopyTarget, &c.regionalSeen)
		if !pause.For(ctx, 2*time.Second) {
			return nil
		}
	}
}

func (c *Controller) ask(ctx context.Context, which string, s store.Store, key string, r *reach) {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err := s.Get(short, key)
	lost := err != nil && !isAbsent(err)
	if ctx.Err() != nil || r.lost.Swap(lost) == lost {
		return
	}
	if lost {
		c.log.Warn("waiting for the "+which+" store: it does not answer", "err", err)
		return
	}
	c.log.Info("the " + which + " store answers again")
}

// readyz is green once the region's copy or the world's intent was seen: nodes can be served.
func (c *Controller) readyz(w http.ResponseWriter, _ *http.Request) {
	if c.intent.ready() || c.copied.ready() {
		w.Write([]byte("ok\n"))
		return
	}
	writeFault(w, fault(http.StatusServiceUnavailable, "starting", "The controller waits for its stores", "neither the global nor the regional store has answered yet"))
}
