package callers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/identity"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/snapshot"
)

// vouching is a node with two keys, the second of which begins to sign an hour later.
type vouching struct {
	t      *testing.T
	dir    string
	store  *secrets.Store
	tokens *Tokens
	keys   []snapshot.IdentityKey
}

func newVouching(t *testing.T) *vouching {
	v := &vouching{t: t, dir: t.TempDir(), keys: []snapshot.IdentityKey{{ID: "new", File: "k2", SignFrom: start.Add(time.Hour)}, {ID: "old", File: "k1"}}}
	v.store = secrets.New(v.dir, slog.New(slog.DiscardHandler))
	v.renew("k1")
	v.renew("k2")
	if err := v.store.Want(Needs(nil, v.keys...)); err != nil {
		t.Fatal(err)
	}
	v.tokens = NewTokens(v.store)
	return v
}

func (v *vouching) renew(file string) {
	v.t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		v.t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		v.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(v.dir, file), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		v.t.Fatal(err)
	}
}

func upstreamOf(id string) *snapshot.Upstream {
	return &snapshot.Upstream{ID: id, IdentityToken: &snapshot.IdentityToken{}}
}

// reads is what an upstream that has fetched the set of keys makes of a token.
func (v *vouching) reads(token []byte, audience string) (kid string, claims map[string]any, err error) {
	v.t.Helper()
	var set jose.JSONWebKeySet
	if err := json.Unmarshal([]byte(v.tokens.KeySet(v.keys)), &set); err != nil {
		v.t.Fatal(err)
	}
	text, ok := strings.CutPrefix(string(token), "X-Caller-Token: ")
	text, whole := strings.CutSuffix(text, "\r\n")
	if !ok || !whole {
		v.t.Fatalf("%q", token)
	}
	signed, err := jose.ParseSignedCompact(text, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		return "", nil, err
	}
	kid = signed.Signatures[0].Header.KeyID
	found := set.Key(kid)
	if len(found) != 1 {
		return kid, nil, fmt.Errorf("%d keys for %s", len(found), kid)
	}
	body, err := signed.Verify(found[0])
	if err == nil {
		err = json.Unmarshal(body, &claims)
	}
	if err == nil && claims["aud"] != audience {
		err = fmt.Errorf("meant for %v", claims["aud"])
	}
	return kid, claims, err
}

// G7: a token is signed once for each caller and upstream, good for a minute, and for that upstream alone.
func TestTokensAreSignedOnceForEachCallerAndUpstream(t *testing.T) {
	v := newVouching(t)
	orders, stock, now := upstreamOf("orders"), upstreamOf("stock"), start
	alice := identity.Told{User: "alice", Issuer: "i", Facts: &auth.Identity{Scopes: []string{"a", "b"}}}
	vouch := func(to *snapshot.Upstream, tenant string, told identity.Told, now time.Time) string {
		return string(v.tokens.Vouch(nil, v.keys, to, tenant, told, now))
	}
	first := vouch(orders, "t", alice, now)
	if _, claims, err := v.reads([]byte(first), "orders"); err != nil || claims["sub"] != "alice" || claims["iss"] != "cellgate" || claims["exp"].(float64)-claims["iat"].(float64) != 60 {
		t.Fatal(claims, err)
	}
	if _, _, err := v.reads([]byte(first), "stock"); err == nil {
		t.Error("the token is good at another upstream")
	}
	if vouch(orders, "t", alice, now.Add(44*time.Second)) != first {
		t.Error("it is signed again before its time")
	}
	if next := vouch(orders, "t", alice, now.Add(46*time.Second)); next == first {
		t.Error("it is used until its end")
	}
	different := []string{first}
	for _, other := range []string{
		vouch(stock, "t", alice, now), vouch(orders, "u", alice, now), vouch(orders, "t", identity.Told{User: "bob", Issuer: "i", Facts: alice.Facts}, now),
		vouch(orders, "t", identity.Told{User: "alice", Issuer: "j", Facts: alice.Facts}, now), vouch(orders, "t", identity.Told{User: "alice", Issuer: "i", Consumer: "acme", Facts: alice.Facts}, now),
		vouch(orders, "t", identity.Told{User: "alice", Issuer: "i", Facts: &auth.Identity{Scopes: []string{"a b"}}}, now), vouch(orders, "t", identity.Told{User: "alice", Issuer: "i"}, now),
	} {
		if slices.Contains(different, other) {
			t.Error("what says something else has the same token")
		}
		different = append(different, other)
	}
	room := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(200, func() { room = v.tokens.Vouch(room[:0], v.keys, stock, "t", alice, now) }); n != 0 {
		t.Errorf("%v allocations for a known token", n)
	}
}

func TestAKeyIsPublishedBeforeItSigns(t *testing.T) {
	v := newVouching(t)
	orders, told := upstreamOf("orders"), identity.Told{User: "alice"}
	for _, step := range []struct {
		after time.Duration
		kid   string
	}{{0, "old"}, {time.Hour - time.Second, "old"}, {time.Hour, "new"}, {2 * time.Hour, "new"}} {
		kid, _, err := v.reads(v.tokens.Vouch(nil, v.keys, orders, "t", told, start.Add(step.after)), "orders")
		if err != nil || kid != step.kid {
			t.Errorf("after %s: %s %v", step.after, kid, err)
		}
	}
	v.keys = v.keys[:1] // the first one is taken out of the document
	if err := v.store.Want(Needs(nil, v.keys...)); err != nil {
		t.Fatal(err)
	}
	if kid, _, err := v.reads(v.tokens.Vouch(nil, v.keys, orders, "t", told, start), "orders"); err != nil || kid != "new" {
		t.Errorf("the only key, ahead of its time: %s %v", kid, err)
	}
	v.renew("k2")
	v.store.Reload()
	if _, _, err := v.reads(v.tokens.Vouch(nil, v.keys, orders, "t", told, start.Add(2*time.Hour)), "orders"); err != nil {
		t.Errorf("a token signed by the file before: %v", err)
	}
	if got := v.tokens.Vouch([]byte("x"), nil, orders, "t", told, start); string(got) != "x" {
		t.Errorf("without keys: %q", got)
	}
	if got := v.tokens.KeySet(nil); got != "{\"keys\":[]}\n" {
		t.Errorf("%q", got)
	}
	if err := v.store.Want(Needs(nil, snapshot.IdentityKey{ID: "x", File: "nowhere"})); err == nil {
		t.Error("a key that isn't there is wanted in silence")
	}
}
