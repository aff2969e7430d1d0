package contract

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// catalogue is an agent as far as the proxy asks it: GET /v1/health/service/orders.
type catalogue struct {
	mu      sync.Mutex
	index   uint64
	passing []string
	changed chan struct{}
}

func (c *catalogue) set(passing ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index++
	c.passing = passing
	close(c.changed)
	c.changed = make(chan struct{})
}

func (c *catalogue) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	index, changed := c.index, c.changed
	c.mu.Unlock()
	if r.Header.Get("X-Consul-Token") != "root" {
		http.Error(w, "ACL not found", http.StatusForbidden)
		return
	}
	if r.FormValue("index") == fmt.Sprint(index) {
		wait, _ := time.ParseDuration(r.FormValue("wait"))
		select {
		case <-changed:
		case <-time.After(wait):
		case <-r.Context().Done():
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []any
	for _, at := range c.passing {
		host, port, _ := net.SplitHostPort(at)
		n, _ := strconv.Atoi(port)
		all = append(all, map[string]any{"Service": map[string]any{"Address": host, "Port": n}})
	}
	w.Header().Set("X-Consul-Index", fmt.Sprint(c.index))
	w.Header().Set("X-Consul-Knownleader", "true")
	w.Header().Set("X-Consul-Lastcontact", "0")
	_ = json.NewEncoder(w).Encode(all)
}

func TestProxyFollowsServicesInConsul(t *testing.T) {
	c := &catalogue{index: 1, changed: make(chan struct{})}
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	followsConsul(t, s.Listener.Addr().String(), c.set, func() {
		s.Listener.Close()
		s.CloseClientConnections() // Close alone waits for the question that waits for a change
		s.Close()
	})
}

// named is a backend that answers with its name.
func named(t *testing.T, name string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(name)) }))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// followsConsul is what holds of every agent: set makes these addresses the passing instances of the service orders, die ends it.
func followsConsul(t *testing.T, agent string, set func(...string), die func()) {
	a, b := named(t, "a"), named(t, "b")
	doc := harness.WriteFile(t, "doc.yaml", `version: v1
routes: [{id: r, match: {host: api.example.com, path: /r}, upstream: u}]
upstreams: [{id: u, discovery: {consul: orders}, outlier: off, breaker: off}]
`)
	token, state, addr := harness.WriteFile(t, "token", "root\n"), t.TempDir(), harness.FreeAddr(t)
	start := func() *harness.Daemon {
		d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--state", state, "--consul", agent, "--consul-token-file", token)
		d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
		return d
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answers := func(code int, body string) {
		t.Helper()
		harness.Eventually(t, 30*time.Second, fmt.Sprintf("%d %s", code, body), func() bool {
			for range 8 {
				if res := ask(t, client, "GET", "http://"+addr+"/r"); res.StatusCode != code || code == 200 && res.body != body {
					return false
				}
			}
			return true
		})
	}
	d := start()
	answers(503, "")
	set(a)
	answers(200, "a")
	set(b)
	answers(200, "b")
	harness.Eventually(t, 30*time.Second, "the endpoints are on disk", func() bool { return onDisk(state, b) })
	die()
	time.Sleep(2 * time.Second)
	answers(200, "b")
	d.Stop(10 * time.Second)
	start()
	answers(200, "b")
}

// onDisk says whether the endpoints that a proxy keeps in its state have the address.
func onDisk(state, address string) bool {
	raw, err := os.ReadFile(filepath.Join(state, "upstream-endpoints.json"))
	return err == nil && strings.Contains(string(raw), address)
}
