package regionctl

import (
	"context"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/nodeapi"
)

// lease keeps the region's own leases of worldwide limits settled with the regions that own them, and stores what is spent
// of daily quotas.
func (c *Controller) lease(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, r := range c.quota.Regions() {
		from := c.quota.Abroad(r)
		g.Go(func() error { return from.Watch(ctx) })
		if to := c.couriers[r]; to != nil {
			g.Go(func() error { to.Leases(ctx, from.Serve); return nil })
		}
	}
	if from := c.quota.Backend(); from != nil {
		g.Go(func() error { return from.Watch(ctx) })
		g.Go(func() error { c.backed(ctx, from.Settle); return nil })
	}
	g.Go(func() error {
		return c.quota.Keep(ctx, c.opt.Regional, func(err error) {
			if err != nil {
				c.log.Warn("what is spent of daily quotas is not stored", "err", err)
				return
			}
			c.log.Info("what is spent of daily quotas is stored again")
		})
	})
	return g.Wait()
}

// backed settles with the quota backend, connection after connection. Trouble is told once, and so is its end.
func (c *Controller) backed(ctx context.Context, settle func(context.Context, nodeapi.Grantor) error) {
	const steady = 5 * time.Second
	lost := false
	for ctx.Err() == nil {
		began := time.Now()
		back := time.AfterFunc(steady, func() { c.log.Info("the quota backend grants") })
		err := settle(ctx, c.opt.Quota)
		if !back.Stop() || time.Since(began) >= steady {
			lost = false
		}
		if !lost && ctx.Err() == nil {
			c.log.Warn("the quota backend is lost", "err", err)
		}
		lost = true
		pause.For(ctx, pause.About(400*time.Millisecond, 0.5))
	}
}
