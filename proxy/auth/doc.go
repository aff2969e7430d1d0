// Package auth decides who is calling: JSON Web Tokens checked locally against a provider's keys, and API keys by hash.
//
//	keys, skipped, err := auth.ParseKeys(document)            // immutable; weak and unusable keys are named, not used
//	v := auth.NewVerifier(policy)
//	if id, why, ok := cache.Get(tenant, v, keys, token, now); ok { … }   // 0 allocations
//	r := v.Verify(token, keys, now)
//	if r.UnknownKey { fetch the keys again, at most once a minute for the whole provider }
//	cache.Put(tenant, v, keys, token, r)
//
// The strict reading of the token is ours (exact base64url, one spelling of each JSON member, a short list of header
// members and algorithms); go-jose then does the cryptography. What fails is refused with a reason, never explained further.
package auth

import "time"

// Skew is how far the issuer's clock and ours may differ in exp, nbf and iat.
const Skew = 30 * time.Second

// MaxToken bounds a token in bytes; a longer one is invalid.
const MaxToken = 8 << 10

// Identity is a caller whose credentials held. It is immutable and shared between requests.
type Identity struct {
	// Subject is the token's sub; empty for an API key.
	Subject string
	// Consumer is the id of the client organisation: the policy's consumer claim, or the owner of the API key.
	Consumer string
	Issuer   string
	// TokenID is the token's jti; empty when it has none.
	TokenID string
	Scopes  []string
	// ClientID is the application that the token was given to: client_id (RFC 9068), else azp; empty when it doesn't say.
	ClientID string
	// Claims are those that the verifier was told to keep, as far as the token has them.
	Claims []Claim
	// Bound is the SHA-256 of the certificate that the client has to show beside the token, 32 bytes; empty = of none.
	Bound string
	// Until is when the credentials stop being accepted, Skew included; zero for an API key, and when nobody has said.
	Until time.Time
}
