package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/trust"
)

// StaleDenylist is the age at which a node's denylist is an alarm. Controllers confirm theirs every 15 s.
const StaleDenylist = time.Minute

// maxKept bounds the lists that are kept; beyond it the oldest go first.
const maxKept = 8

// denials is the node's denylist. Its loop is its own, so that a denial never waits for a snapshot that is being fetched.
// Lists are united, never replaced: what one controller doesn't know of, another may. Peers are asked for theirs at the start.
type denials struct {
	id     cells.NodeID
	disk   durable.Keeper // guarded by turn
	verify func(envelope []byte, at time.Time) (payload []byte, by trust.Identity, err error)
	apply  func(*denylist.Set)
	log    *slog.Logger
	poke   chan struct{} // capacity 1: something arrived

	mu      sync.Mutex
	waiting [][]byte
	entries []denylist.Entry // with removals
	live    int
	fresh   time.Time // when a controller last said or confirmed the list; the start of the process until then
	stale   bool      // the alarm was given

	turn sync.Mutex // held by whoever takes lists in, and for what follows; before mu
	kept []signedBy
	next time.Time // when the next entry expires

	known bool // there was a list on disk at the start
}

// signedBy is a list of one controller as it was signed, at At by its clock.
type signedBy struct {
	By       cells.NodeID `json:"by"`
	At       time.Time    `json:"at,omitzero"`
	Digest   string       `json:"digest"`
	Accepted time.Time    `json:"accepted"`
	Envelope []byte       `json:"envelope"`

	entries []denylist.Entry
	heard   bool // from a peer: no controller confirms it by that
}

// storedDenials is the form of denylist.json.
type storedDenials struct {
	Form  int        `json:"form"`
	Lists []signedBy `json:"lists"`
}

const denialsForm = 1

func newDenials(a *Agent, now time.Time) *denials {
	return &denials{
		id: a.opt.ID, apply: a.opt.Deny, log: a.log, poke: make(chan struct{}, 1), fresh: now,
		disk: durable.Keeper{
			Path: a.shelf.path("denylist.json"),
			Failed: func(err error) {
				a.log.Error("denylist not stored; until it is, a restart loses what a controller does not say again", "error", err)
			},
			Done: func() { a.log.Info("the denylist is stored again") },
		},
		verify: func(envelope []byte, at time.Time) ([]byte, trust.Identity, error) {
			return a.opt.Roots.Verify(trust.KindDenylist, envelope, at, trust.RoleController)
		},
	}
}

// receive keeps what arrived for the loop; it never blocks. Each list is the whole of what its signer knows, so that the
// newest suffice when the loop is behind.
func (d *denials) receive(envelope []byte) {
	d.mu.Lock()
	d.waiting = append(d.waiting, envelope)
	d.waiting = d.waiting[max(0, len(d.waiting)-maxKept):]
	d.mu.Unlock()
	select {
	case d.poke <- struct{}{}:
	default:
	}
}

// run takes lists in and lets entries expire, until ctx ends.
func (d *denials) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.poke:
			d.takeAll(time.Now())
		case <-tick.C:
			d.watch(time.Now())
		}
	}
}

func (d *denials) takeAll(now time.Time) {
	d.mu.Lock()
	waiting := d.waiting
	d.waiting = nil
	d.mu.Unlock()
	d.takeIn(waiting, false, now)
}

// hear takes in what peers keep.
func (d *denials) hear(envelopes [][]byte, now time.Time) { d.takeIn(envelopes, true, now) }

func (d *denials) takeIn(envelopes [][]byte, heard bool, now time.Time) {
	d.turn.Lock()
	defer d.turn.Unlock()
	changed := false
	for _, envelope := range envelopes {
		news, err := d.take(signedBy{Accepted: now, Envelope: envelope, heard: heard}, now)
		if err != nil {
			d.log.Warn("denylist refused", "error", err)
		}
		changed = changed || news
	}
	if !changed {
		return
	}
	d.put(now)
	d.disk.Put(storedDenials{denialsForm, slices.Clone(d.kept)}, now)
}

// take looks at one envelope; news says that it carried a list which this node didn't have.
func (d *denials) take(s signedBy, now time.Time) (news bool, err error) {
	payload, by, err := d.verify(s.Envelope, s.Accepted)
	if err != nil {
		return false, err
	}
	list, err := denylist.Decode(payload)
	if err != nil {
		return false, err
	}
	if list.Region != d.id.Region() {
		return false, fmt.Errorf("agent: the denylist of region %q is not for us", list.Region)
	}
	s.By, s.Digest, s.At, s.entries = by.ID, list.Digest, list.At, list.Entries
	if slices.ContainsFunc(d.kept, func(k signedBy) bool { return k.By == s.By && k.Digest == s.Digest }) {
		d.confirm(s, now)
		return false, nil
	}
	if list.Beat {
		return false, nil // its list is on the way, and fresh only then
	}
	d.confirm(s, now)
	d.mu.Lock()
	d.entries = denylist.Current(denylist.Unite(d.entries, list.Entries), now)
	d.mu.Unlock()
	d.keep(s, now)
	return true, nil
}

// keep puts a list beside the others, for the disk. The newest of each controller stays, since beats confirm it: by the
// controller's clock, which may have been set back, and by its arrival, since lists may overtake each other. An older one stays
// as long as it says what no other does: a controller that started while its store was away knows less than it did before.
func (d *denials) keep(s signedBy, now time.Time) {
	d.kept = append(d.kept, s)
	for i := 0; i < len(d.kept); {
		k, rest := d.kept[i], slices.Delete(slices.Clone(d.kept), i, i+1)
		if followed(k, rest) && !saysMore(k, rest, now) {
			d.kept = rest
			continue
		}
		i++
	}
	d.kept = d.kept[max(0, len(d.kept)-maxKept):]
}

func followed(k signedBy, by []signedBy) bool {
	return slices.ContainsFunc(by, func(o signedBy) bool { return o.By == k.By && !o.At.Before(k.At) && !o.Accepted.Before(k.Accepted) })
}

func saysMore(k signedBy, than []signedBy, now time.Time) bool {
	var known []denylist.Entry
	for _, o := range than {
		known = append(known, o.entries...)
	}
	known = denylist.Unite(known)
	all := denylist.Unite(known, k.entries)
	return denylist.Digest(denylist.Current(all, now)) != denylist.Digest(denylist.Current(known, now))
}

func (d *denials) confirm(by signedBy, now time.Time) {
	if by.heard {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fresh = now
	if d.stale {
		d.stale = false
		d.log.Info("the denylist is up to date again")
	}
}

// put makes the entries of now count.
func (d *denials) put(now time.Time) {
	d.mu.Lock()
	live := denylist.Live(d.entries, now)
	if d.live != len(live) {
		d.log.Info("denylist", "entries", len(live), "before", d.live)
	}
	d.live, d.next = len(live), time.Time{}
	d.mu.Unlock()
	for _, e := range live {
		if d.next.IsZero() || e.Expires.Before(d.next) {
			d.next = e.Expires
		}
	}
	d.apply(denylist.Compile(live))
}

// watch lets entries expire and gives the alarm for a list that nobody has confirmed for too long.
func (d *denials) watch(now time.Time) {
	d.turn.Lock()
	defer d.turn.Unlock()
	d.disk.Retry(now)
	if !d.next.IsZero() && !now.Before(d.next) {
		d.put(now)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if age := now.Sub(d.fresh); age > StaleDenylist && !d.stale {
		d.stale = true
		d.log.Error("ALARM: no controller has confirmed the denylist; new denials may not hold here", "age", age.Round(time.Second))
	}
}

// status is the number of entries that deny, and the age of the list.
func (d *denials) status(now time.Time) (entries int, age time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.live, now.Sub(d.fresh)
}

// load brings back what was known before the restart. The list is not fresh by that.
func (d *denials) load(now time.Time) {
	d.turn.Lock()
	defer d.turn.Unlock()
	var stored storedDenials
	found, err := durable.ReadForm(d.disk.Path, denialsForm, &stored)
	for _, l := range stored.Lists {
		_, unusable := d.take(l, now)
		err = errors.Join(err, unusable)
	}
	d.known = found && err == nil
	if err != nil {
		d.log.Error("the stored denylist is not usable; waiting for a controller to say it", "error", err)
	}
	d.put(now)
}

// envelopes are lists that say together what all that are kept say, the last first.
func (d *denials) envelopes(now time.Time) (out [][]byte) {
	d.turn.Lock()
	defer d.turn.Unlock()
	var chosen []signedBy
	for _, k := range slices.Backward(d.kept) {
		if saysMore(k, chosen, now) {
			chosen, out = append(chosen, k), append(out, k.Envelope)
		}
	}
	return out
}
