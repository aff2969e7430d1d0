package regionctl

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/store"
)

const (
	// tight is the part of its quota from which a member of a store is warned of; its etcd makes room from there on.
	tight = 0.8
	// spaceEvery is how often members are asked for their sizes.
	spaceEvery = 5 * time.Second
)

// space is how full the members of both stores are, as this controller saw them last. It is safe for concurrent use.
type space struct {
	mu   sync.Mutex
	seen map[string][]store.Usage // by store: global, regional
}

func (s *space) get(which string) []store.Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[which]
}

func (s *space) set(which string, u []store.Usage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen == nil {
		s.seen = map[string][]store.Usage{}
	}
	s.seen[which] = u
}

// watchSpace asks both stores, as far as they know, until ctx ends. It logs when a store becomes full and when it is no more.
func (c *Controller) watchSpace(ctx context.Context) error {
	for {
		c.measure(ctx, "global", c.opt.Global)
		c.measure(ctx, "regional", c.opt.Regional)
		if !pause.For(ctx, spaceEvery) {
			return nil
		}
	}
}

func (c *Controller) measure(ctx context.Context, which string, s store.Store) {
	sized, ok := s.(store.Sized)
	if !ok {
		return
	}
	now, err := sized.Usage(ctx)
	if err != nil || ctx.Err() != nil {
		return
	}
	was := anyFull(c.space.get(which))
	c.space.set(which, now)
	switch is := anyFull(now); {
	case is && !was:
		c.log.Error("the "+which+" store is full: it refuses writes until room is made", "members", now)
	case was && !is:
		c.log.Info("the " + which + " store takes writes again")
	}
}

func anyFull(members []store.Usage) bool {
	for _, u := range members {
		if u.Full {
			return true
		}
	}
	return false
}

// spaceWarnings says what operators should know of the sizes, and what to do.
func (c *Controller) spaceWarnings() []string {
	var out []string
	lost := map[string]bool{"global": c.globalSeen.lost.Load(), "regional": c.regionalSeen.lost.Load()}
	for _, which := range []string{"global", "regional"} {
		name := "the global store"
		goesOn := "nothing can be published or ordered through it; traffic, DNS and reads go on"
		if which == "regional" {
			name = fmt.Sprintf("the store of region %s", c.opt.Region)
			goesOn = "the region's copy is not renewed; its nodes go on with what they have"
		}
		for _, u := range c.space.get(which) {
			switch {
			case u.Lost && !lost[which]:
				out = append(out, fmt.Sprintf("%s: its member %s does not answer; it goes on as long as most of its members do", name, u.Member))
			case u.Lost: // so are the others, which is told elsewhere
			case u.Full:
				out = append(out, fmt.Sprintf("ALARM NOSPACE: %s is full at %s (%s of %s): %s. It compacts, defragments and takes writes again by itself "+
					"once there is room; if this stays for a minute, raise the quota of its members and restart them one after the other",
					name, u.Member, megabytes(u.Size), megabytes(u.Quota), goesOn))
			case u.Quota > 0 && float64(u.Size) >= tight*float64(u.Quota):
				out = append(out, fmt.Sprintf("%s is %d%% full at %s (%s of %s, %s in use): at 100%% it refuses writes; it makes room by itself, and if it cannot, raise its quota",
					name, 100*u.Size/u.Quota, u.Member, megabytes(u.Size), megabytes(u.Quota), megabytes(u.InUse)))
			}
		}
	}
	return out
}

func megabytes(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
