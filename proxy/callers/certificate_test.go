package callers

import (
	"crypto/x509"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/testpki"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// other is the same file as a newer program takes it.
func other(name string) []secrets.Need {
	return []secrets.Need{{Name: name, Kind: "something else", Read: func([]byte) (any, error) { return 7, nil }}}
}

func TestCertificatesAreHeldToTheFilesOfTheNode(t *testing.T) {
	ca, dir := testpki.New(t, "Partners"), t.TempDir()
	pair := ca.Issue(t, testpki.Leaf{DNS: []string{"a.example"}})
	put := func(list string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "f"), []byte(list), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(ca.Revoke(t, start.Add(time.Hour), nil))
	policies := []snapshot.Policy{{ID: "partners", MTLS: &snapshot.MTLS{CA: ca.PEM, Names: []snapshot.CertificateName{{DNS: "a.example"}}, CRLFiles: []string{"f"}}}}
	identity, err := program.CompileIdentity(policies, nil)
	if err != nil {
		t.Fatal(err)
	}
	store := secrets.New(dir, slog.New(slog.DiscardHandler))
	if err := store.Want(Needs(policies)); err != nil {
		t.Fatal(err)
	}
	a := NewAuthenticator(Sources{Secrets: store}, start)
	c := &proxy.Credentials{Program: &program.Program{Policies: policies, Identity: identity}, Policy: &policies[0], Tenant: "t", Certificate: auth.NewShown("", []*x509.Certificate{pair.Leaf})}
	var id proxy.Identity
	says := func(a *Authenticator, want reason.Reason) {
		t.Helper()
		c.Caller = nil
		if why, wait := a.Authenticate(c, &id, start); why != want || wait != nil || (id.User == "a.example") != (want == reason.None) {
			t.Errorf("%v %+v, want %v", why, id, want)
		}
	}
	says(a, reason.None)
	if n := testing.AllocsPerRun(100, func() { c.Caller = nil; a.Authenticate(c, &id, start) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	put(ca.Revoke(t, start.Add(time.Hour), nil, pair))
	store.Reload()
	says(a, reason.CertificateRevoked)
	if err := store.Want(other("f")); err != nil {
		t.Fatal(err)
	}
	says(a, reason.AuthUnavailable)
	says(NewAuthenticator(Sources{}, start), reason.AuthUnavailable)
}
