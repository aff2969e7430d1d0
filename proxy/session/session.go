// Package session seals the claims of a logged-in user into a cookie that a login service sets and every node opens by itself.
//
//	keys, err := session.ParseKeys(file)                   // {"keys":[{"id":"2026-11","secret":"<32 bytes in base64>"}, …]}
//	cookie, err := keys.Seal(scope, claims, random)        // by the first key; claims are the JSON object of a JWT
//	claims, ok := keys.Open(scope, cookie)                 // by any of them
//	shown := session.Read(&request, name, origins)         // what a request shows, and whether it comes from another site
//
// A cookie is version, key, salt and body, separated by dots, the latter two in base64url: "e1.2026-11.SALT.BODY" is encrypted with
// AES-256-GCM, "s1.2026-11.SALT.BODY" is readable and ends with an HMAC-SHA256. The key of each cookie is derived from the secret
// and its 24 random bytes of salt (HKDF-SHA256, RFC 5869), so no nonce is used twice. Tenant, policy, cookie name and key id are
// bound in: a cookie is good nowhere else.
package session

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Bounds of cookies and keys. Browsers keep 4,096 bytes of a cookie with its name.
const (
	MaxCookie = 4000
	maxKeys   = 16
	secretLen = 32
	saltLen   = 24
)

// Scope is what a cookie is good for.
type Scope struct {
	Tenant, Policy, Cookie string
	Encrypted              bool
}

// Keys seal and open. It is immutable.
type Keys struct{ all []key }

type key struct {
	id     string
	secret []byte
}

var (
	errKeys  = errors.New("session: not a file of keys: {\"keys\":[{\"id\":…,\"secret\":…}]}")
	errLarge = fmt.Errorf("session: the cookie would be longer than %d bytes", MaxCookie)
)

// ParseKeys reads a file of 1 to 16 keys. Its errors hold nothing of it.
func ParseKeys(raw []byte) (*Keys, error) {
	var file struct {
		Keys []struct{ ID, Secret string }
	}
	if err := json.Unmarshal(raw, &file); err != nil || len(file.Keys) == 0 || len(file.Keys) > maxKeys {
		return nil, errKeys
	}
	k := &Keys{}
	for i, one := range file.Keys {
		secret, err := base64.StdEncoding.Strict().DecodeString(one.Secret)
		if err != nil || len(secret) != secretLen {
			return nil, fmt.Errorf("session: key %d has no secret of 32 bytes in base64", i+1)
		}
		if !validID(one.ID) || k.find(one.ID) != nil {
			return nil, fmt.Errorf("session: key %d has no id of its own: letters, digits, '-' and '_', at most 32", i+1)
		}
		k.all = append(k.all, key{one.ID, secret})
	}
	return k, nil
}

func validID(id string) bool {
	return id != "" && len(id) <= 32 && strings.Trim(id, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") == ""
}

func (k *Keys) find(id string) *key {
	for i := range k.all {
		if k.all[i].id == id {
			return &k.all[i]
		}
	}
	return nil
}

// Seal makes a cookie's value of the claims, with salt from random, which must be a cryptographic source.
func (k *Keys) Seal(s Scope, claims []byte, random io.Reader) (string, error) {
	var salt [saltLen]byte
	if _, err := io.ReadFull(random, salt[:]); err != nil {
		return "", fmt.Errorf("session: %w", err)
	}
	first := &k.all[0]
	sealer, bound, err := first.derive(s, salt[:])
	if err != nil {
		return "", err
	}
	var body []byte
	if s.Encrypted {
		gcm, err := newGCM(sealer)
		if err != nil {
			return "", err
		}
		body = gcm.Seal(nil, make([]byte, gcm.NonceSize()), claims, bound)
	} else {
		body = append(append([]byte(nil), claims...), sum(sealer, bound, claims)...)
	}
	enc := base64.RawURLEncoding
	cookie := s.version() + "." + first.id + "." + enc.EncodeToString(salt[:]) + "." + enc.EncodeToString(body)
	if len(cookie)+len(s.Cookie) > MaxCookie {
		return "", errLarge
	}
	return cookie, nil
}

// Open gives the claims of a cookie that one of the keys has sealed for this scope.
func (k *Keys) Open(s Scope, cookie string) (claims []byte, ok bool) {
	part := strings.Split(cookie, ".")
	if len(cookie) > MaxCookie || len(part) != 4 || part[0] != s.version() {
		return nil, false
	}
	one := k.find(part[1])
	salt, err1 := base64.RawURLEncoding.Strict().DecodeString(part[2])
	body, err2 := base64.RawURLEncoding.Strict().DecodeString(part[3])
	if one == nil || err1 != nil || err2 != nil || len(salt) != saltLen || strings.ContainsAny(cookie, "\r\n") {
		return nil, false
	}
	opener, bound, err := one.derive(s, salt)
	if err != nil {
		return nil, false
	}
	if !s.Encrypted {
		n := len(body) - sha256.Size
		if n < 0 || !hmac.Equal(body[n:], sum(opener, bound, body[:n])) {
			return nil, false
		}
		return body[:n], true
	}
	gcm, err := newGCM(opener)
	if err != nil {
		return nil, false
	}
	claims, err = gcm.Open(nil, make([]byte, gcm.NonceSize()), body, bound)
	return claims, err == nil
}

func (s Scope) version() string {
	if s.Encrypted {
		return "e1"
	}
	return "s1"
}

// derive gives the cookie's own key and what it is bound to, each part behind its length.
func (k *key) derive(s Scope, salt []byte) (own, bound []byte, err error) {
	for _, part := range []string{"cellgate session", s.version(), k.id, s.Tenant, s.Policy, s.Cookie} {
		bound = binary.LittleEndian.AppendUint32(bound, uint32(len(part)))
		bound = append(bound, part...)
	}
	if own, err = hkdf.Key(sha256.New, k.secret, salt, string(bound), 32); err != nil {
		return nil, nil, fmt.Errorf("session: %w", err)
	}
	return own, bound, nil
}

func newGCM(key []byte) (cipher.AEAD, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, fmt.Errorf("session: %w", err)
	}
	return cipher.NewGCM(block)
}

func sum(key, bound, claims []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write(bound)
	h.Write(claims)
	return h.Sum(nil)
}
