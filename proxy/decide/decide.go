// Package decide asks a service whether a request may pass, where the route's policy says so (G6).
//
//	d := decide.New(services, secrets)
//	why, wait := d.Decide(&c, now)      // wait != nil: park, and ask again with the same Case when it is closed
//	d.Purge()                           // with every push of denials
//
// An answer is remembered only where the policy declares max_stale, by the hash of the tenant, the policies of the program and
// every input. At the bound an answer gives way to another one and is asked for again.
package decide

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"mime"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/memo"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

const places, room = 1 << 14, 4 << 20

// Decisions is safe for concurrent use. Nil decides nothing: whatever needs a decision is refused.
type Decisions struct {
	services *ask.Services
	secrets  *secrets.Store
	known    *memo.Table[bool]
}

// New makes it.
func New(services *ask.Services, store *secrets.Store) *Decisions {
	return &Decisions{services, store, memo.New[bool](places, room)}
}

// Purge forgets every answer.
func (d *Decisions) Purge() { d.known.Forget(nil) }

// Case is one request. Its strings and fields are valid during the call only.
type Case struct {
	Policy   *snapshot.Decision
	Policies string // digest of all policies of the program
	Head     *http1.Head
	Peer     netip.Addr

	Tenant, Route, Method, Host, Path, Query, Client, User, Consumer, Issuer string
	Facts                                                                    *auth.Identity // nil = no scopes

	Asked *ask.Flight[bool] // what the exchange has waited for
}

// Decide says why the request may not pass; reason.None = it may. A non-nil wait means that the service is asked.
func (d *Decisions) Decide(c *Case, now time.Time) (reason.Reason, <-chan struct{}) {
	if d == nil {
		return reason.DecisionUnavailable, nil
	}
	if c.Asked != nil {
		allow, ok := c.Asked.Answer()
		return Verdict(allow, ok), nil
	}
	key := c.key()
	if allow, holds := d.known.Get(key, now.UnixNano()); c.Policy.MaxStale > 0 && holds {
		return Verdict(*allow, true), nil
	}
	if c.Asked = d.ask(c, key); c.Asked == nil {
		return reason.DecisionUnavailable, nil
	}
	return reason.DecisionUnavailable, c.Asked.Done()
}

// Verdict is what an answer comes to; ok is false when there is none.
func Verdict(allow, ok bool) reason.Reason {
	switch {
	case !ok:
		return reason.DecisionUnavailable
	case !allow:
		return reason.DecisionDenied
	}
	return reason.None
}

// key is that of everything that the answer depends on.
func (c *Case) key() memo.Key {
	h := memo.NewHash(c.Tenant)
	h.Text(c.Policies).Text(c.Policy.URL)
	for _, in := range c.Policy.Inputs {
		h.Text(in)
		if in == "scopes" && c.Facts != nil {
			for _, s := range c.Facts.Scopes {
				h.Text(s)
			}
		} else if name, ok := strings.CutPrefix(in, snapshot.InputHeader); ok {
			c.each(name, func(v []byte) { h.Bytes(v) })
		} else {
			h.Text(c.value(in))
		}
		h.None() // the end of the input
	}
	return h.Key()
}

// each gives the values of a field in their order.
func (c *Case) each(name string, give func([]byte)) {
	for i := range c.Head.Fields() {
		if f := &c.Head.Fields()[i]; strings.EqualFold(string(c.Head.Name(f)), name) {
			give(c.Head.Value(f))
		}
	}
}

func (c *Case) value(input string) string {
	switch input {
	case "client":
		return c.Client
	case "consumer":
		return c.Consumer
	case "host":
		return c.Host
	case "issuer":
		return c.Issuer
	case "method":
		return c.Method
	case "path":
		return c.Path
	case "query":
		return c.Query
	case "route":
		return c.Route
	case "tenant":
		return c.Tenant
	case "user":
		return c.User
	}
	return ""
}

// body is what the service is told: every input, and nothing else. Scopes and fields are lists.
func (c *Case) body() ([]byte, error) {
	m := map[string]any{}
	for _, in := range c.Policy.Inputs {
		list := []string{}
		switch name, header := strings.CutPrefix(in, snapshot.InputHeader); {
		case header:
			c.each(name, func(v []byte) { list = append(list, string(v)) })
			m[in] = list
		case in == "scopes":
			if c.Facts != nil {
				list = append(list, c.Facts.Scopes...)
			}
			m[in] = list
		default:
			m[in] = c.value(in)
		}
	}
	return json.Marshal(m)
}

var errAnswer = errors.New("decide: the service did not answer 200 with JSON")

// ask puts the question; nil means that it can't be put now.
func (d *Decisions) ask(c *Case, key memo.Key) *ask.Flight[bool] {
	bearer := ""
	if name := c.Policy.SecretFile; name != "" {
		secret := d.secrets.Get(c.Tenant, name)
		if secret == nil {
			return nil
		}
		text, ok := secret.Value.(string)
		if !ok { // a newer program takes the file for something else
			return nil
		}
		bearer = text
	}
	told, err := c.body()
	r := c.Policy.OrDefault()
	s := ask.Of[bool](d.services, ask.Rule{Kind: "decision", URL: c.Policy.URL, Timeout: r.Timeout, InFlight: r.InFlight, PerSecond: r.PerSecond})
	if err != nil || s == nil {
		return nil
	}
	stale := c.Policy.MaxStale.Nanoseconds()
	q := ask.Question{Key: key, Source: c.Peer, Known: c.User != "" || c.Consumer != "", Make: func(ctx context.Context, to string) (*http.Request, error) {
		return question(ctx, to, bearer, told)
	}}
	return s.Ask(q, func(status int, h http.Header, body []byte, now time.Time) (bool, error) {
		t, _, err := mime.ParseMediaType(h.Get("Content-Type"))
		if status != http.StatusOK || err != nil || t != "application/json" {
			return false, errAnswer
		}
		allow, err := auth.Allowed(body)
		if err == nil && stale > 0 {
			d.known.Put(key, allow, 128, now.UnixNano()+stale, now.UnixNano())
		}
		return allow, err
	})
}

func question(ctx context.Context, to, bearer string, told []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(told))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	if bearer != "" {
		req.Header.Set("Authorization", "Bearer "+bearer)
	}
	return req, nil
}
