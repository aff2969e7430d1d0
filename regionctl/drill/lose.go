package drill

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
)

const (
	serveWithin = 3 * time.Second  // a killed proxy serves again
	goneWithin  = 10 * time.Second // a dead cell is in no answer
	backWithin  = 90 * time.Second // a returned cell has its clients again
	targetShare = 0.70             // of a cell's limit: what it may be given
	readyPath   = "/.well-known/cellgate/ready"
)

func gatewayProcess(ctx context.Context, s *session) error {
	node, cell, err := s.victim()
	if err != nil {
		return err
	}
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	killed, back, err := s.killNode(ctx, node)
	if err != nil {
		return err
	}
	if !pause.For(ctx, 3*time.Second) {
		return ctx.Err()
	}
	there := s.watch.before(killed)
	users := map[netip.Prefix]bool{}
	for q, a := range there.told {
		if a == cell.Address {
			users[q.client] = true
		}
	}
	all := requests()
	s.figure(most("serves again after", "s", serveWithin.Seconds(), back.Seconds()))
	s.figure(most("requests failed that were not in flight at the kill", "", 0, float64(failed(all, func(q load.Request) bool { return !inFlight(q, killed) }))))
	s.figure(most("requests failed in flight (limit: clients of the cell)", "", float64(len(users)), float64(failed(all, func(q load.Request) bool { return inFlight(q, killed) }))))
	s.figure(most("DNS answers changed", "", 0, float64(s.watch.changed(killed, time.Now()))))
	return nil
}

// victim is the node that --target names, or the first of the world.
func (s *session) victim() (Node, Cell, error) {
	for _, c := range s.at.cells() {
		for _, n := range c.Nodes {
			if s.o.Target == "" || s.o.Target == string(n.ID) {
				s.result.Target = string(n.ID)
				return n, c, nil
			}
		}
	}
	return Node{}, Cell{}, fmt.Errorf("the world has no node %q", s.o.Target)
}

// killNode kills a proxy and waits until another process serves in its place; at most ten times as long as it may take.
func (s *session) killNode(ctx context.Context, n Node) (killed time.Time, back time.Duration, err error) {
	name := "proxy/" + string(n.ID)
	before, err := s.world.Processes(ctx)
	if err != nil {
		return killed, 0, err
	}
	s.later(name+" runs", func(ctx context.Context) error { return s.world.Order(ctx, Start, name) })
	s.say("killing %s (pid %d)", name, before[name])
	killed = time.Now()
	if err := s.world.Order(ctx, Kill, name); err != nil {
		return killed, 0, err
	}
	for back < 10*serveWithin {
		now, err := s.world.Processes(ctx)
		if err == nil && now[name] != 0 && now[name] != before[name] && s.ask(ctx, n, s.at.Host, readyPath) == 200 {
			back = time.Since(killed)
			break
		}
		back = time.Since(killed)
		if !pause.For(ctx, 30*time.Millisecond) {
			return killed, back, ctx.Err()
		}
	}
	s.say("%s serves again after %.1f s", name, back.Seconds())
	return killed, back, nil
}

func lostCell(ctx context.Context, s *session) error {
	for _, c := range s.at.cells() {
		if s.o.Target == "" || s.o.Target == string(c.ID) {
			s.result.Target = string(c.ID)
			return s.lose(ctx, []Cell{c}, func(name string) bool { return strings.HasPrefix(name, "proxy/"+string(c.ID)+"/") })
		}
	}
	return fmt.Errorf("the world has no cell %q", s.o.Target)
}

// lostRegion takes the last region when none is named, and all of its processes but the services behind the gateway.
func lostRegion(ctx context.Context, s *session) error {
	if len(s.at.Regions) < 2 {
		return fmt.Errorf("the world has one region: nobody could take over")
	}
	for _, r := range slices.Backward(s.at.Regions) {
		if s.o.Target == "" || s.o.Target == string(r.ID) {
			s.result.Target = string(r.ID)
			return s.lose(ctx, r.Cells, func(name string) bool { return stands(name, r.ID) })
		}
	}
	return fmt.Errorf("the world has no region %q", s.o.Target)
}

// stands says whether the process stands in the region.
func stands(name string, region cells.RegionID) bool {
	role, id, _ := strings.Cut(name, "/")
	id = strings.TrimPrefix(id, "global/")
	return role != "backend" && role != "idp" && (id == string(region) || strings.HasPrefix(id, string(region)+"/"))
}

// lose kills processes with all of some cells, keeps them down, and brings them back.
func (s *session) lose(ctx context.Context, dead []Cell, of func(name string) bool) error {
	var lost []netip.Addr
	for _, c := range dead {
		lost = append(lost, c.Address)
	}
	names, err := s.processes(ctx, of)
	if err != nil {
		return err
	}
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	s.later(s.result.Target+" is started again", func(ctx context.Context) error { return s.world.Order(ctx, Start, names...) })
	s.say("killing %s", strings.Join(names, " "))
	killed := time.Now()
	if err := s.world.Order(ctx, Kill, names...); err != nil {
		return err
	}
	if err := s.world.Order(ctx, Stop, names...); err != nil { // nobody starts them again
		return err
	}
	gone, _ := s.watch.await(ctx, killed, 3*goneWithin, without(lost))
	s.say("gone from every answer after %.1f s", gone.Seconds())
	if !pause.For(ctx, 2*s.at.TTL) { // caches run out
		return ctx.Err()
	}
	down := time.Now()
	busiest, err := s.busiest(ctx, load.Sum(since(requests(), killed)), lost)
	if err != nil {
		return err
	}
	changed := s.watch.changed(killed, down, lost...)
	if err := s.undo(ctx); err != nil {
		return err
	}
	was := s.watch.before(killed).told
	restored := time.Now()
	back, _ := s.watch.await(ctx, restored, backWithin, home(was, lost))
	s.say("everybody is home after %.1f s", back.Seconds())
	s.judgeLoss(requests(), killed, was, lost)
	s.figure(most("gone from every answer after", "s", goneWithin.Seconds(), gone.Seconds()))
	s.figure(most("DNS answers changed for clients elsewhere", "", 0, float64(changed)))
	s.figure(most("busiest other cell, of its target", "%", 100, busiest))
	s.figure(most("everybody is home after its return", "s", backWithin.Seconds(), back.Seconds()))
	return ctx.Err()
}

func (s *session) processes(ctx context.Context, of func(string) bool) ([]string, error) {
	all, err := s.world.Processes(ctx)
	var names []string
	for name := range all {
		if of(name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("no process of %s is known", s.result.Target)
	}
	return names, err
}

// judgeLoss looks at the clients: those that were elsewhere, and those that were on what is lost.
func (s *session) judgeLoss(all []load.Request, killed time.Time, was map[question]netip.Addr, lost []netip.Addr) {
	on := map[netip.Prefix]bool{}
	for q, a := range was {
		if slices.Contains(lost, a) {
			on[q.client] = true
		}
	}
	last := time.Duration(0)
	for _, q := range all {
		if q.Failed() && on[q.Client] && !q.Start.Before(killed) {
			last = max(last, q.Start.Sub(killed))
		}
	}
	s.figure(most("requests failed of clients elsewhere", "", 0, float64(failed(all, func(q load.Request) bool { return !on[q.Client] }))))
	s.figure(most("last failure of a client that was there", "s", (goneWithin + s.at.TTL).Seconds(), last.Seconds()))
}

// busiest is the highest load that another cell had, in percent of what it may be given: by the load's own count and by what
// the controllers know.
func (s *session) busiest(ctx context.Context, sum load.Summary, lost []netip.Addr) (float64, error) {
	st, err := s.world.Status(ctx)
	if err != nil {
		return 0, err
	}
	most := 0.0
	for _, c := range s.at.cells() {
		i := slices.IndexFunc(st.Cells, func(x statusCell) bool { return x.ID == c.ID })
		if i < 0 || slices.Contains(lost, c.Address) {
			continue
		}
		if h := st.Cells[i].Headroom; h != nil {
			most = max(most, 100*(1-*h))
		}
		if got := sum.Cells[c.Address]; got != nil {
			most = max(most, 100*got.Peak/(targetShare*st.Cells[i].LimitRPS))
		}
	}
	return most, nil
}

func since(all []load.Request, from time.Time) []load.Request {
	return slices.DeleteFunc(slices.Clone(all), func(q load.Request) bool { return q.Start.Before(from) })
}

// home says that everybody is where he was, or on a neighbour of the same that was lost: within a region all cells are home.
func home(was map[question]netip.Addr, lost []netip.Addr) func(sample) bool {
	return func(s sample) bool {
		for q, a := range was {
			if now := s.told[q]; now != a && !(slices.Contains(lost, a) && slices.Contains(lost, now)) {
				return false
			}
		}
		return true
	}
}
