package denylist

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
)

// Set answers whether somebody is denied. It is immutable; nil denies nobody. Look-ups don't allocate.
type Set struct {
	users, tokens map[caller]struct{}
	keys          map[uint64][][]byte // by the first 8 bytes of the hash
	routes        map[string]struct{}
}

type caller struct{ issuer, id string }

// Compile makes the set of entries that all deny; nil when there are none.
func Compile(live []Entry) *Set {
	if len(live) == 0 {
		return nil
	}
	s := &Set{users: map[caller]struct{}{}, tokens: map[caller]struct{}{}, keys: map[uint64][][]byte{}, routes: map[string]struct{}{}}
	for _, e := range live {
		switch e.Kind {
		case User:
			s.users[caller{e.Issuer, e.ID}] = struct{}{}
		case Token:
			s.tokens[caller{e.Issuer, e.ID}] = struct{}{}
		case Route:
			s.routes[e.ID] = struct{}{}
		case Key:
			if raw, err := keyBytes(e.ID); err == nil {
				first := binary.BigEndian.Uint64(raw)
				s.keys[first] = append(s.keys[first], raw)
			}
		}
	}
	return s
}

// User says whether the subject of the issuer is denied.
func (s *Set) User(issuer, subject string) bool { return s != nil && has(s.users, issuer, subject) }

// Token says whether the token with the id (jti) of the issuer is denied.
func (s *Set) Token(issuer, id string) bool { return s != nil && has(s.tokens, issuer, id) }

func has(in map[caller]struct{}, issuer, id string) bool {
	if len(in) == 0 || id == "" {
		return false
	}
	if _, ok := in[caller{"", id}]; ok {
		return true
	}
	_, ok := in[caller{issuer, id}]
	return ok
}

// Route says whether the route is denied.
func (s *Set) Route(id string) bool {
	if s == nil {
		return false
	}
	_, ok := s.routes[id]
	return ok
}

// Key says whether the API key is denied. It takes the key as it was sent.
func (s *Set) Key(key []byte) bool {
	if s == nil || len(s.keys) == 0 {
		return false
	}
	sum := sha256.Sum256(key)
	for _, raw := range s.keys[binary.BigEndian.Uint64(sum[:])] {
		if bytes.HasPrefix(sum[:], raw) {
			return true
		}
	}
	return false
}
