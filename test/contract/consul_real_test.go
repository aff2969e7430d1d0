//go:build consul

package contract

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// realAgent is a Consul server of one (`make consul` builds it), with ACLs, which keeps nothing over a restart.
type realAgent struct {
	t    *testing.T
	http string
	cmd  *exec.Cmd
	had  []string
}

func startAgent(t *testing.T) *realAgent {
	binary := os.Getenv("CELLGATE_TEST_CONSUL")
	if binary == "" {
		t.Fatal("CELLGATE_TEST_CONSUL names no agent: run `make consul`")
	}
	g := &realAgent{t: t, http: harness.FreeAddr(t)}
	host, port, _ := net.SplitHostPort(g.http)
	free := func() (n string) { _, n, _ = net.SplitHostPort(harness.FreeAddr(t)); return n }
	config := fmt.Sprintf(`bind_addr = %q, client_addr = %q, log_level = "warn", enable_script_checks = false, disable_update_check = true
ports { http = %s, server = %s, serf_lan = %s, dns = -1, grpc = -1, grpc_tls = -1, serf_wan = -1 }
acl { enabled = true, default_policy = "deny", tokens { initial_management = "root" } }
`, host, host, port, free(), free())
	g.cmd = exec.Command(binary, "agent", "-dev", "-config-format", "hcl", "-config-file", harness.WriteFile(t, "agent.hcl", config))
	g.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	g.start()
	t.Cleanup(g.stop)
	return g
}

func (g *realAgent) start() {
	g.cmd = &exec.Cmd{Path: g.cmd.Path, Args: g.cmd.Args, SysProcAttr: g.cmd.SysProcAttr}
	var out bytes.Buffer
	g.cmd.Stdout, g.cmd.Stderr = &out, &out
	if err := g.cmd.Start(); err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() {
		if g.t.Failed() {
			g.stop()
			g.t.Logf("consul: %s", out.String())
		}
	})
	harness.Eventually(g.t, 60*time.Second, "the agent leads", func() bool { return g.call("PUT", "/v1/agent/maintenance?enable=false", nil) })
}

func (g *realAgent) stop() {
	if g.cmd.ProcessState == nil {
		_ = g.cmd.Process.Kill()
		_ = g.cmd.Wait()
	}
}

func (g *realAgent) call(method, path string, body any) bool {
	raw, err := json.Marshal(body)
	if err != nil {
		g.t.Fatal(err)
	}
	req, err := http.NewRequest(method, "http://"+g.http+path, bytes.NewReader(raw))
	if err != nil {
		g.t.Fatal(err)
	}
	req.Header.Set("X-Consul-Token", "root")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == 200
}

// set registers what is new, fails the checks of what has left, and so makes the addresses the passing instances. That one more
// instance never passes is always so.
func (g *realAgent) set(passing ...string) {
	g.t.Helper()
	must := func(path string, body any) {
		if !g.call("PUT", path, body) {
			g.t.Fatalf("consul refuses PUT %s", path)
		}
	}
	register := func(at, status string) {
		host, port, _ := net.SplitHostPort(at)
		n, _ := strconv.Atoi(port)
		must("/v1/agent/service/register", map[string]any{"ID": at, "Name": "orders", "Address": host, "Port": n, "Meta": map[string]string{"zone": "z"},
			"Check": map[string]string{"CheckID": at, "TTL": "1h", "Status": status}})
	}
	register("127.34.9.9:9", "critical")
	for _, at := range g.had {
		must("/v1/agent/check/fail/"+at, nil)
	}
	for _, at := range passing {
		register(at, "passing")
	}
	g.had = passing
}

func TestProxyFollowsServicesInARealConsul(t *testing.T) {
	g := startAgent(t)
	followsConsul(t, g.http, g.set, g.stop)
}

// An agent that has lost its state and numbers it anew takes nothing from a proxy, and is followed on.
func TestProxyFollowsARealConsulThatBeginsAnew(t *testing.T) {
	g := startAgent(t)
	a, b := named(t, "a"), named(t, "b")
	doc := harness.WriteFile(t, "doc.yaml", `version: v1
routes: [{id: r, match: {host: api.example.com, path: /r}, upstream: u}]
upstreams: [{id: u, discovery: {consul: orders}}]
`)
	addr := harness.FreeAddr(t)
	g.set(a)
	d := harness.StartWith(t, []string{"CONSUL_HTTP_ADDR=http://" + g.http, "CONSUL_HTTP_TOKEN=root"}, "proxy", "serve", "--document", doc, "--http", addr)
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answers := func(body string) func() bool {
		return func() bool {
			res := ask(t, client, "GET", "http://"+addr+"/r")
			return res.StatusCode == 200 && res.body == body
		}
	}
	harness.Eventually(t, 30*time.Second, "a answers", answers("a"))
	for range 20 { // so that the index is high
		g.set(a)
	}
	g.stop()
	g.start()
	for range 20 {
		if !answers("a")() {
			t.Fatal("an agent that knows nothing yet was believed")
		}
		time.Sleep(100 * time.Millisecond)
	}
	g.had = nil
	g.set(b)
	harness.Eventually(t, 60*time.Second, "b answers", answers("b"))
}
