package agent

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/trust"
)

// copyOf is a copy made of what a controller once gave out.
type copyOf struct {
	mu        sync.Mutex
	targets   [][]byte
	denylists [][]byte
	blobs     map[string][]byte
	fetches   int
	stall     bool
}

func (c *copyOf) Ask(context.Context) (targets, denylists [][]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.targets, c.denylists
}

func (c *copyOf) Fetch(ctx context.Context, digests []string) (map[string][]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fetches++
	if c.stall {
		c.mu.Unlock()
		<-ctx.Done()
		c.mu.Lock()
		return nil, ctx.Err()
	}
	out := map[string][]byte{}
	for _, d := range digests {
		b, ok := c.blobs[d]
		if !ok {
			return nil, errors.New("no blob " + d)
		}
		out[d] = b
	}
	return out, nil
}

func with(copies ...Copy) func(*Options) { return func(o *Options) { o.Copies = copies } }

func TestANodeWithAnEmptyDiskServesItsCellsCopyWithoutAnyController(t *testing.T) {
	w := newWorld(t) // no controller is started
	v1, v2 := w.ctl.publish(1, "a", 3), w.ctl.publish(2, "b", 3)
	c := &copyOf{blobs: w.ctl.blobs, targets: [][]byte{w.ctl.target(3, 4, v1), w.ctl.target(3, 5, v2)}}
	dir := t.TempDir()
	p := w.node(dir, with(c))
	w.eventually("the newest version", func() bool { return p.serving() == 2 })
	w.eventually("the ledger", func() bool {
		s := p.Status()
		return s.Snapshot.Source == report.SourceCopy && s.Epoch == 3 && s.Number == 5 && s.Share == 2
	})
	p.stop()
	again := w.node(dir) // it is on the node's own disk now
	w.eventually("serving from disk", func() bool { return again.serving() == 2 && again.Status().Snapshot.Source == report.SourceDisk })
	if again.Target() == nil {
		t.Error("a restarted node has nothing to pass on")
	}
	if b, err := again.Blob(string(v2.Manifest)); err != nil || len(b) == 0 {
		t.Errorf("its manifest: %v", err)
	}
	if _, err := again.Blob("../state.json"); err == nil {
		t.Error("a path was read")
	}
}

func TestAHostileCopyIsNotBelieved(t *testing.T) {
	w := newWorld(t)
	v := w.ctl.publish(2, "b", 3)
	missing := rollout.Version{Number: 9, Manifest: "00000000000000000000000000000000000000000000000000000000000000ff"}
	stranger := w.signer(trust.RoleProxy, "eu-west/a/2")
	byProxy := w.ctl.sealed(7, "x", 3, stranger)
	forged := w.ctl.target(9, 9, v)
	forged[len(forged)/2] ^= 1
	swapped := maps.Clone(w.ctl.blobs)
	for d := range swapped {
		swapped[d] = []byte("something else")
	}
	liar := &copyOf{blobs: swapped, targets: [][]byte{w.ctl.target(1, 3, v)}}
	hostile := &copyOf{blobs: w.ctl.blobs, targets: [][]byte{
		nil, []byte("x"), forged,
		w.ctl.sign(stranger, trust.KindTarget, rollout.Target{Form: 1, Region: "eu-west", Epoch: 9, Number: 9}),
		w.ctl.target(1, 4, missing), w.ctl.target(1, 5, byProxy),
		w.ctl.target(1, 6, v, func(t *rollout.Target) { t.Region = "us-east" }),
	}}
	p := w.node(t.TempDir(), with(liar, hostile))
	time.Sleep(500 * time.Millisecond)
	if p.serving() != 0 || p.Target() != nil {
		t.Fatal("it was believed")
	}
	hostile.mu.Lock()
	hostile.targets = append(hostile.targets, w.ctl.target(1, 1, v)) // older than what failed, and good
	hostile.mu.Unlock()
	w.eventually("the one good offer", func() bool { return p.serving() == 2 })
}

func TestAControllerInterruptsALookAtCopies(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	v1, v2 := w.ctl.publish(1, "a", 3), w.ctl.publish(2, "b", 3)
	c := &copyOf{blobs: w.ctl.blobs, targets: [][]byte{w.ctl.target(1, 1, v1)}, stall: true}
	p := w.node(t.TempDir(), with(c))
	w.eventually("the look", func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.fetches > 0 })
	begin := time.Now()
	w.ctl.post(target(w.ctl.target(1, 2, v2)))
	if a := w.ctl.ack(1, 2); a.Nack != "" || p.serving() != 2 || time.Since(begin) > 5*time.Second {
		t.Errorf("%v, serving %d after %v", a, p.serving(), time.Since(begin))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fetches > 1 {
		t.Errorf("%d fetches from the copy while a controller answers", c.fetches)
	}
}

// A node that starts while no controller is there lets nobody in whom its peers refuse, be it new or have it lost its list.
func TestANodeHearsFromItsPeersWhomTheyDeny(t *testing.T) {
	w, now := newWorld(t), time.Now() // no controller is started
	envelope := func(by *trust.Signer, who string) []byte {
		return w.ctl.denylist(by, denylist.NewList("eu-west", []denylist.Entry{denial(who, false, now)}, now)).GetDenylist().GetEnvelope()
	}
	c := &copyOf{blobs: w.ctl.blobs, targets: [][]byte{w.ctl.target(1, 1, w.ctl.publish(1, "a", 3))}, denylists: [][]byte{
		envelope(w.signer(trust.RoleProxy, "eu-west/a/2"), "bob"), envelope(w.ctl.signer, "ann")}}
	dir, set := t.TempDir(), &atomic.Pointer[denylist.Set]{}
	start := func() *proxy {
		return w.node(dir, func(o *Options) { o.Copies, o.Deny = []Copy{c}, set.Store })
	}
	p := start()
	w.eventually("serving", func() bool { return p.serving() == 1 })
	if !set.Load().User("i", "ann") || set.Load().User("i", "bob") || len(p.Denylists()) != 1 {
		t.Fatal("it does not know whom its peers deny, or believes a proxy")
	}
	p.stop()
	set.Store(nil)
	must(t, os.WriteFile(filepath.Join(dir, "denylist.json"), []byte("{"), 0o600))
	p = start()
	w.eventually("a list in the place of the damaged one", func() bool { return set.Load().User("i", "ann") })
	if _, age := p.denied.status(time.Now().Add(2 * time.Minute)); age < 2*time.Minute {
		t.Errorf("by a peer's word the list is %v old", age)
	}
}
