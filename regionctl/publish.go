package regionctl

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"reflect"
	"strconv"
	"strings"

	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
)

const maxFiles = 10_000

// postVersion publishes: decode, check, guard, seal, number. A publication whose content equals the head's gets a number
// all the same, so that every publication can be named; nodes find nothing changed in it.
func (c *Controller) postVersion(r *call) (any, error) {
	select {
	case c.publishing <- struct{}{}:
		defer func() { <-c.publishing }()
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	req, err := body[PublishRequest](r)
	if err != nil {
		return nil, err
	}
	if len(req.Files) == 0 || len(req.Files) > maxFiles {
		return nil, badRequest("1…%d files are needed, not %d", maxFiles, len(req.Files))
	}
	if err := words("message", req.Message); err != nil {
		return nil, err
	}
	allow, err := c.allow(req.AllowUpstreams)
	if err != nil {
		return nil, err
	}
	d := draft{files: req.Files, owner: req.Owner, allow: allow, fits: c.keysFit}
	if req.Owner == "" {
		if d.whole, err = d.decode(); err != nil {
			return nil, err
		}
	}
	return c.publishDraft(r, req.Confirm, publication{
		build: d.build, owner: req.Owner, dryRun: req.DryRun, idempotent: idempotency(r),
		meta:  snapshot.Meta{Author: r.who, Message: req.Message},
		audit: AuditEntry{Who: r.who, What: "publish", Why: req.Message},
	})
}

// publishDraft adds the guards to the publication and tells what it changes.
func (c *Controller) publishDraft(r *call, confirmed bool, p publication) (any, error) {
	var answer Published
	build := p.build
	p.build = func(old *snapshot.Config, at *versionRecord) (*snapshot.Config, error) {
		if err := r.match(strconv.FormatUint(at.Manifest.Number, 10)); err != nil {
			return nil, err
		}
		cfg, err := build(old, at)
		if err != nil {
			return nil, err
		}
		answer.Added, answer.Changed, answer.Removed = difference(old.Routes, cfg.Routes)
		answer.Unchanged = at.Manifest.Number > 0
		answer.Previous = at.Manifest.Number
		answer.Checksum = at.Manifest.Checksum
		if confirmed || at.Manifest.Number == 0 {
			return cfg, nil
		}
		return cfg, shrink(old, cfg)
	}
	rec, err := c.publish(r.Context(), p)
	if err != nil {
		return nil, err
	}
	answer.Version, answer.DryRun, answer.Counts = rec.Manifest.Number, p.dryRun, rec.Manifest.Counts
	answer.Unchanged = answer.Unchanged && answer.Checksum == rec.Manifest.Checksum
	answer.Checksum = rec.Manifest.Checksum
	return answer, nil
}

// idempotency ties a caller's Idempotency-Key to the caller.
func idempotency(r *call) string {
	key := r.Header.Get("Idempotency-Key")
	if key == "" {
		return ""
	}
	h := sha256.Sum256([]byte(r.who + "\x00" + key))
	return hex.EncodeToString(h[:])
}

func (c *Controller) allow(prefixes []string) (snapshot.Allow, error) {
	allow := snapshot.Allow{}
	if c.opt.PermitLoopback {
		allow = snapshot.Loopback()
	}
	for _, s := range prefixes {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return allow, badRequest("allow_upstreams: %v", err)
		}
		allow.Upstreams = append(allow.Upstreams, p)
	}
	return allow, nil
}

// draft is what an author sent.
type draft struct {
	files []PublishFile
	owner string
	allow snapshot.Allow
	fits  func(old, cfg *snapshot.Config) error // asked when it replaces everything
	whole *snapshot.Config                      // decoded, when it replaces everything
}

func (d *draft) decode() (*snapshot.Config, error) { return checked(d.snapshotFiles(), d.allow) }

// checked decodes and checks documents; every fault of all of them is told at once.
func checked(files []snapshot.File, allow snapshot.Allow) (*snapshot.Config, error) {
	cfg, problems := program.Validate(files, allow)
	if len(problems) > 0 {
		return nil, invalid(problems)
	}
	return cfg, nil
}

func (d *draft) build(old *snapshot.Config, at *versionRecord) (*snapshot.Config, error) {
	if d.owner == "" {
		return d.whole, d.fits(old, d.whole)
	}
	return d.merge(old, at.Manifest.Number) // a team's documents leave consumers as they are
}

// shrink is the guard of B6: a publication that drops more than a tenth of the routes, hosts or consumers, by name,
// is refused until it is confirmed.
func shrink(old, cfg *snapshot.Config) error {
	var told []string
	for _, list := range []struct {
		what     string
		old, now map[string]bool
	}{
		{"routes", routeIDs(old), routeIDs(cfg)},
		{"hosts", hosts(old), hosts(cfg)},
		{"consumers", consumerIDs(old), consumerIDs(cfg)},
	} {
		gone := 0
		for id := range list.old {
			if !list.now[id] {
				gone++
			}
		}
		if gone*10 > len(list.old) {
			told = append(told, fmt.Sprintf("%d of %d %s", gone, len(list.old), list.what))
		}
	}
	if told == nil {
		return nil
	}
	return refused("shrink", "--confirm", "this drops %s, more than a tenth", strings.Join(told, " and "))
}

func routeIDs(cfg *snapshot.Config) map[string]bool {
	out := map[string]bool{}
	for _, r := range cfg.Routes {
		out[r.ID] = true
	}
	return out
}

func hosts(cfg *snapshot.Config) map[string]bool {
	out := map[string]bool{}
	for _, r := range cfg.Routes {
		out[r.Match.Host] = true
	}
	return out
}

func consumerIDs(cfg *snapshot.Config) map[string]bool {
	out := map[string]bool{}
	for _, c := range cfg.Consumers {
		out[c.ID] = true
	}
	return out
}

func difference(old, now []snapshot.Route) (added, changed, removed int) {
	before := map[string]*snapshot.Route{}
	for i := range old {
		before[old[i].ID] = &old[i]
	}
	for i := range now {
		was := before[now[i].ID]
		switch {
		case was == nil:
			added++
		case !reflect.DeepEqual(*was, now[i]):
			changed++
		}
		delete(before, now[i].ID)
	}
	return added, changed, len(before)
}

// postRollback publishes an old content as a new number with an equal checksum.
func (c *Controller) postRollback(r *call) (any, error) {
	word, verb, _ := strings.Cut(r.PathValue("verb"), ":")
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil || verb != "rollback" {
		return nil, notFound("no such action: %s", r.PathValue("verb"))
	}
	req, err := body[RollbackRequest](r)
	if err != nil {
		return nil, err
	}
	if err := words("message", req.Message); err != nil {
		return nil, err
	}
	content, rec, err := c.content(r.Context(), n)
	if err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, notFound("no version 0")
	}
	message := req.Message
	if message == "" {
		message = fmt.Sprintf("rollback to version %d", n)
	}
	return c.publishDraft(r, req.Confirm, publication{
		build:  func(*snapshot.Config, *versionRecord) (*snapshot.Config, error) { return content, nil },
		dryRun: req.DryRun, idempotent: idempotency(r),
		meta:  snapshot.Meta{Author: r.who, Message: message, RollbackOf: rec.Manifest.Number},
		audit: AuditEntry{Who: r.who, What: "rollback", Why: message},
	})
}

func (c *Controller) getVersions(r *call) (any, error) {
	out := []Version{}
	for _, rec := range c.records() {
		out = append(out, c.describe(&rec))
	}
	return out, r.match(strconv.FormatUint(c.headNumber(), 10))
}

func (c *Controller) describe(rec *versionRecord) Version {
	m := &rec.Manifest
	return Version{
		Number: m.Number, Status: c.versionStatus(rec), Checksum: m.Checksum, Created: m.Created, Author: m.Author, Message: m.Message,
		Owner: rec.Owner, Previous: m.Previous, RollbackOf: m.RollbackOf, MinReader: m.MinReader, Counts: m.Counts, Manifest: rec.Envelope,
	}
}

// known finds a version by number in the mirror, or in the store when it is too new; 0 and "latest" are the head.
func (c *Controller) known(ctx context.Context, word string) (*versionRecord, error) {
	n := c.headNumber()
	if word != "" && word != "latest" && word != "0" {
		var err error
		if n, err = strconv.ParseUint(word, 10, 64); err != nil {
			return nil, badRequest("%q is no version number", word)
		}
	}
	if n == 0 {
		return nil, notFound("nothing has been published yet")
	}
	if rec, _, ok := read[versionRecord](c.intent, store.KeyVersion(n)); ok {
		return &rec, nil
	}
	rec, _, err := c.version(ctx, n)
	return rec, err
}

func (c *Controller) getVersion(r *call) (any, error) {
	rec, err := c.known(r.Context(), r.PathValue("n"))
	if err != nil {
		return nil, err
	}
	snap, err := c.open(r.Context(), rec)
	if err != nil {
		return nil, err
	}
	cfg, err := snapshot.Open(snap)
	if err != nil {
		return nil, err
	}
	doc, err := snapshot.Format(cfg)
	if err != nil {
		return nil, err
	}
	return VersionDocument{Version: c.describe(rec), Document: string(doc)}, r.match(strconv.FormatUint(rec.Manifest.Number, 10))
}
