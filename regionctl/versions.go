package regionctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// recordForm is the version of the stored forms of head and versionRecord.
const recordForm = 1

// head is the pointer that gives out numbers: whoever moves it from n to n+1 owns n+1.
type head struct {
	Form   int    `json:"form"`
	Number uint64 `json:"number"`
	// Contents is the version whose contents are the newest that are left, where Number's were lost with a store; 0 = Number.
	Contents uint64 `json:"contents,omitempty"`
}

// newest is the version that a publication follows.
func (h head) newest() uint64 {
	if h.Contents != 0 {
		return h.Contents
	}
	return h.Number
}

// versionRecord is what is kept of each version beside its blobs.
type versionRecord struct {
	Form       int               `json:"form"`
	Manifest   snapshot.Manifest `json:"manifest"` // without Shards
	Envelope   snapshot.Digest   `json:"envelope"` // blob: the signed manifest
	Owner      string            `json:"owner,omitempty"`
	Idempotent string            `json:"idempotent,omitempty"` // hash of the caller's Idempotency-Key
}

func (v *versionRecord) pointer() rollout.Version {
	return rollout.Version{Number: v.Manifest.Number, Manifest: v.Envelope}
}

// publication is a content on its way to a number.
type publication struct {
	// build makes the content from that of the head, again whenever the head moved; an error stops the publication.
	build      func(old *snapshot.Config, at *versionRecord) (*snapshot.Config, error)
	meta       snapshot.Meta // Number, Previous and Created are filled in
	owner      string
	idempotent string
	audit      AuditEntry
	conds      []store.Cond // beyond the head's
	// ops are stored in the same commit as the number; nil = none.
	ops    func(*versionRecord) ([]store.Op, error)
	dryRun bool // stop before anything is stored
}

// maxContest is how often a publication starts over because another one took its number.
const maxContest = 20

// publish gives the content the next number. Two publishers never share one: the head is moved by compare-and-set.
func (c *Controller) publish(ctx context.Context, p publication) (*versionRecord, error) {
	for range maxContest {
		seen := c.published() // before the head is read: what is above that was lost, not overlooked
		h, at, err := c.readHead(ctx)
		if err != nil {
			return nil, err
		}
		if seen.Head > h.Number {
			return nil, wentBackFault(seen.Head, h.Number)
		}
		v, err := c.attempt(ctx, p, h, at)
		if !errors.Is(err, store.ErrConflict) {
			return v, err
		}
	}
	return nil, conflict("%d other publications came in between", maxContest)
}

// attempt tries to take the number after h, which was read as at.
func (c *Controller) attempt(ctx context.Context, p publication, h head, at store.Entry) (*versionRecord, error) {
	old, oldRec, err := c.content(ctx, h.newest())
	if err != nil {
		return nil, err
	}
	mark, err := readMark(ctx, c.opt.Global, store.KeySweep)
	if err != nil {
		return nil, err
	}
	if done := c.alreadyDone(p.idempotent, oldRec); done != nil {
		return done, nil
	}
	cfg, err := p.build(old, oldRec)
	if err != nil {
		return nil, err
	}
	p.meta.Number, p.meta.Previous, p.meta.Created = h.Number+1, h.newest(), c.opt.Now().UTC()
	p.audit.Before = string(oldRec.Manifest.Checksum)
	snap, err := snapshot.Seal(cfg, p.meta)
	if err != nil {
		return nil, err
	}
	if p.dryRun {
		return &versionRecord{Manifest: snap.Manifest}, nil
	}
	return c.number(ctx, p, snap, mark, []store.Cond{mark.Cond, {Key: store.KeyHead, Modified: at.Modified}})
}

// number stores the sealed content and takes its number under the conditions.
func (c *Controller) number(ctx context.Context, p publication, snap *snapshot.Snapshot, mark sweepMark, conds []store.Cond) (*versionRecord, error) {
	rec, err := c.deposit(ctx, snap, mark)
	if err != nil {
		return nil, err
	}
	rec.Owner, rec.Idempotent = p.owner, p.idempotent
	p.audit.On, p.audit.After = fmt.Sprintf("version %d", p.meta.Number), string(snap.Manifest.Checksum)
	ops := []store.Op{
		store.Put(store.KeyHead, encode(head{Form: recordForm, Number: p.meta.Number})),
		store.Put(store.KeyVersion(p.meta.Number), encode(rec)),
		c.audit(p.audit),
	}
	if p.ops != nil {
		more, err := p.ops(rec)
		if err != nil {
			return nil, err
		}
		ops = append(ops, more...)
	}
	conds = append(append(conds, store.Absent(store.KeyVersion(p.meta.Number))), p.conds...)
	rev, err := c.opt.Global.Commit(ctx, conds, ops)
	if err != nil {
		return nil, err
	}
	c.intent.see(ctx, rev)
	c.log.Info("published", "version", p.meta.Number, "checksum", string(rec.Manifest.Checksum), "by", p.meta.Author)
	return rec, nil
}

// alreadyDone finds what an earlier request with the same idempotency key published.
func (c *Controller) alreadyDone(key string, newest *versionRecord) *versionRecord {
	if key == "" {
		return nil
	}
	if newest.Idempotent == key {
		return newest
	}
	for _, rec := range c.records() {
		if rec.Idempotent == key {
			return &rec
		}
	}
	return nil
}

// deposit stores the blobs of a snapshot and its signed manifest; content that is there already costs nothing.
func (c *Controller) deposit(ctx context.Context, snap *snapshot.Snapshot, mark sweepMark) (*versionRecord, error) {
	for _, s := range snap.Manifest.Shards {
		if _, err := mark.put(ctx, c.globalBlobs, snap.Blobs[s.Digest]); err != nil {
			return nil, fmt.Errorf("regionctl: store shard %s: %w", s.Key, err)
		}
	}
	raw, err := snapshot.EncodeManifest(&snap.Manifest)
	if err != nil {
		return nil, err
	}
	envelope, err := c.opt.Signer.Sign(trust.KindManifest, raw)
	if err != nil {
		return nil, err
	}
	digest, err := mark.put(ctx, c.globalBlobs, envelope)
	if err != nil {
		return nil, fmt.Errorf("regionctl: store manifest: %w", err)
	}
	m := snap.Manifest
	m.Shards = nil
	return &versionRecord{Form: recordForm, Manifest: m, Envelope: snapshot.Digest(digest)}, nil
}

// version reads the record of a number from the global store.
func (c *Controller) version(ctx context.Context, n uint64) (*versionRecord, store.Entry, error) {
	rec, e, err := load[versionRecord](ctx, c.opt.Global, store.KeyVersion(n))
	if err == nil && e.Modified == 0 {
		err = notFound("no version %d", n)
	}
	return &rec, e, err
}

// content opens a stored version; number 0 is the empty configuration.
func (c *Controller) content(ctx context.Context, n uint64) (*snapshot.Config, *versionRecord, error) {
	if n == 0 {
		return &snapshot.Config{}, &versionRecord{}, nil
	}
	rec, _, err := c.version(ctx, n)
	if err != nil {
		return nil, nil, err
	}
	snap, err := c.open(ctx, rec)
	if err != nil {
		return nil, nil, err
	}
	cfg, err := snapshot.Open(snap)
	return cfg, rec, err
}

// open fetches a version with all its blobs, verified.
func (c *Controller) open(ctx context.Context, rec *versionRecord) (*snapshot.Snapshot, error) {
	envelope, err := c.blob(ctx, string(rec.Envelope))
	if err != nil {
		return nil, fmt.Errorf("regionctl: manifest of version %d: %w", rec.Manifest.Number, err)
	}
	m, err := c.manifest(envelope)
	if err != nil {
		return nil, err
	}
	snap := &snapshot.Snapshot{Manifest: *m, Blobs: map[snapshot.Digest][]byte{}}
	for _, s := range m.Shards {
		if snap.Blobs[s.Digest], err = c.blob(ctx, string(s.Digest)); err != nil {
			return nil, fmt.Errorf("regionctl: version %d, shard %s: %w", m.Number, s.Key, err)
		}
	}
	return snap, snap.Verify()
}

// manifest verifies a signed manifest that a record or a target names by its digest.
func (c *Controller) manifest(envelope []byte) (*snapshot.Manifest, error) {
	raw, _, err := c.opt.Roots.VerifyNamed(trust.KindManifest, envelope, c.opt.Now(), snapshot.MadeAt, trust.RoleController)
	if err != nil {
		return nil, err
	}
	return snapshot.DecodeManifest(raw)
}

// blob reads from memory, else from the region's copy, else from the global store.
func (c *Controller) blob(ctx context.Context, digest string) ([]byte, error) {
	if b, ok := c.recent.get(digest); ok {
		return b, nil
	}
	short, cancel := context.WithTimeout(ctx, 5*time.Second)
	b, err := c.regionalBlobs.Get(short, digest)
	cancel()
	if err != nil {
		b, err = c.globalBlobs.Get(ctx, digest)
	}
	if err == nil {
		c.recent.put(digest, b)
	}
	return b, err
}

// maxRecent bounds the blobs kept in memory, in bytes.
const maxRecent = 64 << 20

// recent keeps blobs that were read lately, so that a ring's nodes don't all ask the store. At its bound it forgets all.
type recent struct {
	mu    sync.Mutex
	blobs map[string][]byte
	bytes int
}

func (r *recent) get(digest string) ([]byte, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, ok := r.blobs[digest]
	return b, ok
}

func (r *recent) put(digest string, b []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.blobs == nil || r.bytes+len(b) > maxRecent {
		r.blobs, r.bytes = map[string][]byte{}, 0
	}
	if _, ok := r.blobs[digest]; !ok {
		r.blobs[digest] = b
		r.bytes += len(b)
	}
}

// records lists the mirrored versions, oldest first.
func (c *Controller) records() []versionRecord {
	var out []versionRecord
	for _, e := range c.intent.list(store.PrefixVersions) {
		var v versionRecord
		if json.Unmarshal(e.Value, &v) == nil && v.Manifest.Number > 0 {
			out = append(out, v)
		}
	}
	return out
}

// headNumber is the newest published number that this controller knows.
func (c *Controller) headNumber() uint64 {
	h, _, _ := read[head](c.intent, store.KeyHead)
	return h.newest()
}

// firstAnswer is how long an order waits for the global store's first answer.
const firstAnswer = 2 * time.Second

// readHead asks for the head, and no longer than an operator waits for a clear answer.
func (c *Controller) readHead(ctx context.Context) (head, store.Entry, error) {
	short, cancel := context.WithTimeout(ctx, firstAnswer)
	defer cancel()
	return load[head](short, c.opt.Global, store.KeyHead)
}
