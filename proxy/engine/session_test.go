package engine_test

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/proxy/session"
	"github.com/cellgate/cellgate/snapshot"
)

// G4 on every engine and protocol: a sealed cookie says who calls, and pages of other sites can't make use of it.
func TestSessionsHoldOnEveryEngineAndProtocol(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := fmt.Sprintf(`{"keys":[{"id":"a","secret":%q}]}`, base64.StdEncoding.EncodeToString(make([]byte, 32)))
	if err := os.WriteFile(filepath.Join(dir, "k"), []byte(file), 0o600); err != nil {
		t.Fatal(err)
	}
	store := secrets.New(dir, slog.New(slog.DiscardHandler))
	if err := store.Want(callers.Needs([]snapshot.Policy{{Session: &snapshot.Session{KeysFile: "k"}}})); err != nil {
		t.Fatal(err)
	}
	keys, err := session.ParseKeys([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	cookie, err := keys.Seal(session.Scope{Tenant: "default", Policy: "web", Cookie: "s", Encrypted: true},
		fmt.Appendf(nil, `{"sub":"alice","iat":%d,"exp":%d}`, time.Now().Unix()-10, time.Now().Unix()+3600), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	told, err := keys.Seal(session.Scope{Tenant: "default", Policy: "told", Cookie: "s", Encrypted: true},
		fmt.Appendf(nil, `{"sub":"alice","iat":%d,"exp":%d}`, time.Now().Unix()-10, time.Now().Unix()+3600), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	up := func() (string, chan string) {
		seen := make(chan string, 10)
		return handler(t, func(_ http.ResponseWriter, r *http.Request) { seen <- fmt.Sprintf("%q", r.Header["Cookie"]) }), seen
	}
	document := `
version: v1
routes: [{id: web, match: {host: a.example, path: /web}, upstream: up, auth: web}, {id: told, match: {host: a.example, path: /told}, upstream: up, auth: told}]
upstreams: [{id: up, endpoints: ["UP"]}]
policies: [{id: web, session: {cookie: s, keys_file: k, origins: ["https://friend.example"]}}, {id: told, session: {cookie: s, keys_file: k, forward_cookie: true}}]
`
	for name, ask := range ways(t, up, setup{document: document, silent: true, auth: callers.NewAuthenticator(callers.Sources{Secrets: store}, time.Now())}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holds := func(method, want string, fields ...string) {
				t.Helper()
				got := ask(sample{method: method, target: "/web", fields: fields})
				if !strings.HasPrefix(got, want[:3]) || !strings.Contains(got, want[4:]) {
					t.Errorf("%s %v: %s, not %s", method, fields, got, want)
				}
			}
			holds("GET", "401 token_missing")
			holds("GET", `200 upstream: ["a=b"]`, "Cookie", "a=b; s="+cookie)
			holds("GET", `200 upstream: ["a=b; c=d"]`, "Cookie", "a=b; s="+cookie+"; c=d")
			holds("GET", "200 upstream: []", "Cookie", "s="+cookie)
			if got := ask(sample{method: "GET", target: "/told", fields: []string{"Cookie", "a=b; s=" + told}}); !strings.Contains(got, "a=b; s="+told) {
				t.Errorf("forward_cookie: %s", got)
			}
			holds("GET", "401 token_invalid", "Cookie", "s="+cookie[:len(cookie)-2])
			holds("GET", "401 token_invalid", "Cookie", "s="+cookie+"; s="+cookie)
			holds("POST", "200 upstream", "Cookie", "s="+cookie)
			holds("POST", "403 cross_site", "Cookie", "s="+cookie, "Sec-Fetch-Site", "cross-site")
			holds("POST", "403 cross_site", "Cookie", "s="+cookie, "Origin", "https://evil.example")
			holds("POST", "200 upstream", "Cookie", "s="+cookie, "Origin", "https://friend.example")
			holds("GET", "200 upstream", "Cookie", "s="+cookie, "Sec-Fetch-Site", "cross-site")
		})
	}
}
