// Package report is the evidence that runs up: what one node saw in one window, and what one prober saw of one cell.
// Counters and sketches merge by addition, so a roll-up is the sum of its parts.
package report

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// Form is the version of the sent form of Node and Probe.
const Form = 1

// Source says where a node got the snapshot that it serves.
type Source string

// The sources of a snapshot.
const (
	SourcePush Source = "push"
	SourcePoll Source = "poll"
	SourceDisk Source = "disk"
	SourceFile Source = "file"
	SourceCopy Source = "copy" // the cell's own: a peer's disk or an object store
)

// Snapshot is a node's ledger of its configuration (C4).
type Snapshot struct {
	Known    uint64 `json:"known"`
	Stored   uint64 `json:"stored"`
	Served   uint64 `json:"served"`
	Checksum string `json:"checksum,omitempty"`
	Source   Source `json:"source,omitempty"`
	// Nack is why the last known version is not served; empty when it is or is about to be.
	Nack string `json:"nack,omitempty"`
	// Since is when the served snapshot was activated.
	Since time.Time `json:"since,omitzero"`
}

// Counts are what the node's exchanges came to in the window.
type Counts struct {
	Requests uint64 `json:"requests"`
	// Failures by cause: 5xx of the gateway's own, of the upstream, authentication refusals, no-route refusals.
	Gateway  uint64 `json:"gateway,omitempty"`
	Upstream uint64 `json:"upstream,omitempty"`
	Auth     uint64 `json:"auth,omitempty"`
	NoRoute  uint64 `json:"no_route,omitempty"`
	// Missing are the upstreams' answers 404, 405 and 410.
	Missing uint64 `json:"missing,omitempty"`
	// Limited are 429 answers, Shed are 503 answers for want of capacity.
	Limited uint64 `json:"limited,omitempty"`
	Shed    uint64 `json:"shed,omitempty"`
}

// Add sums b into c.
func (c *Counts) Add(b Counts) {
	c.Requests += b.Requests
	c.Gateway += b.Gateway
	c.Upstream += b.Upstream
	c.Auth += b.Auth
	c.NoRoute += b.NoRoute
	c.Missing += b.Missing
	c.Limited += b.Limited
	c.Shed += b.Shed
}

// Node is what one proxy saw in one window.
type Node struct {
	Form   int           `json:"form"`
	ID     cells.NodeID  `json:"id"`
	Boot   string        `json:"boot"` // random per process start: a change means a restart
	Seq    uint64        `json:"seq"`  // 1, 2, … within one boot
	Window time.Duration `json:"window_ns"`
	Ready  bool          `json:"ready"`

	Snapshot    Snapshot      `json:"snapshot"`
	Counts      Counts        `json:"counts"`
	Latency     Sketch        `json:"latency"` // whole exchange, client's view
	Added       Sketch        `json:"added"`   // whole exchange minus upstream
	Connections int64         `json:"connections"`
	InFlight    int64         `json:"in_flight"`
	CPU         time.Duration `json:"cpu_ns"` // process CPU time used in the window
	RSS         int64         `json:"rss_bytes"`
	// Busy are the routes that carried at least a two-hundredth of the requests of the last ten seconds or so.
	Busy Busy `json:"busy,omitzero"`

	// Change compares the contents that are served with those before; nil when the process has served no others lately.
	Change *Change `json:"change,omitempty"`

	// Services are the parts of the traffic by upstream, Hosts by the host that was asked for; sorted by id, at most
	// MaxStrata each. Empty from nodes that don't tell them.
	Services []Stratum `json:"services,omitempty"`
	Hosts    []Stratum `json:"hosts,omitempty"`
}

// Busy says which routes carry a node's traffic.
type Busy struct {
	Requests uint64            `json:"requests"`         // of all routes
	Routes   map[string]uint64 `json:"routes,omitempty"` // at most 200, by route id
}

// BusyOf keeps the routes that matter of all that were counted.
func BusyOf(counts map[string]uint64) Busy {
	b := Busy{}
	for _, n := range counts {
		b.Requests += n
	}
	for route, n := range counts {
		if route != "" && n > 0 && n*200 >= b.Requests {
			if b.Routes == nil {
				b.Routes = map[string]uint64{}
			}
			b.Routes[route] = n
		}
	}
	return b
}

// Probe is what one prober saw of one cell (or, with Node set, of one node) in one try.
type Probe struct {
	Form    int            `json:"form"`
	From    cells.RegionID `json:"from"`
	Cell    cells.CellID   `json:"cell"`
	Node    cells.NodeID   `json:"node,omitempty"`
	OK      bool           `json:"ok"`
	Why     string         `json:"why,omitempty"` // what failed, in words
	Latency time.Duration  `json:"latency_ns"`
}

// EncodeNode gives the sent form.
func EncodeNode(n Node) ([]byte, error) {
	n.Form = Form
	if err := n.bound(); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return json.Marshal(n)
}

// DecodeNode reads the sent form; a form newer than this binary's is an error.
func DecodeNode(b []byte) (Node, error) {
	var n Node
	if err := json.Unmarshal(b, &n); err != nil {
		return Node{}, fmt.Errorf("report: %w", err)
	}
	if n.Form < 1 || n.Form > Form || n.ID == "" {
		return Node{}, fmt.Errorf("report: form %d of node %q is not readable here", n.Form, n.ID)
	}
	if !n.fits() || !n.Change.fits() {
		return Node{}, fmt.Errorf("report: the strata or changed routes of node %q are beyond their bounds", n.ID)
	}
	return n, nil
}

// EncodeProbes gives the sent form of a prober's round.
func EncodeProbes(ps []Probe) ([]byte, error) {
	for i := range ps {
		ps[i].Form = Form
	}
	return json.Marshal(ps)
}

// DecodeProbes reads the sent form.
func DecodeProbes(b []byte) ([]Probe, error) {
	var ps []Probe
	if err := json.Unmarshal(b, &ps); err != nil {
		return nil, fmt.Errorf("report: probes: %w", err)
	}
	for _, p := range ps {
		if p.Form < 1 || p.Form > Form || p.Cell == "" {
			return nil, fmt.Errorf("report: form %d of probe of %q is not readable here", p.Form, p.Cell)
		}
	}
	return ps, nil
}
