package cellgate

import (
	"bufio"
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/internal/supervise"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func standard() Size { return Size{3, 2, 2, netip.MustParsePrefix("127.10.0.0/16")} }

func TestAddressesAreThoseOfTheContract(t *testing.T) {
	l := newLayout(standard(), 5_000_000)
	eu := l.topology.Regions[0]
	if eu.ID != "eu-west" || eu.Clients[0].String() != "5.1.0.0/16" {
		t.Errorf("first region: %+v", eu)
	}
	c := eu.Cells[0]
	if c.ID != "eu-west/a" || c.Addresses[0].String() != "127.10.1.1" || c.HTTPS != 8443 || c.HTTP != 8080 {
		t.Errorf("first cell: %+v", c)
	}
	if n := c.Nodes[0]; n.ID != "eu-west/a/1" || n.Admin.String() != "127.10.1.11:9901" {
		t.Errorf("first node: %+v", n)
	}
	if r := l.routers(); r[0].String() != "127.10.255.1:5300" {
		t.Errorf("routers: %v", r)
	}
	if u := l.apiURLs(1); u[0] != "https://127.10.2.250:7443" || len(u) != 3 {
		t.Errorf("APIs of the second region: %v", u)
	}
}

// In a world of any size the topology is valid, every address is in the block and none is used twice.
func TestAnySizeHasAPlaceForEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := standard()
		s.Regions, s.Cells, s.Proxies = rapid.IntRange(1, 9).Draw(t, "r"), rapid.IntRange(1, 9).Draw(t, "c"), rapid.IntRange(1, 9).Draw(t, "p")
		if err := s.validate(); err != nil {
			t.Fatal(err)
		}
		l := newLayout(s, 1000)
		if err := l.topology.Validate(); err != nil {
			t.Fatal(err)
		}
		seen := map[netip.Addr]bool{}
		for _, a := range append(l.cellAddresses(), l.routers()[0].Addr(), l.routers()[1].Addr(), l.ip(254, 2), l.ip(254, 3)) {
			if seen[a] || !s.Net.Contains(a) {
				t.Fatalf("%s is used twice or outside the block", a)
			}
			seen[a] = true
		}
		for i := range l.topology.Regions {
			for j := range l.topology.Regions {
				if ms := l.topology.Latency(i, j); (i == j) != (ms < 5) || ms != l.topology.Latency(j, i) {
					t.Fatalf("latency of %d and %d: %d ms", i, j, ms)
				}
			}
		}
	})
}

func TestProcessesRunInTheirOwnNamespaceElseInThatOfTheirRegion(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"cg-eu-west", "cg-proxy-eu-west-a-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := &builder{layout: newLayout(standard(), 1000), netns: filepath.Join(dir, "cg")}
	for process, ns := range map[[2]string]string{
		{"proxy", "eu-west/a/1"}: "cg-proxy-eu-west-a-1", {"proxy", "eu-west/a/2"}: "cg-eu-west", {"etcd", "global/eu-west"}: "cg-eu-west",
		{"regionctl", "us-east/1"}: "", {"idp", "idp"}: "",
	} {
		path, args := b.inside(process[0], process[1], "/bin/x", []string{"serve"})
		want := []string{"/bin/x", "serve"}
		if ns != "" {
			want = []string{"nsenter", "--net=" + filepath.Join(dir, ns), "/bin/x", "serve"}
		}
		if got := append([]string{path}, args...); !slices.Equal(got, want) {
			t.Errorf("%v: %v", process, got)
		}
	}
	if netnsPrefix("") != "" || netnsPrefix("cg") != "/run/netns/cg" {
		t.Error("the prefix is that of the files below /run/netns")
	}
}

func TestEveryProcessHasItsFilesAndPorts(t *testing.T) {
	h := home(t.TempDir())
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	keys, err := openKeyring(h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b := &builder{layout: newLayout(standard(), 5_000_000), home: h, keys: keys, bin: "/bin", timing: defaultTiming(5*time.Second, 3*time.Second, 30*time.Second)}
	made, err := b.build()
	if err != nil {
		t.Fatal(err)
	}
	udpOrTCP := map[string]string{}
	for _, p := range made {
		for _, a := range p.binds.tcp {
			if other, ok := udpOrTCP[a.String()]; ok && (p.role != "proxy" || !strings.HasPrefix(other, p.name()[:len(p.name())-1])) {
				t.Errorf("%s and %s both bind %s", p.name(), other, a)
			}
			udpOrTCP[a.String()] = p.name()
		}
		for _, arg := range p.spec.Args {
			if strings.Contains(arg, keys.tokens.Admin) {
				t.Errorf("%s has a secret among its arguments", p.name())
			}
		}
		raw, err := os.ReadFile(h.bootFile(p.name()))
		if err != nil || strings.Contains(string(raw), keys.tokens.Admin) {
			t.Errorf("%s: bootstrap file: %v, or the admin token is in it", p.name(), err)
		}
	}
	if len(made) != 32 {
		t.Errorf("%d processes", len(made))
	}
	err = filepath.WalkDir(string(h), func(path string, d os.DirEntry, err error) error {
		if info, ierr := d.Info(); err == nil && ierr == nil && info.Mode().Perm()&0o077 != 0 && path != string(h) {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestKeysAndTokensAreKept(t *testing.T) {
	h := home(t.TempDir())
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	first, err := openKeyring(h, now)
	if err != nil {
		t.Fatal(err)
	}
	again, err := openKeyring(h, now.Add(24*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if again.tokens != first.tokens && (again.tokens.Customer != first.tokens.Customer || again.tokens.Admin != first.tokens.Admin) {
		t.Error("the tokens changed within their life")
	}
	if !bytes.Equal(first.edge.CertPEM(), again.edge.CertPEM()) {
		t.Error("the edge CA changed")
	}
	late, err := openKeyring(h, now.Add(tokenLife-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if late.tokens.Customer == first.tokens.Customer || late.tokens.Admin != first.tokens.Admin || late.tokens.APIKey != first.tokens.APIKey {
		t.Error("near their expiry exactly the bearer tokens are replaced")
	}
	sig, err := jose.ParseSignedCompact(first.tokens.Customer, []jose.SignatureAlgorithm{jose.ES256})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := sig.Verify(&first.idp.PublicKey)
	var claims struct {
		Iss, Aud, Consumer, Scope string
		Exp                       int64
	}
	if err != nil || json.Unmarshal(raw, &claims) != nil || claims.Consumer != "customer" || claims.Exp < now.Add(7*24*time.Hour).Unix() {
		t.Errorf("claims %s: %v", raw, err)
	}
}

func TestCABundleVerifiesEveryEdgeHost(t *testing.T) {
	h := home(t.TempDir())
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	k, err := openKeyring(h, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	file, _, err := k.server("edge", edgeNames(), netip.MustParseAddr("127.10.1.1"))
	if err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(raw)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := os.ReadFile(h.caFile())
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	for _, name := range append(sampleHosts(), "gw.test", "anything.gw.test", "127.10.1.1") {
		if _, err := cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSampleDocumentIsValid(t *testing.T) {
	l := newLayout(standard(), 5_000_000)
	text, err := l.sample(hashOf("cg_key"))
	if err != nil {
		t.Fatal(err)
	}
	cfg, faults := snapshot.Decode([]snapshot.File{{Name: "sample.yaml", Data: []byte(text)}}, snapshot.Loopback())
	if err := faults.Err(); err != nil {
		t.Fatal(err)
	}
	if err := program.Check(cfg).Err(); err != nil {
		t.Fatal(err)
	}
	if len(cfg.Tenants) < 2 {
		t.Errorf("%d tenants", len(cfg.Tenants))
	}
}

func TestDamagedFilesAreNamed(t *testing.T) {
	for _, file := range []string{"keys/internal-ca.both.pem", "keys/idp.key", "keys/tokens.json"} {
		h := home(t.TempDir())
		if err := h.create(); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(h.path(file), []byte("{nonsense"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := openKeyring(h, time.Now()); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: %v", file, err)
		}
	}
}

func TestWorldKeepsItsSize(t *testing.T) {
	h := home(t.TempDir())
	if err := h.keepSize(standard()); err != nil {
		t.Fatal(err)
	}
	if err := h.keepSize(standard()); err != nil {
		t.Errorf("the same size: %v", err)
	}
	other := standard()
	other.Cells = 3
	if err := h.keepSize(other); err == nil || !strings.Contains(err.Error(), "3 regions, 2 cells and 2 proxies") {
		t.Errorf("another size: %v", err)
	}
}

// Only stores that have nothing yet need room at once; a world that has begun may go on with little.
func TestAWorldThatDoesNotFitIsRefused(t *testing.T) {
	h := home(t.TempDir())
	w := &world{home: h, made: []process{{role: "etcd", id: "global/eu-west"}, {role: "etcd", id: "eu-west"}, {role: "proxy", id: "eu-west/a/1"}}}
	if err := w.room(100 << 20); err == nil || !strings.Contains(err.Error(), "has 100 MiB left, the stores of this world take 160 MiB") {
		t.Errorf("two new stores: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(h.etcdDir("eu-west"), "member"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.room(100 << 20); err != nil {
		t.Errorf("one new store: %v", err)
	}
	if free, err := durable.Free(string(h)); err != nil || free == 0 {
		t.Errorf("free: %d, %v", free, err)
	}
	if _, err := durable.Free(h.path("absent")); err == nil {
		t.Error("a directory that isn't there has room")
	}
}

// Drills ask for the processes again and again: the memory of all is read only for whom it is shown to.
func TestMemoryIsMeasuredForWhoeverAsks(t *testing.T) {
	w := &world{group: supervise.New(supervise.Options{})}
	defer w.group.Shutdown(t.Context())
	for _, want := range []bool{false, true} {
		if res := w.handle(t.Context(), request{Op: supervisor.Status, Memory: want}); res.Error != "" || (res.Memory > 0) != want {
			t.Errorf("asked %v: %+v", want, res)
		}
	}
}

func TestBlockAndDirectoryAreClaimedOnce(t *testing.T) {
	block, dir := netip.PrefixFrom(loopback.For(t).Addr(0, 0), 17), t.TempDir()
	first, err := claimBlock(block, "/the/first")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claimBlock(block, "/the/second"); err == nil || !strings.Contains(err.Error(), "/the/first") {
		t.Errorf("second claim: %v", err)
	}
	first.release()
	again, err := claimBlock(block, "/the/third")
	if err != nil {
		t.Fatalf("after the release: %v", err)
	}
	again.release()

	if supervisor.Running(dir) {
		t.Error("an unlocked directory counts as running")
	}
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockDir(dir); err == nil || !supervisor.Running(dir) {
		t.Errorf("second lock: %v, running %v", err, supervisor.Running(dir))
	}
	lock.release()
	if supervisor.Running(dir) {
		t.Error("still locked after the release")
	}
}

func TestTakenAddressesAreAllNamed(t *testing.T) {
	at := loopback.For(t).Addr(9, 9).String() + ":0"
	ln, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	pc, err := net.ListenPacket("udp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer pc.Close()
	tcp, udp := netip.MustParseAddrPort(ln.Addr().String()), netip.MustParseAddrPort(pc.LocalAddr().String())
	err = checkFree(t.Context(), []bindings{
		{process: "proxy/x", tcp: []netip.AddrPort{tcp}}, {process: "globalrouter/y", udp: []netip.AddrPort{udp}},
	})
	if err == nil || !strings.Contains(err.Error(), "proxy/x needs tcp "+tcp.String()) || !strings.Contains(err.Error(), "globalrouter/y needs udp "+udp.String()) {
		t.Errorf("%v", err)
	}
}

func TestGlobsMatchSlashesAndMissesAreErrors(t *testing.T) {
	names := []string{"etcd/eu-west", "proxy/eu-west/a/1", "proxy/eu-west/b/1", "proxy/us-east/a/1"}
	for _, c := range []struct {
		pattern string
		want    []string
	}{
		{"proxy/*", names[1:]}, {"*", names}, {"proxy/eu-west/?/1", names[1:3]}, {"etcd/eu-west", names[:1]},
		{"proxy", nil}, {"", nil}, {"proxy/eu.west/a/1", nil}, {"[", nil},
	} {
		got, err := match([]string{c.pattern}, names)
		if !slices.Equal(got, c.want) || (err != nil) != (c.want == nil) {
			t.Errorf("%q matches %v, %v", c.pattern, got, err)
		}
	}
	if _, err := match([]string{"proxy/*", "nobody"}, names); err == nil {
		t.Error("one pattern without a match among others is no error")
	}
}

func TestControlAnswersAlsoInALongDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 40))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h := home(dir)
	if _, err := call(t.Context(), h, request{Op: "status"}); !errors.Is(err, supervisor.ErrNotRunning) {
		t.Errorf("without a supervisor: %v", err)
	}
	lock, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.release()
	ctl, err := listenControl(h, func(_ context.Context, r request) response {
		if r.Op == "bad" {
			return response{Error: "no such order"}
		}
		return response{Matched: r.Patterns, Ready: true}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer ctl.close(h)
	go ctl.serve(t.Context())
	res, err := call(t.Context(), h, request{Op: "stop", Patterns: []string{"a", "b"}})
	if err != nil || !res.Ready || len(res.Matched) != 2 {
		t.Errorf("%+v, %v", res, err)
	}
	if _, err := call(t.Context(), h, request{Op: "bad"}); err == nil || err.Error() != "no such order" {
		t.Errorf("%v", err)
	}
}

func TestBackendEchoesStreamsAndMisbehaves(t *testing.T) {
	b := newBackend("orders-1")
	srv := httptest.NewServer(b.service())
	defer srv.Close()
	ctl := httptest.NewServer(b.control())
	defer ctl.Close()
	client := srv.Client()
	get := func(path string) (int, string, http.Header) {
		t.Helper()
		res, err := client.Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(body), res.Trailer
	}
	if code, body, _ := get("/v1/orders/7?x=1"); code != 200 || !strings.Contains(body, `"path":"/v1/orders/7"`) || !strings.Contains(body, `"query":"x=1"`) {
		t.Errorf("echo: %d %s", code, body)
	}
	if code, body, _ := get("/v1/stream?count=3&every=1ms"); code != 200 || strings.Count(body, "\n") != 3 {
		t.Errorf("stream: %d %q", code, body)
	}
	if _, body, trailer := get("/v1/trailers"); trailer.Get("X-Body-Bytes") != "22" || len(body) != 22 {
		t.Errorf("trailers: %q %v", body, trailer)
	}
	at := netip.MustParseAddrPort(strings.TrimPrefix(ctl.URL, "http://"))
	if err := orderFaults(t.Context(), at, faults{FailPercent: 100}); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := get("/"); code != 500 {
		t.Errorf("ordered to fail: %d", code)
	}
	if err := orderFaults(t.Context(), at, faults{FailPercent: 101}); err == nil {
		t.Error("101% is accepted")
	}
	if err := orderFaults(t.Context(), at, faults{}); err != nil {
		t.Fatal(err)
	}
	if code, _, _ := get("/"); code != 200 {
		t.Errorf("good again: %d", code)
	}
}

func TestPercentages(t *testing.T) {
	for text, want := range map[string]float64{"30%": 30, "30": 30, "0.5%": 0.5, "100%": 100, "0": 0} {
		if got, err := parsePercent(text); err != nil || got != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "%", "-1%", "101%", "NaN", "lots", "+Inf"} {
		if got, err := parsePercent(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestReadinessNamesWhatIsMissing(t *testing.T) {
	r := &readiness{layout: newLayout(Size{1, 1, 2, netip.MustParsePrefix("127.10.0.0/16")}, 1000)}
	parse := func(text string) error {
		var s worldStatus
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		return r.missing(s)
	}
	whole := `{"version":1,"nodes":[{"id":"eu-west/a/1","served":1},{"id":"eu-west/a/2","served":1}],"cells":[{"id":"eu-west/a","healthy":true}]}`
	if err := parse(whole); err != nil {
		t.Errorf("a whole world: %v", err)
	}
	if err := parse(strings.Replace(whole, `{`, `{"rollout":{"version":2,"previous":1,"state":"held"},`, 1)); err != nil {
		t.Errorf("a world that starts again amid a later rollout: %v", err)
	}
	for text, want := range map[string]string{
		`{"version":0}`: "nothing is published",
		strings.Replace(whole, `2","served":1`, `2","served":0`, 1):       "eu-west/a/2",
		strings.Replace(whole, `"healthy":true`, `"healthy":null`, 1):     "1 of 1 cells",
		strings.Replace(whole, `{"id":"eu-west/a/1","served":1},`, "", 1): "eu-west/a/1",
		strings.Replace(whole, `{`, `{"rollout":{"version":1},`, 1):       "first version",
	} {
		if err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestFrontDoorFailsOnlyWhoTakesConnectionsAndDoesNotAnswer(t *testing.T) {
	deaf, err := net.Listen("tcp", "127.0.0.1:0") // the kernel accepts, nobody answers: a stopped process
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := newFrontDoor(netip.MustParseAddrPort(deaf.Addr().String())).alive(ctx); err == nil {
		t.Error("a deaf proxy counts as alive")
	}
	draining := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != readyPath {
			t.Errorf("asked for %s", r.URL.Path)
		}
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	at := netip.MustParseAddrPort(strings.TrimPrefix(draining.URL, "http://"))
	door := newFrontDoor(at)
	if err := door.alive(t.Context()); err != nil {
		t.Errorf("a draining proxy: %v", err)
	}
	if err := readyHTTP(at)(t.Context()); err == nil {
		t.Error("a draining proxy counts as ready")
	}
	draining.Close()
	if err := door.alive(t.Context()); err != nil {
		t.Errorf("a proxy that has just left its sockets: %v", err)
	}
	door.refused.Store(time.Now().Add(-refusedFor - time.Second).UnixNano())
	if err := door.alive(t.Context()); err == nil {
		t.Error("a proxy that listens nowhere for long counts as alive")
	}
}

func TestWorldFileHasTheContractsShape(t *testing.T) {
	l := newLayout(standard(), 5_000_000)
	w := l.worldFile("/w", tokens{Admin: "a", Customer: "c", Limited: "l"}, 5, []supervise.Status{{Name: "proxy/eu-west/a/1", PID: 42}})
	raw, err := json.Marshal(w)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{
		`{"dns":["127.10.255.1:5300","127.10.255.2:5300"],"admin":"https://127.10.1.250:7443","ca":"/w/ca.pem","zone":"gw.test","host":"api.gw.test","path":"/v1/orders/7","ttl":5,"tokens":{"admin":"a","customer":"c","limited":"l"}`,
		`{"id":"eu-west","clients":["5.1.0.0/16"],"admin":"https://127.10.1.250:7443","cells":[{"id":"eu-west/a","address":"127.10.1.1","https":8443,"http":8080,"proxies":[{"id":"eu-west/a/1","address":"127.10.1.11","pid":42,"admin":"127.10.1.11:9901"}`,
		`"processes":[{"role":"proxy","id":"eu-west/a/1","pid":42}]`,
	} {
		if !strings.Contains(string(raw), part) {
			t.Errorf("world.json lacks %s:\n%s", part, raw)
		}
	}
}

func TestStarterHearsProgressAndTheEnd(t *testing.T) {
	var said []string
	say := func(s string) { said = append(said, s) }
	if err := follow(strings.NewReader("+one\n+two\n=\n+late\n"), say); err != nil || !slices.Equal(said, []string{"one", "two"}) {
		t.Errorf("%v, %v", said, err)
	}
	if err := follow(strings.NewReader("!port in use\n"), say); err == nil || err.Error() != "port in use" {
		t.Errorf("%v", err)
	}
	if err := follow(bufio.NewReader(strings.NewReader("+one\n")), say); err == nil {
		t.Error("a supervisor that vanished counts as ready")
	}
}

func TestIdentityProviderPublishesItsKeys(t *testing.T) {
	h := home(t.TempDir())
	if err := h.create(); err != nil {
		t.Fatal(err)
	}
	if _, err := openKeyring(h, time.Now()); err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(ln.Addr().String())
	ln.Close()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- runIDP(ctx, idpConfig{Listen: at, Key: h.path("keys", "idp.key")}, slog.New(slog.DiscardHandler))
	}()
	for end := time.Now().Add(time.Minute); accepts(at)(ctx) != nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	res, err := client.Get("http://" + at.String() + "/keys")
	if err != nil {
		t.Fatal(err)
	}
	var set jose.JSONWebKeySet
	if err := json.NewDecoder(res.Body).Decode(&set); err != nil || len(set.Keys) != 1 || !set.Keys[0].IsPublic() {
		t.Errorf("keys: %+v, %v", set, err)
	}
	res.Body.Close()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestOptionsAreBounded(t *testing.T) {
	good := Options{Dir: "w", Size: standard(), Timing: defaultTiming(5*time.Second, 3*time.Second, 30*time.Second), Limit: 5_000_000}
	if err := good.validate(); err != nil {
		t.Fatal(err)
	}
	for flag, spoil := range map[string]func(*Options){
		"--dir":             func(o *Options) { o.Dir = "" },
		"--regions":         func(o *Options) { o.Size.Regions = 10 },
		"--proxies":         func(o *Options) { o.Size.Proxies = 0 },
		"--net":             func(o *Options) { o.Size.Net = netip.MustParsePrefix("127.10.1.0/16") },
		"--ttl":             func(o *Options) { o.Timing.TTL = 1500 * time.Millisecond },
		"--bake":            func(o *Options) { o.Timing.Bake = -1 },
		"--ramp":            func(o *Options) { o.Timing.Ramp = 48 * time.Hour },
		"--on-insufficient": func(o *Options) { o.Timing.OnInsufficient = "go" },
		"--cell-limit":      func(o *Options) { o.Limit = cells.MilliRPS(1) },
		"--engine":          func(o *Options) { o.Engine = "steam" },
	} {
		o := good
		spoil(&o)
		if err := o.validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

func TestLastWordsOfACrashStandAboveItsStack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	for text, want := range map[string]string{
		"":               "",
		"one\ntwo\n":     "two",
		"panic: at once": "panic: at once",
		"old\nno space left on device\npanic: failed to create WAL\n\ngoroutine 1 [running]:\nmain.go:3 +0x1\n": "no space left on device; panic: failed to create WAL",
		strings.Repeat("x", 1000): strings.Repeat("x", 400),
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := lastWords(file); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestPrintedCommandsAreQuotedForAShell(t *testing.T) {
	for word, want := range map[string]string{
		"/tmp/w-1.x_y": "/tmp/w-1.x_y", "/tmp/é": "/tmp/é", "/tmp/my world": "'/tmp/my world'", "/tmp/$HOME": "'/tmp/$HOME'",
		"/tmp/it's": `'/tmp/it'\''s'`, "/tmp/a;b": "'/tmp/a;b'", "/tmp/[a]": "'/tmp/[a]'", "/tmp/{a}`~": "'/tmp/{a}`~'",
	} {
		if got := shellWord(word); got != want {
			t.Errorf("%s: %s, want %s", word, got, want)
		}
	}
}

func TestLockIsLostWithItsFile(t *testing.T) {
	dir := t.TempDir()
	l, err := lockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer l.release()
	if l.lost() {
		t.Error("lost at once")
	}
	for _, step := range []func() error{
		func() error { return os.Remove(filepath.Join(dir, "lock")) },
		func() error { return os.WriteFile(filepath.Join(dir, "lock"), nil, 0o600) }, // somebody else's
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
		if !l.lost() {
			t.Error("not lost")
		}
	}
}
