package regionctl

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

func (b *bench) signerFor(life time.Duration) *trust.Signer {
	b.t.Helper()
	cert, key, err := b.ca.Issue(trust.Identity{World: "gw.test", Role: trust.RoleController, ID: "eu-west/1"}, []netip.Addr{}, nil, b.now, life)
	must(b.t, err)
	s, err := trust.NewSigner(cert, key)
	must(b.t, err)
	return s
}

// A version outlives the certificate that signed it: it is rolled back to, its standing target is signed anew by the next
// leader, and a manifest that was forged with the ended key is refused all the same.
func TestVersionOfAnEndedCertificateIsRolledBackTo(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.signer_ = b.signerFor(time.Hour)
	ended := b.signer_
	first, end := b.incumbent(b.global.Join())
	b.publishDirect(first.Controller, 2)
	must(t, first.stepRollout(context.Background()))
	b.beat(first.Controller)
	end()

	b.now = b.now.Add(48 * time.Hour)
	b.signer_ = b.signerFor(90 * 24 * time.Hour)
	second, end2 := b.incumbent(b.global.Join())
	defer end2()
	must(t, second.stepRollout(context.Background()))
	e, err := b.global.Get(t.Context(), store.KeyTarget("us-east"))
	must(t, err)
	if target, err := second.target(e.Value); err != nil || target.Cells["us-east/a"].Number != 1 {
		t.Fatalf("the standing target was not signed anew: %v", err)
	}
	content, rec, err := second.content(t.Context(), 1)
	must(t, err)
	if _, err := second.publish(t.Context(), publication{
		build: func(*snapshot.Config, *versionRecord) (*snapshot.Config, error) { return content, nil },
		meta:  snapshot.Meta{RollbackOf: rec.Manifest.Number},
	}); err != nil {
		t.Fatalf("a rollback to it: %v", err)
	}
	must(t, second.copyVersion(t.Context(), rollout.Version{Number: 1, Manifest: rec.Envelope}))

	forged, err := ended.Sign(trust.KindManifest, encode(snapshot.Manifest{Form: 1, Number: 9, Created: b.now.Add(-time.Minute)}))
	must(t, err)
	if _, err := second.manifest(forged); err == nil {
		t.Error("a manifest made after its signer's certificate had ended was taken")
	}
}

func TestStandingTargetIsSignedAnewBeforeItsSignerEnds(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.signer_ = b.signerFor(40 * 24 * time.Hour)
	first, end := b.incumbent(b.global.Join())
	b.publishDirect(first.Controller, 2)
	must(t, first.stepRollout(context.Background()))
	end()
	b.now = b.now.Add(20 * 24 * time.Hour)
	b.signer_ = b.signerFor(365 * 24 * time.Hour)
	second, end2 := b.incumbent(b.global.Join())
	defer end2()
	before, err := b.global.Get(t.Context(), store.KeyTarget("eu-west"))
	must(t, err)
	must(t, second.stepRollout(context.Background()))
	after, err := b.global.Get(t.Context(), store.KeyTarget("eu-west"))
	must(t, err)
	if after.Modified == before.Modified || second.endsSoon(after.Value) {
		t.Fatal("the target that ends in 20 days still stands")
	}
	must(t, second.stepRollout(context.Background()))
	if again, err := b.global.Get(t.Context(), store.KeyTarget("eu-west")); err != nil || again.Modified != after.Modified {
		t.Fatalf("it was signed again: %v", err)
	}
}
