// Package drill breaks a running world on purpose, under load of its own, and measures what its users see against pass
// figures. A drill undoes whatever it did, also when it is broken off.
//
//	d, ok := drill.Find("cell")
//	result, err := drill.Run(ctx, world, d, drill.Options{Rate: 150, Say: say})
//	err = drill.Save(dir, result)
//
// The owner of the world implements World; nothing here knows how a world is run.
package drill

import (
	"context"
	"crypto/x509"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/regionctl"
)

// Orders that a World takes for its processes.
const (
	Start = "start" // and wait until they are ready
	Stop  = "stop"  // they stay down
	Kill  = "kill"  // SIGKILL; they are started again by themselves
)

// World is a running world as a drill needs it.
type World interface {
	// Layout says what is where. It doesn't change while the world runs.
	Layout() Layout
	// Processes are the processes by name, "role/id", with their process ids, 0 = down.
	Processes(ctx context.Context) (map[string]int, error)
	// Order gives the processes an order and returns when it is carried out.
	Order(ctx context.Context, op string, names ...string) error
	// Slow makes every backend of an upstream wait before each answer; 0 makes it good again.
	Slow(ctx context.Context, upstream string, by time.Duration) error
	// Keys makes the identity provider publish a key set beside its own keys; nil = its own alone again.
	Keys(ctx context.Context, set []byte) error

	Status(ctx context.Context) (regionctl.Status, error)
	Document(ctx context.Context) (regionctl.VersionDocument, error)
	Explain(ctx context.Context, url string) (regionctl.Explained, error)
	Publish(ctx context.Context, req regionctl.PublishRequest) (regionctl.Published, error)
	Rollout(ctx context.Context, version uint64) (regionctl.RolloutStatus, error)
	Abort(ctx context.Context, why string) error
	Rollback(ctx context.Context, to uint64, why string) error
	Deny(ctx context.Context, req regionctl.DenyRequest) error
	Permit(ctx context.Context, req regionctl.DenyRequest) error
}

// Layout is what is where in a world.
type Layout struct {
	DNS        []string // routers, host:port
	Host, Path string   // what clients ask for
	Customer   string   // bearer token that is good for it
	Limited    string   // one whose consumer has a low limit; empty = none is known
	Consul     string   // where proxies look for a Consul agent, host:port; empty = nowhere
	Admin      string   // bearer token of the nodes' admin servers
	APIKey     string   // of some consumer; empty = none is known
	Roots      *x509.CertPool
	TTL        time.Duration // of steered answers
	Regions    []Region
}

// Region is one region.
type Region struct {
	ID      cells.RegionID
	Clients []netip.Prefix
	Cells   []Cell
}

// Cell is one cell; its port is that of its nodes too.
type Cell struct {
	ID      cells.CellID
	Address netip.Addr
	HTTPS   uint16
	Nodes   []Node
}

// Node is one proxy.
type Node struct {
	ID    cells.NodeID
	At    netip.AddrPort // HTTPS of its own
	Admin netip.AddrPort
}

func (l *Layout) cells() []Cell {
	var all []Cell
	for _, r := range l.Regions {
		all = append(all, r.Cells...)
	}
	return all
}

func (l *Layout) nodes() []Node {
	var all []Node
	for _, c := range l.cells() {
		all = append(all, c.Nodes...)
	}
	return all
}

// Drill is one failure, with what it proves.
type Drill struct {
	Name string
	// Short says what fails; Proves what must hold meanwhile.
	Short, Proves string
	// Target is what --target names; empty = it takes none.
	Target string
	run    func(ctx context.Context, s *session) error
}

// All lists the drills.
func All() []Drill {
	return []Drill{
		{"gateway-process", "one proxy is killed", "only what was in flight there may fail; it serves again within 3 s", "NODE", gatewayProcess},
		{"cell", "every proxy of a cell dies", "gone from all answers within 10 s; nobody else notices; no other cell passes its target", "CELL", lostCell},
		{"region", "every process of a region dies", "gone from all answers within 10 s; nobody else notices; no other cell passes its target", "REGION", lostRegion},
		{"control-plane", "every regionctl and every etcd stops", "traffic and DNS go on unchanged; a proxy that dies meanwhile serves from its disk", "", controlPlane},
		{"quota-store", "every regionctl stops, and with them the buckets of all limits", "nobody below his limit notices; nodes keep limits by their own parts and settle them again afterwards", "", quotaStore},
		{"bad-config", "a version is published that fails every request of a route", "it is undone by itself and never leaves the canary node", "", badConfig},
		{"identity-provider", "the identity provider stops", "good tokens stay good, made-up ones stay refused, also at a proxy that restarts meanwhile", "", identityProvider},
		{"leaked-key", "an API key is denied", "refused at every node within 2 s, nobody else is", "", leakedKey},
		{"slow-upstream", "the backends of one upstream become slow", "routes of other upstreams stay as fast as they were", "", slowUpstream},
		{"backend", "one backend of an upstream dies, then all of them", "retries and ejection hide the one; of all, the route says so at once, and other routes notice nothing", "", deadBackend},
		{"discovery", "the Consul agent that tells of an upstream's endpoints dies", "its endpoints stay, also at a proxy that restarts meanwhile", "", lostDiscovery},
		{"key-rotation", "the identity provider signs with a new key", "tokens of the new key are good at every node, those of the old one stay good", "", keyRotation},
		{"hot-key", "one consumer asks far more than its limit admits", "it is admitted at its limit, and nobody else notices", "", hotKey},
		{"handshake-storm", "many clients connect to one cell anew for every request", "they are served, and clients that are connected stay as fast as they were", "", handshakeStorm},
	}
}

// Aim says whether the drill can be done to the target; empty = the drill chooses.
func (d Drill) Aim(l Layout, target string) error {
	names := map[string]bool{"": true}
	switch d.Target {
	case "NODE":
		for _, n := range l.nodes() {
			names[string(n.ID)] = true
		}
	case "CELL":
		for _, c := range l.cells() {
			names[string(c.ID)] = true
		}
	case "REGION":
		for _, r := range l.Regions {
			names[string(r.ID)] = true
		}
	}
	switch {
	case names[target]:
		return nil
	case d.Target == "":
		return fmt.Errorf("the drill %s takes no target", d.Name)
	}
	return fmt.Errorf("the world has no %s %q", strings.ToLower(d.Target), target)
}

// Find gives the drill with that name.
func Find(name string) (Drill, bool) {
	for _, d := range All() {
		if d.Name == name {
			return d, true
		}
	}
	return Drill{}, false
}
