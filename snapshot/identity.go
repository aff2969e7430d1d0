package snapshot

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/cellgate/cellgate/problem"
	"go.yaml.in/yaml/v3"
)

// IdentityKey signs what upstreams are told of callers (G7). Its public half is there to be fetched as soon as it is in a document.
type IdentityKey struct {
	ID string `json:"id"` // the tokens' kid
	// File names a file in the node's directory of secrets.
	File string `json:"file"`
	// SignFrom is when it begins to sign; zero = it is the first.
	SignFrom time.Time `json:"sign_from,omitzero"`
}

// IdentityToken tells an upstream who calls by a signed token.
type IdentityToken struct {
	Issuer   string `json:"issuer,omitempty"`   // empty = DefaultIdentityIssuer
	Audience string `json:"audience,omitempty"` // empty = the upstream's id
}

// DefaultIdentityIssuer is the issuer of an upstream's tokens that declares none.
const DefaultIdentityIssuer = "cellgate"

const maxIdentityKeys = 16

// sinceIdentity is the least form of reader that signs: an older one would tell upstreams nothing, in silence.
const sinceIdentity = 9

// Signing is the key that signs at a time: the one that has begun last; before any has, the one that begins first.
func Signing(keys []IdentityKey, now time.Time) *IdentityKey {
	var best *IdentityKey
	for i := range keys {
		k := &keys[i]
		switch {
		case best == nil, k.SignFrom.After(now) && k.SignFrom.Before(best.SignFrom),
			!k.SignFrom.After(now) && (best.SignFrom.After(now) || !k.SignFrom.Before(best.SignFrom)):
			best = k
		}
	}
	return best
}

func (d *decoder) identityKey(n *yaml.Node, s spot, p *at) {
	o, ok := d.object(n, p, []string{"id", "file", "sign_from"})
	if !ok {
		return
	}
	o.needs("a file in the node's directory of secrets, with a private key in PEM", "file")
	k := IdentityKey{File: o.secret("file")}
	if !SecretFor("", k.File) {
		o.wrong("file", strconv.Quote(k.File)+" is a tenant's", "the key signs for all tenants: put it directly into the directory of secrets")
	}
	k.ID, ok = d.id(o, kindIdentityKey, s)
	if text := o.string("sign_from"); text != "" {
		var err error
		if k.SignFrom, err = time.Parse(time.RFC3339, text); err != nil || k.SignFrom.Unix() <= 0 {
			o.wrong("sign_from", strconv.Quote(clip(text))+" is not a time", "such as 2026-12-01T00:00:00Z")
		}
		k.SignFrom = k.SignFrom.UTC().Truncate(time.Second)
	}
	if len(d.cfg.IdentityKeys) == maxIdentityKeys {
		d.wrong(o.line, p, "is one key too many", "take out those that sign no more; at most "+strconv.Itoa(maxIdentityKeys))
	}
	if ok {
		d.cfg.IdentityKeys = append(d.cfg.IdentityKeys, k)
	}
}

func (d *decoder) identityToken(o object, u *Upstream) {
	n := o.get("identity_token")
	if n == nil {
		return
	}
	in, ok := d.object(n, o.at.child("identity_token"), []string{"issuer", "audience"})
	if !ok {
		return
	}
	u.IdentityToken = &IdentityToken{Issuer: in.string("issuer"), Audience: in.string("audience")}
	if u.IdentityToken.Issuer == DefaultIdentityIssuer {
		u.IdentityToken.Issuer = ""
	}
	if u.IdentityToken.Audience == u.ID {
		u.IdentityToken.Audience = ""
	}
}

// signs reports upstreams that want tokens which nobody signs, and one audience of two upstreams: the token of one would be good at
// the other.
func (d *decoder) signs() {
	audiences := map[string]string{}
	for i := range d.cfg.Upstreams {
		u := &d.cfg.Upstreams[i]
		if u.IdentityToken == nil {
			continue
		}
		s := d.ids[name{kindUpstream, u.ID}]
		wrong := func(key, message, hint string) {
			d.add(problem.Problem{File: s.file, Line: s.line, Path: s.path() + key, Message: message, Hint: hint})
		}
		if len(d.cfg.IdentityKeys) == 0 {
			wrong(".identity_token", "has nobody to sign it", "define a key under identity_keys")
		}
		audience := cmp.Or(u.IdentityToken.Audience, u.ID)
		if other := audiences[audience]; other != "" {
			wrong(".identity_token.audience", strconv.Quote(clip(audience))+" is that of upstream "+strconv.Quote(other)+" too, where its tokens would be good", "give each an audience of its own")
		}
		audiences[audience] = u.ID
	}
}

func sortIdentityKeys(keys []IdentityKey) {
	slices.SortFunc(keys, func(a, b IdentityKey) int { return cmp.Compare(a.ID, b.ID) })
}

type docIdentityKey struct {
	ID       string `yaml:"id"`
	File     string `yaml:"file"`
	SignFrom string `yaml:"sign_from,omitempty"`
}

type docIdentityToken struct {
	Issuer   string `yaml:"issuer,omitempty"`
	Audience string `yaml:"audience,omitempty"`
}

func formatIdentityKey(k *IdentityKey) docIdentityKey {
	d := docIdentityKey{ID: k.ID, File: k.File}
	if !k.SignFrom.IsZero() {
		d.SignFrom = k.SignFrom.Format(time.RFC3339)
	}
	return d
}
