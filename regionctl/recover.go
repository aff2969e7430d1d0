package regionctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// RecoverRequest is the body of POST /v1/recovery.
type RecoverRequest struct {
	Confirm bool `json:"confirm,omitempty"`
	// Force goes on without the controllers that are not heard.
	Force  bool   `json:"force,omitempty"`
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// Recovered answers it.
type Recovered struct {
	// Head is the number above which the next version is numbered; StoreHead is what the store knew.
	Head      uint64 `json:"head"`
	StoreHead uint64 `json:"store_head"`
	// Epoch is above everything that was seen: the next leader's is higher still.
	Epoch      uint64 `json:"epoch"`
	StoreEpoch uint64 `json:"store_epoch"`
	// Adopted are the versions that the regions' copies gave back to the store.
	Adopted []uint64 `json:"adopted,omitempty"`
	// Contents is the version that the next publication follows.
	Contents uint64         `json:"contents"`
	Orders   []cells.CellID `json:"orders,omitempty"` // evacuations taken back from the copy
	Keys     bool           `json:"keys,omitempty"`   // the issued API keys are the copy's, which were changed later
	DryRun   bool           `json:"dry_run,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`
}

func wentBackFault(most, have uint64) *Fault {
	return conflictAs("store_went_back", "the global store knows versions up to %d, but %d was seen: it was restored from a backup; nothing was changed; run `regionctl recover` first", have, most)
}

func conflictAs(reason, format string, args ...any) *Fault {
	return fault(http.StatusConflict, reason, "The state does not permit this", format, args...)
}

// recovery is everything that anyone has seen, and what the store has of it.
type recovery struct {
	head       head
	headAt     store.Entry
	epochs     epochs
	epochsAt   store.Entry
	state      rollout.State
	stateAt    store.Entry
	leader     store.Entry
	most       seen
	running    rollout.Running
	unheard    []string
	records    []*versionRecord   // to be stored again
	blobs      [][]byte           // of theirs
	evacuation []cells.Evacuation // to be stored again
	warnings   []string
}

// postRecovery goes on after the global store was restored from a backup. It raises the epoch and the numbers above
// everything that any controller, copy, node or router has seen, and gives the store back what the copies still have.
func (c *Controller) postRecovery(r *call) (any, error) {
	req, err := body[RecoverRequest](r)
	if err != nil {
		return nil, err
	}
	if err := words("reason", req.Reason); err != nil {
		return nil, err
	}
	for range maxContest {
		answer, err := c.recover(r, req)
		if !errors.Is(err, store.ErrConflict) {
			return answer, err
		}
	}
	return nil, store.ErrConflict
}

func (c *Controller) recover(r *call, req RecoverRequest) (any, error) {
	ctx := r.Context()
	rec, err := c.survey(ctx)
	if err != nil {
		return nil, err
	}
	if err := c.regain(ctx, rec); err != nil {
		return nil, err
	}
	answer := rec.describe()
	keys := c.lostKeys()
	answer.DryRun, answer.Keys = req.DryRun, len(keys) > 0
	switch {
	case req.DryRun:
		return answer, nil
	case len(rec.unheard) > 0 && !req.Force:
		return nil, refused("unheard", "--force", "the controllers of %s are not heard: their nodes may have seen more", strings.Join(rec.unheard, ", "))
	case !req.Confirm:
		return nil, refused("recover", "--confirm", "this raises the epoch above %d and the version number above %d; the store knows epoch %d and version %d",
			answer.Epoch, answer.Head, answer.StoreEpoch, answer.StoreHead)
	}
	mark, err := readMark(ctx, c.opt.Global, store.KeySweep)
	if err != nil {
		return nil, err
	}
	for _, b := range rec.blobs {
		if _, err := mark.put(ctx, c.globalBlobs, b); err != nil {
			return nil, fmt.Errorf("regionctl: store what a copy gave back: %w", err)
		}
	}
	ops, err := c.recoveryOps(rec, answer, AuditEntry{
		Who: r.who, What: "recover", On: fmt.Sprintf("version %d", answer.Head), Why: req.Reason,
		Before: fmt.Sprintf("epoch %d, version %d", answer.StoreEpoch, answer.StoreHead), After: fmt.Sprintf("epoch %d, version %d", answer.Epoch, answer.Head),
	})
	if err != nil {
		return nil, err
	}
	conds := []store.Cond{mark.Cond, unchanged(store.KeyHead, rec.headAt), unchanged(store.KeyEpochs, rec.epochsAt), unchanged(store.KeyRollout, rec.stateAt), unchanged(store.KeyLeader, rec.leader)}
	rev, err := c.opt.Global.Commit(ctx, conds, ops)
	if err != nil {
		return nil, err
	}
	for batch := range slices.Chunk(keys, store.MaxOps) { // whole with its last part; until then recover can be repeated
		if rev, err = c.opt.Global.Commit(ctx, nil, batch); err != nil {
			return nil, fmt.Errorf("regionctl: store the issued keys of the copy: %w", err)
		}
	}
	c.intent.see(ctx, rev)
	c.log.Info("recovered", "by", r.who, "epoch", answer.Epoch, "version", answer.Head, "adopted", answer.Adopted)
	return answer, nil
}

func unchanged(key string, e store.Entry) store.Cond {
	return store.Cond{Key: key, Modified: e.Modified}
}

// recoveryOps is one commit: numbers, versions, orders and the rollout as it runs. It ends the leader's term, so that the
// next one begins with the new epoch.
func (c *Controller) recoveryOps(rec *recovery, answer Recovered, audit AuditEntry) ([]store.Op, error) {
	state, err := rollout.Encode(rec.state.Recovered(rec.running, answer.Head, c.opt.Now().UTC()))
	if err != nil {
		return nil, err
	}
	next := head{Form: recordForm, Number: answer.Head}
	if answer.Contents != answer.Head {
		next.Contents = answer.Contents
	}
	ops := []store.Op{
		store.Put(store.KeyHead, encode(next)),
		store.Put(store.KeyEpochs, encode(epochs{Form: recordForm, Base: answer.Epoch})),
		store.Delete(store.KeyLeader),
		c.audit(audit),
	}
	if rec.state.Phase != "" || len(rec.running.Cells) > 0 {
		ops = append(ops, store.Put(store.KeyRollout, state))
	}
	for _, v := range rec.records {
		ops = append(ops, store.Put(store.KeyVersion(v.Manifest.Number), encode(v)))
	}
	for _, e := range rec.evacuation {
		ops = append(ops, store.Put(store.KeyEvacuation(e.Cell), encode(e)))
	}
	if len(rec.evacuation) > 0 {
		ops = append(ops, store.Put(store.KeyGuard, []byte(`{"form":1}`)))
	}
	if len(ops) > store.MaxOps {
		return nil, fmt.Errorf("regionctl: a recovery of %d changes does not fit one commit", len(ops))
	}
	return ops, nil
}

func (rec *recovery) describe() Recovered {
	out := Recovered{
		StoreHead: rec.head.Number, Head: max(rec.head.Number, rec.most.Head),
		StoreEpoch: rec.epochs.Base + uint64(rec.leader.Modified), Contents: rec.head.newest(), Warnings: rec.warnings,
	}
	out.Epoch = max(rec.epochs.Base, rec.most.Epoch, rec.most.Attached, out.StoreEpoch)
	for _, v := range rec.records {
		out.Adopted = append(out.Adopted, v.Manifest.Number)
		out.Contents = max(out.Contents, v.Manifest.Number)
	}
	slices.Sort(out.Adopted)
	for _, e := range rec.evacuation {
		out.Orders = append(out.Orders, e.Cell)
	}
	if out.Contents < out.Head {
		out.Warnings = append(out.Warnings, fmt.Sprintf("the contents of version %d are in no copy: the next publication follows version %d", out.Head, out.Contents))
	}
	return out
}

// survey reads the store and asks everybody: this controller's copy and memory, the other controllers' by their last word,
// nodes and routers by their reports.
func (c *Controller) survey(ctx context.Context) (*recovery, error) {
	rec := &recovery{running: rollout.Running{Cells: map[cells.CellID]rollout.Version{}, Nodes: map[cells.NodeID]rollout.Version{}}}
	var own seen
	_ = json.Unmarshal(c.tellSeen(), &own) // our own form
	known := map[cells.RegionID]seen{c.opt.Region: own}
	now := c.opt.Now()
	for _, p := range c.evidence.Peers() {
		var s seen
		if json.Unmarshal(p.Seen, &s) == nil && s.Form >= 1 && now.Sub(p.Heard) < silent {
			known[p.Region] = s
		}
	}
	for _, r := range c.opt.Topology.Regions {
		s, ok := known[r.ID]
		if !ok {
			rec.unheard = append(rec.unheard, string(r.ID))
			continue
		}
		rec.most.raise(max(s.Epoch, s.Attached), s.Head)
		rec.run(c, r.ID, s.Target)
	}
	var err error
	if rec.head, rec.headAt, err = c.readHead(ctx); err != nil {
		return nil, err
	}
	if rec.epochs, rec.epochsAt, err = load[epochs](ctx, c.opt.Global, store.KeyEpochs); err != nil {
		return nil, err
	}
	if rec.state, rec.stateAt, err = c.rolloutState(ctx); err != nil {
		return nil, err
	}
	if rec.leader, err = c.opt.Global.Get(ctx, store.KeyLeader); err != nil && !isAbsent(err) {
		return nil, err
	}
	signed := max(rec.most.Head, rec.head.Number)
	for _, n := range c.evidence.Nodes() {
		if number := max(n.Report.Snapshot.Known, n.Report.Snapshot.Served); number <= signed+maxLeap {
			rec.most.raise(0, number)
		} else {
			rec.warnings = append(rec.warnings, fmt.Sprintf("node %s speaks of version %d, which nothing that is signed comes near to: not counted", n.Report.ID, number))
		}
	}
	return rec, nil
}

// run takes what a region's copy says its cells should run.
func (rec *recovery) run(c *Controller, region cells.RegionID, envelope []byte) {
	if len(envelope) == 0 {
		rec.warnings = append(rec.warnings, fmt.Sprintf("region %s has no copy of a target", region))
		return
	}
	t, err := c.target(envelope)
	if err != nil || t.Region != region {
		rec.warnings = append(rec.warnings, fmt.Sprintf("the target in the copy of region %s is not usable: %v", region, err))
		return
	}
	for id, v := range t.Cells {
		rec.running.Cells[id] = v
	}
	for id, v := range t.Nodes {
		rec.running.Nodes[id] = v
	}
}

// regain finds the versions that run and that the store has lost, and the evacuations.
func (c *Controller) regain(ctx context.Context, rec *recovery) error {
	wanted := map[uint64]rollout.Version{}
	for _, v := range rec.running.Cells {
		wanted[v.Number] = v
	}
	for _, v := range rec.running.Nodes {
		wanted[v.Number] = v
	}
	for n, v := range wanted {
		_, e, err := load[versionRecord](ctx, c.opt.Global, store.KeyVersion(n))
		if err != nil {
			return err
		}
		if e.Modified != 0 {
			continue
		}
		if err := c.adopt(ctx, rec, v); err != nil {
			rec.warnings = append(rec.warnings, fmt.Sprintf("version %d runs, and no copy of it is whole: %v", n, err))
		}
	}
	var stored []cells.Evacuation
	entries, _, err := c.opt.Global.List(ctx, store.PrefixEvacuations)
	if err != nil {
		return err
	}
	have := map[cells.CellID]cells.Evacuation{}
	for _, e := range entries {
		var ev cells.Evacuation
		if json.Unmarshal(e.Value, &ev) == nil {
			stored, have[ev.Cell] = append(stored, ev), ev
		}
	}
	copied, _, _ := read[[]cells.Evacuation](c.copied, store.KeyCopyEvacuees)
	for _, ev := range cells.Strictest(cells.Unite(stored, copied), c.opt.Now()) {
		if old, ok := have[ev.Cell]; !ok || !reflect.DeepEqual(old, ev) {
			rec.evacuation = append(rec.evacuation, ev)
		}
	}
	return nil
}

// adopt fetches a version from the copies: this region's, else the other controllers'.
func (c *Controller) adopt(ctx context.Context, rec *recovery, v rollout.Version) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	envelope, err := c.fetchCopy(ctx, []string{string(v.Manifest)})
	if err != nil {
		return err
	}
	m, err := c.manifest(envelope[string(v.Manifest)])
	if err != nil {
		return err
	}
	if m.Number != v.Number {
		return fmt.Errorf("regionctl: the manifest is of version %d", m.Number)
	}
	var digests []string
	for _, s := range m.Shards {
		digests = append(digests, string(s.Digest))
	}
	blobs, err := c.fetchCopy(ctx, digests)
	if err != nil {
		return err
	}
	snap := &snapshot.Snapshot{Manifest: *m, Blobs: map[snapshot.Digest][]byte{}}
	for d, b := range blobs {
		snap.Blobs[snapshot.Digest(d)] = b
	}
	if err := snap.Verify(); err != nil {
		return err
	}
	// The signed manifest goes back as it was: nodes know the version by the digest of exactly that.
	rec.blobs = append(rec.blobs, envelope[string(v.Manifest)])
	for _, b := range blobs {
		rec.blobs = append(rec.blobs, b)
	}
	bare := *m
	bare.Shards = nil
	rec.records = append(rec.records, &versionRecord{Form: recordForm, Manifest: bare, Envelope: v.Manifest})
	return nil
}

func (c *Controller) fetchCopy(ctx context.Context, digests []string) (map[string][]byte, error) {
	out, missing := map[string][]byte{}, []string{}
	for _, d := range digests {
		short, cancel := context.WithTimeout(ctx, 5*time.Second)
		b, err := c.blob(short, d)
		cancel()
		if err != nil {
			missing = append(missing, d)
			continue
		}
		out[d] = b
	}
	if len(missing) == 0 {
		return out, nil
	}
	var peers []string
	for _, addr := range c.opt.Peers {
		peers = append(peers, addr)
	}
	if len(peers) == 0 {
		return nil, fmt.Errorf("regionctl: %d blobs are in no copy, such as %s", len(missing), missing[0])
	}
	client := nodeapi.NewClient(nodeapi.Options{Controllers: peers, TLS: trust.ClientTLS(c.opt.Signer, c.opt.Roots, trust.RoleController), Log: c.log})
	more, err := client.Fetch(ctx, missing)
	if err != nil {
		return nil, err
	}
	for d, b := range more {
		out[d] = b
	}
	return out, nil
}
