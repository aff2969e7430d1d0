package cellgate

import (
	"net/netip"
	"os"
	"strings"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/supervise"
)

// worldFile is DIR/world.json: where everything of a ready world is.
type worldFile struct {
	DNS        []string       `json:"dns"`
	Admin      string         `json:"admin"`
	CA         string         `json:"ca"`
	Zone       string         `json:"zone"`
	Host       string         `json:"host"`
	Path       string         `json:"path"`
	TTL        int            `json:"ttl"` // seconds
	Tokens     worldTokens    `json:"tokens"`
	Regions    []worldRegion  `json:"regions"`
	Processes  []worldProcess `json:"processes"`
	Supervisor int            `json:"supervisor"`
}

type worldTokens struct {
	Admin    string `json:"admin"`
	Customer string `json:"customer"`
	Limited  string `json:"limited"`
}

type worldRegion struct {
	ID      cells.RegionID `json:"id"`
	Clients []netip.Prefix `json:"clients"`
	Admin   string         `json:"admin"`
	Cells   []worldCell    `json:"cells"`
}

type worldCell struct {
	ID      cells.CellID `json:"id"`
	Address netip.Addr   `json:"address"`
	HTTPS   uint16       `json:"https"`
	HTTP    uint16       `json:"http"`
	Proxies []worldProxy `json:"proxies"`
}

type worldProxy struct {
	ID      cells.NodeID   `json:"id"`
	Address netip.Addr     `json:"address"`
	PID     int            `json:"pid"`
	Admin   netip.AddrPort `json:"admin"`
}

type worldProcess struct {
	Role string `json:"role"`
	ID   string `json:"id"`
	PID  int    `json:"pid"` // 0 while it doesn't run
}

func (l *layout) worldFile(h home, t tokens, ttl int, processes []supervise.Status) worldFile {
	w := worldFile{
		Admin: l.apiURLs(0)[0], CA: h.caFile(), Zone: worldName, Host: sampleHost, Path: samplePath, TTL: ttl,
		Tokens: worldTokens{t.Admin, t.Customer, t.Limited}, Supervisor: os.Getpid(),
	}
	for _, r := range l.routers() {
		w.DNS = append(w.DNS, r.String())
	}
	pids := map[string]int{}
	for _, p := range processes {
		role, id, _ := strings.Cut(p.Name, "/")
		w.Processes = append(w.Processes, worldProcess{role, id, p.PID})
		pids[p.Name] = p.PID
	}
	for i, r := range l.topology.Regions {
		region := worldRegion{ID: r.ID, Clients: r.Clients, Admin: "https://" + l.api(i).String()}
		for _, c := range r.Cells {
			cell := worldCell{ID: c.ID, Address: c.Addresses[0], HTTPS: c.HTTPS, HTTP: c.HTTP}
			for _, n := range c.Nodes {
				cell.Proxies = append(cell.Proxies, worldProxy{n.ID, n.Address, pids["proxy/"+string(n.ID)], n.Admin})
			}
			region.Cells = append(region.Cells, cell)
		}
		w.Regions = append(w.Regions, region)
	}
	return w
}
