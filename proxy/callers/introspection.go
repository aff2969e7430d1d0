package callers

import (
	"context"
	"errors"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/memo"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Sizes of what a node remembers of opaque tokens. Those that are refused have a table of their own, so that made-up ones push
// nobody out.
const (
	grants, grantBytes   = 1 << 14, 32 << 20
	refusals, refusalRAM = 1 << 14, 1 << 20
)

// grant is what a provider said of an active token.
type grant struct {
	result auth.Result
	fresh  int64        // Unix ns: until then nobody is asked
	early  atomic.Int64 // Unix ns: from then on the provider is asked beside the path, so that nobody waits
	step   int64        // ns between two tries of that
}

// opaqueTokens are those that providers were asked about.
type opaqueTokens struct {
	services *ask.Services
	secrets  *secrets.Store
	granted  *memo.Table[*grant]
	refused  *memo.Table[reason.Reason]
}

func newOpaqueTokens(services *ask.Services, store *secrets.Store) opaqueTokens {
	return opaqueTokens{services, store, memo.New[*grant](grants, grantBytes), memo.New[reason.Reason](refusals, refusalRAM)}
}

// opaque finds whose a token is by what the provider said of it, or asks the provider.
func (a *Authenticator) opaque(c *proxy.Credentials, id *proxy.Identity, now time.Time) (reason.Reason, <-chan struct{}) {
	token, ok := bearer(c.Authorization)
	if !ok {
		return reason.TokenMissing, nil
	}
	v := c.Program.Introspector(c.Policy.ID)
	if v == nil {
		return reason.AuthUnavailable, nil
	}
	if !auth.Opaque(token) {
		return reason.TokenInvalid, nil
	}
	h := memo.NewHash(c.Tenant)
	key := h.Text(v.Print()).Bytes(token).Key()
	g, holds := a.tokens.granted.Get(key, now.UnixNano())
	if holds && now.UnixNano() < (*g).fresh {
		if (*g).due(now) {
			a.tokens.ask(v, key, string(token), c, true)
		}
		return a.admit(c, id, (*g).result), nil
	}
	if why, holds := a.tokens.refused.Get(key, now.UnixNano()); holds {
		return *why, nil
	}
	if c.Asked == nil {
		if c.Asked = a.tokens.ask(v, key, string(token), c, g != nil); c.Asked != nil {
			c.Fresh = true
			return reason.AuthUnavailable, c.Asked.Done()
		}
	} else if r, ok := c.Asked.Answer(); ok {
		return a.admit(c, id, r), nil
	}
	if holds {
		return a.admit(c, id, (*g).result), nil // stale_ok: the provider gives no answer
	}
	return reason.AuthUnavailable, nil
}

// due says, once in a while, that the answer is to be renewed.
func (g *grant) due(now time.Time) bool {
	early := g.early.Load()
	return now.UnixNano() >= early && g.early.CompareAndSwap(early, now.UnixNano()+g.step)
}

// admit lets the caller in, unless he lacks the certificate that his token is bound to, or operators have shut him out.
func (a *Authenticator) admit(c *proxy.Credentials, id *proxy.Identity, r auth.Result) reason.Reason {
	if r.Identity != nil && !c.Certificate.Proves(r.Identity) {
		return reason.TokenUnproven
	}
	if r.Identity != nil {
		c.Caller = r.Identity
		id.User, id.Consumer, id.Issuer, id.Facts = r.Identity.Subject, r.Identity.Consumer, r.Identity.Issuer, r.Identity
	}
	if a.shutOut(r.Identity) {
		return reason.Denied
	}
	return r.Reason
}

// ask puts the question to the provider; nil means that it can't be put now.
func (o *opaqueTokens) ask(v *auth.Introspector, key memo.Key, token string, c *proxy.Credentials, known bool) *ask.Flight[auth.Result] {
	rule := v.Rule()
	if o.services == nil || o.secrets == nil {
		return nil
	}
	secret := o.secrets.Get(c.Tenant, rule.ClientSecretFile)
	if secret == nil {
		return nil
	}
	shown, ok := secret.Value.(string)
	if !ok { // a newer program takes the file for something else
		return nil
	}
	s := ask.Of[auth.Result](o.services, askRule("introspection", rule.URL, rule.Remote))
	if s == nil {
		return nil
	}
	q := ask.Question{Key: key, Source: c.Peer, Known: known, Make: func(ctx context.Context, to string) (*http.Request, error) {
		return introspection(ctx, to, token, rule.ClientID, shown)
	}}
	return s.Ask(q, func(status int, header http.Header, body []byte, now time.Time) (auth.Result, error) {
		if status != http.StatusOK || !isJSON(header) {
			return auth.Result{}, errStatus
		}
		r, err := v.Judge(body, now)
		if err == nil {
			o.keep(key, r, rule, len(body), now)
		}
		return r, err
	})
}

var errStatus = errors.New("callers: the service did not answer 200 with JSON")

func isJSON(h http.Header) bool {
	t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
	return err == nil && (t == "application/json" || strings.HasSuffix(t, "+json"))
}

func askRule(kind, url string, r snapshot.Remote) ask.Rule {
	r = r.OrDefault()
	return ask.Rule{Kind: kind, URL: url, Timeout: r.Timeout, InFlight: r.InFlight, PerSecond: r.PerSecond}
}

// introspection is the question of RFC 7662, section 2.1, by a client that shows its secret as RFC 6749, section 2.3.1, says.
func introspection(ctx context.Context, to, token, client, secret string) (*http.Request, error) {
	form := url.Values{"token": {token}, "token_type_hint": {"access_token"}}.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, strings.NewReader(form))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.SetBasicAuth(url.QueryEscape(client), url.QueryEscape(secret))
	return req, nil
}

// keep remembers what the provider said: who is let in until he must be asked about again, and for longer if the policy goes on
// with what was right, never beyond the token's end; who is not for a shorter time.
func (o *opaqueTokens) keep(key memo.Key, r auth.Result, rule snapshot.Introspection, size int, now time.Time) {
	at := now.UnixNano()
	if r.Identity == nil {
		o.granted.Drop(key)
		o.refused.Put(key, r.Reason, 64, at+rule.NegativeTTL.Nanoseconds(), at)
		return
	}
	fresh := at + rule.TTL.Nanoseconds()
	until := fresh + rule.StaleOK.Nanoseconds()
	if end := r.Identity.Until; !end.IsZero() {
		fresh, until = min(fresh, end.UnixNano()), min(until, end.UnixNano())
	}
	g := &grant{result: r, fresh: fresh, step: max(1, (fresh-at)/20)}
	g.early.Store(at + (fresh-at)*4/5)
	o.refused.Drop(key)
	o.granted.Put(key, g, 256+4*size, until, at)
}
