package regionctl

import (
	"context"
	"maps"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/trust"
)

// verdicts is what this controller believes of every cell. Each controller judges for itself all the time, so that one
// that starts to lead has no history to wait for.
type verdicts struct {
	mu    sync.Mutex
	state health.State
	count uint64 // of posts; owner: judge
}

func (v *verdicts) get() map[cells.CellID]health.Status {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := make(map[cells.CellID]health.Status, len(v.state.Cells))
	for id, c := range v.state.Cells {
		out[id] = c.Status
	}
	return out
}

// reached are the cells that some vantage point reaches now.
func (v *verdicts) reached() map[cells.CellID]bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	out := map[cells.CellID]bool{}
	for id := range v.state.Cells {
		if v.state.Reached(id) {
			out[id] = true
		}
	}
	return out
}

func (v *verdicts) why(id cells.CellID) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.state.Why(id)
}

func (c *Controller) healthConfig() health.Config {
	cfg := health.Config{DownAfter: c.opt.DownAfter, UpAfter: c.opt.UpAfter, FlapCap: c.opt.FlapCap}
	for _, r := range c.opt.Topology.Regions {
		cfg.Vantages = append(cfg.Vantages, r.ID)
	}
	for _, cell := range c.opt.Topology.Cells() {
		cfg.Cells = append(cfg.Cells, cell.ID)
	}
	return cfg
}

// judge steps the verdicts every 200 ms and logs their changes.
func (c *Controller) judge(ctx context.Context) error {
	cfg := c.healthConfig()
	var posted time.Time
	for pause.For(ctx, 200*time.Millisecond) {
		before := c.verdicts.get()
		c.verdicts.step(c.seen(), cfg, c.opt.Now())
		after := c.verdicts.get()
		same := maps.Equal(before, after)
		if now := c.opt.Now(); !same || now.Sub(posted) >= time.Second || now.Before(posted) {
			posted = now
			c.postVerdicts(after)
		}
		if same {
			continue
		}
		for id, s := range after {
			if s != before[id] {
				c.log.Info("cell verdict", "cell", string(id), "is", s.String(), "was", before[id].String(), "why", c.verdicts.why(id))
			}
		}
	}
	return nil
}

func (v *verdicts) step(seen []health.Seen, cfg health.Config, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.state = health.Step(v.state, seen, cfg, now)
}

func (c *Controller) seen() []health.Seen {
	var out []health.Seen
	for _, r := range c.evidence.Rounds() {
		for _, p := range r.Probes {
			out = append(out, health.Seen{Probe: p, Arrived: r.Arrived})
		}
	}
	return out
}

// postVerdicts tells the routers what this controller believes: they have no quorum of their own.
func (c *Controller) postVerdicts(all map[cells.CellID]health.Status) {
	c.verdicts.count++
	envelope, err := c.opt.Signer.Sign(trust.KindVerdicts, encode(health.Verdicts{Form: health.VerdictsForm, Count: c.verdicts.count, Cells: all, Reached: c.verdicts.reached()}))
	if err != nil {
		c.log.Error("verdicts could not be signed", "error", err)
		return
	}
	c.board.Post(fleet.Mail{Kind: fleet.KindVerdicts, Envelope: envelope})
}
