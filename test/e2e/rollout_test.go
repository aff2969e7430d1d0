package e2e

import (
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// tenFaults is a document with a fault of a different kind in each marked line.
const tenFaults = `version: v1
colour: blue                                                                  # 1 unknown key
routes:
  - id: a
    match: {host: api.gw.test, path: /a, path_prefix: /b}                     # 2 both kinds of path
    upstream: good
  - id: b
    match: {host: api.gw.test, path: /b}
    upstream: missing                                                         # 3 unknown upstream
  - id: c
    match: {host: api.gw.test, path: /c, methods: [FETCH IT]}                 # 4 not a method
    upstream: good
  - id: d
    match: {host: api.gw.test, path: /d}
    upstream: good
    auth: nobody                                                              # 5 unknown policy
  - id: e
    match: {host: api.gw.test, path: /e}
    upstream: good
    timeout: soon                                                             # 6 not a duration
  - id: f
    match: {host: api.gw.test, path_prefix: /}                                # 7 catch-all without permission
    upstream: good
  - id: f                                                                     # 8 the same id twice
    match: {host: api.gw.test, path: /g}
    upstream: good
upstreams:
  - {id: good, endpoints: ["127.0.0.1:8080"]}
  - {id: bad, endpoints: ["169.254.169.254:80"]}                              # 9 a metadata address
plans:
  - {id: pro, rate_per_sec: -1}                                               # 10 a negative rate
`

func TestDocumentWithTenFaultsIsRefusedNamingAll(t *testing.T) {
	w := sharedWorld(t)
	before := w.status(t).Version
	file := harness.WriteFile(t, "faulty.yaml", tenFaults)
	var lines []int
	for i, l := range strings.Split(tenFaults, "\n") {
		if strings.Contains(l, "  # ") {
			lines = append(lines, i+1)
		}
	}
	if len(lines) != 10 {
		t.Fatalf("the document has %d marked faults", len(lines))
	}
	for _, args := range [][]string{{"config", "validate", file, "--allow-upstreams", "127.0.0.0/8"}, {"config", "publish", file}} {
		res := w.regionctl(t, args...)
		if res.Code != 1 {
			t.Errorf("%v: exit %d", args, res.Code)
		}
		for _, n := range lines {
			if !strings.Contains(res.Stdout+res.Stderr, fmt.Sprintf("faulty.yaml:%d: ", n)) {
				t.Errorf("%v: the fault in line %d is not named:\n%s%s", args, n, res.Stdout, res.Stderr)
			}
		}
	}
	if now := w.status(t).Version; now != before {
		t.Errorf("version %d was published", now)
	}
}

func TestGoodDocumentReachesEveryNode(t *testing.T) {
	w := sharedWorld(t)
	sample, err := os.ReadFile(filepath.Join(w.Dir, "sample.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	before := w.status(t).Version
	route := "  - id: fresh\n    match: {host: api.gw.test, path: /v1/fresh, methods: [GET]}\n    upstream: catalog\n    owner: team-catalog\n\nupstreams:\n"
	file := harness.WriteFile(t, "fresh.yaml", strings.Replace(string(sample), "\nupstreams:\n", "\n"+route, 1))
	w.mustRegionctl(t, "config", "publish", file, "--message", "a fresh route")

	rings := w.cells()
	last := rings[len(rings)-1].ID
	var released, done time.Time
	harness.Eventually(t, 2*time.Minute, "every node serves the new version", func() bool {
		s := w.status(t)
		if s.Rollout != nil && s.Rollout.Version == before+1 && strings.Contains(s.Rollout.Ring, last) && released.IsZero() {
			released = time.Now()
		}
		all := len(s.Nodes) == w.nodes()
		for _, n := range s.Nodes {
			all = all && n.Served == before+1
		}
		done = time.Now()
		return all
	})
	if took := done.Sub(released); released.IsZero() || took > harness.Slack*5*time.Second {
		t.Errorf("the last ring took %v", took)
	} else {
		t.Logf("the last ring was served %v after its release", took)
	}
	for _, c := range w.cells() {
		for _, p := range c.Proxies {
			if a := w.get(t, netip.AddrPortFrom(p.Address, c.HTTPS), http.MethodGet, w.Host, "/v1/fresh"); a.Status != 200 {
				t.Errorf("%s: %d %s", p.ID, a.Status, a.Body)
			}
		}
	}
	harness.Eventually(t, time.Minute, "the rollout is finished", func() bool {
		r := w.status(t).Rollout
		return r == nil || r.State == "live"
	})
}
