package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/trust"
)

// Copy is a place that holds what the node's cell serves, besides the controllers: a peer's disk, an object store.
// Nothing that it gives is believed: targets, manifests and denylists are verified by signature, shards by digest, as pushed ones are.
type Copy interface {
	// Ask gives the signed targets on offer and the signed denylists that are known, in any order. What can't be asked has none.
	Ask(ctx context.Context) (targets, denylists [][]byte)
	fetcher
}

const (
	copyPause    = 200 * time.Millisecond // before the copies are asked a second time; doubled from then on
	maxCopyPause = 3 * time.Second
	copyLimit    = 45 * time.Second // of one look at all copies
	maxOffers    = 3                // targets of one copy that are tried, newest first
)

// bootFromCopies serves what a copy of the cell has, while nothing is served and no controller has spoken. Whom the cell denies it
// hears first: a new node lets nobody in whom the others refuse.
func (a *Agent) bootFromCopies(ctx context.Context) {
	if a.live != nil && a.denied.known || len(a.opt.Copies) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, copyLimit)
	defer cancel()
	a.mu.Lock()
	spoken := a.arrived != nil
	a.leaveOff = cancel
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.leaveOff = nil
		a.mu.Unlock()
	}()
	for _, c := range a.opt.Copies {
		if spoken || ctx.Err() != nil {
			return
		}
		targets, denylists := c.Ask(ctx)
		a.denied.hear(denylists, time.Now())
		if a.live != nil {
			continue
		}
		for _, o := range a.offers(targets) {
			err := a.adopt(ctx, c, o)
			if err == nil {
				return
			}
			if ctx.Err() == nil {
				a.log.Warn("the cell's copy is not usable", "epoch", o.at.epoch, "number", o.at.number, "error", err)
			}
		}
	}
}

// offer is a verified target of a copy.
type offer struct {
	at       order
	target   *rollout.Target
	envelope []byte
}

// offers are those of the targets that are signed, for us and not older than what the node has seen; newest first.
func (a *Agent) offers(envelopes [][]byte) []offer {
	var all []offer
	for _, e := range envelopes {
		t, err := a.open(e)
		if err != nil {
			a.log.Warn("a copy's target is refused", "error", err)
			continue
		}
		o := offer{order{t.Epoch, t.Number}, t, e}
		if !o.at.less(a.highest()) {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(x, y offer) int {
		return cmp.Or(cmp.Compare(y.at.epoch, x.at.epoch), cmp.Compare(y.at.number, x.at.number))
	})
	all = slices.CompactFunc(all, func(x, y offer) bool { return x.at == y.at })
	return all[:min(len(all), maxOffers)]
}

// adopt brings the node to what a copy offers. Unlike a controller's target, one that fails leaves no trace: an older
// one of another peer may still do.
func (a *Agent) adopt(ctx context.Context, from Copy, o offer) error {
	want, ok := o.target.For(a.opt.ID)
	if !ok {
		return fmt.Errorf("the target does not speak of cell %s", a.opt.ID.Cell())
	}
	in := arrival{o.envelope, report.SourceCopy, from}
	if err := a.bring(ctx, o.at, o.target.Head, want, max(o.target.Share[a.opt.ID.Cell()], 1), in); err != nil {
		return err
	}
	a.note(o.at, want.Number)
	a.answer(o.at, want.Number, nil)
	return nil
}

// keepTarget remembers the signed target that is served now, so that peers can be given it. Without it on disk the node
// serves all the same.
func (a *Agent) keepTarget(envelope []byte) {
	a.mu.Lock()
	a.held = envelope
	a.mu.Unlock()
	if err := durable.Write(a.shelf.path("target"), envelope); err != nil {
		a.log.Warn("the signed target is not stored; after a restart peers can't be given it", "error", err)
	}
}

// storedTarget is the target that keepTarget has stored.
func (a *Agent) storedTarget() (t rollout.Target, envelope []byte, ok bool) {
	envelope, err := durable.Read(a.shelf.path("target"))
	if err != nil {
		return t, nil, false
	}
	payload, err := trust.Payload(trust.KindTarget, envelope)
	if err != nil || json.Unmarshal(payload, &t) != nil {
		return t, nil, false
	}
	return t, envelope, true
}

// placeByTarget takes what a damaged state file has forgotten from the stored target: the place in the sequence of all
// targets, below which the node must not go, and the share of the limits.
func (a *Agent) placeByTarget() {
	t, _, ok := a.storedTarget()
	if _, ours := t.For(a.opt.ID); !ok || !ours {
		return
	}
	st := &a.shelf.state
	st.Epoch, st.Number, st.Head, st.Share = t.Epoch, t.Number, t.Head, max(t.Share[a.opt.ID.Cell()], 1)
}

// loadTarget takes the stored target up again if it is the one that the state on disk came from and that is served.
func (a *Agent) loadTarget() {
	t, envelope, ok := a.storedTarget()
	if !ok || t.Epoch != a.shelf.state.Epoch || t.Number != a.shelf.state.Number {
		return
	}
	if v, ok := t.For(a.opt.ID); ok && v.Manifest == a.serving {
		a.mu.Lock()
		a.held = envelope
		a.mu.Unlock()
	}
}

// Target is the signed target that the node serves, for its peers; nil while there is none.
func (a *Agent) Target() []byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

// Denylists are signed denylists that say whom the node denies, for its peers, the last first.
func (a *Agent) Denylists() [][]byte { return a.denied.envelopes(time.Now()) }

// Blob is a stored manifest or shard, proved by its digest. It may be called from any goroutine: files are only ever
// written whole under their digest.
func (a *Agent) Blob(digest string) ([]byte, error) {
	data, err := a.shelf.blob("manifests", snapshot.Digest(digest))
	if err == nil {
		return data, nil
	}
	data, err2 := a.shelf.blob("shards", snapshot.Digest(digest))
	if err2 == nil {
		return data, nil
	}
	return nil, errors.Join(err, err2)
}
