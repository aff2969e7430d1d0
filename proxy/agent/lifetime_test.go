package agent

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/trust"
)

// A target that is valid now may name a version whose signer's certificate has ended, such as an old one that is rolled
// back to. One that was signed after that end is refused.
func TestAVersionOlderThanItsSignersCertificateIsServed(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	dir := t.TempDir()
	p := w.node(dir)
	ended := w.endedSigner()
	old := w.ctl.signed(w.sealAt(3, "a", 4, time.Now().Add(-90*time.Minute)), ended)
	w.ctl.post(target(w.ctl.target(1, 1, old)))
	if a := w.ctl.ack(1, 1); a.Nack != "" || p.serving() != 3 {
		t.Fatalf("%v, serving %d", a, p.serving())
	}
	forged := w.ctl.signed(w.sealAt(4, "b", 4, time.Now().Add(-time.Minute)), ended)
	w.ctl.post(target(w.ctl.target(1, 2, forged)))
	if a := w.ctl.ack(1, 2); a.Nack == "" || p.serving() != 3 {
		t.Fatalf("signed after the certificate's end: %v, serving %d", a, p.serving())
	}
	if _, _, err := w.roots.Verify(trust.KindManifest, w.ctl.blobs[string(old.Manifest)], time.Now(), trust.RoleController); err == nil {
		t.Fatal("the certificate has not ended")
	}
	if snapshot.MadeAt([]byte("no manifest")) != (time.Time{}) {
		t.Error("nonsense has a time")
	}
}

// A node refuses what comes from a store that went back, under whatever epoch, and goes on with what it serves.
func TestATargetOfAStoreThatWentBackIsRefused(t *testing.T) {
	w := newWorld(t)
	w.ctl.start(t)
	p := w.node(t.TempDir())
	five, two := w.ctl.publish(5, "five", 4), w.ctl.publish(2, "two", 4)
	head := func(n uint64) func(*rollout.Target) { return func(t *rollout.Target) { t.Head = n } }
	w.ctl.post(target(w.ctl.target(10, 1, five, head(5))))
	if a := w.ctl.ack(10, 1); a.Nack != "" {
		t.Fatal(a)
	}
	w.ctl.post(target(w.ctl.target(11, 1, two, head(2))))
	if a := w.ctl.ack(11, 1); a.Nack == "" || p.serving() != 5 {
		t.Fatalf("%v, serving %d", a, p.serving())
	}
	w.ctl.post(target(w.ctl.target(12, 1, two, head(6))))
	if a := w.ctl.ack(12, 1); a.Nack != "" || p.serving() != 2 {
		t.Fatalf("a rollback by a store that knows more: %v, serving %d", a, p.serving())
	}
}
