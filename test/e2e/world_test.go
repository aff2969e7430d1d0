// Package e2e proves on real processes and sockets what a whole world promises: a start in seconds, clients sent home,
// rollouts, evacuations and deaths that no client notices, and clear words when something is wrong.
package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/test/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(tests{m})) }

// tests ends the shared world while the commands that the harness has built are still there.
type tests struct{ *testing.M }

func (m tests) Run() int {
	code := m.M.Run()
	if err := shared.end(); err != nil {
		fmt.Fprintln(os.Stderr, "the shared world:", err)
		return max(code, 1)
	}
	return code
}

// world is a running world as its world.json describes it.
type world struct {
	Dir  string `json:"-"`
	bin  string
	took time.Duration // until `up --detach` came back

	DNS    []string `json:"dns"`
	Admin  string   `json:"admin"`
	CA     string   `json:"ca"`
	Zone   string   `json:"zone"`
	Host   string   `json:"host"`
	Path   string   `json:"path"`
	TTL    int      `json:"ttl"`
	Tokens struct {
		Admin    string `json:"admin"`
		Customer string `json:"customer"`
		Limited  string `json:"limited"`
	} `json:"tokens"`
	Regions []struct {
		ID      string         `json:"id"`
		Clients []netip.Prefix `json:"clients"`
		Admin   string         `json:"admin"`
		Cells   []cell         `json:"cells"`
	} `json:"regions"`
	Processes []struct {
		Role string `json:"role"`
		ID   string `json:"id"`
		PID  int    `json:"pid"`
	} `json:"processes"`
	Supervisor int `json:"supervisor"`
}

type cell struct {
	ID      string     `json:"id"`
	Address netip.Addr `json:"address"`
	HTTPS   uint16     `json:"https"`
	HTTP    uint16     `json:"http"`
	Proxies []struct {
		ID      string     `json:"id"`
		Address netip.Addr `json:"address"`
		PID     int        `json:"pid"`
		Admin   string     `json:"admin"`
	} `json:"proxies"`
}

// cellLimit is what each cell of the shared world is taken to carry, in requests per second.
const cellLimit = 300

// theShared is the world that most tests look at or shake, one after the other; the first one starts it. Tests with worlds of
// their own run side by side afterwards.
type theShared struct {
	once  sync.Once
	block *loopback.Block
	w     *world
	err   error
}

var shared theShared

func sharedWorld(t *testing.T) *world {
	t.Helper()
	shared.once.Do(func() {
		dir, err := os.MkdirTemp("", "cellgate-e2e-")
		if err != nil {
			shared.err = err
			return
		}
		if shared.block, shared.err = loopback.Claim(); shared.err == nil {
			shared.w, shared.err = up(harness.Bin(t, "cellgate"), filepath.Join(dir, "w"), "--net", shared.block.String(), "--cell-limit", fmt.Sprint(cellLimit))
		}
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.w.read(t)
}

func (s *theShared) end() error {
	if s.w == nil {
		return nil
	}
	defer s.block.Release()
	out, err := exec.Command(s.w.bin, "down", "--dir", s.w.Dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("down: %w: %s", err, out)
	}
	return os.RemoveAll(filepath.Dir(s.w.Dir))
}

// up starts a world detached and reads its world.json.
func up(bin, dir string, flags ...string) (*world, error) {
	began := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, bin, append([]string{"up", "--detach", "--dir", dir}, flags...)...).CombinedOutput()
	if err != nil {
		return nil, fmt.Errorf("cellgate up: %w\n%s", err, out)
	}
	w := &world{Dir: dir, bin: bin, took: time.Since(began)}
	return w, w.refresh()
}

func (w *world) refresh() error {
	raw, err := os.ReadFile(filepath.Join(w.Dir, "world.json"))
	if err != nil {
		return err
	}
	fresh := world{Dir: w.Dir, bin: w.bin, took: w.took}
	if err := json.Unmarshal(raw, &fresh); err != nil {
		return err
	}
	*w = fresh
	return nil
}

// read brings the pids up to date.
func (w *world) read(t *testing.T) *world {
	t.Helper()
	if err := w.refresh(); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) roots(t *testing.T) *x509.CertPool {
	t.Helper()
	raw, err := os.ReadFile(w.CA)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		t.Fatalf("%s holds no certificate", w.CA)
	}
	return pool
}

func (w *world) cells() []cell {
	var all []cell
	for _, r := range w.Regions {
		all = append(all, r.Cells...)
	}
	return all
}

func (w *world) nodes() int {
	n := 0
	for _, c := range w.cells() {
		n += len(c.Proxies)
	}
	return n
}

// pid is the process id of a process that world.json names "role/id".
func (w *world) pid(t *testing.T, name string) int {
	t.Helper()
	for _, p := range w.read(t).Processes {
		if p.Role+"/"+p.ID == name {
			return p.PID
		}
	}
	t.Fatalf("world.json names no process %s", name)
	return 0
}

// cellgate runs a command on this world and fails the test unless it succeeds.
func (w *world) cellgate(t *testing.T, args ...string) string {
	t.Helper()
	res := harness.Run(t, "cellgate", append(args, "--dir", w.Dir)...)
	if res.Code != 0 {
		t.Fatalf("cellgate %v: exit %d\n%s%s", args, res.Code, res.Stdout, res.Stderr)
	}
	return res.Stdout
}

// regionctl runs an operator's command on this world.
func (w *world) regionctl(t *testing.T, args ...string) harness.Result {
	t.Helper()
	return harness.Run(t, "regionctl", append(args, "--world", w.Dir)...)
}

// mustRegionctl is regionctl that fails the test unless it succeeds.
func (w *world) mustRegionctl(t *testing.T, args ...string) string {
	t.Helper()
	res := w.regionctl(t, args...)
	if res.Code != 0 {
		t.Fatalf("regionctl %v: exit %d\n%s%s", args, res.Code, res.Stdout, res.Stderr)
	}
	return res.Stdout
}

// status is what `regionctl status -o json` promises.
type status struct {
	Version uint64 `json:"version"`
	Rollout *struct {
		Version uint64 `json:"version"`
		State   string `json:"state"`
		Ring    string `json:"ring"`
		Why     string `json:"why"`
	} `json:"rollout"`
	Nodes []struct {
		ID     string  `json:"id"`
		Cell   string  `json:"cell"`
		Known  uint64  `json:"known"`
		Stored uint64  `json:"stored"`
		Served uint64  `json:"served"`
		Reason string  `json:"reason"`
		AgeS   float64 `json:"age_s"`
	} `json:"nodes"`
	Cells []struct {
		ID       string   `json:"id"`
		State    string   `json:"state"`
		Healthy  *bool    `json:"healthy"`
		Headroom *float64 `json:"headroom"`
	} `json:"cells"`
}

func (w *world) status(t *testing.T) status {
	t.Helper()
	return parseStatus(t, w.mustRegionctl(t, "status", "-o", "json"))
}

// statusAt asks the controller of one region.
func (w *world) statusAt(t *testing.T, server string) status {
	t.Helper()
	env := []string{"REGIONCTL_SERVER=" + server, "REGIONCTL_TOKEN=" + w.Tokens.Admin, "REGIONCTL_CA=" + w.CA}
	res := harness.RunWith(t, env, "regionctl", "status", "-o", "json")
	if res.Code != 0 {
		t.Fatalf("status of %s: exit %d: %s", server, res.Code, res.Stderr)
	}
	return parseStatus(t, res.Stdout)
}

func parseStatus(t *testing.T, text string) status {
	t.Helper()
	var s status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		t.Fatalf("status: %v\n%s", err, text)
	}
	return s
}

func (s status) cellState(id string) string {
	for _, c := range s.Cells {
		if c.ID == id {
			return c.State
		}
	}
	return ""
}

// healthy waits until every process runs, every node serves the newest version and every cell is healthy and active.
func (w *world) healthy(t *testing.T, within time.Duration) {
	t.Helper()
	missing := ""
	defer func() {
		if t.Failed() && missing != "" {
			t.Log("missing: " + missing)
		}
	}()
	harness.Eventually(t, within, "the world is whole again", func() bool {
		missing = w.missing(t)
		return missing == ""
	})
}

func (w *world) missing(t *testing.T) string {
	for _, p := range w.read(t).Processes {
		if p.PID == 0 {
			return p.Role + "/" + p.ID + " is down"
		}
	}
	res := w.regionctl(t, "status", "-o", "json")
	if res.Code != 0 {
		return res.Stderr
	}
	s := parseStatus(t, res.Stdout)
	for _, n := range s.Nodes {
		if n.Served != s.Version {
			return fmt.Sprintf("%s serves %d, not %d", n.ID, n.Served, s.Version)
		}
	}
	for _, c := range s.Cells {
		if c.Healthy == nil || !*c.Healthy || c.State != "active" {
			return fmt.Sprintf("%s is %s, healthy %v", c.ID, c.State, c.Healthy)
		}
	}
	if len(s.Nodes) != w.nodes() {
		return fmt.Sprintf("%d of %d nodes are listed", len(s.Nodes), w.nodes())
	}
	return ""
}

// answer is one response of the gateway.
type answer struct {
	Status int
	Header http.Header
	Body   string
}

// get asks one address over TLS as api.gw.test's client would.
func (w *world) get(t *testing.T, at netip.AddrPort, method, host, path string, header ...string) answer {
	t.Helper()
	tr := &http.Transport{
		TLSClientConfig:   &tls.Config{RootCAs: w.roots(t), ServerName: host},
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at.String())
		},
	}
	req, err := http.NewRequest(method, "https://"+host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		t.Fatalf("%s %s at %s: %v", method, path, at, err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s %s at %s: body: %v", method, path, at, err)
	}
	return answer{res.StatusCode, res.Header, string(body)}
}

// clients are n subnets of every region's clients.
func (w *world) clients(n int) []netip.Prefix {
	var all []netip.Prefix
	for _, r := range w.Regions {
		base := r.Clients[0].Addr().As4()
		for i := range n {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{base[0], base[1], byte(1 + i*3), 0}), 24))
		}
	}
	return all
}

// load starts steady traffic from n clients of every region in each of HTTP/1.1 and HTTP/2.
func (w *world) load(t *testing.T, n int, every time.Duration) (h1, h2 *load.Run) {
	t.Helper()
	c := load.Config{
		DNS: w.DNS, Host: w.Host, Port: w.Regions[0].Cells[0].HTTPS, Path: w.Path, Token: w.Tokens.Customer,
		Roots: w.roots(t), Clients: w.clients(n), Every: every,
	}
	h1 = load.Start(c)
	c.HTTP2 = true
	return h1, load.Start(c)
}

func alive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(raw), ") Z ")
}

// orphans lists processes that have the directory in their command line.
func orphans(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, e := range entries {
		raw, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && strings.Contains(string(raw), dir) {
			found = append(found, e.Name()+" "+strings.ReplaceAll(string(raw), "\x00", " "))
		}
	}
	return found
}

func sigkill(t *testing.T, pid int) {
	t.Helper()
	if pid <= 1 {
		t.Fatalf("no process to kill: pid %d", pid)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
}
