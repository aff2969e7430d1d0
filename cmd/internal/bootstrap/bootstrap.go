// Package bootstrap is the local file that starts a daemon in a world: who it is, whom it trusts, where its peers are.
// Nothing in it is reached through the world's own zone or gateway. Every daemon takes it as `serve --bootstrap FILE`.
package bootstrap

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// Identity points at the process's certificate and at the roots that it trusts, all PEM files.
type Identity struct {
	Cert string `json:"cert"` // URI SAN: spiffe://<world>/<role>/<node id>
	Key  string `json:"key"`
	CA   string `json:"ca"` // the internal CA
}

// Common is what every daemon's file starts with.
type Common struct {
	Form     int          `json:"form"`
	World    string       `json:"world"` // trust domain, such as "gw.test"
	ID       cells.NodeID `json:"id"`
	DataDir  string       `json:"data_dir"`
	Identity Identity     `json:"identity"`
	// Controllers are the node APIs of the regionctls to attach to, own region first.
	Controllers []string `json:"controllers"`
	Timing      Timing   `json:"timing"`
}

// Timing are the intervals of the world; zero values are production's.
type Timing struct {
	TTL       time.Duration `json:"ttl_ns"`        // 20 s
	Bake      time.Duration `json:"bake_ns"`       // 2 min
	Ramp      time.Duration `json:"ramp_ns"`       // 10 min
	DownAfter time.Duration `json:"down_after_ns"` // 5 s
	UpAfter   time.Duration `json:"up_after_ns"`   // 20 s
	// FlapCap bounds the growing wait of a flapping cell; 900 s.
	FlapCap time.Duration `json:"flap_cap_ns"`
	// OnInsufficient is what a bake without enough evidence does.
	OnInsufficient string `json:"on_insufficient"`
}

// What OnInsufficient may be; empty is hold.
const (
	OnInsufficientHold    = "hold"
	OnInsufficientProceed = "proceed-if-synthetics-pass"
)

// Proxy starts `proxy serve --bootstrap`.
type Proxy struct {
	Common
	Cell cells.CellID `json:"cell"`
	// Zone of the region that the node is in: near endpoints of upstreams come first. Empty = not known.
	Zone string `json:"zone,omitempty"`
	// Listen: Shared addresses are bound with SO_REUSEPORT by all proxies of the cell, Own ones by this process alone.
	SharedHTTP     netip.AddrPort `json:"shared_http"`
	SharedHTTPS    netip.AddrPort `json:"shared_https"`
	OwnHTTP        netip.AddrPort `json:"own_http"`
	OwnHTTPS       netip.AddrPort `json:"own_https"`
	Admin          netip.AddrPort `json:"admin"`
	EdgeCert       string         `json:"edge_cert"` // PEM files served at the edge
	EdgeKey        string         `json:"edge_key"`
	AdminCert      string         `json:"admin_cert"` // PEM files of the admin server
	AdminKey       string         `json:"admin_key"`
	AdminTokenHash string         `json:"admin_token_hash"` // "sha256:" + hex
	AccessLog      string         `json:"access_log"`       // path, "-" or empty
	PermitLoopback bool           `json:"permit_loopback"`  // upstreams and JWKS URLs on loopback
	// Peer is where the other proxies of the world reach this one, by mutual TLS; none = no peer listener.
	Peer netip.AddrPort `json:"peer,omitzero"`
	// Peers are the peer listeners of the other proxies of the cell, for a start with an empty disk.
	Peers []netip.AddrPort `json:"peers,omitempty"`
	// ObjectStore is a URL prefix below which the cell's copy lies: /targets/<region> and /blobs/<digest>. Optional.
	ObjectStore string `json:"object_store,omitempty"`
	// MaxConnectionAge is the age, give or take a fifth, at which clients are asked to connect anew; 0 = 5 min.
	MaxConnectionAge time.Duration `json:"max_connection_age_ns,omitempty"`
	// TrustedProxies are the networks of proxies in front of the node that are believed about their clients.
	TrustedProxies []string `json:"trusted_proxies,omitempty"`
	// Secrets is the directory with the files that policies name: client secrets, keys of sessions. Optional.
	Secrets string `json:"secrets,omitempty"`
	// TicketSecrets is the file of the secrets that session tickets are sealed by, the same on all nodes of the cell and on no other:
	// 1 to 4 lines, each 32 random bytes in base64. Empty = clients go on with their sessions at this process alone.
	TicketSecrets string `json:"ticket_secrets,omitempty"`
	// Engine is what serves: "loop", "epoll", "goroutine" or "nethttp"; empty = the default of the system.
	Engine string `json:"engine,omitempty"`
	// HTTP3 serves it on the UDP side of OwnHTTPS, and on Linux of SharedHTTPS.
	HTTP3 bool `json:"http3,omitempty"`
	// OTLP is the collector that gets the node's traces; none = they are not kept.
	OTLP OTLP `json:"otlp,omitzero"`
	// Consul is the agent that knows the endpoints of upstreams which name a service.
	Consul Consul `json:"consul,omitzero"`
}

// OTLP is how a collector is reached.
type OTLP struct {
	URL         string   `json:"url,omitempty"`
	HeadersFile string   `json:"headers_file,omitempty"` // lines of "Name: value"
	CAFile      string   `json:"ca_file,omitempty"`      // PEM: authorities that the collector's certificate may be of; empty = the system's
	Ratio       *float64 `json:"ratio,omitempty"`        // share of traces that are sampled, 0 to 1; absent = 0.01
}

// Consul is how an agent is reached. What is empty the environment says, as for Consul's own tools.
type Consul struct {
	Address   string `json:"address,omitempty"`    // host:port, or a URL with http, https or unix
	TokenFile string `json:"token_file,omitempty"` // with the ACL token
}

// Router starts `globalrouter serve --bootstrap`.
type Router struct {
	Common
	Listen         []netip.AddrPort `json:"listen"` // UDP and TCP
	Zone           string           `json:"zone"`   // RFC 1035 master file with the static names
	Admin          netip.AddrPort   `json:"admin"`
	AdminCert      string           `json:"admin_cert"`
	AdminKey       string           `json:"admin_key"`
	AdminTokenHash string           `json:"admin_token_hash"`
	// Topology, EdgeCA, ProbeHost and ProbePath are for the router's own probes of the cells; without EdgeCA it has none.
	Topology  cells.Topology `json:"topology"`
	EdgeCA    string         `json:"edge_ca"`
	ProbeHost string         `json:"probe_host"`
	ProbePath string         `json:"probe_path"`
}

// Controller starts `regionctl serve --bootstrap`.
type Controller struct {
	Common
	Region         cells.RegionID            `json:"region"`
	NodeAPI        netip.AddrPort            `json:"node_api"` // gRPC, mutual TLS
	API            netip.AddrPort            `json:"api"`      // operators' HTTPS API
	APICert        string                    `json:"api_cert"`
	APIKey         string                    `json:"api_key"`
	Peers          map[cells.RegionID]string `json:"peers"`    // node APIs of the other regions' controllers
	Global         []string                  `json:"global"`   // etcd endpoints of the world
	Regional       []string                  `json:"regional"` // etcd endpoints of the region
	Topology       cells.Topology            `json:"topology"`
	AdminTokenHash string                    `json:"admin_token_hash"`
	PermitLoopback bool                      `json:"permit_loopback"`
	Zone           string                    `json:"zone"` // "gw.test"
	// SteeredNames are DNS names answered by the plan, beside the hosts of the published tenants within the zone.
	SteeredNames []string `json:"steered_names"`
	// ProbePath is requested from every cell by the probers.
	ProbeHost string `json:"probe_host"`
	ProbePath string `json:"probe_path"`
	// QuotaRedis has the buckets of all limits but daily quotas, the same for all controllers of the world; none = they are in the
	// controllers' memory.
	QuotaRedis Redis `json:"quota_redis,omitzero"`
}

// Redis is a server and how it is reached.
type Redis struct {
	URL          string `json:"url,omitempty"`           // redis or rediss (TLS): redis://[user@]host[:port][/database]
	PasswordFile string `json:"password_file,omitempty"` // read at each connection; none = no password
}

// Prober starts `healthd serve --bootstrap`.
type Prober struct {
	Common
	Region         cells.RegionID `json:"region"`
	Topology       cells.Topology `json:"topology"`
	EdgeCA         string         `json:"edge_ca"` // verifies the cells' front doors
	ProbeHost      string         `json:"probe_host"`
	ProbePath      string         `json:"probe_path"`
	Admin          netip.AddrPort `json:"admin"`
	AdminCert      string         `json:"admin_cert"`
	AdminKey       string         `json:"admin_key"`
	AdminTokenHash string         `json:"admin_token_hash"`
}

// Planner starts `capacityd serve --bootstrap`.
type Planner struct {
	Common
	// API is where status is read from: the regionctls' HTTP APIs.
	API            []string       `json:"api"`
	APICA          string         `json:"api_ca"`
	Admin          netip.AddrPort `json:"admin"`
	AdminCert      string         `json:"admin_cert"`
	AdminKey       string         `json:"admin_key"`
	AdminTokenHash string         `json:"admin_token_hash"`
	// APIToken is a file that holds the bearer token for the API.
	APIToken string `json:"api_token"`
}

// Form is the version of the bootstrap files.
const Form = 1

// Load reads a daemon's file; unknown keys are errors.
func Load[T any](path string) (T, error) {
	var v T
	raw, err := os.ReadFile(path)
	if err != nil {
		return v, fmt.Errorf("bootstrap: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&v); err != nil {
		return v, fmt.Errorf("bootstrap: %s: %w", path, err)
	}
	return v, nil
}

// Save writes a daemon's file, readable by its owner only.
func Save(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	if err := os.WriteFile(path, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("bootstrap: %w", err)
	}
	return nil
}
