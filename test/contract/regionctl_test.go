package contract

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/regionctl"
	"github.com/cellgate/cellgate/store/mem"
	"github.com/cellgate/cellgate/test/harness"
	"github.com/cellgate/cellgate/trust"
)

// controlled is a controller of two regions' cells with its store in memory, for the regionctl command to speak to.
type controlled struct {
	t      *testing.T
	server string
	ca     string
}

const controlledToken = "contract-token"

func newControlled(t *testing.T) *controlled {
	t.Helper()
	now := time.Now()
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ca, err := trust.NewCA("gw.test", now)
	ok(err)
	roots, err := trust.NewRoots(ca.CertPEM())
	ok(err)
	certPEM, keyPEM, err := ca.Issue(trust.Identity{World: "gw.test", Role: trust.RoleController, ID: "eu-west/1"}, []netip.Addr{netip.MustParseAddr("127.24.9.1")}, nil, now, time.Hour)
	ok(err)
	signer, err := trust.NewSigner(certPEM, keyPEM)
	ok(err)
	cert, err := tls.X509KeyPair(certPEM, keyPEM)
	ok(err)
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.24.9.1:0")
		ok(err)
		return l
	}
	nodes, api := listen(), listen()
	var topology cells.Topology
	for i, region := range []cells.RegionID{"eu-west", "us-east"} {
		topology.Regions = append(topology.Regions, cells.Region{ID: region, Clients: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("5.%d.0.0/16", i+1))}, Cells: []cells.Cell{
			{ID: cells.CellID(region + "/a"), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{127, 24, 9, byte(i + 10)})}, HTTPS: 8443, Limit: 100_000, Nodes: []cells.Node{{ID: cells.NodeID(region + "/a/1")}}},
		}})
	}
	hash := sha256.Sum256([]byte(controlledToken))
	c, err := regionctl.New(regionctl.Options{
		World: "gw.test", ID: "eu-west/1", Region: "eu-west", Topology: topology, Zone: "gw.test", SteeredNames: []string{"api.gw.test"},
		AdminTokenHash: "sha256:" + hex.EncodeToString(hash[:]), TTL: time.Second, Ramp: time.Second,
		Global: mem.New(), Regional: mem.New(), Signer: signer, Roots: roots, APICert: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }, NodeAPI: nodes, API: api,
		Now: time.Now, Log: slog.New(slog.DiscardHandler),
	})
	ok(err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- c.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	r := &controlled{t: t, server: "https://" + api.Addr().String(), ca: filepath.Join(t.TempDir(), "ca.pem")}
	ok(os.WriteFile(r.ca, ca.CertPEM(), 0o600))
	harness.Eventually(t, 10*time.Second, "a steering plan", func() bool {
		return r.run("dns", "explain", "api.gw.test", "--client", "5.1.0.1").Code == 0
	})
	return r
}

func (r *controlled) env() []string {
	return []string{"REGIONCTL_SERVER=" + r.server, "REGIONCTL_TOKEN=" + controlledToken, "REGIONCTL_CA=" + r.ca}
}

func (r *controlled) run(args ...string) harness.Result {
	r.t.Helper()
	return harness.RunWith(r.t, r.env(), "regionctl", args...)
}

func (r *controlled) file(doc string) string {
	r.t.Helper()
	name := filepath.Join(r.t.TempDir(), "doc.yaml")
	if err := os.WriteFile(name, []byte(doc), 0o600); err != nil {
		r.t.Fatal(err)
	}
	return name
}

func routes(n int) string {
	doc := "version: v1\nupstreams:\n  - {id: u, endpoints: [\"10.0.0.7:80\"]}\nroutes:\n"
	for i := range n {
		doc += fmt.Sprintf("  - {id: r%d, match: {host: api.gw.test, path: /v1/r%d}, upstream: u, owner: team-%d}\n", i, i, i%2)
	}
	return doc
}

// Every command of the contract has help with an example; wrong use exits 2 and says what is wrong.
func TestRegionctlCommandsHelpWithAnExample(t *testing.T) {
	for _, line := range []string{
		"status", "config publish", "config versions", "config show", "config rollback", "config explain", "publish", "versions", "rollback", "explain",
		"rollout list", "rollout status", "rollout pause", "rollout resume", "rollout promote", "rollout abort", "cells list", "cells show",
		"evacuate", "restore", "deny add", "deny remove", "deny list", "keys issue", "keys list", "keys revoke", "dns explain", "capacity headroom", "audit", "serve",
	} {
		out := run(t, append(append([]string{"regionctl"}, strings.Fields(line)...), "--help")...)
		if out.Code != 0 || !strings.Contains(out.Stdout, "Examples:") || !strings.Contains(out.Stdout, "regionctl "+strings.Fields(line)[0]) {
			t.Errorf("regionctl %s --help: exit %d\n%s", line, out.Code, out.Stdout)
		}
	}
	if out := run(t, "regionctl", "completion", "bash"); out.Code != 0 || !strings.Contains(out.Stdout, "regionctl") {
		t.Errorf("completion: exit %d", out.Code)
	}
}

func TestRegionctlWrongUseExitsTwo(t *testing.T) {
	r := newControlled(t)
	for _, line := range []string{
		"evacuate", "evacuate eu-west/a", "evacuate eu-west/a --reason x --over 2h --expires 1h", "evacuate eu-west/a us-east/a --reason x",
		"status -o xml", "status --interval 1ms", "rollback", "rollback zero", "rollback 0", "dns explain api.gw.test", "explain", "explain /path/only",
		"explain a b c", "audit --limit 0", "no-such-command", "cells show", "publish", "serve", "rollout status x", "restore",
		"dns explain api.gw.test --client x", "evacuate eu-west/a --reason x --expires 10000h", "publish --owner team /dev/null --allow-upstreams x",
	} {
		if out := r.run(strings.Fields(line)...); out.Code != 2 || out.Stderr == "" || out.Stdout != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", line, out.Code, out.Stdout, out.Stderr)
		}
	}
}

func TestRegionctlFailuresExitOneAndSayWhy(t *testing.T) {
	r := newControlled(t)
	for line, say := range map[string]string{
		"evacuate mars/a --reason x":    "no cell or region",
		"restore eu-west/a":             "not evacuated",
		"cells show mars/a":             "no cell",
		"rollback 7":                    "no version 7",
		"config show 7":                 "no version 7",
		"explain https://api.gw.test/":  "nothing has been published",
		"publish /no/such/file.yaml":    "no such file",
		"rollout pause":                 "none is under way",
		"status --world /no/such/world": "world.json",
		"status --context nowhere":      "context",
		"publish " + t.TempDir():        "no .yaml",
	} {
		if out := r.run(strings.Fields(line)...); out.Code != 1 || !strings.Contains(out.Stderr, say) {
			t.Errorf("%s: exit %d, stderr %q", line, out.Code, out.Stderr)
		}
	}
	wrong := []string{"REGIONCTL_SERVER=" + r.server, "REGIONCTL_TOKEN=wrong", "REGIONCTL_CA=" + r.ca}
	if out := harness.RunWith(t, wrong, "regionctl", "status"); out.Code != 1 || !strings.Contains(out.Stderr, "token of REGIONCTL_SERVER") {
		t.Errorf("wrong token: exit %d, %q", out.Code, out.Stderr)
	}
	if out := harness.RunWith(t, []string{"REGIONCTL_SERVER=" + r.server, "REGIONCTL_TOKEN=" + controlledToken}, "regionctl", "status"); out.Code != 1 || !strings.Contains(out.Stderr, "certificate") {
		t.Errorf("unknown CA: exit %d, %q", out.Code, out.Stderr)
	}
}

func TestRegionctlRefusalsExitThreeAndNameTheFlag(t *testing.T) {
	r := newControlled(t)
	if out := r.run("publish", r.file(routes(20))); out.Code != 0 || !strings.Contains(out.Stdout, "version 1") {
		t.Fatalf("publish: exit %d, %q %q", out.Code, out.Stdout, out.Stderr)
	}
	small := r.file(routes(2))
	if out := r.run("publish", small); out.Code != 3 || !strings.Contains(out.Stderr, "--confirm") || !strings.Contains(out.Stderr, "18 of 20 routes") {
		t.Errorf("shrink: exit %d, %q", out.Code, out.Stderr)
	}
	if out := r.run("publish", "--dry-run", small); out.Code != 3 {
		t.Errorf("shrink as a dry run: exit %d", out.Code)
	}
	if out := r.run("publish", small, "--confirm"); out.Code != 0 || !strings.Contains(out.Stdout, "version 2") {
		t.Errorf("confirmed, flag after the argument: exit %d, %q", out.Code, out.Stdout)
	}
	if out := r.run("evacuate", "eu-west/a", "--reason", "first", "--force"); out.Code != 0 {
		t.Errorf("evacuate: exit %d, %q", out.Code, out.Stderr)
	}
	if out := r.run("evacuate", "us-east", "--reason", "second", "--force"); out.Code != 3 || !strings.Contains(out.Stderr, "no usable cell") {
		t.Errorf("the last cell: exit %d, %q", out.Code, out.Stderr)
	}
	if out := r.run("restore", "eu-west"); out.Code != 0 {
		t.Errorf("restore: exit %d, %q", out.Code, out.Stderr)
	}
}

func TestRegionctlSteersTheRolloutOfTheVersionThatIsNamed(t *testing.T) {
	r := newControlled(t)
	if out := r.run("publish", r.file(routes(1))); out.Code != 0 {
		t.Fatal(out.Stderr)
	}
	for _, c := range []struct {
		line, says string
		code       int
	}{
		{"rollout pause 1 --reason lunch", "rollout of 1: paused, ", 0},
		{"rollout pause", "rollout of 1: paused, ", 0},
		{"rollout abort 2", "version 1 is under way, not 2", 1},
		{"rollout abort x", "", 2},
		{"rollout resume 1", "rollout of 1: ", 0},
		{"rollout force 1", "rollout of 1: ", 0},
	} {
		if out := r.run(strings.Fields(c.line)...); out.Code != c.code || !strings.Contains(out.Stdout+out.Stderr, c.says) {
			t.Errorf("%s: exit %d, %q %q", c.line, out.Code, out.Stdout, out.Stderr)
		}
	}
}

func TestRegionctlStatusHasTheContractsShape(t *testing.T) {
	r := newControlled(t)
	out := r.run("status", "-o", "json")
	var s map[string]json.RawMessage
	if err := json.Unmarshal([]byte(out.Stdout), &s); err != nil || out.Code != 0 {
		t.Fatalf("exit %d, %v", out.Code, err)
	}
	if string(s["version"]) != "0" || string(s["rollout"]) != "null" {
		t.Errorf("version %s, rollout %s", s["version"], s["rollout"])
	}
	var nodes, list []map[string]any
	if json.Unmarshal(s["nodes"], &nodes) != nil || json.Unmarshal(s["cells"], &list) != nil || len(nodes) != 2 || len(list) != 2 {
		t.Fatalf("%s", out.Stdout)
	}
	for _, key := range []string{"id", "cell", "known", "stored", "served", "reason", "age_s"} {
		if _, ok := nodes[0][key]; !ok {
			t.Errorf("a node has no %s", key)
		}
	}
	for _, key := range []string{"id", "state", "healthy", "headroom"} {
		if _, ok := list[0][key]; !ok {
			t.Errorf("a cell has no %s", key)
		}
	}
	if list[0]["state"] != "active" || list[0]["healthy"] != nil {
		t.Errorf("an unprobed cell: %v", list[0])
	}
	for _, format := range []string{"table", "yaml"} {
		if out := r.run("status", "-o", format); out.Code != 0 || !strings.Contains(out.Stdout, "eu-west/a/1") {
			t.Errorf("-o %s: exit %d, %q", format, out.Code, out.Stdout)
		}
	}
	for _, line := range []string{"versions", "config versions", "rollout list", "cells list", "cells show eu-west/a", "capacity headroom", "audit", "dns explain api.gw.test --client 5.1.0.1"} {
		for _, format := range []string{"table", "json", "yaml"} {
			if out := r.run(append(strings.Fields(line), "-o", format)...); out.Code != 0 {
				t.Errorf("%s -o %s: exit %d, %q", line, format, out.Code, out.Stderr)
			}
		}
	}
}

// Whoever waits hears how things stand, and that what was ordered goes on without him.
func TestRegionctlTellsHowThingsStandWhileItWaits(t *testing.T) {
	r := newControlled(t) // without nodes, so that no rollout ends
	if out := r.run("publish", r.file(routes(1)), "--wait", "--timeout", "1s"); out.Code != 1 || !strings.Contains(out.Stdout, "published version 1") ||
		!strings.Contains(out.Stderr, "rollout of 1: ") || !strings.Contains(out.Stderr, "waited 1s until version 1 is live") {
		t.Errorf("%+v", out)
	}
	d := harness.StartWith(t, r.env(), "regionctl", "evacuate", "eu-west/a", "--reason", "x", "--force", "--wait")
	d.WaitOutput("eu-west/a is evacuating, with ", 10*time.Second)
	d.Signal(syscall.SIGINT)
	if out := d.Wait(10 * time.Second); out.Code != 1 || !strings.Contains(out.Stderr, "no longer waiting until every cell is evacuated; what was ordered stands") {
		t.Errorf("%+v", out)
	}
}

func TestRegionctlReportsEveryProblemOfARefusedDocument(t *testing.T) {
	r := newControlled(t)
	name := r.file("version: v1\nroutes:\n  - {id: a, match: {host: api.gw.test, path: /a}, upstream: nowhere}\n  - {id: b, match: {host: api.gw.test, path: /b}, upstream: u, tiemout: 1s}\nupstreams:\n  - {id: u, endpoints: [\"127.0.0.1:80\"]}\n")
	out := r.run("publish", name)
	if out.Code != 1 {
		t.Errorf("exit %d", out.Code)
	}
	for _, at := range []string{":3: ", ":4: ", ":6: "} {
		if !strings.Contains(out.Stderr, name+at) {
			t.Errorf("nothing at %s%s in\n%s", name, at, out.Stderr)
		}
	}
	form := regexp.MustCompile(`^` + regexp.QuoteMeta(name) + `:[1-9][0-9]*: [a-z]+\[[0-9]+\]\S*: .+$`)
	for _, line := range strings.Split(strings.TrimSuffix(out.Stderr, "\n"), "\n") {
		if !form.MatchString(line) {
			t.Errorf("not FILE:LINE: path.in.document: what is wrong (hint): %q", line)
		}
	}
	if out := r.run("versions", "-o", "json"); strings.TrimSpace(out.Stdout) != "[]" {
		t.Errorf("versions: %s", out.Stdout)
	}
}

// The world is found through --world, the environment, a context file, and .cellgate in the current directory.
func TestRegionctlFindsTheWorldInFourWays(t *testing.T) {
	r := newControlled(t)
	dir := t.TempDir()
	world := filepath.Join(dir, ".cellgate")
	if err := os.Mkdir(world, 0o700); err != nil {
		t.Fatal(err)
	}
	doc := fmt.Sprintf(`{"admin":%q,"ca":%q,"tokens":{"admin":%q},"regions":[{"id":"gone","admin":"https://127.24.9.2:1"},{"id":"eu-west","admin":%q}]}`, r.server, r.ca, controlledToken, r.server)
	if err := os.WriteFile(filepath.Join(world, "world.json"), []byte(doc), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := run(t, "regionctl", "status", "--world", world); out.Code != 0 {
		t.Errorf("--world, whose first region is gone: exit %d, %q", out.Code, out.Stderr)
	}
	context := filepath.Join(dir, "contexts.yaml")
	token := filepath.Join(dir, "token")
	if err := os.WriteFile(token, []byte(controlledToken+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(context, []byte(fmt.Sprintf("current: here\ncontexts:\n  - {name: here, servers: [%q], ca: %q, token_file: %q}\n  - {name: there, world: %q}\n", r.server, r.ca, token, world)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"status"}, {"status", "--context", "there"}} {
		if out := harness.RunWith(t, []string{"REGIONCTL_CONFIG=" + context}, "regionctl", args...); out.Code != 0 {
			t.Errorf("context file, %v: exit %d, %q", args, out.Code, out.Stderr)
		}
	}
	t.Chdir(dir)
	if out := harness.RunWith(t, []string{"XDG_CONFIG_HOME=" + filepath.Join(dir, "empty")}, "regionctl", "status"); out.Code != 0 {
		t.Errorf(".cellgate here: exit %d, %q", out.Code, out.Stderr)
	}
	t.Chdir(t.TempDir())
	if out := harness.RunWith(t, []string{"XDG_CONFIG_HOME=" + filepath.Join(dir, "empty")}, "regionctl", "status"); out.Code != 1 || !strings.Contains(out.Stderr, "--world") {
		t.Errorf("nothing anywhere: exit %d, %q", out.Code, out.Stderr)
	}
}
