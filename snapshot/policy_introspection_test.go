package snapshot

import (
	"strings"
	"testing"
)

// Where no answer holds, every request is a question: the budget is one for that.
func TestADecisionForEveryRequestHasABudgetForIt(t *testing.T) {
	for keys, want := range map[string]int{"": 1000, ", max_stale: 1s": 10, ", lookups_per_sec: 10": 10, ", lookups_per_sec: 1000": 1000, ", max_stale: 1s, lookups_per_sec: 1000": 1000, ", max_stale: 1s, lookups_per_sec: 10": 10} {
		cfg, problems := Decode([]File{{"f", []byte("policies: [{id: p, decision: {url: 'https://a.test/', inputs: [user]" + keys + "}}]")}}, Allow{})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		d := cfg.Policies[0].Decision
		if got := d.OrDefault().PerSecond; got != want {
			t.Errorf("%q: %d", keys, got)
		}
		if (d.PerSecond == 0) != (want == (&Decision{MaxStale: d.MaxStale}).OrDefault().PerSecond) {
			t.Errorf("%q: the default is written out, or what isn't it left out: %d", keys, d.PerSecond)
		}
	}
}

func TestEveryRuleOfQuestionsNamesItsFault(t *testing.T) {
	asks := func(fields string) string {
		return "policies: [{id: p, introspection: {url: 'https://id.test/i', client_id: gw, client_secret_file: s" + fields + "}}]"
	}
	for text, want := range map[string]string{
		"policies: [{id: p, introspection: {}}]":                                                                                   "policies[0].introspection.url: is missing",
		"policies: [{id: p, introspection: {url: 'https://i.test/'}}]":                                                             "policies[0].introspection.client_secret_file: is missing",
		"policies: [{id: p, introspection: {url: 'http://i.test/', client_id: a, client_secret_file: b}}]":                         "policies[0].introspection.url: \"http://i.test/\" must be https",
		"policies: [{id: p, introspection: {url: 'https://169.254.169.254/', client_id: a, client_secret_file: b}}]":               "policies[0].introspection.url",
		"policies: [{id: p, introspection: {url: 'https://u:p@i.test/', client_id: a, client_secret_file: b}}]":                    "has credentials",
		"policies: [{id: p, introspection: {url: 'https://i.test/', client_id: a, client_secret_file: /etc/shadow}}]":              `client_secret_file: "/etc/shadow" is not the name of a file`,
		"policies: [{id: p, introspection: {url: 'https://i.test/', client_id: a, client_secret_file: ../s}}]":                     `client_secret_file: "../s" is not the name of a file`,
		"policies: [{id: p, session: {}}]":                                                                                         "policies[0].session.keys_file: is missing",
		"policies: [{id: p, session: {cookie: 'a b', keys_file: k}}]":                                                              "policies[0].session.cookie",
		"policies: [{id: p, session: {cookie: a, keys_file: ../k}}]":                                                               "policies[0].session.keys_file",
		"policies: [{id: p, session: {cookie: a, keys_file: k, mode: plain}}]":                                                     "policies[0].session.mode",
		"policies: [{id: p, session: {cookie: a, keys_file: k, max_age: 1s}}]":                                                     "policies[0].session.max_age",
		"policies: [{id: p, session: {cookie: a, keys_file: k, origins: ['a.test']}}]":                                             "policies[0].session.origins",
		"policies: [{id: p, session: {cookie: a, keys_file: k, origins: ['https://a.test:443']}}]":                                 "policies[0].session.origins",
		"policies: [{id: p, session: {cookie: a, keys_file: k, origins: ['https://*.a.test']}}]":                                   "policies[0].session.origins",
		"policies: [{id: p, session: {cookie: a, keys_file: k, origins: ['null']}}]":                                               "policies[0].session.origins",
		"policies: [{id: p, session: {cookie: a, keys_file: k, scopes: ['a b']}}]":                                                 "policies[0].session.scopes",
		"policies: [{id: p, jwt: {issuer: i, audience: a, jwks: 'https://id.test/k', scopes: ['a b']}}]":                           "policies[0].jwt.scopes",
		"policies: [{id: p, session: {cookie: a, keys_file: k, origins: ['https://a.test/']}}]":                                    "policies[0].session.origins",
		"policies: [{id: p, decision: {}}]":                                                                                        "policies[0].decision.inputs: is missing",
		"policies: [{id: p, decision: {url: 'https://a.test/', inputs: []}}]":                                                      "policies[0].decision.inputs: names none",
		"policies: [{id: p, decision: {url: 'https://a.test/', inputs: [body]}}]":                                                  "policies[0].decision.inputs: \"body\" is no input",
		"policies: [{id: p, decision: {url: 'https://a.test/', inputs: ['header:']}}]":                                             "policies[0].decision.inputs",
		"policies: [{id: p, decision: {url: 'http://a.test/', inputs: [user]}}]":                                                   "policies[0].decision.url",
		"policies: [{id: p, decision: {url: 'https://a.test/', inputs: [user], max_stale: 6m}}]":                                   "policies[0].decision.max_stale",
		"policies: [{id: p, jwt: {issuer: i, audience: a, jwks: 'https://id.test/k', ignore_cnf: true, certificate_bound: true}}]": "policies[0].jwt.ignore_cnf: contradicts certificate_bound",
		asks(", certificate_bound: true, ignore_cnf: true"):                                                                        "policies[0].introspection.ignore_cnf: contradicts certificate_bound",
		asks(", certificate_bound: 1"):                                                                                             "policies[0].introspection.certificate_bound",
		"policies: [{id: p, jwt: {issuer: i, audience: a, jwks: 'https://id.test/k', algorithms: []}}]":                            "policies[0].jwt.algorithms: names none",
		"policies: [{id: p, cors: {origins: ['https://a.test'], methods: []}}]":                                                    "policies[0].cors.methods: names none",
		asks(", client_secret: x"):   "policies[0].introspection.client_secret: unknown key",
		asks(", ttl: 0s"):            "policies[0].introspection.ttl",
		asks(", ttl: 11m"):           "policies[0].introspection.ttl",
		asks(", negative_ttl: 2m"):   "policies[0].introspection.negative_ttl",
		asks(", ttl: 2s"):            "policies[0].introspection.negative_ttl: is longer than the ttl",
		asks(", stale_ok: 6m"):       "policies[0].introspection.stale_ok",
		asks(", timeout: 2s"):        "policies[0].introspection.timeout",
		asks(", in_flight: 0"):       "policies[0].introspection.in_flight",
		asks(", lookups_per_sec: 0"): "policies[0].introspection.lookups_per_sec",
	} {
		_, problems := Decode([]File{{"f", []byte(text)}}, Allow{})
		var all []string
		for _, p := range problems {
			all = append(all, p.Path+": "+p.Message)
		}
		if !strings.Contains(strings.Join(all, "\n"), want) {
			t.Errorf("%s\n%s\nwant %s", text, strings.Join(all, "\n"), want)
		}
	}
}
