package regionctl

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"
)

func files(docs ...string) []PublishFile {
	var out []PublishFile
	for i, d := range docs {
		out = append(out, PublishFile{Name: fmt.Sprintf("f%d.yaml", i), Data: d})
	}
	return out
}

func TestConcurrentPublishersNeverShareANumber(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start("eu-west")
	w.start("us-east")
	const n = 12
	numbers := make([]uint64, n)
	var wg sync.WaitGroup
	for i := range n {
		region := w.topology.Regions[i%2].ID
		wg.Go(func() { numbers[i] = w.publishRoutes(region, i+1).Version })
	}
	wg.Wait()
	seen := map[uint64]bool{}
	for _, v := range numbers {
		if v < 1 || v > n || seen[v] {
			t.Fatalf("numbers %v", numbers)
		}
		seen[v] = true
	}
	var versions []Version
	w.ask("eu-west", "GET", "/v1/config/versions", nil, &versions)
	for i, v := range versions {
		if v.Number != uint64(i+1) || v.Previous != uint64(i) {
			t.Errorf("version %d follows %d", v.Number, v.Previous)
		}
	}
	if len(versions) != n {
		t.Errorf("%d versions", len(versions))
	}
}

func TestShrinkingByMoreThanATenthNeedsConfirmation(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	w.publishRoutes("eu-west", 20)
	nine := PublishRequest{Files: files(routesDocument(17))}
	if _, f := w.publish("eu-west", nine); f == nil || !f.Refused || f.Flag != "--confirm" || !strings.Contains(f.Detail, "3 of 20 routes") {
		t.Errorf("15%% fewer routes: %+v", f)
	}
	if p, f := w.publish("eu-west", PublishRequest{Files: files(routesDocument(18))}); f != nil || p.Version != 2 || p.Removed != 2 {
		t.Errorf("10%% fewer routes: %+v %v", p, f)
	}
	nine.Confirm = true
	if p, f := w.publish("eu-west", PublishRequest{Files: files(routesDocument(9)), Confirm: true}); f != nil || p.Version != 3 {
		t.Errorf("confirmed: %+v %v", p, f)
	}
	if _, f := w.publish("eu-west", PublishRequest{Files: files(strings.ReplaceAll(routesDocument(9), "api.gw.test", "b.gw.test"))}); f == nil || !strings.Contains(f.Detail, "1 of 1 hosts") {
		t.Errorf("a host dropped: %+v", f)
	}
}

func TestDryRunChangesNothing(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	p, f := w.publish("eu-west", PublishRequest{Files: files(routesDocument(3)), DryRun: true})
	if f != nil || p.Version != 1 || !p.DryRun || p.Counts.Routes != 3 {
		t.Fatalf("%+v %v", p, f)
	}
	if s := w.status("eu-west"); s.Version != 0 {
		t.Errorf("version %d", s.Version)
	}
	if p := w.publishRoutes("eu-west", 3); p.Version != 1 {
		t.Errorf("the number is gone: %d", p.Version)
	}
}

func TestInvalidDocumentIsRefusedWithEveryProblemAndItsLine(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	doc := "version: v1\nroutes:\n  - {id: a, match: {host: api.gw.test, path: /a}, upstream: nowhere}\n  - {id: b, match: {host: api.gw.test, path: /b}, upstream: u, tiemout: 1s}\nupstreams:\n  - {id: u, endpoints: [\"169.254.169.254:80\"]}\n"
	_, f := w.publish("eu-west", PublishRequest{Files: files(doc)})
	if f == nil || f.Status != http.StatusUnprocessableEntity || len(f.Problems) < 3 {
		t.Fatalf("%+v", f)
	}
	lines := map[int]bool{}
	for _, p := range f.Problems {
		lines[p.Line] = true
		if p.File != "f0.yaml" {
			t.Errorf("%s", p)
		}
	}
	if !lines[3] || !lines[4] || !lines[6] {
		t.Errorf("problems:\n%v", f.Problems)
	}
}

func TestRollbackIsANewNumberWithTheOldChecksum(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	one := w.publishRoutes("eu-west", 3)
	w.publishRoutes("eu-west", 4)
	var p Published
	if code, f := w.ask("eu-west", "POST", "/v1/config/versions/1:rollback", RollbackRequest{Confirm: true, Message: "errors"}, &p); code != 200 {
		t.Fatal(f)
	}
	if p.Version != 3 || p.Checksum != one.Checksum || p.Previous != 2 {
		t.Errorf("%+v", p)
	}
	var v VersionDocument
	w.ask("eu-west", "GET", "/v1/config/versions/3", nil, &v)
	if v.RollbackOf != 1 || v.Message != "errors" || !strings.Contains(v.Document, "id: r2") || strings.Contains(v.Document, "id: r3") {
		t.Errorf("%+v", v)
	}
	again, f := w.publish("eu-west", PublishRequest{Files: files(v.Document)})
	if f != nil || again.Checksum != one.Checksum || !again.Unchanged || again.Version != 4 {
		t.Errorf("the shown document published again: %+v %v", again, f)
	}
}

func TestIdempotencyKeyAndIfMatchKeepPublicationsApart(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	post := func(header, value string) (Published, *Fault) {
		var p Published
		req := w.request("eu-west", "POST", "/v1/config/versions", PublishRequest{Files: files(routesDocument(2)), Confirm: true})
		req.Header.Set(header, value)
		_, f := w.send(req, &p)
		return p, f
	}
	first, f := post("Idempotency-Key", "k1")
	if f != nil || first.Version != 1 {
		t.Fatal(first, f)
	}
	w.publishRoutes("eu-west", 3)
	if again, f := post("Idempotency-Key", "k1"); f != nil || again.Version != 1 {
		t.Errorf("the same key again: %+v %v", again, f)
	}
	if s := w.status("eu-west"); s.Version != 2 {
		t.Errorf("version %d", s.Version)
	}
	if _, f := post("If-Match", `"1"`); f == nil || f.Status != http.StatusPreconditionFailed {
		t.Errorf("If-Match of an older version: %+v", f)
	}
	if p, f := post("If-Match", `"2"`); f != nil || p.Version != 3 {
		t.Errorf("If-Match of the newest: %+v %v", p, f)
	}
}

func TestPublishingByOwnerReplacesExactlyWhatTheTeamOwns(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	base := `version: v1
upstreams:
  - {id: shared, endpoints: ["127.0.0.1:9000"]}
  - {id: ours, endpoints: ["127.0.0.1:9001"]}
  - {id: theirs, endpoints: ["127.0.0.1:9002"]}
routes:
  - {id: a1, match: {host: api.gw.test, path: /a1}, upstream: ours, owner: team-a}
  - {id: a2, match: {host: api.gw.test, path: /a2}, upstream: shared, owner: team-a}
  - {id: b1, match: {host: api.gw.test, path: /b1}, upstream: theirs, owner: team-b}
  - {id: b2, match: {host: api.gw.test, path: /b2}, upstream: shared, owner: team-b}
samples:
  - {request: {method: GET, url: "https://api.gw.test/a1"}, expect: {route: a1}}
  - {request: {method: GET, url: "https://api.gw.test/b1"}, expect: {route: b1}}
identity_keys: [{id: k, file: f}]
`
	if _, f := w.publish("eu-west", PublishRequest{Files: files(base)}); f != nil {
		t.Fatal(f)
	}
	own := func(doc string) (Published, *Fault) {
		return w.publish("eu-west", PublishRequest{Files: files(doc), Owner: "team-a", Confirm: true})
	}
	_, f := own("version: v1\nupstreams:\n  - {id: new, endpoints: [\"127.0.0.1:9003\"], identity_token: {}}\nroutes:\n  - {id: a3, match: {host: api.gw.test, path: /a3}, upstream: new}\n  - {id: a4, match: {host: api.gw.test, path: /a4}, upstream: shared}\n")
	if f != nil {
		t.Fatal(f)
	}
	var v VersionDocument
	w.ask("eu-west", "GET", "/v1/config/versions/latest", nil, &v)
	for text, want := range map[string]bool{"id: a1": false, "id: a2": false, "id: a3": true, "id: a4": true, "id: b1": true, "id: b2": true, "id: ours": false, "id: theirs": true, "id: shared": true, "id: new": true, "id: k": true, "/a1": false} {
		if strings.Contains(v.Document, text) != want {
			t.Errorf("%q in the result: %v\n%s", text, !want, v.Document)
		}
	}
	if strings.Count(v.Document, "owner: team-a") != 2 || strings.Count(v.Document, "owner: team-b") != 2 {
		t.Errorf("owners:\n%s", v.Document)
	}
	for name, c := range map[string]struct{ doc, say string }{
		"another team's route":    {"version: v1\nroutes:\n  - {id: b9, match: {host: api.gw.test, path: /b9}, upstream: shared, owner: team-b}\n", `f0.yaml:3: routes[0].owner: is "team-b"`},
		"another team's id":       {"version: v1\nroutes:\n  - {id: b1, match: {host: api.gw.test, path: /zz}, upstream: shared}\n", "f0.yaml:3: routes[0].id: \"b1\" is taken by a route of \"team-b\""},
		"a shared upstream":       {"version: v1\nupstreams:\n  - {id: shared, endpoints: [\"127.0.0.1:1\"]}\nroutes:\n  - {id: a1, match: {host: api.gw.test, path: /a1}, upstream: shared}\n", "f0.yaml:3: upstreams[0].id: others use \"shared\""},
		"another team's path":     {"version: v1\nroutes:\n  - {id: a1, match: {host: api.gw.test, path: /b1}, upstream: shared, owner: team-a}\n", "team-b"},
		"a key of everybody":      {"version: v1\nidentity_keys:\n  - {id: k, file: g}\n", "f0.yaml:3: identity_keys[0].id: others use \"k\""},
		"a consumer of everybody": {"version: v1\nconsumers:\n  - {id: acme}\nroutes:\n  - {id: a1, match: {host: api.gw.test, path: /a1}, upstream: shared}\n", "others use \"acme\""},
	} {
		if _, f := own(c.doc); f == nil || !strings.Contains(f.Error(), c.say) {
			t.Errorf("%s: %v", name, f)
		}
	}
	if s := w.status("eu-west"); s.Version != 2 {
		t.Errorf("version %d", s.Version)
	}
}

func TestEveryChangeIsInTheAuditWithWhoAndWhy(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	if _, f := w.publish("eu-west", PublishRequest{Files: files(routesDocument(2)), Message: "first light"}); f != nil {
		t.Fatal(f)
	}
	w.ask("eu-west", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "drill", Force: true}, nil)
	w.ask("eu-west", "POST", "/v1/restorations", RestoreRequest{What: "eu-west/a", Reason: "enough"}, nil)
	var entries []AuditEntry
	w.ask("eu-west", "GET", "/v1/audit", nil, &entries)
	if len(entries) != 3 {
		t.Fatalf("%+v", entries)
	}
	for i, want := range []AuditEntry{{What: "restore", On: "eu-west/a", Why: "enough"}, {What: "evacuate", On: "eu-west/a", Why: "drill"}, {What: "publish", On: "version 1", Why: "first light"}} {
		e := entries[i]
		if e.What != want.What || e.On != want.On || e.Why != want.Why || e.Who != "token:admin" || e.At.IsZero() || e.Region != "eu-west" {
			t.Errorf("entry %d: %+v", i, e)
		}
	}
}

// Who is given a number may ask at once what becomes of it.
func TestAVersionHasARolloutFromTheMomentItHasANumber(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	for routes := 3; routes < 9; routes++ {
		p := w.publishRoutes("eu-west", routes)
		var d RolloutStatus
		if code, f := w.ask("eu-west", "GET", fmt.Sprintf("/v1/rollouts/%d", p.Version), nil, &d); code != http.StatusOK || d.Version != p.Version || d.State == "" {
			t.Fatalf("version %d: %d %v %+v", p.Version, code, f, d)
		}
	}
	if code, _ := w.ask("eu-west", "GET", "/v1/rollouts/99", nil, nil); code != http.StatusNotFound {
		t.Errorf("a version that nobody has published: %d", code)
	}
}

// A client that lost the answer asks another controller with the same key: what was done is not done to what came after it.
func TestARolloutOrderThatIsGivenAgainIsAppliedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.start("eu-west") // without nodes, the first version stays where it is
	p := w.publishRoutes("eu-west", 1)
	w.eventually("the rollout has begun", 5*time.Second, func() bool { r := w.status("eu-west").Rollout; return r != nil && r.Ring != "" })
	order := func(which, verb, key string) (d RolloutStatus, f *Fault) {
		req := w.request("eu-west", "POST", fmt.Sprintf("/v1/rollouts/%s:%s", which, verb), RolloutOrder{Reason: "x"})
		req.Header.Set("Idempotency-Key", key)
		_, f = w.send(req, &d)
		return d, f
	}
	for _, step := range []struct{ verb, key, state string }{
		{"pause", "a", "paused"}, {"pause", "b", "paused"}, {"resume", "c", "releasing"}, {"resume", "c", "releasing"}, {"pause", "a", "releasing"}, {"pause", "b", "releasing"},
	} {
		if d, f := order(fmt.Sprint(p.Version), step.verb, step.key); f != nil || d.State != step.state {
			t.Errorf("%s %s: %v, %s, want %s", step.verb, step.key, f, d.State, step.state)
		}
	}
	if _, f := order("7", "pause", "d"); f == nil || f.Status != http.StatusConflict {
		t.Errorf("an order about another version: %v", f)
	}
	if _, f := order("current", "pause", "e"); f != nil {
		t.Error(f)
	}
	var audit []AuditEntry
	w.ask("eu-west", "GET", "/v1/audit", nil, &audit)
	if n := len(audit); n != 5 { // publish, pause, pause, resume, pause
		t.Errorf("%d entries in the audit: %+v", n, audit)
	}
}
