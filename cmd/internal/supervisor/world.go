package supervisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/cellgate/cellgate/cells"
)

// World is DIR/world.json: where everything of a ready world is.
type World struct {
	DNS        []string  `json:"dns"`
	Admin      string    `json:"admin"`
	CA         string    `json:"ca"`
	Zone       string    `json:"zone"`
	Host       string    `json:"host"`
	Path       string    `json:"path"`
	TTL        int       `json:"ttl"` // seconds
	Tokens     Tokens    `json:"tokens"`
	Regions    []Region  `json:"regions"`
	Processes  []Process `json:"processes"`
	Supervisor int       `json:"supervisor"`
	Consul     string    `json:"consul,omitempty"` // where proxies look for an agent; none is part of the world
}

// MoreKeys is the file, in the directory's keys, of which the sample identity provider publishes what is in it.
const MoreKeys = "idp-more.json"

// Tokens open the world's doors.
type Tokens struct {
	Admin    string `json:"admin"`
	Customer string `json:"customer"`
	Limited  string `json:"limited"`
}

// Region is one region with its operators' API.
type Region struct {
	ID      cells.RegionID `json:"id"`
	Clients []netip.Prefix `json:"clients"`
	Admin   string         `json:"admin"`
	Cells   []Cell         `json:"cells"`
}

// Cell is one cell; its ports are those of its proxies too.
type Cell struct {
	ID      cells.CellID `json:"id"`
	Address netip.Addr   `json:"address"`
	HTTPS   uint16       `json:"https"`
	HTTP    uint16       `json:"http"`
	Proxies []Proxy      `json:"proxies"`
}

// Proxy is one node of a cell.
type Proxy struct {
	ID      cells.NodeID   `json:"id"`
	Address netip.Addr     `json:"address"`
	PID     int            `json:"pid"`
	Admin   netip.AddrPort `json:"admin"`
}

// Process is one process of the world.
type Process struct {
	Role string `json:"role"`
	ID   string `json:"id"`
	PID  int    `json:"pid"` // 0 while it doesn't run
}

// Name is how orders name the process.
func (p Process) Name() string { return p.Role + "/" + p.ID }

// WorldFile is where a world's directory has its World.
func WorldFile(dir string) string { return filepath.Join(dir, "world.json") }

// Read reads the world.json of a directory.
func Read(dir string) (World, error) {
	var w World
	file := WorldFile(dir)
	raw, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return w, fmt.Errorf("%s does not exist: is the world up (cellgate up), and is this its directory?", file)
	}
	if err != nil {
		return w, err
	}
	if err := json.Unmarshal(raw, &w); err != nil {
		return w, fmt.Errorf("%s: %w", file, err)
	}
	return w, nil
}
