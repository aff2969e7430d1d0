package cellgate

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/internal/supervise"
	"github.com/cellgate/cellgate/trust"
)

// Tiers of the shutdown: doors close first, stores last.
const (
	tierStore = iota
	tierControl
	tierDoor
)

// process is one process of the world before it runs.
type process struct {
	role, id string
	spec     supervise.Spec
	binds    bindings
}

func (p process) name() string { return p.role + "/" + p.id }

// builder turns a layout into processes, writing their bootstrap files and identities as it goes.
type builder struct {
	*layout
	home   home
	keys   *keyring
	bin    string // directory of the daemons
	timing bootstrap.Timing
	engine string
	consul string
	redis  string
	otlp   bootstrap.OTLP
	netns  string // netnsPrefix
	made   []process
}

// build lists the processes in the order in which they are launched.
func (b *builder) build() ([]process, error) {
	steps := []func() error{b.etcds, b.idp, b.sampleBackends, b.controllersOf, b.routersOf, b.proxies, b.probers, b.planner}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return b.made, nil
}

// daemons are the binaries that must stand beside cellgate's own.
func daemons() []string {
	return []string{"regionctl", "proxy", "globalrouter", "healthd", "capacityd"}
}

// findDaemons is the directory of the running executable, if all daemons are in it.
func findDaemons() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real
	}
	dir := filepath.Dir(self)
	for _, d := range daemons() {
		if info, err := os.Stat(filepath.Join(dir, d)); err != nil || info.IsDir() || info.Mode()&0o111 == 0 {
			return "", fmt.Errorf("`%s` is not beside %s: build all commands into one directory (make build)", d, self)
		}
	}
	return dir, nil
}

// add makes the process known: own says that it is a hidden role of this executable.
func (b *builder) add(role, id string, tier int, file string, binds bindings, ready probe) *process {
	name := role + "/" + id
	path, args := filepath.Join(b.bin, role), []string{"serve", "--bootstrap", file}
	if slices.Contains([]string{"etcd", "backend", "idp"}, role) {
		path, args = filepath.Join(b.bin, "cellgate"), []string{role, "serve", "--config", file}
		if self, err := os.Executable(); err == nil {
			path = self
		}
	}
	path, args = b.inside(role, id, path, args)
	binds.process = name
	b.made = append(b.made, process{role: role, id: id, binds: binds, spec: supervise.Spec{
		Name: name, Path: path, Args: args, Env: childEnv(), Log: b.home.logFile(name), Tier: tier, Ready: ready,
	}})
	return &b.made[len(b.made)-1]
}

// netnsPrefix is what the files of the namespaces begin with, where `ip netns` keeps them; empty for an empty prefix.
func netnsPrefix(prefix string) string {
	if prefix == "" {
		return ""
	}
	return filepath.Join("/run/netns", prefix)
}

// inside makes a command run in the network namespace that is the process's own (PREFIX-ROLE-ID with dashes for slashes),
// else in that of its region (PREFIX-REGION), else in ours. nsenter becomes the command, so that the pid and the tie to our
// life stay.
func (b *builder) inside(role, id, path string, args []string) (string, []string) {
	if b.netns == "" {
		return path, args
	}
	names := []string{fileName(role + "/" + id)}
	for _, r := range b.topology.Regions {
		if slices.Contains(strings.Split(id, "/"), string(r.ID)) {
			names = append(names, string(r.ID))
		}
	}
	for _, name := range names {
		file := b.netns + "-" + name
		if _, err := os.Stat(file); err == nil {
			return "nsenter", append([]string{"--net=" + file, path}, args...)
		}
	}
	return path, args
}

// childEnv is what children see of our environment: nothing that could hold a secret.
func childEnv() []string {
	var env []string
	for _, k := range []string{"PATH", "HOME", "TMPDIR", "LANG", "TZ", "GODEBUG", "GOMAXPROCS", "GORACE", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// common fills what every daemon's file starts with; r is the region to attach to first.
func (b *builder) common(role trust.Role, id cells.NodeID, r int) (bootstrap.Common, error) {
	cert, key, err := b.keys.identity(role, id)
	return bootstrap.Common{
		Form: bootstrap.Form, World: worldName, ID: id, Timing: b.timing,
		DataDir:     b.home.path("data", string(role), fileName(string(id))),
		Identity:    bootstrap.Identity{Cert: cert, Key: key, CA: b.keys.internalCA()},
		Controllers: b.controllers(r),
	}, err
}

// save writes a bootstrap file and makes the data directory it names.
func (b *builder) save(name, dataDir string, v any) (string, error) {
	if dataDir != "" {
		if err := os.MkdirAll(dataDir, 0o700); err != nil {
			return "", err
		}
	}
	file := b.home.bootFile(name)
	return file, writeJSON(file, v)
}

func (b *builder) etcds() error {
	peers := map[string]netip.AddrPort{}
	for r := range b.globalMembers() {
		peers[b.globalName(r)] = b.at(r+1, 252, portEtcdPeer)
	}
	for r := range b.globalMembers() {
		if err := b.etcd(b.globalName(r), r, 252, peers); err != nil {
			return err
		}
	}
	for r, region := range b.topology.Regions {
		id := string(region.ID)
		own := map[string]netip.AddrPort{id: b.at(r+1, 251, portEtcdPeer)}
		if err := b.etcd(id, r, 251, own); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) globalName(r int) string { return "global/" + string(b.topology.Regions[r].ID) }

func (b *builder) etcd(id string, r, host int, cluster map[string]netip.AddrPort) error {
	cert, key, err := b.keys.identity(trust.RoleEtcd, cells.NodeID(id), b.ip(r+1, host))
	if err != nil {
		return err
	}
	client, peer := b.at(r+1, host, portEtcdClient), b.at(r+1, host, portEtcdPeer)
	dir := b.home.etcdDir(id)
	file, err := b.save("etcd/"+id, dir, etcdConfig{
		Name: id, Dir: dir, Client: client, Peer: peer, Cluster: cluster, Cert: cert, Key: key, CA: b.keys.internalCA(),
	})
	if err != nil {
		return err
	}
	b.add("etcd", id, tierStore, file, bindings{tcp: []netip.AddrPort{client, peer}}, accepts(client))
	return nil
}

func (b *builder) idp() error {
	addr := b.at(254, 2, portIDP)
	file, err := b.save("idp/idp", "", idpConfig{Listen: addr, Key: b.home.path("keys", "idp.key"), More: b.home.path("keys", supervisor.MoreKeys)})
	if err != nil {
		return err
	}
	b.add("idp", "idp", tierDoor, file, bindings{tcp: []netip.AddrPort{addr}}, accepts(addr))
	return nil
}

func (b *builder) sampleBackends() error {
	for _, p := range b.backends {
		addr, ctl := netip.AddrPortFrom(p.address, portBackend), b.backendControl(p)
		file, err := b.save("backend/"+p.id, "", backendConfig{ID: p.id, Listen: addr, Control: ctl})
		if err != nil {
			return err
		}
		b.add("backend", p.id, tierStore, file, bindings{tcp: []netip.AddrPort{addr, ctl}}, accepts(addr))
	}
	return nil
}

func (b *builder) controllersOf() error {
	for r, region := range b.topology.Regions {
		id := cells.NodeID(string(region.ID) + "/1")
		common, err := b.common(trust.RoleController, id, r)
		if err != nil {
			return err
		}
		cert, key, err := b.keys.server("regionctl/"+string(id), nil, b.ip(r+1, 250))
		if err != nil {
			return err
		}
		peers := map[cells.RegionID]string{}
		for i, other := range b.topology.Regions {
			if i != r {
				peers[other.ID] = b.nodeAPI(i).String()
			}
		}
		file, err := b.save("regionctl/"+string(id), common.DataDir, bootstrap.Controller{
			Common: common, Region: region.ID, NodeAPI: b.nodeAPI(r), API: b.api(r), APICert: cert, APIKey: key,
			Peers: peers, Global: b.globalEtcd(), Regional: []string{"https://" + b.at(r+1, 251, portEtcdClient).String()},
			Topology: b.topology, AdminTokenHash: hashOf(b.keys.tokens.Admin), PermitLoopback: true,
			Zone: worldName, SteeredNames: []string{sampleHost}, ProbeHost: sampleHost, ProbePath: readyPath,
			QuotaRedis: bootstrap.Redis{URL: b.redis},
		})
		if err != nil {
			return err
		}
		b.add("regionctl", string(id), tierControl, file,
			bindings{tcp: []netip.AddrPort{b.nodeAPI(r), b.api(r)}}, accepts(b.api(r)))
	}
	return nil
}

func (b *builder) routersOf() error {
	zone := b.home.path("boot", "zone.txt")
	if err := writeFile(zone, []byte(b.zone())); err != nil {
		return err
	}
	for i, listen := range b.routers() {
		r := i % b.Regions
		id := cells.NodeID(fmt.Sprintf("%s/%d", b.topology.Regions[r].ID, i/b.Regions+1))
		common, err := b.common(trust.RoleRouter, id, r)
		if err != nil {
			return err
		}
		admin := netip.AddrPortFrom(listen.Addr(), portRouterAdmin)
		cert, key, err := b.keys.server("globalrouter/"+string(id), nil, listen.Addr())
		if err != nil {
			return err
		}
		file, err := b.save("globalrouter/"+string(id), common.DataDir, bootstrap.Router{
			Common: common, Listen: []netip.AddrPort{listen}, Zone: zone,
			Admin: admin, AdminCert: cert, AdminKey: key, AdminTokenHash: hashOf(b.keys.tokens.Admin),
			Topology: b.topology, EdgeCA: b.home.caFile(), ProbeHost: sampleHost, ProbePath: readyPath,
		})
		if err != nil {
			return err
		}
		b.add("globalrouter", string(id), tierDoor, file,
			bindings{tcp: []netip.AddrPort{listen, admin}, udp: []netip.AddrPort{listen}}, accepts(listen))
	}
	return nil
}

func (b *builder) proxies() error {
	edgeCert, edgeKey, err := b.keys.server("edge", edgeNames(), b.cellAddresses()...)
	if err != nil {
		return err
	}
	for r, region := range b.topology.Regions {
		for _, cell := range region.Cells {
			for _, node := range cell.Nodes {
				if err := b.proxy(r, cell, node, edgeCert, edgeKey); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// edgeNames are the hosts of the edge certificate: the zone and all below it.
func edgeNames() []string { return append([]string{worldName, "*." + worldName}, sampleHosts()...) }

func (l *layout) cellAddresses() []netip.Addr {
	var all []netip.Addr
	for _, c := range l.topology.Cells() {
		all = append(all, c.Addresses...)
		for _, n := range c.Nodes {
			all = append(all, n.Address)
		}
	}
	return all
}

func (b *builder) proxy(r int, cell cells.Cell, node cells.Node, edgeCert, edgeKey string) error {
	common, err := b.common(trust.RoleProxy, node.ID, r)
	if err != nil {
		return err
	}
	cert, key, err := b.keys.server("proxy/"+string(node.ID), nil, node.Address)
	if err != nil {
		return err
	}
	at := func(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }
	shared, own := cell.Addresses[0], node.Address
	tickets, err := b.keys.ticketSecrets(cell.ID)
	if err != nil {
		return err
	}
	p := bootstrap.Proxy{
		Common: common, Cell: cell.ID, TicketSecrets: tickets,
		SharedHTTP: at(shared, portHTTP), SharedHTTPS: at(shared, portHTTPS),
		OwnHTTP: at(own, portHTTP), OwnHTTPS: at(own, portHTTPS), Admin: node.Admin,
		EdgeCert: edgeCert, EdgeKey: edgeKey, AdminCert: cert, AdminKey: key,
		AdminTokenHash: hashOf(b.keys.tokens.Admin), PermitLoopback: true,
		Peer: node.Peer, HTTP3: true, Engine: b.engine, Consul: bootstrap.Consul{Address: b.consul}, OTLP: b.otlp, Secrets: b.home.path("secrets"),
	}
	for _, other := range cell.Nodes {
		if other.ID != node.ID {
			p.Peers = append(p.Peers, other.Peer)
		}
	}
	file, err := b.save("proxy/"+string(node.ID), common.DataDir, p)
	if err != nil {
		return err
	}
	made := b.add("proxy", string(node.ID), tierDoor, file, bindings{
		tcp: []netip.AddrPort{p.SharedHTTP, p.SharedHTTPS, p.OwnHTTP, p.OwnHTTPS, p.Admin, p.Peer},
		udp: []netip.AddrPort{p.OwnHTTPS},
	}, readyHTTP(p.OwnHTTP))
	made.spec.Alive = newFrontDoor(p.OwnHTTP).alive
	made.spec.Replace = append(slices.Clone(made.spec.Args), "--takeover")
	made.spec.Env = append(made.spec.Env, fmt.Sprintf("%s=cellgate upgrade %s --dir %s", supervisor.UpgradeEnv, made.spec.Name, b.home))
	return nil
}

func (b *builder) probers() error {
	for r, region := range b.topology.Regions {
		id := cells.NodeID(string(region.ID) + "/1")
		common, err := b.common(trust.RoleProber, id, r)
		if err != nil {
			return err
		}
		admin := b.at(r+1, 253, portProber)
		cert, key, err := b.keys.server("healthd/"+string(id), nil, admin.Addr())
		if err != nil {
			return err
		}
		file, err := b.save("healthd/"+string(id), common.DataDir, bootstrap.Prober{
			Common: common, Region: region.ID, Topology: b.topology, EdgeCA: b.home.caFile(),
			ProbeHost: sampleHost, ProbePath: readyPath,
			Admin: admin, AdminCert: cert, AdminKey: key, AdminTokenHash: hashOf(b.keys.tokens.Admin),
		})
		if err != nil {
			return err
		}
		b.add("healthd", string(id), tierControl, file, bindings{tcp: []netip.AddrPort{admin}}, accepts(admin))
	}
	return nil
}

func (b *builder) planner() error {
	common, err := b.common(trust.RolePlanner, "world/1", 0)
	if err != nil {
		return err
	}
	admin := b.at(254, 3, portPlanner)
	cert, key, err := b.keys.server("capacityd/world/1", nil, admin.Addr())
	if err != nil {
		return err
	}
	token := b.home.path("keys", "capacityd.token")
	if err := writeFile(token, []byte(b.keys.tokens.Admin+"\n")); err != nil {
		return err
	}
	file, err := b.save("capacityd/world/1", common.DataDir, bootstrap.Planner{
		Common: common, API: b.apiURLs(0), APICA: b.home.caFile(), APIToken: token,
		Admin: admin, AdminCert: cert, AdminKey: key, AdminTokenHash: hashOf(b.keys.tokens.Admin),
	})
	if err != nil {
		return err
	}
	b.add("capacityd", "world/1", tierControl, file, bindings{tcp: []netip.AddrPort{admin}}, accepts(admin))
	return nil
}

// zone is the master file of the routers: what is not steered.
func (l *layout) zone() string {
	text := fmt.Sprintf(`$ORIGIN %s.
$TTL 300
@    IN SOA ns1 hostmaster 1 3600 600 604800 5
`, worldName)
	for i := range l.routers() {
		text += fmt.Sprintf("@    IN NS ns%d\n", i+1)
	}
	for i, a := range l.routers() {
		text += fmt.Sprintf("ns%d  IN A %s\n", i+1, a.Addr())
	}
	return text + fmt.Sprintf("id   IN A %s\n@    IN TXT \"a cellgate world on one machine\"\n", l.ip(254, 2))
}

func defaultTiming(ttl, bake, ramp time.Duration) bootstrap.Timing {
	return bootstrap.Timing{
		TTL: ttl, Bake: bake, Ramp: ramp, DownAfter: 3 * time.Second, UpAfter: 3 * time.Second,
		FlapCap: 20 * time.Second, OnInsufficient: bootstrap.OnInsufficientProceed,
	}
}

type probe = func(ctx context.Context) error
