package trust

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// files are the certificate files of one process.
type files struct{ cert, key, roots string }

func (f files) put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

func (f files) renew(t *testing.T, ca *CA, role Role, id cells.NodeID, now time.Time, life time.Duration) {
	t.Helper()
	cert, key, err := ca.Issue(Identity{World: ca.World(), Role: role, ID: id}, nil, nil, now, life)
	if err != nil {
		t.Fatal(err)
	}
	f.put(t, f.cert, cert)
	f.put(t, f.key, key)
}

func TestARenewedIdentityIsTakenWithoutARestart(t *testing.T) {
	now := time.Now()
	old, _ := newCA(t, "gw.test", now)
	next, nextRoots := newCA(t, "gw.test", now)
	dir := t.TempDir()
	f := files{filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "roots")}
	f.renew(t, old, RoleController, "eu-west/1", now.Add(-2*time.Hour), time.Hour) // it is over by now
	f.put(t, f.roots, old.CertPEM())
	signer, err := LoadSigner(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := LoadRoots(f.roots)
	if err != nil {
		t.Fatal(err)
	}
	server, client := ServerTLS(signer, roots, RoleProxy), ClientTLS(signer, roots, RoleController)
	node := issue(t, next, RoleProxy, "eu-west/a/1", now, time.Hour)
	peer := issue(t, next, RoleController, "us-east/1", now, time.Hour)
	if _, serr, cerr := shake(t, server, ClientTLS(node, nextRoots, RoleController)); serr == nil && cerr == nil {
		t.Fatal("a handshake across two CAs")
	}

	f.put(t, f.roots, append(old.CertPEM(), next.CertPEM()...))
	f.renew(t, next, RoleController, "eu-west/1", now, 2*time.Hour)
	for name, file := range map[string]interface {
		Reload(time.Time) (bool, error)
	}{"identity": signer, "roots": roots} {
		if changed, err := file.Reload(now); !changed || err != nil {
			t.Fatalf("%s: changed %v, %v", name, changed, err)
		}
		if changed, err := file.Reload(now); changed || err != nil {
			t.Fatalf("%s, at the second look: changed %v, %v", name, changed, err)
		}
	}
	if id, serr, cerr := shake(t, server, ClientTLS(node, nextRoots, RoleController)); serr != nil || cerr != nil || id != node.Identity() {
		t.Errorf("as a server: %v, %v, %v", id, serr, cerr)
	}
	if id, serr, cerr := shake(t, ServerTLS(peer, nextRoots, RoleController), client); serr != nil || cerr != nil || id != signer.Identity() {
		t.Errorf("as a client: %v, %v, %v", id, serr, cerr)
	}
	env, err := signer.Sign(KindPlan, []byte("plan"))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := nextRoots.Verify(KindPlan, env, now, RoleController); err != nil {
		t.Errorf("what is signed: %v", err)
	}
	if signer.Expires().Before(now.Add(time.Hour)) {
		t.Errorf("it says that it ends %v", signer.Expires())
	}
}

func TestOnlyAnHonestRenewalIsTaken(t *testing.T) {
	now := time.Now()
	ca, _ := newCA(t, "gw.test", now)
	foreign, _ := newCA(t, "other.test", now)
	dir := t.TempDir()
	f := files{filepath.Join(dir, "cert"), filepath.Join(dir, "key"), filepath.Join(dir, "roots")}
	f.renew(t, ca, RoleProxy, "eu-west/a/1", now, time.Hour)
	f.put(t, f.roots, ca.CertPEM())
	signer, err := LoadSigner(f.cert, f.key)
	if err != nil {
		t.Fatal(err)
	}
	roots, err := LoadRoots(f.roots)
	if err != nil {
		t.Fatal(err)
	}
	ends := signer.Expires()
	for name, c := range map[string]struct {
		spoil func()
		want  string
	}{
		"another process":   {func() { f.renew(t, ca, RoleProxy, "eu-west/a/2", now, time.Hour) }, "this process is"},
		"another role":      {func() { f.renew(t, ca, RoleController, "eu-west/a/1", now, time.Hour) }, "this process is"},
		"one that is over":  {func() { f.renew(t, ca, RoleProxy, "eu-west/a/1", now.Add(-2*time.Hour), time.Hour) }, "ended at"},
		"half of a pair":    {func() { f.renew(t, ca, RoleProxy, "eu-west/a/1", now, time.Hour); f.put(t, f.key, []byte("-")) }, "no PEM"},
		"a missing file":    {func() { _ = os.Remove(f.cert) }, "no such file"},
		"the CA's own cert": {func() { f.put(t, f.cert, ca.CertPEM()) }, ""},
	} {
		c.spoil()
		if changed, err := signer.Reload(now); changed || err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: changed %v, %v", name, changed, err)
		}
	}
	for name, content := range map[string][]byte{"roots of another world": foreign.CertPEM(), "nothing": nil, "half of it": ca.CertPEM()[:200]} {
		f.put(t, f.roots, content)
		if changed, err := roots.Reload(now); changed || err == nil {
			t.Errorf("%s: changed %v, %v", name, changed, err)
		}
	}
	if !signer.Expires().Equal(ends) || signer.Identity().Role != RoleProxy || roots.World() != "gw.test" {
		t.Error("something was taken")
	}
	env, err := signer.Sign(KindPlan, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := roots.Verify(KindPlan, env, now, RoleProxy); err != nil {
		t.Errorf("the old ones don't work any more: %v", err)
	}
}
