package engine_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/callers"
)

const authzDocument = `
version: v1
routes:
  - {id: admin, match: {host: a.example, path: /admin}, upstream: up, auth: jwt, policies: [admins]}
  - {id: sales, match: {host: a.example, path: /sales}, upstream: up, policies: [readers, jwt, sales]}
  - {id: partner, match: {host: a.example, path: /partner}, upstream: up, auth: key, policies: [partners]}
upstreams: [{id: up, endpoints: ["UP"]}]
policies:
  - {id: jwt, jwt: {issuer: i, audience: a, jwks: "https://i.example/keys"}}
  - {id: key, api_key: {}}
  - {id: admins, authz: {roles: [admin, owner], roles_claim: realm_access.roles}}
  - {id: readers, authz: {any_scope: [read, write]}}
  - {id: sales, authz: {claims: {department: [sales, support]}}}
  - {id: partners, authz: {consumers: [acme]}}
consumers: [{id: acme, api_key_hashes: ["HASH-ACME"]}, {id: other, api_key_hashes: ["HASH-OTHER"]}]
`

// G6 on every engine and protocol: who is known is let in only where his scopes, roles, claims or consumer permit it.
func TestAuthorizationHoldsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	up := func() (string, chan string) {
		seen := make(chan string, 10)
		return handler(t, func(http.ResponseWriter, *http.Request) { seen <- "" }), seen
	}
	idp := newIssuer(t)
	document := strings.NewReplacer("HASH-ACME", auth.HashKey("cg_acme"), "HASH-OTHER", auth.HashKey("cg_other")).Replace(authzDocument)
	bearer := func(claims map[string]any) []string {
		claims["sub"] = "alice"
		return []string{"Authorization", "Bearer " + idp.tokenOf(t, claims)}
	}
	admin := bearer(map[string]any{"realm_access": map[string]any{"roles": []string{"viewer", "owner"}}})
	viewer := bearer(map[string]any{"realm_access": map[string]any{"roles": []string{"viewer"}}, "roles": "owner"})
	seller := bearer(map[string]any{"scope": "read", "department": "sales"})
	buyer := bearer(map[string]any{"scope": "read", "department": []string{"buying"}})
	for name, ask := range ways(t, up, setup{document: document, auth: callers.NewAuthenticator(callers.Sources{Keys: idp}, time.Now()), silent: true}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 2 { // the second time every token is known
				for what, c := range map[string]struct {
					target string
					fields []string
					want   string
				}{
					"a role":                  {"/admin", admin, "200 upstream"},
					"another role":            {"/admin", viewer, "403 role_missing"},
					"no role":                 {"/admin", seller, "403 role_missing"},
					"nobody":                  {"/admin", nil, "401 token_missing"},
					"scope and claim":         {"/sales", seller, "200 upstream"},
					"scope, and wrong claim":  {"/sales", buyer, "403 claim_refused"},
					"no scope":                {"/sales", admin, "403 scope_missing"},
					"a consumer":              {"/partner", []string{"X-API-Key", "cg_acme"}, "200 upstream"},
					"another consumer":        {"/partner", []string{"X-API-Key", "cg_other"}, "403 consumer_refused"},
					"a key that is no caller": {"/partner", []string{"X-API-Key", "cg_none"}, "401 key_invalid"},
				} {
					if got := ask(sample{method: "GET", target: c.target, fields: c.fields}); !strings.HasPrefix(got, c.want[:3]) || !strings.Contains(got, c.want[4:]) {
						t.Errorf("%s: %s\nwant %s", what, got, c.want)
					}
				}
			}
		})
	}
}
