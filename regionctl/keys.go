package regionctl

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// This file issues API keys. They are kept in the global store, a record a consumer, and copied into the region's own. Every
// second the nodes are told what has changed; until then they ask for a key that they don't know. A key is no part of a
// version: going back to an older one must not bring a revoked key back.

const (
	// keysEvery is how often the nodes are told of changes, which makes one list of a burst of them.
	keysEvery = time.Second
	// keysPatience is how long an order waits for the global store.
	keysPatience = 3 * time.Second
)

// keyRecord is the stored form of the keys of one consumer.
type keyRecord struct {
	Form     int         `json:"form"`
	Consumer string      `json:"consumer"`
	Keys     []storedKey `json:"keys"`
}

// storedKey is one key. Order is the hash of the request that asked for it: one that is repeated gets a new key in its place,
// since nobody has seen the first.
type storedKey struct {
	Key
	Order string `json:"order,omitempty"`
}

// issuance is the stored form of when keys were last changed. It grows with every change.
type issuance struct {
	Form int       `json:"form"`
	At   time.Time `json:"at"`
}

// next is the moment of the next change: now, or just after the last one when that came from a clock ahead.
func (i issuance) next(now time.Time) issuance {
	if !now.After(i.At) {
		now = i.At.Add(time.Nanosecond)
	}
	return issuance{recordForm, now.UTC()}
}

// issuedKeys is what the stores say of issued keys, decoded once a change.
type issuedKeys struct {
	mu      sync.Mutex
	at      string                // the value of the issuance that the rest was made of
	records map[string]readRecord // by the key in the store
	list    *apikey.List
	owners  map[string]string // consumers by hash
	ids     map[string]Key
}

type readRecord struct {
	raw string
	keyRecord
}

var errNoKeysYet = errors.New("regionctl: neither store was read yet")

// readKeys is the state of issued keys by the later word of the two stores. What it gives is not changed any more.
func (c *Controller) readKeys() (*apikey.List, map[string]string, map[string]Key, error) {
	if !c.intent.ready() && !c.copied.ready() {
		return nil, nil, nil, errNoKeysYet
	}
	k := &c.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	at, e, ok := read[issuance](c.intent, store.KeyIssuance)
	from, prefix := c.intent, store.PrefixIssued
	if copied, e2, ok2 := read[issuance](c.copied, store.KeyCopyIssuance); ok2 && (!ok || copied.At.After(at.At)) {
		at, e, from, prefix = copied, e2, c.copied, store.PrefixCopyIssued
	}
	if k.list != nil && string(e.Value) == k.at {
		return k.list, k.owners, k.ids, nil
	}
	list, owners, ids, records := &apikey.List{Form: apikey.Form, At: at.At}, map[string]string{}, map[string]Key{}, map[string]readRecord{}
	for _, e := range from.list(prefix) {
		rec := k.records[e.Key]
		if rec.raw != string(e.Value) {
			rec = readRecord{raw: string(e.Value)}
			if err := json.Unmarshal(e.Value, &rec.keyRecord); err != nil || rec.Form != recordForm {
				return nil, nil, nil, fmt.Errorf("regionctl: the keys at %s are not readable here: form %d, %v", e.Key, rec.Form, err)
			}
		}
		records[e.Key] = rec
		one := apikey.Consumer{ID: rec.Consumer}
		for _, key := range rec.Keys {
			one.Hashes = append(one.Hashes, key.Hash)
			owners[key.Hash], ids[key.ID] = rec.Consumer, key.Key
		}
		list.Consumers = append(list.Consumers, one)
	}
	k.at, k.records, k.list, k.owners, k.ids = string(e.Value), records, list, owners, ids
	return list, owners, ids, nil
}

// findKey answers a node that doesn't know a key.
func (c *Controller) findKey(hashes []string) (consumer string, err error) {
	_, owners, _, err := c.readKeys()
	for _, h := range hashes {
		if consumer := owners[h]; consumer != "" {
			return consumer, nil
		}
	}
	return "", err
}

// announceKeys tells nodes and the region's store of issued keys until ctx ends.
func (c *Controller) announceKeys(ctx context.Context) error {
	said, number, until := "", uint64(0), time.Time{}
	for {
		err := errors.Join(c.postKeys(&number, &until), c.copyKeys(ctx))
		if err != nil && err.Error() != said && ctx.Err() == nil {
			c.log.Warn("nodes or the region's store do not hear of issued keys", "err", err)
		}
		said = fmt.Sprint(err)
		if !pause.For(ctx, keysEvery) {
			return nil
		}
	}
}

// postKeys shows the nodes the list unless it is shown already, by the same certificate.
func (c *Controller) postKeys(number *uint64, until *time.Time) error {
	list, _, _, err := c.readKeys()
	if errors.Is(err, errNoKeysYet) {
		return nil
	}
	if err != nil || list.At.IsZero() || list.Number() == *number && until.Equal(c.opt.Signer.Expires()) {
		return err
	}
	*until = c.opt.Signer.Expires()
	envelope, err := c.opt.Signer.Sign(trust.KindKeys, encode(list))
	if err != nil {
		return err
	}
	c.board.Post(fleet.Mail{Kind: fleet.KindKeys, Number: list.Number(), Envelope: envelope})
	*number = list.Number()
	return nil
}

// copyKeys brings the region's copy up to what the global store says; the issuance is written last.
func (c *Controller) copyKeys(ctx context.Context) error {
	want, e, ok := read[issuance](c.intent, store.KeyIssuance)
	have, _, _ := read[issuance](c.copied, store.KeyCopyIssuance)
	if !ok || !c.copied.ready() || !want.At.After(have.At) {
		return nil
	}
	var ops []store.Op
	kept := map[string]bool{}
	for _, rec := range c.intent.list(store.PrefixIssued) {
		key := store.PrefixCopyIssued + strings.TrimPrefix(rec.Key, store.PrefixIssued)
		kept[key] = true
		if old, ok := c.copied.get(key); !ok || string(old.Value) != string(rec.Value) {
			ops = append(ops, store.Put(key, rec.Value))
		}
	}
	for _, old := range c.copied.list(store.PrefixCopyIssued) {
		if !kept[old.Key] {
			ops = append(ops, store.Delete(old.Key))
		}
	}
	return c.putInCopy(ctx, append(ops, store.Put(store.KeyCopyIssuance, e.Value)))
}

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
	list, _, ids, err := c.readKeys()
	if err != nil {
		return nil, starting(err.Error())
	}
	if len(ids) >= apikey.MaxKeys {
		return nil, refused("keys_full", "", "%d keys are issued, which is the most; revoke some of %d consumers", len(ids), len(list.Consumers))
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
	if _, taken := ids[id]; taken {
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
	_, _, ids, err := c.readKeys()
	if err != nil {
		return nil, starting(err.Error())
	}
	key, ok := ids[req.ID]
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
	_, _, ids, err := c.readKeys()
	if err != nil {
		return nil, starting(err.Error())
	}
	answer := Keys{Keys: slices.Collect(maps.Values(ids)), Issued: len(ids), Limit: apikey.MaxKeys}
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

// keysFit refuses a version whose documents give a consumer more keys than before, and with the issued ones too many.
func (c *Controller) keysFit(old, cfg *snapshot.Config) error {
	list, _, _, err := c.readKeys()
	if err != nil {
		return starting(err.Error())
	}
	issued, before := map[string]int{}, map[string]int{}
	for _, one := range list.Consumers {
		issued[one.ID] = len(one.Hashes)
	}
	for _, one := range old.Consumers {
		before[one.ID] = len(one.APIKeyHashes)
	}
	for _, one := range cfg.Consumers {
		if n := len(one.APIKeyHashes); n > before[one.ID] && n+issued[one.ID] > apikey.PerConsumer {
			return refused("too_many_keys", "", "consumer %q would have %d live keys, %d of them issued; at most %d: revoke one first", one.ID, n+issued[one.ID], issued[one.ID], apikey.PerConsumer)
		}
	}
	return nil
}
