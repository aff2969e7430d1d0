package snapshot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/cellgate/cellgate/problem"
	"go.yaml.in/yaml/v3"
)

// Authz says what an identified caller must be to use a route. Everything that is given must hold.
type Authz struct {
	Scopes     []string            `json:"scopes,omitempty"`      // all of them
	AnyScope   []string            `json:"any_scope,omitempty"`   // one of them
	Roles      []string            `json:"roles,omitempty"`       // one of them
	AllRoles   []string            `json:"all_roles,omitempty"`   // all of them
	RolesClaim string              `json:"roles_claim,omitempty"` // where the roles are; empty = DefaultRolesClaim
	Claims     map[string][]string `json:"claims,omitempty"`      // one of the values of each
	Consumers  []string            `json:"consumers,omitempty"`   // one of them
}

// DefaultRolesClaim is the claim that roles are read from.
const DefaultRolesClaim = "roles"

const (
	maxAuthz  = 64 // items of a list, and claims
	maxClaims = 16
)

func decodeAuthz(d *decoder, n *yaml.Node, p *at, into *Policy) {
	o, ok := d.object(n, p, []string{"scopes", "any_scope", "roles", "all_roles", "roles_claim", "claims", "consumers"})
	if !ok {
		return
	}
	a := &Authz{RolesClaim: o.string("roles_claim")}
	for key, list := range map[string]*[]string{"scopes": &a.Scopes, "any_scope": &a.AnyScope, "roles": &a.Roles, "all_roles": &a.AllRoles, "consumers": &a.Consumers} {
		before := len(d.problems) + d.unshown
		read := o.strings
		if list == &a.Scopes || list == &a.AnyScope {
			read = o.scopes
		}
		if *list = read(key, maxAuthz); o.get(key) != nil && len(*list) == 0 && len(d.problems)+d.unshown == before {
			o.wrong(key, "names nothing", "give at least one, or leave the key out")
		}
		slices.Sort(*list)
	}
	for _, c := range a.Consumers {
		d.refer(kindConsumer, c, d.ids[name{kindPolicy, into.ID}], o.get("consumers"), "authz.consumers")
	}
	d.claimValues(o, a)
	switch r := d.resolve(n); {
	case len(r.Content) == 0:
		d.wrong(o.line, p, "asks nothing of a caller", "give scopes, any_scope, roles, all_roles, claims or consumers")
	case a.RolesClaim != "" && len(a.Roles)+len(a.AllRoles) == 0:
		o.wrong("roles_claim", "stands without roles", "give roles or all_roles")
	case a.RolesClaim == DefaultRolesClaim:
		a.RolesClaim = ""
	}
	into.Authz, d.authz[into.ID] = a, a
}

func formatAuthz(p *Policy, into *docPolicy) { into.Authz = (*docAuthz)(p.Authz) }

// scopes reads a sorted list of scopes. A token has its scopes with blanks between (RFC 6749, section 3.3), so none has one within.
func (o object) scopes(key string, most int) []string {
	all := o.strings(key, most)
	for _, s := range all {
		if strings.ContainsFunc(s, unicode.IsSpace) {
			o.wrong(key, strconv.Quote(clip(s))+" has a blank, so no token has it", "give each scope an item of its own")
		}
	}
	slices.Sort(all)
	return all
}

// claimValues reads {claim: value} and {claim: [value, …]}.
func (d *decoder) claimValues(o object, a *Authz) {
	n := o.get("claims")
	if n == nil {
		return
	}
	p, r := o.at.child("claims"), d.resolve(n)
	if r == nil || r.Kind != yaml.MappingNode || len(r.Content) == 0 || len(r.Content)/2 > maxClaims {
		d.wrong(n.Line, p, fmt.Sprintf("must be a mapping of 1 to %d claims", maxClaims), "such as {department: [sales, support]}")
		return
	}
	var seen []string
	a.Claims = map[string][]string{}
	for i := 0; i+1 < len(r.Content); i += 2 {
		claim, ok := d.key(r.Content[i], p, seen)
		if !ok {
			continue
		}
		if claim == "" {
			d.wrong(r.Content[i].Line, p, "names a claim that has no name", "such as {department: [sales, support]}")
		}
		seen = append(seen, claim)
		here, value := p.child(claim), d.resolve(r.Content[i+1])
		if value != nil && value.Kind == yaml.ScalarNode {
			if v, ok := d.string(value, here, ""); ok {
				a.Claims[claim] = []string{v}
			}
			continue
		}
		before := len(d.problems) + d.unshown
		d.list(r.Content[i+1], here, maxAuthz, func(_ int, n *yaml.Node, p *at) {
			if v, ok := d.string(n, p, ""); ok && !slices.Contains(a.Claims[claim], v) {
				a.Claims[claim] = append(a.Claims[claim], v)
			}
		})
		if slices.Sort(a.Claims[claim]); len(a.Claims[claim]) == 0 && len(d.problems)+d.unshown == before {
			d.wrong(r.Content[i+1].Line, here, "names no value", "give at least one")
		}
	}
}

// permits checks that the callers of a route with such policies are identified, by something that has what is asked.
func (d *decoder) permits(i int) {
	r, s := &d.cfg.Routes[i], d.routes[i]
	wrong := func(message, hint string) {
		d.add(problem.Problem{File: s.file, Line: s.line, Path: s.path() + ".policies", Message: message, Hint: hint})
	}
	for _, id := range r.Policies {
		of, who := d.authz[id], d.kinds[r.Auth]
		switch {
		case of == nil:
		case r.Auth == "":
			wrong("policy "+strconv.Quote(id)+" says what callers may do, and nothing says who they are", "name a policy that identifies callers in auth")
		case who.identity && !who.claims() && of.claims():
			wrong(fmt.Sprintf("policy %q asks for scopes, roles or claims, which callers of policy %q don't have", id, r.Auth), "ask for consumers, or identify callers by tokens")
		}
	}
}

// claims says whether callers that it identifies have scopes, roles and claims: keys and certificates say who it is and no more.
func (k policyKind) claims() bool { return k.identity && k.name != "api_key" && k.name != "mtls" }

// claims says whether it asks for what only tokens have.
func (a *Authz) claims() bool {
	return len(a.Scopes)+len(a.AnyScope)+len(a.Roles)+len(a.AllRoles)+len(a.Claims) > 0
}

type docAuthz struct {
	Scopes     []string            `yaml:"scopes,omitempty,flow"`
	AnyScope   []string            `yaml:"any_scope,omitempty,flow"`
	Roles      []string            `yaml:"roles,omitempty,flow"`
	AllRoles   []string            `yaml:"all_roles,omitempty,flow"`
	RolesClaim string              `yaml:"roles_claim,omitempty"`
	Claims     map[string][]string `yaml:"claims,omitempty,flow"`
	Consumers  []string            `yaml:"consumers,omitempty,flow"`
}
