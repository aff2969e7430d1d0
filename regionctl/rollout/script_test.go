package rollout

import (
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/regionctl/rollout/judge"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/snapshot"
)

var rewrite = flag.Bool("rewrite", false, "rewrite the expectations in testdata")

// world plays nodes, a store and a leader around the state machine. One tick is a second.
type world struct {
	t     testing.TB
	topo  cells.Topology
	cfg   Config
	now   time.Time
	began time.Time

	state  State
	stored []byte // what the store holds
	// targets are those of the stored state, at rev; nodes act on these alone.
	targets []Target
	rev     uint64
	order   Order // the last one
	orders  int
	ev      Evidence
	memory  *judge.Memory
	nodes   map[cells.NodeID]*node
	head    uint64
	// contents[n] is what version n holds, named by the number that held it first.
	contents map[uint64]uint64
	bad      map[uint64]map[string]float64 // contents → faults
	change   map[uint64]report.Change      // contents → what nodes say of them beside those before
	nack     map[uint64]string
	crashes  map[uint64]bool    // contents that kill a node that loads them
	services map[string]float64 // shares of the traffic; none = nodes don't tell strata
	common   map[string]float64 // faults of everybody
	rps      float64
	evacs    []cells.Evacuation
	deaf     map[cells.RegionID]bool // no report of it gets through
	printed  uint64                  // Rev up to which decisions were printed
	logged   []Decision

	ticks, crashAt int          // the leader dies after this tick; 0 never
	decided        map[int]bool // ticks with decisions
}

type node struct {
	up     bool
	boot   int
	seq    uint64
	served uint64
	known  uint64
	nack   string
	since  time.Time
	carry  map[string]float64 // what was rounded off, by count
}

func newWorld(t testing.TB) *world {
	begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	return &world{
		t: t, now: begin, began: begin, nodes: map[cells.NodeID]*node{}, contents: map[uint64]uint64{},
		bad: map[uint64]map[string]float64{}, change: map[uint64]report.Change{}, nack: map[uint64]string{}, crashes: map[uint64]bool{}, deaf: map[cells.RegionID]bool{}, decided: map[int]bool{},
		ev: Evidence{Since: begin, Nodes: map[cells.NodeID]Node{}, Probes: map[cells.CellID]health.Status{}},
	}
}

func (w *world) build(regions, perRegion, perCell int) {
	for r := range regions {
		region := cells.Region{ID: cells.RegionID(fmt.Sprint("r", r+1))}
		for c := range perRegion {
			cell := cells.Cell{ID: cells.CellID(fmt.Sprintf("%s/%c", region.ID, 'a'+c))}
			for n := range perCell {
				id := cells.NodeID(fmt.Sprintf("%s/%d", cell.ID, n+1))
				cell.Nodes = append(cell.Nodes, cells.Node{ID: id})
				w.nodes[id] = &node{up: true, boot: 1}
			}
			w.ev.Probes[cell.ID] = health.Healthy
			region.Cells = append(region.Cells, cell)
		}
		w.topo.Regions = append(w.topo.Regions, region)
	}
	w.ev.Topology = w.topo
}

// tick lets nodes act on the stored state and report, and the leader judge and store.
func (w *world) tick() {
	w.now = w.now.Add(time.Second)
	w.ticks++
	targets := map[cells.NodeID]uint64{}
	for _, target := range w.targets {
		for id := range w.nodes {
			if v, ok := target.For(id); ok && id.Region() == target.Region {
				targets[id] = v.Number
			}
		}
	}
	for id, n := range w.nodes {
		if n.up {
			n.take(targets[id], w)
			if !w.deaf[id.Region()] {
				w.ev.Nodes[id] = Node{Report: w.report(id, n), At: w.now}
			}
		}
	}
	w.ev.Evacuations, w.ev.Rounds = w.evacs, w.rounds()
	w.state = Step(w.state, w.ev, w.cfg, w.now)
	if w.state.Want != nil {
		w.persist()
		w.head++
		w.contents[w.head] = w.contents[w.state.Want.Contents.Number]
		var err error
		if w.state, err = w.state.Allocated(version(w.head), w.now); err != nil {
			w.t.Fatal(err)
		}
	}
	w.persist()
	if w.ticks == w.crashAt {
		w.crash()
	}
}

// rounds is what the leader's memory makes of the reports.
func (w *world) rounds() []*judge.Round {
	if w.memory == nil {
		w.memory = judge.NewMemory(judge.Window(w.cfg.defaults().Bake))
	}
	for _, n := range w.ev.Nodes {
		w.memory.Hear(n.Report, n.At)
	}
	return w.memory.Rounds(w.now)
}

// persist stores what must be stored before it is acted on, and nothing else.
func (w *world) persist() {
	if w.rev == w.state.Rev {
		return
	}
	w.decided[w.ticks] = true
	for _, d := range w.state.Log {
		if !slices.Contains(w.logged, d) {
			w.logged = append(w.logged, d)
		}
	}
	b, err := Encode(w.state)
	if err != nil {
		w.t.Fatal(err)
	}
	stored, err := Decode(b)
	if err != nil {
		w.t.Fatal(err)
	}
	w.stored, w.rev, w.targets = b, stored.Rev, stored.Targets(w.topo, 1)
}

// crash is a new leader, who has nothing but the store.
func (w *world) crash() {
	w.state = State{}
	if w.stored != nil {
		w.state, _ = Decode(w.stored)
	}
	w.ev.Since, w.ev.Nodes, w.memory = w.now, map[cells.NodeID]Node{}, nil
}

func (n *node) take(target uint64, w *world) {
	if target == 0 || target == n.served {
		return
	}
	if n.known = target; n.nack == "" && w.nack[w.contents[target]] != "" {
		n.nack = w.nack[w.contents[target]]
		return
	}
	if w.crashes[w.contents[target]] {
		n.boot++
		n.seq = 0
		return
	}
	if w.nack[w.contents[target]] == "" {
		n.served, n.nack, n.since = target, "", w.now
	}
}

func (w *world) report(id cells.NodeID, n *node) report.Node {
	n.seq++
	r := report.Node{
		ID: id, Boot: fmt.Sprint(n.boot), Seq: n.seq, Window: time.Second, Ready: n.served != 0,
		Snapshot: report.Snapshot{Known: n.known, Served: n.served, Nack: n.nack},
	}
	if c, ok := w.change[w.contents[n.served]]; ok {
		c.Version = n.served
		r.Change = &c
	}
	faults := w.bad[w.contents[n.served]]
	if w.services != nil {
		w.strata(&r, n, faults)
		return r
	}
	count := func(cause string, base float64) uint64 { return uint64(w.rps * (base + faults[cause])) }
	latency := 20 * time.Millisecond
	r.Counts = report.Counts{Requests: uint64(w.rps), Gateway: count("gateway", 0), Upstream: count("upstream", 0.02),
		Auth: count("auth", 0.02), NoRoute: count("noroute", 0.02)}
	slow := count("slow", 0.005)
	r.Latency.Add(report.Bucket(latency), uint32(r.Counts.Requests-slow))
	r.Latency.Add(report.Bucket(10*latency), uint32(slow))
	return r
}

// strata fills a report in by service. Each has a host of its own; a fault may be of one service: "upstream@orders".
func (w *world) strata(r *report.Node, n *node, faults map[string]float64) {
	for _, id := range slices.Sorted(maps.Keys(w.services)) {
		whole := func(what string, v float64) uint64 {
			if n.carry == nil {
				n.carry = map[string]float64{}
			}
			v += n.carry[id+what]
			n.carry[id+what] = v - math.Floor(v)
			return uint64(v)
		}
		s := report.Stratum{ID: id}
		s.Requests = whole("", w.rps*w.services[id])
		failing := func(cause string, base float64) uint64 {
			return min(whole(cause, float64(s.Requests)*(base+faults[cause]+faults[cause+"@"+id]+w.common[cause+"@"+id])), s.Requests)
		}
		s.Gateway, s.Upstream, s.Auth = failing("gateway", 0), failing("upstream", 0.01), failing("auth", 0.01)
		host := report.Stratum{ID: id + ".example", Counts: report.Counts{Requests: s.Requests, NoRoute: failing("noroute", 0)}}
		slower := 1 + faults["latency"] + w.common["latency@"+id]
		for ms, share := range map[float64]float64{20: .5, 30: .4, 60: .08, 150: .02} {
			k := whole(fmt.Sprint(ms), float64(s.Requests)*share)
			s.Warm.Merge(report.Span{From: report.Bucket(time.Duration(slower * ms * float64(time.Millisecond))), Buckets: []uint32{uint32(k)}})
		}
		r.Services, r.Hosts = append(r.Services, s), append(r.Hosts, host)
		r.Counts.Add(s.Counts)
		r.Counts.NoRoute += host.NoRoute
	}
}

func version(n uint64) Version {
	return Version{Number: n, Manifest: snapshot.Digest(fmt.Sprintf("%064d", n))}
}

// do runs one command and gives what was decided meanwhile.
func (w *world) do(line string) string {
	words := strings.Fields(line)
	args := words[1:]
	var out string
	switch words[0] {
	case "world":
		w.build(atoi(args[0]), atoi(args[1]), atoi(args[2]))
	case "config":
		w.configure(args)
	case "rps":
		w.rps = float64(atoi(args[0]))
	case "publish":
		w.head++
		w.contents[w.head] = w.head
		w.state = w.state.Publish(version(w.head), w.head, w.now)
		w.persist()
	case "order", "repeat": // repeat gives the last order again
		if words[0] == "order" {
			w.orders++
			w.order = Order{Kind: OrderKind(args[0]), By: "ann", Reason: strings.Join(args[1:], " "), ID: fmt.Sprint(w.orders)}
		}
		next, err := w.state.Order(w.order, w.now)
		if err != nil {
			return err.Error() + "\n"
		}
		w.state = next
		w.persist()
	case "run":
		d, _ := time.ParseDuration(args[0])
		for range int(d / time.Second) {
			w.tick()
		}
	case "until":
		w.until(args)
	case "bad": // CONTENTS cause=rate…
		w.bad[uint64(atoi(args[0]))] = rates(args[1:])
	case "asked": // CONTENTS ROUTE=requests on each node…
		c := w.change[uint64(atoi(args[0]))]
		c.Asked = counts(args[1:])
		w.change[uint64(atoi(args[0]))] = c
	case "refuses": // CONTENTS ROUTE=requests on each node…
		c := w.change[uint64(atoi(args[0]))]
		c.Refused = counts(args[1:])
		w.change[uint64(atoi(args[0]))] = c
	case "loses": // CONTENTS ROUTE…
		w.change[uint64(atoi(args[0]))] = report.Change{Lost: args[1:]}
	case "services": // SERVICE=share…
		w.services = rates(args)
	case "common": // cause@SERVICE=rate…, whatever the version; none = over
		w.common = rates(args)
	case "crashes":
		w.crashes[uint64(atoi(args[0]))] = true
	case "nack":
		w.nack[uint64(atoi(args[0]))] = strings.Join(args[1:], " ")
	case "down", "up", "restart":
		for id, n := range w.nodes {
			if ok, _ := filepath.Match(args[0], string(id)); ok {
				n.up = words[0] != "down"
				n.boot++
				n.seq = 0
			}
		}
	case "restart-canary":
		for id := range w.state.Nodes {
			w.nodes[id].boot++
		}
	case "probe":
		w.ev.Probes[cells.CellID(args[0])] = map[string]health.Status{"unhealthy": health.Unhealthy, "healthy": health.Healthy, "unknown": health.Unknown}[args[1]]
	case "evacuate":
		d, _ := time.ParseDuration(args[1])
		w.evacs = append(w.evacs, cells.Evacuation{Cell: cells.CellID(args[0]), Reason: "works", Started: w.now, Expires: w.now.Add(d)})
	case "deaf":
		w.deaf[cells.RegionID(args[0])] = args[1] == "yes"
	case "status":
		return fmt.Sprintf("%d %s, stable %d: %s\n", w.state.Version.Number, w.state.Phase, w.state.Stable.Number, w.state.Why)
	case "served":
		return w.served()
	default:
		w.t.Fatalf("no command %q", line)
	}
	for _, d := range w.state.Log {
		if d.At.Sub(w.began) >= 0 && !slices.Contains(w.logged[:w.printed], d) {
			out += fmt.Sprintf("%4ds %d %s: %s\n", int(d.At.Sub(w.began)/time.Second), d.Version, d.Phase, d.Why)
		}
	}
	w.printed = uint64(len(w.logged))
	return out
}

func rates(args []string) map[string]float64 {
	out := map[string]float64{}
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		out[k], _ = strconv.ParseFloat(v, 64)
	}
	return out
}

func counts(args []string) map[string]uint64 {
	out := map[string]uint64{}
	for k, v := range rates(args) {
		out[k] = uint64(v)
	}
	return out
}

func (w *world) configure(args []string) {
	for _, a := range args {
		k, v, _ := strings.Cut(a, "=")
		d, _ := time.ParseDuration(v)
		switch k {
		case "bake":
			w.cfg.Bake = d
		case "serve":
			w.cfg.Serve = d
		case "silence":
			w.cfg.Silence = d
		case "insufficient":
			w.cfg.OnInsufficient = v
		}
	}
}

// until runs to a phase, and a ring kind when one is named.
func (w *world) until(args []string) {
	for range 600 {
		if w.state.Phase == Phase(args[0]) && (len(args) < 2 || w.state.Ring.Kind == RingKind(args[1])) &&
			(len(args) < 3 || w.state.Ring.Region == cells.RegionID(args[2])) {
			return
		}
		w.tick()
	}
	w.t.Fatalf("never %v, but %d %s: %s", args, w.state.Version.Number, w.state.Phase, w.state.Why)
}

func (w *world) served() string {
	by := map[uint64][]string{}
	for _, id := range slices.Sorted(maps.Keys(w.nodes)) {
		by[w.nodes[id].served] = append(by[w.nodes[id].served], string(id))
	}
	var out string
	for _, v := range slices.Sorted(maps.Keys(by)) {
		out += fmt.Sprintf("%d: %s\n", v, strings.Join(by[v], " "))
	}
	return out
}

func atoi(s string) int {
	n, _ := strconv.Atoi(s)
	return n
}

// commands are the lines of a script that are neither comments nor expectations.
func commands(script string) []string {
	var out []string
	for line := range strings.Lines(script) {
		if line = strings.TrimRight(line, "\n"); line != "" && line[0] != '#' && line[0] != '\t' {
			out = append(out, line)
		}
	}
	return out
}

// play runs a script and gives it back with what happened under each command, indented.
func play(t *testing.T, script string) (string, *world) {
	w := newWorld(t)
	var out strings.Builder
	for line := range strings.Lines(script) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "\t") {
			continue
		}
		out.WriteString(line + "\n")
		if line != "" && line[0] != '#' {
			for got := range strings.Lines(w.do(line)) {
				out.WriteString("\t" + got)
			}
		}
	}
	return out.String(), w
}

func scripts(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	out := map[string]string{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		out[f] = string(b)
	}
	return out
}

func TestScripts(t *testing.T) {
	for file, script := range scripts(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			got, _ := play(t, script)
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != script {
				t.Errorf("%s differs; run with -rewrite and read the difference. Got:\n%s", file, got)
			}
		})
	}
}

// A leader that dies at any time, with nothing but the stored state handed on, changes no decision: only times differ.
func TestKilledLeaderAtAnyStepDecidesTheSame(t *testing.T) {
	for file, script := range scripts(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			_, plain := play(t, script)
			want := decisions(plain)
			for at := 1; at <= plain.ticks; at++ {
				if !killedAt(plain, at) {
					continue
				}
				w := newWorld(t)
				w.crashAt = at
				for _, line := range commands(script) {
					w.do(line)
				}
				if got := decisions(w); !slices.Equal(got, want) {
					t.Fatalf("leader killed at %ds:\n%s\nnever killed:\n%s", at, strings.Join(got, "\n"), strings.Join(want, "\n"))
				}
				if got, want := w.served(), plain.served(); got != want {
					t.Fatalf("leader killed at %ds: served\n%snever killed:\n%s", at, got, want)
				}
			}
		})
	}
}

// killedAt leaves out the times around which nothing happens that does not happen a second later as well; without the tag long
// also those next to a decision.
func killedAt(w *world, at int) bool {
	if !full {
		return w.decided[at] || at%40 == 0
	}
	return at%10 == 0 || w.decided[at-1] || w.decided[at] || w.decided[at+1]
}

func decisions(w *world) []string {
	var out []string
	for _, d := range w.logged {
		out = append(out, fmt.Sprint(d.Version, " ", d.Phase, " ", d.Ring))
	}
	return out
}
