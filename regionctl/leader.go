package regionctl

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/store"
)

// leaseTTL is how long a dead leader keeps its office.
const leaseTTL = 3 * time.Second

// leaderRecord says who leads; the revision at which it was put is the epoch.
type leaderRecord struct {
	Form   int            `json:"form"`
	ID     cells.NodeID   `json:"id"`
	Region cells.RegionID `json:"region"`
	Since  time.Time      `json:"since"`
}

// term is one controller's time as leader. Every write of it is conditional on the leader key being as it was put,
// so a leader that has lost its office without noticing changes nothing.
type term struct {
	*Controller
	epoch    uint64
	cond     store.Cond
	stepping stepping // written by: the steering loop
	rolling  rolling  // written by: the rollout loop
}

// campaign stands for election until ctx ends.
func (c *Controller) campaign(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := c.vacancy(ctx); err != nil {
			return nil // ctx ended
		}
		if err := c.serveTerm(ctx); err != nil && ctx.Err() == nil {
			c.log.Warn("not leading", "err", err)
		}
		sleep(ctx, 200*time.Millisecond+rand.N(300*time.Millisecond))
	}
	return nil
}

// vacancy waits until nobody leads.
func (c *Controller) vacancy(ctx context.Context) error {
	for {
		next := c.intent.next()
		if _, taken := c.intent.get(keyLeader); !taken && c.intent.ready() {
			return nil
		}
		select {
		case <-next:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// serveTerm tries to be elected and leads until the lease is lost.
func (c *Controller) serveTerm(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	lease, err := c.opt.Global.Lease(short, leaseTTL)
	if err != nil {
		return fmt.Errorf("regionctl: lease: %w", err)
	}
	defer func() { // also ends a candidacy whose outcome is unknown
		bye, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		defer cancel()
		_ = lease.Release(bye) // it expires by itself otherwise
	}()
	put := store.Put(keyLeader, encode(leaderRecord{Form: recordForm, ID: c.opt.ID, Region: c.opt.Region, Since: c.opt.Now().UTC()}))
	put.Lease = lease
	rev, err := c.opt.Global.Commit(short, []store.Cond{store.Absent(keyLeader)}, []store.Op{put})
	if errors.Is(err, store.ErrConflict) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("regionctl: election: %w", err)
	}
	t := &term{Controller: c, epoch: uint64(rev), cond: store.Cond{Key: keyLeader, Modified: rev}}
	ctx, end := context.WithCancel(ctx)
	defer end()
	go func() {
		select {
		case <-lease.Done():
			end()
		case <-ctx.Done():
		}
	}()
	c.intent.see(ctx, rev)
	return t.lead(ctx)
}

// lead does the leader's work until ctx ends.
func (t *term) lead(ctx context.Context) error {
	t.log.Info("leading the world", "epoch", t.epoch)
	t.leading.Store(true)
	defer func() {
		t.leading.Store(false)
		t.log.Info("no longer leading", "epoch", t.epoch)
	}()
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return t.every(ctx, time.Second, "rollout", t.stepRollout) })
	g.Go(func() error { return t.steer(ctx) })
	g.Go(func() error { return t.every(ctx, time.Second, "evacuations", t.tendEvacuations) })
	g.Go(func() error { return t.every(ctx, time.Minute, "housekeeping", t.trimHistory) })
	return g.Wait()
}

// every does one thing at an interval until ctx ends or the office is lost; an error is logged once per spell and tried again.
func (t *term) every(ctx context.Context, d time.Duration, what string, do func(context.Context) error) error {
	var last string
	for {
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
		if !sleep(ctx, d) {
			return nil
		}
	}
}

var errDeposed = errors.New("regionctl: another controller leads")

// inOffice says errDeposed when the leader key is no longer this term's.
func (t *term) inOffice(ctx context.Context) error {
	short, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	e, err := t.opt.Global.Get(short, keyLeader)
	if isAbsent(err) || err == nil && e.Modified != t.cond.Modified {
		return errDeposed
	}
	return nil
}

// commit writes under the condition that this term still stands, within a bounded time.
func (t *term) commit(ctx context.Context, conds []store.Cond, ops []store.Op) (store.Revision, error) {
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	rev, err := t.opt.Global.Commit(short, append([]store.Cond{t.cond}, conds...), ops)
	if err == nil {
		t.intent.see(short, rev)
	}
	return rev, err
}

// trimHistory forgets the oldest audit entries, plans and rollouts beyond their bounds.
func (t *term) trimHistory(ctx context.Context) error {
	for prefix, keep := range map[string]int{auditPrefix: maxAudit, planPrefix: keepPlans, rolloutPrefix: keepRollouts} {
		if err := trim(ctx, t.opt.Global, prefix, keep, t.cond); err != nil {
			return fmt.Errorf("regionctl: trim %s: %w", prefix, err)
		}
	}
	return nil
}

// leader is who leads, as far as this controller knows.
func (c *Controller) leader() (leaderRecord, bool) {
	l, _, ok := read[leaderRecord](c.intent, keyLeader)
	return l, ok
}

func isAbsent(err error) bool { return errors.Is(err, store.ErrNotFound) }

// sleep waits d and says whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
