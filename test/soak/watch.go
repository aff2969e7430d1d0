package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/internal/load"
)

// watch holds the invariants against the world until ctx ends.
type watch struct {
	w       *world
	l       *ledger
	docs    *library
	plain   *http.Client
	limit   int // a cell's hard maximum, requests per second
	routers []process

	mu     sync.Mutex
	late   time.Time              // when the machine last left this process without a turn for too long
	stalls int                    // how often
	killed map[string][]time.Time // process name → when it was killed
	away   map[string]time.Time   // router → until when it may be silent
	counts map[netip.Addr]map[int64]int
	fresh  map[string]time.Time // process name → when its disk was emptied

	probes, answers, plans, asked atomic.Int64 // what was checked
}

func (c *watch) checked() string {
	return fmt.Sprintf("checked: %d nodes' rules, %d DNS answers, %d plans, %d denied callers", c.probes.Load(), c.answers.Load(), c.plans.Load(), c.asked.Load())
}

func newWatch(w *world, l *ledger, docs *library, limit int) *watch {
	c := &watch{w: w, l: l, docs: docs, limit: limit, killed: map[string][]time.Time{}, away: map[string]time.Time{}, counts: map[netip.Addr]map[int64]int{}, fresh: map[string]time.Time{},
		plain: &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}
	all, _ := w.processes()
	for _, p := range all {
		if p.Role == "globalrouter" {
			c.routers = append(c.routers, p)
		}
	}
	return c
}

func (c *watch) run(ctx context.Context) {
	var wg sync.WaitGroup
	for every, check := range map[time.Duration]func(context.Context){
		150 * time.Millisecond: c.names(), 500 * time.Millisecond: c.planOrder(), 5 * time.Second: c.versions(), pulseEvery: c.pulse(),
	} {
		wg.Add(1)
		go func() { defer wg.Done(); repeat(ctx, every, check) }()
	}
	for _, cell := range c.w.cells() {
		for _, p := range cell.Proxies {
			node := &nodeWatch{c: c, name: "proxy/" + p.ID, admin: p.Admin, at: netip.AddrPortFrom(p.Address, cell.HTTP)}
			wg.Add(1)
			go func() { defer wg.Done(); repeat(ctx, 1200*time.Millisecond, node.check) }()
		}
	}
	wg.Wait()
}

// pulse notes when this process gets no turn in time: then others got none either, and their silence proves nothing.
func (c *watch) pulse() func(context.Context) {
	last := time.Now()
	return func(context.Context) {
		now := time.Now()
		if now.Sub(last) > pulseEvery+starvation {
			c.mu.Lock()
			c.late = now
			c.stalls++
			c.mu.Unlock()
		}
		last = now
	}
}

const (
	pulseEvery = 100 * time.Millisecond
	starvation = 400 * time.Millisecond
)

func (c *watch) starved() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Since(c.late) < 6*time.Second
}

func repeat(ctx context.Context, every time.Duration, check func(context.Context)) {
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			check(ctx)
		}
	}
}

// hit is told of every process that is about to die, hang or stop, and for how long at most it is away.
func (c *watch) hit(name string, away time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.killed[name] = append(c.killed[name], now)
	if until := now.Add(away); until.After(c.away[name]) {
		c.away[name] = until
	}
}

// hits is how often a process was hit lately.
func (c *watch) hits(name string, lately time.Duration) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, at := range c.killed[name] {
		if time.Since(at) < lately {
			n++
		}
	}
	return n
}

func (c *watch) isAway(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return time.Now().Before(c.away[name])
}

// emptied is told of every process that is about to start without a memory.
func (c *watch) emptied(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fresh[name] = time.Now()
}

// isNew says whether the process has had its disk for so short a time that it may not know everything yet.
func (c *watch) isNew(name string) bool { return time.Since(c.born(name)) < toldIn }

func (c *watch) born(name string) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.fresh[name]
}

// whoNames gives a router that is up and sends some client to the address; empty = none.
func (c *watch) whoNames(ctx context.Context, a netip.Addr) string {
	for i, r := range c.routers {
		for _, region := range c.w.Regions {
			for n := range 2 * perRegion {
				addrs, _, err := load.Lookup(ctx, []string{c.w.DNS[i]}, c.w.Host, subnet(region.Clients[0], n))
				if err == nil && slices.Contains(addrs, a) {
					return r.name()
				}
			}
		}
	}
	return ""
}

// request counts what a cell gets.
func (c *watch) request(q load.Request) {
	if !q.Cell.IsValid() {
		return
	}
	const window = 5
	second := q.Start.Unix()
	c.mu.Lock()
	defer c.mu.Unlock()
	per := c.counts[q.Cell]
	if per == nil {
		per = map[int64]int{}
		c.counts[q.Cell] = per
	}
	per[second]++
	sum := 0
	for s := range per {
		if s < second-60 {
			delete(per, s)
		} else if s > second-window && s <= second {
			sum += per[s]
		}
	}
	if sum == c.limit*window+1 {
		go c.l.fail("cell %s got more than its hard maximum of %d requests per second for %d s, while others had room", q.Cell, c.limit, window)
	}
}

// names: every steered name always has an address, and it is a cell's.
func (c *watch) names() func(context.Context) {
	var cells []netip.Addr
	for _, x := range c.w.cells() {
		cells = append(cells, x.Address)
	}
	hosts := []string{c.w.Host, "acme.gw.test", "globex.gw.test"}
	turn, turns := 0, map[string]threads{}
	return func(ctx context.Context) {
		turn++
		i := turn % len(c.routers)
		name, server, host := c.routers[i].name(), c.w.DNS[i], hosts[rand.IntN(len(hosts))]
		was := turns[name]
		if was == nil {
			was = waited(c.w.pid(name))
		}
		base := c.w.Regions[rand.IntN(len(c.w.Regions))].Clients[0].Addr().As4()
		client := netip.PrefixFrom(netip.AddrFrom4([4]byte{base[0], base[1], byte(rand.IntN(256)), 0}), 24)
		lookup, cancel := context.WithTimeout(ctx, 4*time.Second)
		addrs, _, err := load.Lookup(lookup, []string{server}, host, client)
		cancel()
		if ctx.Err() != nil || c.isAway(name) {
			return
		}
		c.answers.Add(1)
		turns[name] = waited(c.w.pid(name))
		if err != nil && (strings.Contains(err.Error(), "no address") || !c.starved() && turns[name].since(was) < starvation) {
			c.l.fail("%s at %s for %s: %v", host, name, client, err)
		}
		for _, a := range addrs {
			if !slices.Contains(cells, a) {
				c.l.fail("%s at %s for %s: %s is no cell", host, name, client, a)
			}
		}
	}
}

// order is what never goes back.
type order struct{ epoch, number uint64 }

func (o order) before(p order) bool {
	return o.epoch < p.epoch || o.epoch == p.epoch && o.number < p.number
}

// planOrder: the plan that a router serves never gets older, whatever dies, and a number stands for one plan for ever.
func (c *watch) planOrder() func(context.Context) {
	last, contents := map[string]order{}, map[order]string{}
	return func(context.Context) {
		for _, r := range c.routers {
			raw, err := c.w.admin(c.w.adminOf(r), "/plan")
			if err != nil {
				continue // it is away, or has just begun
			}
			var page struct {
				Plan json.RawMessage `json:"plan"`
			}
			var plan struct{ Epoch, Number uint64 }
			if err = json.Unmarshal(raw, &page); err == nil {
				err = json.Unmarshal(page.Plan, &plan)
			}
			if err != nil {
				c.l.fail("%s: /plan: %v", r.name(), err)
				continue
			}
			now, content := order{plan.Epoch, plan.Number}, fmt.Sprintf("%x", sha256.Sum256(page.Plan))
			if was, ok := contents[now]; ok && was != content {
				c.l.fail("%s has another plan %v than was seen before", r.name(), now)
			}
			contents[now] = content
			if was := last[r.name()]; now.before(was) || now.number < was.number {
				c.l.fail("%s went back from plan %v to %v", r.name(), was, now)
			}
			last[r.name()] = now
			c.plans.Add(1)
		}
	}
}

// versions: a number that was given stands for one content for ever.
func (c *watch) versions() func(context.Context) {
	sums, newest := map[uint64]string{}, uint64(0)
	return func(context.Context) {
		out, code := c.w.regionctl("versions", "-o", "json")
		var list []struct {
			Number   uint64 `json:"number"`
			Checksum string `json:"checksum"`
			Created  string `json:"created"`
		}
		if code != 0 || json.Unmarshal([]byte(out), &list) != nil {
			return
		}
		most := uint64(0)
		for _, v := range list {
			most = max(most, v.Number)
			if was, ok := sums[v.Number]; ok && was != v.Checksum+v.Created {
				c.l.fail("version %d was %s and is %s", v.Number, was, v.Checksum+v.Created)
			}
			sums[v.Number] = v.Checksum + v.Created
		}
		if most < newest {
			c.l.fail("the newest version was %d and is %d", newest, most)
		}
		newest = max(newest, most)
	}
}

// nodeWatch follows one proxy.
type nodeWatch struct {
	c      *watch
	name   string
	admin  string
	at     netip.AddrPort
	target order
	served uint64
	back   time.Time // since when it has served less than that
	born   time.Time // when its disk was last emptied
}

type nodePage struct {
	Version   uint64 `json:"version"`
	Checksum  string `json:"checksum"`
	Epoch     uint64 `json:"target_epoch"`
	Number    uint64 `json:"target_number"`
	Evacuated bool   `json:"cell_evacuated"`
	Forwards  uint64 `json:"forwards_by_plan"` // for a moment longer than the order stands
}

// elsewhere says whether other cells may answer for the node, by the version that they serve.
func (p nodePage) elsewhere() bool { return p.Evacuated || p.Forwards != 0 }

// renumbered is how long a node may serve old contents by their old number: a rollback puts them in place at once, and gives
// them a new number as soon as there is a leader with a store.
const renumbered = time.Minute

func (n *nodeWatch) neverBack(version uint64) {
	switch {
	case version >= n.served:
		n.served, n.back = version, time.Time{}
	case n.c.hits(n.name, time.Minute) >= 2: // two crashes within 10 s of an activation: the poison rule
		n.served = version
	case n.back.IsZero():
		n.back = time.Now()
	case time.Since(n.back) > renumbered:
		n.c.l.fail("%s went back from version %d to %d, and stays", n.name, n.served, version)
		n.served = version
	}
}

func (n *nodeWatch) page() (p nodePage, ok bool) {
	raw, err := n.c.w.admin(n.admin, "/config")
	return p, err == nil && json.Unmarshal(raw, &p) == nil && p.Version > 0
}

// check: what the node applies never goes back, and it answers by the rules of the version that it says it serves.
func (n *nodeWatch) check(ctx context.Context) {
	before, ok := n.page()
	if !ok {
		return
	}
	if born := n.c.born(n.name); born != n.born {
		n.born, n.target, n.served = born, order{}, 0
	}
	if target := (order{before.Epoch, before.Number}); target != (order{}) {
		if target.before(n.target) {
			n.c.l.fail("%s went back from target %v to %v", n.name, n.target, target)
		}
		n.target = target
	}
	n.neverBack(before.Version)
	g := n.c.docs.of(before.Checksum)
	if g == nil || before.elsewhere() {
		return // the world's first version, or a cell whose requests are answered elsewhere
	}
	own, _ := n.ask(ctx, g.path())
	which, body := n.ask(ctx, "/v1/soak/which")
	wrong := 404
	other := n.c.docs.other(g)
	if other != nil {
		wrong, _ = n.ask(ctx, other.path())
	}
	after, ok := n.page()
	if !ok || after.Version != before.Version || after.Checksum != before.Checksum || after.elsewhere() {
		return
	}
	n.c.probes.Add(1)
	if own == 404 {
		n.c.l.fail("%s serves version %d (generation %d) and does not know its route", n.name, before.Version, g.number)
	}
	if wrong == 200 {
		n.c.l.fail("%s serves version %d (generation %d) and answers by a route of generation %d", n.name, before.Version, g.number, other.number)
	}
	if which == 404 || which == 200 && !strings.Contains(body, `"backend":"`+g.upstream()) {
		n.c.l.fail("%s serves version %d (generation %d): /v1/soak/which should go to %s: %d %.200s", n.name, before.Version, g.number, g.upstream(), which, body)
	}
}

// ask asks the node itself; status 0 = no answer.
func (n *nodeWatch) ask(ctx context.Context, path string) (int, string) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.at.String()+path, nil)
	if err != nil {
		return 0, ""
	}
	req.Host = n.c.w.Host
	res, err := n.c.plain.Do(req)
	if err != nil {
		return 0, ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return 0, ""
	}
	return res.StatusCode, string(body)
}

// logs says what no log may hold.
func logs(dir string) []string {
	var found []string
	files, _ := filepath.Glob(filepath.Join(dir, "logs", "*"))
	for _, f := range files {
		raw, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, word := range []string{"panic: ", "panic on a connection", "DATA RACE", "fatal error: ", "unexpected signal"} {
			if i := bytes.Index(raw, []byte(word)); i >= 0 {
				found = append(found, fmt.Sprintf("%s: %s", filepath.Base(f), raw[i:min(len(raw), i+1500)]))
			}
		}
	}
	return found
}
