package contract

import (
	"crypto/rand"
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/test/harness"
	"github.com/cellgate/cellgate/trust"
)

// Keys by the command line: a key is shown once, a third is refused, and what it prints.
func TestRegionctlIssuesListsAndRevokesKeys(t *testing.T) {
	r := newControlled(t)
	if out := r.run("publish", r.file(routes(1)+"consumers: [{id: acme}]\n")); out.Code != 0 {
		t.Fatal(out.Stderr)
	}
	for _, line := range []string{"keys issue", "keys issue a b", "keys issue acme -o xml", "keys revoke", "keys revoke x", "keys list extra"} {
		if out := r.run(strings.Fields(line)...); out.Code != 2 || out.Stderr == "" || out.Stdout != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", line, out.Code, out.Stdout, out.Stderr)
		}
	}
	var first struct{ Key, ID, Hash, Consumer string }
	if out := r.run("keys", "issue", "acme", "--reason", "first", "-o", "json"); out.Code != 0 || json.Unmarshal([]byte(out.Stdout), &first) != nil || !apikey.Well([]byte(first.Key)) || first.Consumer != "acme" {
		t.Fatalf("exit %d\n%s%s", out.Code, out.Stdout, out.Stderr)
	}
	second := r.run("keys", "issue", "acme")
	if key, _, _ := strings.Cut(second.Stdout, "\n"); second.Code != 0 || !apikey.Well([]byte(strings.TrimSpace(key))) || !strings.Contains(second.Stdout, "not shown again") {
		t.Errorf("exit %d\n%s%s", second.Code, second.Stdout, second.Stderr)
	}
	for _, step := range []struct {
		line string
		code int
		say  string
	}{
		{"keys issue acme --dry-run", 3, "at most 2"},
		{"keys issue acme", 3, "revoke one first"},
		{"keys issue nobody", 1, "no consumer"},
		{"keys list", 0, "2 of 50000 issued"},
		{"keys list --consumer acme -o json", 0, first.Hash},
		{"keys revoke " + first.ID + " --reason x --dry-run", 0, "would be revoked"},
		{"keys revoke " + first.ID + " --reason x", 0, "revoked"},
		{"keys revoke " + first.ID + " --reason x", 0, "revoked"},
		{"keys revoke nothing --reason x", 1, "no key"},
		{"keys list", 0, "1 of 50000 issued"},
		{"keys issue acme --dry-run", 0, "would be issued to acme"},
		{"audit", 0, "revoke key"},
	} {
		out := r.run(strings.Fields(step.line)...)
		if out.Code != step.code || !strings.Contains(out.Stdout+out.Stderr, step.say) || strings.Contains(out.Stdout+out.Stderr, first.Key) {
			t.Errorf("%s: exit %d, want %d and %q\n%s%s", step.line, out.Code, step.code, step.say, out.Stdout, out.Stderr)
		}
	}
}

// A real node takes a key that was issued after it heard last, by asking its controller; it keeps what it was told over a
// restart, and refuses what it can't ask about.
func TestANodeLooksIssuedKeysUpAndKeepsThoseItWasTold(t *testing.T) {
	g := newGateway(t)
	stop := g.control()
	g.publish(1)
	node := harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("version 1 to be served", g.shared("/open1"), "", 200, 10*time.Second)
	issue := func() (key, hash string) {
		key, _ = apikey.New(rand.Reader)
		return key, apikey.SHA256.Of([]byte(key)).String()
	}
	tell := func(at time.Time, hashes ...string) {
		raw, _ := json.Marshal(apikey.List{Form: apikey.Form, At: at, Consumers: []apikey.Consumer{{ID: "acme", Hashes: hashes}}})
		g.board.Post(fleet.Mail{Kind: fleet.KindKeys, Number: uint64(at.UnixNano()), Envelope: g.sign(trust.KindKeys, raw)})
	}
	told, toldHash := issue()
	now := time.Now()
	tell(now, toldHash)
	g.becomes("a key that the node was told of", g.shared("/keyed"), told, 200, 5*time.Second)
	fresh, freshHash := issue()
	g.owners.Store(freshHash, "acme")
	g.becomes("a key that it was not told of", g.shared("/keyed"), fresh, 200, 5*time.Second)
	before := g.lookups.Load()
	for range 20 {
		if status, _, _ := g.get(g.shared("/keyed"), fresh); status != 200 {
			t.Errorf("a key that it was answered of: %d", status)
		}
		if status, body, _ := g.get(g.shared("/keyed"), fresh[:len(fresh)-1]+"!"); status != 401 || !strings.Contains(body, "key_invalid") {
			t.Errorf("a slip: %d %s", status, body)
		}
	}
	if n := g.lookups.Load() - before; n != 0 {
		t.Errorf("%d look-ups of what is known or can't be", n)
	}
	began := time.Now()
	for range 300 {
		made, _ := issue()
		if status, _, _ := g.get(g.shared("/keyed"), made); status != 401 && status != 503 { // 503: no answer within a tenth of a second
			t.Fatalf("a made-up key: %d", status)
		}
	}
	if n, most := g.lookups.Load()-before, 10+int64(10*time.Since(began).Seconds()); n > most {
		t.Errorf("%d look-ups for 300 made-up keys in %v", n, time.Since(began))
	}
	g.owners.Delete(freshHash)
	tell(now.Add(time.Second), toldHash)
	g.becomes("a revocation", g.shared("/keyed"), fresh, 401, 5*time.Second)

	node.Signal(syscall.SIGKILL)
	node.Wait(5 * time.Second)
	stop()
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("the node to know its keys from disk", g.shared("/keyed"), told, 200, 5*time.Second)
	status, body, h := g.get(g.shared("/keyed"), fresh)
	if status != 503 || !strings.Contains(body, "auth_unavailable") || h.Get("Retry-After") == "" {
		t.Errorf("a key that nobody can be asked about: %d %s", status, body)
	}
	if status, _, _ := g.get(g.shared("/keyed"), "cg_slip"); status != 401 {
		t.Errorf("a slip without a controller: %d", status)
	}
}
