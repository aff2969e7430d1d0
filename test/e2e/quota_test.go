//go:build long

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/test/harness"
)

// The sample gives the tenant of globex.gw.test 1,000 requests a second in the whole world.
const (
	tenantLimit = 1000
	tenantLoad  = 1500
)

// hopper sends a steady load to two proxies and counts what is admitted.
type hopper struct {
	t       *testing.T
	w       *world
	proxies []string // addresses of their own
	client  *http.Client
	work    [2]chan string
	tally   sync.Map // outcome → *atomic.Int64
	done    sync.WaitGroup
}

// outcome is what a request at a proxy came to.
type outcome struct {
	proxy  string
	status int
}

func newHopper(t *testing.T, w *world) *hopper {
	h := &hopper{t: t, w: w, client: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
	for _, c := range w.cells() {
		for _, p := range c.Proxies {
			h.proxies = append(h.proxies, fmt.Sprintf("%s:%d", p.Address, c.HTTP))
		}
	}
	for i := range h.work {
		h.work[i] = make(chan string, 256)
		for range 12 {
			h.done.Go(func() { h.labour(h.work[i]) })
		}
	}
	t.Cleanup(func() {
		close(h.work[0])
		close(h.work[1])
		h.done.Wait()
	})
	return h
}

func (h *hopper) labour(work chan string) {
	for at := range work {
		req, err := http.NewRequest(http.MethodGet, "http://"+at+"/v1/catalog/7", nil)
		if err != nil {
			panic(err) // the address is world.json's
		}
		req.Host = "globex.gw.test"
		status := 0
		if res, err := h.client.Do(req); err == nil {
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			status = res.StatusCode
		}
		n, _ := h.tally.LoadOrStore(outcome{at, status}, new(atomic.Int64))
		n.(*atomic.Int64).Add(1)
	}
}

// count is how many requests had this answer, of one proxy or, without one, of all.
func (h *hopper) count(status int, proxy string) (n int64) {
	h.tally.Range(func(k, v any) bool {
		if o := k.(outcome); o.status == status && (proxy == "" || o.proxy == proxy) {
			n += v.(*atomic.Int64).Load()
		}
		return true
	})
	return n
}

func (h *hopper) messages() (n float64) {
	for _, c := range h.w.cells() {
		n += h.w.cellMetric(h.t, c, "cellgate_proxy_quota_messages_total", "")
	}
	return n
}

// run drives the load for so many seconds, which two of the proxies have by turns of 5 s, and gives what was admitted and
// refused in each second.
func (h *hopper) run(seconds int, each func(second int)) (admitted, refused []int64) {
	const beat = 10 * time.Millisecond
	tick := time.NewTicker(beat)
	defer tick.Stop()
	began, sent := time.Now(), 0
	ok, no := h.count(200, ""), h.count(429, "")
	for second := 0; second < seconds; {
		<-tick.C
		past := time.Since(began)
		for want := int(past.Seconds() * tenantLoad); sent < want; sent++ {
			turn := int(past / (5 * time.Second))
			select {
			case h.work[sent%2] <- h.proxies[(2*turn+sent%2)%len(h.proxies)]:
			default: // the machine doesn't keep up; what is sent is measured
			}
		}
		if int(past.Seconds()) > second {
			second++
			a, r := h.count(200, ""), h.count(429, "")
			admitted, refused = append(admitted, a-ok), append(refused, r-no)
			ok, no = a, r
			if each != nil {
				each(second)
			}
		}
	}
	return admitted, refused
}

func sum(of []int64) (n int64) {
	for _, x := range of {
		n += x
	}
	return n
}

func quotaWorld(t *testing.T, flags ...string) *world {
	flags = append([]string{"--net", loopback.For(t).String(), "--regions", "2", "--cells", "1", "--cell-limit", "5000"}, flags...)
	w, err := up(harness.Bin(t, "cellgate"), filepath.Join(t.TempDir(), "w"), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.cellgate(t, "down") })
	return w
}

// H2: a limit is the world's, whichever nodes have the load.
func TestALimitIsTheWorldsWhereverTheLoadGoes(t *testing.T) {
	h := newHopper(t, quotaWorld(t, "--proxies", "3"))
	before := h.messages()
	admitted, refused := h.run(16, nil)
	messages := h.messages() - before
	h.withinLimit(admitted, refused)
	requests := sum(admitted) + sum(refused)
	t.Logf("admitted %v; %.0f messages for %d requests: %.2f%%", admitted, messages, requests, 100*messages/float64(requests))
	if messages > 0.02*float64(requests) {
		t.Errorf("%.0f messages to the quota service for %d requests", messages, requests)
	}
}

// withinLimit looks at every 10 s after the first second.
func (h *hopper) withinLimit(admitted, refused []int64) {
	h.t.Helper()
	for i := 1; i+10 <= len(admitted); i++ {
		a, all := sum(admitted[i:i+10]), sum(admitted[i:i+10])+sum(refused[i:i+10])
		if all < 11*tenantLimit {
			h.t.Logf("the machine sends too little for the limit to be felt: %v and %v; shed %d, failed %d", admitted, refused, h.count(503, ""), h.count(0, ""))
		} else if a < 7*tenantLimit || a > 105*tenantLimit/10 { // 99% on a quiet machine; a busy one holds messages up and lets tokens pass by
			h.t.Errorf("%d admitted in 10 s of a limit of %d/s: %v", a, tenantLimit, admitted)
		}
	}
}

// stock is more than what can be on lease, in the bucket and in advance at any instant: a fifth of a second's rate each as burst
// and as overdraft, and what nodes and regions hold for about two intervals of 100 ms.
const stock = tenantLimit * 8 / 10

// promised looks at every span of seconds, in which alone tells what may be admitted without any lease.
func (h *hopper) promised(admitted []int64, alone int64) {
	h.t.Helper()
	for i := range admitted {
		for j := i + 1; j <= len(admitted); j++ {
			if a, most := sum(admitted[i:j]), int64(j-i)*(tenantLimit+alone)+stock; a > most {
				h.t.Errorf("seconds %d to %d: %d admitted, at most %d are promised: %v", i, j, a, most, admitted)
			}
		}
	}
}

// valve passes connections on until it is shut: then nothing passes it any more, and nobody is told.
type valve struct {
	net.Listener
	to string

	mu   sync.Mutex
	open *sync.Cond
	shut bool
}

func newValve(t *testing.T, at, to string) *valve {
	ln, err := net.Listen("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{Listener: ln, to: to}
	v.open = sync.NewCond(&v.mu)
	t.Cleanup(func() { ln.Close(); v.turn(false) })
	go v.serve()
	return v
}

func (v *valve) turn(shut bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shut = shut
	v.open.Broadcast()
}

func (v *valve) serve() {
	for {
		c, err := v.Accept()
		if err != nil {
			return
		}
		go func() {
			up, err := net.Dial("tcp", v.to)
			if err != nil {
				c.Close()
				return
			}
			go v.pass(up, c)
			v.pass(c, up)
		}()
	}
}

func (v *valve) pass(to, from net.Conn) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		v.mu.Lock()
		for v.shut {
			v.open.Wait()
		}
		v.mu.Unlock()
		if _, failed := to.Write(buf[:n]); err != nil || failed != nil {
			return
		}
	}
}

// behindValves has a proxy reach its controllers through valves only.
func behindValves(t *testing.T, w *world, proxy string) (shut func(bool)) {
	t.Helper()
	w.cellgate(t, "stop", "proxy/"+proxy)
	file := filepath.Join(w.Dir, "boot", "proxy-"+strings.ReplaceAll(proxy, "/", "-")+".json")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var boot struct{ Controllers []string }
	if err := json.Unmarshal(raw, &boot); err != nil || len(boot.Controllers) == 0 {
		t.Fatalf("%s names no controllers: %v", file, err)
	}
	var valves []*valve
	block := loopback.For(t)
	for i, at := range boot.Controllers {
		own := fmt.Sprintf("%s:7000", block.Addr(1, byte(i+1)))
		valves = append(valves, newValve(t, own, at))
		raw = bytes.ReplaceAll(raw, []byte(strconv.Quote(at)), []byte(strconv.Quote(own)))
	}
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	w.cellgate(t, "start", "proxy/"+proxy)
	return func(shut bool) {
		for _, v := range valves {
			v.turn(shut)
		}
	}
}

// H2, H4: a tenth of the nodes can't reach the quota service, and one of them has half of the load. It goes on with its part.
func TestALimitHoldsWhileATenthOfTheNodesIsCutOff(t *testing.T) {
	w := quotaWorld(t, "--proxies", "5")
	newHopper(t, w).cutOff(tenantLimit / 2)
}

// H4: where the limit says deny, it refuses.
func TestAStrictLimitDeniesOnANodeThatIsCutOff(t *testing.T) {
	w := quotaWorld(t, "--proxies", "2", "--bake", "500ms")
	sample, err := os.ReadFile(filepath.Join(w.Dir, "sample.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	strict := strings.Replace(string(sample), "{tenant: 1000/second}", "{tenant: 1000/second, on_store_loss: deny}", 1)
	w.mustRegionctl(t, "config", "publish", harness.WriteFile(t, "strict.yaml", strict), "--wait")
	newHopper(t, w).cutOff(0)
}

// cutOff runs load while the first proxy can't reach its controllers, and when it can again. Alone is what it may admit meanwhile.
func (h *hopper) cutOff(alone int64) {
	t, cut := h.t, h.proxies[0]
	shut := behindValves(t, h.w, h.w.cells()[0].Proxies[0].ID)
	h.w.healthy(t, 30*time.Second)
	h.run(2, nil)
	var before, late int64
	admitted, refused := h.run(10, func(second int) {
		switch second {
		case 1:
			shut(true)
		case 2:
			before = h.count(200, cut)
		case 4:
			late = h.count(200, cut) - before
		}
	})
	t.Logf("admitted %v, refused %v; %d by the one cut off, in two seconds", admitted, refused, late)
	h.promised(admitted[:5], alone) // while it has load
	h.promised(admitted[5:], 0)
	if (late == 0) != (alone == 0) {
		t.Errorf("%d admitted by the node that is cut off", late)
	}
	shut(false)
	h.w.healthy(t, 30*time.Second)
	admitted, refused = h.run(12, nil)
	t.Logf("whole again: admitted %v, refused %v", admitted, refused)
	h.promised(admitted, 0)
	h.withinLimit(admitted, refused)
}

// H2: a limit goes where its load goes, and counts once what an evacuated cell hands on.
func TestALimitHoldsThroughAnEvacuation(t *testing.T) {
	w := quotaWorld(t, "--proxies", "2", "--ramp", "5s")
	h := newHopper(t, w)
	target := w.cells()[0].ID
	var orders sync.WaitGroup // the load doesn't wait for them
	order := func(args ...string) {
		orders.Go(func() {
			if res := w.regionctl(t, args...); res.Code != 0 {
				t.Errorf("regionctl %v: exit %d: %s", args, res.Code, res.Stderr)
			}
		})
	}
	admitted, refused := h.run(30, func(second int) {
		switch second {
		case 3:
			order("evacuate", target, "--reason", "e2e", "--over", "4s", "--expires", "10m")
		case 18:
			order("restore", target)
		}
	})
	orders.Wait()
	t.Logf("admitted %v, refused %v", admitted, refused)
	h.promised(admitted, 0)
	h.withinLimit(admitted, refused)
	if bad := h.count(0, "") + h.count(502, "") + h.count(504, ""); bad > 0 { // a busy machine sheds some with 503
		t.Errorf("%d requests failed", bad)
	}
}

// H2, H4: a node that is killed burns what it has on lease and no more; without its controller, a region's nodes admit their
// part, together at most 1.5 times the limit; when it is back, the limit holds again.
func TestALimitHoldsWhenNodesAndTheQuotaServiceDie(t *testing.T) {
	w := quotaWorld(t, "--proxies", "2")
	h := newHopper(t, w)
	hot := w.cells()[0].Proxies[0].ID
	admitted, refused := h.run(8, func(second int) {
		if second == 2 {
			w.cellgate(t, "kill", "proxy/"+hot)
		}
	})
	t.Logf("a hot node killed: admitted %v, refused %v", admitted, refused)
	for i, a := range admitted {
		if a > 13*tenantLimit/10 {
			t.Errorf("second %d: %d admitted while a node was killed", i, a)
		}
	}
	w.cellgate(t, "stop", "regionctl/*")
	admitted, refused = h.run(6, nil)
	t.Logf("without controllers: admitted %v, refused %v", admitted, refused)
	for i, a := range admitted {
		if a > 15*tenantLimit/10+4 || a == 0 {
			t.Errorf("second %d without controllers: %d admitted", i, a)
		}
	}
	w.cellgate(t, "start", "regionctl/*")
	w.healthy(t, 30*time.Second)
	admitted, refused = h.run(12, nil)
	t.Logf("with controllers again: admitted %v", admitted)
	h.withinLimit(admitted, refused)
}

// H1: a daily quota is the consumer's in the whole world, and neither proxies nor controllers forget what is spent.
func TestADailyQuotaIsSpentOnceWhoeverRestarts(t *testing.T) {
	w := quotaWorld(t, "--proxies", "1", "--bake", "500ms")
	key, err := os.ReadFile(filepath.Join(w.Dir, "api-key"))
	if err != nil {
		t.Fatal(err)
	}
	sample, err := os.ReadFile(filepath.Join(w.Dir, "sample.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	document := strings.Replace(string(sample), "{id: partner, rate_per_sec: 1000}", "{id: partner, rate_per_sec: 1000, quota_per_day: 300}", 1)
	w.mustRegionctl(t, "config", "publish", harness.WriteFile(t, "quota.yaml", document), "--wait")
	var after int // Retry-After of the last refusal
	tomorrow := func() bool {
		midnight := time.Now().UTC().Truncate(24 * time.Hour).Add(24 * time.Hour)
		return after >= int(time.Until(midnight).Seconds())-5
	}
	spend := func(node, n int) (admitted int) {
		c := w.cells()[node]
		for range n {
			req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://%s:%d/v1/reports/7", c.Address, c.HTTP), nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = "acme.gw.test"
			req.Header.Set("X-API-Key", strings.TrimSpace(string(key)))
			time.Sleep(5 * time.Millisecond)
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			switch res.StatusCode {
			case 200:
				admitted++
			case 429:
				after, _ = strconv.Atoi(res.Header.Get("Retry-After"))
				if why := res.Header.Get("X-Cellgate-Reason"); why != "quota_consumer" || after != 1 && !tomorrow() {
					t.Fatalf("429 %s, Retry-After %d", why, after)
				}
			default:
				t.Fatalf("status %d", res.StatusCode)
			}
		}
		return admitted
	}
	first := spend(0, 60) + spend(1, 60)
	if first < 110 { // a few may be refused before anything is known
		t.Errorf("%d of 120 admitted of a quota of 300", first)
	}
	w.cellgate(t, "kill", "proxy/*")
	w.cellgate(t, "stop", "regionctl/*")
	w.cellgate(t, "start", "regionctl/*")
	w.healthy(t, 30*time.Second)
	time.Sleep(2 * time.Second) // the nodes come back to their own controllers
	rest := spend(0, 120) + spend(1, 120)
	t.Logf("%d, and %d after the restarts, of 300", first, rest)
	if total := first + rest; total < 240 || total > 316 { // a few were on lease to what was killed, a few ahead of late answers
		t.Errorf("%d admitted of a quota of 300", total)
	}
	if !tomorrow() {
		t.Errorf("it is spent: Retry-After %d", after)
	}
}
