package contract

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// designDocument is the document of DESIGN section 4 as it stands there, completed by what it refers to.
const designDocument = `version: v1
routes:
  - id: orders-read
    match: {host: api.example.com, path: "/v1/orders/{id}", methods: [GET]}   # or path_prefix
    upstream: orders-read            # or split
    auth: customer-jwt               # a policy; none or absent = public
    timeout: 800ms
    retry: {attempts: 1, conditions: [connect-failure, reset-before-headers]}   # attempts = retries after the first
    limits: {tenant: 1000/second, user: 20/second}
    priority: critical
    owner: team-orders
upstreams:  [{id: orders-read, discovery: {consul: orders}, balance: p2c, pool: {max_connections: 256, max_pending: 512}},   # pool figures are per node
             {id: static-one, endpoints: ["10.0.0.7:8080", "10.0.0.8:8080"]}]
policies:   [{id: customer-jwt, jwt: {issuer: "https://id.example.com", audience: api, jwks: "https://id.example.com/keys", scopes: [orders]}}]
plans:      [{id: pro, rate_per_sec: 1000, quota_per_day: 10000000}]
consumers:  [{id: acme, plan: pro, api_key_hashes: ["sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]}]
tenants:    [{id: acme, hosts: [acme.api.example.com], shard: 2, class: public}]
samples:    [{request: {method: GET, url: "https://api.example.com/v1/orders/7"}, expect: {route: orders-read, upstream: orders-read}}]
`

func document(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "doc.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// oneRoute is a small valid document whose route and upstream are given.
func oneRoute(route, upstream string) string {
	return "version: v1\nroutes:\n  - {id: r, upstream: u, " + route + "}\nupstreams:\n  - {id: u, " + upstream + "}\n"
}

const plainUpstream = `endpoints: ["10.0.0.1:80"]`

func TestTheDocumentOfTheDesignIsValid(t *testing.T) {
	name := document(t, designDocument)
	if out := run(t, "regionctl", "config", "validate", name); out.Code != 0 || !strings.HasPrefix(out.Stdout, "valid: 1 routes, 2 upstreams") {
		t.Fatalf("%+v", out)
	}
	out := run(t, "regionctl", "config", "explain", "GET", "https://api.example.com/v1/orders/7", "--document", name, "-o", "json")
	var e struct {
		Route, Tenant, Auth string
		Limits              map[string]string
	}
	if err := json.Unmarshal([]byte(out.Stdout), &e); err != nil || e.Route != "orders-read" || e.Tenant != "default" || e.Auth != "customer-jwt" ||
		e.Limits["tenant"] != "1000/second" || e.Limits["scope"] != "global" {
		t.Fatalf("%v %+v %+v", err, e, out)
	}
}

// What each policy makes of a request, and what it does when what it needs is lost, in words and as JSON.
func TestExplainTellsTheVerdictsOfPolicies(t *testing.T) {
	name := document(t, designDocument)
	explain := func(args ...string) string {
		t.Helper()
		out := run(t, append([]string{"regionctl", "config", "explain", "https://api.example.com/v1/orders/7", "--document", name}, args...)...)
		if out.Code != 0 {
			t.Fatalf("%+v", out)
		}
		return out.Stdout
	}
	for _, want := range []string{"customer-jwt (jwt): refuses with 401 token_missing", "fails closed", "refuses with 503 auth_unavailable", "tenant default on this route (limit): depends: 1000/second; beyond: 429 rate_tenant", "on loss of the quota service: local_share"} {
		if text := explain(); !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	claims := document(t, `{"iss":"https://id.example.com","aud":"api","sub":"alice","scope":"orders","exp":4000000000}`)
	var e struct {
		Verdicts []struct {
			Policy, Kind, Verdict, Reason, Why, Fails string
			OnFailure                                 string `json:"on_failure"`
		}
	}
	if err := json.Unmarshal([]byte(explain("--claims", claims, "-o", "json")), &e); err != nil || len(e.Verdicts) < 2 {
		t.Fatalf("%v %+v", err, e)
	}
	if v := e.Verdicts[0]; v.Policy != "customer-jwt" || v.Verdict != "depends" || !strings.Contains(v.Why, "alice") || v.Fails != "closed" || v.OnFailure == "" {
		t.Errorf("%+v", v)
	}
	for _, bad := range []string{document(t, "[]"), document(t, "null"), "/no/such/file"} {
		if out := run(t, "regionctl", "config", "explain", "https://api.example.com/v1/orders/7", "--document", name, "--claims", bad); out.Code != 2 || out.Stderr == "" {
			t.Errorf("%s: %+v", bad, out)
		}
	}
}

// "A flat route and the API's spellings normalise to the same checksum; config fmt prints the canonical form."
func TestFlatRoutesAndTheSpellingsOfTheAPIMeanTheSame(t *testing.T) {
	flat := strings.NewReplacer(
		`    match: {host: api.example.com, path: "/v1/orders/{id}", methods: [GET]}`, "    host: api.example.com\n    path: /v1/orders/{id}\n    methods: [GET]",
		"upstream: orders-read            #", "upstream_id: orders-read #", "auth: customer-jwt ", "policy_ids: [customer-jwt] ",
		"timeout: 800ms", "timeout_ms: 800", "owner:", "owner_team:", "balance: p2c", "lb: p2c",
	).Replace(designDocument)
	a, b := document(t, designDocument), document(t, flat)
	first, second := run(t, "regionctl", "config", "fmt", a), run(t, "regionctl", "config", "fmt", b)
	if first.Code != 0 || first.Stdout != second.Stdout {
		t.Fatalf("%+v\n%+v", first, second)
	}
	if again := run(t, "regionctl", "config", "fmt", document(t, first.Stdout)); again.Stdout != first.Stdout {
		t.Fatalf("not idempotent:\n%s", again.Stdout)
	}
	if out := run(t, "regionctl", "config", "diff", a, b); out.Code != 0 || out.Stdout != "no difference\n" {
		t.Fatalf("%+v", out)
	}
	if out := run(t, "regionctl", "config", "fmt", "-w", b); out.Code != 0 {
		t.Fatalf("%+v", out)
	}
	if raw, err := os.ReadFile(b); err != nil || string(raw) != first.Stdout {
		t.Fatalf("%v\n%s", err, raw)
	}
}

// "Problems print as FILE:LINE: path.in.document: what is wrong (hint); validation exits 1 with all of them."
func TestEveryProblemIsPrintedInOneRun(t *testing.T) {
	name := document(t, `version: v1
routes:
  - id: one
    match: {host: api.example.com, path: /one}
    upstream: gone
  - id: two
    match: {host: api.example.com, path: /two}
    upstream: u
    timeout: 0s
  - id: three
    match: {host: api.example.com, path: /three}
    upstream: u
    colour: blue
  - {id: four, upstream: u, retry: {attempts: 3}, match: {host: api.example.com, path: /four}}
  - {id: five, upstream: u, match: {host: api.example.com, path_prefix: /}}
  - {id: six, upstream: u, owner: team-a, match: {host: api.example.com, path: "/x/{a}"}}
  - {id: seven, upstream: u, owner: team-b, match: {host: api.example.com, path: "/x/{b}"}}
  - {id: eight, upstream: u, auth: nobody, match: {host: api.example.com, path: /eight}}
  - {id: nine, upstream: u, match: {host: api.example.com, path: /nine}, retry: {attempts: 2}, timeout: 20ms}
upstreams:
  - {id: u, endpoints: ["169.254.169.254:80"]}
  - {id: local, endpoints: ["127.0.0.1:80"]}
policies:
  - {id: p, telepathy: {}}
`)
	out := run(t, "regionctl", "config", "validate", name)
	lines := strings.Split(strings.TrimSuffix(out.Stdout, "\n"), "\n")
	want := []string{
		`5: routes[0].upstream: there is no upstream "gone"`, `9: routes[1].timeout: `, `13: routes[2].colour: unknown key`,
		`14: routes[3].retry.attempts: `, `15: routes[4].match.path_prefix: `, `17: routes[6]: route "seven" .*team-b and team-a`,
		`18: routes[7].auth: `, `19: routes[8].retry: `, `21: upstreams[0].endpoints[0]: `, `22: upstreams[1].endpoints[0]: `,
		`24: policies[0]: `, `24: policies[0].telepathy: unknown key`,
	}
	if out.Code != 1 || len(lines) != len(want) {
		t.Fatalf("exit %d with %d problems:\n%s", out.Code, len(lines), out.Stdout)
	}
	for i := range want {
		pattern := "^" + regexp.QuoteMeta(name+":") + strings.ReplaceAll(regexp.QuoteMeta(want[i]), `\.\*`, ".*") + `.*\(.+\)$`
		if !regexp.MustCompile(pattern).MatchString(lines[i]) {
			t.Errorf("line %d: %s\nwant %s", i, lines[i], pattern)
		}
	}
}

// "Only broken YAML stops validation; no other fault hides one elsewhere."
func TestBrokenYAMLHidesNothingInOtherFiles(t *testing.T) {
	broken := document(t, "version: v1\nroutes: [{id: a\n")
	faulty := document(t, oneRoute("match: 7", "endpoints: 8"))
	out := run(t, "regionctl", "config", "validate", broken, faulty)
	for _, want := range []string{broken + ":2: not valid YAML", faulty + ":3: routes[0].match: must be a mapping", faulty + ":5: upstreams[0].endpoints: must be a list"} {
		if !strings.Contains(out.Stdout, want) {
			t.Errorf("%q is missing in\n%s", want, out.Stdout)
		}
	}
	if out.Code != 1 {
		t.Errorf("exit %d", out.Code)
	}
}

// The sentences about match: one of path and path_prefix, whole segments, allow_catch_all, host without port, literals.
func TestTheRulesOfMatch(t *testing.T) {
	for match, valid := range map[string]bool{
		"match: {host: a.test, path: /x}":                                           true,
		"match: {host: a.test}":                                                     false,
		"match: {host: a.test, path: /x, path_prefix: /x}":                          false,
		"match: {host: a.test, path_prefix: /}":                                     false,
		"match: {host: a.test, path_prefix: /, allow_catch_all: true}":              true,
		"match: {path: /x}":                                                         false,
		"match: {path: /x, allow_catch_all: true}":                                  true,
		"match: {host: 127.0.0.1, path: /x}":                                        true,
		`match: {host: "[::1]", path: /x}`:                                          true,
		`match: {host: "*.a.test", path: "/{x}/y"}`:                                 true,
		`match: {host: a.test, path: "/x{y}"}`:                                      false,
		"match: {host: a.test, path: /x}, path: /y":                                 false,
		"match: {host: a.test, path: /x, methods: [get]}":                           false,
		"match: {host: a.test, path: /x, headers: {x-v: '2'}, query: {a: b}}":       true,
		"match: {host: a.test, path: /x}, timeout: 800":                             false,
		"match: {host: a.test, path: /x}, limits: {tenant: 5/fortnight}":            false,
		"match: {host: a.test, path: /x}, limits: {tenant: 5/minute, user: 1/hour}": true,
		"match: {host: a.test, path: /x}, priority: normal":                         true,
		"match: {host: a.test, path: /x}, auth: none":                               true,
	} {
		out := run(t, "regionctl", "config", "validate", document(t, oneRoute(match, plainUpstream)))
		if (out.Code == 0) != valid {
			t.Errorf("%s: exit %d\n%s", match, out.Code, out.Stdout)
		}
	}
	name := document(t, oneRoute("match: {host: a.test, path_prefix: /v1/orders}", plainUpstream))
	for url, answer := range map[string]string{
		"https://A.test:8443/v1/orders": `"route": "r"`, "https://a.test/v1/orders/7": `"route": "r"`, "https://a.test/v1/ordersX": `"status": 404`,
	} {
		if out := run(t, "regionctl", "config", "explain", url, "--document", name, "-o", "json"); !strings.Contains(out.Stdout, answer) {
			t.Errorf("%s: %+v", url, out)
		}
	}
}

// "Loopback upstreams are refused … unless --allow-upstreams; RFC 1918 and ULA are ordinary; link-local and metadata are
// refused everywhere; identity URLs must be https."
func TestAddressesThatUpstreamsMayName(t *testing.T) {
	const ok, allowed, never = 0, 1, 2
	for address, kind := range map[string]int{
		"10.1.2.3:80": ok, "192.168.0.1:80": ok, "172.16.0.1:80": ok, "[fd00::1]:80": ok, "203.0.113.9:80": ok, "up.example.com:80": ok,
		"127.0.0.1:80": allowed, "127.8.9.10:80": allowed, "localhost:80": allowed,
		"169.254.169.254:80": never, "169.254.1.1:80": never, "[fe80::1]:80": never, "0.0.0.0:80": never, "[::]:80": never,
		"224.0.0.1:80": never, "[ff02::1]:80": never, "255.255.255.255:80": never, "[::ffff:169.254.169.254]:80": never,
		"100.100.100.200:80": never, "[fd00:ec2::254]:80": never, "metadata.google.internal:80": never, "2130706433:80": never, "0x7f.1:80": never,
		"10.0.0.1": never, "10.0.0.1:0": never, "10.0.0.1:99999": never,
	} {
		name := document(t, oneRoute("match: {host: a.test, path: /x}", `endpoints: ["`+address+`"]`))
		plain := run(t, "regionctl", "config", "validate", name)
		loose := run(t, "regionctl", "config", "validate", name, "--allow-upstreams", "127.0.0.0/8")
		if (plain.Code == 0) != (kind == ok) || (loose.Code == 0) != (kind != never) {
			t.Errorf("%s: exit %d, with permission %d\n%s", address, plain.Code, loose.Code, plain.Stdout)
		}
	}
	for url, valid := range map[string]bool{
		"https://id.example.com/keys": true, "http://id.example.com/keys": false, "https://127.0.0.1/keys": false, "https://169.254.169.254/": false, "file:///etc/passwd": false,
	} {
		doc := oneRoute("match: {host: a.test, path: /x}", plainUpstream) + `policies: [{id: p, jwt: {issuer: i, audience: a, jwks: "` + url + `"}}]` + "\n"
		if out := run(t, "regionctl", "config", "validate", document(t, doc)); (out.Code == 0) != valid {
			t.Errorf("%s: exit %d\n%s", url, out.Code, out.Stdout)
		}
	}
}

func TestWrongUseOfConfigExitsTwoAndMissingFilesOne(t *testing.T) {
	for _, c := range []struct {
		code int
		args []string
	}{
		{2, []string{"validate"}}, {2, []string{"validate", "x", "--allow-upstreams", "nonsense"}}, {2, []string{"validate", "x", "-o", "xml"}},
		{2, []string{"diff", "one"}}, {2, []string{"nonsense"}}, {1, []string{"validate", "/no/such/file.yaml"}},
	} {
		if out := run(t, append([]string{"regionctl", "config"}, c.args...)...); out.Code != c.code || out.Stderr == "" {
			t.Errorf("%q: %+v", c.args, out)
		}
	}
}
