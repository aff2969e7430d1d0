package regionctl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/regionctl/rollout/judge"
	"github.com/cellgate/cellgate/store"
)

// leaseTTL is how long a dead leader keeps its office.
const leaseTTL = 3 * time.Second

// leaderRecord says who leads; the revision at which it was put is the epoch.
type leaderRecord struct {
	Form   int            `json:"form"`
	ID     cells.NodeID   `json:"id"`
	Region cells.RegionID `json:"region"`
}

// term is one controller's time as leader. Every write of it is conditional on the term, so a leader that has lost its
// office without noticing changes nothing.
type term struct {
	*Controller
	*store.Term
	stepping stepping      // written by: the steering loop
	swept    time.Time     // written by: housekeeping
	rolling  rolling       // written by: the rollout loop
	memory   *judge.Memory // as rolling
}

// campaign stands for election until ctx ends.
func (c *Controller) campaign(ctx context.Context) error {
	if !c.synced(ctx) {
		return nil
	}
	candidacy := store.Candidacy{
		Key: store.KeyLeader, TTL: leaseTTL,
		Value:  encode(leaderRecord{Form: recordForm, ID: c.opt.ID, Region: c.opt.Region}),
		Base:   c.epochBase,
		Failed: func(err error) { c.log.Warn("not leading", "err", err) },
	}
	return store.Campaign(ctx, c.opt.Global, candidacy, func(ctx context.Context, t *store.Term) error {
		c.intent.see(ctx, t.Fence().Modified)
		return (&term{Controller: c, Term: t}).lead(ctx)
	})
}

// synced waits until the intent was seen whole, so that nobody leads blindly; false when ctx ended before.
func (c *Controller) synced(ctx context.Context) bool {
	for !c.intent.ready() {
		next := c.intent.next()
		if c.intent.ready() {
			break
		}
		select {
		case <-next:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// lead does the leader's work until ctx ends.
func (t *term) lead(ctx context.Context) error {
	t.log.Info("leading the world", "epoch", t.Epoch)
	t.leading.Store(true)
	defer func() {
		t.leading.Store(false)
		t.log.Info("no longer leading", "epoch", t.Epoch)
	}()
	g, ctx := errgroup.WithContext(ctx)
	t.awaitCopy(ctx)
	g.Go(func() error { return t.watchOffice(ctx) })
	g.Go(func() error { return t.every(ctx, t.opt.Beat, "rollout", t.unlessBehind(t.stepRollout)) })
	g.Go(func() error { return t.steer(ctx) })
	g.Go(func() error { return t.every(ctx, t.opt.Beat, "evacuations", t.unlessBehind(t.tendEvacuations)) })
	g.Go(func() error { return t.every(ctx, time.Minute, "housekeeping", t.unlessBehind(t.trimHistory)) })
	return g.Wait()
}

// watchOffice ends the term when the mirror no longer shows its key, also when the term has nothing to write.
func (t *term) watchOffice(ctx context.Context) error {
	for {
		changed := t.intent.next()
		if e, ok := t.intent.get(store.KeyLeader); !ok || e.Modified != t.Fence().Modified {
			return errDeposed
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
}

// every does one thing at an interval, and when the intent changes, until ctx ends or the office is lost. An error is
// logged once per spell and tried again.
func (t *term) every(ctx context.Context, d time.Duration, what string, do func(context.Context) error) error {
	var last string
	for {
		changed := t.intent.next()
		err := do(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if errors.Is(err, store.ErrConflict) {
			if err := t.inOffice(ctx); err != nil {
				return err
			}
			err = nil // somebody else's order came first: look again
		}
		if err != nil && err.Error() != last {
			t.log.Warn("leader's work failed", "what", what, "err", err)
		}
		last = ""
		if err != nil {
			last = err.Error()
		}
		if !t.rest(ctx, d, changed, err != nil) {
			return nil
		}
	}
}

// rest waits for the next turn: the interval, or a change, which the leader's own writes are too. Says whether ctx is alive.
func (t *term) rest(ctx context.Context, d time.Duration, changed <-chan struct{}, failed bool) bool {
	if failed {
		return pause.For(ctx, d)
	}
	tick := time.NewTimer(d)
	defer tick.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-tick.C:
	case <-changed:
	}
	return true
}

var errDeposed = errors.New("regionctl: another controller leads")

// inOffice says errDeposed when the leader key is no longer this term's.
func (t *term) inOffice(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	e, err := t.opt.Global.Get(short, store.KeyLeader)
	if isAbsent(err) || err == nil && e.Modified != t.Fence().Modified {
		return errDeposed
	}
	return nil
}

// commit writes under the condition that this term still stands, within a bounded time.
func (t *term) commit(ctx context.Context, conds []store.Cond, ops []store.Op) (store.Revision, error) {
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	rev, err := t.Commit(short, conds, ops)
	if err == nil {
		t.intent.see(short, rev)
	}
	return rev, err
}

// trimHistory forgets the oldest audit entries, plans and rollouts beyond their bounds.
func (t *term) trimHistory(ctx context.Context) error {
	for prefix, keep := range map[string]int{store.PrefixAudit: maxAudit, store.PrefixRollouts: keepRollouts} {
		if err := trim(ctx, t.opt.Global, prefix, keep, t.Fence()); err != nil {
			return fmt.Errorf("regionctl: trim %s: %w", prefix, err)
		}
	}
	if err := t.trimPlans(ctx); err != nil {
		return fmt.Errorf("regionctl: trim plans: %w", err)
	}
	return t.sweepInTurn(ctx, keepVersions)
}

// trimPlans forgets the plans beyond the last ones, with their blobs.
func (t *term) trimPlans(ctx context.Context) error {
	entries, _, err := t.opt.Global.List(ctx, store.PrefixPlans)
	if err != nil {
		return err
	}
	for _, e := range entries[:max(len(entries)-keepPlans, 0)] {
		if _, err := t.Commit(ctx, nil, []store.Op{store.Delete(e.Key)}); err != nil {
			return err
		}
		if rec, inline, err := planReference(e.Value); err == nil && inline == nil {
			t.forget(ctx, t.globalBlobs, rec.Blob, t.Fence())
		}
	}
	return nil
}

// leader is who leads, as far as this controller knows.
func (c *Controller) leader() (leaderRecord, bool) {
	l, _, ok := read[leaderRecord](c.intent, store.KeyLeader)
	return l, ok
}

func isAbsent(err error) bool { return errors.Is(err, store.ErrNotFound) }
