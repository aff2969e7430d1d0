package regionctl

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
)

// This file has the orders about API keys.

// postKey issues a key. It is in the answer and nowhere else.
func (c *Controller) postKey(r *call) (any, error) {
	req, err := body[KeyRequest](r)
	if err != nil {
		return nil, err
	}
	if err := words("reason", req.Reason); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(r.Context(), keysPatience)
	defer cancel()
	live, err := c.liveConsumers(ctx)
	if err != nil {
		return nil, err
	}
	written, ok := live.hashes[req.Consumer]
	if !ok {
		return nil, notFound("version %d has no consumer %q: publish it first", live.number, req.Consumer)
	}
	keys, err := c.readKeys()
	if err != nil {
		return nil, starting(err.Error())
	}
	if n := len(keys.ids); n >= apikey.MaxKeys {
		return nil, refused("keys_full", "", "%d keys are issued, which is the most; revoke some", n)
	}
	change, err := c.openKeys(ctx, req.Consumer)
	if err != nil {
		return nil, err
	}
	order := idempotency(r)
	change.rec.Keys = slices.DeleteFunc(change.rec.Keys, func(k storedKey) bool { return order != "" && k.Order == order })
	if n := len(change.rec.Keys) + len(written); n >= apikey.PerConsumer {
		return nil, refused("too_many_keys", "", "consumer %q has %d live keys, %d of them in the document; at most %d: revoke one first", req.Consumer, n, len(written), apikey.PerConsumer)
	}
	key, id := apikey.New(rand.Reader)
	issued := Key{ID: id, Consumer: req.Consumer, Hash: apikey.SHA256.Of([]byte(key)).String(), Issued: c.opt.Now().UTC(), By: r.who, Reason: req.Reason}
	if _, taken := keys.ids[id]; taken {
		return nil, conflict("the drawn id is taken; repeat")
	}
	if req.DryRun {
		issued.ID, issued.Hash = "", ""
		return IssuedKey{Key: issued, DryRun: true}, nil
	}
	change.rec.Keys = append(change.rec.Keys, storedKey{issued, order})
	if err := change.commit(ctx, AuditEntry{Who: r.who, What: "issue key", On: "consumer " + req.Consumer, Why: req.Reason, After: "key " + id}); err != nil {
		return nil, err
	}
	return IssuedKey{Key: issued, Secret: key}, nil
}

// postKeyRevocation ends a key: within two seconds no node that hears its controller takes it.
func (c *Controller) postKeyRevocation(r *call) (any, error) {
	req, err := body[KeyRevocation](r)
	if err != nil {
		return nil, err
	}
	if err := words("reason", req.Reason); err != nil {
		return nil, err
	}
	keys, err := c.readKeys()
	if err != nil {
		return nil, starting(err.Error())
	}
	key, ok := keys.ids[req.ID]
	if i := slices.IndexFunc(keys.revoked, func(k Key) bool { return k.ID == req.ID }); !ok && i >= 0 {
		return RevokedKey{Key: keys.revoked[i], DryRun: req.DryRun}, nil // said twice
	}
	if !ok {
		return nil, notFound("no key %q is issued; `regionctl keys list` names them, and a key in a document is revoked there", req.ID)
	}
	if req.DryRun {
		return RevokedKey{Key: key, DryRun: true}, nil
	}
	ctx, cancel := context.WithTimeout(r.Context(), keysPatience)
	defer cancel()
	change, err := c.openKeys(ctx, key.Consumer)
	if err != nil {
		return nil, err
	}
	change.rec.Keys = slices.DeleteFunc(change.rec.Keys, func(k storedKey) bool { return k.ID == req.ID })
	change.last.Revoked = append(change.last.Revoked[max(0, len(change.last.Revoked)+1-maxRevoked):], key)
	if err := change.commit(ctx, AuditEntry{Who: r.who, What: "revoke key", On: "consumer " + key.Consumer, Why: req.Reason, Before: "key " + key.ID}); err != nil {
		return nil, err
	}
	return RevokedKey{Key: key}, nil
}

// keyChange is a consumer's record on its way to another.
type keyChange struct {
	c     *Controller
	rec   keyRecord
	conds []store.Cond
	last  issuance
}

func (c *Controller) openKeys(ctx context.Context, consumer string) (*keyChange, error) {
	rec, at, err := load[keyRecord](ctx, c.opt.Global, store.KeyIssued(consumer))
	if err != nil {
		return nil, err
	}
	last, guard, err := load[issuance](ctx, c.opt.Global, store.KeyIssuance)
	rec.Form, rec.Consumer = recordForm, consumer
	return &keyChange{c, rec, []store.Cond{store.Unchanged(at), store.Unchanged(guard)}, last}, err
}

// commit stores the record, if nobody has changed a key meanwhile, and waits until this controller knows.
func (k *keyChange) commit(ctx context.Context, audit AuditEntry) error {
	put := store.Put(store.KeyIssued(k.rec.Consumer), encode(k.rec))
	if len(k.rec.Keys) == 0 {
		put = store.Delete(store.KeyIssued(k.rec.Consumer))
	}
	rev, err := k.c.opt.Global.Commit(ctx, k.conds, []store.Op{put, store.Put(store.KeyIssuance, encode(k.last.next(k.c.opt.Now()))), k.c.audit(audit)})
	if err != nil {
		return err
	}
	k.c.intent.see(ctx, rev)
	k.c.log.Info(audit.What, "on", audit.On, "key", audit.Before+audit.After, "by", audit.Who, "reason", audit.Why)
	return nil
}

// getKeys lists issued keys, and those of the live version's documents.
func (c *Controller) getKeys(r *call) (any, error) {
	keys, err := c.readKeys()
	if err != nil {
		return nil, starting(err.Error())
	}
	answer := Keys{Keys: slices.Collect(maps.Values(keys.ids)), Issued: len(keys.ids), Limit: apikey.MaxKeys}
	live, err := c.liveConsumers(r.Context())
	if err != nil {
		answer.Warnings = append(answer.Warnings, fmt.Sprintf("the keys in documents are not known: %v", err))
	}
	for consumer, hashes := range live.hashes {
		for _, h := range hashes {
			answer.Keys = append(answer.Keys, Key{Consumer: consumer, Hash: h, Document: live.number})
		}
	}
	for _, k := range answer.Keys {
		if _, ok := live.hashes[k.Consumer]; !ok && err == nil {
			answer.Warnings = append(answer.Warnings, fmt.Sprintf("key %s is not taken: version %d has no consumer %q", k.ID, live.number, k.Consumer))
		}
	}
	if of := r.URL.Query().Get("consumer"); of != "" {
		answer.Keys = slices.DeleteFunc(answer.Keys, func(k Key) bool { return k.Consumer != of })
	}
	slices.SortFunc(answer.Keys, func(a, b Key) int {
		return strings.Compare(a.Consumer+"\x00"+a.ID+"\x00"+a.Hash, b.Consumer+"\x00"+b.ID+"\x00"+b.Hash)
	})
	slices.Sort(answer.Warnings)
	return answer, nil
}

// consumers are those of one version, with the hashes that its documents give them.
type consumers struct {
	number uint64
	hashes map[string][]string
}

// liveConsumers remembers the consumers of the live version.
func (c *Controller) liveConsumers(ctx context.Context) (consumers, error) {
	number := c.liveNumber()
	if known := c.consumers.Load(); known != nil && known.number == number {
		return *known, nil
	}
	rec, err := c.known(ctx, fmt.Sprint(number))
	if err != nil {
		return consumers{}, err
	}
	snap, err := c.open(ctx, rec)
	if err != nil {
		return consumers{}, err
	}
	cfg, err := snapshot.OpenShared(snap)
	if err != nil {
		return consumers{}, err
	}
	live := consumers{number, map[string][]string{}}
	for _, one := range cfg.Consumers {
		live.hashes[one.ID] = one.APIKeyHashes
	}
	c.consumers.Store(&live)
	return live, nil
}

// keysFit refuses a version whose documents give a consumer more keys than before, and with the issued ones too many, or newly an issued
// key: it would be whose the document says, and revoking it would not end it.
func (c *Controller) keysFit(old, cfg *snapshot.Config) error {
	keys, err := c.readKeys()
	if err != nil {
		return starting(err.Error())
	}
	issued, before := map[string]int{}, map[string][]string{}
	for _, one := range keys.list.Consumers {
		issued[one.ID] = len(one.Hashes)
	}
	for _, one := range old.Consumers {
		before[one.ID] = one.APIKeyHashes
	}
	for _, one := range cfg.Consumers {
		for _, h := range one.APIKeyHashes {
			if owner := keys.owners[strings.ToLower(h)]; owner != "" && !slices.Contains(before[one.ID], h) {
				return refused("key_issued", "", "consumer %q has the hash %s of a key that was issued to %q: an issued key stands in no document", one.ID, h, owner)
			}
		}
		if n := len(one.APIKeyHashes); n > len(before[one.ID]) && n+issued[one.ID] > apikey.PerConsumer {
			return refused("too_many_keys", "", "consumer %q would have %d live keys, %d of them issued; at most %d: revoke one first", one.ID, n+issued[one.ID], issued[one.ID], apikey.PerConsumer)
		}
	}
	return nil
}
