package identity

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode/utf8"
)

// TokenLife is how long a token is good at most (G7), and TokenUse how long it is given to requests: what is left then is for the way
// to the upstream, and for clocks that differ.
const (
	TokenLife = 60 * time.Second
	TokenUse  = 45 * time.Second
)

// TokenType is the typ of the tokens' header, by which nobody takes one for a token of another kind (RFC 8725, section 3.11).
const TokenType = "cellgate-caller+jwt"

// Signer signs tokens with a private key. It is immutable.
type Signer struct {
	key crypto.Signer
	alg string
	jwk string // the members of the public key
}

var errKey = errors.New("identity: not a private key: PEM of PKCS #8 (\"BEGIN PRIVATE KEY\"), Ed25519 or P-256")

// ParseSigner reads a private key. Its errors hold nothing of it.
func ParseSigner(raw []byte) (*Signer, error) {
	block, rest := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" || len(bytes.TrimSpace(rest)) > 0 {
		return nil, errKey
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, errKey
	}
	b64 := base64.RawURLEncoding.EncodeToString
	switch k := parsed.(type) {
	case ed25519.PrivateKey:
		return &Signer{k, "EdDSA", fmt.Sprintf(`"kty":"OKP","crv":"Ed25519","x":%q`, b64(k.Public().(ed25519.PublicKey)))}, nil
	case *ecdsa.PrivateKey:
		point, err := k.PublicKey.Bytes() // 4, x, y
		if err != nil || k.Curve != elliptic.P256() {
			return nil, errKey
		}
		return &Signer{k, "ES256", fmt.Sprintf(`"kty":"EC","crv":"P-256","x":%q,"y":%q`, b64(point[1:33]), b64(point[33:]))}, nil
	}
	return nil, errKey
}

// AppendJWK appends the public key under this id, as a JSON Web Key (RFC 7517).
func (s *Signer) AppendJWK(dst []byte, kid string) []byte {
	return fmt.Appendf(dst, `{"kid":%q,"use":"sig","alg":%q,%s}`, kid, s.alg, s.jwk)
}

// claims are what a token says. Whose word the caller's identity is stands in caller_iss, for iss is the gateway.
type claims struct {
	Issuer       string `json:"iss"`
	Audience     string `json:"aud"`
	Subject      string `json:"sub"`
	IssuedAt     int64  `json:"iat"`
	Expires      int64  `json:"exp"`
	Tenant       string `json:"tenant"`
	User         string `json:"user,omitempty"`
	CallerIssuer string `json:"caller_iss,omitempty"`
	Consumer     string `json:"consumer,omitempty"`
	ClientID     string `json:"client_id,omitempty"`
	Scope        string `json:"scope,omitempty"`
}

var errName = errors.New("identity: something of the caller is no UTF-8")

func (c *claims) valid() bool {
	return utf8.ValidString(c.User) && utf8.ValidString(c.CallerIssuer) && utf8.ValidString(c.Consumer) && utf8.ValidString(c.ClientID) && utf8.ValidString(c.Scope)
}

// Sign makes a token for one upstream, good until the time that it gives, which is never beyond that of the caller's own credentials. A
// caller of whom something is no UTF-8 gets none: JSON can't hold it as it is, and two callers must not become one.
func (s *Signer) Sign(kid, issuer, audience, tenant string, t Told, now time.Time, random io.Reader) (token string, until time.Time, err error) {
	until = now.Add(TokenLife).Truncate(time.Second)
	c := claims{Issuer: issuer, Audience: audience, Subject: cmp.Or(t.User, t.Consumer), IssuedAt: now.Unix(), Tenant: tenant, User: t.User, CallerIssuer: t.Issuer, Consumer: t.Consumer}
	if t.Facts != nil {
		c.ClientID, c.Scope = t.Facts.ClientID, strings.Join(t.Facts.Scopes, " ")
		if end := t.Facts.Until; !end.IsZero() && end.Before(until) {
			until = end
		}
	}
	if !c.valid() {
		return "", until, errName
	}
	c.Expires = until.Unix()
	head, err := json.Marshal(map[string]string{"alg": s.alg, "kid": kid, "typ": TokenType})
	if err != nil {
		return "", until, fmt.Errorf("identity: %w", err)
	}
	body, err := json.Marshal(c)
	if err != nil {
		return "", until, fmt.Errorf("identity: %w", err)
	}
	enc := base64.RawURLEncoding
	signed := enc.EncodeToString(head) + "." + enc.EncodeToString(body)
	sig, err := s.sign([]byte(signed), random)
	if err != nil {
		return "", until, fmt.Errorf("identity: %w", err)
	}
	return signed + "." + enc.EncodeToString(sig), until, nil
}

// sign signs as RFC 7518, section 3.4, and RFC 8037, section 3.1, say.
func (s *Signer) sign(text []byte, random io.Reader) ([]byte, error) {
	k, ok := s.key.(*ecdsa.PrivateKey)
	if !ok {
		return s.key.Sign(random, text, crypto.Hash(0))
	}
	sum := sha256.Sum256(text)
	a, b, err := ecdsa.Sign(random, k, sum[:])
	if err != nil {
		return nil, err
	}
	sig := make([]byte, 64)
	a.FillBytes(sig[:32])
	b.FillBytes(sig[32:])
	return sig, nil
}
