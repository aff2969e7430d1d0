package callers

import (
	"cmp"
	"crypto/rand"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/identity"
	"github.com/cellgate/cellgate/proxy/memo"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/snapshot"
)

// vouched are the tokens that a node has signed, by upstream and everything that they say.
const vouched, vouchedBytes = 1 << 15, 32 << 20

// Tokens signs what upstreams are told of callers. At the bound a token gives way to another one and is signed again.
type Tokens struct {
	secrets *secrets.Store
	signed  *memo.Table[string]
}

var _ identity.Voucher = (*Tokens)(nil)

// NewTokens takes the private keys from the node's secrets.
func NewTokens(store *secrets.Store) *Tokens {
	return &Tokens{store, memo.New[string](vouched, vouchedBytes)}
}

// Vouch implements identity.Voucher. It signs on the request's way: that costs less than the caller's own token did, which was verified
// there, too, and is done once in 45 seconds for each caller and upstream.
func (t *Tokens) Vouch(dst []byte, keys []snapshot.IdentityKey, to *snapshot.Upstream, tenant string, told identity.Told, now time.Time) []byte {
	k := snapshot.Signing(keys, now)
	if k == nil {
		return dst
	}
	secret, signer := t.signer(k)
	if signer == nil {
		return dst
	}
	audience, issuer := cmp.Or(to.IdentityToken.Audience, to.ID), cmp.Or(to.IdentityToken.Issuer, snapshot.DefaultIdentityIssuer)
	h := memo.NewHash(tenant)
	h.Text(audience).Text(issuer).Text(k.ID).Bytes(secret.Digest[:]).Text(told.User).Text(told.Issuer).Text(told.Consumer)
	if f := told.Facts; f != nil {
		h.Text(f.ClientID)
		for _, s := range f.Scopes {
			h.Text(s)
		}
	}
	key := h.Key()
	if token, holds := t.signed.Get(key, now.UnixNano()); holds {
		return http1.AppendLine(dst, "X-Caller-Token", *token)
	}
	token, until, err := signer.Sign(k.ID, issuer, audience, tenant, told, now, rand.Reader)
	if err != nil {
		return dst
	}
	if use := now.Add(identity.TokenUse); use.Before(until) {
		until = use
	}
	t.signed.Put(key, token, 128+len(token), until.UnixNano(), now.UnixNano())
	return http1.AppendLine(dst, "X-Caller-Token", token)
}

func (t *Tokens) signer(k *snapshot.IdentityKey) (*secrets.Secret, *identity.Signer) {
	secret := t.secrets.Get("", k.File) // one without a tenant: it signs for all
	if secret == nil {
		return nil, nil
	}
	signer, _ := secret.Value.(*identity.Signer)
	return secret, signer
}

// KeySet implements identity.Voucher: the public keys of all, those too that don't sign yet (RFC 7517).
func (t *Tokens) KeySet(keys []snapshot.IdentityKey) string {
	set := []byte(`{"keys":[`)
	for i := range keys {
		if _, signer := t.signer(&keys[i]); signer != nil {
			if set[len(set)-1] == '}' {
				set = append(set, ',')
			}
			set = signer.AppendJWK(set, keys[i].ID)
		}
	}
	return string(append(set, "]}\n"...))
}

// identityKey needs a file with a private key.
func identityKey(name string) secrets.Need {
	return secrets.Need{Name: name, Kind: "an identity key", Read: func(raw []byte) (any, error) { return identity.ParseSigner(raw) }}
}
