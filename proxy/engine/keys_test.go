package engine_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/proxy"
	services "github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/reason"
)

const keysDocument = `
version: v1
routes:
  - {id: keyed, match: {host: a.example, path: /keyed}, upstream: up, auth: key}
upstreams: [{id: up, endpoints: ["UP"]}]
policies: [{id: key, api_key: {}}]
consumers: [{id: acme}]
`

// issuers are authenticators, one a key, so that the keys don't share the ten questions a second.
type issuers struct {
	t    *testing.T
	mu   sync.Mutex
	of   map[string]*callers.Authenticator
	good map[string]bool // hashes
}

func (a *issuers) Connected() bool { return true }

func (a *issuers) FindKey(_ context.Context, hashes []string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.good[hashes[apikey.SHA256]] {
		return "acme", nil
	}
	return "", nil
}

func (a *issuers) key(good bool) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	key, _ := apikey.New(rand.Reader)
	asked := services.New(services.Options{})
	a.t.Cleanup(asked.Close)
	one := callers.NewAuthenticator(callers.Sources{Services: asked}, time.Now())
	one.AskRegion(a)
	a.of[key], a.good[apikey.SHA256.Of([]byte(key)).String()] = one, good
	return key
}

func (a *issuers) Authenticate(c *proxy.Credentials, id *proxy.Identity, now time.Time) (reason.Reason, <-chan struct{}) {
	a.mu.Lock()
	one := a.of[string(c.APIKey)]
	a.mu.Unlock()
	if one == nil {
		return reason.KeyInvalid, nil
	}
	return one.Authenticate(c, id, now)
}

func (a *issuers) Foresee(*proxy.Credentials) {}

// G3 on every engine and protocol: an exchange waits for what the region says of a key that was not pushed, and is let in by
// that alone.
func TestIssuedKeysHoldOnEveryEngineAndProtocol(t *testing.T) {
	a := &issuers{t: t, of: map[string]*callers.Authenticator{}, good: map[string]bool{}}
	up := func() (string, chan string) {
		seen := make(chan string, 10)
		return handler(t, func(http.ResponseWriter, *http.Request) { seen <- "" }), seen
	}
	for name, ask := range ways(t, up, setup{document: keysDocument, silent: true, auth: a}) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			good, bad := a.key(true), a.key(false)
			for range 2 { // waited for, then remembered
				for key, want := range map[string]string{good: "200 upstream", bad: "401 key_invalid"} {
					got := ""
					for end := time.Now().Add(soon); time.Now().Before(end); {
						if got = ask(sample{method: "GET", target: "/keyed", fields: []string{"X-API-Key", key}}); !strings.HasPrefix(got, "503") {
							break // the answer came within a tenth of a second
						}
					}
					if !strings.HasPrefix(got, want[:3]) || !strings.Contains(got, want[4:]) {
						t.Errorf("%s, not %s", got, want)
					}
				}
			}
		})
	}
}
