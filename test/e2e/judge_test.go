//go:build long

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/test/harness"
)

// Every node of the world gets perNode requests per second, so the canary does, whichever node is drawn. To the proxies there
// are two clients, a user and an address. The address asks for well over half: less would be a client that fails alone.
const (
	judgeBake  = 60 * time.Second
	ordersRate = 80  // with a token
	otherRate  = 160 // public
	echoRate   = 10  // a route with little traffic
	perNode    = ordersRate + otherRate + echoRate
)

// Versions are published one after the other under load. Each bad one is stopped at its canary and turned back by itself;
// a good one, and one that bakes while an upstream fails for everybody, reach every node.
func TestJudgeStopsBadVersionsAtTheCanaryAndLetsGoodOnesPass(t *testing.T) {
	w, err := up(harness.Bin(t, "cellgate"), filepath.Join(t.TempDir(), "w"), "--net", "127.43.0.0/16",
		"--regions", "1", "--bake", judgeBake.String(), "--on-insufficient", "hold")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.cellgate(t, "down") })
	j := newJudged(t, w)
	j.warmUp(t)
	for _, c := range []struct{ name, document string }{
		{"a good version", j.good("9s")},
		{"a good version that adds a route", j.newRoute()},
		{"a good version that balances otherwise", j.balanced()},
	} {
		t.Run(c.name, func(t *testing.T) { j.goesLive(t, c.document, nil) })
	}
	for _, c := range []struct {
		name, why string // why is part of what the judge must say
		change    func(*judged) string
	}{
		{"fails 30% of a route", "upstream failures", (*judged).failing},
		{"breaks authentication", "it refuses what the version before let through", (*judged).wrongAudience},
		{"misspells the path of a route with little traffic", "route echo", (*judged).misspelt},
		{"doubles the p99 of a route", "slower than", (*judged).slowTail},
		{"sends a fifth of a route to an upstream that is slower", "slower than", (*judged).slowUpstream},
		{"sends a route with little traffic to an upstream that doesn't know it", "404", (*judged).wrongUpstream},
	} {
		t.Run(c.name, func(t *testing.T) { j.turnedBack(t, c.change(j), c.why) })
	}
	t.Run("kills a node while it loads", j.killsWhileLoading)
	for _, c := range []struct {
		name, timeout string
		incident      []string
	}{
		{"an upstream fails for everybody", "8s", []string{"--fail", "60%"}},
		{"an upstream is slow for everybody", "7s", []string{"--slow", "200ms"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			j.goesLive(t, j.good(c.timeout), func() {
				w.cellgate(t, append([]string{"backend", "catalog-*"}, c.incident...)...)
				time.Sleep(20 * time.Second)
				w.cellgate(t, "backend", "*", "--ok")
			})
		})
	}
}

// judged is a world whose nodes are all under the same load.
type judged struct {
	*world
	sample string
	odd    string                // address of a server that misbehaves by path
	nodes  map[string]netip.Addr // by node
	slow   time.Duration         // twice the p99 of the public route

	mu   sync.Mutex
	sent map[string][]time.Time // requests by node
	bad  map[string][]time.Time // of them, those that failed
	took []time.Duration        // of the public route, while it is measured
}

func newJudged(t *testing.T, w *world) *judged {
	raw, err := os.ReadFile(filepath.Join(w.Dir, "sample.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	j := &judged{world: w, sample: string(raw), nodes: map[string]netip.Addr{}, sent: map[string][]time.Time{}, bad: map[string][]time.Time{}}
	j.odd = j.serveOdd(t)
	for _, c := range w.cells() {
		for _, p := range c.Proxies {
			j.nodes[p.ID] = p.Address
			at := netip.AddrPortFrom(p.Address, c.HTTPS)
			for path, rate := range map[string]int{w.Path: ordersRate, "/v1/catalog/1": otherRate, "/v1/echo/1": echoRate} {
				j.load(t, p.ID, at, path, rate)
			}
		}
	}
	return j
}

// load sends rate requests per second to one node, from so many clients that slow answers don't slow it down.
func (j *judged) load(t *testing.T, node string, at netip.AddrPort, path string, rate int) {
	clients := min(rate, 30)
	run := load.Start(load.Config{
		At: at, Host: j.Host, Port: at.Port(), Path: path, Token: j.Tokens.Customer, Roots: j.roots(t), HTTP2: path == j.Path,
		Clients: make([]netip.Prefix, clients), Every: time.Second * time.Duration(clients) / time.Duration(rate),
		Each: func(q load.Request) {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.sent[node] = append(j.sent[node], q.Start)
			if q.Failed() {
				j.bad[node] = append(j.bad[node], q.Start)
			}
			if strings.HasPrefix(path, "/v1/catalog") && len(j.took) < 100_000 {
				j.took = append(j.took, q.Took)
			}
		},
	})
	t.Cleanup(func() { run.Wait() })
}

// warmUp lets the nodes get a past, and measures the public route's p99.
func (j *judged) warmUp(t *testing.T) {
	time.Sleep(30 * time.Second)
	j.mu.Lock()
	defer j.mu.Unlock()
	took := slices.Sorted(slices.Values(j.took[len(j.took)/2:]))
	j.slow = max(2*took[len(took)*99/100], 20*time.Millisecond)
	t.Logf("p99 of the public route: %v", took[len(took)*99/100])
}

// serveOdd is an upstream of the test's own: it fails, is slow or knows nothing, by the port that is asked.
func (j *judged) serveOdd(t *testing.T) string {
	const host = "127.43.254.77"
	answer := func(w http.ResponseWriter) { fmt.Fprintln(w, `{"odd": true}`) }
	for port, h := range map[string]http.HandlerFunc{
		portFailing: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusInternalServerError) },
		portUnknown: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "what?", http.StatusNotFound) },
		portSlow:    func(w http.ResponseWriter, _ *http.Request) { time.Sleep(j.slow); answer(w) },
		portTail: func(w http.ResponseWriter, _ *http.Request) {
			if rand.Float64() < .15 { // a twentieth of all, if it is one of three
				time.Sleep(j.slow)
			}
			answer(w)
		},
	} {
		l, err := net.Listen("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Fatal(err)
		}
		server := &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second}
		go func() { _ = server.Serve(l) }()
		t.Cleanup(func() { _ = server.Close() })
	}
	return host
}

const (
	portFailing = "8001"
	portUnknown = "8002"
	portSlow    = "8003"
	portTail    = "8004"
)

// with is the sample with some of its words replaced, each of which it must have.
func (j *judged) with(pairs ...string) string {
	text := j.sample
	for i := 0; i+1 < len(pairs); i += 2 {
		if !strings.Contains(text, pairs[i]) {
			panic("the sample has no " + pairs[i])
		}
		text = strings.Replace(text, pairs[i], pairs[i+1], 1)
	}
	return text
}

const (
	catalogRoute = "match: {host: api.gw.test, path_prefix: /v1/catalog, methods: [GET, HEAD]}\n    upstream: catalog\n"
	echoRoute    = "match: {host: api.gw.test, path_prefix: /v1/echo}\n    upstream: catalog\n"
)

func (j *judged) upstream(id, port string) string {
	return fmt.Sprintf("\nupstreams:\n  - {id: %s, endpoints: [\"%s:%s\"]}\n", id, j.odd, port)
}

// good changes the timeout of a busy route.
func (j *judged) good(timeout string) string {
	return j.with(catalogRoute, catalogRoute+"    timeout: "+timeout+"\n")
}

func (j *judged) newRoute() string {
	return j.with("routes:\n", "routes:\n  - {id: fresh, match: {host: api.gw.test, path: /v1/fresh}, upstream: catalog, owner: team-fresh}\n")
}

func (j *judged) balanced() string {
	return j.with("balance: p2c", "balance: round_robin")
}

func (j *judged) failing() string {
	split := strings.Replace(catalogRoute, "upstream: catalog", "split: [{upstream: catalog, weight: 70}, {upstream: odd, weight: 30}]", 1)
	return j.with(catalogRoute, split, "\nupstreams:\n", j.upstream("odd", portFailing))
}

func (j *judged) wrongAudience() string {
	audience := regexp.MustCompile(`audience: .*\n`).FindString(j.sample)
	return j.with(audience, "audience: somebody-else\n")
}

// slowTail adds an endpoint to the upstream, which is slow every now and then, and takes turns.
func (j *judged) slowTail() string {
	catalog := regexp.MustCompile(`\{id: catalog, endpoints: \[(.*)\], balance: p2c`).FindStringSubmatch(j.sample)
	return j.with(catalog[0], fmt.Sprintf("{id: catalog, endpoints: [%s, \"%s:%s\"], balance: round_robin", catalog[1], j.odd, portTail))
}

func (j *judged) misspelt() string {
	return j.with(echoRoute, strings.Replace(echoRoute, "/v1/echo", "/v1/ecco", 1))
}

func (j *judged) slowUpstream() string {
	split := strings.Replace(catalogRoute, "upstream: catalog", "split: [{upstream: catalog, weight: 80}, {upstream: odd, weight: 20}]", 1)
	return j.with(catalogRoute, split, "\nupstreams:\n", j.upstream("odd", portSlow))
}

func (j *judged) wrongUpstream() string {
	return j.with(echoRoute, strings.Replace(echoRoute, "upstream: catalog", "upstream: odd", 1), "\nupstreams:\n", j.upstream("odd", portUnknown))
}

// publish gives the version's number. When the test has failed, the rollout is ended for the sake of the next one.
func (j *judged) publish(t *testing.T, document string) uint64 {
	t.Helper()
	var p struct{ Version uint64 }
	out := j.mustRegionctl(t, "config", "publish", harness.WriteFile(t, "version.yaml", document), "--message", t.Name(), "-o", "json")
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			j.regionctl(t, "rollout", "abort")
			j.healthy(t, time.Minute)
		}
	})
	return p.Version
}

// follow asks once a second what became of the version until it is so; it gives the nodes that were its canaries.
func (j *judged) follow(t *testing.T, version uint64, state string, within time.Duration, each func(ring string)) (canaries []string, why string) {
	t.Helper()
	ring, began := "", time.Now()
	for end := began.Add(within); time.Now().Before(end); time.Sleep(time.Second) {
		var r struct{ State, Ring, Why string }
		if err := json.Unmarshal([]byte(j.mustRegionctl(t, "rollout", "status", fmt.Sprint(version), "-o", "json")), &r); err != nil {
			t.Fatal(err)
		}
		if r.Ring != ring {
			ring = r.Ring
			t.Logf("%4.0f s: %s", time.Since(began).Seconds(), ring)
		}
		if name, ok := strings.CutPrefix(ring, "canary node ["); ok {
			if canaries = []string{strings.TrimSuffix(name, "]")}; each != nil {
				each(ring)
			}
		}
		if r.State == state {
			t.Logf("%4.0f s: %s: %s", time.Since(began).Seconds(), r.State, r.Why)
			return canaries, r.Why
		}
		if why = r.State + ": " + r.Why; r.State == "live" || r.State == "rolled_back" {
			break
		}
	}
	t.Fatalf("version %d is not %s but %s", version, state, why)
	return nil, ""
}

// turnedBack publishes a bad version and proves that nobody but the canary had it, and no client of another node noticed.
func (j *judged) turnedBack(t *testing.T, document, why string) {
	published := time.Now()
	version := j.publish(t, document)
	canaries, said := j.follow(t, version, "rolled_back", 2*judgeBake, nil)
	if len(canaries) != 1 {
		t.Fatalf("canaries %v", canaries)
	}
	if !strings.Contains(said, why) {
		t.Errorf("turned back for another reason: %s", said)
	}
	j.onlyOn(t, version, canaries)
	j.everybodyIsBack(t, version)
	t.Logf("%.0f requests/s on the canary", j.rate(canaries[0], published))
	j.nobodyElseNoticed(t, published, canaries[0])
}

// goesLive publishes a version that everybody must take; during, if set, runs beside the bake of the canary.
func (j *judged) goesLive(t *testing.T, document string, during func()) {
	published := time.Now()
	version := j.publish(t, document)
	var once sync.Once
	var beside sync.WaitGroup
	canaries, _ := j.follow(t, version, "live", 6*judgeBake, func(string) {
		if during != nil {
			once.Do(func() { beside.Go(func() { time.Sleep(10 * time.Second); during() }) })
		}
	})
	beside.Wait()
	if rate := j.rate(canaries[0], published); rate < 200 {
		t.Errorf("only %.0f requests/s on the canary", rate)
	} else {
		t.Logf("%.0f requests/s on the canary", rate)
	}
	if got := j.servedBy(t, version); len(got) != len(j.nodes) {
		t.Errorf("served by %v", got)
	}
}

// servedBy are the nodes that say in their own logs that they put the version into service.
func (j *judged) servedBy(t *testing.T, version uint64) []string {
	t.Helper()
	var out []string
	for node := range j.nodes {
		for _, line := range j.nodeLog(t, node) {
			if (line.Msg == "version applied" || line.Msg == "serving from disk") && line.Version == version {
				out = append(out, node)
				break
			}
		}
	}
	slices.Sort(out)
	return out
}

type logLine struct {
	Msg      string
	Version  uint64
	Checksum string
}

func (j *judged) nodeLog(t *testing.T, node string) (out []logLine) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(j.Dir, "logs", "proxy-*"+strings.ReplaceAll(node, "/", "-")+".log"))
	if err != nil || len(files) != 1 {
		t.Fatalf("logs of %s: %v %v", node, files, err)
	}
	f, err := os.Open(files[0])
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		var l logLine
		if json.Unmarshal(s.Bytes(), &l) == nil { // a crash leaves words of another kind
			out = append(out, l)
		}
	}
	return out
}

// onlyOn holds the nodes' own logs against the ring.
func (j *judged) onlyOn(t *testing.T, version uint64, canaries []string) {
	t.Helper()
	for _, node := range j.servedBy(t, version) {
		if !slices.Contains(canaries, node) {
			t.Errorf("version %d was served by %s, its canary was %v", version, node, canaries)
		}
	}
}

// everybodyIsBack says that every node serves the contents of before, under the number after the bad one's.
func (j *judged) everybodyIsBack(t *testing.T, bad uint64) {
	t.Helper()
	for _, n := range j.status(t).Nodes {
		if n.Served != bad+1 {
			t.Errorf("%s serves %d", n.ID, n.Served)
		}
	}
	for node := range j.nodes {
		var sums []string
		for _, l := range j.nodeLog(t, node) {
			if l.Msg == "version applied" && (l.Version == bad-1 || l.Version == bad+1) {
				sums = append(sums, l.Checksum)
			}
		}
		if len(sums) == 0 || slices.Max(sums) != slices.Min(sums) {
			t.Errorf("%s: checksums %v before and after", node, sums)
		}
	}
}

// rate is how many requests per second the node had since the time.
func (j *judged) rate(node string, since time.Time) float64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return float64(after(j.sent[node], since)) / time.Since(since).Seconds()
}

func after(times []time.Time, since time.Time) (n int) {
	for _, at := range times {
		if at.After(since) {
			n++
		}
	}
	return n
}

func (j *judged) nobodyElseNoticed(t *testing.T, since time.Time, canary string) {
	t.Helper()
	j.mu.Lock()
	defer j.mu.Unlock()
	for node := range j.nodes {
		if n := after(j.bad[node], since); n > 0 && node != canary {
			t.Errorf("%d requests failed at %s, which is not the canary", n, node)
		}
	}
	t.Logf("%d of %d requests failed at the canary, none elsewhere", after(j.bad[canary], since), after(j.sent[canary], since))
}

// killsWhileLoading leaves the proxies little more memory than they use, and publishes a version that needs more.
func (j *judged) killsWhileLoading(t *testing.T) {
	for node := range j.nodes {
		pid := j.pid(t, "proxy/"+node)
		limit(t, pid, addressSpace(t, pid)+32<<20)
		t.Cleanup(func() { limit(t, pid, unix.RLIM_INFINITY) })
	}
	var many strings.Builder
	many.WriteString("routes:\n")
	for i := range 60_000 {
		fmt.Fprintf(&many, "  - {id: r%d, match: {host: api.gw.test, path: \"/v1/many/%d/{id}\"}, upstream: catalog, owner: team-many}\n", i, i)
	}
	j.turnedBack(t, j.with("routes:\n", many.String()), "has restarted")
}

func addressSpace(t *testing.T, pid int) uint64 {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	var pages uint64
	if _, err := fmt.Sscan(string(raw), &pages); err != nil {
		t.Fatal(err)
	}
	return pages * uint64(os.Getpagesize())
}

// limit bounds the address space of a process; one that is gone has no need of it.
func limit(t *testing.T, pid int, bytes uint64) {
	t.Helper()
	err := unix.Prlimit(pid, unix.RLIMIT_AS, &unix.Rlimit{Cur: bytes, Max: unix.RLIM_INFINITY}, nil)
	if err != nil && err != unix.ESRCH {
		t.Fatalf("limit of %d: %v", pid, err)
	}
}
