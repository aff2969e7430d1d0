//go:build long

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/test/harness"
)

// lossLimit is what each cell of the world is taken to carry, in requests per second.
const lossLimit = 150

// Cells and regions are lost while nobody is left to make a plan: the routers subtract them by themselves.
func TestLossesAreSubtractedWithoutALeader(t *testing.T) {
	w, err := up(harness.Bin(t, "cellgate"), filepath.Join(t.TempDir(), "w"), "--net", loopback.For(t).String(), "--cell-limit", fmt.Sprint(lossLimit))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.cellgate(t, "down") })
	t.Run("a cell, with every controller stopped", w.cellIsLostWithoutControllers)
	w.healthy(t, time.Minute)
	t.Run("the region of the leader and its etcd", w.regionOfTheLeaderIsLost)
}

// told is what each server answers to n clients of every region, in the order of w.clients.
func (w *world) told(t *testing.T, servers []string, n int) map[string][]netip.Addr {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	out := map[string][]netip.Addr{}
	for _, server := range servers {
		for _, subnet := range w.clients(n) {
			addrs, _, err := load.Lookup(ctx, []string{server}, w.Host, subnet)
			if err != nil || len(addrs) != 1 {
				t.Fatalf("%s for %s at %s: %v %v", w.Host, subnet, server, addrs, err)
			}
			out[server] = append(out[server], addrs[0])
		}
	}
	return out
}

// withoutWithin waits until none of the servers names any of the addresses.
func (w *world) withoutWithin(t *testing.T, within time.Duration, servers []string, lost ...netip.Addr) map[string][]netip.Addr {
	t.Helper()
	var now map[string][]netip.Addr
	began := time.Now()
	harness.Eventually(t, within, fmt.Sprintf("%v are gone from the answers", lost), func() bool {
		now = w.told(t, servers, lossClients)
		for _, answers := range now {
			if slices.ContainsFunc(answers, func(a netip.Addr) bool { return slices.Contains(lost, a) }) {
				return false
			}
		}
		return true
	})
	t.Logf("gone after %v", time.Since(began).Round(100*time.Millisecond))
	return now
}

const lossClients = 12 // of every region

// bystandersKeep compares the answers of clients that were not on a lost cell, byte for byte.
func bystandersKeep(t *testing.T, before, after map[string][]netip.Addr, lost ...netip.Addr) {
	t.Helper()
	for server, answers := range after {
		moved := 0
		for i, a := range answers {
			if was := before[server][i]; slices.Contains(lost, was) {
				moved++
			} else if a != was {
				t.Errorf("%s: client %d was on %s, which lives, and is sent to %s", server, i, was, a)
			}
		}
		if moved == 0 {
			t.Errorf("%s: no client was on %v to begin with", server, lost)
		}
	}
}

func (w *world) cellIsLostWithoutControllers(t *testing.T) {
	victim := w.Regions[0].Cells[0]
	before := w.told(t, w.DNS, lossClients)
	w.cellgate(t, "stop", "regionctl/*")
	w.cellgate(t, "stop", "proxy/"+victim.ID+"/*")
	after := w.withoutWithin(t, 10*time.Second, w.DNS, victim.Address)
	bystandersKeep(t, before, after, victim.Address)
	w.cellgate(t, "start", "proxy/"+victim.ID+"/*")
	harness.Eventually(t, 60*time.Second, "the cell is back as before", func() bool {
		now := w.told(t, w.DNS, lossClients)
		for server, answers := range now {
			if !slices.Equal(answers, before[server]) {
				return false
			}
		}
		return true
	})
	w.cellgate(t, "start", "regionctl/*")
}

func (w *world) regionOfTheLeaderIsLost(t *testing.T) {
	home := w.leader(t)
	var lost []netip.Addr
	for _, r := range w.Regions {
		for _, c := range r.Cells {
			if r.ID == home {
				lost = append(lost, c.Address)
			}
		}
	}
	var servers []string
	var names []string
	var pids []int
	routers := 0
	for _, p := range w.read(t).Processes {
		there := strings.HasPrefix(p.ID, home+"/") || p.ID == home || p.ID == "global/"+home
		if p.Role == "globalrouter" {
			if !there {
				servers = append(servers, w.DNS[routers])
			}
			routers++
		}
		if there && p.Role != "backend" {
			names, pids = append(names, p.Role+"/"+p.ID), append(pids, p.PID)
		}
	}
	h1, h2 := w.load(t, lossClients, 400*time.Millisecond)
	time.Sleep(8 * time.Second)
	before := w.told(t, servers, lossClients)
	for _, pid := range pids {
		sigkill(t, pid)
	}
	killed := time.Now()
	w.cellgate(t, append([]string{"stop"}, names...)...) // nobody restarts them
	after := w.withoutWithin(t, time.Until(killed.Add(10*time.Second)), servers, lost...)
	bystandersKeep(t, before, after, lost...)
	time.Sleep(5 * time.Second)
	h1.Stop()
	h2.Stop()
	sum := load.Sum(append(h1.Requests(), h2.Requests()...))
	t.Logf("%s", sum)
	for _, c := range w.cells() {
		got := sum.Cells[c.Address]
		if slices.Contains(lost, c.Address) || got == nil {
			continue
		}
		t.Logf("%s: at most %.1f requests per second, target %.0f", c.ID, got.Peak, 0.7*lossLimit)
		if got.Peak > 0.7*lossLimit {
			t.Errorf("%s is above its target", c.ID)
		}
	}
	w.cellgate(t, append([]string{"start"}, names...)...)
	w.healthy(t, 90*time.Second)
}

// leader is the region whose controller led last.
func (w *world) leader(t *testing.T) string {
	t.Helper()
	leading := regexp.MustCompile(`"msg":"leading the world","id":"([^"/]+)/[^"]*","epoch":(\d+)`)
	files, _ := filepath.Glob(filepath.Join(w.Dir, "logs", "regionctl-*.log"))
	region, newest := "", 0
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range leading.FindAllStringSubmatch(string(raw), -1) {
			if epoch, _ := strconv.Atoi(m[2]); epoch > newest {
				region, newest = m[1], epoch
			}
		}
	}
	if region == "" {
		t.Fatalf("no controller leads, say %v", files)
	}
	return region
}
