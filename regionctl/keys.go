package regionctl

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// This file keeps issued API keys. They stand in the global store, a record a consumer, and copied into the region's own. Every
// second the nodes are told what has changed; until then they ask for a key that they don't know. A key is no part of a
// version: going back to an older one must not bring a revoked key back.

const (
	// keysEvery is how often the nodes are told of changes, which makes one list of a burst of them.
	keysEvery = time.Second
	// keysPatience is how long an order about keys waits for the global store.
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
	// Revoked are the keys that were revoked last: the order may be given again when its answer was lost.
	Revoked []Key `json:"revoked,omitempty"`
}

// maxRevoked bounds the revoked keys that are remembered.
const maxRevoked = 32

// next is the moment of the next change: now, or just after the last one when that came from a clock ahead.
func (i issuance) next(now time.Time) issuance {
	if !now.After(i.At) {
		now = i.At.Add(time.Nanosecond)
	}
	return issuance{recordForm, now.UTC(), i.Revoked}
}

// issuedKeys decodes what the stores say of issued keys, once a change.
type issuedKeys struct {
	mu      sync.Mutex
	at      string                // the value of the issuance that the rest was made of
	records map[string]readRecord // by the key in the store
	now     *keyState             // nil = none was read yet
}

// keyState is every issued key at one moment. It is immutable.
type keyState struct {
	list    apikey.List
	owners  map[string]string // consumers by hash
	ids     map[string]Key
	revoked []Key // the last ones
}

type readRecord struct {
	raw string
	keyRecord
}

var errNoKeysYet = errors.New("regionctl: neither store was read yet")

// readKeys is the state of issued keys by the later word of the two stores.
func (c *Controller) readKeys() (*keyState, error) {
	if !c.intent.ready() && !c.copied.ready() {
		return nil, errNoKeysYet
	}
	k := &c.keys
	k.mu.Lock()
	defer k.mu.Unlock()
	at, e, ok := read[issuance](c.intent, store.KeyIssuance)
	from, prefix := c.intent, store.PrefixIssued
	if copied, e2, ok2 := read[issuance](c.copied, store.KeyCopyIssuance); ok2 && (!ok || copied.At.After(at.At)) {
		at, e, from, prefix = copied, e2, c.copied, store.PrefixCopyIssued
	}
	if k.now != nil && string(e.Value) == k.at {
		return k.now, nil
	}
	next := &keyState{list: apikey.List{Form: apikey.Form, At: at.At}, owners: map[string]string{}, ids: map[string]Key{}, revoked: at.Revoked}
	records := map[string]readRecord{}
	for _, e := range from.list(prefix) {
		rec := k.records[e.Key]
		if rec.raw != string(e.Value) {
			rec = readRecord{raw: string(e.Value)}
			if err := json.Unmarshal(e.Value, &rec.keyRecord); err != nil || rec.Form != recordForm {
				return nil, fmt.Errorf("regionctl: the keys at %s are not readable here: form %d, %v", e.Key, rec.Form, err)
			}
		}
		records[e.Key] = rec
		next.add(&rec.keyRecord)
	}
	k.at, k.records, k.now = string(e.Value), records, next
	return next, nil
}

func (k *keyState) add(rec *keyRecord) {
	one := apikey.Consumer{ID: rec.Consumer}
	for _, key := range rec.Keys {
		one.Hashes = append(one.Hashes, key.Hash)
		k.owners[key.Hash], k.ids[key.ID] = rec.Consumer, key.Key
	}
	k.list.Consumers = append(k.list.Consumers, one)
}

// findKey answers a node that doesn't know a key.
func (c *Controller) findKey(hashes []string) (consumer string, err error) {
	keys, err := c.readKeys()
	if err != nil {
		return "", err
	}
	for _, h := range hashes {
		if consumer := keys.owners[h]; consumer != "" {
			return consumer, nil
		}
	}
	return "", nil
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
	keys, err := c.readKeys()
	if errors.Is(err, errNoKeysYet) {
		return nil
	}
	if err != nil {
		return err
	}
	list := &keys.list
	if list.At.IsZero() || list.Number() == *number && until.Equal(c.opt.Signer.Expires()) {
		return nil
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
	ops := keyOps(c.intent, store.PrefixIssued, c.copied, store.PrefixCopyIssued)
	return c.putInCopy(ctx, append(ops, store.Put(store.KeyCopyIssuance, e.Value)))
}

// lostKeys gives back to the global store what the region's copy knows later: keys that were issued since the backup that it
// was restored from, and revocations, without which revoked keys would be good again.
func (c *Controller) lostKeys() (ops []store.Op) {
	have, _, _ := read[issuance](c.intent, store.KeyIssuance)
	want, e, ok := read[issuance](c.copied, store.KeyCopyIssuance)
	if !ok || !want.At.After(have.At) {
		return nil
	}
	return append(keyOps(c.copied, store.PrefixCopyIssued, c.intent, store.PrefixIssued), store.Put(store.KeyIssuance, e.Value))
}

// keyOps makes the records under one prefix those of another.
func keyOps(from *mirror, prefix string, to *mirror, toPrefix string) (ops []store.Op) {
	kept := map[string]bool{}
	for _, rec := range from.list(prefix) {
		key := toPrefix + strings.TrimPrefix(rec.Key, prefix)
		kept[key] = true
		if old, ok := to.get(key); !ok || string(old.Value) != string(rec.Value) {
			ops = append(ops, store.Put(key, rec.Value))
		}
	}
	for _, old := range to.list(toPrefix) {
		if !kept[old.Key] {
			ops = append(ops, store.Delete(old.Key))
		}
	}
	return ops
}
