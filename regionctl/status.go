package regionctl

import (
	"fmt"
	"time"

	"github.com/cellgate/cellgate/capacity"
	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/health"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/snapshot"
)

// silent is the age at which a node that reports every two seconds is said to be silent.
const silent = 10 * time.Second

func (c *Controller) getStatus(*call) (any, error) {
	s := c.status(c.opt.Now())
	if s.Version == 0 && !c.intent.ready() {
		return nil, starting("it has read no store and heard no node yet; ask again, or ask another region")
	}
	return s, nil
}

func (c *Controller) status(now time.Time) Status {
	s := Status{Version: c.headNumber(), Rollout: c.currentRollout(), Nodes: c.nodeStatuses(now), Cells: c.cellStatuses(now), Regions: c.regionStatuses(now)}
	if !c.intent.ready() { // the newest version that any node has heard of is the best there is
		for _, n := range s.Nodes {
			s.Version = max(s.Version, n.Known)
		}
	}
	serving := 0
	for _, n := range s.Nodes {
		if n.Served == s.Version && n.AgeS >= 0 && n.AgeS < silent.Seconds() {
			serving++
		}
	}
	s.Summary = fmt.Sprintf("%d of %d nodes serve %d", serving, len(s.Nodes), s.Version)
	s.Warnings = c.warnings(s.Regions)
	return s
}

func (c *Controller) warnings(regions []RegionStatus) []string {
	var out []string
	if !c.intent.ready() {
		out = append(out, "this controller has not read the global store yet: the version is what its nodes say")
	}
	if c.globalSeen.lost.Load() {
		out = append(out, "the global store does not answer: nothing can be published, the regions go on with their copies; evacuate --break-glass, restore and deny still work")
	}
	if c.regionalSeen.lost.Load() {
		out = append(out, fmt.Sprintf("the store of region %s does not answer: its nodes are served from memory", c.opt.Region))
	}
	if !c.copied.ready() {
		out = append(out, "this controller has not read its region's store yet: evacuations and denials that hold may be missing here; nodes and routers keep theirs, restore and deny remove end them all the same")
	}
	out = append(out, c.spaceWarnings()...)
	if why := c.lineage.told(); why != "" {
		out = append(out, why)
	}
	for _, r := range regions {
		if !r.Heard {
			out = append(out, fmt.Sprintf("the controller of region %s is not heard: of its nodes only those that report elsewhere are seen", r.ID))
		}
	}
	if _, ok := c.leader(); !ok {
		out = append(out, "no controller leads: rollouts and steering stand still")
	}
	if p, ok := c.plan(); ok && p.AllDown {
		out = append(out, "no cell is usable: names are answered as if all were up")
	}
	return out
}

func (c *Controller) nodeStatuses(now time.Time) []NodeStatus {
	heard := map[cells.NodeID]fleet.Node{}
	for _, n := range c.evidence.Nodes() {
		heard[n.Report.ID] = n
	}
	out := []NodeStatus{}
	for _, cell := range c.opt.Topology.Cells() {
		for _, node := range cell.Nodes {
			n, ok := heard[node.ID]
			out = append(out, nodeStatus(node.ID, n, ok, now))
			delete(heard, node.ID)
		}
	}
	for _, n := range c.evidence.Nodes() { // nodes that the topology doesn't list
		if _, rest := heard[n.Report.ID]; rest {
			out = append(out, nodeStatus(n.Report.ID, n, true, now))
		}
	}
	return out
}

func nodeStatus(id cells.NodeID, n fleet.Node, heard bool, now time.Time) NodeStatus {
	s := NodeStatus{ID: id, Cell: id.Cell(), AgeS: -1, Reason: "never heard of since this controller runs"}
	if !heard {
		return s
	}
	r := n.Report
	age := now.Sub(n.Arrived)
	s = NodeStatus{
		ID: id, Cell: id.Cell(), Known: r.Snapshot.Known, Stored: r.Snapshot.Stored, Served: r.Snapshot.Served,
		Checksum: snapshot.Digest(r.Snapshot.Checksum), Source: string(r.Snapshot.Source), Ready: r.Ready,
		Reason: r.Snapshot.Nack, AgeS: seconds(age), Since: r.Snapshot.Since, Restarts: n.Boots - 1,
	}
	switch {
	case age > silent:
		s.Reason = fmt.Sprintf("silent for %s", age.Truncate(time.Second))
	case s.Reason == "" && !r.Ready:
		s.Reason = "not ready"
	}
	return s
}

func seconds(d time.Duration) float64 { return float64(d.Milliseconds()) / 1000 }

// order is the cell's evacuation order, if any.
func (c *Controller) order(id cells.CellID) (cells.Evacuation, bool) {
	for _, e := range c.evacuations() {
		if e.Cell == id {
			return e, true
		}
	}
	return cells.Evacuation{}, false
}

func (c *Controller) cellStatuses(now time.Time) []CellStatus {
	shares := c.shares()
	verdicts := c.verdicts.get()
	out := []CellStatus{}
	for _, l := range c.loads(now) {
		s := CellStatus{ID: l.Cell, State: cells.Active, Healthy: verdicts[l.Cell].Bool(), LimitRPS: rps(l.Limit), Share: shares[l.Cell], Why: c.verdicts.why(l.Cell)}
		if ev, ok := c.order(l.Cell); ok {
			if s.State = ev.State(now, c.opt.Ramp); s.State != cells.Active {
				s.Evacuation = &ev
			}
		}
		if l.Age >= 0 {
			s.RPS = new(rps(l.Load))
		}
		if free, ok := capacity.Headroom(l, capacity.Config{}); ok {
			s.Headroom = &free
		}
		out = append(out, s)
	}
	return out
}

// loads is every cell's load as the capacity arithmetic takes it, in the order of the topology.
func (c *Controller) loads(now time.Time) []capacity.Load {
	measured, verdicts := c.load(now), c.verdicts.get()
	var out []capacity.Load
	for _, cell := range c.opt.Topology.Cells() {
		l := capacity.Load{Cell: cell.ID, Class: cell.Class, Limit: cell.Limit, Age: -1}
		if m, ok := measured[cell.ID]; ok {
			l.Load, l.Age = m.RPS, m.Age
		}
		ev, _ := c.order(cell.ID)
		l.Out = verdicts[cell.ID] == health.Unhealthy || ev.Standing(now)
		out = append(out, l)
	}
	return out
}

// shares is the part of the plan's slots that name each cell.
func (c *Controller) shares() map[cells.CellID]float64 {
	out := map[cells.CellID]float64{}
	p, ok := c.plan()
	if !ok {
		return out
	}
	rows := 0
	for _, set := range p.Rows {
		for _, row := range set {
			rows++
			for _, i := range row {
				out[p.Cells[i].ID]++
			}
		}
	}
	for id := range out {
		out[id] /= float64(max(rows, 1) * steer.Slots)
	}
	return out
}

func rps(m cells.MilliRPS) float64 { return float64(m) / 1000 }

func (c *Controller) regionStatuses(now time.Time) []RegionStatus {
	leader, _ := c.leader()
	heard := map[cells.RegionID]fleet.Peer{}
	for _, p := range c.evidence.Peers() {
		heard[p.Region] = p
	}
	out := []RegionStatus{}
	for _, r := range c.opt.Topology.Regions {
		s := RegionStatus{ID: r.ID, AgeS: -1, Leader: leader.Region == r.ID}
		p, ok := heard[r.ID]
		switch {
		case r.ID == c.opt.Region:
			s.Heard, s.AgeS = true, 0
		case ok:
			age := now.Sub(p.Heard)
			s.Heard, s.AgeS = age < silent, seconds(age)
		}
		out = append(out, s)
	}
	return out
}

func (c *Controller) getCells(*call) (any, error) { return c.cellStatuses(c.opt.Now()), nil }

// CellDocument is one cell with its nodes.
type CellDocument struct {
	CellStatus
	Class cells.Class  `json:"class"`
	Nodes []NodeStatus `json:"nodes"`
}

func (c *Controller) getCell(r *call) (any, error) {
	id := cells.CellID(r.PathValue("id"))
	cell, ok := c.opt.Topology.Cell(id)
	if !ok {
		return nil, notFound("no cell %q in this world", id)
	}
	doc := CellDocument{Class: cell.Class}
	if doc.Class == "" {
		doc.Class = cells.Public
	}
	now := c.opt.Now()
	for _, s := range c.cellStatuses(now) {
		if s.ID == id {
			doc.CellStatus = s
		}
	}
	for _, n := range c.nodeStatuses(now) {
		if n.Cell == id {
			doc.Nodes = append(doc.Nodes, n)
		}
	}
	return doc, nil
}

func (c *Controller) getHeadroom(*call) (any, error) {
	loads := c.loads(c.opt.Now())
	var h Headroom
	byRegion := map[cells.RegionID][]capacity.Load{}
	for _, l := range loads {
		h.Cells = append(h.Cells, headroomRow(string(l.Cell), l))
		byRegion[l.Cell.Region()] = append(byRegion[l.Cell.Region()], l)
	}
	for _, r := range c.opt.Topology.Regions {
		h.Regions = append(h.Regions, headroomRow(string(r.ID), byRegion[r.ID]...))
	}
	h.World = headroomRow("world", loads...)
	return h, nil
}

func headroomRow(id string, loads ...capacity.Load) HeadroomRow {
	t := capacity.Sum(loads, capacity.Config{})
	row := HeadroomRow{ID: id, Limit: rps(t.Limit), Target: rps(t.Target)}
	if free, ok := t.Headroom(); ok {
		row.Headroom = &free
		row.RPS = new(rps(t.Load))
	}
	return row
}
