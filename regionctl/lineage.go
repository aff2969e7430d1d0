package regionctl

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/store"
)

const (
	// lineagePatience is how long the global store must look older than what was seen before it is said to have gone back:
	// another controller may only have seen a change earlier.
	lineagePatience = 2 * time.Second
	// copyPatience is how long a new leader waits to know what its region's copy says.
	copyPatience = 3 * time.Second
	// maxLeap bounds how far a node may be ahead of everything that is signed: further is a damaged node, not a lost version.
	maxLeap      = 1_000_000
	maxEpochLeap = 1 << 40
)

// seenForm is the version of the sent form of seen.
const seenForm = 1

// seen is what one controller knows to have been published: from its region's copy, whose contents are signed, and from
// what the global store said while it ran. In a store that never was restored from a backup, neither number ever falls.
type seen struct {
	Form  int    `json:"form"`
	Epoch uint64 `json:"epoch"`
	Head  uint64 `json:"head"`
	// Attached is the highest epoch that any attached process knew, by its own word.
	Attached uint64 `json:"attached,omitempty"`
	// Target is the signed target of the region's copy.
	Target []byte `json:"target,omitempty"`
}

func (s *seen) raise(epoch, head uint64) { s.Epoch, s.Head = max(s.Epoch, epoch), max(s.Head, head) }

// lineage remembers the highest numbers that the global store showed, and whether it is behind them now.
type lineage struct {
	mu    sync.Mutex
	most  seen
	since time.Time // when it was first found behind; zero = it is not
	why   string    // told once it has been for long enough
	// target is what the copy's target proved last: every loop of a leader asks, and a signature is verified once.
	target proof
}

// proof is a signed value and what it shows to have been published.
type proof struct {
	value []byte
	shows seen
}

// of gives what the value shows; nothing when it can't be read.
func (p *proof) of(value []byte, read func([]byte) (seen, error)) seen {
	if bytes.Equal(p.value, value) {
		return p.shows
	}
	s, err := read(value)
	if err != nil {
		return seen{}
	}
	*p = proof{value, s}
	return s
}

func (l *lineage) told() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.why
}

// epochs is the stored form of what is added to the leader key's revision.
type epochs struct {
	Form int    `json:"form"`
	Base uint64 `json:"base"`
}

func (c *Controller) epochBase(ctx context.Context) (uint64, error) {
	e, _, err := load[epochs](ctx, c.opt.Global, store.KeyEpochs)
	return e.Base, err
}

// shown is what the mirrored global store says now. Without a leader its epoch is unknown, and ok is false.
func (c *Controller) shown() (now seen, ok bool) {
	h, _, _ := read[head](c.intent, store.KeyHead)
	base, _, _ := read[epochs](c.intent, store.KeyEpochs)
	leader, ok := c.intent.get(store.KeyLeader)
	return seen{Head: h.Number, Epoch: base.Base + uint64(leader.Modified)}, ok
}

// seenHere is what this controller itself knows.
func (c *Controller) seenHere() seen {
	l := &c.lineage
	l.mu.Lock()
	defer l.mu.Unlock()
	out := l.most
	out.Form = seenForm
	if e, ok := c.copied.get(store.KeyCopyTarget); ok {
		s := l.target.of(e.Value, c.targetShows)
		out.raise(s.Epoch, s.Head)
		out.Target = s.Target
	}
	if e, ok := c.copied.get(store.KeyCopyPlan); ok {
		if epoch, head, err := planSeen(e.Value); err == nil {
			out.raise(epoch, head)
		}
	}
	return out
}

func (c *Controller) targetShows(envelope []byte) (s seen, err error) {
	t, err := c.target(envelope)
	if err != nil {
		return s, err
	}
	s = seen{Epoch: t.Epoch, Head: t.Head, Target: envelope}
	for _, v := range versionsOf(t) {
		s.raise(0, v.Number)
	}
	return s, nil
}

// published is what any controller is known to have seen.
func (c *Controller) published() seen {
	out := c.seenHere()
	for _, p := range c.evidence.Peers() {
		var s seen
		if json.Unmarshal(p.Seen, &s) == nil && s.Form >= 1 {
			out.raise(s.Epoch, s.Head)
		}
	}
	return out
}

func (c *Controller) tellSeen() []byte {
	s := c.seenHere()
	s.Attached = c.nodes.Epoch(s.Epoch + maxEpochLeap)
	return encode(s)
}

// behind says whether the global store, as it is mirrored, is older than what was seen. That may be for a moment only.
func (c *Controller) behind() bool {
	if !c.intent.ready() {
		return false
	}
	most := c.published()
	now, led := c.shown()
	return most.Head > now.Head || led && most.Epoch > now.Epoch
}

// unlessBehind keeps a leader from acting on a store that went back; watchLineage says so.
func (t *term) unlessBehind(do func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if t.behind() {
			return nil
		}
		return do(ctx)
	}
}

// awaitCopy lets a new leader know its region's copy before it acts, so that it sees when the store went back. A region's
// store that is away is not waited for long.
func (c *Controller) awaitCopy(ctx context.Context) {
	short, cancel := context.WithTimeout(ctx, copyPatience)
	defer cancel()
	for !c.copied.ready() && pause.For(short, 20*time.Millisecond) {
	}
}

// watchLineage remembers what the global store shows and says when it has become older than that.
func (c *Controller) watchLineage(ctx context.Context) error {
	for {
		changed := c.intent.next()
		if c.compareLineage(c.opt.Now()) {
			c.confirmLineage(ctx)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// compareLineage notes what the mirrored store shows; suspect says that it has been behind for long enough to be asked itself.
func (c *Controller) compareLineage(now time.Time) (suspect bool) {
	if !c.intent.ready() {
		return false
	}
	shown, led := c.shown()
	if !led {
		shown.Epoch = 0
	}
	behind := c.behind()
	l := &c.lineage
	l.mu.Lock()
	defer l.mu.Unlock()
	l.most.raise(shown.Epoch, shown.Head)
	switch {
	case !behind && l.why != "":
		c.log.Info("the global store is as new as what was seen")
		fallthrough
	case !behind:
		l.since, l.why = time.Time{}, ""
	case l.since.IsZero():
		l.since = now
	case l.why == "" && now.Sub(l.since) >= lineagePatience:
		return true
	}
	return false
}

// confirmLineage asks the store itself and says that it went back if it is still behind. A controller that is cut off from
// the store hears from others what is published there, and its mirror alone would accuse it.
func (c *Controller) confirmLineage(ctx context.Context) {
	now, led, err := c.stored(ctx)
	most := c.published()
	if err != nil || most.Head <= now.Head && (!led || most.Epoch <= now.Epoch) {
		return
	}
	l := &c.lineage
	l.mu.Lock()
	defer l.mu.Unlock()
	l.why = wentBack(most, now)
	c.log.Error(l.why)
}

// stored is what the global store says now; see shown.
func (c *Controller) stored(ctx context.Context) (now seen, led bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	h, _, err := load[head](ctx, c.opt.Global, store.KeyHead)
	if err != nil {
		return now, false, err
	}
	base, err := c.epochBase(ctx)
	if err != nil {
		return now, false, err
	}
	leader, err := c.opt.Global.Get(ctx, store.KeyLeader)
	if err != nil && !isAbsent(err) {
		return now, false, err
	}
	return seen{Head: h.Number, Epoch: base + uint64(leader.Modified)}, leader.Modified != 0, nil
}

func wentBack(most, shown seen) string {
	return fmt.Sprintf("ALARM: the global store went back: it knows versions up to %d, %d was seen (epoch %d, %d was seen); nodes and routers keep what they have, "+
		"nothing is published, rolled out or steered; `regionctl recover` goes on above everything that was seen", shown.Head, most.Head, shown.Epoch, most.Epoch)
}
