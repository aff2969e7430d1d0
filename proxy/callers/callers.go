// Package callers answers the pipeline's two questions about callers, over what the node remembers of them across
// snapshots: who is it (proxy.Authenticator), and may it make one more request (proxy.Limiter).
package callers

import (
	"bytes"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/limit"
	"github.com/cellgate/cellgate/proxy/memo"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// KeySets gives the providers' keys; proxy/jwks does.
type KeySets interface {
	Keys(url string) *auth.Keys
	// Refetch is the shared wait for newer keys; nil when waiting is of no use.
	Refetch(url string) <-chan struct{}
}

// Sizes of what a node remembers.
const (
	tokens  = 1 << 16
	sources = 1 << 12
)

// Authenticator judges credentials under the policies of the program that routed the request.
type Authenticator struct {
	keys    KeySets
	secrets *secrets.Store // nil = none
	cache   *auth.Cache
	forged  *limit.Table // bad signatures by source
	budget  limit.Limit
	start   time.Time
	denied  atomic.Pointer[denylist.Set]
	tokens  opaqueTokens
	opened  *memo.Table[auth.Result] // cookies of sessions
	issued  issuedKeys
}

var _ proxy.Authenticator = (*Authenticator)(nil)

// Sources are what an Authenticator asks. One that is nil has nothing: policies that need it answer auth_unavailable.
type Sources struct {
	Keys     KeySets
	Services *ask.Services
	Secrets  *secrets.Store
}

// NewAuthenticator takes what is asked. A source may send 20 bad signatures a second, 100 at once, before the
// tokens of it that are not known yet are refused without computing a signature; loopback is exempt.
func NewAuthenticator(from Sources, start time.Time) *Authenticator {
	return &Authenticator{keys: from.Keys, secrets: from.Secrets, tokens: newOpaqueTokens(from.Services, from.Secrets), issued: newIssuedKeys(from.Services), opened: newSessions(), cache: auth.NewCache(tokens), forged: limit.New(sources), budget: limit.PerSecond(20, 100), start: start}
}

// Authenticate implements proxy.Authenticator.
func (a *Authenticator) Authenticate(c *proxy.Credentials, id *proxy.Identity, now time.Time) (reason.Reason, <-chan struct{}) {
	*id = proxy.Identity{}
	switch {
	case c.Caller != nil:
		return a.admit(c, id, auth.Result{Identity: c.Caller}), nil
	case c.Policy.JWT != nil:
		return a.token(c, id, now)
	case c.Policy.APIKey != nil:
		return a.key(c, id, now)
	case c.Policy.Introspection != nil:
		return a.opaque(c, id, now)
	case c.Policy.Session != nil:
		return a.session(c, id, now), nil
	case c.Policy.MTLS != nil:
		return a.certificate(c, id, now), nil
	}
	return reason.AuthUnavailable, nil
}

// Foresee implements proxy.Authenticator.
func (a *Authenticator) Foresee(c *proxy.Credentials) {
	if c.Ahead.Begun() {
		c.Ahead.Step()
	} else if token, ok := bearer(c.Authorization); ok {
		c.Ahead = a.cache.Ahead(token)
	}
}

func (a *Authenticator) token(c *proxy.Credentials, id *proxy.Identity, now time.Time) (reason.Reason, <-chan struct{}) {
	token, ok := bearer(c.Authorization)
	if !ok {
		return reason.TokenMissing, nil
	}
	v := c.Program.Verifier(c.Policy.ID)
	if v == nil {
		return reason.AuthUnavailable, nil
	}
	keys := a.keys.Keys(c.Policy.JWT.JWKS)
	if keys == nil {
		return reason.AuthUnavailable, a.keys.Refetch(c.Policy.JWT.JWKS)
	}
	if !c.Ahead.Begun() {
		c.Ahead = a.cache.Ahead(token)
	}
	r, known := c.Ahead.Get(c.Tenant, v, keys, token, now)
	if c.Fresh = !known; !known {
		r = a.verify(c, v, keys, string(token), now)
	}
	why := a.admit(c, id, r)
	if r.UnknownKey {
		return why, a.keys.Refetch(c.Policy.JWT.JWKS)
	}
	return why, nil
}

// Deny replaces the list of callers that are refused, and forgets what was remembered of them. It holds from the next
// request on, whatever is remembered: the list is asked each time.
func (a *Authenticator) Deny(set *denylist.Set) {
	a.denied.Store(set)
	if set != nil {
		a.cache.Forget(a.shutOut)
		a.opened.Forget(func(r *auth.Result) bool { return a.shutOut(r.Identity) })
		a.tokens.granted.Forget(func(g **grant) bool { return a.shutOut((*g).result.Identity) })
		a.issued.forget()
	}
}

// shutOut says whether a verified caller is on the denylist.
func (a *Authenticator) shutOut(id *auth.Identity) bool {
	set := a.denied.Load()
	return set != nil && id != nil && (set.User(id.Issuer, id.Subject) || set.Token(id.Issuer, id.TokenID))
}

// verify does the work for a token that is not known yet, within the bad-signature budget of its source.
func (a *Authenticator) verify(c *proxy.Credentials, v *auth.Verifier, keys *auth.Keys, token string, now time.Time) auth.Result {
	source := a.forged.Key(limit.Forgery, "", "", ask.Prefix(c.Peer))
	at := now.Sub(a.start).Nanoseconds()
	if a.forged.Refuses(source, a.budget, at) && !c.Peer.Unmap().IsLoopback() {
		return auth.Result{Reason: reason.TokenInvalid}
	}
	r := v.Verify(token, keys, now)
	if r.Forged {
		a.forged.Take(source, a.budget, at)
	}
	a.cache.Put(c.Tenant, v, keys, token, r, now)
	return r
}

// bearer takes the token out of an Authorization header (RFC 6750 section 2.1; the scheme in any case).
func bearer(header []byte) (token []byte, ok bool) {
	const scheme = "bearer "
	if len(header) <= len(scheme) || !bytes.EqualFold(header[:len(scheme)], []byte(scheme)) {
		return nil, false
	}
	token = bytes.TrimLeft(header[len(scheme):], " ")
	return token, len(token) > 0
}

// Providers lists the key set URLs that the policies name.
func Providers(policies []snapshot.Policy) (urls []string) {
	for _, p := range policies {
		if p.JWT != nil {
			urls = append(urls, p.JWT.JWKS)
		}
	}
	return urls
}
