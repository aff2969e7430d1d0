package auth

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Claim is a claim that some rule asks for, as text: strings, numbers as they are written, true and false; of a list each
// element of these. Values are sorted.
type Claim struct {
	Name   string
	Values []string
}

// Rule says what an identified caller must be. It is immutable.
type Rule struct {
	policy snapshot.Authz
	roles  string
	claims []Claim // any of the values of each
}

// NewRule compiles an authz policy.
func NewRule(p snapshot.Authz) *Rule {
	r := &Rule{policy: p, roles: p.RolesClaim}
	if r.roles == "" {
		r.roles = snapshot.DefaultRolesClaim
	}
	for _, name := range slices.Sorted(maps.Keys(p.Claims)) {
		r.claims = append(r.claims, Claim{name, p.Claims[name]})
	}
	return r
}

// Wants names the claims that the rule looks at.
func (r *Rule) Wants() (claims []string) {
	if len(r.policy.Roles)+len(r.policy.AllRoles) > 0 {
		claims = append(claims, r.roles)
	}
	for _, c := range r.claims {
		claims = append(claims, c.Name)
	}
	return claims
}

// Judge says why a caller may not; reason.None = it may. id is nil when its credentials carry no claims. It doesn't allocate.
func (r *Rule) Judge(id *Identity, consumer string) reason.Reason {
	if id == nil {
		id = &Identity{}
	}
	p := &r.policy
	switch {
	case !all(p.Scopes, id.Scopes), len(p.AnyScope) > 0 && !some(p.AnyScope, id.Scopes):
		return reason.ScopeMissing
	case len(p.Consumers) > 0 && (consumer == "" || !slices.Contains(p.Consumers, consumer)):
		return reason.ConsumerRefused
	}
	if len(p.Roles)+len(p.AllRoles) > 0 {
		roles := id.values(r.roles)
		if !all(p.AllRoles, roles) || len(p.Roles) > 0 && !some(p.Roles, roles) {
			return reason.RoleMissing
		}
	}
	for i := range r.claims {
		if !some(r.claims[i].Values, id.values(r.claims[i].Name)) {
			return reason.ClaimRefused
		}
	}
	return reason.None
}

// all says whether every one of want is in have.
func all(want, have []string) bool {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return false
		}
	}
	return true
}

// some says whether any of want is in have.
func some(want, have []string) bool {
	for _, w := range want {
		if slices.Contains(have, w) {
			return true
		}
	}
	return false
}

// values are those of a claim that was wanted.
func (id *Identity) values(claim string) []string {
	for i := range id.Claims {
		if id.Claims[i].Name == claim {
			return id.Claims[i].Values
		}
	}
	return nil
}

// weight is how many bytes of memory the identity's text takes, roughly.
func (id *Identity) weight() (n int) {
	n = len(id.ClientID)
	for _, s := range id.Scopes {
		n += len(s) + 16
	}
	for _, c := range id.Claims {
		for _, v := range c.Values {
			n += len(v) + 16
		}
	}
	return n
}

// claimsOf takes the wanted claims out of a set of them. A name is that of a member as it is (https://example.com/roles), or
// else a way through objects (realm_access.roles).
func claimsOf(m map[string]any, want []string) (out []Claim) {
	for _, name := range want {
		v, ok := m[name]
		if !ok {
			v, ok = walk(m, name)
		}
		if values := valuesOf(v); ok && len(values) > 0 {
			out = append(out, Claim{name, values})
		}
	}
	return out
}

func walk(m map[string]any, way string) (any, bool) {
	for {
		name, rest, more := strings.Cut(way, ".")
		v, ok := m[name]
		if !ok || !more {
			return v, ok
		}
		if m, ok = v.(map[string]any); !ok {
			return nil, false
		}
		way = rest
	}
}

func valuesOf(v any) (out []string) {
	list, isList := v.([]any)
	if !isList {
		list = []any{v}
	}
	for _, e := range list {
		switch e := e.(type) {
		case string:
			out = append(out, e)
		case json.Number:
			out = append(out, e.String())
		case bool:
			out = append(out, strconv.FormatBool(e))
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
