package engine_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	services "github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/secrets"
	"github.com/cellgate/cellgate/snapshot"
)

const askedDocument = `
version: v1
routes:
  - {id: opaque, match: {host: a.example, path: /opaque}, upstream: up, auth: opaque}
  - {id: lost, match: {host: a.example, path: /lost}, upstream: up, auth: lost}
upstreams: [{id: up, endpoints: ["UP"]}]
policies:
  - {id: opaque, introspection: {url: "IDP", client_id: gw, client_secret_file: s, timeout: 1s, lookups_per_sec: 1000}}
  - {id: lost, introspection: {url: "http://127.46.0.9:1/", client_id: gw, client_secret_file: s, timeout: 1s, lookups_per_sec: 1000}}
`

// G4 and G5 on every engine and protocol: an exchange waits for what a provider says of its token, and is let in by that alone.
func TestOpaqueTokensHoldOnEveryEngineAndProtocol(t *testing.T) {
	idp := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"active":%v,"sub":"alice"}`, strings.HasPrefix(r.FormValue("token"), "good"))
	}))
	asked := services.New(services.Options{Allow: snapshot.Loopback()})
	t.Cleanup(func() { asked.Close(); idp.Close() })
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "s"), []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	store := secrets.New(dir, slog.New(slog.DiscardHandler))
	if err := store.Want([]secrets.Need{secrets.Text("s")}); err != nil {
		t.Fatal(err)
	}
	up := func() (string, chan string) {
		seen := make(chan string, 10)
		return handler(t, func(http.ResponseWriter, *http.Request) { seen <- "" }), seen
	}
	s := setup{document: strings.Replace(askedDocument, "IDP", idp.URL, 1), silent: true,
		auth: callers.NewAuthenticator(callers.Sources{Services: asked, Secrets: store}, time.Now())}
	t.Run("ways", func(t *testing.T) { // the provider outlives them all
		for name, ask := range ways(t, up, s) {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				holds := func(target, token, want string) {
					t.Helper()
					got := ask(sample{method: "GET", target: target, fields: []string{"Authorization", "Bearer " + token}})
					if !strings.HasPrefix(got, want[:3]) || !strings.Contains(got, want[4:]) {
						t.Errorf("%s %s: %s, not %s", target, token, got, want)
					}
				}
				token := strings.NewReplacer(" ", "", ",", "").Replace(name)
				for range 2 {
					holds("/opaque", "good"+token, "200 upstream")
					holds("/opaque", "bad"+token, "401 token_invalid")
					holds("/lost", "good"+token, "503 auth_unavailable")
				}
			})
		}
	})
}
