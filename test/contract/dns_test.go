package contract

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/miekg/dns"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/test/harness"
	"github.com/cellgate/cellgate/trust"
)

const smallZone = "gw.test. IN SOA ns1 hostmaster 1 3600 600 86400 20\n@ IN NS ns1\nns1 IN A 192.0.2.53\nwww 60 IN A 192.0.2.80\n"

// lookup asks a server and gives the response code and the answer's data; subnet may be empty.
func lookup(t *testing.T, network, server, name string, qtype uint16, subnet string) (string, []string) {
	t.Helper()
	m := new(dns.Msg)
	m.SetQuestion(name, qtype)
	if subnet != "" {
		p := netip.MustParsePrefix(subnet)
		family := uint16(1)
		if p.Addr().Is6() {
			family = 2
		}
		m.SetEdns0(1232, false)
		m.IsEdns0().Option = append(m.IsEdns0().Option, &dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: family, SourceNetmask: uint8(p.Bits()), Address: net.IP(p.Addr().AsSlice())})
	}
	r, _, err := (&dns.Client{Net: network, Timeout: 3 * time.Second}).Exchange(m, server)
	if err != nil {
		t.Errorf("%s %s: %v", network, name, err)
		return "", nil
	}
	var data []string
	for _, rr := range r.Answer {
		data = append(data, strings.ReplaceAll(strings.TrimPrefix(rr.String(), rr.Header().String()), "\t", " "))
	}
	return dns.RcodeToString[r.Rcode], data
}

func example(t *testing.T, what string) string {
	out := run(t, "globalrouter", "example", what)
	if out.Code != 0 || out.Stdout == "" {
		t.Fatalf("example %s: exit %d, %s", what, out.Code, out.Stderr)
	}
	return harness.WriteFile(t, what, out.Stdout)
}

// DESIGN 5: `globalrouter example zone|plan|geo` prints a working example of each format; --listen serves UDP and TCP and is repeatable.
func TestGlobalrouterServesItsOwnExamples(t *testing.T) {
	one, two := harness.FreeAddr(t), harness.FreeAddr(t)
	d := harness.Start(t, "globalrouter", "serve", "--zone", example(t, "zone"), "--plan", example(t, "plan"), "--geo", example(t, "geo"), "--listen", one, "--listen", two)
	d.WaitOutput("globalrouter serves", 10*time.Second)
	for _, c := range []struct {
		name   string
		qtype  uint16
		subnet string
		want   string
	}{
		{"api.gw.test.", dns.TypeA, "6.1.9.0/24", "198.51.100.1"},
		{"api.gw.test.", dns.TypeAAAA, "6.1.9.0/24", "2001:db8::3"},
		{"api.gw.test.", dns.TypeA, "5.2.128.0/24", "198.51.100.1"},    // from the geo file
		{"api.gw.test.", dns.TypeA, "2001:db8:2::/56", "198.51.100.1"}, // from the geo file
		{"gw.test.", dns.TypeA, "6.1.9.0/24", "198.51.100.1"},          // D9: the apex answers directly
		{"docs.gw.test.", dns.TypeHTTPS, "", `1 . alpn="h2,http/1.1"`}, // RFC 9460
		{"_sip._tcp.gw.test.", dns.TypeSRV, "", "10 5 5060 docs.gw.test."},
	} {
		for _, network := range []string{"udp", "tcp"} {
			for _, server := range []string{one, two} {
				if rcode, got := lookup(t, network, server, c.name, c.qtype, c.subnet); rcode != "NOERROR" || len(got) != 1 || got[0] != c.want {
					t.Errorf("%s %s from %q over %s: %s %q", c.name, dns.TypeToString[c.qtype], c.subnet, network, rcode, got)
				}
			}
		}
	}
	for _, subnet := range []string{"5.1.7.0/24", "5.2.7.0/24", "2001:db8:1:100::/56"} {
		if _, got := lookup(t, "udp", one, "api.gw.test.", dns.TypeA, subnet); len(got) != 1 || !strings.HasPrefix(got[0], "192.0.2.") {
			t.Errorf("a client in %s is sent to %q", subnet, got)
		}
	}
	if got := d.Stop(5 * time.Second); got.Code != 0 {
		t.Errorf("SIGTERM: exit %d", got.Code)
	}
}

// DESIGN 5: without $ORIGIN names are relative to the SOA's owner; without --plan all names are static; SIGHUP re-reads, a bad file is refused.
func TestGlobalrouterServesAStaticZoneAndReadsItAgain(t *testing.T) {
	addr, zone := harness.FreeAddr(t), harness.WriteFile(t, "zone", smallZone)
	d := harness.Start(t, "globalrouter", "serve", "--zone", zone, "--listen", addr)
	d.WaitOutput("globalrouter serves", 10*time.Second)
	is := func(name, want string) func() bool {
		return func() bool {
			_, got := lookup(t, "udp", addr, name, dns.TypeA, "")
			return strings.Join(got, " ") == want
		}
	}
	if !is("www.gw.test.", "192.0.2.80")() {
		t.Error("www is not answered")
	}
	if rcode, _ := lookup(t, "udp", addr, "api.gw.test.", dns.TypeA, ""); rcode != "NXDOMAIN" {
		t.Errorf("api: %s", rcode)
	}
	if err := os.WriteFile(zone, []byte(smallZone+"www IN A 192.0.2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Signal(syscall.SIGHUP)
	d.WaitOutput(zone+":5: ", 5*time.Second)
	if !is("www.gw.test.", "192.0.2.80")() {
		t.Error("a bad file changed the answers")
	}
	if err := os.WriteFile(zone, []byte(strings.Replace(smallZone, "192.0.2.80", "192.0.2.81", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	d.Signal(syscall.SIGHUP)
	harness.Eventually(t, 5*time.Second, "the new zone", is("www.gw.test.", "192.0.2.81"))
}

// DESIGN 5: standalone daemons exit 1 with `address in use`, whatever options the other socket has.
func TestGlobalrouterSaysThatItsAddressIsInUse(t *testing.T) {
	addr, zone := harness.FreeAddr(t), harness.WriteFile(t, "zone", smallZone)
	d := harness.Start(t, "globalrouter", "serve", "--zone", zone, "--listen", addr)
	d.WaitOutput("globalrouter serves", 10*time.Second)
	if out := run(t, "globalrouter", "serve", "--zone", zone, "--listen", addr); out.Code != 1 || !strings.Contains(out.Stderr, "address in use") {
		t.Errorf("exit %d: %s", out.Code, out.Stderr)
	}
}

func TestGlobalrouterSaysWhatIsWrongWithItsFilesAndFlags(t *testing.T) {
	good := harness.WriteFile(t, "zone", smallZone)
	plan := example(t, "plan")
	raw, err := os.ReadFile(plan)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name, content string) string { return harness.WriteFile(t, name, content) }
	noSOA := write("nosoa", "$ORIGIN gw.test.\nwww 60 IN A 192.0.2.1\n")
	twice := write("twice", smallZone+"@ IN SOA ns1 hostmaster 2 1 1 1 1\nwww IN CNAME ns1\nwww.example.com. IN A 192.0.2.1\n")
	include := write("include", smallZone+"$INCLUDE /etc/hosts\n")
	geo := write("badgeo", "5.1.0.0/16 eu-west\n5.1.0.0/33 eu-west\n")
	place := write("place", "5.1.0.0/16 atlantis\n")
	cut := write("cut", strings.Replace(string(raw), `"ttl": 20`, `"ttl": twenty`, 1))
	slots := write("slots", strings.Replace(string(raw), "0*86", "0*80", 1))
	for name, c := range map[string]struct {
		args []string
		code int
		says []string
	}{
		"no zone":          {[]string{"--listen", "127.23.9.9:5300"}, 2, []string{"--zone FILE"}},
		"no address":       {[]string{"--zone", good}, 2, []string{"--listen ADDR is missing"}},
		"not an address":   {[]string{"--zone", good, "--listen", "5300"}, 2, []string{"--listen 5300: not IP:PORT"}},
		"DoT":              {[]string{"--zone", good, "--listen", "127.23.9.9:5300", "--dot", "127.23.9.9:853"}, 2, []string{"--dot: this version serves UDP and TCP only"}},
		"two lives":        {[]string{"--zone", good, "--bootstrap", good}, 2, []string{"--bootstrap goes with none of"}},
		"geo without plan": {[]string{"--zone", good, "--listen", "127.23.9.9:5300", "--geo", geo}, 2, []string{"--plan FILE is missing"}},
		"missing file":     {[]string{"--zone", good + "x", "--listen", "127.23.9.9:5300"}, 1, []string{"no such file"}},
		"no SOA":           {[]string{"--zone", noSOA, "--listen", "127.23.9.9:5300"}, 1, []string{noSOA + ":2: the zone has no SOA record"}},
		"three faults":     {[]string{"--zone", twice, "--listen", "127.23.9.9:5300"}, 1, []string{twice + ":5: ", twice + ":6: www.gw.test.: a CNAME", twice + ":7: www.example.com. is outside the zone"}},
		"include":          {[]string{"--zone", include, "--listen", "127.23.9.9:5300"}, 1, []string{include + ":5: $INCLUDE directive not allowed"}},
		"bad geo":          {[]string{"--zone", good, "--listen", "127.23.9.9:5300", "--plan", plan, "--geo", geo}, 1, []string{geo + ":2: "}},
		"unknown locality": {[]string{"--zone", good, "--listen", "127.23.9.9:5300", "--plan", plan, "--geo", place}, 1, []string{place + `:1: the plan has no locality "atlantis"`}},
		"broken plan":      {[]string{"--zone", good, "--listen", "127.23.9.9:5300", "--plan", cut}, 1, []string{cut + ":6: "}},
		"missing slots":    {[]string{"--zone", good, "--listen", "127.23.9.9:5300", "--plan", slots}, 1, []string{slots + ":", "slots"}},
	} {
		out := run(t, append([]string{"globalrouter", "serve"}, c.args...)...)
		if out.Code != c.code {
			t.Errorf("%s: exit %d: %s", name, out.Code, out.Stderr)
		}
		for _, says := range c.says {
			if !strings.Contains(out.Stderr, says) {
				t.Errorf("%s: %q does not say %q", name, out.Stderr, says)
			}
		}
	}
	if out := run(t, "globalrouter", "example", "cake"); out.Code != 2 {
		t.Errorf("example cake: exit %d", out.Code)
	}
}

// planner is a controller that sends every router the envelope of the moment.
type planner struct {
	nodeapi.UnimplementedControllerServer
	mu       sync.Mutex
	envelope []byte
	orders   []byte // signed overrides, sent before the plan
	changed  chan struct{}
}

func (p *planner) publish(envelope []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.envelope = envelope
	close(p.changed)
	p.changed = make(chan struct{})
}

func (p *planner) current() (*nodeapi.Down, chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.envelope == nil {
		return nil, p.changed
	}
	return &nodeapi.Down{Message: &nodeapi.Down_Plan{Plan: &nodeapi.Signed{Envelope: p.envelope}}}, p.changed
}

func (p *planner) Attach(s grpc.BidiStreamingServer[nodeapi.Up, nodeapi.Down]) error {
	for {
		down, changed := p.current()
		if down != nil && p.orders != nil {
			if err := s.Send(&nodeapi.Down{Message: &nodeapi.Down_Overrides{Overrides: &nodeapi.Signed{Envelope: p.orders}}}); err != nil {
				return err
			}
		}
		if down != nil {
			if err := s.Send(down); err != nil {
				return err
			}
		}
		select {
		case <-s.Context().Done():
			return nil
		case <-changed:
		}
	}
}

func (r *realm) planner() (*planner, string, func()) {
	signer := r.signer(trust.RoleController, "eu-west/1")
	roots, err := trust.NewRoots(r.ca.CertPEM())
	if err != nil {
		r.t.Fatal(err)
	}
	p := &planner{changed: make(chan struct{})}
	srv := grpc.NewServer(grpc.Creds(credentials.NewTLS(trust.ServerTLS(signer, roots, trust.RoleRouter))))
	nodeapi.RegisterControllerServer(srv, p)
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = srv.Serve(socket) }()
	stop := sync.OnceFunc(func() { srv.Stop(); <-done })
	r.t.Cleanup(stop)
	return p, socket.Addr().String(), stop
}

func (r *realm) signer(role trust.Role, id cells.NodeID) *trust.Signer {
	certFile, keyFile := r.issue(role, id)
	s, err := trust.LoadSigner(certFile, keyFile)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// signedPlan steers api.gw.test to one cell with the address.
func signedPlan(t *testing.T, s *trust.Signer, epoch, number uint64, address string) []byte {
	in := steer.Inputs{
		Topology: cells.Topology{Regions: []cells.Region{{ID: "eu-west", Cells: []cells.Cell{{ID: "eu-west/a", HTTPS: 8443, Limit: 1000, Addresses: []netip.Addr{netip.MustParseAddr(address)}}}}}},
		Names:    map[string]string{"api.gw.test": "public"}, TTL: 5 * time.Second, Epoch: epoch, Health: map[cells.CellID]health.Status{},
	}
	plan := steer.Step(steer.State{}, in, time.Now()).Plan
	plan.Number = number
	raw, err := json.Marshal(plan)
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := s.Sign("plan", raw)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

// L6, L7: a router serves the newest plan that a controller signed, refuses older and forged ones, and goes on from disk alone.
func TestGlobalrouterServesSignedPlansAndOutlivesItsControllers(t *testing.T) {
	r := newRealm(t)
	p, controller, stop := r.planner()
	addr := harness.FreeAddr(t)
	admin := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddrPort(addr).Port())
	file := r.bootstrap(trust.RoleRouter, "eu-west/1", admin, map[string]any{
		"controllers": []string{controller}, "listen": []string{addr}, "zone": r.write("zone", []byte(smallZone)),
	})
	d := harness.Start(t, "globalrouter", "serve", "--bootstrap", file)
	d.WaitOutput("globalrouter serves", 10*time.Second)
	answers := func(want string) func() bool {
		return func() bool {
			rcode, got := lookup(t, "udp", addr, "api.gw.test.", dns.TypeA, "")
			return rcode+strings.Join(got, " ") == want
		}
	}
	base := "https://" + admin.String()
	if !answers("SERVFAIL")() || !strings.Contains(d.Stderr(), "no plan") {
		t.Error("without a plan a steered name is not SERVFAIL, or the log does not say why")
	}
	if _, got := lookup(t, "udp", addr, "www.gw.test.", dns.TypeA, ""); len(got) != 1 {
		t.Errorf("a static name without a plan: %q", got)
	}
	if status, _ := r.ask(base+"/readyz", adminToken); status != 503 {
		t.Errorf("/readyz without a plan: %d", status)
	}

	signer := r.signer(trust.RoleController, "eu-west/2")
	p.publish(signedPlan(t, signer, 4, 10, "192.0.2.1"))
	harness.Eventually(t, 10*time.Second, "the first plan", answers("NOERROR192.0.2.1"))
	for name, e := range map[string][]byte{
		"older number": signedPlan(t, signer, 4, 9, "192.0.2.66"), "older epoch": signedPlan(t, signer, 3, 99, "192.0.2.66"),
		"a proxy's": signedPlan(t, r.signer(trust.RoleProxy, "eu-west/a/1"), 5, 11, "192.0.2.66"), "garbage": []byte("plan"),
	} {
		p.publish(e)
		time.Sleep(100 * time.Millisecond)
		if !answers("NOERROR192.0.2.1")() {
			t.Errorf("%s plan was served", name)
		}
	}
	p.publish(signedPlan(t, signer, 5, 11, "192.0.2.2"))
	harness.Eventually(t, 10*time.Second, "the newer plan", answers("NOERROR192.0.2.2"))
	if status, body := r.ask(base+"/metrics", adminToken); status != 200 || !strings.Contains(body, "cellgate_globalrouter_plan_number 11") || !strings.Contains(body, `cellgate_globalrouter_answers_total{rcode="servfail"}`) {
		t.Errorf("/metrics: %d %s", status, body)
	}
	if status, body := r.ask(base+"/plan", adminToken); status != 200 || !strings.Contains(body, `"source": "push"`) {
		t.Errorf("/plan: %d %s", status, body)
	}

	stop()
	d.Signal(syscall.SIGKILL)
	d.Wait(5 * time.Second)
	if files, _ := filepath.Glob(filepath.Join(r.dir, "plans", "*.plan")); len(files) != 2 {
		t.Errorf("plans on disk: %v", files)
	}
	again := harness.Start(t, "globalrouter", "serve", "--bootstrap", file)
	again.WaitOutput("globalrouter serves", 10*time.Second)
	if !answers("NOERROR192.0.2.2")() {
		t.Error("with no controller left, the plan on disk is not served")
	}
	if status, _ := r.ask(base+"/readyz", adminToken); status != 200 {
		t.Errorf("/readyz from disk: %d", status)
	}
}

// twoCells steers api.gw.test to eu-west/a at 192.0.2.1 and us-east/a at 192.0.2.2, each for its own clients.
func twoCells(t *testing.T, s *trust.Signer) []byte {
	region := func(id cells.RegionID, clients, address string) cells.Region {
		return cells.Region{ID: id, Clients: []netip.Prefix{netip.MustParsePrefix(clients)}, Cells: []cells.Cell{{
			ID: cells.CellID(id) + "/a", HTTPS: 8443, Limit: 1_000_000, Addresses: []netip.Addr{netip.MustParseAddr(address)},
		}}}
	}
	in := steer.Inputs{
		Topology: cells.Topology{Regions: []cells.Region{region("eu-west", "5.1.0.0/16", "192.0.2.1"), region("us-east", "5.2.0.0/16", "192.0.2.2")}},
		Names:    map[string]string{"api.gw.test": "public"}, TTL: 5 * time.Second, Epoch: 1, Health: map[cells.CellID]health.Status{},
	}
	raw, err := json.Marshal(steer.Step(steer.State{}, in, time.Now()).Plan)
	if err != nil {
		t.Fatal(err)
	}
	envelope, err := s.Sign(trust.KindPlan, raw)
	if err != nil {
		t.Fatal(err)
	}
	return envelope
}

// An evacuation that a regional controller signed takes effect at the router although no plan follows it, outlives the
// process with no controller left, and ends by its expiry.
func TestGlobalrouterFollowsSignedEvacuationsWithoutALeader(t *testing.T) {
	r := newRealm(t)
	p, controller, stop := r.planner()
	addr := harness.FreeAddr(t)
	admin := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddrPort(addr).Port())
	file := r.bootstrap(trust.RoleRouter, "us-east/1", admin, map[string]any{
		"controllers": []string{controller}, "listen": []string{addr}, "zone": r.write("zone", []byte(smallZone)),
		"timing": map[string]any{"ramp_ns": time.Second},
	})
	signer := r.signer(trust.RoleController, "eu-west/2")
	expires := time.Now().Add(8 * time.Second)
	orders, err := json.Marshal([]cells.Evacuation{{Form: 1, Cell: "eu-west/a", Reason: "test", Started: time.Now().Add(-time.Second), Expires: expires}})
	if err != nil {
		t.Fatal(err)
	}
	if p.orders, err = signer.Sign(trust.KindOverrides, orders); err != nil {
		t.Fatal(err)
	}
	p.publish(twoCells(t, signer))
	answers := func(subnet, want string) bool {
		rcode, got := lookup(t, "udp", addr, "api.gw.test.", dns.TypeA, subnet)
		return rcode+strings.Join(got, " ") == want
	}
	d := harness.Start(t, "globalrouter", "serve", "--bootstrap", file)
	d.WaitOutput("globalrouter serves", 10*time.Second)
	harness.Eventually(t, 5*time.Second, "clients leave the evacuated cell", func() bool { return answers("5.1.7.0/24", "NOERROR192.0.2.2") })
	if status, body := r.ask("https://"+admin.String()+"/plan", adminToken); status != 200 || !strings.Contains(body, `"share_256": 256`) || !strings.Contains(body, "evacuated: test") {
		t.Errorf("/plan: %d %s", status, body)
	}
	stop()
	d.Signal(syscall.SIGKILL)
	d.Wait(5 * time.Second)
	again := harness.Start(t, "globalrouter", "serve", "--bootstrap", file)
	again.WaitOutput("globalrouter serves", 10*time.Second)
	if time.Now().Before(expires.Add(-time.Second)) && !answers("5.1.7.0/24", "NOERROR192.0.2.2") {
		t.Error("after a restart without controllers the order is forgotten")
	}
	harness.Eventually(t, time.Until(expires)+5*time.Second, "the order ends by itself", func() bool { return answers("5.1.7.0/24", "NOERROR192.0.2.1") })
	if time.Now().Before(expires) {
		t.Error("the order ended before its expiry")
	}
	if !answers("5.2.7.0/24", "NOERROR192.0.2.2") {
		t.Error("clients elsewhere are answered otherwise")
	}
}
