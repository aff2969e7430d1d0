package snapshot

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// The stored form of a host shard, version Form: routeMagic, then one record a route in order of id. A record is its
// length as a uvarint and its fields in the order of routeWriter.route. A reader ignores what follows the fields it
// knows inside a record, so that a later writer may append fields. Strings are a uvarint length and bytes.
const routeMagic = "cgr\x01"

// maxList bounds every list inside a stored record.
const maxList = 4096

var errShard = errors.New("snapshot: a route shard is damaged")

// EncodeRoutes is the stored form of the routes, which must be sorted by id.
func EncodeRoutes(routes []Route) []byte {
	out := []byte(routeMagic)
	var w routeWriter
	for i := range routes {
		w.b = w.b[:0]
		w.route(&routes[i])
		out = binary.AppendUvarint(out, uint64(len(w.b)))
		out = append(out, w.b...)
	}
	return out
}

type routeWriter struct{ b []byte }

func (w *routeWriter) uint(v uint64) { w.b = binary.AppendUvarint(w.b, v) }
func (w *routeWriter) string(s string) {
	w.uint(uint64(len(s)))
	w.b = append(w.b, s...)
}

func (w *routeWriter) list(l []string) {
	w.uint(uint64(len(l)))
	for _, s := range l {
		w.string(s)
	}
}

func (w *routeWriter) pairs(m map[string]string) {
	w.uint(uint64(len(m)))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		w.string(k)
		w.string(m[k])
	}
}

func (w *routeWriter) route(r *Route) {
	w.string(r.ID)
	w.string(r.Match.Host)
	w.string(r.Match.Path)
	w.string(r.Match.PathPrefix)
	w.list(r.Match.Methods)
	w.pairs(r.Match.Headers)
	w.pairs(r.Match.Query)
	w.uint(bit(r.Match.AllowCatchAll))
	w.string(r.Upstream)
	w.uint(uint64(len(r.Split)))
	for _, d := range r.Split {
		w.string(d.Upstream)
		w.uint(uint64(d.Weight))
	}
	w.string(r.Sticky)
	w.string(r.Auth)
	w.list(r.Policies)
	w.uint(uint64(r.Timeout))
	w.uint(uint64(r.Retry.Attempts))
	w.list(r.Retry.Conditions)
	w.rate(r.Limits.Tenant)
	w.rate(r.Limits.User)
	w.string(string(r.Priority))
	w.string(r.Owner)
	shadow := r.Limits.Shadow()
	if r.Limits.Scope != "" || r.Limits.OnStoreLoss != "" || r.Hedge || shadow { // appended later: a route without them is stored as ever
		w.string(r.Limits.Scope)
		w.string(r.Limits.OnStoreLoss)
	}
	if r.Hedge || shadow {
		w.uint(bit(r.Hedge))
	}
	if shadow {
		w.uint(1)
	}
}

func (w *routeWriter) rate(r Rate) {
	w.uint(r.Requests)
	w.uint(uint64(r.Per))
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// ReadRoutes calls each for every route of a stored host shard, in order of id, with its record, which is equal for equal
// routes. The Route and its slices are reused between calls; its strings share one copy of the blob. Anything damaged is an
// error, also after some calls.
func ReadRoutes(blob []byte, each func(r *Route, record string) error) error {
	if len(blob) < len(routeMagic) || string(blob[:len(routeMagic)]) != routeMagic {
		return fmt.Errorf("%w: not form %d", errShard, Form)
	}
	rest := routeReader{s: string(blob[len(routeMagic):])}
	var r Route
	for last := ""; rest.s != ""; last = r.ID {
		whole := rest.string()
		record := routeReader{s: whole}
		if rest.bad {
			return errShard
		}
		record.route(&r)
		if record.bad || cmp.Compare(last, r.ID) >= 0 {
			return errShard
		}
		if err := each(&r, whole); err != nil {
			return err
		}
	}
	return nil
}

// routeReader takes fields from the head of s; bad is set, and stays set, at the first thing that cannot be read.
type routeReader struct {
	s   string
	bad bool
}

func (r *routeReader) uint() uint64 {
	var v uint64
	for i := 0; i < len(r.s) && i < binary.MaxVarintLen64; i++ {
		c := r.s[i]
		if i == binary.MaxVarintLen64-1 && c > 1 {
			break
		}
		v |= uint64(c&0x7f) << (7 * i)
		if c < 0x80 {
			r.s = r.s[i+1:]
			return v
		}
	}
	r.bad, r.s = true, ""
	return 0
}

func (r *routeReader) string() string {
	n := r.uint()
	if n > uint64(len(r.s)) {
		r.bad, r.s = true, ""
		return ""
	}
	head := r.s[:n]
	r.s = r.s[n:]
	return head
}

func (r *routeReader) count() int {
	n := r.uint()
	if n > maxList || n > uint64(len(r.s)) {
		r.bad, r.s = true, ""
		return 0
	}
	return int(n)
}

func (r *routeReader) list(into []string) []string {
	into = into[:0]
	for range r.count() {
		into = append(into, r.string())
	}
	return into
}

func (r *routeReader) pairs() map[string]string {
	n := r.count()
	if n == 0 {
		return nil
	}
	m := make(map[string]string, n)
	for range n {
		k := r.string()
		m[k] = r.string()
	}
	return m
}

func (r *routeReader) duration() time.Duration {
	v := r.uint()
	if v > 1<<62 {
		r.bad = true
	}
	return time.Duration(v)
}

func (r *routeReader) route(to *Route) {
	to.ID = r.string()
	to.Match.Host = r.string()
	to.Match.Path = r.string()
	to.Match.PathPrefix = r.string()
	to.Match.Methods = r.list(to.Match.Methods)
	to.Match.Headers = r.pairs()
	to.Match.Query = r.pairs()
	to.Match.AllowCatchAll = r.uint() == 1
	to.Upstream = r.string()
	to.Split = to.Split[:0]
	for range r.count() {
		to.Split = append(to.Split, Destination{Upstream: r.string(), Weight: uint32(min(r.uint(), MaxWeight))})
	}
	to.Sticky = r.string()
	to.Auth = r.string()
	to.Policies = r.list(to.Policies)
	to.Timeout = r.duration()
	to.Retry.Attempts = int(min(r.uint(), MaxAttempts))
	to.Retry.Conditions = r.list(to.Retry.Conditions)
	to.Limits.Tenant = Rate{r.uint(), r.duration()}
	to.Limits.User = Rate{r.uint(), r.duration()}
	to.Priority = cells.Priority(r.string())
	to.Owner = r.string()
	if to.Limits.Scope, to.Limits.OnStoreLoss = "", ""; r.s != "" {
		to.Limits.Scope, to.Limits.OnStoreLoss = r.string(), r.string()
	}
	to.Hedge = r.s != "" && r.uint() == 1
	if to.Limits.Mode = ""; r.s != "" && r.uint() == 1 {
		to.Limits.Mode = ModeShadow
	}
}

// clone makes a route that ReadRoutes lends independent of it; empty lists become nil, as Decode leaves them.
func (r *Route) clone() Route {
	c := *r
	c.Match.Methods = slices.Clone(nonEmpty(r.Match.Methods))
	c.Split = slices.Clone(nonEmpty(r.Split))
	c.Policies = slices.Clone(nonEmpty(r.Policies))
	c.Retry.Conditions = slices.Clone(nonEmpty(r.Retry.Conditions))
	return c
}

func nonEmpty[T any](l []T) []T {
	if len(l) == 0 {
		return nil
	}
	return l
}
