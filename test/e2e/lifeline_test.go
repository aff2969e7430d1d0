//go:build long

package e2e

import (
	"encoding/base64"
	"encoding/json"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/test/harness"
)

// The global store is gone, and with it every leader: operators still evacuate, restore, and shut callers out.
func TestOperatorsNeedNoGlobalStoreToEvacuateAndDeny(t *testing.T) {
	w, err := up(harness.Bin(t, "cellgate"), filepath.Join(t.TempDir(), "w"), "--net", loopback.For(t).String(), "--regions", "2", "--ramp", "5s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.cellgate(t, "down") })
	w.cellgate(t, "stop", "etcd/global/*")
	harness.Eventually(t, 15*time.Second, "the controllers say that the store is gone", func() bool {
		return strings.Contains(w.mustRegionctl(t, "status"), "global store does not answer")
	})
	t.Run("a user is shut out of a region", w.userIsShutOut)
	t.Run("a cell is evacuated, and known to the store when it returns", w.cellIsEvacuatedBehindTheGlass)
}

// answers is what each proxy of a region answers to the customer.
func (w *world) answers(t *testing.T, region int) (all []answer) {
	for _, c := range w.Regions[region].Cells {
		for _, p := range c.Proxies {
			all = append(all, w.get(t, netip.AddrPortFrom(p.Address, c.HTTPS), "GET", w.Host, w.Path, "Authorization", "Bearer "+w.Tokens.Customer))
		}
	}
	return all
}

func each(all []answer, status int) bool {
	for _, a := range all {
		if a.Status != status {
			return false
		}
	}
	return len(all) > 0
}

func (w *world) userIsShutOut(t *testing.T) {
	payload, err := base64.RawURLEncoding.DecodeString(strings.Split(w.Tokens.Customer, ".")[1])
	var claims struct{ Sub, Jti string }
	if err != nil || json.Unmarshal(payload, &claims) != nil || claims.Sub == "" {
		t.Fatalf("token %s: %v", payload, err)
	}
	for region := range w.Regions {
		if a := w.answers(t, region); !each(a, 200) {
			t.Fatalf("before: %+v", a)
		}
	}
	// Asked at one region's controller, for another region.
	deny := []string{"--user", claims.Sub, "--region", w.Regions[1].ID, "--reason", "e2e"}
	began := time.Now()
	w.mustRegionctl(t, append([]string{"deny", "add"}, deny...)...)
	var denied []answer
	harness.Eventually(t, 2*time.Second, "every node of the region refuses the user", func() bool {
		denied = w.answers(t, 1)
		return each(denied, 401)
	})
	t.Logf("every node refuses %v after the command began", time.Since(began).Round(time.Millisecond))
	if h := denied[0].Header; h.Get("X-Cellgate-Reason") != "denied" || !strings.Contains(h.Get("WWW-Authenticate"), "invalid_token") {
		t.Errorf("%+v", denied[0])
	}
	if a := w.answers(t, 0); !each(a, 200) {
		t.Errorf("the other region: %+v", a)
	}
	if out := w.mustRegionctl(t, "deny", "list"); !strings.Contains(out, claims.Sub) {
		t.Error(out)
	}
	w.mustRegionctl(t, append([]string{"deny", "remove"}, deny...)...)
	harness.Eventually(t, 2*time.Second, "the user is let in again", func() bool { return each(w.answers(t, 1), 200) })
}

func (w *world) cellIsEvacuatedBehindTheGlass(t *testing.T) {
	victim := w.Regions[0].Cells[0]
	if res := w.regionctl(t, "evacuate", victim.ID, "--reason", "e2e", "--over", "0s"); res.Code != 1 || !strings.Contains(res.Stderr, "--break-glass") {
		t.Errorf("without breaking the glass: exit %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	out := w.mustRegionctl(t, "evacuate", victim.ID, "--reason", "e2e", "--over", "0s", "--break-glass")
	if !strings.Contains(out, "without leader and global store") || strings.Count(out, ": taken") != 2 {
		t.Errorf("the output does not say which way it went:\n%s", out)
	}
	w.withoutWithin(t, 10*time.Second, w.DNS, victim.Address)
	if res := w.regionctl(t, "evacuate", w.Regions[0].ID, "--reason", "e2e", "--break-glass"); res.Code != 0 {
		t.Errorf("half of the world: exit %d %s", res.Code, res.Stderr)
	}
	res := w.regionctl(t, "evacuate", w.Regions[1].ID, "--reason", "e2e", "--break-glass", "--force")
	if res.Code != 3 || !strings.Contains(res.Stderr, "no usable cell") {
		t.Errorf("the rest of the world: exit %d\n%s%s", res.Code, res.Stdout, res.Stderr)
	}
	if out := w.mustRegionctl(t, "restore", w.Regions[0].Cells[1].ID); !strings.Contains(out, "without leader and global store") {
		t.Errorf("restored in another way:\n%s", out)
	}
	w.cellgate(t, "start", "etcd/global/*")
	harness.Eventually(t, 20*time.Second, "the global store has the order and the restoration", func() bool {
		s := w.status(t)
		out := w.mustRegionctl(t, "audit", "--limit", "50")
		return s.cellState(victim.ID) == "evacuated" && s.cellState(w.Regions[0].Cells[1].ID) == "active" &&
			strings.Contains(out, "evacuations reconciled") && strings.Contains(out, "break glass, regional")
	})
	if out := w.mustRegionctl(t, "restore", victim.ID); !strings.Contains(out, "path: global store") {
		t.Errorf("restored in another way:\n%s", out)
	}
	harness.Eventually(t, 60*time.Second, "the cell is active again", func() bool { return w.status(t).cellState(victim.ID) == "active" })
	for region := range w.Regions {
		if a := w.answers(t, region); !each(a, 200) {
			t.Errorf("after: %+v", a)
		}
	}
}
