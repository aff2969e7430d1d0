package callers

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/memo"
	"github.com/cellgate/cellgate/reason"
)

// Region says whose an issued key is that the node was not told of yet (G3); proxy/agent does.
type Region interface {
	// Connected says whether the region's controller can be asked now.
	Connected() bool
	// FindKey gives the consumer of the key with these hashes, one of each algorithm; empty = nobody's.
	FindKey(ctx context.Context, hashes []string) (consumer string, err error)
}

// How long the region's word holds, and how many words are kept. Keys that are nobody's have a table of their own, so that
// made-up ones push nobody out.
const (
	foundTTL, unfoundTTL = 60 * time.Second, 10 * time.Second
	foundKeys, foundRAM  = 1 << 12, 1 << 20
)

// issuedKeys are the keys that operators have issued: those that the node was told of, and what it was answered of others.
type issuedKeys struct {
	services *ask.Services
	region   Region // nil = none: documents say it all
	list     atomic.Pointer[issuedList]
	found    *memo.Table[string] // consumers
	unfound  *memo.Table[struct{}]
	turn     atomic.Uint64 // grows when what was answered is forgotten
}

type issuedList struct {
	table  *auth.KeyTable
	owners []string // consumers, by the table's index
}

func newIssuedKeys(services *ask.Services) issuedKeys {
	return issuedKeys{services: services, found: memo.New[string](foundKeys, foundRAM), unfound: memo.New[struct{}](foundKeys, foundRAM)}
}

// AskRegion names who is asked for issued keys that the node was not told of. It is called before the first request.
func (a *Authenticator) AskRegion(r Region) { a.issued.region = r }

// Issue replaces the list of issued keys, and forgets what was answered of others. An error leaves all as it was.
func (a *Authenticator) Issue(l *apikey.List) error {
	table, err := auth.NewIssuedTable(l)
	if err != nil {
		return err
	}
	owners := make([]string, len(l.Consumers))
	for i := range owners {
		owners[i] = l.Consumers[i].ID
	}
	a.issued.list.Store(&issuedList{table, owners})
	a.issued.forget()
	return nil
}

func (k *issuedKeys) forget() {
	k.turn.Add(1)
	k.found.Forget(nil)
	k.unfound.Forget(nil)
}

// key finds whose an API key is: by the program's hashes, by the list of issued ones, or by what the region says. Nobody is
// asked for a key that can't have been issued.
func (a *Authenticator) key(c *proxy.Credentials, id *proxy.Identity, now time.Time) (reason.Reason, <-chan struct{}) {
	sent, why := keyOf(c)
	if why != reason.None {
		return why, nil
	}
	if a.denied.Load().Key(sent) {
		return reason.Denied, nil
	}
	if c.Program.Identity.APIKeys == nil {
		return reason.AuthUnavailable, nil
	}
	if i, ok := c.Program.Identity.APIKeys.Find(sent); ok && i < len(c.Program.Consumers) {
		id.Consumer = c.Program.Consumers[i].ID
		return reason.None, nil
	}
	if !apikey.Well(sent) {
		return reason.KeyInvalid, nil
	}
	if l := a.issued.list.Load(); l != nil {
		if i, ok := l.table.Find(sent); ok {
			return ofConsumer(c, id, l.owners[i]), nil
		}
	}
	if a.issued.region == nil {
		return reason.KeyInvalid, nil
	}
	return a.issued.lookUp(c, id, sent, now)
}

// keyOf takes the API key from X-API-Key or from "Bearer cg_…"; two that differ are invalid.
func keyOf(c *proxy.Credentials) ([]byte, reason.Reason) {
	sent := c.APIKey
	if token, ok := bearer(c.Authorization); ok && bytes.HasPrefix(token, []byte(apikey.Prefix)) {
		if sent != nil && !bytes.Equal(sent, token) {
			return nil, reason.KeyInvalid
		}
		sent = token
	}
	if sent == nil {
		return nil, reason.TokenMissing
	}
	return sent, reason.None
}

// ofConsumer lets in who has a key of the consumer, if the program knows such a one.
func ofConsumer(c *proxy.Credentials, id *proxy.Identity, consumer string) reason.Reason {
	i, ok := c.Program.Consumer(consumer)
	if !ok {
		return reason.KeyInvalid
	}
	id.Consumer = c.Program.Consumers[i].ID
	return reason.None
}

// lookUp finds whose a key is by what the region says of it, or asks. Beyond the budget of questions a key is nobody's.
func (k *issuedKeys) lookUp(c *proxy.Credentials, id *proxy.Identity, sent []byte, now time.Time) (reason.Reason, <-chan struct{}) {
	h := memo.NewHash(c.Tenant)
	key := h.Bytes(sent).Key()
	consumer, holds := k.found.Get(key, now.UnixNano())
	if holds {
		return ofConsumer(c, id, *consumer), nil
	}
	if _, holds := k.unfound.Get(key, now.UnixNano()); holds {
		return reason.KeyInvalid, nil
	}
	if c.Asked != nil {
		r, answered := c.Asked.Answer()
		switch {
		case !answered:
			return reason.AuthUnavailable, nil
		case r.Identity == nil:
			return r.Reason, nil
		}
		return ofConsumer(c, id, r.Identity.Consumer), nil
	}
	if !k.region.Connected() {
		return reason.AuthUnavailable, nil
	}
	if c.Asked = k.ask(c, key, sent, consumer != nil, now); c.Asked == nil {
		return reason.KeyInvalid, nil
	}
	c.Fresh = true
	return reason.AuthUnavailable, c.Asked.Done()
}

// ask asks the region; nil means that it can't be asked now.
func (k *issuedKeys) ask(c *proxy.Credentials, key memo.Key, sent []byte, known bool, now time.Time) *ask.Flight[auth.Result] {
	if k.services == nil {
		return nil
	}
	s := ask.Of[auth.Result](k.services, ask.Rule{Kind: "issued keys", Timeout: 100 * time.Millisecond, InFlight: 16, PerSecond: 10})
	if s == nil {
		return nil
	}
	hashes := make([]string, apikey.Algorithms)
	for by := range apikey.Algorithms {
		hashes[by] = by.Of(sent).String()
	}
	return s.Do(ask.Question{Key: key, Source: c.Peer, Known: known}, func(ctx context.Context) (auth.Result, error) {
		turn := k.turn.Load()
		consumer, err := k.region.FindKey(ctx, hashes)
		if err != nil {
			return auth.Result{}, fmt.Errorf("callers: %w", err)
		}
		return k.keep(key, consumer, turn, now.UnixNano()), nil
	})
}

// keep remembers an answer to a question of now, unless what it may have been given by has changed since that turn.
func (k *issuedKeys) keep(key memo.Key, consumer string, turn uint64, now int64) auth.Result {
	if consumer == "" {
		k.unfound.Put(key, struct{}{}, 64, now+unfoundTTL.Nanoseconds(), now)
	} else {
		k.found.Put(key, consumer, 64+len(consumer), now+foundTTL.Nanoseconds(), now)
	}
	if k.turn.Load() != turn {
		k.found.Drop(key)
		k.unfound.Drop(key)
	}
	if consumer == "" {
		return auth.Result{Reason: reason.KeyInvalid}
	}
	return auth.Result{Identity: &auth.Identity{Consumer: consumer}}
}
