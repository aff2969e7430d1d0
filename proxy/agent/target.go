package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/trust"
)

// fetchLimit is the time of one attempt to get everything that a target needs.
const fetchLimit = 2 * time.Minute

// permanent marks a fault that the same target will show again however often it is tried.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// target brings the node to what a signed target says; again asks for another attempt later. Whatever fails leaves the
// program, the disk's pointers and (epoch, number) as they were.
func (a *Agent) target(ctx context.Context, in arrival) (again bool) {
	t, err := a.open(in.envelope)
	if err != nil {
		a.log.Warn("target refused", "error", err)
		return false
	}
	at := order{t.Epoch, t.Number}
	if at.less(a.highest()) {
		a.log.Warn("target refused: it is older than the one applied", "epoch", t.Epoch, "number", t.Number)
		return false
	}
	if t.Head != 0 && t.Head < a.shelf.state.Head {
		a.log.Error("target refused: its store went back", "versions_up_to", t.Head, "seen_up_to", a.shelf.state.Head)
		a.answer(at, 0, fmt.Errorf("the target knows versions up to %d, this node has seen %d: the global store went back", t.Head, a.shelf.state.Head))
		return false
	}
	want, ok := t.For(a.opt.ID)
	if !ok {
		a.answer(at, 0, fmt.Errorf("the target does not speak of cell %s", a.opt.ID.Cell()))
		return false
	}
	a.note(at, want.Number)
	err = a.bring(ctx, at, t.Head, want, max(t.Share[a.opt.ID.Cell()], 1), in)
	if ctx.Err() != nil {
		return false
	}
	a.answer(at, want.Number, err)
	var never permanent
	return err != nil && !errors.As(err, &never)
}

func (a *Agent) open(envelope []byte) (*rollout.Target, error) {
	payload, _, err := a.opt.Roots.Verify(trust.KindTarget, envelope, time.Now(), trust.RoleController)
	if err != nil {
		return nil, err
	}
	var t rollout.Target
	if err := json.Unmarshal(payload, &t); err != nil {
		return nil, fmt.Errorf("agent: target: %w", err)
	}
	if t.Form < 1 || t.Form > rollout.TargetForm || t.Region != a.opt.ID.Region() {
		return nil, fmt.Errorf("agent: target of form %d for region %q is not for us", t.Form, t.Region)
	}
	return &t, nil
}

func (a *Agent) highest() order {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.seen
}

func (a *Agent) note(at order, version uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen, a.ledger.Known = at, version
}

// answer keeps the outcome in the ledger and sends it up.
func (a *Agent) answer(at order, version uint64, err error) {
	nack := ""
	if err != nil {
		nack = err.Error()
		a.log.Error("version not applied; the node goes on with what it serves", "version", version, "error", err)
	}
	a.mu.Lock()
	a.ledger.Nack = nack
	if err == nil {
		a.applied = at
	}
	a.mu.Unlock()
	a.client.Send(&nodeapi.Up{Message: &nodeapi.Up_Ack{Ack: &nodeapi.Ack{Epoch: at.epoch, Number: at.number, Version: version, Nack: nack}}})
}

// bring makes the version the one that is served. Two versions are the same only if their manifests' digests are.
func (a *Agent) bring(ctx context.Context, at order, head uint64, want rollout.Version, share int, in arrival) error {
	if want.Manifest == a.shelf.state.Poisoned && want.Manifest != "" {
		return permanent{fmt.Errorf("version %d crashed this node %d times within %v of its activation", want.Number, maxTrials, a.opt.Probation)}
	}
	if want.Manifest == a.refused.manifest && want.Manifest != "" {
		return permanent{errors.New(a.refused.why)}
	}
	if a.live != nil && want.Manifest == a.serving {
		err := a.confirm(at, head, share)
		if err == nil {
			a.keepTarget(in.envelope)
		}
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	next, err := a.prepare(ctx, want, in.from)
	if err == nil {
		err = a.activate(next, at, head, share, in.source)
	}
	if err == nil {
		a.keepTarget(in.envelope)
	}
	var never permanent
	if errors.As(err, &never) {
		a.refused = verdict{want.Manifest, err.Error()}
		a.shelf.sweep() // what it brought along is of no use
	}
	return err
}

// confirm notes that a newer target names what is served already.
func (a *Agent) confirm(at order, head uint64, share int) error {
	if share != a.shareNow() {
		if err := a.opt.Apply(a.live, share); err != nil {
			return fmt.Errorf("agent: apply: %w", err)
		}
	}
	next := a.shelf.state
	next.Epoch, next.Number, next.Share, next.Head = at.epoch, at.number, share, max(next.Head, head)
	if next.Head != a.shelf.state.Head || next.Epoch != a.shelf.state.Epoch || next.Number != a.shelf.state.Number || next.Share != a.shelf.state.Share {
		if err := a.shelf.save(next); err != nil {
			return err
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.share = share
	return nil
}

func (a *Agent) shareNow() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.share
}

// prepared is a snapshot that is complete on disk and compiled, but not yet named by the state.
type prepared struct {
	slot
	program *program.Program
}

// prepare brings manifest and shards onto the disk and compiles them. Only what is missing or damaged there travels.
func (a *Agent) prepare(ctx context.Context, want rollout.Version, from fetcher) (*prepared, error) {
	now := time.Now()
	envelope, err := a.get(ctx, from, "manifests", []snapshot.Digest{want.Manifest})
	if err != nil {
		return nil, fmt.Errorf("manifest of version %d: %w", want.Number, err)
	}
	m, err := a.named(envelope[want.Manifest], now)
	if err != nil {
		return nil, permanent{err}
	}
	if m.Number != want.Number {
		return nil, permanent{fmt.Errorf("the manifest is of version %d, the target names %d", m.Number, want.Number)}
	}
	digests := make([]snapshot.Digest, 0, len(m.Shards))
	for _, s := range m.Shards {
		digests = append(digests, s.Digest)
	}
	blobs, err := a.get(ctx, from, "shards", digests)
	if err != nil {
		return nil, fmt.Errorf("shards of version %d: %w", want.Number, err)
	}
	p, err := a.compile(&snapshot.Snapshot{Manifest: *m, Blobs: blobs})
	if err != nil {
		return nil, permanent{err}
	}
	return &prepared{slot{m.Number, want.Manifest, now, m.Checksum}, p}, nil
}

// get reads blobs from disk and fetches and stores the others.
func (a *Agent) get(ctx context.Context, from fetcher, room string, digests []snapshot.Digest) (map[snapshot.Digest][]byte, error) {
	have := make(map[snapshot.Digest][]byte, len(digests))
	var missing []string
	for _, d := range digests {
		if !digestForm.MatchString(string(d)) {
			return nil, permanent{fmt.Errorf("%.80q is not a digest", d)}
		}
		if _, twice := have[d]; twice || slices.Contains(missing, string(d)) {
			continue
		}
		if data, err := a.shelf.blob(room, d); err == nil {
			have[d] = data
		} else {
			missing = append(missing, string(d))
		}
	}
	if len(missing) == 0 {
		return have, nil
	}
	fetched, err := from.Fetch(ctx, missing)
	if err != nil {
		return nil, err
	}
	fresh := make(map[snapshot.Digest][]byte, len(fetched))
	for _, d := range missing {
		data, ok := fetched[d]
		if !ok {
			return nil, fmt.Errorf("agent: there is no blob %s", d)
		}
		fresh[snapshot.Digest(d)], have[snapshot.Digest(d)] = data, data
	}
	return have, a.shelf.put(room, fresh)
}

// manifest verifies the signature as of at, then the manifest itself.
func (a *Agent) manifest(envelope []byte, at time.Time) (*snapshot.Manifest, error) {
	payload, _, err := a.opt.Roots.Verify(trust.KindManifest, envelope, at, trust.RoleController)
	if err != nil {
		return nil, err
	}
	return snapshot.DecodeManifest(payload)
}

// named is manifest for one that a verified target names: the version may be older than its signer's certificate.
func (a *Agent) named(envelope []byte, now time.Time) (*snapshot.Manifest, error) {
	payload, _, err := a.opt.Roots.VerifyNamed(trust.KindManifest, envelope, now, snapshot.MadeAt, trust.RoleController)
	if err != nil {
		return nil, err
	}
	return snapshot.DecodeManifest(payload)
}

func (a *Agent) compile(s *snapshot.Snapshot) (*program.Program, error) {
	if err := s.Verify(); err != nil {
		return nil, err
	}
	p, err := program.Compile(s, a.live)
	if err != nil {
		return nil, err
	}
	if a.opt.Check != nil {
		if err := a.opt.Check(p); err != nil {
			return nil, fmt.Errorf("the node's own check: %w", err)
		}
	}
	return p, nil
}

// activate names the snapshot on disk, then swaps. When the swap fails, the former state is named again.
func (a *Agent) activate(next *prepared, at order, head uint64, share int, from report.Source) error {
	before := a.shelf.state
	after := before.accept(next.slot, at.epoch, at.number, share)
	after.Head = max(after.Head, head)
	if err := a.shelf.save(after); err != nil {
		return err
	}
	a.mu.Lock()
	a.ledger.Stored = next.Version
	a.mu.Unlock()
	if err := a.opt.Apply(next.program, share); err != nil {
		return errors.Join(fmt.Errorf("agent: apply: %w", err), a.shelf.save(before))
	}
	a.serve(next, from, share)
	a.shelf.sweepAfter(before)
	a.log.Info("version applied", "version", next.Version, "source", from, "checksum", next.program.Checksum)
	return nil
}

func (a *Agent) serve(next *prepared, from report.Source, share int) {
	a.live, a.serving, a.activated, a.refused = next.program, next.Manifest, time.Now(), verdict{}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.share = share
	a.ledger.Stored, a.ledger.Served = next.Version, next.Version
	a.ledger.Checksum, a.ledger.Source, a.ledger.Since = string(next.program.Checksum), from, a.activated
	a.ledger.Known = max(a.ledger.Known, next.Version)
}

// Boot serves the best snapshot on disk: the candidate, unless it crashed the node twice, else the newest good one that is
// whole. Without any, the node stays not ready and waits for a controller. It must be called before Run. What is served
// already stays.
func (a *Agent) Boot() {
	now := time.Now()
	a.denied.load(now)
	a.keys.load()
	a.steer.load()
	a.loadOverrides(now)
	before := a.shelf.state
	if next := before.boot(); next.Trial != before.Trial && !a.opt.Lent {
		if err := a.shelf.save(next); err != nil {
			a.log.Error("the start is not noted on disk", "error", err)
		}
	}
	var faults []string
	if p := a.shelf.state.Poisoned; p != "" && before.Trial != nil && before.Trial.Manifest == p {
		faults = append(faults, fmt.Sprintf("version %d crashed this node %d times within %v of its activation", before.Trial.Version, maxTrials, a.opt.Probation))
	}
	for _, one := range a.shelf.slots() {
		var err error
		if a.live == nil || one.Manifest != a.serving {
			err = a.restore(one)
		}
		if err == nil {
			a.note(a.seen, max(one.Version, before.newest()))
			a.loadTarget()
			a.answerBoot(faults)
			return
		}
		faults = append(faults, fmt.Sprintf("stored version %d is not usable: %v", one.Version, err))
	}
	a.answerBoot(faults)
	a.log.Warn("no usable snapshot on disk; asking the cell's own copies and waiting for a controller", "dir", a.opt.Dir, "copies", len(a.opt.Copies), "controllers", a.opt.Controllers)
}

// answerBoot puts what was wrong on disk where people look: ledger and log.
func (a *Agent) answerBoot(faults []string) {
	if len(faults) == 0 {
		return
	}
	a.mu.Lock()
	a.ledger.Nack = strings.Join(faults, "; ")
	a.mu.Unlock()
	a.log.Error("snapshots on disk were passed over", "faults", faults)
}

func (a *Agent) restore(one slot) error {
	envelope, err := a.shelf.blob("manifests", one.Manifest)
	if err != nil {
		return err
	}
	m, err := a.named(envelope, one.Accepted)
	if err != nil {
		return err
	}
	s := &snapshot.Snapshot{Manifest: *m, Blobs: map[snapshot.Digest][]byte{}}
	for _, shard := range m.Shards {
		if s.Blobs[shard.Digest], err = a.shelf.blob("shards", shard.Digest); err != nil {
			return fmt.Errorf("shard %s: %w", shard.Key, err)
		}
	}
	p, err := a.compile(s)
	if err != nil {
		return err
	}
	share := max(a.shelf.state.Share, 1)
	if err := a.opt.Apply(p, share); err != nil {
		return fmt.Errorf("agent: apply: %w", err)
	}
	one.Version = m.Number
	a.serve(&prepared{one, p}, report.SourceDisk, share)
	a.log.Info("serving from disk", "version", m.Number, "checksum", m.Checksum)
	return nil
}

// sortStrays orders manifests found without a state file, newest version first; unreadable ones are left out.
func (a *Agent) sortStrays(found []slot) []slot {
	found = slices.DeleteFunc(found, func(one slot) bool {
		envelope, err := a.shelf.blob("manifests", one.Manifest)
		if err != nil {
			return true
		}
		_, err = a.manifest(envelope, one.Accepted)
		return err != nil
	})
	for i := range found {
		if m, err := a.shelf.manifest(found[i]); err == nil {
			found[i].Version = m.Number
		}
	}
	slices.SortFunc(found, func(x, y slot) int { return int(int64(y.Version) - int64(x.Version)) })
	return found[:min(len(found), keep)]
}
