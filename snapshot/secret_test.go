package snapshot

import (
	"strings"
	"testing"
)

func TestRoutesUseTheSecretsOfTheirTenantAlone(t *testing.T) {
	const policies = `
policies:
  - {id: shared, introspection: {url: 'https://id.test/i', client_id: gw, client_secret_file: s}}
  - {id: acme, introspection: {url: 'https://id.test/i', client_id: gw, client_secret_file: acme/s}}
  - {id: login, session: {cookie: c, keys_file: acme/k}}
  - {id: pdp, decision: {url: 'https://pdp.test/d', secret_file: acme/t, inputs: [user]}}
  - {id: none, api_key: {}}
  - {id: mine, introspection: {url: 'https://id.test/i', client_id: gw, client_secret_file: default/s}}
upstreams: [{id: u, endpoints: ['10.0.0.1:80']}]
tenants: [{id: acme, hosts: [a.test, '*.acme.test']}, {id: evil, hosts: [evil.test, x.acme.test]}]
routes: [{id: r, `
	for route, want := range map[string]string{
		"host: a.test, path: /, upstream: u, auth: shared":                "",
		"host: evil.test, path: /, upstream: u, auth: shared":             "",
		"host: a.test, path: /, upstream: u, auth: acme, policies: [pdp]": "",
		"host: b.acme.test, path: /, upstream: u, auth: login":            "",
		"host: '*.acme.test', path: /, upstream: u, auth: acme":           "",
		"host: unclaimed.test, path: /, upstream: u, auth: mine":          "",
		"host: evil.test, path: /, upstream: u, auth: acme":               `routes[0].auth: policy "acme" names the secret "acme/s", and the route is of tenant "evil"`,
		"host: x.acme.test, path: /, upstream: u, auth: login":            `routes[0].auth: policy "login" names the secret "acme/k", and the route is of tenant "evil"`,
		"host: unclaimed.test, path: /, upstream: u, policies: [pdp]":     `routes[0].policies: policy "pdp" names the secret "acme/t", and the route is of tenant "default"`,
		"host: a.test, path: /, upstream: u, policy_ids: [mine]":          `names the secret "default/s", and the route is of tenant "acme"`,
	} {
		text := "version: v1" + strings.Replace(policies, "{id: none", "{id: keys", 1) + route + "}]\n"
		_, problems := Decode([]File{{"f.yaml", []byte(text)}}, Allow{})
		got := problems.Error()
		if (want == "") != (len(problems) == 0) || !strings.Contains(got, want) || want != "" && (len(problems) != 1 || !strings.HasPrefix(got, "f.yaml:")) {
			t.Errorf("%s:\n%v\nwant %s", route, problems, want)
		}
	}
	for name, valid := range map[string]bool{"a": true, "a/b": true, "": false, "/": false, "a/": false, "/b": false, "a/b/c": false, "../b": false, "a/..": false, ".": false, "*/b": false} {
		if ValidSecret(name) != valid {
			t.Errorf("%q: %v", name, !valid)
		}
	}
}

func TestWhatPoliciesPermitBesideIsFormattedAndReadBack(t *testing.T) {
	const text = `version: v1
policies:
  - {id: a, jwt: {issuer: i, audience: a, jwks: 'https://id.test/k', ignore_cnf: true}}
  - {id: b, introspection: {url: 'https://id.test/i', client_id: gw, client_secret_file: acme/s, ignore_cnf: true}}
  - {id: c, session: {cookie: c, keys_file: acme/k, forward_cookie: true}}
`
	cfg, problems := Decode([]File{{"f", []byte(text)}}, Allow{})
	doc, err := Format(cfg)
	if len(problems) > 0 || err != nil || !cfg.Policies[0].JWT.IgnoreCnf || !cfg.Policies[1].Introspection.IgnoreCnf || !cfg.Policies[2].Session.ForwardCookie {
		t.Fatal(problems, err)
	}
	again, problems := Decode([]File{{"again", doc}}, Allow{})
	if len(problems) > 0 || checksum(t, again) != checksum(t, cfg) {
		t.Errorf("%v\n%s", problems, doc)
	}
}
