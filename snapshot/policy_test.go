package snapshot

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
)

func documentIn(t testing.TB, name string) *Config {
	t.Helper()
	cfg, problems := Decode([]File{testdata(t, name)}, Allow{})
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	return cfg
}

// TestPoliciesHaveTheGoldenForms guards what newer forms add, in documents and as it is stored. What an older reader would pass over
// in silence it must refuse (D9); what it knows it gets as ever.
func TestPoliciesHaveTheGoldenForms(t *testing.T) {
	for kind, reader := range map[string]int{"policies": 2, "callers": 3, "edits": 5, "asked": 7, "certificates": 8, "signed": 9, "tried": 10, "rates": 11, "bound": 12, "revoked": 13} {
		cfg := documentIn(t, kind+".yaml")
		doc, err := Format(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for name, got := range map[string][]byte{kind + ".golden": doc, fmt.Sprintf("form-%d.golden", reader): goldenForm(t, sealed(t, cfg))} {
			if *rewrite {
				if err := os.WriteFile("testdata/"+name, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if want := testdata(t, name).Data; !bytes.Equal(got, want) {
				t.Errorf("%s has changed:\n%s", name, got)
			}
		}
		again, problems := Decode([]File{{"again", doc}}, Allow{})
		if len(problems) > 0 || checksum(t, again) != checksum(t, cfg) {
			t.Errorf("the canonical document means something else: %v", problems)
		}
		opened, err := Open(sealed(t, cfg))
		if err != nil || !reflect.DeepEqual(opened.Policies, cfg.Policies) || !reflect.DeepEqual(opened.Routes, cfg.Routes) ||
			!reflect.DeepEqual(opened.Plans, cfg.Plans) || !reflect.DeepEqual(opened.Tenants, cfg.Tenants) {
			t.Errorf("%v\n%+v\n%+v", err, opened, cfg)
		}
		if m := sealed(t, cfg).Manifest; m.MinReader != reader || m.Form != Form {
			t.Errorf("form %d for readers of %d", m.Form, m.MinReader)
		}
	}
	if m := sealed(t, everyKey(t)).Manifest; m.MinReader != Form {
		t.Errorf("a document of old kinds needs a reader of %d", m.MinReader)
	}
}

func TestEveryRuleOfPoliciesNamesItsFault(t *testing.T) {
	cors := func(fields string) string { return "policies: [{id: p, cors: {" + fields + "}}]" }
	route := func(fields string) string {
		return "routes: [{id: r, host: a.test, path: /x, upstream: u, " + fields + "}]\nupstreams: [{id: u, endpoints: ['10.0.0.1:80']}]\n" +
			"policies: [{id: c1, cors: {origins: ['*']}}, {id: c2, cors: {origins: ['*']}}, {id: key, api_key: {}}]"
	}
	transform := func(fields string) string { return "policies: [{id: p, transform: {" + fields + "}}]" }
	rewritten := func(match, edits string) string {
		return "routes: [{id: r, host: a.test, " + match + ", upstream: u, policies: [p, q]}]\nupstreams: [{id: u, endpoints: ['10.0.0.1:80']}]\n" +
			"policies: [{id: p, transform: {request: {" + edits + "}}}, {id: q, transform: {request: {add: {a: b}}}}]"
	}
	for text, want := range map[string]string{
		transform(""):                                                  "policies[0].transform: changes nothing",
		transform("request: {set: {host: x}}"):                         `policies[0].transform.request.set: "host" is not to be changed`,
		transform("request: {remove: [X_Caller]}"):                     `policies[0].transform.request.remove: "x_caller" is not to be changed`,
		transform("request: {rename: {a: x-forwarded-for}}"):           `policies[0].transform.request.rename: "x-forwarded-for" is not to be changed`,
		transform("request: {rename: {content-length: a}}"):            `policies[0].transform.request.rename: "content-length" is not to be changed`,
		transform("request: {add: {traceparent: a}}"):                  `policies[0].transform.request.add: "traceparent" is not to be changed`,
		transform("request: {set: {authorization: a}}"):                `policies[0].transform.request.set: "authorization" would put a credential`,
		transform("response: {set: {grpc-status: 0}}"):                 `policies[0].transform.response.set: "grpc-status" is not to be changed`,
		transform("response: {remove: [access-control-allow-origin]}"): `policies[0].transform.response.remove: "access-control-allow-origin" is not to be changed`,
		transform("response: {set: {a: \"b\\r\\nc: d\"}}"):             "policies[0].transform.response.set.a: holds control characters",
		transform("response: {set: {a: é}}"):                           "policies[0].transform.response.set: the value of a is not printable ASCII",
		transform("response: {set: {a: x, A: y}}"):                     `policies[0].transform.response.set: "a" stands here twice`,
		transform("response: {set: {'a b': x}}"):                       `policies[0].transform.response.set: "a b" is no name`,
		transform("response: {keep: [date]}"):                          `policies[0].transform.response.keep: "date" is not removed anyway`,
		transform("response: {status: {502: 204}}"):                    "policies[0].transform.response.status: must map statuses",
		transform("response: {status: {101: 200}}"):                    "policies[0].transform.response.status: must map statuses",
		transform("response: {status: [502]}"):                         "policies[0].transform.response.status: must be a mapping",
		transform("request: {path: /a/../b}"):                          `policies[0].transform.request.path: "/a/../b" has a dot segment`,
		transform("request: {path: 'a'}"):                              `policies[0].transform.request.path: "a" does not start with a slash`,
		transform("request: {path: '/a%2fb'}"):                         `policies[0].transform.request.path: "/a%2fb" has a percent-encoding`,
		transform("request: {path: '/a?b'}"):                           `policies[0].transform.request.path: "/a?b" holds "?"`,
		transform("request: {path_prefix: '/{a}'}"):                    `policies[0].transform.request.path_prefix: "/{a}" has parameters`,
		transform("request: {path: /a, path_prefix: /b}"):              "policies[0].transform.request.path_prefix: stands beside path",
		rewritten("path: '/x/{id}'", "path: '/y/{other}'"):             `routes[0].policies: policy "p" uses the parameter {other}`,
		rewritten("path: /x", "path_prefix: /y"):                       `routes[0].policies: policy "p" rewrites a prefix, and the route has none`,
		rewritten("path: /x", "set: {a: "+strings.Repeat("a", 4000)+", b: "+strings.Repeat("a", 4000)+", c: "+strings.Repeat("a", 4000)+", d: "+strings.Repeat("a", 4000)+", e: "+strings.Repeat("a", 4000)+"}"): "routes[0].policies: its transforms add more than 16384 bytes",
		"policies: [{id: p}]": "policies[0]: has exactly one kind",
		"policies: [{id: p, api_key: {}, cors: {origins: ['*']}}]": "policies[0]: has exactly one kind",
		cors(""):                                  "policies[0].cors.origins: names no origin",
		cors("origins: []"):                       "policies[0].cors.origins: names no origin",
		cors("origins: ['*', 'https://a.test']"):  "policies[0].cors.origins: names every origin and others",
		cors("origins: ['*'], credentials: true"): "policies[0].cors.origins: has * beside credentials",
		cors("origins: ['https://a.test'], headers: ['*'], credentials: true"): "policies[0].cors.headers: has * beside credentials",
		cors("origins: ['https://a.test'], methods: ['*'], credentials: true"): "policies[0].cors.methods: has * beside credentials",
		cors("origins: ['https://a.test'], expose: ['*'], credentials: true"):  "policies[0].cors.expose: has * beside credentials",
		cors("origins: [a.test]"):                                                    `policies[0].cors.origins: "a.test" is not an origin`,
		cors("origins: ['HTTPS://a.test']"):                                          `policies[0].cors.origins: "HTTPS://a.test" is not an origin`,
		cors("origins: ['https://A.test']"):                                          `policies[0].cors.origins: "https://A.test" is not in lower case`,
		cors("origins: ['https://a.test/']"):                                         `policies[0].cors.origins: "https://a.test/" has more than`,
		cors("origins: ['https://u@a.test']"):                                        `policies[0].cors.origins: "https://u@a.test" has more than`,
		cors("origins: ['https://a.test:443']"):                                      `policies[0].cors.origins: "https://a.test:443" names the port`,
		cors("origins: ['https://a.test:0']"):                                        `policies[0].cors.origins: "https://a.test:0" has a port`,
		cors("origins: ['https://a.test:08443']"):                                    `policies[0].cors.origins: "https://a.test:08443" has a port`,
		cors("origins: ['https://*']"):                                               `policies[0].cors.origins: "https://*" has a wildcard`,
		cors("origins: ['https://*.test']"):                                          `policies[0].cors.origins: "https://*.test" has a wildcard`,
		cors("origins: ['https://a.*.test']"):                                        `policies[0].cors.origins: "https://a.*.test" has a wildcard`,
		cors("origins: ['https://*a.b.test']"):                                       `policies[0].cors.origins: "https://*a.b.test" has a wildcard`,
		cors("origins: ['https://']"):                                                `policies[0].cors.origins: "https://" has no host`,
		cors("origins: ['https://::1']"):                                             `policies[0].cors.origins: "https://::1" has no host`,
		cors("origins: ['*'], headers: ['a b']"):                                     `policies[0].cors.headers: "a b" is no name`,
		cors("origins: ['*'], methods: ['*', get]"):                                  `policies[0].cors.methods: "get" is not a method that can be routed`,
		cors("origins: ['*'], methods: [CONNECT]"):                                   `policies[0].cors.methods: "CONNECT" is not a method that can be routed`,
		cors("origins: ['*'], max_age: 25h"):                                         "policies[0].cors.max_age: 25h is not within",
		cors("origins: ['*'], max_age: 1500ms"):                                      "policies[0].cors.max_age: is no whole number of seconds",
		cors("origins: ['*'], allow: x"):                                             "policies[0].cors.allow: unknown key",
		route("policies: [c1, c2]"):                                                  `routes[0].policies: policies "c1" and "c2" are both of kind cors`,
		"policies: [{id: p, mode: shadow, transform: {response: {keep: [server]}}}]": "policies[0].mode: has no meaning for transform",
		"policies: [{id: p, mode: dark, api_key: {}}]":                               `policies[0].mode: "dark" is not known`,
		"routes: [{id: r, host: a.test, path: /x, upstream: u, auth: p}]\nupstreams: [{id: u, endpoints: ['10.0.0.1:80']}]\npolicies: [{id: p, mode: shadow, api_key: {}}]": `routes[0].auth: "p" is in shadow mode`,
		route("auth: c1"):           `routes[0].auth: "c1" is of kind cors, which doesn't say who calls`,
		route("policies: [c1, c1]"): `routes[0].policies[1]: "c1" stands here twice`,
	} {
		if _, problems := decodeText("version: v1\n" + text + "\n"); len(problems) != 1 || !strings.Contains(problems[0], want) {
			t.Errorf("%s\ngot  %v\nwant %s", text, problems, want)
		}
	}
	if cfg, problems := decodeText("version: v1\npolicies: [{id: p, mode: shadow, api_key: {}}]"); len(problems) > 0 || sealed(t, cfg).Manifest.MinReader != sinceShadow {
		t.Errorf("an older reader would enforce what is only tried: %v", problems)
	}
	cfg, problems := decodeText("version: v1\n" + route("policies: [key, c1]"))
	if len(problems) > 0 || cfg.Routes[0].Auth != "key" || len(cfg.Routes[0].Policies) != 1 || cfg.Routes[0].Policies[0] != "c1" {
		t.Errorf("%v %+v", problems, cfg.Routes)
	}
}
