package globalrouter

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/internal/durable"
)

// Agent keeps a router of a world on the newest plan: it verifies, refuses what is older, stores, and only then serves.
// With no controller in reach it serves the newest plan on disk; with none there either, what only a plan could
// answer is SERVFAIL.
type Agent struct {
	Dir    string // holds the last plans
	Zone   *Zone  // as at the start; later ones come through Rezone
	Server *Server
	// Verify gives the payload of an envelope signed by a controller, judged as of now; the zero time stands for when its
	// signer's certificate was good, for what this router has verified once and stored.
	Verify func(envelope []byte, now time.Time) ([]byte, error)
	// Withdraw says what this router takes out of a plan by its own view; none = nothing, and nil = never anything.
	Withdraw func(*steer.Plan) (by []steer.Withdrawal, none bool)
	// Served is told after each swap which sets answer as if all were up; nil = nobody is.
	Served func(allUp []string)
	Log    *slog.Logger

	mu    sync.Mutex // guards Zone once the agent runs, and what follows
	held  Held
	table *Table             // what the plan says, with nothing withdrawn
	by    []steer.Withdrawal // what the served table is without; nil = nothing
}

// Held is the plan that an agent serves; Plan is nil when there is none.
type Held struct {
	Plan   *steer.Plan
	Source string // "push", "poll" or "disk"
}

const (
	keepPlans  = 3
	planSuffix = ".plan"
)

// Held is the plan that is served now.
func (a *Agent) Held() Held {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.held
}

// Load serves the newest readable plan on disk, or nothing but the zone when there is none.
func (a *Agent) Load() error {
	if err := os.MkdirAll(a.Dir, 0o700); err != nil {
		return fmt.Errorf("plans: %w", err)
	}
	_ = durable.Clear(a.Dir) // on a disk that can't be written, nothing is left either
	files, err := a.files()
	if err != nil {
		return err
	}
	for _, file := range slices.Backward(files) {
		err := a.loadFile(file)
		if err == nil {
			return nil
		}
		a.Log.Error("a stored plan is unusable", "file", file, "error", err)
	}
	t, err := Compile(a.Zone, nil, nil, true)
	if err != nil {
		return err
	}
	a.Server.Swap(t)
	a.Log.Warn("no plan: names outside the zone file are answered with SERVFAIL until one comes")
	return nil
}

// loadFile verifies the envelope as of when it could be verified: the signer's certificate may have run out since, while
// no controller could be reached, and what the file system says of times is no evidence.
func (a *Agent) loadFile(file string) error {
	envelope, err := durable.Read(file)
	if err != nil {
		return fmt.Errorf("plans: %w", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	plan, table, err := a.read(envelope, time.Time{})
	if err != nil {
		return err
	}
	a.serve(plan, table, "disk")
	return nil
}

func (a *Agent) read(envelope []byte, now time.Time) (*steer.Plan, *Table, error) {
	payload, err := a.Verify(envelope, now)
	if err != nil {
		return nil, nil, err
	}
	plan, err := steer.DecodePlan(payload)
	if err != nil {
		return nil, nil, err
	}
	table, err := Compile(a.Zone, plan, nil, false)
	return plan, table, err
}

// ErrOlder is given for a plan that does not come after the served one.
var ErrOlder = errors.New("the plan is not newer than the served one")

// Accept takes a signed plan from a controller. On an error nothing has changed.
func (a *Agent) Accept(envelope []byte, source string, now time.Time) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	plan, table, err := a.read(envelope, now)
	if err != nil {
		return err
	}
	switch held := a.held.Plan; {
	case !plan.Newer(held):
		return fmt.Errorf("%w: (%d, %d)", ErrOlder, plan.Epoch, plan.Number)
	case plan.WentBack(held):
		return fmt.Errorf("the plan (%d, %d) knows versions up to %d, the served one up to %d: the global store went back; it is kept until `regionctl recover`", plan.Epoch, plan.Number, plan.Head, held.Head)
	}
	if err := durable.Write(a.path(plan), envelope); err != nil {
		return err
	}
	a.serve(plan, table, source)
	return a.prune()
}

// Rezone serves the held plan with another version of the zone. On an error nothing has changed.
func (a *Agent) Rezone(z *Zone) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if z.Origin() != a.Zone.Origin() {
		return fmt.Errorf("the zone is %s, not %s: a router keeps its zone until it is restarted", z.Origin(), a.Zone.Origin())
	}
	table, err := Compile(z, a.held.Plan, nil, true)
	if err != nil {
		return err
	}
	a.Zone, a.table = z, table
	a.swap(a.withdrawn())
	return nil
}

// Review swaps the served table if the router's own view has changed what it takes out of the plan.
func (a *Agent) Review() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held.Plan == nil {
		return
	}
	if by := a.withdrawn(); !slices.Equal(by, a.by) {
		a.swap(by)
	}
}

// withdrawn is what the router's own view takes out of the held plan.
func (a *Agent) withdrawn() []steer.Withdrawal {
	if a.Withdraw == nil || a.held.Plan == nil {
		return nil
	}
	by, none := a.Withdraw(a.held.Plan)
	if none {
		return nil
	}
	return by
}

// swap serves the table of the held plan without what is withdrawn.
func (a *Agent) swap(by []steer.Withdrawal) {
	table, allUp := a.table, []string(nil)
	if by != nil {
		var rows [][]steer.Row
		rows, allUp = a.held.Plan.Overlay(by)
		table = table.Reroute(rows)
	}
	a.by = by
	a.Server.Swap(table)
	if a.Served != nil {
		a.Served(allUp)
	}
}

func (a *Agent) serve(plan *steer.Plan, table *Table, source string) {
	a.held, a.table = Held{Plan: plan, Source: source}, table
	a.swap(a.withdrawn())
	a.Log.Info("serving a plan", "epoch", plan.Epoch, "number", plan.Number, "source", source, "all_down", plan.AllDown, "unplaced", len(plan.Unplaced))
	if out := a.Zone.Misfits(plan); len(out) > 0 {
		a.Log.Warn("the plan has names that do not fit the zone", "count", len(out), "name", out[0].Name, "why", out[0].Why)
	}
}

// path sorts by name as plans do by (epoch, number).
func (a *Agent) path(p *steer.Plan) string {
	return filepath.Join(a.Dir, fmt.Sprintf("%020d-%020d%s", p.Epoch, p.Number, planSuffix))
}

func (a *Agent) files() ([]string, error) {
	entries, err := os.ReadDir(a.Dir)
	if err != nil {
		return nil, fmt.Errorf("plans: %w", err)
	}
	var out []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), planSuffix) && !strings.HasPrefix(e.Name(), ".") {
			out = append(out, filepath.Join(a.Dir, e.Name()))
		}
	}
	slices.Sort(out)
	return out, nil
}

// prune keeps the last plans, also from before the served one: the newest may turn out unreadable after a crash of the disk.
func (a *Agent) prune() error {
	files, err := a.files()
	if err != nil {
		return err
	}
	for _, f := range files[:max(len(files)-keepPlans, 0)] {
		if err := os.Remove(f); err != nil {
			return fmt.Errorf("plans: %w", err)
		}
	}
	return nil
}
