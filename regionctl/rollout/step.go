package rollout

import (
	"fmt"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/regionctl/rollout/judge"
)

// machine is one step: the state being written and what it is judged by.
type machine struct {
	*State
	ev  *Evidence
	cfg Config
	now time.Time
}

// Step moves the rollout on as far as the evidence allows. It never takes back a decision that was stored.
func Step(s State, ev Evidence, cfg Config, now time.Time) State {
	next := s.clone()
	m := machine{State: &next, ev: &ev, cfg: cfg.defaults(), now: now}
	m.observe()
	for range 4 * (len(ev.Topology.Regions) + 1) { // at most one pass through every ring
		rev := next.Rev
		m.step()
		if next.Rev == rev {
			break
		}
	}
	return next
}

func (m *machine) step() {
	switch m.Phase {
	case Pending:
		m.release()
	case Releasing:
		m.releasing()
	case Baking:
		m.baking()
	case Held:
		m.held()
	case Paused:
		if bad := m.bad(); bad != "" && m.Resume != Pending {
			m.Resume = ""
			m.rollBack(RolledBack, bad, m.now)
		}
	case RollingBack:
		m.rollingBack()
	case Live, RolledBack, Aborted:
		m.next()
	}
}

// next begins the queued version, under a number above everything that was published meanwhile.
func (m *machine) next() {
	if m.Next == nil || m.Want != nil {
		return
	}
	if m.Next.Version.Number <= m.Stable.Number {
		m.Want = &Want{Contents: m.Next.Version, Message: fmt.Sprintf("version %d again, after the way back", m.Next.Version.Number)}
		m.touch(m.now)
		return
	}
	m.begin(*m.Next, m.now)
}

// release gives the next ring its target, as soon as nothing stands in the way.
func (m *machine) release() {
	ring, ok := m.nextRing()
	if !ok {
		m.Ring, m.Stable, m.Cells, m.Nodes = Ring{}, m.Version, nil, nil
		m.decide(Live, "every ring serves it", m.now)
		return
	}
	if why := m.blocked(ring); why != "" && !m.Ring.Promoted {
		m.Why = why
		return
	}
	m.assign(&ring)
	m.Ring = ring
	why := "released to " + ring.String()
	if len(ring.Skipped) > 0 {
		why += fmt.Sprintf("; not serving before, so not waited for: %v", ring.Skipped)
	}
	m.decide(Releasing, why, m.now)
}

// blocked says what a ring waits for before it is released.
func (m *machine) blocked(ring Ring) string {
	if e, ok := m.evacuation(ring.Region); ok && !m.Force {
		return fmt.Sprintf("waits for the evacuation of %s to end (%s)", e.Cell, e.Reason)
	}
	if ring.Kind == RingAll {
		return "" // there is nothing that it could break
	}
	if m.deaf() {
		return "no node of the world reports"
	}
	if len(ring.Nodes) == 0 && m.now.Before(m.ev.Since.Add(m.cfg.Silence)) {
		return fmt.Sprintf("waits for reports from %s", ring.Region)
	}
	if len(ring.Nodes) == 0 && m.now.Before(m.Changed.Add(m.cfg.Silence+m.cfg.Bake)) {
		return fmt.Sprintf("no node of %s reports; it is passed over if that stays so", ring.Region)
	}
	return ""
}

// assign points the ring at the version.
func (m *machine) assign(ring *Ring) {
	ring.Released = m.now
	if ring.Kind == RingNode {
		if m.Nodes == nil {
			m.Nodes = map[cells.NodeID]Version{}
		}
		for id := range ring.Nodes {
			m.Nodes[id] = m.Version
		}
		return
	}
	if m.Cells == nil {
		m.Cells = map[cells.CellID]Version{}
	}
	for _, cell := range ring.Cells {
		m.Cells[cell] = m.Version
		for id := range m.Nodes {
			if id.Cell() == cell {
				delete(m.Nodes, id)
			}
		}
	}
}

// releasing waits until the whole ring serves the version.
func (m *machine) releasing() {
	if bad := m.worse(); bad != "" {
		m.rollBack(RolledBack, bad, m.now)
		return
	}
	waiting := m.notServing(m.Version)
	late := m.late()
	switch {
	case m.Ring.Kind == RingAll:
		m.first(waiting, late)
	case len(m.Ring.Nodes) == 0:
		m.ringDone("passed over: no node of it reports")
	case len(waiting) == 0:
		m.Ring.Baked = m.now
		m.swap()
		m.decide(Baking, fmt.Sprintf("%s serves it; bakes for %v", m.Ring, m.cfg.Bake), m.now)
	case m.Ring.Promoted:
		m.ringDone(fmt.Sprintf("promoted, though %s", waiting))
	case late && !m.blind():
		m.rollBack(RolledBack, fmt.Sprintf("not served within %v: %s", m.cfg.Serve, waiting), m.now)
	default:
		m.Why = fmt.Sprintf("released to %s; waits: %s", m.Ring, waiting)
	}
}

// late says that the ring had its time to serve the version, and that the caller has listened for as long.
func (m *machine) late() bool {
	from := m.Ring.Released
	if m.ev.Since.After(from) {
		from = m.ev.Since
	}
	return m.now.After(from.Add(m.cfg.Serve))
}

// first ends the very first rollout when every node serves the version, without those that are silent once their time is
// up. A node that speaks and doesn't serve it holds the rollout: there is no earlier version to go back to.
func (m *machine) first(waiting reasons, late bool) {
	speaks := false
	for _, r := range waiting {
		speaks = speaks || !m.silent(r.node)
	}
	switch {
	case len(waiting) == 0:
		m.ringDone("every node serves it")
	case m.Ring.Promoted:
		m.ringDone(fmt.Sprintf("promoted, though %s", waiting))
	case late && !speaks:
		m.ringDone("every node that reports serves it; " + waiting.String())
	case late && m.Phase != Held:
		m.decide(Held, fmt.Sprintf("not served within %v: %s", m.cfg.Serve, waiting), m.now)
	default:
		m.Why = "waits: " + waiting.String()
	}
}

// held gives way to a newer version, and goes on baking otherwise: later evidence may be enough.
func (m *machine) held() {
	if m.Next != nil {
		m.record(m.Version.Number, Superseded, m.Ring.name(), fmt.Sprintf("held, and version %d is waiting", m.Next.Version.Number), m.now)
		m.begin(*m.Next, m.now)
		return
	}
	if m.Ring.Kind == RingAll {
		m.first(m.notServing(m.Version), m.late())
		return
	}
	m.baking()
}

// ringDone goes on to the next ring.
func (m *machine) ringDone(why string) {
	m.Ring.Promoted = false
	m.decide(Pending, why, m.now)
}

// baking compares the ring with the rest until there is enough evidence for one or the other.
func (m *machine) baking() {
	if m.waits() {
		return
	}
	if bad := m.worse(); bad != "" {
		m.rollBack(RolledBack, bad, m.now)
		return
	}
	if m.Ring.Promoted {
		m.ringDone("promoted")
		return
	}
	v := m.Judge.Verdict()
	if v.Worse != "" {
		m.rollBack(RolledBack, v.Worse, m.now)
		return
	}
	if few := m.unasked(); few != "" {
		v.Enough, v.Summary = false, v.Summary+"; "+few
	}
	age := m.now.Sub(m.Ring.Baked)
	switch {
	case age < m.cfg.Bake:
		m.Why = fmt.Sprintf("%s bakes for another %v: %s", m.Ring, (m.cfg.Bake - age).Round(time.Second), v.Summary)
	case m.blind():
		m.Why = fmt.Sprintf("no node of %s reports: neither good nor bad", m.Ring.Region)
	case v.Enough:
		m.ringDone("no worse than " + v.Against + ": " + v.Summary)
	case m.cfg.OnInsufficient == OnInsufficientProceed && m.synthetics() == health.Healthy && v.Judged && !v.Suspect:
		m.ringDone("not enough evidence (" + v.Summary + "), but synthetics pass")
	case age >= maxBakes*max(m.cfg.Bake, judge.Window(m.cfg.Bake)) && m.Phase != Held:
		m.decide(Held, "not enough evidence after all that time: "+v.Summary, m.now)
	default:
		m.Why = "not enough evidence yet: " + v.Summary
	}
}

// bad is any evidence against the version: that which needs no statistics, then the judge's.
func (m *machine) bad() string {
	if why := m.worse(); why != "" || !m.judging() || m.Judge == nil {
		return why
	}
	return m.Judge.Worse
}

// maxBakes is how often a bake is extended for want of evidence before an operator is asked.
const maxBakes = 5

// waits stops the bake while an evacuation stands in the region; afterwards it begins again with fresh counts.
func (m *machine) waits() bool {
	e, standing := m.evacuation(m.Ring.Region)
	standing = standing && !m.Force && !m.Ring.Promoted
	switch {
	case standing && !m.Ring.Waits:
		m.Ring.Waits = true
		m.decide(m.Phase, fmt.Sprintf("the bake waits for the evacuation of %s (%s)", e.Cell, e.Reason), m.now)
	case !standing && m.Ring.Waits:
		m.Ring.Waits, m.Ring.Baked = false, m.now
		m.Judge = m.Judge.Again()
		m.decide(Baking, "the evacuation has ended; the bake begins again", m.now)
	}
	if standing {
		if bad := m.worse(); bad != "" {
			m.rollBack(RolledBack, bad, m.now)
		}
	}
	return standing
}

// rollingBack ends when all of the world serves the old contents under their new number. A node that can't is named and
// not waited for: there is nothing to go back to from here.
func (m *machine) rollingBack() {
	if m.Want != nil {
		m.Why = "rolling back; waits for a new number"
		return
	}
	waiting := m.notServing(m.Stable)
	if len(waiting) > 0 && !m.late() {
		m.Why = fmt.Sprintf("rolling back to %d; waits: %s", m.Stable.Number, waiting)
		return
	}
	why := fmt.Sprintf("every node that reports serves %d", m.Stable.Number)
	if len(waiting) > 0 {
		why = "not waited for: " + waiting.String()
	}
	end := m.End
	m.Ring, m.End, m.Cells, m.Nodes, m.Judge = Ring{}, "", nil, nil, nil
	m.decide(end, m.reason()+"; "+why, m.now)
}

// reason is why the version was turned back, as the log has it.
func (m *machine) reason() string {
	for i := len(m.Log) - 1; i >= 0; i-- {
		if d := m.Log[i]; d.Version == m.Version.Number && d.Phase == RollingBack {
			return d.Why
		}
	}
	return "rolled back"
}

// reasons name nodes and what is the matter with each, in the order of their ids.
type reasons []reason

type reason struct {
	node cells.NodeID
	why  string
}

// String names the first few.
func (r reasons) String() string {
	const show = 4
	var b strings.Builder
	for i, x := range r[:min(len(r), show)] {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s %s", x.node, x.why)
	}
	if more := len(r) - show; more > 0 {
		fmt.Fprintf(&b, " and %d more", more)
	}
	return b.String()
}
