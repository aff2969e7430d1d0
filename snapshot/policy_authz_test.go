package snapshot

import (
	"strings"
	"testing"
)

func TestEveryRuleOfCallersNamesItsFault(t *testing.T) {
	authz := func(fields string) string { return "policies: [{id: a, authz: {" + fields + "}}]" }
	route := func(fields string) string {
		return "routes: [{id: r, host: a.test, path: /x, upstream: u, " + fields + "}]\nupstreams: [{id: u, endpoints: ['10.0.0.1:80']}]\n" +
			"policies: [{id: key, api_key: {}}, {id: az, authz: {roles: [admin]}}]"
	}
	for text, want := range map[string]string{
		route("policies: [az]"):               `routes[0].policies: policy "az" says what callers may do, and nothing says who they are`,
		route("auth: none, policies: [az]"):   `routes[0].policies: policy "az" says what callers may do, and nothing says who they are`,
		route("auth: az"):                     `routes[0].auth: "az" is of kind authz, which doesn't say who calls`,
		route("policies: [az, key]"):          `routes[0].policies: policy "az" asks for scopes, roles or claims, which callers of policy "key" don't have`,
		authz(""):                             "policies[0].authz: asks nothing of a caller",
		authz("roles: []"):                    "policies[0].authz.roles: names nothing",
		authz("roles: admin"):                 "policies[0].authz.roles: must be a list",
		authz("role: [x]"):                    "policies[0].authz.role: unknown key (did you mean roles?)",
		authz("scopes: [x], roles_claim: g"):  "policies[0].authz.roles_claim: stands without roles",
		authz("claims: {}"):                   "policies[0].authz.claims: must be a mapping of 1 to 16 claims",
		authz("claims: [x]"):                  "policies[0].authz.claims: must be a mapping of 1 to 16 claims",
		authz("scopes: ['a b']"):              `policies[0].authz.scopes: "a b" has a blank, so no token has it`,
		authz("any_scope: [\"a\\tb\"]"):       "policies[0].authz.any_scope[0]: holds control characters",
		authz("claims: {'': x}"):              "policies[0].authz.claims: names a claim that has no name",
		authz("claims: {x: []}"):              "policies[0].authz.claims.x: names no value",
		authz("claims: {x: [true]}"):          "policies[0].authz.claims.x[0]: must be a string, not a boolean",
		authz("claims: {x: true}"):            "policies[0].authz.claims.x: must be a string, not a boolean",
		authz("consumers: [c]"):               `policies[0].authz.consumers: there is no consumer "c"`,
		"policies: [{id: a, authz: a role}]":  "policies[0].authz: must be a mapping",
		"policies: [{id: a, authz: [admin]}]": "policies[0].authz: must be a mapping",
	} {
		_, got := decodeText("version: v1\n" + text + "\n")
		if len(got) != 1 || !strings.HasPrefix(strings.SplitN(got[0], ": ", 2)[1], want) || !strings.HasSuffix(got[0], ")") {
			t.Errorf("%s\ngot  %q\nwant %s", text, got, want)
		}
	}
}

func TestEveryKindOfCallerButKeysMayBeAskedForRoles(t *testing.T) {
	for _, who := range []string{
		"jwt: {issuer: i, audience: a, jwks: 'https://id.test/k'}",
		"introspection: {url: 'https://id.test/i', client_id: gw, client_secret_file: s}",
	} {
		text := "version: v1\nroutes: [{id: r, host: a.test, path: /x, upstream: u, auth: p, policies: [az]}]\nupstreams: [{id: u, endpoints: ['10.0.0.1:80']}]\n" +
			"policies: [{id: p, " + who + "}, {id: az, authz: {roles: [admin]}}]\n"
		if _, problems := decodeText(text); len(problems) > 0 {
			t.Errorf("%s: %q", who, problems)
		}
	}
}
