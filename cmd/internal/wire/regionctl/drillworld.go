package regionctl

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/regionctl"
	"github.com/cellgate/cellgate/regionctl/drill"
)

// drillWorld is a world on this machine as drills break it: processes through the supervisor's control socket, everything
// else through the operators' API.
type drillWorld struct {
	*client
	dir    string
	layout drill.Layout
}

// errNoSupervisor: drills need one.
var errNoSupervisor = errors.New("drills stop and kill real processes through the supervisor of a world that runs on this machine (cellgate up); this world has none")

// drillDir is the directory of the world whose records are meant.
func (w *where) drillDir() (string, error) {
	p, err := w.find()
	if err != nil {
		return "", err
	}
	if p.dir == "" {
		return "", fmt.Errorf("%w: %s names servers only (--world DIR names a directory)", errNoSupervisor, p.from)
	}
	return filepath.Abs(p.dir)
}

func (w *where) drillRecords() ([]drill.Result, error) {
	dir, err := w.drillDir()
	if err != nil {
		return nil, err
	}
	return drill.List(filepath.Join(dir, "drills"))
}

// drillWorld finds the world and makes sure that its supervisor takes orders.
func (w *where) drillWorld(ctx context.Context) (*drillWorld, error) {
	dir, err := w.drillDir()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := supervisor.Call(ctx, dir, supervisor.Request{Op: supervisor.Status}); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoSupervisor, err)
	}
	world, err := supervisor.Read(dir)
	if err != nil {
		return nil, err
	}
	c, err := w.client()
	if err != nil {
		return nil, err
	}
	layout, err := layoutOf(dir, world)
	return &drillWorld{client: c, dir: dir, layout: layout}, err
}

func (w *drillWorld) records() string { return filepath.Join(w.dir, "drills") }

// layoutOf translates world.json. Its DNS servers are its routers, in the order in which it lists their processes.
func layoutOf(dir string, world supervisor.World) (drill.Layout, error) {
	l := drill.Layout{
		DNS: world.DNS, Host: world.Host, Path: world.Path, TTL: time.Duration(world.TTL) * time.Second,
		Customer: world.Tokens.Customer, Limited: world.Tokens.Limited, Consul: world.Consul, Admin: world.Tokens.Admin, Roots: x509.NewCertPool(),
	}
	pem, err := os.ReadFile(world.CA)
	if err != nil {
		return l, err
	}
	if !l.Roots.AppendCertsFromPEM(pem) {
		return l, fmt.Errorf("%s holds no certificate", world.CA)
	}
	if key, err := os.ReadFile(filepath.Join(dir, "api-key")); err == nil {
		l.APIKey = strings.TrimSpace(string(key))
	}
	for _, r := range world.Regions {
		region := drill.Region{ID: r.ID, Clients: r.Clients}
		for _, c := range r.Cells {
			region.Cells = append(region.Cells, cellOf(c))
		}
		l.Regions = append(l.Regions, region)
	}
	if len(l.Regions) == 0 || len(l.DNS) == 0 {
		return l, fmt.Errorf("%s names no region or no DNS server", supervisor.WorldFile(dir))
	}
	return l, nil
}

func cellOf(c supervisor.Cell) drill.Cell {
	cell := drill.Cell{ID: c.ID, Address: c.Address, HTTPS: c.HTTPS}
	for _, p := range c.Proxies {
		cell.Nodes = append(cell.Nodes, drill.Node{ID: p.ID, At: netip.AddrPortFrom(p.Address, c.HTTPS), Admin: p.Admin})
	}
	return cell
}

func (w *drillWorld) Layout() drill.Layout { return w.layout }

func (w *drillWorld) Processes(ctx context.Context) (map[string]int, error) {
	res, err := supervisor.Call(ctx, w.dir, supervisor.Request{Op: supervisor.Status})
	pids := map[string]int{}
	for _, p := range res.Processes {
		pids[p.Name] = p.PID
	}
	return pids, err
}

func (w *drillWorld) Order(ctx context.Context, op string, names ...string) error {
	_, err := supervisor.Call(ctx, w.dir, supervisor.Request{Op: op, Patterns: names})
	return err
}

func (w *drillWorld) Slow(ctx context.Context, upstream string, by time.Duration) error {
	_, err := supervisor.Call(ctx, w.dir, supervisor.Request{
		Op: supervisor.Backend, Patterns: []string{"backend/" + upstream + "-*"}, Faults: &supervisor.Faults{Slow: by},
	})
	return err
}

// Keys goes by way of a file, so that no order of the supervisor is needed for it.
func (w *drillWorld) Keys(_ context.Context, set []byte) error {
	file := filepath.Join(w.dir, "keys", supervisor.MoreKeys)
	if set == nil {
		return os.Remove(file)
	}
	return durable.Write(file, set)
}

func (w *drillWorld) Status(ctx context.Context) (regionctl.Status, error) {
	return get[regionctl.Status](ctx, w.client, "/v1/status")
}

func (w *drillWorld) Document(ctx context.Context) (regionctl.VersionDocument, error) {
	return get[regionctl.VersionDocument](ctx, w.client, "/v1/config/versions/latest")
}

func (w *drillWorld) Explain(ctx context.Context, url string) (regionctl.Explained, error) {
	return post[regionctl.Explained](ctx, w.client, "/v1/config/explain", regionctl.ExplainRequest{Method: "GET", URL: url})
}

func (w *drillWorld) Publish(ctx context.Context, req regionctl.PublishRequest) (regionctl.Published, error) {
	return post[regionctl.Published](ctx, w.client, "/v1/config/versions", req)
}

func (w *drillWorld) Rollout(ctx context.Context, version uint64) (regionctl.RolloutStatus, error) {
	return get[regionctl.RolloutStatus](ctx, w.client, fmt.Sprintf("/v1/rollouts/%d", version))
}

func (w *drillWorld) Abort(ctx context.Context, why string) error {
	_, err := post[regionctl.RolloutStatus](ctx, w.client, "/v1/rollouts/current:abort", regionctl.RolloutOrder{Reason: why})
	return err
}

func (w *drillWorld) Rollback(ctx context.Context, to uint64, why string) error {
	_, err := post[regionctl.Published](ctx, w.client, fmt.Sprintf("/v1/config/versions/%d:rollback", to), regionctl.RollbackRequest{Message: why, Confirm: true})
	return err
}

func (w *drillWorld) Deny(ctx context.Context, req regionctl.DenyRequest) error {
	_, err := post[regionctl.Denied](ctx, w.client, "/v1/denials", req)
	return err
}

func (w *drillWorld) Permit(ctx context.Context, req regionctl.DenyRequest) error {
	_, err := post[regionctl.Denied](ctx, w.client, "/v1/denials:remove", req)
	return err
}
