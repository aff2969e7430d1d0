package steer

import (
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/health"
)

// Unknown is the locality of clients that no prefix claims: home in every region alike.
const Unknown = "unknown"

// StateForm is the version of the stored form of State.
const StateForm = 1

// The shares of a cell's limit, in percent. Every level is filled everywhere before the next one is opened.
var ladder = [...]int64{70, 73, 76, 79, 82, 85, 90, 95, 100}

const (
	band        = 5     // ms: cells this near to the nearest one are one home
	guestBonus  = 300   // ms by which slots that are not at home are cheaper to move
	floorDemand = Slots // milli-rps: an idle atom still weighs something, one milli-rps a slot
	// floorUnknown is so much smaller that load which could be either's is taken for that of a region's own clients:
	// those would all go to the same neighbour when their cell goes, the unknown ones to all cells alike.
	floorUnknown = floorDemand / 16
	maxLoad      = 1_000_000_000_00 // milli-rps: what is reported beyond is cut
	fresh        = 30 * time.Second // an older load says nothing
	settle       = 3                // TTLs after a move until loads are where the slots are
	maxGap       = 10 * time.Second // a longer silence between steps earns no larger inflow
	rampUnit     = 600 * time.Second
)

// State is all that the steering remembers from one step to the next; a new leader goes on from it.
// Demand and Cells run parallel to Plan.Sets × Plan.Localities and to Plan.Cells.
type State struct {
	Form   int                `json:"form"`
	Plan   Plan               `json:"plan"`
	Demand [][]cells.MilliRPS `json:"demand"`
	Cells  []CellState        `json:"cells"`
	// Starting: no plan has yet seen every cell healthy, so nothing that comes up is a recovery. Ends after one ramp at the latest.
	Starting bool      `json:"starting,omitempty"`
	Started  time.Time `json:"started,omitzero"`
	Stepped  time.Time `json:"stepped,omitzero"` // the last step
	Moved    time.Time `json:"moved,omitzero"`   // the last step that moved a slot
	// FallbackDue is how many of the plan's fallbacks are still to be made anew, from the one of FallbackNext on in the order of ids.
	FallbackDue  int    `json:"fallback_due,omitempty"`
	FallbackNext string `json:"fallback_next,omitempty"`
	// Refused says why the last step kept the old plan although it was asked for another; empty otherwise.
	Refused string `json:"refused,omitempty"`
}

// CellState is what is remembered of a cell.
type CellState struct {
	Down       bool      `json:"down,omitempty"`        // unhealthy, and not healthy since
	Seen       bool      `json:"seen,omitempty"`        // was healthy once
	Recovering time.Time `json:"recovering,omitzero"`   // when it came back
	Order      time.Time `json:"evacuation,omitzero"`   // Started of the evacuation that Held belongs to
	Held       [][]int   `json:"held_slots,omitempty"`  // slots held when that evacuation began, by set and locality
	Granted    int64     `json:"granted_m256,omitzero"` // for people: granted load × 256 after the last step
	Room       int64     `json:"room_m256,omitzero"`    // what the fallbacks took the cell to have room for, see work.room
}

// CellLoad is what a cell's nodes measured together. Shed, refused and failed requests count as load.
type CellLoad struct {
	RPS cells.MilliRPS
	Age time.Duration // since the newest window ended
}

// Inputs is the evidence and the intent of one step.
type Inputs struct {
	Topology cells.Topology
	// Names maps a steered name (lower case, no final dot) to the class whose cells may carry it.
	Names map[string]string
	TTL   time.Duration
	Epoch uint64 // the leader's election revision; a step of an older epoch than the state's changes nothing
	Head  uint64 // the highest version number given out
	// Health of each cell; absent means unknown: it keeps what it has and receives nothing.
	Health map[cells.CellID]health.Status
	Load   map[cells.CellID]CellLoad
	// Evacuations are the standing orders and those whose ramp back may still run, in any order.
	Evacuations []cells.Evacuation
	// Ramp is how long a recovered or restored cell takes to be full again; zero means 10 minutes.
	Ramp time.Duration
}

// floor is the least demand of an atom at the locality.
func floor(loc int) cells.MilliRPS {
	if loc == 0 {
		return floorUnknown
	}
	return floorDemand
}

func (in *Inputs) ramp() time.Duration {
	if in.Ramp <= 0 {
		return rampUnit
	}
	return in.Ramp
}

// Granted is what the plan gives the cell at the estimated demand.
func (s *State) Granted(id cells.CellID) cells.MilliRPS {
	for c := range s.Plan.Cells {
		if s.Plan.Cells[c].ID != id {
			continue
		}
		var sum int64
		for set, rows := range s.Plan.Rows {
			for loc, row := range rows {
				sum += int64(s.Demand[set][loc]) * int64(row.count(c))
			}
		}
		return cells.MilliRPS(sum / Slots)
	}
	return 0
}

// Outcome is what an order would do, were it to take effect at once.
type Outcome struct {
	Cell cells.CellID   `json:"cell"`
	Load cells.MilliRPS `json:"milli_rps"` // what would have to go elsewhere
	// Moves says where it goes, nearest the topology's order first.
	Moves []Move `json:"moves,omitempty"`
	// Cells are all other usable cells after it.
	Cells    []Room     `json:"cells,omitempty"`
	Unplaced []Unplaced `json:"unplaced,omitempty"`
	// Bystanders names the atoms ("set at locality") that change although they are not on the cell.
	Bystanders []string `json:"bystanders,omitempty"`
	// Refused says why the order should not be taken; empty means that it may.
	Refused string `json:"refused,omitempty"`
}

// Move is load that one cell would receive.
type Move struct {
	To   cells.CellID   `json:"to"`
	Load cells.MilliRPS `json:"milli_rps"`
	// Clients[locality] is how many of the locality's 256 slots go there, over all sets.
	Clients map[string]int `json:"clients"`
}

// Room is what a cell carries after the order and what is left below its target.
type Room struct {
	ID       cells.CellID   `json:"id"`
	Before   cells.MilliRPS `json:"before_milli_rps"`
	After    cells.MilliRPS `json:"after_milli_rps"`
	Target   cells.MilliRPS `json:"target_milli_rps"`
	Headroom cells.MilliRPS `json:"headroom_milli_rps"` // Target − After; negative means above target
}
