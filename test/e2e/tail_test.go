//go:build long

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/internal/loopback"
	"github.com/cellgate/cellgate/test/harness"
)

// deaf is a client that ignores DNS: it asks one address for ever, with connections that it keeps.
type deaf struct {
	mu     sync.Mutex
	tally  map[int]int
	faults []string
	stop   context.CancelFunc
	wg     sync.WaitGroup
}

func (w *world) deaf(t *testing.T, at netip.AddrPort, two bool) *deaf {
	ctx, cancel := context.WithCancel(context.Background())
	d := &deaf{tally: map[int]int{}, stop: cancel}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(!two)
	protocols.SetHTTP2(two)
	tr := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: w.roots(t), ServerName: w.Host},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at.String())
		}}
	for i := range 4 {
		d.wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				d.ask(&http.Client{Transport: tr, Timeout: 10 * time.Second}, w, (i+n)%2 == 0)
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	t.Cleanup(func() { cancel(); d.wg.Wait(); tr.CloseIdleConnections() })
	return d
}

func (d *deaf) ask(c *http.Client, w *world, read bool) {
	method, path, body := http.MethodGet, w.Path, io.Reader(nil)
	if !read {
		method, path, body = http.MethodPost, "/v1/orders", strings.NewReader(strings.Repeat("x", 1000))
	}
	req, err := http.NewRequest(method, "https://"+w.Host+path, body)
	if err != nil {
		panic(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.Tokens.Customer)
	res, err := c.Do(req)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		d.faults = append(d.faults, fmt.Sprintf("%s: %v", method, err))
		return
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	d.tally[res.StatusCode]++
}

// metric sums a metric of a node over all its series whose labels contain part.
func (w *world) metric(t *testing.T, admin, name, part string) (sum float64) {
	t.Helper()
	req, err := http.NewRequest(http.MethodGet, "https://"+admin+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+w.Tokens.Admin)
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots(t)}, DisableKeepAlives: true}
	res, err := (&http.Client{Transport: tr, Timeout: 5 * time.Second}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	for lines := bufio.NewScanner(res.Body); lines.Scan(); {
		series, value, _ := strings.Cut(lines.Text(), "} ")
		if rest, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			series, value = name, rest
		}
		if base, _, _ := strings.Cut(series, "{"); base != name || !strings.Contains(series, part) {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatalf("%q: %v", lines.Text(), err)
		}
		sum += v
	}
	return sum
}

func (w *world) cellMetric(t *testing.T, c cell, name, part string) (sum float64) {
	for _, p := range c.Proxies {
		sum += w.metric(t, p.Admin, name, part)
	}
	return sum
}

func tailWorld(t *testing.T) *world {
	w, err := up(harness.Bin(t, "cellgate"), filepath.Join(t.TempDir(), "w"), "--net", loopback.For(t).String(), "--regions", "2")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { harness.Run(t, "cellgate", "down", "--dir", w.Dir) })
	return w.read(t)
}

// An evacuated cell still gets requests from clients that don't follow DNS. Once the plan has dropped it, other cells
// execute them; nobody notices. A restarted proxy with an empty disk is then served by its cell, with everything dead.
func TestTailOfAnEvacuatedCellIsServedElsewhereAndAnEmptyDiskByTheCell(t *testing.T) {
	w := tailWorld(t)
	target := w.Regions[0].Cells[0]
	at := netip.AddrPortFrom(target.Address, target.HTTPS)
	d1, d2 := w.deaf(t, at, false), w.deaf(t, at, true)
	time.Sleep(time.Second)
	w.mustRegionctl(t, "evacuate", target.ID, "--reason", "e2e", "--over", "1s", "--expires", "10m")
	harness.Eventually(t, 20*time.Second, "every proxy of the cell forwards", func() bool {
		return w.cellMetric(t, target, "cellgate_proxy_forwarding", "") == float64(len(target.Proxies))
	})
	executed := func() float64 { return w.cellMetric(t, target, "cellgate_proxy_requests_total", `route="`) }
	time.Sleep(time.Second) // what was under way ends
	before, handed := executed(), w.cellMetric(t, target, "cellgate_proxy_forwarded_total", "handed")
	if before == 0 {
		t.Fatal("no request was executed by the cell before its evacuation")
	}
	time.Sleep(3 * time.Second)
	if after := executed(); after != before {
		t.Errorf("the evacuated cell executed %v requests after the plan dropped it", after-before)
	}
	more, received := w.cellMetric(t, target, "cellgate_proxy_forwarded_total", "handed")-handed, 0.0
	for _, c := range w.cells() {
		received += w.cellMetric(t, c, "cellgate_proxy_forwards_received_total", "served")
	}
	if more < 30 || received < more {
		t.Errorf("%v requests were handed on in 3 s, %v received in all", more, received)
	}

	w.cellgate(t, "stop", "regionctl/*", "etcd/*")
	victim := "proxy/" + target.Proxies[0].ID
	w.cellgate(t, "stop", victim)
	data := filepath.Join(w.Dir, "data", "proxy", strings.ReplaceAll(target.Proxies[0].ID, "/", "-"))
	if _, err := os.Stat(data); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(data); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	w.cellgate(t, "start", victim)
	own := netip.AddrPortFrom(target.Proxies[0].Address, target.HTTPS)
	harness.Eventually(t, 10*time.Second, "the empty proxy is ready", func() bool { return w.readyAt(t, own) })
	t.Logf("a proxy with an empty disk was ready %v after its start, with every regionctl and etcd dead", time.Since(began).Round(time.Millisecond))
	if a := w.get(t, own, "GET", w.Host, w.Path, "Authorization", "Bearer "+w.Tokens.Customer); a.Status != 200 {
		t.Errorf("it answers %d %s", a.Status, a.Body)
	}
	for name, d := range map[string]*deaf{"h1": d1, "h2": d2} {
		d.stop()
		d.wg.Wait()
		t.Logf("%s: %v", name, d.tally)
		if len(d.faults) > 0 || len(d.tally) != 1 || d.tally[200] < 200 {
			t.Errorf("%s: answers %v, faults %.500q", name, d.tally, d.faults)
		}
	}
}

func (w *world) readyAt(t *testing.T, at netip.AddrPort) bool {
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots(t), ServerName: w.Host}, DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at.String())
		}}
	res, err := (&http.Client{Transport: tr, Timeout: 2 * time.Second}).Get("https://" + w.Host + "/.well-known/cellgate/ready")
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}
