package callers

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/proxy/session"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

func TestSessionsComeToAnIdentityOrAReason(t *testing.T) {
	dir, secret := t.TempDir(), base64.StdEncoding.EncodeToString(make([]byte, 32))
	put := func(file string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "k"), []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := fmt.Sprintf(`{"keys":[{"id":"a","secret":%q}]}`, secret)
	put(file)
	keys, err := session.ParseKeys([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	policies := []snapshot.Policy{
		{ID: "rules", Authz: &snapshot.Authz{Claims: map[string][]string{"level": {"3"}}}},
		{ID: "web", Session: &snapshot.Session{Cookie: "s", KeysFile: "k", Scopes: []string{"orders"}, ConsumerClaim: "org", Issuer: "login"}},
	}
	store := secrets.New(dir, slog.New(slog.DiscardHandler))
	if err := store.Want(Needs(policies)); err != nil {
		t.Fatal(err)
	}
	identity, err := program.CompileIdentity(policies, nil)
	if err != nil {
		t.Fatal(err)
	}
	p, now := &program.Program{Policies: policies, Identity: identity}, start.Add(time.Hour)
	a := NewAuthenticator(Sources{Secrets: store}, start)
	claims := func(scope string, iat, exp time.Duration) string {
		return fmt.Sprintf(`{"iss":"login","sub":"alice","jti":"j","org":"acme","scope":%q,"level":3,"iat":%d,"exp":%d}`, scope, now.Add(iat).Unix(), now.Add(exp).Unix())
	}
	seal := func(claims string) []byte {
		c, err := keys.Seal(session.Scope{Tenant: "t", Policy: "web", Cookie: "s", Encrypted: true}, []byte(claims), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		return []byte(c)
	}
	ask := func(tenant string, s session.Shown) (reason.Reason, proxy.Identity) {
		var id proxy.Identity
		why, wait := a.Authenticate(&proxy.Credentials{Program: p, Policy: &p.Policies[1], Tenant: tenant, Session: s}, &id, now)
		if wait != nil {
			t.Fatal("a session waits")
		}
		return why, id
	}
	good := seal(claims("orders", -time.Minute, time.Hour))
	for name, c := range map[string]struct {
		tenant string
		shown  session.Shown
		want   reason.Reason
	}{
		"good":                {"t", session.Shown{Cookie: good}, reason.None},
		"none":                {"t", session.Shown{}, reason.TokenMissing},
		"two":                 {"t", session.Shown{Cookie: good, Twice: true}, reason.TokenInvalid},
		"from another site":   {"t", session.Shown{Cookie: good, CrossSite: true}, reason.CrossSite},
		"of another tenant":   {"u", session.Shown{Cookie: good}, reason.TokenInvalid},
		"empty":               {"t", session.Shown{Cookie: []byte{}}, reason.TokenInvalid},
		"changed":             {"t", session.Shown{Cookie: append([]byte("f"), good[1:]...)}, reason.TokenInvalid},
		"without its scope":   {"t", session.Shown{Cookie: seal(claims("x", -time.Minute, time.Hour))}, reason.ScopeMissing},
		"over":                {"t", session.Shown{Cookie: seal(claims("orders", -2*time.Hour, -time.Minute))}, reason.TokenExpired},
		"too long a life":     {"t", session.Shown{Cookie: seal(claims("orders", -time.Minute, 13*time.Hour))}, reason.TokenInvalid},
		"without a life":      {"t", session.Shown{Cookie: seal(`{"iss":"login","sub":"alice","org":"acme","scope":"orders"}`)}, reason.TokenInvalid},
		"of another issuer":   {"t", session.Shown{Cookie: seal(`{"iss":"other","sub":"alice","org":"acme","scope":"orders","iat":1,"exp":2}`)}, reason.TokenInvalid},
		"sealed, and no JSON": {"t", session.Shown{Cookie: seal(`alice`)}, reason.TokenInvalid},
	} {
		for range 2 { // also when it is known
			why, id := ask(c.tenant, c.shown)
			if why != c.want || why == reason.None && (id.User != "alice" || id.Consumer != "acme" || id.Issuer != "login" || len(id.Facts.Claims) != 1) {
				t.Errorf("%s: %v %+v, want %v", name, why, id, c.want)
			}
		}
	}
	c := &proxy.Credentials{Program: p, Policy: &p.Policies[1], Tenant: "t", Session: session.Shown{Cookie: good}}
	var id proxy.Identity
	if n := testing.AllocsPerRun(100, func() {
		c.Caller = nil
		_, _ = a.Authenticate(c, &id, now)
	}); n != 0 {
		t.Errorf("%v allocations for a known session", n)
	}
	a.Deny(denylist.Compile([]denylist.Entry{{Kind: denylist.Token, ID: "j"}}))
	if why, _ := ask("t", session.Shown{Cookie: good}); why != reason.Denied {
		t.Errorf("a denied session: %v", why)
	}
	a.Deny(nil)
	put(fmt.Sprintf(`{"keys":[{"id":"b","secret":%q}]}`, secret))
	store.Reload()
	if why, _ := ask("t", session.Shown{Cookie: good}); why != reason.TokenInvalid {
		t.Errorf("a session whose key is gone: %v", why)
	}
}
