package regionctl

import (
	"encoding/json"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/problem"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/snapshot"
)

// The documents of the operators' HTTP API. Fields are only ever added.

// Status is what GET /v1/status answers.
type Status struct {
	// Version is the newest published number, which every node serves once its rollout is done.
	Version uint64 `json:"version"`
	// Rollout is the one that is running; null when none is.
	Rollout *RolloutStatus `json:"rollout"`
	Nodes   []NodeStatus   `json:"nodes"`
	Cells   []CellStatus   `json:"cells"`
	Regions []RegionStatus `json:"regions"`
	// Summary says it in one line, such as "15 of 16 nodes serve 42".
	Summary  string   `json:"summary"`
	Warnings []string `json:"warnings,omitempty"`
}

// RolloutStatus is one rollout.
type RolloutStatus struct {
	Version  uint64    `json:"version"`
	Previous uint64    `json:"previous"`
	State    string    `json:"state"`
	Ring     string    `json:"ring,omitempty"`
	Why      string    `json:"why"`
	Started  time.Time `json:"started,omitzero"`
	Ended    time.Time `json:"ended,omitzero"`
	History  []string  `json:"history,omitempty"`
}

// NodeStatus is the ledger of one proxy (C4).
type NodeStatus struct {
	ID       cells.NodeID    `json:"id"`
	Cell     cells.CellID    `json:"cell"`
	Known    uint64          `json:"known"`
	Stored   uint64          `json:"stored"`
	Served   uint64          `json:"served"`
	Checksum snapshot.Digest `json:"checksum,omitempty"`
	Source   string          `json:"source,omitempty"`
	Ready    bool            `json:"ready"`
	// Reason is empty for a node in order; else its NACK or why nothing better is known.
	Reason string `json:"reason"`
	// AgeS is how long ago the node was last heard, in seconds; -1 = never since this controller runs.
	AgeS     float64   `json:"age_s"`
	Since    time.Time `json:"since,omitzero"`
	Restarts int       `json:"restarts"`
}

// CellStatus is one cell.
type CellStatus struct {
	ID      cells.CellID `json:"id"`
	State   cells.State  `json:"state"`
	Healthy *bool        `json:"healthy"`
	// Headroom is the free part of what the cell may carry (its target), 0…1, negative above it; null when the load is unknown.
	Headroom *float64 `json:"headroom"`
	RPS      *float64 `json:"rps"`
	LimitRPS float64  `json:"limit_rps"`
	// Share is the part of all slots of the plan that name the cell, 0…1.
	Share      float64           `json:"share"`
	Evacuation *cells.Evacuation `json:"evacuation,omitempty"`
	Why        string            `json:"why,omitempty"`
}

// RegionStatus is one region's controller as the answering controller sees it.
type RegionStatus struct {
	ID cells.RegionID `json:"id"`
	// Heard is whether its controller is heard now; the nodes of a region that is not are known by their last report.
	Heard  bool    `json:"heard"`
	AgeS   float64 `json:"age_s"`
	Leader bool    `json:"leader"`
}

// PublishRequest is the body of POST /v1/config/versions.
type PublishRequest struct {
	Files   []PublishFile `json:"files"`
	Owner   string        `json:"owner,omitempty"`
	Message string        `json:"message,omitempty"`
	Confirm bool          `json:"confirm,omitempty"`
	DryRun  bool          `json:"dry_run,omitempty"`
	// AllowUpstreams are prefixes that upstreams may use beyond the ordinary ones, such as 127.0.0.0/8.
	AllowUpstreams []string `json:"allow_upstreams,omitempty"`
}

// PublishFile is one document.
type PublishFile struct {
	Name string `json:"name"`
	Data string `json:"data"`
}

// Published answers a publication or a rollback.
type Published struct {
	// Version is the number given; in a dry run the number that would have been given.
	Version  uint64          `json:"version"`
	Checksum snapshot.Digest `json:"checksum"`
	Previous uint64          `json:"previous"`
	// Unchanged says that the content equals the previous version's.
	Unchanged bool            `json:"unchanged"`
	DryRun    bool            `json:"dry_run,omitempty"`
	Counts    snapshot.Counts `json:"counts"`
	Added     int             `json:"routes_added"`
	Changed   int             `json:"routes_changed"`
	Removed   int             `json:"routes_removed"`
}

// Version is one published snapshot.
type Version struct {
	Number     uint64          `json:"number"`
	Status     string          `json:"status"` // queued, canary, live, rolled_back or superseded
	Checksum   snapshot.Digest `json:"checksum"`
	Created    time.Time       `json:"created"`
	Author     string          `json:"author"`
	Message    string          `json:"message,omitempty"`
	Owner      string          `json:"owner,omitempty"`
	Previous   uint64          `json:"previous"`
	RollbackOf uint64          `json:"rollback_of,omitempty"`
	MinReader  int             `json:"min_reader"`
	Counts     snapshot.Counts `json:"counts"`
	Manifest   snapshot.Digest `json:"manifest"`
}

// VersionDocument is a version with its content in canonical form.
type VersionDocument struct {
	Version
	Document string `json:"document"`
}

// RollbackRequest is the body of POST /v1/config/versions/{n}:rollback.
type RollbackRequest struct {
	Message string `json:"message,omitempty"`
	Confirm bool   `json:"confirm,omitempty"`
	DryRun  bool   `json:"dry_run,omitempty"`
}

// ExplainRequest asks which route takes a request in a published version.
type ExplainRequest struct {
	Version uint64            `json:"version,omitempty"` // 0 = the newest
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
	// Claims are those of the caller's token, session or introspection; Consumer is whose API key it has.
	Claims   json.RawMessage `json:"claims,omitempty"`
	Consumer string          `json:"consumer,omitempty"`
}

// Explained is the look-up with the working shown.
type Explained struct {
	Version uint64 `json:"version"`
	program.Explanation
}

// RolloutOrder is the body of POST /v1/rollouts/current:VERB.
type RolloutOrder struct {
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// EvacuateRequest is the body of POST /v1/evacuations; What is a cell or a region.
type EvacuateRequest struct {
	What    string `json:"what"`
	Reason  string `json:"reason"`
	Over    string `json:"over,omitempty"`    // duration; empty = 5m
	Expires string `json:"expires,omitempty"` // duration from now; empty = 2h
	Force   bool   `json:"force,omitempty"`
	// BreakGlass skips the question of headroom, and goes through the regions when the global store doesn't answer.
	BreakGlass bool `json:"break_glass,omitempty"`
	// NoForward keeps the cell's proxies from handing requests that still come to the cells that have their clients then.
	NoForward bool `json:"no_forward,omitempty"`
	DryRun    bool `json:"dry_run,omitempty"`
}

// DenyRequest is the body of POST /v1/denials, and of POST /v1/denials:remove.
type DenyRequest struct {
	Kind   string         `json:"kind"` // user, token, key or route
	ID     string         `json:"id"`
	Issuer string         `json:"issuer,omitempty"` // of users and tokens; empty = any
	Region cells.RegionID `json:"region,omitempty"` // empty = everywhere
	Reason string         `json:"reason"`
	For    string         `json:"for,omitempty"` // duration; empty = as long as a token may live, 30 days for keys, 24 h for routes
	// Confirm denies a route although it carries much traffic.
	Confirm bool `json:"confirm,omitempty"`
	DryRun  bool `json:"dry_run,omitempty"`
}

// Denied answers both.
type Denied struct {
	Entry    denylist.Entry `json:"entry"`
	Reached  []RegionReach  `json:"reached,omitempty"`
	DryRun   bool           `json:"dry_run,omitempty"`
	Warnings []string       `json:"warnings,omitempty"`
}

// Denials is what GET /v1/denials answers.
type Denials struct {
	Entries  []denylist.Entry `json:"entries"`
	Used     int              `json:"used"`
	Limit    int              `json:"limit"`
	Warnings []string         `json:"warnings,omitempty"`
}

// Key is one API key of a consumer, by its hash.
type Key struct {
	// ID is the public part of an issued key; empty for one that stands in a document.
	ID       string    `json:"id,omitempty"`
	Consumer string    `json:"consumer"`
	Hash     string    `json:"hash"`
	Issued   time.Time `json:"issued,omitzero"`
	By       string    `json:"by,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	// Document is the version in whose documents it stands; 0 = it was issued.
	Document uint64 `json:"document,omitempty"`
}

// Keys is what GET /v1/keys answers.
type Keys struct {
	Keys     []Key    `json:"keys"`
	Issued   int      `json:"issued"` // of all consumers
	Limit    int      `json:"limit"`
	Warnings []string `json:"warnings,omitempty"`
}

// KeyRequest is the body of POST /v1/keys.
type KeyRequest struct {
	Consumer string `json:"consumer"`
	Reason   string `json:"reason,omitempty"`
	DryRun   bool   `json:"dry_run,omitempty"`
}

// IssuedKey answers it. Secret is the key itself, which nobody can ask for again.
type IssuedKey struct {
	Secret string `json:"key,omitempty"`
	Key
	DryRun bool `json:"dry_run,omitempty"`
}

// KeyRevocation is the body of POST /v1/keys:revoke.
type KeyRevocation struct {
	ID     string `json:"id"`
	Reason string `json:"reason"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// RevokedKey answers it.
type RevokedKey struct {
	Key
	DryRun bool `json:"dry_run,omitempty"`
}

// RestoreRequest is the body of POST /v1/restorations.
type RestoreRequest struct {
	What   string `json:"what"`
	Reason string `json:"reason,omitempty"`
	DryRun bool   `json:"dry_run,omitempty"`
}

// Evacuated answers both: the orders as they stand, and what they do.
type Evacuated struct {
	Orders []cells.Evacuation `json:"orders"`
	// Outcomes say where the traffic goes and what is left, one for each cell in turn.
	Outcomes []steer.Outcome `json:"outcomes,omitempty"`
	DryRun   bool            `json:"dry_run,omitempty"`
	Warnings []string        `json:"warnings,omitempty"`
	// Path says how the order went: PathGlobal or PathRegional.
	Path    string        `json:"path,omitempty"`
	Reached []RegionReach `json:"reached,omitempty"` // by the regional path
}

// The ways that an order takes.
const (
	PathGlobal   = "global"   // stored in the global store; the leader acts on it
	PathRegional = "regional" // told to every region that can be reached, which act on it by themselves
)

// RegionReach says whether a region's controller took an order.
type RegionReach struct {
	Region cells.RegionID `json:"region"`
	Taken  bool           `json:"taken"`
	// Stored: the region's store has it. Else it is in its controller's memory and on its processes' disks.
	Stored bool   `json:"stored"`
	Why    string `json:"why,omitempty"` // it was not taken; it is told again until it is
}

// DNSExplained says why a client gets the answer it gets.
type DNSExplained struct {
	Name      string       `json:"name"`
	Client    string       `json:"client"`
	Steered   bool         `json:"steered"`
	Locality  string       `json:"locality,omitempty"`
	Prefix    string       `json:"prefix,omitempty"` // the client prefix that decided
	Set       string       `json:"set,omitempty"`
	Slot      int          `json:"slot"`
	Cell      cells.CellID `json:"cell,omitempty"`
	Addresses []string     `json:"addresses,omitempty"`
	TTL       uint32       `json:"ttl,omitempty"`
	Plan      PlanID       `json:"plan"`
	// Shares is how the locality's clients are spread over cells, in slots of 256.
	Shares map[cells.CellID]int `json:"shares,omitempty"`
	Why    string               `json:"why,omitempty"`
}

// PlanID orders plans.
type PlanID struct {
	Epoch  uint64 `json:"epoch"`
	Number uint64 `json:"number"`
}

// Headroom is what GET /v1/capacity/headroom answers.
type Headroom struct {
	Cells   []HeadroomRow `json:"cells"`
	Regions []HeadroomRow `json:"regions"`
	World   HeadroomRow   `json:"world"`
}

// HeadroomRow is one cell, region or the world. Rates are requests per second; a null rate is unknown.
type HeadroomRow struct {
	ID       string   `json:"id"`
	RPS      *float64 `json:"rps"`
	Limit    float64  `json:"limit"`
	Target   float64  `json:"target"`
	Headroom *float64 `json:"headroom"` // part of Target that is free
}

// AuditEntry is one change that somebody made.
type AuditEntry struct {
	Form   int       `json:"form"`
	At     time.Time `json:"at"`
	Who    string    `json:"who"`
	What   string    `json:"what"`
	On     string    `json:"on"`
	Why    string    `json:"why,omitempty"`
	Before string    `json:"before,omitempty"`
	After  string    `json:"after,omitempty"`
	Region string    `json:"region"` // whose controller took it
}

// Fault is an RFC 9457 problem document. Reason is a stable token.
type Fault struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Reason string `json:"reason"`
	// Refused: a safety rule refused it (exit code 3); Flag overrides the rule where one may.
	Refused  bool         `json:"refused,omitempty"`
	Flag     string       `json:"flag,omitempty"`
	Problems problem.List `json:"problems,omitempty"`
	// Outcomes show what a refused evacuation would have done.
	Outcomes []steer.Outcome `json:"outcomes,omitempty"`
}

// Error is the fault in words.
func (f *Fault) Error() string {
	if len(f.Problems) > 0 {
		return f.Problems.Error()
	}
	if f.Detail == "" {
		return f.Title
	}
	return f.Detail
}
