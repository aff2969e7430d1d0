package drill

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/dnsask"
	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
)

// clientsPerRegion is how many clients each region has in a drill, each in a subnet of its own.
const clientsPerRegion = 12

func (s *session) clients() []netip.Prefix {
	var all []netip.Prefix
	for _, r := range s.at.Regions {
		if len(r.Clients) == 0 {
			continue
		}
		base := r.Clients[0].Masked().Addr().As4()
		for i := range clientsPerRegion {
			all = append(all, netip.PrefixFrom(netip.AddrFrom4([4]byte{base[0], base[1], byte(1 + i*3), 0}), 24))
		}
	}
	return all
}

// load starts traffic of half HTTP/1.1 and half HTTP/2 clients, share of the ordered rate, for a host and path.
func (s *session) load(share float64, path, token string) (requests func() []load.Request) {
	clients := s.clients()
	c := load.Config{
		DNS: s.at.DNS, Host: s.at.Host, Port: s.at.Regions[0].Cells[0].HTTPS, Path: path, Token: token, Roots: s.at.Roots,
		Every: time.Duration(float64(len(clients)) / (s.o.Rate * share) * float64(time.Second)),
	}
	var runs [2]*load.Run
	for i := range runs {
		c.HTTP2, c.Clients = i == 1, nil
		for k, client := range clients {
			if k%2 == i {
				c.Clients = append(c.Clients, client)
			}
		}
		runs[i] = load.Start(c)
	}
	s.runs = append(s.runs, runs[:]...)
	return func() []load.Request { return append(runs[0].Requests(), runs[1].Requests()...) }
}

// begin starts the load and the watch of the answers, and lets both settle.
func (s *session) begin(ctx context.Context) (requests func() []load.Request, err error) {
	s.say("load: %.0f requests per second from %d clients", s.o.Rate, len(s.clients()))
	requests = s.load(1, s.at.Path, s.at.Customer)
	s.watch = startWatch(s.at.DNS, s.at.Host, s.clients())
	if !pause.For(ctx, warmUp) {
		return nil, ctx.Err()
	}
	for _, q := range requests() {
		if q.Failed() && !s.o.Force {
			return nil, fmt.Errorf("the load fails before anything is broken: status %d from %s: %v", q.Status, q.Cell, q.Err)
		}
	}
	return requests, s.watch.settled()
}

// failed counts failed requests that keep says.
func failed(all []load.Request, keep func(load.Request) bool) int {
	n := 0
	for _, q := range all {
		if q.Failed() && keep(q) {
			n++
		}
	}
	return n
}

// inFlight says whether the request was under way at that moment, or began so shortly after that its client could not know.
func inFlight(q load.Request, at time.Time) bool {
	return q.Start.Before(at.Add(100*time.Millisecond)) && q.End().After(at)
}

// watch asks every router for every client's answer, over and over.
type watch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu      sync.Mutex
	samples []sample // at most maxSamples, the oldest go first, but never the first
}

// sample is what the routers said at one time. A router that said nothing is absent.
type sample struct {
	at   time.Time
	told map[question]netip.Addr
}

type question struct {
	router string
	client netip.Prefix
}

const (
	sampleEvery = 300 * time.Millisecond
	maxSamples  = 3000
)

func startWatch(routers []string, host string, clients []netip.Prefix) *watch {
	ctx, cancel := context.WithCancel(context.Background())
	w := &watch{cancel: cancel}
	w.done.Go(func() {
		for {
			s := takeSample(ctx, routers, host, clients)
			w.mu.Lock()
			if w.samples = append(w.samples, s); len(w.samples) > maxSamples {
				w.samples = slices.Delete(w.samples, 1, 2)
			}
			w.mu.Unlock()
			if !pause.For(ctx, sampleEvery) {
				return
			}
		}
	})
	return w
}

func takeSample(ctx context.Context, routers []string, host string, clients []netip.Prefix) sample {
	s := sample{at: time.Now(), told: map[question]netip.Addr{}}
	for _, router := range routers {
		for _, c := range clients {
			addrs, _, err := dnsask.A(ctx, router, host, c)
			if err != nil {
				addrs, _, err = dnsask.A(ctx, router, host, c) // UDP loses packets
			}
			if err != nil {
				break // this router is away
			}
			if len(addrs) > 0 {
				s.told[question{router, c}] = addrs[0]
			}
		}
	}
	return s
}

func (w *watch) stop() {
	w.cancel()
	w.done.Wait()
}

func (w *watch) all() []sample {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.samples)
}

// before is the last sample taken by then.
func (w *watch) before(then time.Time) sample {
	var last sample
	for _, s := range w.all() {
		if s.at.Before(then) {
			last = s
		}
	}
	return last
}

// settled says whether the answers stand still to begin with.
func (w *watch) settled() error {
	all := w.all()
	if len(all) < 2 || len(all[0].told) == 0 {
		return fmt.Errorf("the routers answer nothing")
	}
	if !maps.Equal(all[0].told, all[len(all)-1].told) {
		return fmt.Errorf("the DNS answers are moving already: wait until the world has come to rest")
	}
	return nil
}

// changed counts questions of bystanders that were answered otherwise than before the moment, up to another.
func (w *watch) changed(from, to time.Time, lost ...netip.Addr) int {
	was := w.before(from).told
	moved := map[question]bool{}
	for _, s := range w.all() {
		if s.at.Before(from) || s.at.After(to) {
			continue
		}
		for q, a := range s.told {
			if old, ok := was[q]; ok && a != old && !slices.Contains(lost, old) {
				moved[q] = true
			}
		}
	}
	return len(moved)
}

// await waits until a sample taken after the moment satisfies is, and says how long after the moment that was. When it takes
// longer than within, the time waited is given and ok is false.
func (w *watch) await(ctx context.Context, from time.Time, within time.Duration, is func(sample) bool) (took time.Duration, ok bool) {
	for {
		for _, s := range w.all() {
			if s.at.After(from) && is(s) {
				return s.at.Sub(from), true
			}
		}
		if took = time.Since(from); took > within || !pause.For(ctx, 100*time.Millisecond) {
			return took, false
		}
	}
}

// without says that no router names any of the addresses.
func without(lost []netip.Addr) func(sample) bool {
	return func(s sample) bool {
		for _, a := range s.told {
			if slices.Contains(lost, a) {
				return false
			}
		}
		return len(s.told) > 0
	}
}

// doors are clients of single nodes, one each, that keep their connections.
type doors struct {
	mu  sync.Mutex
	all map[string]*http.Client
}

func (d *doors) to(s *session, at netip.AddrPort, name string) *http.Client {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.all == nil {
		d.all = map[string]*http.Client{}
	}
	if d.all[at.String()] == nil {
		d.all[at.String()] = &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: s.at.Roots, ServerName: name},
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, at.String())
			},
		}}
	}
	return d.all[at.String()]
}

func (d *doors) close() {
	for _, c := range d.all {
		c.CloseIdleConnections()
	}
}

// ask sends one GET to a node itself; 0 when it doesn't answer.
func (s *session) ask(ctx context.Context, n Node, host, path string, header ...string) (status int) {
	status, _ = s.fetch(ctx, n.At, host, "https://"+host+path, header...)
	return status
}

// fetch gets a document; of the body it keeps 4 MiB.
func (s *session) fetch(ctx context.Context, at netip.AddrPort, name, url string, header ...string) (status int, body []byte) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := s.doors.to(s, at, name).Do(req)
	if err != nil {
		return 0, nil
	}
	defer res.Body.Close()
	body, err = io.ReadAll(io.LimitReader(res.Body, 4<<20))
	if err != nil {
		return 0, nil
	}
	return res.StatusCode, body
}

// admin asks a node's admin server.
func (s *session) admin(ctx context.Context, n Node, path string) (body []byte, ok bool) {
	status, body := s.fetch(ctx, n.Admin, n.Admin.Addr().String(), "https://"+n.Admin.String()+path, "Authorization", "Bearer "+s.at.Admin)
	return body, status == http.StatusOK
}

// served is the version that a node says it serves; 0 when it doesn't answer.
func (s *session) served(ctx context.Context, n Node) uint64 {
	body, ok := s.admin(ctx, n, "/config")
	var v struct {
		Version uint64 `json:"version"`
	}
	if !ok || json.Unmarshal(body, &v) != nil {
		return 0
	}
	return v.Version
}

// everyNode runs do for all nodes at once.
func (s *session) everyNode(do func(Node)) {
	var all sync.WaitGroup
	for _, n := range s.at.nodes() {
		all.Go(func() { do(n) })
	}
	all.Wait()
}
