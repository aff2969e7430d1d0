package program

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/problem"
	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

const document = `version: v1
routes:
  - {id: read, match: {host: api.example.com, path: "/v1/orders/{id}", methods: [GET]}, upstream: two, auth: tokens, owner: team-a}
  - id: write
    match: {host: api.example.com, path_prefix: /v1/orders, methods: [POST]}
    split: [{upstream: one, weight: 95}, {upstream: two, weight: 5}]
    timeout: 800ms
    retry: {attempts: 2, conditions: [connect-failure, "503"]}
    priority: critical
  - {id: tenants, match: {host: "*.shop.example.com", path: /}, upstream: one}
upstreams:
  - {id: two, endpoints: ["10.0.0.2:80"], pool: {max_pending: 3}}
  - {id: one, endpoints: ["10.0.0.1:80"]}
policies: [{id: keys, api_key: {}}, {id: tokens, jwt: {issuer: i, audience: a, jwks: "https://i.example.com/k"}}]
plans: [{id: pro, rate_per_sec: 50}]
consumers: [{id: acme, plan: pro, api_key_hashes: ["HASH"]}, {id: zero}]
tenants: [{id: shop, hosts: ["*.shop.example.com"]}, {id: main, hosts: [api.example.com]}]
`

func text() string {
	sum := sha256.Sum256([]byte("cg_secret"))
	return strings.Replace(document, "HASH", "sha256:"+hex.EncodeToString(sum[:]), 1)
}

func validate(t testing.TB, text string) (*snapshot.Config, problem.List) {
	t.Helper()
	return Validate([]snapshot.File{{Name: "d.yaml", Data: []byte(text)}}, snapshot.Allow{})
}

func snap(t testing.TB, text string, number uint64) *snapshot.Snapshot {
	t.Helper()
	cfg, problems := validate(t, text)
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	s, err := snapshot.Seal(cfg, snapshot.Meta{Number: number})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func compile(t testing.TB, text string, prev *Program) *Program {
	t.Helper()
	p, err := Compile(snap(t, text, 3), prev)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func look(t testing.TB, p *Program, method, url string) (Match, reason.Reason) {
	t.Helper()
	req, err := ParseRequest(method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	var m Match
	return m, p.Lookup(req, &m)
}

func TestARequestFindsItsRouteTenantAndEverythingCompiled(t *testing.T) {
	p := compile(t, text(), nil)
	req, err := ParseRequest("POST", "http://API.example.com:8080/v1/./orders/7/lines", nil)
	if err != nil {
		t.Fatal(err)
	}
	var m Match
	if why := p.Lookup(req, &m); why != reason.None || m.Route.ID != "write" || m.Tenant != "main" {
		t.Fatalf("%v %+v", why, m)
	}
	r := m.Route
	if p.Upstreams[r.Branches[0].Upstream].ID != "one" || r.Branches[0].Weight != 95 || p.Upstreams[r.Branches[1].Upstream].ID != "two" {
		t.Errorf("branches %+v", r.Branches)
	}
	if r.Retry != (Retry{2, OnConnectFailure | On503}) || r.Timeout.Milliseconds() != 800 || r.Priority != "critical" || r.Policy != -1 {
		t.Errorf("%+v", r)
	}
	m, why := Match{}, reason.None
	req.Method, req.Path = "GET", "/v1/orders/7"
	if why = p.Lookup(req, &m); why != reason.None || p.Policies[m.Route.Policy].ID != "tokens" || m.Route.Timeout != snapshot.DefaultTimeout {
		t.Errorf("%v %+v", why, m.Route)
	}
	if u := p.Upstreams[0]; u.ID != "one" || u.Balance != "p2c" || u.Pool != snapshot.DefaultPool() {
		t.Errorf("upstream defaults: %+v", u)
	}
	if u := p.Upstreams[1]; u.Pool.MaxPending != 3 || u.Pool.MaxConnections != snapshot.DefaultPool().MaxConnections {
		t.Errorf("upstream: %+v", u)
	}
}

// Patterns go on when their shard is taken over, and when it is compiled anew under other names.
func TestARoutesPatternIsItsAuthorsPath(t *testing.T) {
	document := func(more string) string {
		return `
routes:
  - {id: a, match: {host: a.example, path: "/v1/{x}/b"}, upstream: u}
  - {id: b, match: {host: a.example, path_prefix: /v1}, upstream: u}
  - {id: c, match: {host: b.example, path_prefix: /, allow_catch_all: true}, upstream: u}
  - {id: d, match: {host: b.example, path: /}, upstream: u}
upstreams: [{id: u, endpoints: ["10.0.0.1:80"]}` + more + `]
`
	}
	p := compile(t, document(""), nil)
	for i, p := range []*Program{p, compile(t, document(""), p), compile(t, document(`, {id: t, endpoints: ["10.0.0.1:80"]}`), p)} {
		for url, want := range map[string]string{"a.example/v1/7/b": "/v1/{x}/b", "a.example/v1/7": "/v1/*", "a.example/v1": "/v1/*", "b.example/x": "/*", "b.example/": "/", "c.example/": ""} {
			req, err := ParseRequest("GET", "https://"+url, nil)
			if err != nil {
				t.Fatal(err)
			}
			var m Match
			if p.Lookup(req, &m); p.Pattern(&m) != want {
				t.Errorf("%d: %s is taken by %q, not %q", i, url, p.Pattern(&m), want)
			}
		}
	}
}

// A shard that is taken over asks its hosts' clients for what the policies say now.
func TestClientsAreAskedForCertificatesOnceATokenNeedsThem(t *testing.T) {
	document := func(bound string) string {
		return `
routes: [{id: a, match: {host: a.example, path: /}, upstream: u, auth: p}]
upstreams: [{id: u, endpoints: ["10.0.0.1:80"]}]
policies: [{id: p, jwt: {issuer: i, audience: a, jwks: "https://id.example/keys"` + bound + `}}]
`
	}
	p := compile(t, document(""), nil)
	if p.AsksClients() {
		t.Error("certificates are asked for that nobody needs")
	}
	p = compile(t, document(", certificate_bound: true"), p)
	if trust := p.Trust("a.example"); trust == nil || trust.Hint != nil || p.Trust("b.example") != nil {
		t.Errorf("%+v", trust)
	}
	if p = compile(t, document(""), p); p.AsksClients() {
		t.Error("certificates are asked for that nobody needs any more")
	}
}

// TestTheTenantComesFromTheHostAlone is A7.
func TestTheTenantComesFromTheHostAlone(t *testing.T) {
	p := compile(t, text(), nil)
	for host, want := range map[string]string{"api.example.com": "main", "a.shop.example.com": "shop", "a.b.shop.example.com": "default", "other.example.com": "default"} {
		req, err := ParseRequest("GET", "https://"+host+"/nothing", nil)
		if err != nil {
			t.Fatal(err)
		}
		var m Match
		if why := p.Lookup(req, &m); why != reason.NoRoute || m.Tenant != want {
			t.Errorf("%s: %v %q, want %q", host, why, m.Tenant, want)
		}
	}
}

func TestConsumersAreFoundByKeyAndById(t *testing.T) {
	p := compile(t, text(), nil)
	if got := p.Plan("acme").Rate.Rate; got != 50 {
		t.Errorf("the plan of acme gives %v", got)
	}
	if got := p.Plan("nobody"); got != nil {
		t.Errorf("the plan of nobody gives %v", got)
	}
	if p.Identity.APIKeys == nil {
		t.Fatal("no key table")
	}
}

func TestUnchangedShardsAreTakenOver(t *testing.T) {
	first := compile(t, text(), nil)
	s := snap(t, strings.Replace(text(), "timeout: 800ms", "timeout: 900ms", 1), 4)
	for _, shard := range s.Manifest.Shards {
		for _, old := range first.shards {
			if shard.Digest == old.digest {
				delete(s.Blobs, shard.Digest) // a node need not have fetched what it has compiled
			}
		}
	}
	second, err := Compile(s, first)
	if err != nil {
		t.Fatal(err)
	}
	all, reused := second.Shards()
	if all != 2 || reused != 1 || second.Identity.APIKeys != first.Identity.APIKeys {
		t.Fatalf("%d of %d shards reused", reused, all)
	}
	req, err := ParseRequest("POST", "https://api.example.com/v1/orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	var a, b Match
	first.Lookup(req, &a)
	second.Lookup(req, &b)
	if a.Route.Timeout.Milliseconds() != 800 || b.Route.Timeout.Milliseconds() != 900 {
		t.Fatalf("%v %v", a.Route.Timeout, b.Route.Timeout)
	}
}

// TestReusedShardsFollowRenumberedUpstreams: a new upstream shifts the numbers of the others.
func TestReusedShardsFollowRenumberedUpstreams(t *testing.T) {
	first := compile(t, text(), nil)
	more := strings.Replace(text(), "upstreams:\n", "upstreams:\n  - {id: a-new-one, endpoints: [\"10.0.0.9:80\"]}\n", 1)
	p := compile(t, more, first)
	req, err := ParseRequest("GET", "https://api.example.com/v1/orders/7", nil)
	if err != nil {
		t.Fatal(err)
	}
	var m Match
	if why := p.Lookup(req, &m); why != reason.None || p.Upstreams[m.Route.Branches[0].Upstream].ID != "two" {
		t.Fatalf("%v %+v", why, m.Route)
	}
	for i, sh := range p.shards {
		if sh.table != first.shards[i].table {
			t.Error("a table was compiled again")
		}
	}
}

func TestDamagedAndDanglingSnapshotsAreRefused(t *testing.T) {
	for name, harm := range map[string]func(cfg *snapshot.Config){
		"upstream gone":  func(cfg *snapshot.Config) { cfg.Upstreams = cfg.Upstreams[:1] },
		"policy gone":    func(cfg *snapshot.Config) { cfg.Policies = nil },
		"no destination": func(cfg *snapshot.Config) { cfg.Routes[0].Upstream = "" },
		"bad method":     func(cfg *snapshot.Config) { cfg.Routes[0].Match.Methods = []string{"BREW"} },
		"bad path":       func(cfg *snapshot.Config) { cfg.Routes[0].Match.Path = "no slash" },
		"no path":        func(cfg *snapshot.Config) { cfg.Routes[0].Match.Path = "" },
		"bad hash":       func(cfg *snapshot.Config) { cfg.Consumers[0].APIKeyHashes = []string{"sha256:xx"} },
	} {
		cfg, problems := validate(t, text())
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		harm(cfg)
		s, err := snapshot.Seal(cfg, snapshot.Meta{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Compile(s, nil); !errors.Is(err, errProgram) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s := snap(t, text(), 1)
	for d := range s.Blobs {
		s.Blobs[d] = append([]byte{}, s.Blobs[d]...)
		s.Blobs[d][0] ^= 1
	}
	if _, err := Compile(s, nil); err == nil {
		t.Error("damaged blobs are compiled")
	}
}

// TestSamplesAreReplayed is B4.
func TestSamplesAreReplayed(t *testing.T) {
	samples := text() + `samples:
  - {request: {method: GET, url: "https://api.example.com/v1/orders/7"}, expect: {route: read, upstream: two}}
  - {request: {method: POST, url: "https://api.example.com/v1/orders/7"}, expect: {route: write, upstream: two}}
  - {request: {method: PUT, url: "https://api.example.com/v1/orders/7"}, expect: {status: 405}}
  - {request: {url: "https://api.example.com/v2"}, expect: {status: 404}}
  - {request: {url: "https://api.example.com/v1%2forders"}, expect: {status: 400}}
  - {request: {url: "https://api.example.com/v1/orders/7"}, expect: {route: write}}
  - {request: {url: "https://api.example.com/v1/orders/7"}, expect: {upstream: one}}
  - {request: {url: "https://api.example.com/v1/orders/7"}, expect: {status: 404}}
  - {request: {url: "https://api.example.com/v1/orders"}, expect: {route: read}}
  - {request: {url: "https://api.example.com/v1/%00"}, expect: {route: read}}
`
	_, problems := validate(t, samples)
	var got []string
	for _, p := range problems {
		got = append(got, p.Path)
	}
	if want := "samples[5] samples[6] samples[7] samples[8] samples[9]"; strings.Join(got, " ") != want {
		t.Fatalf("got %s:\n%v", got, problems)
	}
	if line := problems[0].Line; line != 24 {
		t.Errorf("line %d", line)
	}
}

// TestASampleIsReplayedAlsoBesideOtherFaults: no fault hides one elsewhere, and none makes up a second one.
func TestASampleIsReplayedAlsoBesideOtherFaults(t *testing.T) {
	broken := strings.Replace(text(), "upstream: two, auth: tokens", "upstream: gone, auth: tokens", 1)
	broken = strings.Replace(broken, `path: /}`, `path: "//"}`, 1) + `samples:
  - {request: {url: "https://api.example.com/v1/orders/7"}, expect: {route: write}}
  - {request: {url: "https://a.shop.example.com/"}, expect: {route: tenants}}
`
	_, problems := validate(t, broken)
	var got []string
	for _, p := range problems {
		got = append(got, p.Path)
	}
	if want := "routes[0].upstream routes[2].match.path samples[0]"; strings.Join(got, " ") != want {
		t.Fatalf("got %s:\n%v", got, problems)
	}
}

func TestExplainShowsTheRoutesItPassedOver(t *testing.T) {
	p := compile(t, text(), nil)
	req, err := ParseRequest("POST", "https://api.example.com/v1/orders/7", nil)
	if err != nil {
		t.Fatal(err)
	}
	e := p.Explain(req, Caller{}, time.Now())
	if len(e.Considered) != 2 || e.Considered[0] != (Considered{"read", "team-a", "method"}) || e.Considered[1] != (Considered{"write", "", "taken"}) {
		t.Errorf("%+v", e.Considered)
	}
	if e.Route != "write" || e.Tenant != "main" || len(e.Upstreams) != 2 {
		t.Errorf("%+v", e)
	}
	req.Method = "DELETE"
	if e := p.Explain(req, Caller{}, time.Now()); e.Status != 405 || e.Allow != "GET, POST" || e.Reason != "method_not_allowed" {
		t.Errorf("%+v", e)
	}
}

func TestMethodNotAllowedCarriesAllow(t *testing.T) {
	p := compile(t, text(), nil)
	if m, why := look(t, p, "PUT", "https://api.example.com/v1/orders/7"); why != reason.MethodNotAllowed || m.Allow != "GET, POST" {
		t.Fatalf("%+v %v", m, why)
	}
}

// TestPatternsThatDocumentsMayNameAreNormalForms: otherwise a route would be published that no request can reach.
func TestPatternsThatDocumentsMayNameAreNormalForms(t *testing.T) {
	piece := rapid.SampledFrom([]string{"a", "/", ".", "..", "%", "%2", "%41", "%20", "%2F", "%25", "%2541", "%C3", "%A9", "%c3", "é", ";", "*", "{", "~", " ", "?", "|"})
	rapid.Check(t, func(t *rapid.T) {
		raw := "/" + strings.Join(rapid.SliceOfN(piece, 0, 5).Draw(t, "pieces"), "")
		if strings.ContainsAny(raw, "\"\\") {
			return
		}
		doc := "version: v1\nupstreams: [{id: u, endpoints: [\"10.0.0.1:80\"]}]\nroutes: [{id: r, host: h, path: \"" + raw + "\", upstream: u}]\n"
		_, problems := snapshot.Decode([]snapshot.File{{Name: "d", Data: []byte(doc)}}, snapshot.Allow{})
		clean, err := path.Normalize(nil, raw)
		normal := err == nil && string(clean) == raw
		if len(problems) == 0 && !normal {
			t.Fatalf("%q is accepted, but requests have %q, %v", raw, clean, err)
		}
		wildcard := strings.Contains(raw+"/", "/*/") || strings.Contains(raw+"/", "/**/")
		if len(problems) > 0 && normal && !wildcard {
			t.Fatalf("%q is refused, but requests can have it: %v", raw, problems)
		}
	})
}

func TestRoutesThatMakeLookupsLongAreRefusedWithTheirLine(t *testing.T) {
	doc := "version: v1\nupstreams: [{id: up, endpoints: [\"10.0.0.1:80\"]}]\nroutes:\n"
	for n := range 1 << 9 {
		p := ""
		for i := range 9 {
			p += []string{"/a", fmt.Sprintf("/{x%d}", i)}[n>>i&1]
		}
		doc += fmt.Sprintf("  - {id: r%d, match: {host: a.example, path: %q}, upstream: up}\n", n, p)
	}
	_, problems := Validate([]snapshot.File{{Name: "doc.yaml", Data: []byte(doc)}}, snapshot.Allow{})
	if len(problems) != 1 || problems[0].File != "doc.yaml" || problems[0].Line < 4 || !strings.HasPrefix(problems[0].Path, "routes[") {
		t.Fatalf("%v", problems)
	}
	if !strings.Contains(problems[0].Message, "a.example") {
		t.Fatal(problems[0].Message)
	}
}

// What routes ask of callers follows its policy by name, whatever is numbered otherwise by then; what can't be asked is never left out.
func TestRulesFollowTheirPoliciesAndAreNeverLeftOut(t *testing.T) {
	with := func(policies string) string {
		text := strings.Replace(text(), "auth: tokens,", "auth: tokens, policies: [staff],", 1)
		return strings.Replace(text, "policies: [{", "policies: ["+policies+", {", 1)
	}
	const staff = "{id: staff, authz: {consumers: [acme]}}"
	first := compile(t, with(staff), nil)
	for i, p := range []*Program{first, compile(t, with("{id: admins, authz: {roles: [x]}}, "+staff), first), compile(t, with(strings.Replace(staff, "acme", "zero", 1)), first)} {
		m, why := look(t, p, "GET", "https://api.example.com/v1/orders/7")
		if why != reason.None || len(m.Route.Rules) != 1 || p.Policies[m.Route.Rules[0]].ID != "staff" {
			t.Fatalf("%d: %v %+v", i, why, m.Route)
		}
		got := [2]reason.Reason{p.Permits(m.Route, nil, "acme"), p.Permits(m.Route, nil, "zero")}
		if want := [2]reason.Reason{reason.None, reason.ConsumerRefused}; i < 2 && got != want || i == 2 && got == want {
			t.Errorf("%d: %v", i, got)
		}
	}
	m, _ := look(t, first, "GET", "https://api.example.com/v1/orders/7")
	if open, _ := look(t, first, "POST", "https://api.example.com/v1/orders/7"); len(open.Route.Rules) != 0 || !JudgesAlike(first, m.Route, first, m.Route) || JudgesAlike(first, m.Route, first, open.Route) {
		t.Error("other routes are judged alike")
	}
	for name, harm := range map[string]func(*snapshot.Config){
		"no such policy":     func(c *snapshot.Config) { c.Routes[0].Policies = []string{"gone"} },
		"another kind":       func(c *snapshot.Config) { c.Routes[0].Policies = []string{"tokens"} },
		"nobody is a caller": func(c *snapshot.Config) { c.Routes[0].Auth = "" },
	} {
		cfg, _ := validate(t, with(staff))
		harm(cfg)
		s, err := snapshot.Seal(cfg, snapshot.Meta{Number: 4})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Compile(s, nil); err == nil {
			t.Errorf("%s: compiled", name)
		}
	}
}
