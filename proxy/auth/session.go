package auth

import (
	"cmp"
	"crypto/sha256"
	"encoding/json"
	"strconv"
	"time"

	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Sessions judges the claims of sessions under one policy. It is immutable.
type Sessions struct {
	policy snapshot.Session
	keeps  []string
	print  string
}

// NewSessions compiles the policy of that id, which is part of what its cookies are bound to. What rules ask for later of the
// claims is kept with the identity.
func NewSessions(id string, p snapshot.Session, keeps ...string) *Sessions {
	content, err := json.Marshal(p)
	if err != nil {
		content = nil // a struct of strings and numbers always encodes
	}
	for _, s := range append([]string{id}, keeps...) {
		content = strconv.AppendQuote(content, s)
	}
	sum := sha256.Sum256(content)
	return &Sessions{policy: p, keeps: keeps, print: string(sum[:])}
}

// Print is 32 bytes that are equal for equal policies.
func (v *Sessions) Print() string { return v.print }

// Judge reads the claims, as they stand in a JWT: exp and iat must be there, within the policy's age.
func (v *Sessions) Judge(claims []byte, now time.Time) Result {
	m, err := object(claims)
	if err != nil {
		return Result{Reason: reason.TokenInvalid}
	}
	if _, bound := m["cnf"]; bound { // what would prove it is not asked for
		return Result{Reason: reason.TokenInvalid}
	}
	id := &Identity{Issuer: v.policy.Issuer}
	if iss, named := m["iss"]; named || v.policy.Issuer != "" {
		if s, ok := iss.(string); !ok || v.policy.Issuer != "" && s != v.policy.Issuer {
			return Result{Reason: reason.TokenInvalid}
		} else {
			id.Issuer = s
		}
	}
	if why := times(m, id, cmp.Or(v.policy.MaxAge, snapshot.DefaultSessionAge), now); why != reason.None {
		return Result{Reason: why}
	}
	if !who(m, v.policy.ConsumerClaim, id) {
		return Result{Reason: reason.TokenInvalid}
	}
	id.Claims = claimsOf(m, v.keeps)
	return Result{Identity: id, Reason: permitted(id, v.policy.Scopes)}
}
