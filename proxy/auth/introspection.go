package auth

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Introspector judges what a provider says of opaque tokens (RFC 7662, section 2.2) under one policy. It is immutable.
type Introspector struct {
	policy snapshot.Introspection
	keeps  []string // claims
	print  string   // of the policy's whole content and what is kept; part of every key
}

// NewIntrospector compiles the policy. What rules ask for later of the claims is kept with the identity.
func NewIntrospector(p snapshot.Introspection, keeps ...string) *Introspector {
	content, err := json.Marshal(p)
	if err != nil {
		content = nil // a struct of strings and numbers always encodes
	}
	for _, claim := range keeps {
		content = strconv.AppendQuote(content, claim)
	}
	sum := sha256.Sum256(content)
	return &Introspector{policy: p, keeps: keeps, print: string(sum[:])}
}

// Print is 32 bytes that are equal for equal policies.
func (v *Introspector) Print() string { return v.print }

// Rule is what the policy asks for, defaults included.
func (v *Introspector) Rule() snapshot.Introspection { return v.policy.OrDefault() }

// Opaque says whether a token can be one: the characters of RFC 6750, section 2.1, at most MaxToken. Others need no question.
func Opaque(token []byte) bool {
	if len(token) == 0 || len(token) > MaxToken {
		return false
	}
	for _, c := range token {
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alnum && strings.IndexByte("-._~+/=", c) < 0 {
			return false
		}
	}
	return true
}

var errIntrospection = errors.New("auth: not an answer to an introspection")

// Judge reads an answer, one JSON object. An error says that the provider didn't answer the question; who calls is not known
// then. Identity.Until is the token's end, without skew: the provider knows its own clock; zero when it doesn't say. A member
// that is null is one that isn't there: that is how many providers say that a token has no end, or no user.
func (v *Introspector) Judge(answer []byte, now time.Time) (Result, error) {
	m, err := object(answer)
	if err != nil {
		return Result{}, errIntrospection
	}
	maps.DeleteFunc(m, func(_ string, v any) bool { return v == nil })
	active, ok := m["active"].(bool)
	if !ok {
		return Result{}, errIntrospection
	}
	if !active {
		return Result{Reason: reason.TokenInvalid}, nil
	}
	id := &Identity{Issuer: v.policy.Issuer}
	if why, err := v.bounds(m, id, now); why != reason.None || err != nil {
		return Result{Reason: why}, err
	}
	if !v.meant(m, id) {
		return Result{Reason: reason.TokenInvalid}, nil
	}
	if !who(m, "", id) {
		return Result{}, errIntrospection
	}
	if claim := v.policy.ConsumerClaim; claim != "" && (!text(m, claim, &id.Consumer) || id.Consumer == "") {
		return Result{Reason: reason.TokenInvalid}, nil
	}
	id.Claims = claimsOf(m, v.keeps)
	return Result{Identity: id, Reason: permitted(id, v.policy.Scopes)}, nil
}

// bounds holds the token to its times.
func (v *Introspector) bounds(m map[string]any, id *Identity, now time.Time) (reason.Reason, error) {
	exp, hasExp, ok1 := date(m, "exp")
	nbf, hasNbf, ok2 := date(m, "nbf")
	if !ok1 || !ok2 {
		return reason.None, errIntrospection
	}
	if hasExp && !now.Before(exp) || hasNbf && nbf.After(now.Add(Skew)) {
		return reason.TokenExpired, nil
	}
	if hasExp {
		id.Until = exp
	}
	return reason.None, nil
}

// meant says whether the token is of the policy's issuer, for its audience, no refresh token, and bound to nothing but a certificate. A provider need not name its issuer; the audience it must where the policy does.
func (v *Introspector) meant(m map[string]any, id *Identity) bool {
	if iss, named := m["iss"]; named {
		s, ok := iss.(string)
		if !ok || v.policy.Issuer != "" && s != v.policy.Issuer {
			return false
		}
		id.Issuer = s
	}
	if typ, named := m["token_type"]; named {
		if s, ok := typ.(string); !ok || !strings.EqualFold(s, "bearer") {
			return false
		}
	}
	return bind(m, v.policy.IgnoreCnf, v.policy.CertificateBound, id) && (v.policy.Audience == "" || names(m["aud"], v.policy.Audience))
}
