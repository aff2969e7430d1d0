package callers

import (
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/memo"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/proxy/session"
	"github.com/cellgate/cellgate/reason"
)

// sessions are the cookies that a node has opened. Only good ones are kept, so that strangers can't fill the table.
const sessions, sessionBytes = 1 << 16, 32 << 20

func newSessions() *memo.Table[auth.Result] { return memo.New[auth.Result](sessions, sessionBytes) }

// session opens the cookie, unless it is known. What a page of another site has made a browser send is refused unopened.
func (a *Authenticator) session(c *proxy.Credentials, id *proxy.Identity, now time.Time) reason.Reason {
	v := c.Program.Sessions(c.Policy.ID)
	switch {
	case c.Session.Cookie == nil:
		return reason.TokenMissing
	case c.Session.Twice:
		return reason.TokenInvalid
	case c.Session.CrossSite:
		return reason.CrossSite
	case v == nil || a.tokens.secrets == nil:
		return reason.AuthUnavailable
	}
	secret := a.tokens.secrets.Get(c.Tenant, c.Policy.Session.KeysFile)
	if secret == nil {
		return reason.AuthUnavailable
	}
	keys, ok := secret.Value.(*session.Keys)
	if !ok {
		return reason.AuthUnavailable
	}
	h := memo.NewHash(c.Tenant)
	key := h.Text(v.Print()).Bytes(secret.Digest[:]).Bytes(c.Session.Cookie).Key()
	if r, holds := a.opened.Get(key, now.UnixNano()); holds {
		return a.admit(c, id, *r)
	}
	c.Fresh = true
	return a.admit(c, id, a.open(c, v, keys, key, now))
}

func (a *Authenticator) open(c *proxy.Credentials, v *auth.Sessions, keys *session.Keys, key memo.Key, now time.Time) auth.Result {
	s := session.Scope{Tenant: c.Tenant, Policy: c.Policy.ID, Cookie: c.Policy.Session.Cookie, Encrypted: !c.Policy.Session.Signed}
	claims, ok := keys.Open(s, string(c.Session.Cookie))
	if !ok {
		return auth.Result{Reason: reason.TokenInvalid}
	}
	r := v.Judge(claims, now)
	if r.Identity != nil {
		a.opened.Put(key, r, 256+4*len(claims), r.Identity.Until.UnixNano(), now.UnixNano())
	}
	return r
}

// sessionKeys needs a file of keys.
func sessionKeys(name string) secrets.Need {
	return secrets.Need{Name: name, Kind: "keys of sessions", Read: func(raw []byte) (any, error) { return session.ParseKeys(raw) }}
}
