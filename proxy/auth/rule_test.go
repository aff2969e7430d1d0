package auth

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

func TestRulesAskForScopesRolesClaimsAndConsumers(t *testing.T) {
	w := theWorld()
	claims := good()
	claims["scope"], claims["roles"], claims["level"], claims["staff"] = "orders read", []any{"viewer", "billing"}, 7, true
	claims["realm_access"] = map[string]any{"roles": []any{"admin"}, "deep": map[string]any{"x": "y"}}
	claims["https://example.com/roles"], claims["department"], claims["odd"] = "root", "sales", []any{map[string]any{"a": "b"}, nil, "kept"}
	token := w.sign(t, "ES256", claims, nil)
	type authz = snapshot.Authz
	for name, c := range map[string]struct {
		ask      authz
		consumer string
		want     reason.Reason
	}{
		"all scopes":                {authz{Scopes: []string{"orders", "read"}}, "", reason.None},
		"one scope too many":        {authz{Scopes: []string{"orders", "write"}}, "", reason.ScopeMissing},
		"any scope":                 {authz{AnyScope: []string{"write", "read"}}, "", reason.None},
		"no scope":                  {authz{AnyScope: []string{"write", "rea"}}, "", reason.ScopeMissing},
		"any role":                  {authz{Roles: []string{"admin", "viewer"}}, "", reason.None},
		"no role":                   {authz{Roles: []string{"admin"}}, "", reason.RoleMissing},
		"all roles":                 {authz{AllRoles: []string{"viewer", "billing"}}, "", reason.None},
		"one role too many":         {authz{AllRoles: []string{"viewer", "admin"}}, "", reason.RoleMissing},
		"both kinds of roles":       {authz{AllRoles: []string{"viewer"}, Roles: []string{"admin"}}, "", reason.RoleMissing},
		"nested roles":              {authz{Roles: []string{"admin"}, RolesClaim: "realm_access.roles"}, "", reason.None},
		"a way that is no object":   {authz{Roles: []string{"admin"}, RolesClaim: "department.roles"}, "", reason.RoleMissing},
		"a way that ends early":     {authz{Roles: []string{"admin"}, RolesClaim: "realm_access"}, "", reason.RoleMissing},
		"a name with dots":          {authz{Roles: []string{"root"}, RolesClaim: "https://example.com/roles"}, "", reason.None},
		"a claim":                   {authz{Claims: map[string][]string{"department": {"sales", "support"}}}, "", reason.None},
		"another claim":             {authz{Claims: map[string][]string{"department": {"support"}}}, "", reason.ClaimRefused},
		"numbers and booleans":      {authz{Claims: map[string][]string{"level": {"7"}, "staff": {"true"}}}, "", reason.None},
		"another number":            {authz{Claims: map[string][]string{"level": {"7.0"}}}, "", reason.ClaimRefused},
		"a claim that is not there": {authz{Claims: map[string][]string{"nothing": {"x"}}}, "", reason.ClaimRefused},
		"a list with odd elements":  {authz{Claims: map[string][]string{"odd": {"kept"}, "realm_access.deep.x": {"y"}}}, "", reason.None},
		"its consumer":              {authz{Consumers: []string{"acme", "b"}}, "acme", reason.None},
		"another consumer":          {authz{Consumers: []string{"b"}}, "acme", reason.ConsumerRefused},
		"no consumer":               {authz{Consumers: []string{"b", ""}}, "", reason.ConsumerRefused},
	} {
		r := NewRule(c.ask)
		id := NewVerifier(policy(), r.Wants()...).Verify(token, w.keys, now).Identity
		if id == nil {
			t.Fatal("the token is refused")
		}
		if got := r.Judge(id, c.consumer); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
		if got := r.Judge(nil, c.consumer); len(c.ask.Consumers) == 0 && got == reason.None {
			t.Errorf("%s: a caller without claims passes", name)
		}
	}
}

// Whatever a rule asks for, a caller who has all of it passes, and one without any one of the lists doesn't.
func TestARuleHoldsExactlyWhenAllOfItDoes(t *testing.T) {
	word := rapid.SampledFrom([]string{"a", "b", "c", "d"})
	words := rapid.SliceOfNDistinct(word, 0, 3, rapid.ID)
	rapid.Check(t, func(t *rapid.T) {
		ask := snapshot.Authz{Scopes: words.Draw(t, "scopes"), AnyScope: words.Draw(t, "any"), Roles: words.Draw(t, "roles"), AllRoles: words.Draw(t, "all")}
		if values := words.Draw(t, "values"); len(values) > 0 {
			ask.Claims = map[string][]string{"claim": values}
		}
		id := &Identity{Scopes: words.Draw(t, "has scopes"), Claims: []Claim{{"roles", words.Draw(t, "has roles")}, {"claim", words.Draw(t, "has values")}}}
		in := func(have []string) func(string) bool { return func(s string) bool { return slices.Contains(have, s) } }
		every := func(want, have []string) bool {
			return !slices.ContainsFunc(want, func(s string) bool { return !in(have)(s) })
		}
		one := func(want, have []string) bool { return len(want) == 0 || slices.ContainsFunc(want, in(have)) }
		roles := id.Claims[0].Values
		want := every(ask.Scopes, id.Scopes) && one(ask.AnyScope, id.Scopes) && one(ask.Roles, roles) && every(ask.AllRoles, roles) && one(ask.Claims["claim"], id.Claims[1].Values)
		if got := NewRule(ask).Judge(id, ""); (got == reason.None) != want {
			t.Fatalf("%+v of %+v: %v", ask, id, got)
		}
	})
}

func TestAKnownTokenIsJudgedByOtherClaimsOnlyAfterItIsReadAgain(t *testing.T) {
	w, c := theWorld(), NewCache(64)
	token := w.sign(t, "ES256", good(), nil)
	few, more := NewVerifier(policy(), "roles"), NewVerifier(policy(), "roles", "department")
	c.Put("acme", few, w.keys, token, few.Verify(token, w.keys, now), now)
	if _, ok := c.Get("acme", few, w.keys, []byte(token), now); !ok {
		t.Error("not found")
	}
	if _, ok := c.Get("acme", more, w.keys, []byte(token), now); ok {
		t.Error("found without a claim that is wanted now")
	}
}

func TestWhatTokensSayCountsTowardsTheBoundOfTheCache(t *testing.T) {
	v, c, k := NewVerifier(policy()), NewCache(64), theWorld().keys
	id := &Identity{Until: now.Add(time.Hour), Claims: []Claim{{"roles", []string{string(make([]byte, maxCacheRAM/2))}}}}
	for _, token := range []string{"a", "b", "c"} {
		c.Put("acme", v, k, token, Result{Identity: id}, now)
	}
	if n := c.bytes.Load(); n > maxCacheRAM || n < maxCacheRAM/2 {
		t.Errorf("%d bytes", n)
	}
	c.Forget(func(*Identity) bool { return true })
	if n := c.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are kept of nothing", n)
	}
}

func TestJudgingDoesNotAllocate(t *testing.T) {
	r := NewRule(snapshot.Authz{Scopes: []string{"s"}, Roles: []string{"a", "b"}, Claims: map[string][]string{"x": {"1"}}, Consumers: []string{"c"}})
	id := &Identity{Scopes: []string{"s"}, Claims: []Claim{{"roles", []string{"b"}}, {"x", []string{"1"}}}}
	if n := testing.AllocsPerRun(100, func() {
		if r.Judge(id, "c") != reason.None || r.Judge(nil, "c") == reason.None {
			t.Fatal("misjudged")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
