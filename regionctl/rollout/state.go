package rollout

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/regionctl/rollout/judge"
	"github.com/cellgate/cellgate/report"
)

// Phase is where a rollout is.
//
//	           ┌──────── next ring ────────┐
//	           ▼                           │
//	pending ─▶ releasing ─▶ baking ─▶ (held) ─▶ live
//	   │          │           │          │
//	   │          └── worse ──┴──────────┴─▶ rolling_back ─▶ rolled_back | aborted
//	   └─ newer version ─▶ superseded
//
// paused stands in for pending, releasing, baking and held, until resume. The zero value: nothing was ever published.
type Phase string

// The phases. Live, RolledBack, Aborted are ends: a queued version begins next.
const (
	Pending     Phase = "pending"      // waits for something before the ring is released
	Releasing   Phase = "releasing"    // the ring has the target, not all of its nodes serve it yet
	Baking      Phase = "baking"       // the ring serves it and is compared with the rest
	Paused      Phase = "paused"       // an operator's pause; bad evidence still rolls back
	Held        Phase = "held"         // not enough evidence, or no way back: an operator decides, or better evidence does
	Live        Phase = "live"         // every ring serves it
	RollingBack Phase = "rolling_back" // on the way back to the old contents
	RolledBack  Phase = "rolled_back"
	Aborted     Phase = "aborted"
	Superseded  Phase = "superseded" // only in the log: never released any further, a newer version took its place
)

// RingKind is the size of a ring.
type RingKind string

// The kinds, in the order in which a region passes them. RingAll is the very first version's.
const (
	RingNode RingKind = "node" // one canary node
	RingCell RingKind = "cell" // its whole cell
	RingRest RingKind = "rest" // the region's other cells
	RingAll  RingKind = "all"
)

// Ring is the ring being released.
type Ring struct {
	Region cells.RegionID `json:"region,omitempty"`
	Kind   RingKind       `json:"kind,omitempty"`
	Cells  []cells.CellID `json:"cells,omitempty"`
	// Nodes are judged: those that were alive when the ring was released, with the process that they were then.
	Nodes map[cells.NodeID]string `json:"nodes,omitempty"`
	// Skipped were silent already when the ring was released; they take the version when they come back.
	Skipped  []cells.NodeID `json:"skipped,omitempty"`
	Released time.Time      `json:"released,omitzero"`
	// Baked is when the bake began; zero while not all nodes serve the version.
	Baked time.Time `json:"baked,omitzero"`
	// Waits: an evacuation stands in the region, so the bake begins again when it ends.
	Waits bool `json:"waits,omitempty"`
	// Promoted: an operator has decided to go on whatever the evidence.
	Promoted bool `json:"promoted,omitempty"`
}

func (r Ring) String() string {
	switch r.Kind {
	case RingAll:
		return "every node"
	case RingNode:
		return fmt.Sprintf("canary node %v", slices.Sorted(maps.Keys(r.Nodes)))
	case RingCell:
		return fmt.Sprintf("canary cell %v", r.Cells)
	default:
		return fmt.Sprintf("rest of %s %v", r.Region, r.Cells)
	}
}

// Queued is a version that waits for its turn.
type Queued struct {
	Version Version `json:"version"`
	Seed    uint64  `json:"seed"`
}

// Want asks the caller for a new number: publish the contents of Contents under it and hand it over with Allocated.
type Want struct {
	Contents Version `json:"contents"`
	Message  string  `json:"message"`
}

// Decision is one entry of the log: what was decided about a version and on which evidence.
type Decision struct {
	At      time.Time `json:"at"`
	Version uint64    `json:"version"`
	Phase   Phase     `json:"state"`
	Ring    string    `json:"ring,omitempty"`
	Why     string    `json:"why"`
}

// maxLog bounds the log; the oldest entries go first.
const maxLog = 64

// Form is the version of the stored form of State.
const Form = 1

// State is everything that is known of the world's rollouts; targets are a function of it. It is a stored form.
//
// The caller stores a state whose Rev has risen before it acts on it, and needs to store the others (counts, Why) only
// now and then: what is lost of them is evidence, never a decision.
type State struct {
	Form    int       `json:"form"`
	Rev     uint64    `json:"rev"` // rises with every decision
	Changed time.Time `json:"changed"`
	Phase   Phase     `json:"state"`
	Why     string    `json:"why"`

	// Version is being rolled out, or was last. Stable is what every ring took before it; 0 before the first.
	Version Version `json:"version"`
	Stable  Version `json:"stable"`
	// Cells and Nodes are what each should run; a cell that is not named runs Stable.
	Cells map[cells.CellID]Version `json:"cells,omitempty"`
	Nodes map[cells.NodeID]Version `json:"nodes,omitempty"`

	Ring  Ring    `json:"ring"`
	Seed  uint64  `json:"seed"`
	Next  *Queued `json:"next,omitempty"`
	Force bool    `json:"force,omitempty"` // evacuations are not waited for
	Want  *Want   `json:"want,omitempty"`
	// Resume is the phase that a pause interrupted; End the phase that a rollback ends in.
	Resume Phase `json:"resume,omitempty"`
	End    Phase `json:"end,omitempty"`

	// Ordered are the last orders that were applied, by their IDs.
	Ordered []string `json:"ordered,omitempty"`

	// Head is the highest number that was in use before a restore of the store: numbers go on above it.
	Head uint64 `json:"head,omitempty"`

	// Judge is the evidence of the bake; between two bakes that of the one before.
	Judge *judge.State `json:"judge,omitempty"`
	Log   []Decision   `json:"log,omitempty"`
}

// Node is the newest evidence about one node.
type Node struct {
	Report report.Node
	At     time.Time // when it arrived here
}

// Evidence is what the caller knows of the world at one time.
type Evidence struct {
	Topology cells.Topology
	// Since is when the caller began to listen: nobody is called silent earlier than Config.Silence after it.
	Since       time.Time
	Nodes       map[cells.NodeID]Node
	Rounds      []*judge.Round                 // what a judge.Memory of judge.Window(Config.Bake) gives
	Probes      map[cells.CellID]health.Status // absent = unknown
	Evacuations []cells.Evacuation
}

// What a bake without enough evidence does.
const (
	OnInsufficientHold    = "hold"
	OnInsufficientProceed = "proceed-if-synthetics-pass"
)

// Config is the policy of all rollouts. Zero values are production's.
type Config struct {
	Bake           time.Duration // per ring; 2 min
	Serve          time.Duration // within which a released ring serves the version; 30 s
	Silence        time.Duration // without a report after which a node is missing; 10 s
	OnInsufficient string        // OnInsufficientHold
}

func (c Config) defaults() Config {
	set := func(d *time.Duration, to time.Duration) {
		if *d <= 0 {
			*d = to
		}
	}
	set(&c.Bake, 2*time.Minute)
	set(&c.Serve, 30*time.Second)
	set(&c.Silence, 10*time.Second)
	return c
}

// Highest is the highest number that the state knows to be given out.
func (s State) Highest() uint64 {
	n := max(s.Head, s.Version.Number, s.Stable.Number)
	if s.Next != nil {
		n = max(n, s.Next.Version.Number)
	}
	return n
}

// Active says whether a rollout is under way.
func (s State) Active() bool {
	switch s.Phase {
	case "", Live, RolledBack, Aborted, Superseded:
		return false
	}
	return true
}

// Encode gives the stored form.
func Encode(s State) ([]byte, error) {
	s.Form = Form
	return json.Marshal(s)
}

// Decode reads the stored form; a form newer than this binary's is an error.
func Decode(b []byte) (State, error) {
	var s State
	if err := json.Unmarshal(b, &s); err != nil {
		return State{}, fmt.Errorf("rollout: state: %w", err)
	}
	if s.Form < 1 || s.Form > Form {
		return State{}, fmt.Errorf("rollout: state of form %d is not readable here", s.Form)
	}
	return s, nil
}

// clone copies what a step may write.
func (s State) clone() State {
	s.Cells = maps.Clone(s.Cells)
	s.Nodes = maps.Clone(s.Nodes)
	s.Ring.Nodes = maps.Clone(s.Ring.Nodes)
	s.Log = slices.Clone(s.Log)
	s.Ordered = slices.Clone(s.Ordered)
	s.Judge = s.Judge.Clone()
	return s
}

// decide enters a phase and logs why.
func (s *State) decide(phase Phase, why string, now time.Time) {
	s.Phase = phase
	s.record(s.Version.Number, phase, s.Ring.name(), why, now)
}

func (s *State) record(version uint64, phase Phase, ring, why string, now time.Time) {
	if version == s.Version.Number {
		s.Why = why
	}
	s.Log = append(s.Log, Decision{At: now, Version: version, Phase: phase, Ring: ring, Why: why})
	if over := len(s.Log) - maxLog; over > 0 {
		s.Log = slices.Delete(s.Log, 0, over)
	}
	s.touch(now)
}

// touch says that the state must be stored before it is acted on.
func (s *State) touch(now time.Time) {
	s.Form = Form
	s.Rev++
	s.Changed = now
}

func (r Ring) name() string {
	if r.Kind == "" {
		return ""
	}
	return r.String()
}
