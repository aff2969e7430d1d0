//go:build long && linux

package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/test/harness"
)

// insideEnv is set in the process that has network namespaces of its own.
const insideEnv = "CELLGATE_TEST_NETNS"

// TestPartitionsKillNobody runs a world whose regions, routers and probers each have a network namespace of their own, joined
// by a router in the middle, and cuts them apart there. The clients, the backends and the test are in the middle, so they see
// everything all the time: whatever is taken out of an answer was taken out for want of somebody's sight.
func TestPartitionsKillNobody(t *testing.T) {
	if os.Getenv(insideEnv) == "" {
		runInside(t)
		return
	}
	n := newNet(t)
	w, err := up(harness.Bin(t, "cellgate"), filepath.Join(t.TempDir(), "w"), "--net", midBlock, "--netns", netPrefix)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.cellgate(t, "down") })
	p := &partitions{world: w, net: n, trusted: w.roots(t)}
	t.Run("two regions do not see one another", p.twoRegions)
	t.Run("a router is cut off from every controller", p.routerAlone)
	t.Run("one region's prober sees nothing", p.blindProber)
	t.Run("packets are lost one way only", p.oneWay)
	t.Run("a region is cut off from all others", p.island)
}

// runInside runs this test in a process that has a network and mounts of its own: nothing of it is left afterwards.
func runInside(t *testing.T) {
	for _, tool := range []string{"unshare", "nsenter", "ip"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Fatalf("partitions need network namespaces, which need root, util-linux and iproute2: %v", err)
		}
	}
	if out, err := exec.Command("unshare", "-n", "-m", "--propagation", "private", "ip", "link", "add", "a0", "type", "veth", "peer", "name", "a1").CombinedOutput(); err != nil {
		t.Fatalf("partitions need network namespaces, which can't be made here (root and iproute2 are needed): %v: %s", err, out)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("unshare", "-n", "-m", "--propagation", "private", self, "-test.run", flag.Lookup("test.run").Value.String(), "-test.v", "-test.timeout", "9m")
	cmd.Env = append(os.Environ(), insideEnv+"=1")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	t.Logf("inside:\n%s", out.String())
	if err != nil {
		t.Fatal(err)
	}
}

// The network. Addresses are those of any world, in 127/8, so that its documents and certificates are as ever; here they are
// routed between namespaces:
//
//	middle  127.26.254.0/24  supervisor, backends, identity provider, capacityd, this test
//	region  127.26.R.0/25, .250, .251, .252, .254
//	healthd 127.26.R.253     router 127.26.255.N
const (
	midBlock  = "127.26.0.0/16"
	middle    = "127.26.254.254"
	netPrefix = "cg"
)

type network struct {
	t    *testing.T
	cuts [][]string // rules that drop packets
}

// place is one namespace: the addresses in it, the first of which its packets come from.
type place struct {
	name string
	own  []string
}

func regionPlace(name string, r int) place {
	at := func(s string) string { return fmt.Sprintf("127.26.%d.%s", r, s) }
	return place{name, []string{at("254"), at("0/25"), at("250"), at("251"), at("252")}}
}

// homes are the regions in the order of their numbers.
func homes() []string { return []string{"eu-west", "us-east", "ap-south"} }

func places() []place {
	var all []place
	for i, r := range homes() {
		all = append(all, regionPlace(r, i+1), place{"healthd-" + r + "-1", []string{fmt.Sprintf("127.26.%d.253", i+1)}})
	}
	for i, r := range homes()[:2] {
		all = append(all, place{"globalrouter-" + r + "-1", []string{fmt.Sprintf("127.26.255.%d", i+1)}})
	}
	return all
}

// of lists the addresses of the region: all its processes, or those of the roles.
func of(region string, roles ...string) []string {
	if roles == nil {
		roles = []string{"", "healthd", "globalrouter"}
	}
	var out []string
	for _, p := range places() {
		for _, role := range roles {
			if role == "" && p.name == region || role != "" && p.name == role+"-"+region+"-1" {
				out = append(out, p.own...)
			}
		}
	}
	return out
}

func newNet(t *testing.T) *network {
	n := &network{t: t}
	n.sh("mkdir -p /run/netns && mount -t tmpfs tmpfs /run/netns")
	for file, value := range map[string]string{"ip_forward": "1", "ip_nonlocal_bind": "1", "conf/all/route_localnet": "1", "conf/all/rp_filter": "0"} {
		n.sh("echo %s >/proc/sys/net/ipv4/%s", value, file)
	}
	const loopback = "ip link set lo up; ip addr del 127.0.0.1/8 dev lo; ip addr add 127.0.0.1/32 dev lo"
	n.sh("%s; ip addr add %s/32 dev lo; ip route add local 127.26.254.0/24 dev lo", loopback, middle)
	for i, p := range places() {
		ns, link := netPrefix+"-"+p.name, fmt.Sprintf("v%d", i)
		in := func(format string, args ...any) {
			n.sh("ip netns exec %s sh -ec '%s'", ns, fmt.Sprintf(format, args...))
		}
		n.sh("ip netns add %s; ip link add %s type veth peer name wan netns %s; ip link set dev %s up", ns, link, ns, link)
		in(loopback + "; ip link set dev wan up; echo 1 >/proc/sys/net/ipv4/conf/all/route_localnet; echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter")
		for _, own := range p.own {
			n.sh("ip route add %s dev %s src %s", own, link, middle)
			in("ip route add local %s dev lo", own)
		}
		in("ip addr add %s/32 dev wan; ip route add %s via %s dev wan onlink src %s", p.own[0], midBlock, middle, p.own[0])
	}
	return n
}

func (n *network) sh(format string, args ...any) {
	n.t.Helper()
	if out, err := exec.Command("sh", "-ec", fmt.Sprintf(format, args...)).CombinedOutput(); err != nil {
		n.t.Fatalf("%s: %v: %s", fmt.Sprintf(format, args...), err, out)
	}
}

// lose drops the packets from some addresses to others, without a word to anybody.
func (n *network) lose(from, to []string) {
	for _, a := range from {
		for _, b := range to {
			rule := []string{"from", a, "to", b, "prio", "5", "blackhole"}
			n.sh("ip rule add %s", strings.Join(rule, " "))
			n.cuts = append(n.cuts, rule)
		}
	}
}

func (n *network) cut(a, b []string) { n.lose(a, b); n.lose(b, a) }

func (n *network) heal() {
	cuts := n.cuts
	n.cuts = nil
	for _, rule := range cuts {
		n.sh("ip rule del %s", strings.Join(rule, " "))
	}
}

// partitions is a world on such a network.
type partitions struct {
	*world
	net     *network
	trusted *x509.CertPool
}

// others are the regions but the given one.
func others(region string) []string {
	return slices.DeleteFunc(homes(), func(r string) bool { return r == region })
}

// twoRegions cuts the leader's region and another one apart; the third sees both. Operators can publish on either side.
func (p *partitions) twoRegions(t *testing.T) {
	lead := p.leader(t)
	far := others(lead)[0]
	p.trouble(t, &watching{}, trial{
		cut:    func() { p.net.cut(of(lead), of(far)) },
		gone:   [2]string{lead, p.controller(far)},
		during: func() { p.publish(t, far) },
	})
}

// routerAlone cuts a router off from every controller while plans change: it serves the old one until it is back.
func (p *partitions) routerAlone(t *testing.T) {
	const moved = "ap-south"
	before, err := p.page(1)
	if err != nil {
		t.Fatal(err)
	}
	p.trouble(t, &watching{moved: moved}, trial{
		cut: func() {
			for _, r := range homes() {
				p.net.cut(of("us-east", "globalrouter"), []string{p.controller(r)})
			}
		},
		gone: [2]string{"globalrouter-us-east-1", p.controller("us-east")},
		during: func() {
			p.mustRegionctl(t, "evacuate", moved+"/b", "--reason", "test", "--over", "0s", "--expires", "10m")
			harness.Eventually(t, time.Minute, "the other router has a newer plan", func() bool {
				page, err := p.page(0)
				return err == nil && page.Plan.Number > before.Plan.Number
			})
			p.mustRegionctl(t, "restore", moved+"/b", "--reason", "test")
			a, err1 := p.page(0)
			b, err2 := p.page(1)
			if err1 != nil || err2 != nil || b.Plan.Number >= a.Plan.Number {
				t.Errorf("the router that is cut off has plan %v, the other one %v: %v, %v", b.Plan, a.Plan, err1, err2)
			}
		},
	})
}

func (p *partitions) blindProber(t *testing.T) {
	blind := others(p.leader(t))[0]
	p.trouble(t, &watching{}, trial{
		cut: func() {
			for _, c := range p.cells() {
				p.net.cut(of(blind, "healthd"), []string{c.Address.String()})
			}
		},
		gone: [2]string{"healthd-" + blind + "-1", p.cells()[0].Address.String()},
	})
}

// oneWay loses what the leader's region sends to another one, and delivers what that sends.
func (p *partitions) oneWay(t *testing.T) {
	lead := p.leader(t)
	far := others(lead)[1]
	p.trouble(t, &watching{}, trial{cut: func() { p.net.lose(of(lead), of(far)) }, gone: [2]string{far, p.controller(lead)}})
}

// island cuts a region off that doesn't lead. The others take it for dead by their quorum, as they must, since a region that
// is dead looks no different; its clients are sent to them. It itself, and its router, take nobody for dead.
func (p *partitions) island(t *testing.T) {
	lead := p.leader(t)
	alone := others(lead)[0]
	p.trouble(t, &watching{island: alone}, trial{
		cut: func() {
			for _, r := range others(alone) {
				p.net.cut(of(alone), of(r))
			}
		},
		gone: [2]string{alone, p.controller(lead)},
	})
	p.publish(t, alone)
	p.settled(t)
}

func (p *partitions) controller(region string) string {
	return fmt.Sprintf("127.26.%d.250", slices.Index(homes(), region)+1)
}

// lasts is how long a partition lasts: longer than any timer of this world that could declare somebody dead.
const lasts = 15 * time.Second

// trial is one partition.
type trial struct {
	cut    func()
	gone   [2]string // a namespace and the address of a controller or a cell that it can't reach then
	during func()    // what happens meanwhile; nil = nothing
}

// trouble breaks the network under load, mends it, and waits for the world to agree again. What must hold holds throughout.
func (p *partitions) trouble(t *testing.T, w *watching, trial trial) {
	p.healthy(t, time.Minute)
	p.settled(t)
	h1, h2 := p.load(t, 3, 300*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	w.watch(ctx, t, p)
	time.Sleep(2 * time.Second)
	defer p.net.heal()
	trial.cut()
	broken := time.Now()
	if reaches(trial.gone) {
		t.Errorf("%s still reaches %s", trial.gone[0], trial.gone[1])
	}
	if trial.during != nil {
		trial.during()
	}
	time.Sleep(time.Until(broken.Add(lasts)))
	w.healed.Store(true)
	p.net.heal()
	healed := time.Now()
	p.healthy(t, time.Minute)
	p.settled(t)
	t.Logf("agreed again %v after the cut healed", time.Since(healed).Round(100*time.Millisecond))
	if !reaches(trial.gone) {
		t.Errorf("%s does not reach %s after it healed", trial.gone[0], trial.gone[1])
	}
	cancel()
	w.done.Wait()
	h1.Stop()
	h2.Stop()
	sum := load.Sum(append(h1.Requests(), h2.Requests()...))
	t.Logf("%s", sum)
	if sum.Failed > 0 {
		t.Errorf("%d requests failed", sum.Failed)
	}
	w.report(t)
}

// reaches says whether a connection comes about from a namespace to an address.
func reaches(way [2]string) bool {
	for _, port := range []string{"7443", "8443"} {
		if exec.Command("ip", "netns", "exec", netPrefix+"-"+way[0], "timeout", "2", "bash", "-c", "exec 3<>/dev/tcp/"+way[1]+"/"+port).Run() == nil {
			return true
		}
	}
	return false
}

// settled waits until both routers serve the same plan, every region's controller says that all of the world is well, and
// every client is sent where it belongs.
func (p *partitions) settled(t *testing.T) {
	t.Helper()
	why := ""
	defer func() {
		if t.Failed() {
			t.Log("not settled: " + why)
		}
	}()
	harness.Eventually(t, 90*time.Second, "the world agrees", func() bool {
		why = p.differing()
		return why == ""
	})
}

// watching looks at the world from the middle, all the time.
type watching struct {
	// island is a region that is cut off from all others; they send its clients elsewhere, and take it for dead. Once it is
	// back, the plan that it then hears of brings them home over the ramp.
	island string
	healed atomic.Bool
	// moved is a region whose clients are moved by an order.
	moved string

	done sync.WaitGroup
	mu   sync.Mutex
	said map[string]int
	seen int
}

func (w *watching) wrong(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.said == nil {
		w.said = map[string]int{}
	}
	w.said[fmt.Sprintf(format, args...)]++
}

func (w *watching) report(t *testing.T) {
	t.Logf("looked %d times", w.seen)
	if w.seen < 20 {
		t.Errorf("looked only %d times", w.seen)
	}
	for what, times := range w.said {
		t.Errorf("%s (%d times)", what, times)
	}
}

// order is a number that must never fall.
type order struct{ epoch, number uint64 }

func (o order) before(p order) bool {
	return o.epoch < p.epoch || o.epoch == p.epoch && o.number < p.number
}

// watch begins to look, until ctx ends.
func (w *watching) watch(ctx context.Context, t *testing.T, p *partitions) {
	baseline := map[string][]netip.Addr{}
	for _, server := range p.DNS {
		for _, subnet := range p.clients(8) {
			addrs, err := p.lookup(server, subnet)
			if err != nil || len(addrs) != 1 {
				t.Fatalf("%s for %s: %v, %v", server, subnet, addrs, err)
			}
			baseline[server] = append(baseline[server], addrs[0])
		}
	}
	high := map[string]order{}
	never := func(what string, now order) {
		if now.before(high[what]) {
			w.wrong("%s went from %v back to %v", what, high[what], now)
		}
		high[what] = now
	}
	w.done.Go(func() {
		for ctx.Err() == nil {
			w.seen++
			for i, server := range p.DNS {
				w.answers(p, server, homes()[i], baseline[server])
				if page, err := p.page(i); err == nil {
					never("the plan of router "+server, order{page.Plan.Epoch, page.Plan.Number})
				}
			}
			for _, r := range homes() {
				s, err := p.ask(r)
				if err != nil {
					w.wrong("%s does not answer operators: %v", r, err)
					continue
				}
				never("the version of "+r, order{0, s.Version})
				for _, n := range s.Nodes {
					never(n.ID+" as "+r+" sees it", order{0, n.Served})
				}
				for _, c := range s.Cells {
					if c.Healthy != nil && !*c.Healthy && (w.island == "" || w.island == r || !strings.HasPrefix(c.ID, w.island+"/")) {
						w.wrong("%s says that %s is dead", r, c.ID)
					}
				}
			}
			time.Sleep(300 * time.Millisecond)
		}
	})
}

// answers compares what a router tells the clients with what it told them before: nobody is dead, so nothing may change, but
// for clients of an island or a region that was evacuated.
func (w *watching) answers(p *partitions, server, at string, before []netip.Addr) {
	for i, subnet := range p.clients(8) {
		of := homes()[i/8]
		addrs, err := p.lookup(server, subnet)
		if err != nil || len(addrs) != 1 {
			w.wrong("%s has no answer for %s: %v, %v", server, subnet, addrs, err)
		} else if addrs[0] != before[i] && of != w.moved && (of != w.island || at == w.island && !w.healed.Load()) {
			w.wrong("%s sends %s to %s, not to %s any more", server, subnet, addrs[0], before[i])
		}
	}
}

// lookup asks one router, again as a resolver would when a packet is late on a machine that is busy.
func (p *partitions) lookup(server string, subnet netip.Prefix) (addrs []netip.Addr, err error) {
	for range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		addrs, _, err = load.Lookup(ctx, []string{server}, p.Host, subnet)
		cancel()
		if err == nil {
			break
		}
	}
	return addrs, err
}

// routerPage is what a router says at /plan.
type routerPage struct {
	Plan struct {
		Epoch  uint64 `json:"epoch"`
		Number uint64 `json:"number"`
	} `json:"plan"`
	View struct {
		Blind bool           `json:"blind"`
		Cells map[string]any `json:"cells"`
	} `json:"view"`
}

func (p *partitions) page(router int) (page routerPage, err error) {
	return page, p.fetch(fmt.Sprintf("https://127.26.255.%d:9902/plan", router+1), &page)
}

// ask asks the controller of a region for its status.
func (p *partitions) ask(region string) (s status, err error) {
	return s, p.fetch("https://"+p.controller(region)+":7443/v1/status", &s)
}

func (p *partitions) fetch(url string, into any) error {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.trusted}, DisableKeepAlives: true}
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+p.Tokens.Admin)
	res, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(into)
}

// differing says what the world does not agree on.
func (p *partitions) differing() string {
	a, err1 := p.page(0)
	b, err2 := p.page(1)
	if err1 != nil || err2 != nil || a.Plan != b.Plan {
		return fmt.Sprintf("the routers have the plans %v and %v: %v, %v", a.Plan, b.Plan, err1, err2)
	}
	for i, page := range []routerPage{a, b} {
		if page.View.Blind || len(page.View.Cells) > 0 {
			return fmt.Sprintf("router %d is blind (%t) or withdraws %v", i, page.View.Blind, page.View.Cells)
		}
	}
	version := uint64(0)
	for _, r := range homes() {
		s, err := p.ask(r)
		if err != nil {
			return fmt.Sprintf("%s: %v", r, err)
		}
		version = max(version, s.Version)
		if s.Version != version || len(s.Nodes) != p.nodes() || s.Rollout != nil {
			return fmt.Sprintf("%s knows version %d and %d nodes, rollout %v", r, s.Version, len(s.Nodes), s.Rollout)
		}
		for _, n := range s.Nodes {
			if n.Served != version || n.AgeS > 5 {
				return fmt.Sprintf("%s hears that %s served %d %.1f s ago", r, n.ID, n.Served, n.AgeS)
			}
		}
		for _, c := range s.Cells {
			if c.Healthy == nil || !*c.Healthy {
				return fmt.Sprintf("%s takes %s for healthy: %v", r, c.ID, c.Healthy)
			}
		}
	}
	for i, subnet := range p.clients(4) {
		for _, server := range p.DNS {
			addrs, err := p.lookup(server, subnet)
			if err != nil || len(addrs) != 1 || int(addrs[0].As4()[2]) != i/4+1 {
				return fmt.Sprintf("%s sends %s to %v: %v", server, subnet, addrs, err)
			}
		}
	}
	return ""
}

// publish proves that operators of a region can publish; settled waits until the version is everywhere.
func (p *partitions) publish(t *testing.T, region string) {
	t.Helper()
	env := []string{"REGIONCTL_SERVER=https://" + p.controller(region) + ":7443", "REGIONCTL_TOKEN=" + p.Tokens.Admin, "REGIONCTL_CA=" + p.CA}
	refused := ""
	harness.Eventually(t, 20*time.Second, "an order is taken in "+region, func() bool { // an election may be under way
		res := harness.RunWith(t, env, "regionctl", "config", "publish", filepath.Join(p.Dir, "sample.yaml"), "--allow-upstreams", "127.0.0.0/8")
		if res.Code != 0 {
			refused = res.Stderr
		}
		return res.Code == 0
	})
	if refused != "" {
		t.Logf("before an order was taken in %s: %s", region, refused)
	}
}
