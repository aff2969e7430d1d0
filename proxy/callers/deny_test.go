package callers

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/reason"
)

// A denial holds from the next request on, also for a caller whose token was verified long ago, and ends as cleanly.
func TestTheDenylistCountsBeforeAnythingRemembered(t *testing.T) {
	p, i := theProgram(t), newIssuer(t)
	a := NewAuthenticator(Sources{Keys: &provider{keys: i.keys}}, start)
	now := start.Add(time.Second)
	token := i.token("k", now.Add(time.Hour))
	byToken := proxy.Credentials{Program: p, Policy: &p.Policies[1], Tenant: "t", Authorization: token}
	byKey := proxy.Credentials{Program: p, Policy: &p.Policies[2], Tenant: "t", APIKey: []byte("cg_acme")}
	ask := func(c proxy.Credentials, want reason.Reason) {
		t.Helper()
		var id proxy.Identity
		if why, _ := a.Authenticate(&c, &id, now); why != want || c.APIKey == nil && id.User != "alice" {
			t.Errorf("%q, identity %+v; want %q", why, id, want)
		}
	}
	known := func() bool {
		_, ok := a.cache.Get("t", p.Verifier("jwt"), i.keys, token[len("Bearer "):], now)
		return ok
	}
	ask(byToken, reason.None)
	ask(byKey, reason.None)
	if !known() {
		t.Fatal("the token is not remembered")
	}
	for name, c := range map[string]struct {
		entry        denylist.Entry
		token, byKey reason.Reason
	}{
		"user":           {denylist.Entry{Kind: denylist.User, ID: "alice"}, reason.Denied, reason.None},
		"user of issuer": {denylist.Entry{Kind: denylist.User, ID: "alice", Issuer: "i"}, reason.Denied, reason.None},
		"other issuer":   {denylist.Entry{Kind: denylist.User, ID: "alice", Issuer: "j"}, reason.None, reason.None},
		"token id":       {denylist.Entry{Kind: denylist.Token, ID: "alices-token"}, reason.Denied, reason.None},
		"key":            {denylist.Entry{Kind: denylist.Key, ID: auth.HashKey("cg_acme")}, reason.None, reason.Denied},
	} {
		a.Deny(denylist.Compile([]denylist.Entry{c.entry}))
		if c.token == reason.Denied && known() {
			t.Errorf("%s: the token is still remembered after the push", name)
		}
		for range 2 { // verified anew, then remembered
			ask(byToken, c.token)
			ask(byKey, c.byKey)
		}
		a.Deny(nil)
		ask(byToken, reason.None)
		ask(byKey, reason.None)
	}
	a.Deny(denylist.Compile([]denylist.Entry{{Kind: denylist.User, ID: "mallory"}}))
	ask(byToken, reason.None)
	if n := testing.AllocsPerRun(100, func() { var id proxy.Identity; a.Authenticate(&byToken, &id, now) }); n > 0 {
		t.Errorf("a known token costs %v allocations while somebody is denied", n)
	}
}
