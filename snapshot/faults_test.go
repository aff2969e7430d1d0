package snapshot

import (
	"fmt"
	"strings"
	"testing"
)

// TestEveryRuleNamesItsFault holds one faulty snippet a rule (B2) and the problem it must come to, and no other.
func TestEveryRuleNamesItsFault(t *testing.T) {
	const (
		match = "host: a.test, path: /x"
		rest  = "\nupstreams: [{id: u, endpoints: ['10.0.0.1:80']}, {id: v, endpoints: ['10.0.0.2:80']}]\npolicies: [{id: p, api_key: {}}, {id: q, api_key: {}}]\nplans: [{id: pl}]\n"
	)
	route := func(fields string) string { return "version: v1\nroutes: [{id: r, " + fields + "}]" + rest }
	section := func(text string) string { return "version: v1\n" + text + "\n" }
	upstream := func(fields string) string { return section("upstreams: [{id: u, " + fields + "}]") }
	for text, want := range map[string]string{
		"version: v1\nroutes: [{" + match + ", upstream: u}]" + rest:                 "routes[0].id: is missing",
		"version: v1\nroutes: [{id: -r, " + match + ", upstream: u}]" + rest:         `routes[0].id: "-r" is not an id`,
		route("upstream: u, host: a.test"):                                           "routes[0].path: is missing",
		route("upstream: u, path: /x"):                                               "routes[0].host: is missing, so the route takes every host",
		route("upstream: u, host: '*', path: /x"):                                    `routes[0].host: "*" takes every host`,
		route("upstream: u, host: 'a.*.b', path: /x"):                                `routes[0].host: "a.*.b" has a wildcard`,
		route("upstream: u, host: a_b..c, path: /x"):                                 `routes[0].host: "a_b..c" is not a host name`,
		route("upstream: u, host: a.test, path: x"):                                  `routes[0].path: "x" does not start with a slash`,
		route("upstream: u, host: a.test, path: /x//y"):                              `routes[0].path: "/x//y" has an empty segment`,
		route("upstream: u, host: a.test, path: /x/../y"):                            `routes[0].path: "/x/../y" has a dot segment`,
		route("upstream: u, host: a.test, path: '/x/*'"):                             `routes[0].path: "/x/*" has a wildcard`,
		route("upstream: u, host: a.test, path: '/{a}/{a}'"):                         `routes[0].path: "/{a}/{a}" names the parameter a twice`,
		route("upstream: u, host: a.test, path: /a;b"):                               `routes[0].path: "/a;b" holds ";"`,
		route("upstream: u, host: a.test, path: '" + strings.Repeat("/a", 33) + "'"): "routes[0].path: \"" + strings.Repeat("/a", 20) + "…\" is longer than 2048 bytes or 32 segments",
		route("upstream: u, host: a.test, path: '" + params(17) + "'"):               "routes[0].path: \"" + params(17)[:40] + "…\" has more than 16 parameters",
		route("upstream: u, host: a.test, path_prefix: '/{x}'"):                      `routes[0].path_prefix: "/{x}" has parameters`,
		route("upstream: u, methods: [], " + match):                                  "routes[0].methods: is empty",
		route("upstream: u, methods: [CONNECT], " + match):                           `routes[0].methods: "CONNECT" is not a method`,
		route("upstream: u, methods: [GET, GET], " + match):                          `routes[0].methods[1]: "GET" stands here twice`,
		route("upstream: u, methods: GET, " + match):                                 "routes[0].methods: must be a list",
		route("upstream: u, headers: {host: x}, " + match):                           `routes[0].headers: "host" is not a header that can be matched`,
		route("upstream: u, headers: {A: x, a: y}, " + match):                        `routes[0].headers: "a" stands here twice`,
		route("upstream: u, query: [], " + match):                                    "routes[0].query: must be a mapping",
		route(match): "routes[0].upstream: is missing",
		route("upstream: u, upstream_id: u, " + match):                                                           "routes[0].upstream_id: says the same as upstream",
		route("upstream: u, split: [{upstream: v, weight: 1}], " + match):                                        "routes[0].split: stands beside upstream",
		route("split: [{upstream: u, weight: 0}], " + match):                                                     "routes[0].split: has no weight above 0",
		route("split: [{upstream: u, weight: 1}, {upstream: u, weight: 1}], " + match):                           `routes[0].split[1].upstream: "u" stands in the split twice`,
		route("split: [{upstream: u, weight: -1}], " + match):                                                    "routes[0].split[0].weight: -1 is not a number",
		route("split: [{upstream: w, weight: 1}], " + match):                                                     `routes[0].split[0].upstream: there is no upstream "w" (did you mean`,
		route("upstream: u, sticky: user, " + match):                                                             "routes[0].sticky: has nothing to choose from",
		route("split: [{upstream: u, weight: 1}], sticky: cookie, " + match):                                     `routes[0].sticky: "cookie" is not known`,
		route("upstream: u, policies: [p, q], " + match):                                                         `routes[0].policies: policies "p" and "q" both identify the caller`,
		route("upstream: u, auth: null, " + match):                                                               "routes[0].auth: is empty",
		route("upstream: u, timeout: -1s, " + match):                                                             "routes[0].timeout: -1s is not within",
		route("upstream: u, timeout: 2h, " + match):                                                              "routes[0].timeout: 2h is not within",
		route("upstream: u, timeout: 800, " + match):                                                             `routes[0].timeout: "800" is not a duration (give the unit, such as 800ms)`,
		route("upstream: u, timeout_ms: 0, " + match):                                                            "routes[0].timeout_ms: 0 would let no request pass",
		route("upstream: u, timeout: 1s, timeout_ms: 1, " + match):                                               "routes[0].timeout_ms: says the same as timeout",
		route("upstream: u, retry: {conditions: ['503']}, " + match):                                             "routes[0].retry.attempts: is missing",
		route("upstream: u, retry: {attempts: 1, conditions: []}, " + match):                                     "routes[0].retry.conditions: names none",
		route("upstream: u, retry: {attempts: 1, conditions: [500]}, " + match):                                  `routes[0].retry.conditions: "500" is not a condition`,
		route("upstream: u, retry: {attempts: 2}, timeout: 29ms, " + match):                                      "routes[0].retry: 3 attempts don't fit into a timeout of 29ms",
		route("upstream: u, limits: {tenant: 0/second}, " + match):                                               `routes[0].limits.tenant: "0/second" is not a rate`,
		route("upstream: u, limits: {tenant: 1/second, scope: planet}, " + match):                                `routes[0].limits.scope: "planet" is not known`,
		route("upstream: u, limits: {user: 1/second, on_store_loss: pray}, " + match):                            `routes[0].limits.on_store_loss: "pray" is not known`,
		route("upstream: u, limits: {scope: cell}, " + match):                                                    "routes[0].limits.scope: has no rate to apply to",
		route("upstream: u, limits: {on_store_loss: deny}, " + match):                                            "routes[0].limits.on_store_loss: has no limit to apply to",
		route("upstream: u, limits: {user: 1/second, mode: dark}, " + match):                                     `routes[0].limits.mode: "dark" is not known`,
		route("upstream: u, limits: {mode: shadow}, " + match):                                                   "routes[0].limits.mode: has no limit to apply to",
		route("upstream: u, limits: {everyone: 1/second}, " + match):                                             "routes[0].limits.everyone: unknown key",
		route("upstream: u, priority: urgent, " + match):                                                         `routes[0].priority: "urgent" is not known`,
		upstream("balance: p2c"):                                                                                 "upstreams[0].endpoints: is missing",
		upstream("endpoints: []"):                                                                                "upstreams[0].endpoints: is empty",
		upstream("endpoints: ['10.0.0.1:80'], discovery: {dns: 'a.test:80'}"):                                    "upstreams[0].discovery: stands beside endpoints",
		upstream("discovery: {dns: 'localhost:80'}"):                                                             "upstreams[0].discovery.dns: localhost is a loopback name",
		upstream("endpoints: ['10.0.0.1:80', '10.0.0.1:080']"):                                                   "upstreams[0].endpoints[1]: 10.0.0.1:080 stands here twice",
		upstream("endpoints: ['10.0.0.1:80'], lb: random"):                                                       `upstreams[0].lb: "random" is not known`,
		upstream("endpoints: ['10.0.0.1:80'], tls: yes"):                                                         `upstreams[0].tls: "yes" is not known`,
		upstream("endpoints: ['10.0.0.1:80'], tls: {ca: x}"):                                                     "upstreams[0].tls.ca: holds no certificate",
		upstream("endpoints: ['10.0.0.1:80'], tls: {client_cert: x}"):                                            "upstreams[0].tls.client_cert: holds no certificate with its key",
		route("upstream: u, hedge: true, methods: [POST], " + match):                                             "routes[0].hedge: does nothing without GET or HEAD",
		route("upstream: u, hedge: 95, " + match):                                                                "routes[0].hedge: must be true or false",
		upstream("discovery: {dns: orders.internal}"):                                                            "upstreams[0].discovery.dns: orders.internal has no port",
		upstream("discovery: {dns: 'orders.internal:0'}"):                                                        "upstreams[0].discovery.dns: orders.internal:0 has no port",
		upstream("discovery: {dns: '10.0.0.1:80'}"):                                                              "upstreams[0].discovery.dns: 10.0.0.1 is an address",
		upstream("discovery: {dns: _._tcp.internal}"):                                                            "upstreams[0].discovery.dns: _._tcp.internal is no service",
		upstream("discovery: {dns: _orders.internal}"):                                                           "upstreams[0].discovery.dns: _orders.internal is no service",
		upstream("discovery: {dns: 'metadata:80'}"):                                                              "upstreams[0].discovery.dns: metadata names a metadata service",
		upstream("discovery: {consul: 'a b'}"):                                                                   `upstreams[0].discovery.consul: "a b" is not the name of a service`,
		upstream("endpoints: ['10.0.0.1:80'], owner_region: eu"):                                                 "upstreams[0].owner_region: has no endpoint",
		upstream("endpoints: ['10.0.0.1:80'], failover_regions: [eu]"):                                           "upstreams[0].failover_regions: stands without owner_region",
		upstream("endpoints: [{address: '10.0.0.1:80', region: eu}], owner_region: eu, failover_regions: [eu]"):  `upstreams[0].failover_regions: "eu" is not the name of another region`,
		upstream("endpoints: ['10.0.0.1:80'], idempotency: yes please"):                                          `upstreams[0].idempotency: "yes please" is not known`,
		upstream("endpoints: [{zone: a}]"):                                                                       "upstreams[0].endpoints[0].address: is missing",
		upstream("endpoints: [{address: '10.0.0.1:80', zone: 'a b'}]"):                                           `upstreams[0].endpoints[0].zone: "a b" is not the name of a zone`,
		upstream("endpoints: [{address: '10.0.0.1:80', weight: 2}]"):                                             "upstreams[0].endpoints[0].weight: unknown key",
		upstream("endpoints: ['10.0.0.1:80'], balance: hash"):                                                    "upstreams[0].hash: is missing",
		upstream("endpoints: ['10.0.0.1:80'], hash: {on: client}"):                                               "upstreams[0].hash: does nothing without balance: hash",
		upstream("endpoints: ['10.0.0.1:80'], balance: hash, hash: {on: address}"):                               `upstreams[0].hash.on: "address" is nothing to hash`,
		upstream("endpoints: ['10.0.0.1:80'], balance: hash, hash: {on: 'header:a b'}"):                          `upstreams[0].hash.on: "header:a b" is nothing to hash`,
		upstream("endpoints: ['10.0.0.1:80'], balance: hash, hash: {on: 'header:Host'}"):                         `upstreams[0].hash.on: "header:Host" is nothing to hash`,
		upstream("endpoints: ['10.0.0.1:80'], balance: hash, hash: {bound: 120}"):                                "upstreams[0].hash.on: is missing",
		upstream("endpoints: ['10.0.0.1:80'], balance: hash, hash: {on: client, bound: 100}"):                    "upstreams[0].hash.bound: 100 is not a number of 101 to 1000",
		upstream("endpoints: ['10.0.0.1:80'], slow_start: 0s"):                                                   "upstreams[0].slow_start: 0s is not within",
		upstream("endpoints: ['10.0.0.1:80'], outlier: on"):                                                      `upstreams[0].outlier: "on" is not known`,
		upstream("endpoints: ['10.0.0.1:80'], outlier: {most: 101}"):                                             "upstreams[0].outlier.most: 101 is not a number of 1 to 100",
		upstream("endpoints: ['10.0.0.1:80'], breaker: none"):                                                    `upstreams[0].breaker: "none" is not known`,
		upstream("endpoints: ['10.0.0.1:80'], breaker: {failures: 100}"):                                         "upstreams[0].breaker.failures: 100 is not a number of 1 to 99",
		upstream("endpoints: ['10.0.0.1:80'], breaker: {window: 10ms}"):                                          "upstreams[0].breaker.window: 10ms is not within",
		upstream("endpoints: ['10.0.0.1:80'], concurrency: 0"):                                                   "upstreams[0].concurrency: 0 is not a number of 1 to 1000000",
		upstream("endpoints: ['10.0.0.1:80'], concurrency: much"):                                                "upstreams[0].concurrency: must be a whole number",
		upstream("endpoints: ['10.0.0.1:80'], concurrency: {min: 5, max: 4}"):                                    "upstreams[0].concurrency.max: is below min",
		upstream("endpoints: ['10.0.0.1:80'], concurrency: {min: 9, max: 8}"):                                    "upstreams[0].concurrency.max: is below min",
		upstream("endpoints: ['10.0.0.1:80'], fallback: u"):                                                      "upstreams[0].fallback: is the upstream itself",
		upstream("endpoints: ['10.0.0.1:80'], fallback: w"):                                                      `upstreams[0].fallback: there is no upstream "w"`,
		upstream("endpoints: ['10.0.0.1:80'], health: {interval: 1s}"):                                           "upstreams[0].health.path: is missing",
		upstream("endpoints: ['10.0.0.1:80'], health: {path: healthz}"):                                          `upstreams[0].health.path: "healthz" can't be asked for`,
		upstream("endpoints: ['10.0.0.1:80'], health: {path: /, interval: 500ms}"):                               "upstreams[0].health.timeout: is longer than the interval of 500ms",
		upstream("endpoints: ['10.0.0.1:80'], protocol: h3"):                                                     `upstreams[0].protocol: "h3" is not known (one of http1, h2, h2c)`,
		upstream("endpoints: ['10.0.0.1:80'], protocol: h2, tls: off"):                                           "upstreams[0].tls: is off, and h2 is spoken over TLS",
		upstream("endpoints: ['10.0.0.1:80'], protocol: h2c, tls: {server_name: a.test}"):                        "upstreams[0].tls: stands beside h2c",
		upstream("endpoints: ['10.0.0.1:80'], pool: {max_connections: 0}"):                                       "upstreams[0].pool.max_connections: 0 is not a number",
		upstream("endpoints: ['[64:ff9b::7f00:1]:80']"):                                                          "upstreams[0].endpoints[0]: [64:ff9b::7f00:1]:80 embeds 127.0.0.1",
		section("policies: [{id: none, api_key: {}}]"):                                                           "policies[0].id: none means no policy",
		section("policies: [{id: a}]"):                                                                           "policies[0]: has exactly one kind",
		section("policies: [{id: a, api_key: {x: 1}}]"):                                                          "policies[0].api_key.x: unknown key",
		section("policies: [{id: a, jwt: {issuer: i, audience: a, jwks: 'https://id/k', algorithms: [HS256]}}]"): `policies[0].jwt.algorithms: "HS256" is not accepted`,
		section("policies: [{id: a, jwt: {issuer: i, audience: a, jwks: 'https://u:p@id/k'}}]"):                  `policies[0].jwt.jwks: "https://u:p@id/k" has credentials`,
		section("policies: [{id: a, jwt: {issuer: i, jwks: 'https://id/k'}}]"):                                   "policies[0].jwt.audience: is missing",
		section("plans: [{id: a, quota_per_day: 5, scope: cell}]"):                                               "plans[0].scope: has no rate to apply to (a scope is of rate_per_sec; a quota is worldwide)",
		section("plans: [{id: a, on_store_loss: deny}]"):                                                         "plans[0].on_store_loss: has no limit to apply to",
		section("plans: [{id: a, mode: shadow}]"):                                                                "plans[0].mode: has no limit to apply to (a scope is of rate_per_sec; a quota is worldwide)",
		section("plans: [{id: a, rate_per_sec: 5, mode: dark}]"):                                                 `plans[0].mode: "dark" is not known`,
		section("tenants: [{id: a, limits: {mode: shadow}}]"):                                                    "tenants[0].limits.mode: has no limit to apply to (write rate beside it)",
		section("tenants: [{id: a, limits: {rate: 5/second, mode: [shadow]}}]"):                                  "tenants[0].limits.mode",
		route("upstream: u, limits: {}, " + match):                                                               "routes[0].limits: limit nothing (write tenant or user into it, or leave it out)",
		section("tenants: [{id: '*', limits: {}}]"):                                                              "tenants[0].limits: limit nothing (write a rate into it, or leave it out)",
		section("tenants: [{id: a, limits: {scope: cell}}]"):                                                     "tenants[0].limits.scope: has no rate to apply to (write rate beside it)",
		section("tenants: [{id: a, limits: {rate: many}}]"):                                                      `tenants[0].limits.rate: "many" is not a rate`,
		section("consumers: [{id: a, plan: gold}]"):                                                              `consumers[0].plan: there is no plan "gold"`,
		section("consumers: [{id: a, api_key_hashes: [" + hash + ", \"sha256:" + strings.Repeat("0", 64) + "\", \"sha512-256:" + strings.Repeat("0", 64) + "\"]}]"): "consumers[0].api_key_hashes: has 3 keys; a consumer has at most 2",
		section("consumers: [{id: a, api_key_hashes: [abc]}]"):                                                   "consumers[0].api_key_hashes[0]: is not sha256:",
		section("consumers: [{id: a, api_key_hashes: [" + hash + "]}, {id: b, api_key_hashes: [" + hash + "]}]"): `consumers[1].api_key_hashes[0]: is also a key of consumer "a"`,
		section("tenants: [{id: a, hosts: [x.test]}, {id: b, hosts: [X.test]}]"):                                 `tenants[1].hosts[0]: x.test is claimed by tenant "b" and, at doc.yaml:2, by tenant "a"`,
		section("tenants: [{id: '*', class: partner, limits: {rate: 5/second}}]"):                                `tenants[0].class: is not for the tenant "*"`,
		section("tenants: [{id: '*'}]"):                                                                          `tenants[0].limits: is missing`,
		section("consumers: [{id: '*'}]"):                                                                        `consumers[0].id: "*" is not an id`,
		section("tenants: [{id: a, class: royal}]"):                                                              `tenants[0].class: "royal" is not known`,
		section("samples: [{request: {url: /x}, expect: {status: 404}}]"):                                        `samples[0].request.url: "/x" is not an absolute URL`,
		section("samples: [{request: {url: 'https://x'}, expect: {}}]"):                                          "samples[0].expect: expects nothing",
		section("samples: [{request: {url: 'https://x'}, expect: {status: 403}}]"):                               "samples[0].expect.status: must be 400, 404 or 405",
		section("samples: [{expect: {status: 404}}]"):                                                            "samples[0].request: is missing",
		section("routes: 7"): "routes: must be a list",
		section("route: []"): "route: unknown key (did you mean routes?)",
	} {
		_, got := decodeText(text)
		if len(got) != 1 || !strings.HasPrefix(strings.SplitN(got[0], ": ", 2)[1], want) || !strings.HasSuffix(got[0], ")") {
			t.Errorf("%s\ngot  %q\nwant %s", text, got, want)
		}
	}
}

const hash = "'sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08'"

func params(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "/{p%02d}", i)
	}
	return b.String()
}

// TestRoutesThatDifferAreNoConflict: what A3 orders, or no request can fit both, is not refused.
func TestRoutesThatDifferAreNoConflict(t *testing.T) {
	for pair, conflict := range map[[2]string]bool{
		{"path: /x", "path: /x"}:                                               true,
		{"path: '/{a}'", "path: '/{b}'"}:                                       true,
		{"path: '/{a}'", "path: /x"}:                                           false,
		{"path: /x", "path: /x/"}:                                              false,
		{"path_prefix: /x", "path_prefix: /x/"}:                                true,
		{"path: /x", "path_prefix: /x"}:                                        false,
		{"path: /x, methods: [GET]", "path: /x, methods: [POST]"}:              false,
		{"path: /x, methods: [GET, PUT]", "path: /x, methods: [PUT]"}:          true,
		{"path: /x, methods: [GET]", "path: /x"}:                               false,
		{"path: /x, headers: {v: '1'}", "path: /x, headers: {v: '2'}"}:         false,
		{"path: /x, headers: {v: '1'}", "path: /x, headers: {w: '1'}"}:         true,
		{"path: /x, headers: {v: '1'}", "path: /x, query: {v: '1'}"}:           true,
		{"path: /x, headers: {v: '1'}", "path: /x, headers: {v: '1', w: '1'}"}: false,
		{"path: /x, headers: {v: '1'}", "path: /x"}:                            false,
	} {
		text := "version: v1\nupstreams: [{id: u, endpoints: ['10.0.0.1:80']}]\nroutes:\n- {id: a, upstream: u, host: h, " + pair[0] + "}\n- {id: b, upstream: u, host: H, " + pair[1] + "}\n"
		if _, got := decodeText(text); len(got) > 0 != conflict {
			t.Errorf("%q: %q", pair, got)
		}
	}
}

func TestATenantDefinedTwiceIsNamedByItsHosts(t *testing.T) {
	_, problems := Decode([]File{{Name: "doc.yaml", Data: []byte("version: v1\ntenants: [{id: a, hosts: [x.test]}, {id: a, hosts: [x.test]}]\n")}}, Allow{})
	if got := problems.Error(); strings.Contains(got, `""`) || !strings.Contains(got, `claimed by tenant "a" and`) {
		t.Error(got)
	}
}
