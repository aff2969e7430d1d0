package regionctl

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/store"
)

func consumersDocument(consumers string) []PublishFile {
	return []PublishFile{{Name: "a.yaml", Data: routesDocument(2) + "consumers: [" + consumers + "]\n"}}
}

func hashed(key string) string { return `"` + apikey.SHA256.Of([]byte(key)).String() + `"` }

// whose asks the region's controller as a node does.
func (n *node) whose(ctx context.Context, key string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, slack*time.Second)
	defer cancel()
	return n.client.FindKey(ctx, []string{apikey.SHA256.Of([]byte(key)).String()})
}

// knows says whether the node was told of the key.
func (n *node) knows(key string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.keys == nil {
		return false
	}
	for _, c := range n.keys.Consumers {
		for _, h := range c.Hashes {
			if h == apikey.SHA256.Of([]byte(key)).String() {
				return true
			}
		}
	}
	return false
}

func (w *world) issue(consumer string) (IssuedKey, *Fault) {
	w.t.Helper()
	var k IssuedKey
	_, f := w.ask("eu-west", "POST", "/v1/keys", KeyRequest{Consumer: consumer, Reason: "x"}, &k)
	return k, f
}

func TestAnIssuedKeyIsKnownAtOnceAndARevokedOneIsGone(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	if _, f := w.publish("eu-west", PublishRequest{Files: consumersDocument("{id: acme}, {id: half, api_key_hashes: [" + hashed("cg_half") + "]}")}); f != nil {
		t.Fatal(f)
	}
	w.eventually("every node at version 1", 10*time.Second, func() bool {
		for _, n := range w.nodes {
			if n.serves() != 1 {
				return false
			}
		}
		return true
	})
	first, f := w.issue("acme")
	if f != nil || !apikey.Well([]byte(first.Secret)) || first.Hash != apikey.SHA256.Of([]byte(first.Secret)).String() || !strings.HasPrefix(first.Secret, "cg_"+first.ID+"_") {
		t.Fatalf("%+v, %v", first, f)
	}
	for _, n := range w.nodes { // of both regions, long before they are told
		w.eventually("the answer of "+string(n.id.Region()), time.Second, func() bool { c, err := n.whose(t.Context(), first.Secret); return err == nil && c == "acme" })
	}
	if c, err := w.nodes[0].whose(t.Context(), "cg_half"); c != "" || err != nil {
		t.Errorf("a key of a document is looked up: %q, %v", c, err)
	}
	second, f := w.issue("acme")
	if f != nil {
		t.Fatal(f)
	}
	if _, f := w.issue("acme"); f == nil || f.Status != http.StatusConflict || f.Reason != "too_many_keys" || !f.Refused {
		t.Errorf("a third key: %v", f)
	}
	if _, f := w.issue("half"); f != nil {
		t.Errorf("one beside the document's: %v", f)
	}
	if _, f := w.issue("half"); f == nil || f.Reason != "too_many_keys" || !strings.Contains(f.Detail, "1 of them in the document") {
		t.Errorf("two beside the document's: %v", f)
	}
	if _, f := w.publish("eu-west", PublishRequest{Files: consumersDocument("{id: acme, api_key_hashes: [" + hashed("cg_acme") + "]}, {id: half}")}); f == nil || f.Reason != "too_many_keys" {
		t.Errorf("a document that makes a third: %v", f)
	}
	for _, with := range []string{"{id: half}, {id: acme", "{id: acme}, {id: half"} { // its own issued key, or another's
		for _, hash := range []string{first.Hash, "sha256:" + strings.ToUpper(first.Hash[len("sha256:"):])} {
			if _, f := w.publish("eu-west", PublishRequest{Files: consumersDocument(with + `, api_key_hashes: ["` + hash + `"]}`)}); f == nil || f.Reason != "key_issued" || !f.Refused {
				t.Errorf("a document with an issued key: %v", f)
			}
		}
	}
	for _, n := range w.nodes {
		w.eventually("the list at "+string(n.id), 2*time.Second, func() bool { return n.knows(first.Secret) && n.knows(second.Secret) })
	}

	var gone RevokedKey
	if code, f := w.ask("us-east", "POST", "/v1/keys:revoke", KeyRevocation{ID: first.ID, Reason: "x", DryRun: true}, &gone); code != 200 || gone.Consumer != "acme" || !gone.DryRun {
		t.Errorf("a dry run: %v, %+v", f, gone)
	}
	for range 2 { // once is enough, and twice no error: an answer may be lost
		if code, f := w.ask("us-east", "POST", "/v1/keys:revoke", KeyRevocation{ID: first.ID, Reason: "x"}, &gone); code != 200 || gone.Consumer != "acme" {
			t.Fatal(code, f)
		}
	}
	for _, n := range w.nodes {
		w.eventually("the revocation at "+string(n.id), 2*time.Second, func() bool { return !n.knows(first.Secret) && n.knows(second.Secret) })
		if c, err := n.whose(t.Context(), first.Secret); c != "" || err != nil {
			t.Errorf("a revoked key is %q's, %v", c, err)
		}
	}
	var all Keys
	if w.ask("eu-west", "GET", "/v1/keys?consumer=acme", nil, &all); len(all.Keys) != 1 || all.Keys[0].ID != second.ID || all.Issued != 2 || all.Keys[0].By != "token:admin" {
		t.Errorf("%+v", all)
	}
	var audit []AuditEntry
	if w.ask("eu-west", "GET", "/v1/audit", nil, &audit); strings.Contains(string(encode(audit)), first.Secret) || !strings.Contains(string(encode(audit)), "key "+first.ID) {
		t.Errorf("the audit says %s", encode(audit))
	}
}

func TestWhatIsNoOrderOfKeysIsRefused(t *testing.T) {
	w := newWorld(t)
	w.start("eu-west")
	w.eventually("the store", time.Second, func() bool { code, _ := w.ask("eu-west", "GET", "/v1/keys", nil, nil); return code == 200 })
	if _, f := w.issue("acme"); f == nil || f.Status != 404 {
		t.Errorf("before the first version: %v", f)
	}
	if _, f := w.publish("eu-west", PublishRequest{Files: consumersDocument("{id: acme}")}); f != nil {
		t.Fatal(f)
	}
	for what, c := range map[string]struct {
		path   string
		body   any
		status int
	}{
		"an unknown consumer": {"/v1/keys", KeyRequest{Consumer: "nobody"}, 404},
		"a long reason":       {"/v1/keys", KeyRequest{Consumer: "acme", Reason: strings.Repeat("x", maxReason+1)}, 400},
		"an unknown key":      {"/v1/keys:revoke", KeyRevocation{ID: "x", Reason: "x"}, 404},
		"an unknown word":     {"/v1/keys", map[string]string{"consumer": "acme", "secret": "mine"}, 400},
	} {
		if code, f := w.ask("eu-west", "POST", c.path, c.body, nil); code != c.status {
			t.Errorf("%s: %d, %v", what, code, f)
		}
	}
	var dry IssuedKey
	if _, f := w.ask("eu-west", "POST", "/v1/keys", KeyRequest{Consumer: "acme", DryRun: true}, &dry); f != nil || dry.Secret != "" || !dry.DryRun {
		t.Errorf("a dry run: %v, %+v", f, dry)
	}
	// A request that is repeated, since its answer was lost, has one key in the end.
	for range 3 {
		req := w.request("eu-west", "POST", "/v1/keys", KeyRequest{Consumer: "acme"})
		req.Header.Set("Idempotency-Key", "once")
		if code, f := w.send(req, nil); code != 200 {
			t.Fatal(f)
		}
	}
	var all Keys
	if w.ask("eu-west", "GET", "/v1/keys", nil, &all); all.Issued != 1 {
		t.Errorf("%+v", all)
	}
}

// Without the global store a region that was started anew answers from its copy, and of two words the later one counts.
func TestARegionKnowsItsKeysWithoutTheGlobalStore(t *testing.T) {
	w := newWorld(t)
	r := w.start("eu-west")
	if _, f := w.publish("eu-west", PublishRequest{Files: consumersDocument("{id: acme}")}); f != nil {
		t.Fatal(f)
	}
	key, f := w.issue("acme")
	if f != nil {
		t.Fatal(f)
	}
	w.eventually("the copy", 2*time.Second, func() bool { _, err := r.regional.Join().Get(t.Context(), store.KeyCopyIssuance); return err == nil })
	r.stop()
	w.globalGate = &gated{Store: w.global.Join()}
	w.globalGate.lost.Store(true)
	r = w.start("eu-west")
	w.eventually("the answer", 5*time.Second, func() bool { c, err := r.c.findKey([]string{key.Hash}); return err == nil && c == "acme" })
	if _, f := w.issue("acme"); f == nil || f.Status != http.StatusServiceUnavailable {
		t.Errorf("a key is issued without the global store: %v", f)
	}
}

func TestTheNextChangeOfKeysIsAlwaysLater(t *testing.T) {
	now := time.Unix(1000, 0).UTC()
	for _, last := range []time.Time{{}, now.Add(-time.Hour), now, now.Add(time.Hour)} {
		if next := (issuance{At: last}).next(now); !next.At.After(last) || next.At.Before(now) {
			t.Errorf("after %v comes %v", last, next.At)
		}
	}
}

// The stored forms are read by controllers of other versions.
func TestStoredKeysHaveTheGoldenForm(t *testing.T) {
	rec := keyRecord{recordForm, "acme", []storedKey{{Key{ID: "i", Consumer: "acme", Hash: "sha256:x", Issued: time.Unix(1, 0).UTC(), By: "b", Reason: "r"}, "o"}}}
	want := `{"form":1,"consumer":"acme","keys":[{"id":"i","consumer":"acme","hash":"sha256:x","issued":"1970-01-01T00:00:01Z","by":"b","reason":"r","order":"o"}]}`
	if got := string(encode(rec)); got != want {
		t.Errorf("%s", got)
	}
	var back keyRecord
	if err := json.Unmarshal([]byte(want), &back); err != nil || !reflect.DeepEqual(back, rec) {
		t.Errorf("%+v, %v", back, err)
	}
}

// A restore of the global store from an old backup neither loses a key nor makes a revoked one good again.
func TestRestoringABackupBringsNoRevokedKeyBack(t *testing.T) {
	w := newWorld(t)
	w.startAll()
	if _, f := w.publish("eu-west", PublishRequest{Files: consumersDocument("{id: acme}, {id: other}")}); f != nil {
		t.Fatal(f)
	}
	revoked, f := w.issue("acme")
	if f != nil {
		t.Fatal(f)
	}
	backup := w.backup()
	if code, f := w.ask("eu-west", "POST", "/v1/keys:revoke", KeyRevocation{ID: revoked.ID, Reason: "x"}, nil); code != 200 {
		t.Fatal(f)
	}
	issued, f := w.issue("other")
	if f != nil {
		t.Fatal(f)
	}
	owner := func(r *region, hash string) string { c, _ := r.c.findKey([]string{hash}); return c }
	right := func(r *region) bool { return owner(r, issued.Hash) == "other" && owner(r, revoked.Hash) == "" }
	r := w.regions["eu-west"]
	w.eventually("the copies", 3*time.Second, func() bool {
		for _, r := range w.regions {
			if at, _, _ := read[issuance](r.c.copied, store.KeyCopyIssuance); at.At.Before(issued.Issued) {
				return false
			}
		}
		return true
	})
	w.stopAll()
	w.restore(backup)
	for id := range w.regions {
		w.start(id)
	}
	w.eventually("the copy's word to count", 3*time.Second, func() bool { return right(r) })
	var answer Recovered
	w.eventually("a recovery", 10*time.Second, func() bool {
		code, _ := w.ask("eu-west", "POST", "/v1/recovery", RecoverRequest{Confirm: true, Force: true}, &answer)
		return code == http.StatusOK
	})
	if !answer.Keys {
		t.Errorf("%+v", answer)
	}
	if again, f := w.issue("other"); f != nil || owner(r, again.Hash) != "other" || !right(r) {
		t.Errorf("after a change: %v, the issued key is %q's, the revoked one %q's", f, owner(r, issued.Hash), owner(r, revoked.Hash))
	}
}
