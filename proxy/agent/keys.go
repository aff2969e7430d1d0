package agent

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/trust"
)

// issuedKeys is the node's list of issued API keys. Its loop is its own: a list may be large, and holds nothing else up.
// Each list is whole; of two, the one of the later change counts.
type issuedKeys struct {
	a      *Agent
	disk   durable.Keeper // owned by the loop
	poke   chan struct{}  // capacity 1: something arrived
	newest atomic.Pointer[[]byte]
	number atomic.Uint64 // of the list in force; 0 = none. Written by: the loop.
}

// storedKeys is the form of keys.json.
type storedKeys struct {
	Form     int       `json:"form"`
	Accepted time.Time `json:"accepted"`
	Envelope []byte    `json:"envelope"`
}

const keysForm = 1

func newIssuedKeys(a *Agent) *issuedKeys {
	return &issuedKeys{a: a, poke: make(chan struct{}, 1), disk: durable.Keeper{
		Path: a.shelf.path("keys.json"),
		Failed: func(err error) {
			a.log.Error("issued keys not stored; until they are, a restart loses what a controller does not say again", "error", err)
		},
		Done: func() { a.log.Info("the issued keys are stored again") },
	}}
}

// receive keeps the newest list for the loop; it never blocks.
func (k *issuedKeys) receive(envelope []byte) {
	k.newest.Store(&envelope)
	select {
	case k.poke <- struct{}{}:
	default:
	}
}

// run takes lists in until ctx ends.
func (k *issuedKeys) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-k.poke:
			now := time.Now()
			s := storedKeys{keysForm, now, *k.newest.Load()}
			news, err := k.take(s)
			if err != nil {
				k.a.log.Warn("list of issued keys refused", "error", err)
			}
			if news {
				k.disk.Put(s, now)
			}
		case <-tick.C:
			k.disk.Retry(time.Now())
		}
	}
}

// take puts a list in force; news says that it is a later one than that before.
func (k *issuedKeys) take(s storedKeys) (news bool, err error) {
	payload, _, err := k.a.opt.Roots.Verify(trust.KindKeys, s.Envelope, s.Accepted, trust.RoleController)
	if err != nil {
		return false, err
	}
	l, err := apikey.Decode(payload)
	if err != nil {
		return false, err
	}
	if l.Number() <= k.number.Load() {
		return false, nil
	}
	if err := k.a.opt.Issue(l); err != nil {
		return false, fmt.Errorf("agent: %w", err)
	}
	k.number.Store(l.Number())
	k.a.log.Info("issued keys", "consumers", len(l.Consumers), "changed", l.At)
	return true, nil
}

// load brings back what was known before the restart.
func (k *issuedKeys) load() {
	var stored storedKeys
	found, err := durable.ReadForm(k.disk.Path, keysForm, &stored)
	if found && err == nil {
		_, err = k.take(stored)
	}
	if err != nil {
		k.a.log.Error("the stored list of issued keys is not usable; waiting for a controller to say it", "error", err)
	}
}
