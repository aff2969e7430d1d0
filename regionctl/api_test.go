package regionctl

import (
	"bytes"
	"net/http"
	"strings"
	"testing"
	"time"
)

// quiet is a world with one controller and nothing attached: enough for what the API decides by itself.
func quiet(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	w.start("eu-west")
	w.eventually("a leader", 5*time.Second, func() bool { return w.regions["eu-west"].c.leading.Load() })
	return w
}

func TestAPIAbuseIsAnsweredWithAProblemAndChangesNothing(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	long := strings.Repeat("x", maxReason+1)
	huge := bytes.Repeat([]byte(" "), maxBody+1)
	for _, c := range []struct {
		name, method, path string
		body               any
		status             int
		reason             string
	}{
		{"no such path", "GET", "/v1/nothing", nil, 404, "not_found"},
		{"wrong method", "DELETE", "/v1/status", nil, 405, "method_not_allowed"},
		{"broken JSON", "POST", "/v1/evacuations", []byte(`{"what":`), 400, "bad_request"},
		{"two documents", "POST", "/v1/evacuations", []byte(`{} {}`), 400, "bad_request"},
		{"unknown key", "POST", "/v1/evacuations", []byte(`{"whom":"x"}`), 400, "bad_request"},
		{"wrong type", "POST", "/v1/evacuations", []byte(`{"what":7}`), 400, "bad_request"},
		{"huge body", "POST", "/v1/evacuations", huge, 413, "body_too_large"},
		{"huge publication", "POST", "/v1/config/versions", bytes.Repeat([]byte(" "), maxPublish+1), 413, "body_too_large"},
		{"no files", "POST", "/v1/config/versions", []byte(`{}`), 400, "bad_request"},
		{"no reason", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a"}, 400, "bad_request"},
		{"no such cell", "POST", "/v1/evacuations", EvacuateRequest{What: "mars/a", Reason: "x"}, 404, "not_found"},
		{"expired before done", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", Over: "2h", Expires: "1h"}, 400, "bad_request"},
		{"absurd duration", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", Over: "-5m"}, 400, "bad_request"},
		{"over before anybody hears", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: "x", Over: "0s", Expires: "1ns"}, 400, "bad_request"},
		{"endless reason", "POST", "/v1/evacuations", EvacuateRequest{What: "eu-west/a", Reason: long}, 400, "bad_request"},
		{"endless reason to restore", "POST", "/v1/restorations", RestoreRequest{What: "eu-west/a", Reason: long}, 400, "bad_request"},
		{"endless reason to roll back", "POST", "/v1/config/versions/7:rollback", RollbackRequest{Message: long}, 400, "bad_request"},
		{"endless reason to recover", "POST", "/v1/recovery", RecoverRequest{Reason: long}, 400, "bad_request"},
		{"endless reason to pause", "POST", "/v1/rollouts/current:pause", RolloutOrder{Reason: long}, 400, "bad_request"},
		{"restore of an active cell", "POST", "/v1/restorations", RestoreRequest{What: "eu-west/a"}, 409, "conflict"},
		{"rollback to nowhere", "POST", "/v1/config/versions/7:rollback", RollbackRequest{}, 404, "not_found"},
		{"no such verb", "POST", "/v1/config/versions/7:burn", RollbackRequest{}, 404, "not_found"},
		{"no such version", "GET", "/v1/config/versions/9", nil, 404, "not_found"},
		{"version of letters", "GET", "/v1/config/versions/x", nil, 400, "bad_request"},
		{"no rollout", "POST", "/v1/rollouts/current:pause", RolloutOrder{}, 409, "conflict"},
		{"no such order", "POST", "/v1/rollouts/current:explode", RolloutOrder{}, 404, "not_found"},
		{"client of letters", "GET", "/v1/dns/explain?name=api.gw.test&client=home", nil, 400, "bad_request"},
		{"audit limit", "GET", "/v1/audit?limit=0", nil, 400, "bad_request"},
	} {
		code, f := w.ask("eu-west", c.method, c.path, c.body, nil)
		if code != c.status || f == nil || f.Reason != c.reason {
			t.Errorf("%s: %d %+v, want %d %s", c.name, code, f, c.status, c.reason)
		}
	}
	if s := w.status("eu-west"); s.Version != 0 || s.Rollout != nil {
		t.Errorf("something happened: %+v", s)
	}
	var entries []AuditEntry
	if w.ask("eu-west", "GET", "/v1/audit", nil, &entries); len(entries) != 0 {
		t.Errorf("refused requests are in the audit: %+v", entries)
	}
}

func TestOnlyTheTokenOpensTheAPI(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	for _, auth := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Basic " + testToken, testToken, "Bearer " + testToken + "x", "Bearer " + strings.Repeat("x", 10_000)} {
		for _, path := range []string{"/v1/status", "/v1/evacuations", "/metrics"} {
			req, err := http.NewRequest("GET", "https://"+w.regions["eu-west"].api+path, nil)
			must(t, err)
			if auth != "" {
				req.Header.Set("Authorization", auth)
			}
			if code, f := w.send(req, nil); code != 401 || f.Reason != "unauthorized" {
				t.Errorf("%q on %s: %d", auth, path, code)
			}
		}
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		req, err := http.NewRequest("GET", "https://"+w.regions["eu-west"].api+path, nil)
		must(t, err)
		var out any
		resp, err := (&http.Client{Transport: w.transport(nil)}).Do(req)
		must(t, err)
		resp.Body.Close()
		if resp.StatusCode != 200 {
			t.Errorf("%s: %d %v", path, resp.StatusCode, out)
		}
	}
}

func TestOperatorCertificatesOpenTheAPIAndOtherRolesDoNot(t *testing.T) {
	t.Parallel()
	w := quiet(t)
	for role, want := range map[string]bool{"operator": true, "capacityd": true, "proxy": false} {
		cert := w.clientCert(role)
		req, err := http.NewRequest("GET", "https://"+w.regions["eu-west"].api+"/v1/status", nil)
		must(t, err)
		resp, err := (&http.Client{Transport: w.transport(&cert)}).Do(req)
		ok := err == nil && resp.StatusCode == 200
		if err == nil {
			resp.Body.Close()
		}
		if ok != want {
			t.Errorf("role %s: %v %v", role, ok, err)
		}
	}
}
