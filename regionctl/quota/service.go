// Package quota grants leases to the nodes of one region: from the region's own buckets, and from what it has on lease itself
// of worldwide limits that other regions own.
//
//	s := quota.New(quota.Options{…})
//	grants := s.ToNode(cell, items)      // of the region's nodes
//	grants := s.ToRegion(items)          // of other regions' controllers
//	err := s.Abroad(region).Serve(ctx, client) // this region's own leases
//
// A worldwide limit is owned by the region that its key hashes to, so every controller names the same one without asking.
// Buckets are in memory: a controller that starts anew begins with half-full ones. What is spent of daily quotas is stored.
package quota

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/quota"
)

const (
	parts = 64
	// perPart bounds the buckets of one part; a full bucket makes room for another. In all 262,144.
	perPart = 4096
	// probes is how many buckets are looked at for a full one.
	probes = 8
	// branches bounds the worldwide limits that a region has on lease from one other.
	branches = 1 << 17
)

// Options are what a Service needs.
type Options struct {
	Region   cells.RegionID
	Topology cells.Topology
	// Clock is monotonic, in ns since the service was made: buckets were half full at 0.
	Clock func() int64
	Now   func() time.Time // for the date
	// Backed says that a backend has the buckets of all rates, and this service leases from it: Backend. Daily quotas stay here,
	// where they are stored.
	Backed bool
}

// Abroad is what the region has on lease from another.
type Abroad = nodeapi.Leases[quota.Key, quota.Branch, *quota.Branch]

// Service is safe for concurrent use.
type Service struct {
	opt     Options
	regions []cells.RegionID
	weight  float64 // of the region's nodes among all
	abroad  map[cells.RegionID]*Abroad
	backend *Abroad // nil = the buckets are here
	parts   [parts]part
	day     atomic.Int64 // as today last said
	next    int          // part to look at when marks are stored; owner: Keep
}

// place is where a bucket stands: the cell counts for limits of that scope.
type place struct {
	key   quota.Key
	scope quota.Scope
	cell  cells.CellID
}

type part struct {
	sync.Mutex
	buckets map[place]*bucket
	days    days
}

type bucket struct {
	quota.Bucket
	limit quota.Limit
}

// New makes a service.
func New(o Options) *Service {
	s := &Service{opt: o, abroad: map[cells.RegionID]*Abroad{}}
	own, all := 0, 0
	for _, r := range o.Topology.Regions {
		s.regions = append(s.regions, r.ID)
		for _, c := range r.Cells {
			if all += len(c.Nodes); r.ID == o.Region {
				own += len(c.Nodes)
			}
		}
		if r.ID != o.Region {
			s.abroad[r.ID] = nodeapi.NewLeases[quota.Key, quota.Branch](quota.OfRegions(), branches, o.Clock)
		}
	}
	if o.Backed {
		s.backend = nodeapi.NewLeases[quota.Key, quota.Branch](quota.OfRegions(), branches, o.Clock)
	}
	slices.Sort(s.regions)
	s.weight = float64(own) / float64(max(all, 1))
	for i := range s.parts {
		s.parts[i].buckets = map[place]*bucket{}
	}
	return s
}

// Regions lists the other regions.
func (s *Service) Regions() []cells.RegionID { return slices.Sorted(maps.Keys(s.abroad)) }

// Abroad are the leases from another region.
func (s *Service) Abroad(r cells.RegionID) *Abroad { return s.abroad[r] }

// Backend are the leases from the backend; nil = there is none.
func (s *Service) Backend() *Abroad { return s.backend }

func hash(k quota.Key) uint64 { return binary.LittleEndian.Uint64(k[:]) }

// Owner is the region whose service has the bucket of a worldwide limit.
func (s *Service) Owner(k quota.Key) cells.RegionID {
	return s.regions[binary.LittleEndian.Uint64(k[8:])%uint64(len(s.regions))]
}

// unserved is what is answered for a key that can't be served: no Grant is Valid like this.
func unserved() quota.Grant { return quota.Grant{Tokens: -1} }

// ToNode answers a node of the region.
func (s *Service) ToNode(cell cells.CellID, items []quota.Item) []quota.Grant {
	grants := make([]quota.Grant, len(items))
	for i := range items {
		it := &items[i]
		switch owner := s.Owner(it.Key); {
		case s.backend != nil && it.Limit.Day == 0:
			grants[i] = s.fromBackend(cell, *it)
		case it.Limit.Scope == quota.Cell:
			grants[i] = s.grant(place{it.Key, quota.Cell, cell}, it, quota.OfNodes())
		case it.Limit.Scope == quota.World && owner != s.opt.Region:
			grants[i] = s.passOn(s.abroad[owner], it)
		default:
			grants[i] = s.grant(place{key: it.Key, scope: it.Limit.Scope}, it, quota.OfNodes())
		}
	}
	return grants
}

// ToRegion answers another region's controller, which may ask for worldwide limits that this region owns.
func (s *Service) ToRegion(items []quota.Item) []quota.Grant {
	grants := make([]quota.Grant, len(items))
	for i := range items {
		it := &items[i]
		switch grants[i] = unserved(); {
		case it.Limit.Scope != quota.World || s.Owner(it.Key) != s.opt.Region:
		case s.backend != nil && it.Limit.Day == 0: // of a controller that knows no backend yet
			grants[i] = s.passOn(s.backend, it)
		default:
			grants[i] = s.grant(place{key: it.Key, scope: quota.World}, it, quota.OfRegions())
		}
	}
	return grants
}

// fromBackend settles an Ask out of what is on lease from the backend, which knows no scopes: the key tells them apart.
func (s *Service) fromBackend(cell cells.CellID, it quota.Item) quota.Grant {
	switch it.Limit.Scope {
	case quota.Region:
		it.Key = quota.Name("region", string(s.opt.Region), string(it.Key[:]))
	case quota.Cell:
		it.Key = quota.Name("cell", string(cell), string(it.Key[:]))
	}
	return s.passOn(s.backend, &it)
}

// today is the date that quotas are counted on.
func (s *Service) today() int64 {
	last := s.day.Load()
	day := quota.Day(s.opt.Now(), last)
	if day != last {
		s.day.Store(day)
	}
	return day
}

// grant settles an Ask with a bucket of this region's.
func (s *Service) grant(at place, it *quota.Item, t quota.Terms) quota.Grant {
	p := &s.parts[hash(it.Key)%parts]
	p.Lock()
	defer p.Unlock()
	now, day := s.opt.Clock(), s.today()
	b := p.buckets[at]
	if b == nil {
		if !p.room(now, day) || it.Limit.Day > 0 && !p.days.loaded {
			return unserved()
		}
		b = &bucket{}
		if it.Limit.Day > 0 {
			b.Resume(p.days.resume(it.Key, day))
		}
		p.buckets[at] = b
	}
	b.limit = it.Limit
	g := b.Grant(now, day, it.Limit, it.Ask, t, rand.Float64())
	if used := b.Used(day); it.Limit.Day > 0 && used > 0 {
		p.days.note(it.Key, day, used, b.reserve(t))
	}
	return g
}

// room makes room for one more bucket if it can.
func (p *part) room(now, day int64) bool {
	if len(p.buckets) < perPart {
		return true
	}
	looked := 0
	for at, b := range p.buckets { // begins anywhere
		if b.Full(now, day, b.limit) {
			delete(p.buckets, at)
			return true
		}
		if looked++; looked >= probes {
			break
		}
	}
	return false
}

// passOn settles an Ask out of what is on lease from the region that owns the key.
func (s *Service) passOn(from *Abroad, it *quota.Item) quota.Grant {
	sh := from.Table.Shard(hash(it.Key))
	sh.Lock()
	defer sh.Unlock()
	now := s.opt.Clock()
	e := sh.Find(it.Key)
	if e == nil {
		if e = sh.Add(it.Key, it.Key, now); e == nil {
			return unserved()
		}
	}
	e.Value.Lease.Limit = it.Limit
	g := e.Value.Grant(now, from.Lost(now), s.weight, it.Ask, quota.OfNodes(), rand.Float64())
	if sh.Used(e) {
		from.Wake()
	}
	if e.Value.Lease.Urgent(now) {
		sh.Press(e)
		from.Press()
	}
	return g
}

// Buckets is how many buckets there are.
func (s *Service) Buckets() (n int) {
	for i := range s.parts {
		s.parts[i].Lock()
		n += len(s.parts[i].buckets)
		s.parts[i].Unlock()
	}
	return n
}
