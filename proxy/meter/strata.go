package meter

import (
	"cmp"
	"hash/maphash"
	"maps"
	"slices"
	"time"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/report"
)

// Bounds of the strata of one node: so many upstreams and hosts have counters of their own, and of these the ones with the
// most traffic lately are told; everything else is report.Other's. A number that nobody asked for in an hour is given away.
const (
	maxStrata  = 128
	toldStrata = 32
	maxHeavy   = 8
	maxWatched = maxHeavy / 2
	// lately is what is left of a stratum's traffic after one window when it is ranked, so that the places don't flicker.
	lately = 0.98
)

// kind is one way of dividing the traffic into strata.
type kind struct {
	ids *table
	// weight by number is the traffic lately. Written by: Window.
	weight [maxStrata + 1]float64
}

// stratum is one part of the traffic in one shard, since the last window.
type stratum struct {
	counts report.Counts
	cold   uint64
	warm   [report.SketchBuckets]uint32
	heavy  heavy
}

func (s *stratum) count(one *report.Counts, r *proxy.Record, client uint64) {
	s.counts.Add(*one)
	if r.Cold {
		s.cold++
	} else {
		s.warm[report.Bucket(r.Total)]++
	}
	s.heavy.count(one, client)
}

// heavy finds the client with the most failures: maxHeavy places, each with what its client did since it first failed, or
// since the window began if it is watched. When all are taken the newcomer begins in the place with the fewest failures.
type heavy struct {
	used   int
	client [maxHeavy]uint64
	counts [maxHeavy]report.Counts
}

func (h *heavy) count(one *report.Counts, client uint64) {
	failed := one.Failed() > 0
	for i := range h.used {
		if h.client[i] == client {
			h.counts[i].Add(*one)
			return
		}
	}
	if failed {
		h.enter(one, client)
	}
}

// watch gives clients places, as long as there are any.
func (h *heavy) watch(clients []uint64) {
	for _, c := range clients {
		if h.used < maxHeavy && !slices.Contains(h.client[:h.used], c) {
			h.client[h.used], h.counts[h.used] = c, report.Counts{}
			h.used++
		}
	}
}

func (h *heavy) enter(one *report.Counts, client uint64) {
	at := h.used
	if at < maxHeavy {
		h.used++
	} else {
		for i := range h.counts {
			if at == maxHeavy || h.counts[i].Failed() < h.counts[at].Failed() {
				at = i
			}
		}
	}
	h.client[at], h.counts[at] = client, *one
}

// client is who an exchange is charged to: the verified user, else the consumer, else the address.
func (m *Meter) client(r *proxy.Record) uint64 {
	switch {
	case r.User != "":
		return maphash.String(m.seed, r.User)
	case r.Consumer != "":
		return maphash.String(m.seed, r.Consumer)
	}
	b := r.Peer.As16()
	return maphash.Bytes(m.seed, b[:])
}

// strataOf are the numbers of an exchange's strata: of its upstream, -1 if it was for none, and of its host. A host gets
// a number of its own by a request that has a route: what clients make up is Other.
func (m *Meter) strataOf(r *proxy.Record) (service, host int) {
	service = -1
	if r.Service != "" {
		service = m.services.ids.number(pair{"", r.Service}, r.Start)
	}
	if r.Route != "" {
		return service, m.hosts.ids.number(pair{"", r.Host}, r.Start)
	}
	return service, m.hosts.ids.find(pair{"", r.Host})
}

// stratify counts an exchange in its strata. Who the client was is of interest only where somebody has failed.
func (s *shard) stratify(m *Meter, service, host int, one *report.Counts, r *proxy.Record) {
	var of *stratum
	h := at(&s.hosts, host)
	used := h.heavy.used
	if service >= 0 {
		of = at(&s.services, service)
		used += of.heavy.used
	}
	client := uint64(0)
	if used > 0 || one.Failed() > 0 {
		client = m.client(r)
	}
	if of != nil {
		of.count(one, r, client)
	}
	h.counts.Add(*one)
	h.heavy.count(one, client)
}

func at(all *[maxStrata + 1]*stratum, n int) *stratum {
	if all[n] == nil {
		all[n] = &stratum{}
	}
	return all[n]
}

// sums are the shards' strata of one kind, added up.
type sums struct {
	all     [maxStrata + 1]stratum
	clients map[clientOf]report.Counts
}

// clientOf is a client in a stratum.
type clientOf struct {
	stratum int
	client  uint64
}

// take adds a shard's strata and empties them. The shard is locked.
func (t *sums) take(strata *[maxStrata + 1]*stratum) {
	for n, one := range strata {
		if one == nil || one.counts.Requests == 0 {
			continue
		}
		t.all[n].add(one)
		for i := range one.heavy.used {
			at := clientOf{n, one.heavy.client[i]}
			sum := t.clients[at]
			sum.Add(one.heavy.counts[i])
			t.clients[at] = sum
		}
		*one = stratum{}
	}
}

func (s *stratum) add(b *stratum) {
	s.counts.Add(b.counts)
	s.cold += b.cold
	for i, n := range b.warm {
		s.warm[i] += n
	}
}

// told gives the largest strata of the kind.
func (k *kind) told(t *sums) []report.Stratum {
	var heavies [maxStrata + 1]report.Counts
	for at, c := range t.clients {
		if heavier(c, heavies[at.stratum]) < 0 {
			heavies[at.stratum] = c
		}
	}
	var out []report.Stratum
	names := withOther(k.ids)
	for key, n := range names {
		one := &t.all[n]
		k.weight[n] = k.weight[n]*lately + float64(one.counts.Requests)
		if one.counts.Requests == 0 {
			continue
		}
		s := report.Stratum{ID: key.name, Counts: one.counts, Cold: one.cold, Warm: report.SpanOf(one.warm[:])}
		if n == 0 {
			s.ID = report.Other
		}
		if heavies[n].Failed() > 1 {
			s.Heavy = &heavies[n]
		}
		out = append(out, s)
	}
	return report.Heaviest(out, toldStrata, func(s report.Stratum) float64 { return k.weight[names[pair{"", s.ID}]] })
}

// heavier puts the client that failed more often first, and decides draws.
func heavier(a, b report.Counts) int {
	return cmp.Or(cmp.Compare(b.Failed(), a.Failed()), cmp.Compare(b.Requests, a.Requests))
}

// watched are the clients by stratum that are counted from the next window's beginning on, whether they fail at once or not:
// the heaviest of this one and of those before it, as long as they come.
func (t *sums) watched() map[int][]uint64 {
	all := slices.SortedFunc(maps.Keys(t.clients), func(a, b clientOf) int {
		return cmp.Or(heavier(t.clients[a], t.clients[b]), cmp.Compare(a.client, b.client))
	})
	out := map[int][]uint64{}
	for _, at := range all {
		if t.clients[at].Requests > 0 && len(out[at.stratum]) < maxWatched {
			out[at.stratum] = append(out[at.stratum], at.client)
		}
	}
	return out
}

// expire gives the numbers away that nobody asked for since the time.
func (m *Meter) expire(before time.Time) {
	for _, k := range []*kind{&m.services, &m.hosts} {
		numbers := k.ids.expire(before)
		for _, n := range numbers {
			k.weight[n] = 0
		}
		k.ids.release(numbers)
	}
}
