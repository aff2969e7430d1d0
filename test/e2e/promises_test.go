package e2e

import (
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/test/harness"
)

// What world.json says is so: addresses, ports, ids, client subnets, and how long the tokens live.
func TestWorldFileTellsTheTruth(t *testing.T) {
	w := sharedWorld(t)
	first, nodes := w.cells()[0], []string{}
	for _, r := range w.Regions {
		if p := r.Clients[0]; !p.Addr().Is4() || p.Bits() > 24 {
			t.Errorf("%s: the first entry of clients is %s", r.ID, p)
		}
		for _, c := range r.Cells {
			if c.HTTPS != first.HTTPS || c.HTTP != first.HTTP {
				t.Errorf("%s has other ports than %s", c.ID, first.ID)
			}
			for _, p := range c.Proxies {
				nodes = append(nodes, p.ID)
				if w.pid(t, "proxy/"+p.ID) != p.PID {
					t.Errorf("%s has two pids", p.ID)
				}
				own := w.get(t, netip.AddrPortFrom(p.Address, c.HTTPS), http.MethodGet, w.Host, "/v1/catalog/x")
				if own.Status != 200 {
					t.Errorf("%s by its own address: %d %s", p.ID, own.Status, own.Body)
				}
			}
		}
	}
	var listed []string
	for _, n := range w.status(t).Nodes {
		listed = append(listed, n.ID)
	}
	slices.Sort(nodes)
	slices.Sort(listed)
	if !slices.Equal(nodes, listed) {
		t.Errorf("status lists %v, world.json %v", listed, nodes)
	}
	for name, token := range map[string]string{"customer": w.Tokens.Customer, "limited": w.Tokens.Limited} {
		if life := time.Until(expiry(t, token)); life < 7*24*time.Hour {
			t.Errorf("tokens.%s lives only %v more", name, life)
		}
	}
}

// expiry reads the claim exp of a JWT.
func expiry(t *testing.T, token string) time.Time {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatalf("no JWT: %d parts", len(parts))
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims struct {
		Exp int64 `json:"exp"`
	}
	if err := json.Unmarshal(raw, &claims); err != nil {
		t.Fatal(err)
	}
	return time.Unix(claims.Exp, 0)
}

// In every cell the edge certificate holds for every sample host under ca, and an API key travels in either field.
func TestEveryCellHasCertificatesForEveryHost(t *testing.T) {
	w := sharedWorld(t)
	raw, err := os.ReadFile(filepath.Join(w.Dir, "api-key"))
	if err != nil {
		t.Fatal(err)
	}
	key := strings.TrimSpace(string(raw))
	for _, c := range w.cells() {
		at := netip.AddrPortFrom(c.Address, c.HTTPS)
		for _, host := range []string{w.Host, "acme." + w.Zone, "globex." + w.Zone, w.Zone, "anything." + w.Zone} {
			conn, err := tls.Dial("tcp", at.String(), &tls.Config{RootCAs: w.roots(t), ServerName: host})
			if err != nil {
				t.Errorf("%s as %s: %v", c.ID, host, err)
				continue
			}
			conn.Close()
		}
		if a := w.get(t, at, http.MethodGet, "acme."+w.Zone, "/v1/reports/3", "Authorization", "Bearer "+key); !strings.HasPrefix(key, "cg_") || a.Status != 200 {
			t.Errorf("%s: API key as a bearer: %d %s", c.ID, a.Status, a.Body)
		}
	}
}

// The admin servers of a world speak HTTPS under ca and want tokens.admin.
func TestAdminServersOfAWorldWantTheToken(t *testing.T) {
	w := sharedWorld(t)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots(t)}, DisableKeepAlives: true}}
	ask := func(url, token string) int {
		req, err := http.NewRequest(http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
		res, err := client.Do(req)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			return 0
		}
		res.Body.Close()
		return res.StatusCode
	}
	var urls []string
	for _, c := range w.cells() {
		for _, path := range []string{"/healthz", "/readyz", "/metrics", "/config"} {
			urls = append(urls, "https://"+c.Proxies[0].Admin+path)
		}
	}
	for _, r := range w.Regions {
		urls = append(urls, r.Admin+"/v1/status")
	}
	if w.Admin != w.Regions[0].Admin {
		t.Errorf("admin is %s", w.Admin)
	}
	for _, url := range urls {
		if code := ask(url, w.Tokens.Admin); code != 200 {
			t.Errorf("%s with tokens.admin: %d", url, code)
		}
		for _, token := range []string{"", "wrong", w.Tokens.Customer} {
			if code := ask(url, token); code != 401 {
				t.Errorf("%s with %.8q: %d", url, token, code)
			}
		}
	}
}

// Orders take globs in which * matches slashes, act on all processes named and on none when a name matches nothing.
func TestOrdersToProcesses(t *testing.T) {
	w := sharedWorld(t)
	w.healthy(t, time.Minute)
	if out := w.cellgate(t, "stop", "health*1"); out != "healthd/ap-south/1\nhealthd/eu-west/1\nhealthd/us-east/1\n" {
		t.Errorf("stop says %q", out)
	}
	if pid := w.pid(t, "healthd/eu-west/1"); pid != 0 {
		t.Errorf("stopped, and pid is %d", pid)
	}
	if res := harness.Run(t, "cellgate", "kill", "healthd/*", "--dir", w.Dir); res.Code != 1 || !strings.Contains(res.Stderr, "none of them runs") {
		t.Errorf("kill of what is down: exit %d %q", res.Code, res.Stderr)
	}
	w.cellgate(t, "start", "healthd/*")
	w.cellgate(t, "start", "healthd/*") // starting what runs is no error
	before := w.pid(t, "capacityd/world/1")
	for _, order := range []string{"stop", "start", "kill"} {
		if res := harness.Run(t, "cellgate", order, "capacityd/world/1", "proxy/nobody/*", "--dir", w.Dir); res.Code != 1 || !strings.Contains(res.Stderr, `"proxy/nobody/*"`) {
			t.Errorf("%s of nobody: exit %d %q", order, res.Code, res.Stderr)
		}
	}
	if pid := w.pid(t, "capacityd/world/1"); pid != before {
		t.Errorf("a refused order did something: pid %d became %d", before, pid)
	}
	w.cellgate(t, "kill", "capacityd/*")
	harness.Eventually(t, 3*time.Second, "world.json names the new process", func() bool {
		pid := w.pid(t, "capacityd/world/1")
		return pid != 0 && pid != before && alive(pid)
	})
	if info, err := os.Stat(filepath.Join(w.Dir, "world.json")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("world.json after a restart: %v %v", info, err)
	}
	for _, format := range []string{"table", "json", "yaml"} {
		if out := w.cellgate(t, "status", "-o", format); !strings.Contains(out, "regionctl/ap-south/1") {
			t.Errorf("status -o %s: %s", format, out)
		}
	}
	w.healthy(t, time.Minute)
}

// When a region's controller is down, the next one is asked; --watch goes on until it is interrupted.
func TestCommandsGoToTheNextRegion(t *testing.T) {
	w := sharedWorld(t)
	w.cellgate(t, "stop", "regionctl/"+w.Regions[0].ID+"/1")
	defer w.healthy(t, time.Minute)
	defer w.cellgate(t, "start", "regionctl/*")
	watch := harness.Start(t, "regionctl", "status", "--watch", "--interval", "200ms", "--world", w.Dir)
	harness.Eventually(t, 5*time.Second, "status is printed twice", func() bool { return strings.Count(watch.Stdout(), "CELL ") >= 2 })
	watch.Signal(syscall.SIGINT)
	if res := watch.Wait(5 * time.Second); res.Code != 0 || res.Stderr != "" {
		t.Errorf("interrupted: exit %d, %q", res.Code, res.Stderr)
	}
	if out := w.mustRegionctl(t, "evacuate", w.Regions[2].ID, "--reason", "look", "--dry-run"); !strings.Contains(out, w.Regions[2].Cells[1].ID+": would be evacuated over 5m0s") {
		t.Errorf("dry run of a region: %s", out)
	}
	if res := w.regionctl(t, "publish", "--dry-run", filepath.Join(w.Dir, "sample.yaml")); res.Code != 0 {
		t.Errorf("publish: exit %d %s", res.Code, res.Stderr)
	}
}

// Secrets stand in files of mode 0600 only: in no command line, no environment of a process and no log.
func TestSecretsAreInNoArgumentsAndLogs(t *testing.T) {
	w := sharedWorld(t)
	key, err := os.ReadFile(filepath.Join(w.Dir, "api-key"))
	if err != nil {
		t.Fatal(err)
	}
	secrets := []string{w.Tokens.Admin, w.Tokens.Customer, w.Tokens.Limited, strings.TrimSpace(string(key))}
	tickets, err := filepath.Glob(filepath.Join(w.Dir, "keys", "*.tickets"))
	if err != nil || len(tickets) == 0 {
		t.Fatal("no cell has a secret for its tickets", err)
	}
	for _, file := range tickets {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		secrets = append(secrets, strings.TrimSpace(string(raw)))
	}
	clean := func(what string, raw []byte) {
		for _, s := range secrets {
			if strings.Contains(string(raw), s) {
				t.Errorf("%s holds %.6s…", what, s)
			}
		}
	}
	for _, pid := range append([]int{w.Supervisor}, pids(w)...) {
		for _, file := range []string{"cmdline", "environ"} {
			if raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file)); err == nil {
				clean(fmt.Sprintf("%s of %d", file, pid), raw)
			}
		}
	}
	logs, err := filepath.Glob(filepath.Join(w.Dir, "logs", "*"))
	if err != nil || len(logs) < len(w.Processes) {
		t.Fatalf("%d logs, %v", len(logs), err)
	}
	for _, log := range logs {
		raw, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		clean(log, raw)
	}
	err = filepath.WalkDir(w.Dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Type()&os.ModeSymlink != 0 {
			return err
		}
		if info, err := d.Info(); err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return nil
	})
	if err != nil && !os.IsNotExist(err) { // files come and go
		t.Error(err)
	}
}

func pids(w *world) []int {
	var all []int
	for _, p := range w.Processes {
		if p.PID > 0 {
			all = append(all, p.PID)
		}
	}
	return all
}

// The smallest world, in a directory whose name is long and has spaces, with another TTL: every figure is obeyed, the last
// cell can't be evacuated, and a customer may be fast.
func TestSmallWorldInAnAwkwardDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40), "a world's \"dir\" $HOME é")
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		t.Fatal(err)
	}
	w, err := up(harness.Bin(t, "cellgate"), dir, "--net", loopback.For(t).String(), "--regions", "1", "--cells", "1", "--proxies", "1", "--ttl", "2s")
	if err != nil {
		t.Fatal(err)
	}
	defer harness.Run(t, "cellgate", "down", "--dir", dir)
	if len(w.Regions) != 1 || w.nodes() != 1 || w.TTL != 2 || len(w.DNS) != 2 {
		t.Errorf("%+v", w)
	}
	if _, ttl, err := load.Lookup(t.Context(), w.DNS, w.Host, w.Regions[0].Clients[0]); err != nil || ttl > 2*time.Second {
		t.Errorf("a TTL of %v, %v", ttl, err)
	}
	for _, force := range []string{"--force=false", "--force"} {
		if res := w.regionctl(t, "evacuate", "eu-west", "--reason", "no way out", force); res.Code != 3 || !strings.Contains(res.Stderr, "no usable cell") {
			t.Errorf("the last cell, %s: exit %d %q", force, res.Code, res.Stderr)
		}
	}
	w.fast(t, 3000)
}

// fast makes n requests as the customer, as quickly as it goes: none may be refused.
func (w *world) fast(t *testing.T, n int) {
	const lanes = 8
	c := w.cells()[0]
	tr := &http.Transport{MaxIdleConnsPerHost: lanes}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: 10 * time.Second}
	began := time.Now()
	var wg sync.WaitGroup
	for range lanes {
		wg.Go(func() {
			for range n / lanes {
				req, err := http.NewRequest(http.MethodHead, "http://"+netip.AddrPortFrom(c.Address, c.HTTP).String()+w.Path, nil)
				if err != nil {
					t.Error(err)
					return
				}
				req.Host = w.Host
				req.Header.Set("Authorization", "Bearer "+w.Tokens.Customer)
				res, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				res.Body.Close()
				if res.StatusCode != 200 {
					t.Errorf("status %d", res.StatusCode)
					return
				}
			}
		})
	}
	wg.Wait()
	t.Logf("%.0f requests/s", float64(n)/time.Since(began).Seconds())
}
