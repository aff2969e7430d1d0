// Package cells holds the words for where things run: regions, cells, nodes, traffic classes and the lifecycle of a cell.
package cells

import (
	"fmt"
	"net/netip"
	"strings"
)

// RegionID names a region, such as "eu-west".
type RegionID string

// CellID names a cell with its region, such as "eu-west/a".
type CellID string

// NodeID names one process: a proxy as "eu-west/a/1", a router or a controller as "eu-west/1".
type NodeID string

// Region is the part of the id before the first slash.
func (c CellID) Region() RegionID { return RegionID(before(string(c))) }

// Region is the part of the id before the first slash.
func (n NodeID) Region() RegionID { return RegionID(before(string(n))) }

// Cell is everything before the last slash: the cell of a proxy node.
func (n NodeID) Cell() CellID {
	if i := strings.LastIndexByte(string(n), '/'); i > 0 {
		return CellID(n[:i])
	}
	return CellID(n)
}

func before(s string) string {
	head, _, _ := strings.Cut(s, "/")
	return head
}

// Class is the traffic class of a cell and of the tenants it may carry; placement never mixes classes.
type Class string

// The traffic classes. The zero value means Public.
const (
	Public   Class = "public"
	Partner  Class = "partner"
	Internal Class = "internal"
)

// Priority orders requests under overload. The zero value means PriorityNormal.
type Priority string

// The request priorities, most important first.
const (
	PriorityCritical   Priority = "critical"
	PriorityNormal     Priority = "normal"
	PriorityBackground Priority = "background"
)

// MilliRPS is a request rate in thousandths of a request per second, the integer unit of all steering arithmetic.
type MilliRPS int64

// Cell is one cell as the topology names it.
type Cell struct {
	ID        CellID       `json:"id"`
	Class     Class        `json:"class,omitempty"`
	Addresses []netip.Addr `json:"addresses"`
	HTTPS     uint16       `json:"https"`
	HTTP      uint16       `json:"http,omitempty"`
	// Limit is the load at which the cell was last proven to hold, in milli-requests per second.
	Limit MilliRPS `json:"limit_milli_rps"`
	Nodes []Node   `json:"nodes"`
}

// Node is one proxy of a cell with its own address.
type Node struct {
	ID      NodeID         `json:"id"`
	Address netip.Addr     `json:"address"`
	Admin   netip.AddrPort `json:"admin"`
	// Peer is where other proxies reach it; not valid = it takes no forwarded requests.
	Peer netip.AddrPort `json:"peer,omitzero"`
}

// Region is one region with the client subnets that are nearest to it.
type Region struct {
	ID      RegionID       `json:"id"`
	Clients []netip.Prefix `json:"clients,omitempty"`
	Cells   []Cell         `json:"cells"`
}

// Topology is the whole world as bootstrap files state it: rollout and steering order regions and cells as listed.
type Topology struct {
	Regions []Region `json:"regions"`
	// LatencyMS[i][j] is the round trip in milliseconds from the clients of region i to region j.
	// Empty means 0 to itself and 100 to any other.
	LatencyMS [][]int32 `json:"latency_ms,omitempty"`
}

// Latency is the round trip in milliseconds from the clients of region i to region j.
func (t *Topology) Latency(i, j int) int32 {
	if i < len(t.LatencyMS) && j < len(t.LatencyMS[i]) {
		return t.LatencyMS[i][j]
	}
	if i == j {
		return 0
	}
	return 100
}

// Cells lists every cell in the order of the topology.
func (t *Topology) Cells() []Cell {
	var all []Cell
	for _, r := range t.Regions {
		all = append(all, r.Cells...)
	}
	return all
}

// Cell finds a cell by id.
func (t *Topology) Cell(id CellID) (Cell, bool) {
	for _, c := range t.Cells() {
		if c.ID == id {
			return c, true
		}
	}
	return Cell{}, false
}

// Validate reports the first thing wrong with the topology: no region, a doubled id, a cell outside its region, no address.
func (t *Topology) Validate() error {
	if len(t.Regions) == 0 {
		return fmt.Errorf("topology: no region")
	}
	seen := map[string]bool{}
	once := func(id string) error {
		if id == "" || seen[id] {
			return fmt.Errorf("topology: id %q is empty or used twice", id)
		}
		seen[id] = true
		return nil
	}
	for _, r := range t.Regions {
		if err := once(string(r.ID)); err != nil {
			return err
		}
		for _, c := range r.Cells {
			if err := once(string(c.ID)); err != nil {
				return err
			}
			if c.ID.Region() != r.ID || len(c.Addresses) == 0 || c.HTTPS == 0 {
				return fmt.Errorf("topology: cell %q must stand in its region %q and have an address and an https port", c.ID, r.ID)
			}
			for _, n := range c.Nodes {
				if err := once(string(n.ID)); err != nil {
					return err
				}
				if n.ID.Cell() != c.ID {
					return fmt.Errorf("topology: node %q must stand in its cell %q", n.ID, c.ID)
				}
			}
		}
	}
	return nil
}
