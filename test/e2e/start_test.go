package e2e

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/test/harness"
)

func TestWorldIsReadyInTenSecondsAndTellsWhereItIs(t *testing.T) {
	w := sharedWorld(t)
	t.Logf("ready after %v", w.took.Round(time.Millisecond))
	if w.took > harness.Slack*10*time.Second {
		t.Errorf("ready only after %v", w.took)
	}
	info, err := os.Stat(filepath.Join(w.Dir, "world.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("world.json: %v, %v", info, err)
	}
	raw, err := os.ReadFile(filepath.Join(w.Dir, "world.json"))
	if err != nil {
		t.Fatal(err)
	}
	var keys map[string]any
	if err := json.Unmarshal(raw, &keys); err != nil {
		t.Fatal(err)
	}
	for _, k := range []string{"dns", "admin", "ca", "zone", "host", "path", "ttl", "tokens", "regions", "processes", "supervisor"} {
		if keys[k] == nil {
			t.Errorf("world.json has no %q", k)
		}
		delete(keys, k)
	}
	delete(keys, "consul") // where proxies look for an agent, for the drill
	if len(keys) > 0 {
		t.Errorf("world.json has more than it promises: %v", keys)
	}
	roles := map[string]int{}
	for _, p := range w.Processes {
		roles[p.Role]++
		if !alive(p.PID) {
			t.Errorf("%s/%s: process %d does not run", p.Role, p.ID, p.PID)
		}
	}
	want := map[string]int{"proxy": 12, "globalrouter": 2, "regionctl": 3, "healthd": 3, "capacityd": 1, "etcd": 6, "idp": 1, "backend": 4}
	for role, n := range want {
		if roles[role] != n {
			t.Errorf("%d processes of role %s, want %d", roles[role], role, n)
		}
	}
	if len(w.cells()) != 6 || w.nodes() != 12 || w.TTL != 5 || !alive(w.Supervisor) {
		t.Errorf("%d cells, %d nodes, ttl %d, supervisor %d", len(w.cells()), w.nodes(), w.TTL, w.Supervisor)
	}
}

func TestEveryRegionsControllerListsTheWholeWorld(t *testing.T) {
	w := sharedWorld(t)
	for _, r := range w.Regions {
		s := w.statusAt(t, r.Admin)
		if s.Version == 0 || len(s.Nodes) != 12 || len(s.Cells) != 6 {
			t.Errorf("%s: version %d, %d nodes, %d cells", r.ID, s.Version, len(s.Nodes), len(s.Cells))
		}
		for _, n := range s.Nodes {
			if n.Served != s.Version || n.Stored != s.Version || n.Known != s.Version {
				t.Errorf("%s: node %s knows %d, stored %d, serves %d of version %d (%s)", r.ID, n.ID, n.Known, n.Stored, n.Served, s.Version, n.Reason)
			}
		}
		for _, c := range s.Cells {
			if c.Healthy == nil || !*c.Healthy || c.State != "active" || c.Headroom == nil || *c.Headroom <= 0 || *c.Headroom > 1 {
				t.Errorf("%s: cell %+v", r.ID, c)
			}
		}
	}
}

func TestDNSSendsClientsToTheirRegion(t *testing.T) {
	w := sharedWorld(t)
	for _, r := range w.Regions {
		var own, seen []netip.Addr
		for _, c := range r.Cells {
			own = append(own, c.Address)
		}
		base := r.Clients[0].Addr().As4()
		for i := range 64 {
			client := netip.PrefixFrom(netip.AddrFrom4([4]byte{base[0], base[1], byte(i * 4), 0}), 24)
			var first []netip.Addr
			for _, server := range w.DNS {
				got, ttl, err := load.Lookup(context.Background(), []string{server}, w.Host, client)
				if err != nil {
					t.Fatalf("%s at %s: %v", client, server, err)
				}
				if ttl > 5*time.Second || len(got) != 1 || !slices.Contains(own, got[0]) {
					t.Errorf("%s sends %s of %s to %v for %v", server, client, r.ID, got, ttl)
				}
				if first == nil {
					first = got
				}
				if !slices.Equal(first, got) {
					t.Errorf("%s: one router says %v, another %v", client, first, got)
				}
				seen = append(seen, got...)
			}
		}
		for _, a := range own {
			if !slices.Contains(seen, a) {
				t.Errorf("no client of %s was sent to %s", r.ID, a)
			}
		}
	}
}

// problemDocument checks an answer of the gateway's own (RFC 9457).
func problemDocument(t *testing.T, what string, a answer, status int, reason string) {
	t.Helper()
	if a.Status != status {
		t.Errorf("%s: status %d, want %d (%s)", what, a.Status, status, a.Body)
		return
	}
	var p struct {
		Title  string `json:"title"`
		Status int    `json:"status"`
		Reason string `json:"reason"`
	}
	if err := json.Unmarshal([]byte(a.Body), &p); err != nil || p.Status != status || p.Title == "" || p.Reason != reason {
		t.Errorf("%s: problem %s (%v), want reason %s", what, a.Body, err, reason)
	}
	if ct := a.Header.Get("Content-Type"); ct != "application/problem+json" {
		t.Errorf("%s: content type %q", what, ct)
	}
	if got := a.Header.Get("X-Cellgate-Reason"); got != reason {
		t.Errorf("%s: x-cellgate-reason %q, want %q", what, got, reason)
	}
}

func TestEveryCellAnswersAsTheSampleSays(t *testing.T) {
	w := sharedWorld(t)
	key, err := os.ReadFile(filepath.Join(w.Dir, "api-key"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range w.cells() {
		at := netip.AddrPortFrom(c.Address, c.HTTPS)
		bearer := "Bearer " + w.Tokens.Customer
		if a := w.get(t, at, http.MethodGet, w.Host, w.Path, "Authorization", bearer); a.Status != 200 || !strings.Contains(a.Body, `"path":"/v1/orders/7"`) {
			t.Errorf("%s: good token: %d %s", c.ID, a.Status, a.Body)
		}
		if a := w.get(t, at, http.MethodGet, w.Host, "/v1/catalog/shoes"); a.Status != 200 {
			t.Errorf("%s: public route: %d %s", c.ID, a.Status, a.Body)
		}
		if a := w.get(t, at, http.MethodGet, "acme.gw.test", "/v1/reports/3", "X-API-Key", strings.TrimSpace(string(key))); a.Status != 200 {
			t.Errorf("%s: API key: %d %s", c.ID, a.Status, a.Body)
		}
		problemDocument(t, c.ID+" without token", w.get(t, at, http.MethodGet, w.Host, w.Path), 401, "token_missing")
		problemDocument(t, c.ID+" with a bad token", w.get(t, at, http.MethodGet, w.Host, w.Path, "Authorization", bearer[:len(bearer)-8]+"AAAAAAAA"), 401, "token_invalid")
		problemDocument(t, c.ID+" with a bad key", w.get(t, at, http.MethodGet, "acme.gw.test", "/v1/reports/3", "X-API-Key", "cg_nobody"), 401, "key_invalid")
		problemDocument(t, c.ID+" off the routes", w.get(t, at, http.MethodGet, w.Host, "/v2/nothing"), 404, "no_route")
		wrong := w.get(t, at, http.MethodDelete, w.Host, w.Path, "Authorization", bearer)
		problemDocument(t, c.ID+" with a wrong method", wrong, 405, "method_not_allowed")
		if allow := wrong.Header.Get("Allow"); !strings.Contains(allow, "GET") {
			t.Errorf("%s: 405 with Allow %q", c.ID, allow)
		}
	}
}

// A key is good at every node from the moment that it is issued, and at none soon after it is revoked.
func TestAnIssuedKeyIsGoodEverywhereAtOnceAndARevokedOneNowhere(t *testing.T) {
	w := sharedWorld(t)
	var k struct{ Key, ID string }
	if err := json.Unmarshal([]byte(w.mustRegionctl(t, "keys", "issue", "partner", "-o", "json")), &k); err != nil {
		t.Fatal(err)
	}
	nodes := map[string]netip.AddrPort{}
	for _, c := range w.cells() {
		for _, p := range c.Proxies {
			nodes[p.ID] = netip.AddrPortFrom(p.Address, c.HTTPS)
		}
	}
	ask := func(id string) int {
		return w.get(t, nodes[id], http.MethodGet, "acme.gw.test", "/v1/reports/3", "X-API-Key", k.Key).Status
	}
	for id := range nodes {
		status := ask(id)
		if status == 503 { // no answer within a tenth of a second
			harness.Eventually(t, 5*time.Second, "an answer at "+id, func() bool { status = ask(id); return status != 503 })
		}
		if status != 200 {
			t.Errorf("%s: %d for a key that was just issued", id, status)
		}
	}
	w.mustRegionctl(t, "keys", "revoke", k.ID, "--reason", "test")
	for id := range nodes {
		harness.Eventually(t, 2*time.Second, "the revocation at "+id, func() bool { return ask(id) == 401 })
	}
}

func TestLimitedConsumerIsRefusedWhenItIsTooFast(t *testing.T) {
	w := sharedWorld(t)
	c := w.cells()[3]
	at := netip.AddrPortFrom(c.Address, c.HTTPS)
	good, refused := 0, 0
	for range 40 {
		a := w.get(t, at, http.MethodGet, w.Host, w.Path, "Authorization", "Bearer "+w.Tokens.Limited)
		switch a.Status {
		case 200:
			good++
		case 429:
			refused++
			problemDocument(t, "too fast", a, 429, "rate_consumer")
			if a.Header.Get("Retry-After") == "" {
				t.Error("429 without Retry-After")
			}
		default:
			t.Fatalf("status %d: %s", a.Status, a.Body)
		}
	}
	if good == 0 || refused == 0 {
		t.Errorf("of 40 requests at once %d were answered and %d refused", good, refused)
	}
}

func TestBackendsMisbehaveOnOrder(t *testing.T) {
	w := sharedWorld(t)
	at := netip.AddrPortFrom(w.cells()[0].Address, w.cells()[0].HTTPS)
	w.cellgate(t, "backend", "catalog-*", "--fail", "100%")
	defer w.cellgate(t, "backend", "*", "--ok")
	if a := w.get(t, at, http.MethodGet, w.Host, "/v1/catalog/x"); a.Status != 500 {
		t.Errorf("failing backend: %d %s", a.Status, a.Body)
	}
	w.cellgate(t, "backend", "catalog-*", "--slow", "300ms")
	began := time.Now()
	if a := w.get(t, at, http.MethodGet, w.Host, "/v1/catalog/x"); a.Status != 200 || time.Since(began) < 300*time.Millisecond {
		t.Errorf("slow backend: %d after %v", a.Status, time.Since(began))
	}
	if res := harness.Run(t, "cellgate", "backend", "nobody", "--ok", "--dir", w.Dir); res.Code != 1 {
		t.Errorf("an unknown backend: exit %d %s", res.Code, res.Stderr)
	}
}
