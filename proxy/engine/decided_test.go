package engine_test

import (
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cellgate/cellgate/proxy"
	services "github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/decide"
	"github.com/cellgate/cellgate/proxy/shadow"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// quiet is an upstream that says that it was asked.
func quiet(t *testing.T) func() (string, chan string) {
	return func() (string, chan string) {
		seen := make(chan string, 10)
		return handler(t, func(http.ResponseWriter, *http.Request) { seen <- "" }), seen
	}
}

// holding asks and compares the beginning and a part of what comes.
func holding(t *testing.T, ask func(sample) string) func(s sample, want string) {
	return func(s sample, want string) {
		t.Helper()
		if got := ask(s); !strings.HasPrefix(got, want[:3]) || !strings.Contains(got, want[4:]) {
			t.Errorf("%s %v: %s, not %s", s.target, s.fields, got, want)
		}
	}
}

const decidedDocument = `
version: v1
routes:
  - {id: kept, match: {host: a.example, path: /kept}, upstream: up, policies: [kept]}
  - {id: fresh, match: {host: a.example, path: /fresh}, upstream: up, auth: jwt, policies: [fresh]}
  - {id: lost, match: {host: a.example, path: /lost}, upstream: up, policies: [lost]}
upstreams: [{id: up, endpoints: ["UP"]}]
policies:
  - {id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}
  - {id: kept, decision: {url: "PDP", inputs: [method, "header:X-Purpose"], max_stale: 1m, timeout: 1s, in_flight: 100, lookups_per_sec: 1000}}
  - {id: fresh, decision: {url: "PDP", inputs: [method, "header:X-Purpose"], timeout: 1s, in_flight: 100, lookups_per_sec: 1000}}
  - {id: lost, decision: {url: "http://127.46.0.9:1/", inputs: [method], timeout: 1s, in_flight: 100, lookups_per_sec: 1000}}
`

// G6 on every engine and protocol: an exchange waits for what a service says to it, and passes by that alone.
func TestDecisionsHoldOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	pdp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"allow":%v}`, strings.Contains(string(body), `"GET"`) && strings.Contains(string(body), "work"))
	}))
	asked := services.New(services.Options{Allow: snapshot.Loopback()})
	t.Cleanup(func() { asked.Close(); pdp.Close() })
	s := setup{document: strings.ReplaceAll(decidedDocument, "PDP", pdp.URL), auth: onlyIn{}, decided: decide.New(asked, nil), silent: true}
	t.Run("ways", func(t *testing.T) { // the service outlives them all
		for name, ask := range ways(t, quiet(t), s) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holds := holding(t, ask)
				purpose := func(method, target, purpose string) sample {
					return sample{method: method, target: target, fields: []string{"Authorization", "Bearer in", "X-Purpose", purpose}}
				}
				for range 2 {
					for _, target := range []string{"/kept", "/fresh"} {
						holds(purpose("GET", target, "work"), "200 upstream")
						holds(purpose("GET", target, "play"), "403 decision_denied")
						holds(purpose("DELETE", target, "work"), "403 decision_denied")
					}
					holds(purpose("GET", "/lost", "work"), "503 decision_unavailable")
				}
				holds(sample{method: "GET", target: "/fresh", fields: []string{"X-Purpose", "work"}}, "401 token_missing")
			})
		}
	})
}

// H1 on every engine and protocol: beyond the platform's limit everybody is refused, and nobody is at fault.
func TestThePlatformsLimitHoldsOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	document := plainDocument + `tenants: [{id: "*", limits: {rate: 1/hour}}]` + "\n"
	for name, ask := range ways(t, quiet(t), setup{document: document, silent: true}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holds := holding(t, ask)
			holds(sample{method: "GET", target: "/a"}, "200 upstream")
			holds(sample{method: "GET", target: "/b"}, "503 platform_rate")
			holds(sample{method: "GET", target: "/b"}, "503 retry-after")
		})
	}
}

const triedDocument = `
version: v1
routes: [{id: tried, match: {host: a.example, path: /tried}, upstream: up, auth: jwt, policies: [next, key, roles, web], limits: {tenant: 1/hour, mode: shadow}}]
upstreams: [{id: up, endpoints: ["UP"]}]
policies:
  - {id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}
  - {id: next, mode: shadow, jwt: {issuer: "https://n.example", audience: a, jwks: "https://n.example/keys"}}
  - {id: key, mode: shadow, api_key: {}}
  - {id: roles, mode: shadow, authz: {roles: [admin]}}
  - {id: web, mode: shadow, cors: {origins: ["https://app.test"]}}
plans: [{id: pro, quota_per_day: 1, mode: shadow}]
consumers: [{id: c, plan: pro}]
tenants: [{id: acme, hosts: [a.example], limits: {rate: 1/hour, mode: shadow}}]
`

// nextRefuses is onlyIn, but that the policy "next" lets nobody in, and that everybody else is the consumer c.
type nextRefuses struct{ onlyIn }

func (n nextRefuses) Authenticate(c *proxy.Credentials, id *proxy.Identity, now time.Time) (reason.Reason, <-chan struct{}) {
	if c.Policy.ID == "next" {
		return reason.ScopeMissing, nil
	}
	id.Consumer = "c"
	return n.onlyIn.Authenticate(c, id, now)
}

// J3 on every engine and protocol: what is only tried is counted, once for each exchange that what is enforced lets in, and the
// answer knows nothing of it.
func TestShadowsAreCountedAndChangeNothingOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	w := shadow.New(nextRefuses{}, nil, slog.New(slog.DiscardHandler))
	worlds := 0
	t.Run("ways", func(t *testing.T) {
		for name, ask := range ways(t, quiet(t), setup{document: triedDocument, auth: nextRefuses{}, shadow: w, silent: true}) {
			worlds++
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holds := holding(t, ask)
				evil := []string{"Origin", "https://evil.test"}
				holds(sample{method: "GET", target: "/tried", fields: append(evil, "Authorization", "Bearer in")}, "200 upstream")
				holds(sample{method: "GET", target: "/tried", fields: evil}, "401 token_missing")
				if got := ask(sample{method: "GET", target: "/tried", fields: append(evil, "Authorization", "Bearer in")}); !strings.HasPrefix(got, "200") || strings.Contains(strings.ToLower(got), "access-control") || strings.Contains(strings.ToLower(got), "ratelimit") {
					t.Errorf("a shadow is seen: %s", got)
				}
			})
		}
	})
	reg := prometheus.NewRegistry()
	reg.MustRegister(w)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "cellgate_proxy_shadow_verdicts_total" {
				got[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[2].GetValue()+" "+m.GetLabel()[1].GetValue()] = int(m.GetCounter().GetValue())
			}
		}
	}
	n := 2 * worlds
	if want := map[string]int{"limits:tried allow ": worlds, "limits:tried refuse rate_tenant": worlds,
		"tenant:acme allow ": worlds, "tenant:acme refuse rate_tenant": worlds, "plan:pro allow ": worlds, "plan:pro refuse quota_consumer": worlds, "next refuse scope_missing": n, "key allow ": n, "roles refuse role_missing": n, "web refuse cors_refused": n}; worlds < 10 || !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
