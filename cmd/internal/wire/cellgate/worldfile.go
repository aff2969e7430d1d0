package cellgate

import (
	"os"
	"strings"

	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/internal/supervise"
)

func (l *layout) worldFile(h home, t tokens, ttl int, processes []supervise.Status) supervisor.World {
	w := supervisor.World{
		Admin: l.apiURLs(0)[0], CA: h.caFile(), Zone: worldName, Host: sampleHost, Path: samplePath, TTL: ttl, Consul: l.consul().String(),
		Tokens: supervisor.Tokens{Admin: t.Admin, Customer: t.Customer, Limited: t.Limited}, Supervisor: os.Getpid(),
	}
	for _, r := range l.routers() {
		w.DNS = append(w.DNS, r.String())
	}
	pids := map[string]int{}
	for _, p := range processes {
		role, id, _ := strings.Cut(p.Name, "/")
		w.Processes = append(w.Processes, supervisor.Process{Role: role, ID: id, PID: p.PID})
		pids[p.Name] = p.PID
	}
	for i, r := range l.topology.Regions {
		region := supervisor.Region{ID: r.ID, Clients: r.Clients, Admin: "https://" + l.api(i).String()}
		for _, c := range r.Cells {
			cell := supervisor.Cell{ID: c.ID, Address: c.Addresses[0], HTTPS: c.HTTPS, HTTP: c.HTTP}
			for _, n := range c.Nodes {
				cell.Proxies = append(cell.Proxies, supervisor.Proxy{ID: n.ID, Address: n.Address, PID: pids["proxy/"+string(n.ID)], Admin: n.Admin})
			}
			region.Cells = append(region.Cells, cell)
		}
		w.Regions = append(w.Regions, region)
	}
	return w
}
