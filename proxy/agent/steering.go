package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/globalrouter/view"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/trust"
)

// steering is what the node knows of where clients belong: the topology always, the plan while its own cell is evacuated.
// Its loop is its own, so that it never waits for a snapshot that is being fetched.
type steering struct {
	disk  durable.Keeper // owned by the loop
	roots *trust.Roots
	tell  func(*cells.Topology, *steer.Plan) error
	log   *slog.Logger
	poke  chan struct{} // capacity 1: something changed

	mu             sync.Mutex
	newPlan        []byte // arrived, not yet looked at
	newTopology    []byte
	since          time.Time // start of the order by which the own cell is evacuated; zero = it is not
	forward        bool      // that order permits forwarding
	orders         []cells.Evacuation
	planAt         order  // of the plan that is held
	forwardsByPlan uint64 // number of the plan that was told; 0 = none

	// Owned by the loop.
	topology *cells.Topology
	plan     *steer.Plan
	by       []steer.Withdrawal // what orders took out of the plan when it was told
	kept     storedSteering
}

// storedSteering is the form of steering.json. Since is the start of the order that the plan belongs to: a plan from before
// another order must not be followed, it may have dropped the cell for a reason that has passed.
type storedSteering struct {
	Form     int        `json:"form"`
	Topology signedList `json:"topology,omitzero"`
	Plan     signedList `json:"plan,omitzero"`
	Since    time.Time  `json:"since,omitzero"`
}

const steeringForm = 1

func newSteering(a *Agent) *steering {
	return &steering{
		roots: a.opt.Roots, tell: a.opt.Steer, log: a.log, poke: make(chan struct{}, 1), kept: storedSteering{Form: steeringForm},
		disk: durable.Keeper{
			Path: a.shelf.path("steering.json"),
			Failed: func(err error) {
				a.log.Error("topology and plan not stored; until they are, they are missing after a restart until a controller answers", "error", err)
			},
			Done: func() { a.log.Info("topology and plan are stored again") },
		},
	}
}

// receive keeps what arrived for the loop; the newest suffices.
func (s *steering) receive(plan, topology []byte) {
	s.mu.Lock()
	if plan != nil {
		s.newPlan = plan
	}
	if topology != nil {
		s.newTopology = topology
	}
	s.mu.Unlock()
	s.wake()
}

// order says by which order the own cell is evacuated (its start; zero = none), whether it permits forwarding, and which
// orders there are.
func (s *steering) order(since time.Time, forward bool, orders []cells.Evacuation) {
	s.mu.Lock()
	same := s.since.Equal(since) && s.forward == forward
	s.since, s.forward, s.orders = since, forward, orders
	s.mu.Unlock()
	if !same {
		s.wake()
	}
}

func (s *steering) wake() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

func (s *steering) run(ctx context.Context) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.poke:
			s.step(time.Now())
		case now := <-tick.C:
			s.disk.Retry(now)
			if s.drifted(now) {
				s.step(now)
			}
		}
	}
}

// drifted says whether the orders take something else out of the plan than when it was told.
func (s *steering) drifted(now time.Time) bool {
	s.mu.Lock()
	orders, forward := s.orders, s.forward && !s.since.IsZero()
	s.mu.Unlock()
	if s.plan == nil || !forward {
		return false
	}
	by, _ := view.Ordered(s.plan, orders, now)
	return !slices.Equal(by, s.by)
}

// step takes in what arrived, forgets the plan of an order that has ended, and tells the outcome.
func (s *steering) step(now time.Time) {
	s.mu.Lock()
	plan, topology, since, forward, orders := s.newPlan, s.newTopology, s.since, s.forward, s.orders
	s.newPlan, s.newTopology = nil, nil
	s.mu.Unlock()
	changed := s.forget(since)
	if topology != nil {
		changed = s.note("topology", s.takeTopology(signedList{Accepted: now, Envelope: topology})) || changed
	}
	if plan != nil {
		changed = s.note("plan", s.takePlan(signedList{Accepted: now, Envelope: plan})) || changed
	}
	if changed {
		s.disk.Put(s.kept, now)
	}
	var follow *steer.Plan
	if forward && !since.IsZero() {
		follow = s.without(orders, now)
	}
	s.say(follow)
}

// without is the plan without what orders take out of it that it doesn't follow, for want of a leader: what routers answer
// by then. Nil while there is no plan.
func (s *steering) without(orders []cells.Evacuation, now time.Time) *steer.Plan {
	if s.plan == nil {
		return nil
	}
	by, none := view.Ordered(s.plan, orders, now)
	if s.by = by; none {
		return s.plan
	}
	p := *s.plan
	p.Rows, _ = s.plan.Overlay(by)
	return &p
}

func (s *steering) note(what string, err error) bool {
	if err != nil {
		s.log.Warn(what+" refused", "error", err)
	}
	return err == nil
}

// forget drops the plan when the order that it belongs to is no longer the one that stands.
func (s *steering) forget(since time.Time) (changed bool) {
	was := s.kept.Since
	s.kept.Since = since
	if was.IsZero() && !since.IsZero() || was.Equal(since) {
		return !was.Equal(since) // a plan that came ahead of its order stays
	}
	s.plan, s.kept.Plan = nil, signedList{}
	s.hold(order{})
	return true
}

func (s *steering) hold(at order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.planAt = at
}

func (s *steering) takeTopology(l signedList) error {
	payload, _, err := s.roots.Verify(trust.KindTopology, l.Envelope, l.Accepted, trust.RoleController)
	if err != nil {
		return err
	}
	var t cells.Topology
	if err := json.Unmarshal(payload, &t); err != nil {
		return fmt.Errorf("agent: topology: %w", err)
	}
	if err := t.Validate(); err != nil {
		return err
	}
	s.topology, s.kept.Topology = &t, l
	return nil
}

func (s *steering) takePlan(l signedList) error {
	payload, _, err := s.roots.Verify(trust.KindPlan, l.Envelope, l.Accepted, trust.RoleController)
	if err != nil {
		return err
	}
	p, err := steer.DecodePlan(payload)
	if err != nil {
		return err
	}
	if s.plan != nil && p.Epoch == s.plan.Epoch && p.Number == s.plan.Number {
		s.kept.Plan = l // said again, perhaps signed anew
		return nil
	}
	if !p.Newer(s.plan) || p.WentBack(s.plan) {
		return errors.New("agent: it is not newer than the plan that is held")
	}
	s.plan, s.kept.Plan = p, l
	s.hold(order{p.Epoch, p.Number})
	return nil
}

// say tells what holds now. Without a topology nobody knows where another cell's proxies are.
func (s *steering) say(plan *steer.Plan) {
	if s.topology == nil {
		return
	}
	if err := s.tell(s.topology, plan); err != nil {
		s.log.Error("the plan can't be forwarded by; everything is served here", "error", err)
	}
	number := uint64(0)
	if plan != nil {
		number = plan.Number
	}
	s.mu.Lock()
	before := s.forwardsByPlan
	s.forwardsByPlan = number
	s.mu.Unlock()
	if (before == 0) != (number == 0) {
		s.log.Info("following the plan for requests that still come to the evacuated cell", "on", number != 0, "plan", number)
	}
}

func (s *steering) forwards() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.forwardsByPlan
}

// load brings back what was known before the restart. It comes before the orders are loaded.
func (s *steering) load() {
	var stored storedSteering
	found, err := durable.ReadForm(s.disk.Path, steeringForm, &stored)
	if err == nil && stored.Topology.Envelope != nil {
		err = s.takeTopology(stored.Topology)
	}
	if err == nil && stored.Plan.Envelope != nil {
		err = s.takePlan(stored.Plan)
	}
	if err != nil {
		s.log.Error("stored topology and plan are not usable; waiting for a controller to tell", "error", err)
	}
	if err != nil || !found {
		return
	}
	s.kept.Since = stored.Since
	s.wake()
}
