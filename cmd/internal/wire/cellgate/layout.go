package cellgate

import (
	"fmt"
	"math"
	"net/netip"
	"strings"

	"github.com/cellgate/cellgate/cells"
)

// Names and ports that are the same in every world.
const (
	worldName  = "gw.test" // trust domain and DNS zone
	sampleHost = "api.gw.test"
	samplePath = "/v1/orders/7"

	portHTTPS       = 8443
	portHTTP        = 8080
	portPeer        = 8444
	portProxyAdmin  = 9901
	portRouterAdmin = 9902
	portProber      = 9903
	portPlanner     = 9904
	portDNS         = 5300
	portNodeAPI     = 7000
	portAPI         = 7443
	portEtcdClient  = 2379
	portEtcdPeer    = 2380
	portIDP         = 8000
	portBackend     = 8080
	portConsul      = 8500
	portBackendCtl  = 9900
)

// Size is how large a world is.
type Size struct {
	Regions int `json:"regions"`
	Cells   int `json:"cells"`
	Proxies int `json:"proxies"`
	// Net is the /16 of loopback addresses that the world lives in.
	Net netip.Prefix `json:"net"`
}

func (s Size) validate() error {
	for _, f := range []struct {
		flag string
		v    int
	}{{"--regions", s.Regions}, {"--cells", s.Cells}, {"--proxies", s.Proxies}} {
		if f.v < 1 || f.v > 9 {
			return fmt.Errorf("%s %d is out of range: it takes 1 to 9", f.flag, f.v)
		}
	}
	if s.Net.Bits() != 16 || !s.Net.Addr().Is4() || !s.Net.Addr().IsLoopback() || s.Net != s.Net.Masked() {
		return fmt.Errorf("--net %s is not usable: it takes a /16 of loopback addresses such as 127.10.0.0/16", s.Net)
	}
	return nil
}

// places are the regions in the order in which a world takes them, with where they lie.
func places() []place {
	return []place{
		{"eu-west", 53.3, -6.3}, {"us-east", 38.9, -77.5}, {"ap-south", 19.1, 72.9},
		{"us-west", 45.8, -119.7}, {"sa-east", -23.5, -46.6}, {"ap-northeast", 35.7, 139.7},
		{"eu-north", 59.3, 18.1}, {"af-south", -33.9, 18.4}, {"me-central", 25.2, 55.3},
	}
}

type place struct {
	id       cells.RegionID
	lat, lon float64
}

// latency estimates a round trip in milliseconds: 2 within a region, else light in fibre along one and a half great circles.
func latency(a, b place) int32 {
	if a.id == b.id {
		return 2
	}
	rad := func(d float64) float64 { return d * math.Pi / 180 }
	h := math.Pow(math.Sin(rad(b.lat-a.lat)/2), 2) +
		math.Cos(rad(a.lat))*math.Cos(rad(b.lat))*math.Pow(math.Sin(rad(b.lon-a.lon)/2), 2)
	km := 2 * 6371 * math.Asin(math.Sqrt(h))
	return int32(math.Round(5 + km*1.5*2/200))
}

// layout is where everything of a world is. It follows from the size alone.
//
//	cell C of region R   net.R.C          shared by its proxies
//	proxy P of it        net.R.(10C+P)    its own
//	regionctl, etcds     net.R.250, .251 (region's), .252 (member of the world's)
//	healthd              net.R.253
//	backends, idp …      net.254.x
//	globalrouters        net.255.1, .2
type layout struct {
	Size
	topology cells.Topology
	backends []backendPlace
}

type backendPlace struct {
	id      string
	address netip.Addr
}

func newLayout(s Size, limit cells.MilliRPS) *layout {
	l := &layout{Size: s}
	known := places()[:s.Regions]
	for r, p := range known {
		region := cells.Region{
			ID:      p.id,
			Clients: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{5, byte(r + 1), 0, 0}), 16)},
		}
		for c := range s.Cells {
			region.Cells = append(region.Cells, l.cell(p.id, r+1, c+1, limit))
		}
		l.topology.Regions = append(l.topology.Regions, region)
		row := make([]int32, len(known))
		for i, q := range known {
			row[i] = latency(p, q)
		}
		l.topology.LatencyMS = append(l.topology.LatencyMS, row)
	}
	for i, id := range []string{"orders-1", "orders-2", "catalog-1", "catalog-2"} {
		l.backends = append(l.backends, backendPlace{id: id, address: l.ip(254, 11+i)})
	}
	return l
}

func (l *layout) cell(region cells.RegionID, r, c int, limit cells.MilliRPS) cells.Cell {
	id := cells.CellID(fmt.Sprintf("%s/%c", region, 'a'+c-1))
	cell := cells.Cell{
		ID: id, Class: cells.Public, Addresses: []netip.Addr{l.ip(r, c)},
		HTTPS: portHTTPS, HTTP: portHTTP, Limit: limit,
	}
	for p := 1; p <= l.Proxies; p++ {
		own := l.ip(r, c*10+p)
		cell.Nodes = append(cell.Nodes, cells.Node{
			ID: cells.NodeID(fmt.Sprintf("%s/%d", id, p)), Address: own,
			Admin: netip.AddrPortFrom(own, portProxyAdmin), Peer: netip.AddrPortFrom(own, portPeer),
		})
	}
	return cell
}

// consul is where proxies look for a Consul agent. The world has none of its own: one may be started there.
func (l *layout) consul() netip.AddrPort { return netip.AddrPortFrom(l.ip(254, 4), portConsul) }

// ip is net.c.d.
func (l *layout) ip(c, d int) netip.Addr {
	a := l.Net.Addr().As4()
	a[2], a[3] = byte(c), byte(d)
	return netip.AddrFrom4(a)
}

func (l *layout) at(c, d int, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(l.ip(c, d), port)
}

func (l *layout) api(r int) netip.AddrPort     { return l.at(r+1, 250, portAPI) }
func (l *layout) nodeAPI(r int) netip.AddrPort { return l.at(r+1, 250, portNodeAPI) }

// apiURLs are the operators' APIs, that of region r first.
func (l *layout) apiURLs(r int) []string {
	var urls []string
	for i := range l.Regions {
		urls = append(urls, "https://"+l.api((r+i)%l.Regions).String())
	}
	return urls
}

// controllers are the node APIs, that of region r first.
func (l *layout) controllers(r int) []string {
	var all []string
	for i := range l.Regions {
		all = append(all, l.nodeAPI((r+i)%l.Regions).String())
	}
	return all
}

func (l *layout) routers() []netip.AddrPort {
	return []netip.AddrPort{l.at(255, 1, portDNS), l.at(255, 2, portDNS)}
}

// globalMembers is how many regions host a member of the world's etcd: three, or one where three regions are missing.
func (l *layout) globalMembers() int {
	if l.Regions >= 3 {
		return 3
	}
	return 1
}

func (l *layout) globalEtcd() []string {
	var urls []string
	for r := range l.globalMembers() {
		urls = append(urls, "https://"+l.at(r+1, 252, portEtcdClient).String())
	}
	return urls
}

func (l *layout) idpURL() string { return "http://" + l.at(254, 2, portIDP).String() }

// fileName is a process's name as a file name: "proxy/eu-west/a/1" is "proxy-eu-west-a-1".
func fileName(process string) string { return strings.ReplaceAll(process, "/", "-") }

func (l *layout) backendControl(b backendPlace) netip.AddrPort {
	return netip.AddrPortFrom(b.address, portBackendCtl)
}
