// Command soak runs a world and does random things to it while clients use it: kills, hangs, stops, good and bad versions,
// rollbacks, evacuations, denials, orders behind the glass, and the loss of cells, disks, controllers and stores. It watches throughout that what must never happen
// doesn't, and at the end that the world comes to rest by itself and holds no more than at the beginning.
//
//	make soak SOAK_TIME=10m SOAK_SEED=7
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/internal/load"
)

const (
	perRegion = 12 // clients of each protocol in every region
	clients   = 2 * 3 * perRegion
	inFlight  = clients / 2 // no client has more than one request under way
	every     = 400 * time.Millisecond
	hardLimit = 120 // requests per second of a cell; all of the load is 180, so that two of six cells carry it
	reported  = time.Minute
	converge  = 60 * time.Second
	idleFor   = 2 * time.Minute // after which idle connections are closed
)

func main() {
	bin := flag.String("bin", "bin", "directory of the commands")
	seed := flag.Uint64("seed", 0, "what is done to the world (0: a new one)")
	length := flag.Duration("time", time.Hour, "how long faults are injected, at most 24h")
	block := flag.String("net", "127.31.0.0/16", "address block of the world")
	flag.Parse()
	if flag.NArg() > 0 || *length <= 0 || *length > 24*time.Hour {
		fmt.Fprintln(os.Stderr, "soak: --time takes up to 24h, and there are no arguments")
		os.Exit(2)
	}
	if *seed == 0 {
		*seed = rand.Uint64N(1_000_000)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	code, err := soak(ctx, *bin, *seed, *length, *block)
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		code = 1
	}
	os.Exit(code)
}

func soak(ctx context.Context, bin string, seed uint64, length time.Duration, block string) (int, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "cellgate-soak-")
	if err != nil {
		return 1, err
	}
	fmt.Printf("soak: seed %d, %v, world %s\n", seed, length, dir)
	w, err := up(bin, filepath.Join(dir, "w"), "--net", block, "--cell-limit", fmt.Sprint(hardLimit))
	if err != nil {
		return 1, err
	}
	defer w.cellgate("down")
	docs, err := newLibrary(w)
	if err != nil {
		return 1, err
	}
	others, err := w.callers(docs.sample)
	if err != nil {
		return 1, err
	}
	r := &run{w: w, l: newLedger(), docs: docs, growth: newGrowth(w), others: others}
	r.watch = newWatch(w, r.l, docs, hardLimit)
	r.all(ctx, seed, length)
	if len(r.l.broken) == 0 {
		fmt.Printf("soak: passed with seed %d\n", seed)
		w.cellgate("down")
		return 0, os.RemoveAll(dir)
	}
	fmt.Printf("\nsoak: FAILED with seed %d; logs are in %s; what was broken and when:\n", seed, filepath.Join(w.dir, "logs"))
	for _, b := range r.l.broken {
		fmt.Println("  " + b)
	}
	fmt.Println("the last events:\n  " + strings.Join(r.l.events[max(0, len(r.l.events)-60):], "\n  "))
	return 1, nil
}

// run is one soak.
type run struct {
	w      *world
	l      *ledger
	docs   *library
	watch  *watch
	growth *growth
	others []caller
}

func (r *run) all(ctx context.Context, seed uint64, length time.Duration) {
	warm, cool := r.load(), 8*time.Second
	r.l.note("warming up")
	time.Sleep(cool) // so that pools and caches are what they are in use
	warm.Wait()
	time.Sleep(cool)
	before := r.growth.now()

	watching, done := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); r.watch.run(watching) }()
	go repeat(watching, 5*time.Second, r.growth.sample)
	go repeat(watching, reported, func(context.Context) { r.l.progress(r.watch.checked()) })
	traffic := r.load()
	faults, stop := context.WithTimeout(ctx, length)
	go func() {
		select {
		case <-r.l.over:
			stop()
		case <-faults.Done():
		}
	}()
	h := &chaos{w: r.w, l: r.l, c: r.watch, docs: r.docs, others: r.others}
	h.each(faults, rand.New(rand.NewPCG(seed, 2)))
	h.run(faults, rand.New(rand.NewPCG(seed, 1)))
	stop()
	r.l.note("no more faults")
	r.settles()
	time.Sleep(5 * time.Second)
	traffic.Wait()
	time.Sleep(settle + cool)
	after := r.grew(before)
	r.coldStart(h)
	done()
	<-ended
	r.sum(before, after)
}

// coldStart ends everything at once and starts it again. Nothing goes back: the watch goes on, and who is denied stays so.
func (r *run) coldStart(h *chaos) {
	who := r.others[0]
	denied := h.obtain("deny", append([]string{"add"}, who.flags...))
	for _, router := range r.watch.routers {
		r.watch.hit(router.name(), time.Minute)
	}
	r.l.inject("cold start", "of the whole world")
	was, err := r.w.status()
	if err != nil {
		r.l.fail("before the cold start: %v", err)
	}
	if err := syscall.Kill(r.w.supervisor(), syscall.SIGKILL); err != nil {
		r.l.fail("the supervisor: %v", err)
		return
	}
	out, code := "", 1
	for end := time.Now().Add(20 * time.Second); code != 0 && time.Now().Before(end); time.Sleep(500 * time.Millisecond) {
		out, code = r.w.cellgate(r.w.flags...)
	}
	if code != 0 {
		r.l.fail("cold start: exit %d: %s", code, out)
		return
	}
	r.w.weigh()
	r.settles()
	if gates := r.w.gates(); denied {
		h.holdTo(context.Background(), who, gates, "", 0)
	}
	if now, err := r.w.status(); err != nil || now.Version != was.Version {
		r.l.fail("version %d was %d before the cold start: %v", now.Version, was.Version, err)
	}
	time.Sleep(5 * time.Second) // for the watch
}

func (r *run) load() interface{ Wait() []load.Request } {
	c := load.Config{DNS: r.w.DNS, Host: r.w.Host, Port: r.w.Regions[0].Cells[0].HTTPS, Path: r.w.Path, Token: r.w.Tokens.Customer,
		Roots: r.w.roots, Every: every, Tagged: true, Each: func(q load.Request) { r.l.request(q); r.watch.request(q) }}
	second := c
	second.HTTP2 = true
	for _, region := range r.w.Regions {
		for i := range perRegion {
			c.Clients = append(c.Clients, subnet(region.Clients[0], i))
			second.Clients = append(second.Clients, subnet(region.Clients[0], perRegion+i))
		}
	}
	return both{load.Start(c), load.Start(second)}
}

// subnet is the i-th client's: spread, so that a hash of some is like a hash of many.
func subnet(region netip.Prefix, i int) netip.Prefix {
	base := region.Addr().As4()
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{base[0], base[1], byte(1 + i*3), 0}), 24)
}

type both struct{ h1, h2 *load.Run }

func (b both) Wait() []load.Request { return append(b.h1.Wait(), b.h2.Wait()...) }

// settles waits until the world is whole: all run, all serve the newest version, every controller and router agree.
func (r *run) settles() {
	began, missing := time.Now(), ""
	for time.Since(began) < converge {
		if missing = r.missing(); missing == "" {
			r.l.note("at rest after %v", time.Since(began).Round(100*time.Millisecond))
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
	r.l.fail("not at rest %v after the last fault: %s", converge, missing)
}

func (r *run) missing() string {
	all, err := r.w.processes()
	if err != nil {
		return err.Error()
	}
	for _, p := range all {
		if p.PID == 0 {
			return p.name() + " is down"
		}
	}
	s, err := r.w.status()
	if err != nil {
		return err.Error()
	}
	if !s.settled() {
		return fmt.Sprintf("the rollout of version %d is %s: %s", s.Rollout.Version, s.Rollout.State, s.Rollout.Why)
	}
	nodes := 0
	for _, c := range r.w.cells() {
		nodes += len(c.Proxies)
	}
	if len(s.Nodes) != nodes {
		return fmt.Sprintf("%d of %d nodes are listed", len(s.Nodes), nodes)
	}
	for _, n := range s.Nodes {
		if n.Served != s.Version {
			return fmt.Sprintf("%s serves %d, not %d", n.ID, n.Served, s.Version)
		}
	}
	for _, c := range s.Cells {
		if c.Healthy == nil || !*c.Healthy || c.State != "active" {
			return fmt.Sprintf("%s is %s, healthy %s", c.ID, c.State, text(c.Healthy))
		}
	}
	return r.disagree()
}

func text(b *bool) string {
	if b == nil {
		return "unknown"
	}
	return fmt.Sprint(*b)
}

// disagree names a router that serves another plan than the rest.
func (r *run) disagree() string {
	var first string
	for i, router := range r.watch.routers {
		raw, err := r.w.admin(r.w.adminOf(router), "/plan")
		var page struct {
			Plan struct{ Epoch, Number uint64 } `json:"plan"`
		}
		if err != nil || json.Unmarshal(raw, &page) != nil {
			return fmt.Sprintf("%s: no plan: %v", router.name(), err)
		}
		if now := fmt.Sprint(page.Plan); i == 0 {
			first = now
		} else if now != first {
			return fmt.Sprintf("%s has plan %s, not %s", router.name(), now, first)
		}
	}
	return ""
}

// grew measures the idle world and compares it with what it was before.
func (r *run) grew(before []sized) []sized {
	after := r.growth.now()
	for end := time.Now().Add(idleFor); len(r.growth.idle(before, after)) > 0 && time.Now().Before(end); after = r.growth.now() {
		time.Sleep(5 * time.Second)
	}
	for _, g := range append(r.growth.idle(before, after), r.growth.trends()...) {
		r.l.fail("growth: %s", g)
	}
	return after
}

func (r *run) sum(before, after []sized) {
	for _, text := range logs(r.w.dir) {
		r.l.fail("log: %s", text)
	}
	l := r.l
	fmt.Printf("\n%d requests, %d failed (%d unexplained or other breaches), %d repeated; %s, %d generations in %v\n",
		l.requests, l.failed, len(l.broken), l.repeated, r.watch.checked(), len(r.docs.all), time.Since(l.began).Round(time.Second))
	for _, kind := range slices.Sorted(maps.Keys(l.injected)) {
		fmt.Printf("  %-16s %d\n", kind, l.injected[kind])
	}
	fmt.Printf("the machine gave this process no turn for %v: %d times\n", starvation, r.watch.stalls)
	fmt.Println("failures by what explains them:")
	for _, why := range slices.Sorted(maps.Keys(l.spent)) {
		fmt.Printf("  %-60s %d\n", why, l.spent[why])
	}
	for i, p := range after {
		if i < len(before) && (p.Role != after[max(i-1, 0)].Role || i == 0) {
			fmt.Printf("  %s: %v at first, %v at last\n", p.name(), before[i].size, p.size)
		}
	}
}

func decode(text string, v any) error { return json.Unmarshal([]byte(text), v) }
