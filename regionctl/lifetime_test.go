package regionctl

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/regionctl/fleet"
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
	must(t, second.copyVersion(t.Context(), rollout.Version{Number: 1, Manifest: rec.Envelope}, sweepMark{Cond: store.Absent(store.KeyCopySweep)}))

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
	if after.Modified == before.Modified || second.endsSoon(trust.KindTarget, after.Value) {
		t.Fatal("the target that ends in 20 days still stands")
	}
	must(t, second.stepRollout(context.Background()))
	if again, err := b.global.Get(t.Context(), store.KeyTarget("eu-west")); err != nil || again.Modified != after.Modified {
		t.Fatalf("it was signed again: %v", err)
	}
}

// signerFrom is a signer whose files renew replaces.
func (b *bench) signerFrom(life time.Duration) (s *trust.Signer, renew func(life time.Duration)) {
	b.t.Helper()
	certFile, keyFile := filepath.Join(b.t.TempDir(), "cert"), filepath.Join(b.t.TempDir(), "key")
	issue := func(life time.Duration) {
		cert, key, err := b.ca.Issue(trust.Identity{World: "gw.test", Role: trust.RoleController, ID: "eu-west/1"}, nil, nil, b.now, life)
		must(b.t, err)
		must(b.t, os.WriteFile(certFile, cert, 0o600))
		must(b.t, os.WriteFile(keyFile, key, 0o600))
	}
	issue(life)
	s, err := trust.LoadSigner(certFile, keyFile)
	must(b.t, err)
	return s, func(life time.Duration) {
		issue(life)
		if changed, err := s.Reload(b.now); !changed || err != nil {
			b.t.Fatalf("the renewed certificate was not taken: %v, %v", changed, err)
		}
	}
}

// A controller whose certificate is renewed while it runs signs everything anew that it shows: who starts later must be
// able to verify it. Certificates of a day are as good as those of a year.
func TestWhatAControllerShowsIsSignedAnewAfterARenewal(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var renew func(time.Duration)
	b.signer_, renew = b.signerFrom(24 * time.Hour)
	c, end := b.incumbent(b.global.Join())
	defer end()
	b.publishDirect(c.Controller, 2)
	b.beat(c.Controller)
	c.ledger.add([]cells.Evacuation{{Form: 1, Cell: "eu-west/a", Reason: "r", Started: b.now, Expires: b.now.Add(72 * time.Hour)}},
		[]denylist.Entry{{Kind: denylist.User, ID: "alice", Reason: "r", At: b.now, Expires: b.now.Add(72 * time.Hour)}}, b.now)
	var lists shownDenials
	var topology posted
	show := func() (until [3]time.Time, target, plan time.Time) {
		must(t, c.stepRollout(t.Context()))
		in, err := c.steerInputs(t.Context(), c.Epoch, b.now)
		must(t, err)
		_, err = c.stepPlan(t.Context(), in, b.now, false)
		must(t, err)
		must(t, errors.Join(c.postOverrides(true), lists.post(c.Controller, b.now), c.postSigned(fleet.Mail{Kind: fleet.KindTopology}, trust.KindTopology, c.opt.Topology, &topology)))
		e, err := b.global.Get(t.Context(), store.KeyTarget("eu-west"))
		must(t, err)
		return [3]time.Time{c.postedOverrides.until, lists.until, topology.until}, trust.Until(e.Value), trust.Until(b.storedPlan(c).envelope)
	}
	show()
	b.now = b.now.Add(16 * time.Hour)
	first, target, plan := show()
	renew(24 * time.Hour)
	ends := c.opt.Signer.Expires()
	for range 2 {
		after, newTarget, newPlan := show()
		if after != [3]time.Time{ends, ends, ends} || after == first {
			t.Errorf("orders, denylist, topology: verifiable until %v, the certificate ends %v", after, ends)
		}
		if !newTarget.Equal(ends) || !newPlan.Equal(ends) {
			t.Errorf("target until %v (was %v), plan until %v (was %v), the certificate ends %v", newTarget, target, newPlan, plan, ends)
		}
	}
	at, err := b.global.Get(t.Context(), store.KeyTarget("eu-west"))
	must(t, err)
	show()
	if again, err := b.global.Get(t.Context(), store.KeyTarget("eu-west")); err != nil || again.Modified != at.Modified {
		t.Errorf("it is signed again and again: %v", err)
	}
}
