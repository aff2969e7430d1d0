package program

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/testpki"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/snapshot"
)

// kindsInWords has one policy of each kind, and what an explanation must say that it does on a failure.
func kindsInWords() map[string]struct{ policy, fails, words string } {
	return map[string]struct{ policy, fails, words string }{
		"jwt":     {`jwt: {issuer: i, audience: a, jwks: "https://i.example.com/k", scopes: [orders], consumer_claim: azp}`, Closed, "503 auth_unavailable"},
		"api_key": {`api_key: {}`, Closed, "503 auth_unavailable"},
		"introspection": {`introspection: {url: "https://i.example.com/i", client_id: gw, client_secret_file: s}`, Closed,
			"if the provider can't be asked or gives no answer in 100ms: refuses with 503 auth_unavailable"},
		"session":   {`session: {cookie: __Host-s, keys_file: k}`, Closed, "refuses the version"},
		"mtls":      {`mtls: {ca: AUTHORITY, names: [{dns: a.example, consumer: acme}]}`, Local, "nothing but the node"},
		"authz":     {`authz: {any_scope: [orders], roles: [admin]}`, Local, "nothing but the node"},
		"cors":      {`cors: {origins: ["https://app.example.com"], methods: [GET]}`, Local, "nothing but the node"},
		"decision":  {`decision: {url: "https://d.example.com/d", inputs: [user], max_stale: 3s, timeout: 50ms}`, Closed, "no answer in 50ms: refuses with 503 decision_unavailable; an answer holds for 3s"},
		"transform": {`transform: {request: {set: {x-a: b}}, response: {remove: [x-b]}}`, Local, "nothing but the node"},
	}
}

// explained is what an explanation says of a GET of a route with these policies.
func explained(t *testing.T, route, policies string, headers map[string]string, who Caller) []Verdict {
	t.Helper()
	doc := "version: v1\nroutes: [{id: r, match: {host: a.example.com, path: /r}, upstream: u, " + route + "}]\nupstreams: [{id: u, endpoints: [\"10.0.0.1:80\"]}]\n" +
		"policies: [" + strings.ReplaceAll(policies, "AUTHORITY", strconv.Quote(testpki.New(t, "Partners").PEM)) + "]\nplans: [{id: pro, rate_per_sec: 50, quota_per_day: 1000, on_store_loss: deny}]\n" +
		`consumers: [{id: acme, plan: pro, api_key_hashes: ["` + auth.HashKey("cg_acme") + "\"]}]\ntenants: [{id: \"*\", limits: {rate: 9000/second}}, {id: main, hosts: [a.example.com], limits: {rate: 900/second}}]\n"
	p := compile(t, doc, nil)
	req, err := ParseRequest("GET", "https://a.example.com/r", headers)
	if err != nil {
		t.Fatal(err)
	}
	return p.Explain(req, who, time.Unix(1000, 0)).Verdicts
}

func one(t *testing.T, all []Verdict, kind string) Verdict {
	t.Helper()
	i := slices.IndexFunc(all, func(v Verdict) bool { return v.Kind == kind })
	if i < 0 {
		t.Fatalf("there is no %s among %+v", kind, all)
	}
	return all[i]
}

// Whoever adds a kind says in words what it makes of a request, and what becomes of requests when what it needs is lost.
func TestEveryKindOfPolicyHasWords(t *testing.T) {
	for _, kind := range snapshot.PolicyKinds() {
		c, ok := kindsInWords()[kind]
		if !ok {
			t.Errorf("there are no words for %s", kind)
			continue
		}
		policies, route := "{id: p, "+c.policy+"}", "policies: [p]"
		if kind == "authz" {
			policies, route = policies+", {id: who, "+kindsInWords()["jwt"].policy+"}", "auth: who, policies: [p]"
		}
		v := one(t, explained(t, route, policies, nil, Caller{}), kind)
		if v.Policy != "p" || v.Why == "" || v.Fails != c.fails || !strings.Contains(v.OnFailure, c.words) || !slices.Contains([]string{Allows, Refuses, Depends, Changes}, v.Verdict) {
			t.Errorf("%s: %+v", kind, v)
		}
		if (v.Verdict == Refuses) != (v.Reason != "" && v.Status >= 400) {
			t.Errorf("%s: %+v", kind, v)
		}
	}
}

func TestAnExplanationSaysWhatEachPolicyMakesOfTheRequest(t *testing.T) {
	policy := func(kind string) string { return "{id: p, " + kindsInWords()[kind].policy + "}" }
	claims := func(more string) Caller {
		return Caller{Claims: []byte(`{"iss":"i","aud":"a","sub":"alice","azp":"acme","exp":2000,"iat":900,"active":true` + more + `}`)}
	}
	rules := func(kind string) string {
		return policy(kind) + ", {id: z, " + kindsInWords()["authz"].policy + "}"
	}
	for name, c := range map[string]struct {
		route, policies string
		headers         map[string]string
		who             Caller
		kind, want      string // verdict, reason and a part of why
	}{
		"no token":               {"auth: p", policy("jwt"), nil, Caller{}, "jwt", "refuses token_missing no bearer"},
		"a token":                {"auth: p", policy("jwt"), map[string]string{"authorization": "Bearer x.y.z"}, Caller{}, "jwt", "depends  issuer i"},
		"good claims":            {"auth: p", policy("jwt"), nil, claims(`,"scope":"orders"`), "jwt", `depends  user "alice", consumer "acme"`},
		"claims without scope":   {"auth: p", policy("jwt"), nil, claims(""), "jwt", "refuses scope_missing lacks a required scope"},
		"no claims of a token":   {"auth: p", policy("jwt"), nil, Caller{Claims: []byte("{}")}, "jwt", "refuses token_invalid not valid"},
		"no key":                 {"auth: p", policy("api_key"), nil, Caller{}, "api_key", "refuses token_missing no API key"},
		"a document's key":       {"auth: p", policy("api_key"), map[string]string{"x-api-key": "cg_acme"}, Caller{}, "api_key", "allows  acme"},
		"another key":            {"auth: p", policy("api_key"), map[string]string{"authorization": "Bearer cg_x"}, Caller{}, "api_key", "depends  no document"},
		"a consumer":             {"auth: p", policy("api_key"), nil, Caller{Consumer: "acme"}, "api_key", "depends  acme"},
		"no consumer":            {"auth: p", policy("api_key"), nil, Caller{Consumer: "nobody"}, "api_key", "refuses key_invalid nobody"},
		"an opaque token":        {"auth: p", policy("introspection"), map[string]string{"authorization": "bearer x"}, Caller{}, "introspection", "depends  https://i.example.com/i"},
		"no opaque token":        {"auth: p", policy("introspection"), map[string]string{"authorization": "bearer \x7f"}, Caller{}, "introspection", "refuses token_invalid characters"},
		"what a provider says":   {"auth: p", policy("introspection"), nil, claims(""), "introspection", "depends  alice"},
		"no provider's words":    {"auth: p", policy("introspection"), nil, Caller{Claims: []byte("{}")}, "introspection", "depends  needs \"active\""},
		"no cookie":              {"auth: p", policy("session"), nil, Caller{}, "session", "refuses token_missing __Host-s"},
		"a cookie":               {"auth: p", policy("session"), map[string]string{"cookie": "a=b; __Host-s=x"}, Caller{}, "session", "depends  opens the cookie"},
		"claims of a session":    {"auth: p", policy("session"), nil, claims(""), "session", "depends  alice"},
		"a certificate":          {"auth: p", policy("mtls"), nil, Caller{}, "mtls", "depends  in TLS"},
		"a partner's":            {"auth: p", policy("mtls"), nil, Caller{Consumer: "acme"}, "mtls", "depends  acme"},
		"a stranger's":           {"auth: p", policy("mtls"), nil, Caller{Consumer: "nobody"}, "mtls", "refuses certificate_invalid nobody"},
		"nobody is known":        {"auth: p, policies: [z]", rules("jwt"), nil, Caller{}, "authz", "depends  --claims"},
		"a caller with a role":   {"auth: p, policies: [z]", rules("jwt"), nil, claims(`,"scope":"orders","roles":["admin"]`), "authz", "allows  all that it asks for"},
		"a caller without":       {"auth: p, policies: [z]", rules("jwt"), nil, claims(`,"scope":"orders"`), "authz", "refuses role_missing lacks a required role"},
		"no origin":              {"policies: [p]", policy("cors"), nil, Caller{}, "cors", "allows  no Origin"},
		"an origin":              {"policies: [p]", policy("cors"), map[string]string{"origin": "https://app.example.com"}, Caller{}, "cors", "allows  https://app.example.com"},
		"another origin":         {"policies: [p]", policy("cors"), map[string]string{"origin": "https://evil.example"}, Caller{}, "cors", "refuses cors_refused origin"},
		"a service":              {"policies: [p]", policy("decision"), nil, Caller{}, "decision", "depends  https://d.example.com/d, by user"},
		"changes":                {"policies: [p]", policy("transform"), nil, Caller{}, "transform", "changes  fields of the answer, fields of the request"},
		"a plan, when it counts": {"auth: p", policy("api_key"), nil, Caller{}, "limit", "depends  9000/second; beyond: 503 platform_rate"},
	} {
		v := one(t, explained(t, c.route, c.policies, c.headers, c.who), c.kind)
		word, rest, _ := strings.Cut(c.want, " ")
		why, say, _ := strings.Cut(rest, " ")
		if v.Verdict != word || v.Reason != why || !strings.Contains(v.Why, say) {
			t.Errorf("%s: %+v, want %s", name, v, c.want)
		}
	}
}

func TestVerdictsStandInTheOrderInWhichANodeAsks(t *testing.T) {
	var list, names []string
	for kind, c := range kindsInWords() {
		if !slices.Contains([]string{"jwt", "introspection", "session", "mtls"}, kind) {
			list = append(list, fmt.Sprintf("{id: %s, %s}", strings.ReplaceAll(kind, "_", "-"), strings.Replace(c.policy, "any_scope: [orders], roles: [admin]", "consumers: [acme]", 1)))
			names = append(names, strings.ReplaceAll(kind, "_", "-"))
		}
	}
	list = append(list, "{id: tried, mode: shadow, authz: {consumers: [acme]}}")
	slices.Sort(names)
	all := explained(t, "policies: ["+strings.Join(append(names, "tried"), ", ")+"], limits: {tenant: 7/second, user: 3/second, on_store_loss: deny}", strings.Join(list, ", "), map[string]string{"x-api-key": "cg_acme"}, Caller{})
	var got []string
	for _, v := range all {
		got = append(got, v.Policy+" "+v.Fails)
	}
	want := "cors local, api-key closed, authz local, decision closed, tried open, platform open, tenant main open, tenant main on this route closed, consumer acme closed, consumer acme closed, user on this route closed, transform local"
	if strings.Join(got, ", ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, ", "), want)
	}
	raw, err := json.Marshal(all[len(all)-2])
	if want := `{"policy":"user on this route","kind":"limit","verdict":"depends","why":"3/second; beyond: 429 rate_user","fails":"closed","on_failure":"on loss of the quota service: deny, refuses with 429 rate_user"}`; err != nil || string(raw) != want {
		t.Errorf("%s", raw)
	}
}

// J3: limits in shadow mode are asked after those that are enforced, and say so.
func TestLimitsInShadowModeSaySo(t *testing.T) {
	var got []string
	for _, v := range explained(t, "auth: key, limits: {tenant: 7/second, user: 3/second, on_store_loss: deny, mode: shadow}", "{id: key, api_key: {}}", nil, Caller{Consumer: "acme"}) {
		got = append(got, fmt.Sprint(v.Policy, " ", v.Shadow, " ", v.Fails))
		if v.Shadow && (v.Kind != "limit" || v.Verdict != Depends || v.OnFailure != "it is in shadow mode: its verdict is counted and changes nothing") {
			t.Errorf("%+v", v)
		}
	}
	if want := "key false closed, platform false open, tenant main false open, consumer acme false closed, consumer acme false closed, tenant main on this route true open, user on this route true open"; strings.Join(got, ", ") != want {
		t.Errorf("%s\nwant %s", strings.Join(got, ", "), want)
	}
	p := compile(t, `version: v1
routes: [{id: r, match: {host: a.test, path: /r}, upstream: u}]
upstreams: [{id: u, endpoints: ["10.0.0.1:80"]}]
plans: [{id: pro, rate_per_sec: 50, quota_per_day: 1000, mode: shadow}]
consumers: [{id: acme, plan: pro}]
tenants: [{id: "*", limits: {rate: 9000/second, mode: shadow}}, {id: main, hosts: [a.test], limits: {rate: 900/second, mode: shadow}}]
`, nil)
	req, err := ParseRequest("GET", "https://a.test/r", nil)
	if err != nil {
		t.Fatal(err)
	}
	verdicts := p.Explain(req, Caller{Consumer: "acme"}, time.Unix(1000, 0)).Verdicts
	if len(verdicts) != 4 || slices.ContainsFunc(verdicts, func(v Verdict) bool { return !v.Shadow }) {
		t.Errorf("%+v", verdicts)
	}
}
