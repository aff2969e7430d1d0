//go:build long && linux

package e2e

import (
	"bufio"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	mrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/test/harness"
)

// What a node does while something behind it or before it goes wrong, measured on a real proxy with clients and backends of the
// test's own process. Each figure compares phases of one run that take turns, and takes the median of the rounds, so that other
// work on the machine meets both sides. docs/resilience.md has the table.

const (
	rounds = 7
	phase  = 2 * time.Second
)

// gate is a proxy that serves a document by itself.
type gate struct {
	*harness.Daemon
	addr, admin string
}

func startGate(t *testing.T, document string) *gate {
	g := &gate{addr: harness.FreeAddr(t), admin: harness.FreeAddr(t)}
	g.Daemon = harness.Start(t, "proxy", "serve", "--document", harness.WriteFile(t, "doc.yaml", document), "--http", g.addr, "--admin", g.admin)
	g.WaitHTTP("http://"+g.addr+"/.well-known/cellgate/ready", 200)
	return g
}

// cpu is the time that the proxy's threads have had of a processor.
func (g *gate) cpu(t *testing.T) (all time.Duration) {
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", g.PID()))
	if err != nil || len(files) == 0 {
		t.Fatal("no schedstat: ", err)
	}
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue // the thread has ended
		}
		ns, err := strconv.ParseInt(strings.Fields(string(raw))[0], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		all += time.Duration(ns)
	}
	return all
}

// resident is the proxy's memory in bytes.
func (g *gate) resident(t *testing.T) int {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", g.PID()))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.Atoi(strings.Fields(string(raw))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

func (g *gate) metric(t *testing.T, name string) float64 {
	res, err := http.Get("http://" + g.admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	sum, found := 0.0, false
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		if line := lines.Text(); strings.HasPrefix(line, name) {
			v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
			if err != nil {
				t.Fatal(err)
			}
			sum, found = sum+v, true
		}
	}
	if !found {
		t.Fatalf("there is no metric %s", name)
	}
	return sum
}

// backendOf is a backend of the test's; addr says where it is.
func backendOf(t *testing.T, h http.HandlerFunc) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &http.Server{Handler: h}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

func fine(http.ResponseWriter, *http.Request) {}

// seen is what came of one kind of requests in a phase.
type seen struct {
	mu   sync.Mutex
	took map[int][]time.Duration // by status
	sent int
}

func (s *seen) count(status int) int { return len(s.took[status]) }

// at is a quantile of the time that answers took; of all statuses if none is named.
func (s *seen) at(q float64, status ...int) time.Duration {
	var all []time.Duration
	for code, took := range s.took {
		if len(status) == 0 || slices.Contains(status, code) {
			all = append(all, took...)
		}
	}
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(len(all)-1, int(q*float64(len(all))))]
}

// flow is traffic at a steady rate, whatever the answers do: callers beyond those that wait take what is due.
type flow struct {
	addr, path string
	rate       int
	callers    int
	header     func() string // lines of one more field; nil = none
}

// run sends for a phase.
func (f flow) run(length time.Duration) *seen {
	s := &seen{took: map[int][]time.Duration{}}
	var next atomic.Int64
	var all sync.WaitGroup
	began, gap := time.Now(), time.Second/time.Duration(f.rate)
	for range f.callers {
		all.Go(func() {
			c := &caller{addr: f.addr}
			defer c.close()
			mine := map[int][]time.Duration{}
			for {
				due := time.Duration(next.Add(1)) * gap
				if due >= length {
					break
				}
				time.Sleep(time.Until(began.Add(due)))
				header := ""
				if f.header != nil {
					header = f.header()
				}
				start := time.Now()
				status := c.ask(f.path, header)
				mine[status] = append(mine[status], time.Since(start))
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			for code, took := range mine {
				s.took[code] = append(s.took[code], took...)
				s.sent += len(took)
			}
		})
	}
	all.Wait()
	return s
}

// caller has one connection and allocates little.
type caller struct {
	addr     string
	patience time.Duration // 0 = 20 s
	c        net.Conn
	in       *bufio.Reader
}

func (c *caller) close() {
	if c.c != nil {
		c.c.Close()
		c.c = nil
	}
}

// ask sends one request; 0 = no answer.
func (c *caller) ask(path, header string) int {
	if c.c == nil {
		conn, err := net.Dial("tcp", c.addr)
		if err != nil {
			return 0
		}
		c.c, c.in = conn, bufio.NewReader(conn)
	}
	_ = c.c.SetDeadline(time.Now().Add(cmp.Or(c.patience, 20*time.Second)))
	if _, err := io.WriteString(c.c, "GET "+path+" HTTP/1.1\r\nHost: api.example.com\r\n"+header+"\r\n"); err != nil {
		c.close()
		return 0
	}
	res, err := http.ReadResponse(c.in, nil)
	if err != nil {
		c.close()
		return 0
	}
	_, err = io.Copy(io.Discard, res.Body)
	if err != nil || res.Close {
		c.close()
	}
	return res.StatusCode
}

// beside runs flows at once.
func beside(length time.Duration, flows ...flow) []*seen {
	all := make([]*seen, len(flows))
	var wait sync.WaitGroup
	for i, f := range flows {
		wait.Go(func() { all[i] = f.run(length) })
	}
	wait.Wait()
	return all
}

func median(all []float64) float64 {
	all = slices.Clone(all)
	slices.Sort(all)
	return all[len(all)/2]
}

func us(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// held logs a figure, and fails when it is beyond its limit.
func held(t *testing.T, what string, measured, limit float64, ok bool) {
	t.Helper()
	t.Logf("%s: %.4g (limit %.4g)", what, measured, limit)
	if !ok {
		t.Errorf("%s: %.4g is beyond %.4g", what, measured, limit)
	}
}

func atMost(t *testing.T, what string, measured, limit float64) {
	t.Helper()
	held(t, what, measured, limit, measured <= limit && !math.IsNaN(measured))
}

func atLeast(t *testing.T, what string, measured, limit float64) {
	t.Helper()
	held(t, what, measured, limit, measured >= limit)
}

// compare runs the two sides in turn, and gives the median of the ratios of what they measure of those beside.
func compare(t *testing.T, calm, trouble func() *seen) float64 {
	var ratios []float64
	calm() // warms up
	for i := range rounds {
		var a, b *seen
		if i%2 == 0 {
			a, b = calm(), trouble()
		} else {
			b, a = trouble(), calm()
		}
		t.Logf("round %d: p99 of those beside %v, in trouble %v", i+1, a.at(.99), b.at(.99))
		ratios = append(ratios, float64(b.at(.99))/float64(a.at(.99)))
	}
	return median(ratios)
}

func TestResilienceADeadBackendGetsATenthMore(t *testing.T) {
	const rate = 4000
	var attempts atomic.Int64
	dead, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dead.Close() })
	go func() {
		for {
			c, err := dead.Accept()
			if err != nil {
				return
			}
			go func() {
				var b [2048]byte
				if n, _ := c.Read(b[:]); n > 0 {
					attempts.Add(1)
				}
				_ = c.(*net.TCPConn).SetLinger(0)
				c.Close()
			}()
		}
	}()
	good := backendOf(t, fine)
	g := startGate(t, fmt.Sprintf(`version: v1
routes:
  - {id: dead, match: {host: api.example.com, path: /dead}, upstream: dead, retry: {attempts: 2, conditions: [connect-failure, reset-before-headers]}}
  - {id: guarded, match: {host: api.example.com, path: /guarded}, upstream: guarded, retry: {attempts: 2, conditions: [connect-failure, reset-before-headers]}}
  - {id: good, match: {host: api.example.com, path: /good}, upstream: good}
  - {id: beside, match: {host: api.example.com, path: /beside}, upstream: beside}
upstreams:
  - {id: dead, endpoints: [%q], outlier: off, breaker: off}
  - {id: guarded, endpoints: [%q]}
  - {id: good, endpoints: [%q]}
  - {id: beside, endpoints: [%q]}
`, dead.Addr(), dead.Addr(), good, backendOf(t, fine)))
	worst := map[string]float64{} // attempts per second
	with := func(path string) func() *seen {
		return func() *seen {
			attempts.Store(0)
			began := time.Now()
			all := beside(phase, flow{g.addr, path, rate, 64, nil}, flow{g.addr, "/beside", 400, 16, nil})
			if path != "/good" {
				worst[path] = max(worst[path], float64(attempts.Load())/time.Since(began).Seconds())
				if all[0].count(200) > 0 {
					t.Error("a dead backend answers")
				}
				t.Logf("%s: %d requests, %d attempts in %v", path, all[0].sent, attempts.Load(), time.Since(began))
			}
			return all[1]
		}
	}
	bare := compare(t, with("/good"), with("/dead"))
	atMost(t, "attempts a second at a dead backend without breaker and ejection that 4,000 requests a second ask for", worst["/dead"], 4400)
	t.Logf("p99 of other routes beside it, of that beside a good one: %.4g", bare)
	ratio := compare(t, with("/good"), with("/guarded"))
	atMost(t, "attempts a second at a dead backend with the defaults", worst["/guarded"], 4400)
	atMost(t, "p99 of other routes beside it, of that beside a good one", ratio, 1.1)
}

func TestResilienceASlowBackendIsABulkhead(t *testing.T) {
	var slow atomic.Bool
	late := backendOf(t, func(http.ResponseWriter, *http.Request) {
		time.Sleep(20 * time.Millisecond)
		if slow.Load() {
			time.Sleep(180 * time.Millisecond)
		}
	})
	g := startGate(t, fmt.Sprintf(`version: v1
routes:
  - {id: slow, match: {host: api.example.com, path: /slow}, upstream: slow}
  - {id: beside, match: {host: api.example.com, path: /beside}, upstream: beside}
upstreams:
  - {id: slow, endpoints: [%q], pool: {max_connections: 32, max_pending: 16}}
  - {id: beside, endpoints: [%q]}
`, late, backendOf(t, fine)))
	refused, quick, shares := 0, []float64{}, []float64{}
	with := func(is bool) func() *seen {
		return func() *seen {
			slow.Store(is)
			all := beside(phase, flow{g.addr, "/slow", 800, 256, nil}, flow{g.addr, "/beside", 400, 16, nil})
			if is {
				refused += all[0].count(503)
				quick = append(quick, us(all[0].at(.99, 503))/1000)
				shares = append(shares, 100*float64(all[0].count(503))/float64(all[0].sent))
			} else if all[0].count(503) > all[0].sent/100 {
				t.Logf("%d of %d refused while the backend is good", all[0].count(503), all[0].sent)
			}
			return all[1]
		}
	}
	ratio := compare(t, with(false), with(true))
	atLeast(t, "requests refused because the pool is full", float64(refused), 1000)
	t.Logf("%.0f%% are refused", median(shares))
	atMost(t, "p99 of the 503, in ms", median(quick), 5)
	atMost(t, "p99 of other routes beside a backend ten times slower", ratio, 1.1)
}

func TestResilienceOneOfTenThatFailsFastIsLeftAlone(t *testing.T) {
	var bad atomic.Bool
	var hits [10]atomic.Int64
	var endpoints []string
	for i := range hits {
		endpoints = append(endpoints, strconv.Quote(backendOf(t, func(w http.ResponseWriter, _ *http.Request) {
			hits[i].Add(1)
			if i == 3 && bad.Load() {
				w.WriteHeader(500)
				return
			}
			time.Sleep(2 * time.Millisecond)
		})))
	}
	g := startGate(t, fmt.Sprintf(`version: v1
routes: [{id: r, match: {host: api.example.com, path: /r}, upstream: u}]
upstreams: [{id: u, endpoints: [%s]}]
`, strings.Join(endpoints, ", ")))
	f := flow{g.addr, "/r", 1000, 32, nil}
	f.run(phase)
	bad.Store(true)
	first := f.run(3 * time.Second)
	for i := range hits {
		hits[i].Store(0)
	}
	then := f.run(10 * time.Second)
	total := int64(0)
	for i := range hits {
		total += hits[i].Load()
	}
	atMost(t, "percent of the traffic that one of ten gets which fails fast, after 3 s", 100*float64(hits[3].Load())/float64(total), 2)
	t.Logf("failed: %d of %d in the first 3 s, %d of %d in the next 10 s", first.count(500), first.sent, then.count(500), then.sent)
	atMost(t, "times that the breaker opened", g.metric(t, "cellgate_proxy_upstream_breaker_opened_total"), 0)
}

func TestResilienceHedgesHalveATail(t *testing.T) {
	var asked [2]atomic.Int64
	of := func(i int) string {
		return backendOf(t, func(http.ResponseWriter, *http.Request) {
			asked[i].Add(1)
			if mrand.IntN(200) < 3 { // of 1% exactly, the p99 is either
				time.Sleep(360 * time.Millisecond)
			}
			time.Sleep(40 * time.Millisecond)
		})
	}
	g := startGate(t, fmt.Sprintf(`version: v1
routes:
  - {id: plain, match: {host: api.example.com, path: /plain}, upstream: plain}
  - {id: hedged, match: {host: api.example.com, path: /hedged}, upstream: hedged, hedge: true}
upstreams:
  - {id: plain, endpoints: [%q, %q]}
  - {id: hedged, endpoints: [%q, %q]}
`, of(0), of(0), of(1), of(1)))
	var ratios []float64
	sent := [2]int{}
	flows := []flow{{g.addr, "/plain", 500, 64, nil}, {g.addr, "/hedged", 500, 64, nil}}
	beside(phase, flows...) // so that the usual is known
	asked[0].Store(0)
	asked[1].Store(0)
	for i := range rounds {
		all := beside(2*phase, flows...)
		t.Logf("round %d: p99 %v, hedged %v", i+1, all[0].at(.99), all[1].at(.99))
		ratios = append(ratios, float64(all[1].at(.99))/float64(all[0].at(.99)))
		sent[0], sent[1] = sent[0]+all[0].sent, sent[1]+all[1].sent
	}
	atMost(t, "p99 with hedges, of that without, when 1.5% of the answers take ten times as long", median(ratios), 0.5)
	atMost(t, "percent of requests more", 100*(float64(asked[1].Load())/float64(sent[1])-1), 5)
}

func TestResilienceOverloadServesTheCritical(t *testing.T) {
	busy := backendOf(t, func(http.ResponseWriter, *http.Request) { time.Sleep(100 * time.Millisecond) })
	hold := make(chan struct{})
	stuck := backendOf(t, func(http.ResponseWriter, *http.Request) { <-hold })
	g := startGate(t, fmt.Sprintf(`version: v1
routes:
  - {id: c, match: {host: api.example.com, path: /critical}, upstream: u, priority: critical}
  - {id: n, match: {host: api.example.com, path: /normal}, upstream: u, priority: normal}
  - {id: b, match: {host: api.example.com, path: /background}, upstream: u, priority: background}
  - {id: f, match: {host: api.example.com, path: /full}, upstream: full, timeout: 10m}
upstreams:
  - {id: u, endpoints: [%q], concurrency: 100}
  - {id: full, endpoints: [%q], concurrency: 1, timeouts: {response_header: 10m}}
`, busy, stuck))
	held := &caller{addr: g.addr, patience: 10 * time.Minute}
	var wait sync.WaitGroup
	wait.Go(func() { held.ask("/full", "") })
	defer wait.Wait()
	defer close(hold)
	probe := &caller{addr: g.addr}
	defer probe.close()
	harness.Eventually(t, 10*time.Second, "the one place of an upstream is taken", func() bool { return probe.ask("/full", "") == 503 })
	// 100 places of 100 ms are 1,000 a second: 3,000 ask.
	critical := flow{g.addr, "/critical", 150, 64, nil}
	served, asked, quick, costs := 0, 0, []float64{}, []float64{}
	for i := range rounds {
		before := g.cpu(t)
		refused := flow{g.addr, "/full", 20000, 32, nil}.run(phase)
		cost := us(g.cpu(t)-before) / float64(refused.count(503))
		all := beside(phase, critical, flow{g.addr, "/normal", 1150, 160, nil}, flow{g.addr, "/background", 1700, 160, nil})
		served, asked = served+all[0].count(200), asked+all[0].sent
		shed, passed := 0, 0
		for _, s := range all {
			shed, passed = shed+s.count(503), passed+s.count(200)
		}
		quick = append(quick, us(all[2].at(.99, 503))/1000)
		costs = append(costs, cost)
		t.Logf("round %d: %d served, %d shed, p99 of the shed %.2f ms; %d refused at a full upstream alone, %.1f µs of CPU each", i+1, passed, shed, quick[i], refused.count(503), cost)
	}
	atLeast(t, "percent of the critical that is served under threefold load", 100*float64(served)/float64(asked), 99.9)
	atMost(t, "µs of CPU that an answer to a shed request takes", median(costs), 30)
	atMost(t, "p99 of these answers, in ms", median(quick), 1)
}

func TestResilienceAMillionMadeUpKeys(t *testing.T) {
	const rate, flood = 4000, 50 * time.Second // five times
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var fetches atomic.Int64
	keys := backendOf(t, func(w http.ResponseWriter, _ *http.Request) {
		fetches.Add(1)
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "k1", Algorithm: "ES256", Use: "sig"}}})
	})
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(fmt.Appendf(nil, `{"iss":"https://id.example.com","aud":"api","sub":"u","exp":%d}`, time.Now().Add(time.Hour).Unix()))
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	g := startGate(t, fmt.Sprintf(`version: v1
routes: [{id: r, match: {host: api.example.com, path: /r}, upstream: u, auth: jwt}, {id: p, match: {host: api.example.com, path: /p}, upstream: u}]
upstreams: [{id: u, endpoints: [%q]}]
policies: [{id: jwt, jwt: {issuer: "https://id.example.com", audience: api, jwks: "http://%s/keys"}}]
`, backendOf(t, fine), keys))
	_, rest, _ := strings.Cut(token, ".")
	good := func() string { return "Authorization: Bearer " + token + "\r\n" }
	var number atomic.Int64
	made := func() string {
		head := fmt.Sprintf(`{"alg":"ES256","kid":"%x-%x"}`, number.Add(1), mrand.Uint64())
		return "Authorization: Bearer " + base64.RawURLEncoding.EncodeToString([]byte(head)) + "." + rest + "\r\n"
	}
	callers := flow{g.addr, "/r", 400, 16, good}
	c := &caller{addr: g.addr}
	defer c.close()
	harness.Eventually(t, 20*time.Second, "the key set is there", func() bool { return c.ask("/r", good()) == 200 })
	var ratios []float64
	began, memory := time.Now(), 0
	for i := range 5 {
		calm := beside(10*time.Second, callers, flow{g.addr, "/r", rate, 64, good})
		all := beside(flood, callers, flow{g.addr, "/r", rate, 64, made})
		if n := all[1].count(401); n != all[1].sent {
			t.Errorf("%d of %d made-up keys are not refused with 401", all[1].sent-n, all[1].sent)
		}
		if all[0].count(200) != all[0].sent {
			t.Errorf("%d of %d good callers are refused", all[0].sent-all[0].count(200), all[0].sent)
		}
		if i == 0 {
			memory = g.resident(t)
		}
		ratios = append(ratios, float64(all[0].at(.99))/float64(calm[0].at(.99)))
		t.Logf("round %d: p99 of good callers %v, in the flood %v; %d keys, %d fetches, %d KiB", i+1, calm[0].at(.99), all[0].at(.99), number.Load(), fetches.Load(), g.resident(t)>>10)
	}
	atLeast(t, "made-up keys", float64(number.Load()), 1e6*0.99)
	atMost(t, "fetches a minute", float64(fetches.Load()-1)/max(1, time.Since(began).Minutes()), 1)
	atMost(t, "memory at the end, of that after the first 200,000", float64(g.resident(t))/float64(memory), 1.1)
	atMost(t, "p99 of good callers in the flood, of that beside as many good ones", median(ratios), 1.2)
}
