// Package steer decides where clients go: Step turns the last plan and the evidence into the next plan.
// It is pure and works in integers, so that every architecture computes the same plan.
package steer

import (
	"net/netip"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// Form is the version of the stored form of Plan.
const Form = 1

// Slots is how many owned slots each (shard set, locality) has: steps of 0.4 %.
const Slots = 256

// Plan is the steering plan that routers answer from. Plans are ordered by (Epoch, Number); routers refuse older ones.
type Plan struct {
	Form    int       `json:"form"`
	Epoch   uint64    `json:"epoch"`  // the leader's election revision
	Number  uint64    `json:"number"` // strictly increasing within and across epochs
	Created time.Time `json:"created"`
	// Head is the highest version number given out when the plan was made. It never falls within one history of the store:
	// see WentBack.
	Head uint64 `json:"head,omitempty"`
	TTL  uint32 `json:"ttl"` // seconds, of steered answers

	// Cells in a fixed order; slots name them by index.
	Cells []Cell `json:"cells"`
	// Localities in a fixed order. Index 0 is always "unknown".
	Localities []Locality `json:"localities"`
	// Sets are the shard sets: which cells may carry the tenants of the set.
	Sets []Set `json:"sets"`
	// Names maps a steered DNS name (lower case, without the final dot) to an index of Sets.
	Names map[string]int `json:"names"`
	// Rows[set][locality] are the slots of one atom: the pair of a shard set and a locality.
	Rows [][]Row `json:"rows"`

	// Fallbacks are the rows that differ when a whole cell or region is lost, for routers without a leader, sorted by Lost.
	// A loss that would change no row, and one beyond the bound (see fallbacks), has none.
	Fallbacks []Fallback `json:"fallbacks,omitempty"`

	// AllDown: nothing was usable, so the plan answers as if everything were up (P9).
	AllDown bool `json:"all_down,omitempty"`
	// Unplaced names what found no room, bulk first (P5).
	Unplaced []Unplaced `json:"unplaced,omitempty"`
}

// Cell is a cell as a router needs it.
type Cell struct {
	ID        cells.CellID `json:"id"`
	Addresses []netip.Addr `json:"addresses"`
	// Evacuation is when the order began that the rows follow, in Unix milliseconds; 0 = none stands.
	Evacuation int64 `json:"evacuation_ms,omitempty"`
}

// Fallback is what the plan would be without a cell or region.
type Fallback struct {
	Lost string   `json:"lost"` // a cell id or a region id
	Rows []Detour `json:"rows"`
}

// Detour is the row of some atoms in a fallback: those of one set that then have the same row.
type Detour struct {
	Set        int   `json:"set"`        // index of Plan.Sets
	Localities []int `json:"localities"` // indices of Plan.Localities, ascending
	Row        Row   `json:"row"`
}

// Locality is a place that clients come from.
type Locality struct {
	ID       string         `json:"id"` // "unknown" or a region id
	Prefixes []netip.Prefix `json:"prefixes,omitempty"`
	// LatencyMS[i] is the round trip from here to Plan.Cells[i].
	LatencyMS []int32 `json:"latency_ms"`
}

// Set is a shard set with the salt of its slot hash.
type Set struct {
	ID    string   `json:"id"`
	Salt  uint64   `json:"salt"`
	Cells []uint16 `json:"cells"` // indices of Plan.Cells, ascending
}

// Unplaced is demand of an atom that no cell had room for.
type Unplaced struct {
	Set      string         `json:"set"`
	Locality string         `json:"locality"`
	Load     cells.MilliRPS `json:"milli_rps"`
	Why      string         `json:"why"`
}
