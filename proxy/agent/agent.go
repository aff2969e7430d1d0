// Package agent is a proxy node's end of the configuration stream: it takes signed targets, brings what they name onto the
// node's own disk, compiles it beside the live program, swaps, and says what became of it.
//
//	a, err := agent.New(agent.Options{ID: …, Dir: …, Roots: …, Controllers: …, Apply: …})
//	a.Boot()             // serves from disk what was served last; no controller is needed
//	err = a.Run(ctx)     // attaches, follows targets and overrides, reports
//
// A target goes all the way or leaves everything as it was:
//
//	verify ─▶ fetch what is missing ─▶ compile ─▶ disk (fsync, rename) ─▶ swap ─▶ ACK
//	   └──────────┴──────────────────────┴───────────┴─────────┴─▶ NACK with the reason, the old program stays
//
// The node serves whether or not anybody answers.
package agent

import (
	"context"
	crand "crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/trust"
)

// Options are what an Agent needs.
type Options struct {
	ID          cells.NodeID // required
	Dir         string       // required: the node's own, for its configuration alone
	Roots       *trust.Roots // required
	TLS         *tls.Config  // required: to the controllers
	Controllers []string     // own region first
	// Copies are where a node with an empty disk finds what its cell serves when no controller answers, first the nearest.
	Copies []Copy
	// Apply swaps the program in; required. Share is how many nodes the cell has. An error leaves the old one.
	Apply func(p *program.Program, share int) error
	// Check is the node's own test of a program before it is stored; nil = none.
	Check func(*program.Program) error
	// Reconnect is told whether clients should be asked to connect anew, because the node's cell is being evacuated.
	Reconnect func(on bool)
	// Deny puts the denylist in force; nil = nobody is told.
	Deny func(*denylist.Set)
	// Issue puts the list of issued API keys in force; nil = nobody is told.
	Issue func(*apikey.List) error
	// Steer is told the topology when it changes, and the plan by which requests that still come are forwarded, while the
	// own cell is evacuated and its order permits it; else plan is nil. Nil = nobody is told.
	Steer func(topology *cells.Topology, plan *steer.Plan) error
	// Leases settles the node's quotas over one connection to its region's controller; nil = it has none.
	Leases func(ctx context.Context, client nodeapi.ControllerClient) error
	// Observe fills in what the node saw since the last call: counts, latencies, gauges. Nil = nothing.
	Observe func(now time.Time) report.Node
	// Lent says that another process still follows targets in Dir: Boot serves from it and writes nothing. See Own.
	Lent bool

	ReportEvery time.Duration // 0 = 2 s
	PollEvery   time.Duration // 0 = 30 s
	Probation   time.Duration // how long a candidate must serve to be good; 0 = 10 s
	Retry       time.Duration // after a failure that may pass; 0 = 5 s
	Log         *slog.Logger
}

// Agent follows the targets of one node.
type Agent struct {
	opt    Options
	log    *slog.Logger
	boot   string
	client *nodeapi.Client
	shelf  *shelf
	poke   chan struct{} // capacity 1: something arrived
	denied *denials
	keys   *issuedKeys
	steer  *steering

	mu       sync.Mutex
	ledger   report.Snapshot
	applied  order // of the last target that was applied
	seen     order // the highest that was verified
	arrived  *arrival
	orders   []cells.Evacuation // merged
	lists    []signedList       // signed lists that wait to be looked at
	evacuate bool               // what Reconnect was told last
	share    int
	held     []byte             // the signed target that is being served; nil = none to pass on
	leaveOff context.CancelFunc // ends the look at the cell's copies; nil = none under way
	sequence uint64
	reported time.Time
	heard    time.Time

	// Owned by the loop.
	live      *program.Program
	serving   snapshot.Digest // manifest of live
	activated time.Time
	refused   verdict
	kept      []signedList // what orders were merged from
	overrides durable.Keeper
}

// order is the place of a target in the sequence of all targets.
type order struct{ epoch, number uint64 }

func (o order) less(than order) bool {
	return o.epoch < than.epoch || o.epoch == than.epoch && o.number < than.number
}

// arrival is a signed target as it came in.
type arrival struct {
	envelope []byte
	source   report.Source
	from     fetcher // of what it needs
}

// fetcher gives blobs by digest: all of them or an error. What it gives is not yet proved.
type fetcher interface {
	Fetch(ctx context.Context, digests []string) (map[string][]byte, error)
}

// verdict remembers a target that was refused for good, so that the second path doesn't have it compiled again.
type verdict struct {
	manifest snapshot.Digest
	why      string
}

// New opens the node's disk. A damaged state file is logged, not fatal.
func New(opt Options) (*Agent, error) {
	if opt.ID == "" || opt.Dir == "" || opt.Roots == nil || opt.Apply == nil {
		return nil, errors.New("agent: ID, Dir, Roots and Apply are required")
	}
	defaults(&opt)
	boot := make([]byte, 8)
	_, _ = crand.Read(boot)
	a := &Agent{opt: opt, log: opt.Log, boot: hex.EncodeToString(boot), poke: make(chan struct{}, 1), share: 1, reported: time.Now(), heard: time.Now()}
	var err error
	if a.shelf, err = openShelf(opt.Dir); a.shelf == nil {
		return nil, err
	}
	if err != nil {
		a.log.Error("the record of stored snapshots is damaged; trying what lies on disk", "error", err)
		a.shelf.state.Good = a.sortStrays(a.shelf.strays(time.Now()))
		a.placeByTarget()
	}
	if !opt.Lent {
		a.shelf.clearLeftovers()
	}
	a.denied = newDenials(a, time.Now())
	a.keys = newIssuedKeys(a)
	a.steer = newSteering(a)
	a.overrides = newOverrides(a)
	a.applied = order{a.shelf.state.Epoch, a.shelf.state.Number}
	a.seen = a.applied
	a.client = nodeapi.NewClient(nodeapi.Options{
		Controllers: opt.Controllers, TLS: opt.TLS, Log: opt.Log, Hello: a.hello, PollEvery: opt.PollEvery, Leases: opt.Leases,
		Receive: func(m *nodeapi.Down) { a.receive(m, report.SourcePush) },
		Polled:  func(m *nodeapi.Down) { a.receive(m, report.SourcePoll) },
	})
	return a, nil
}

func defaults(opt *Options) {
	def := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	def(&opt.ReportEvery, 2*time.Second)
	def(&opt.PollEvery, 30*time.Second)
	def(&opt.Probation, 10*time.Second)
	def(&opt.Retry, 5*time.Second)
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Reconnect == nil {
		opt.Reconnect = func(bool) {}
	}
	if opt.Deny == nil {
		opt.Deny = func(*denylist.Set) {}
	}
	if opt.Issue == nil {
		opt.Issue = func(*apikey.List) error { return nil }
	}
	if opt.Steer == nil {
		opt.Steer = func(*cells.Topology, *steer.Plan) error { return nil }
	}
	if opt.Observe == nil {
		opt.Observe = func(time.Time) report.Node { return report.Node{} }
	}
}

func (a *Agent) hello() *nodeapi.Hello {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steer.mu.Lock()
	plan := a.steer.planAt
	a.steer.mu.Unlock()
	return &nodeapi.Hello{Boot: a.boot, TargetEpoch: a.applied.epoch, TargetNumber: a.applied.number, PlanEpoch: plan.epoch, PlanNumber: plan.number, KeysNumber: a.keys.number.Load()}
}

// receive keeps the newest target and the lists of overrides for the loop; it never blocks.
func (a *Agent) receive(m *nodeapi.Down, from report.Source) {
	if d := m.GetDenylist(); d != nil {
		a.denied.receive(d.GetEnvelope())
		return
	}
	if k := m.GetKeys(); k != nil {
		a.keys.receive(k.GetEnvelope())
		return
	}
	if p, t := m.GetPlan().GetEnvelope(), m.GetTopology().GetEnvelope(); p != nil || t != nil {
		a.steer.receive(p, t)
		return
	}
	a.mu.Lock()
	if t := m.GetTarget(); t != nil {
		a.arrived = &arrival{t.GetEnvelope(), from, a.client}
		if a.leaveOff != nil {
			a.leaveOff()
		}
	}
	if o := m.GetOverrides(); o != nil {
		a.lists = append(a.lists, signedList{Envelope: o.GetEnvelope(), Adds: o.GetAdds()})
		if len(a.lists) > maxLists {
			a.lists = a.lists[1:]
		}
	}
	a.mu.Unlock()
	select {
	case a.poke <- struct{}{}:
	default:
	}
}

// maxLists bounds the lists of overrides that wait; each carries every standing order, so the newest suffice.
const maxLists = 8

// Life is what a process that takes another's place goes on with: to those who hear its reports, the node has not restarted.
type Life struct {
	Boot string `json:"boot"`
	Seq  uint64 `json:"seq"`
}

// Life is what the reports carry now. It counts as left off once Run has returned.
func (a *Agent) Life() Life {
	a.mu.Lock()
	defer a.mu.Unlock()
	return Life{a.boot, a.sequence}
}

// Own ends the loan: the other process has left off, with this life, or died without telling (nil). What it has brought to
// the disk meanwhile is served from now on.
func (a *Agent) Own(last *Life) error {
	now, err := openShelf(a.opt.Dir)
	if err != nil {
		return err
	}
	a.opt.Lent, a.shelf.state = false, now.state
	a.shelf.clearLeftovers()
	a.mu.Lock()
	if last != nil {
		a.boot, a.sequence = last.Boot, last.Seq
	}
	a.reported = time.Now()
	a.applied = order{now.state.Epoch, now.state.Number}
	a.seen = a.applied
	a.mu.Unlock()
	a.Boot()
	return nil
}

// Run follows the controllers until ctx ends. The node serves on meanwhile and afterwards. It may be called again then.
func (a *Agent) Run(ctx context.Context) error {
	a.resume()
	g, ctx := errgroup.WithContext(ctx)
	if len(a.opt.Controllers) > 0 {
		g.Go(func() error { return a.client.Run(ctx) })
	}
	g.Go(func() error { return a.reports(ctx) })
	g.Go(func() error { return a.denied.run(ctx) })
	g.Go(func() error { return a.keys.run(ctx) })
	g.Go(func() error { return a.steer.run(ctx) })
	g.Go(func() error { return a.follow(ctx) })
	return g.Wait()
}

// Connected says whether a controller is attached.
func (a *Agent) Connected() bool { return a.client.Connected() }

// FindKey asks the attached controller whose an issued API key is; empty = nobody's.
func (a *Agent) FindKey(ctx context.Context, hashes []string) (consumer string, err error) {
	return a.client.FindKey(ctx, hashes)
}

// Settle keeps the quotas of exchanges that are under way settled, until ctx ends, while another process follows targets.
func (a *Agent) Settle(ctx context.Context) {
	if len(a.opt.Controllers) > 0 {
		a.client.Settle(ctx)
	}
}

// follow is the loop that owns the disk and the live program.
func (a *Agent) follow(ctx context.Context) error {
	probation, retry, copies := time.NewTimer(time.Until(a.activated.Add(a.opt.Probation))), time.NewTimer(time.Hour), time.NewTimer(0)
	defer probation.Stop()
	defer retry.Stop()
	defer copies.Stop()
	unstored := time.NewTicker(time.Second)
	defer unstored.Stop()
	var last *arrival
	pause := copyPause
	for {
		select {
		case <-ctx.Done():
			a.leave()
			return nil
		case <-probation.C:
			a.promote()
			continue
		case <-copies.C:
			if a.bootFromCopies(ctx); a.live == nil && len(a.opt.Copies) > 0 {
				copies.Reset(pause/2 + rand.N(pause))
				pause = min(2*pause, maxCopyPause)
			}
			probation.Reset(time.Until(a.activated.Add(a.opt.Probation)))
			continue
		case now := <-unstored.C:
			a.overrides.Retry(now)
			continue
		case <-a.poke:
		case <-retry.C:
		}
		a.mergeOverrides(time.Now())
		if next := a.take(); next != nil {
			last = next
		}
		retry.Reset(time.Hour)
		if last == nil {
			continue
		}
		before := a.activated
		if again := a.target(ctx, *last); again {
			retry.Reset(a.opt.Retry)
		} else {
			last = nil
		}
		if a.activated != before {
			probation.Reset(a.opt.Probation)
		}
	}
}

func (a *Agent) take() *arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.arrived
	a.arrived = nil
	return next
}

// promote makes the candidate the newest good snapshot and forgets what is older than the kept ones.
func (a *Agent) promote() {
	if a.shelf.state.Trial == nil {
		return
	}
	if err := a.shelf.save(a.shelf.state.promote()); err != nil {
		a.log.Error("the candidate served well but that can't be stored", "error", err)
		return
	}
	a.shelf.sweep()
}

// leave notes that the candidate was stopped: an orderly exit is no crash.
func (a *Agent) leave() {
	t := a.shelf.state.Trial
	if t == nil {
		return
	}
	next := a.shelf.state
	next.Trial = &trial{slot: t.slot, Crashes: t.Crashes}
	if err := a.shelf.save(next); err != nil {
		a.log.Error("state not stored on exit", "error", err)
	}
}

// resume notes that the candidate runs again, after leave.
func (a *Agent) resume() {
	t := a.shelf.state.Trial
	if t == nil || t.Running {
		return
	}
	next := a.shelf.state
	next.Trial = &trial{slot: t.slot, Crashes: t.Crashes, Running: true}
	if err := a.shelf.save(next); err != nil {
		a.log.Error("state not stored", "error", err)
	}
}

// Status is what the node's own admin page says about its configuration (C4).
type Status struct {
	Node      cells.NodeID       `json:"node"`
	Snapshot  report.Snapshot    `json:"snapshot"`
	Epoch     uint64             `json:"target_epoch"`
	Number    uint64             `json:"target_number"`
	Share     int                `json:"share"`
	Connected bool               `json:"connected"`
	Heard     time.Time          `json:"heard"` // when a controller was last in touch; the start of the process until then
	Evacuated bool               `json:"cell_evacuated"`
	Forwards  uint64             `json:"forwards_by_plan,omitempty"` // number of the plan
	Orders    []cells.Evacuation `json:"evacuations,omitempty"`
	// Denied is the number of denylist entries in force, DeniedAge the time since a controller last confirmed the list.
	Denied    int           `json:"denied"`
	DeniedAge time.Duration `json:"denylist_age_ns"`
}

// Status is safe to call at any time.
func (a *Agent) Status() Status {
	denied, age := a.denied.status(time.Now())
	a.mu.Lock()
	defer a.mu.Unlock()
	return Status{
		Denied: denied, DeniedAge: age,
		Node: a.opt.ID, Snapshot: a.ledger, Epoch: a.applied.epoch, Number: a.applied.number, Share: a.share,
		Connected: a.client.Connected(), Heard: a.heard, Evacuated: a.evacuate, Orders: a.orders, Forwards: a.steer.forwards(),
	}
}

// reports sends one window after the other, whatever the loop is busy with.
func (a *Agent) reports(ctx context.Context) error {
	tick := time.NewTicker(a.opt.ReportEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			a.judgeEvacuation(now)
			if err := a.report(now); err != nil {
				a.log.Error("report not sent", "error", err)
			}
		}
	}
}

func (a *Agent) report(now time.Time) error {
	n := a.opt.Observe(now)
	a.mu.Lock()
	a.sequence++
	n.ID, n.Boot, n.Seq, n.Snapshot = a.opt.ID, a.boot, a.sequence, a.ledger
	n.Window, a.reported = now.Sub(a.reported), now
	if a.client.Connected() {
		a.heard = now
	}
	a.mu.Unlock()
	raw, err := report.EncodeNode(n)
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	a.client.Send(&nodeapi.Up{Message: &nodeapi.Up_Report{Report: raw}})
	return nil
}
