package meter

import (
	"strings"
	"time"

	"github.com/cellgate/cellgate/proxy"
)

// Witness is a request of a route that was answered well lately. It stays in the process: paths are nobody else's business.
type Witness struct {
	Route, Host, Method, Path string
	at                        time.Time
}

// renew is how old a route's witness may become before another request takes its place.
const renew = time.Minute

// witness keeps a request of a route that has a series of its own, one in a minute.
func (m *Meter) witness(route int, r *proxy.Record) {
	if route == 0 || r.Route == "" || r.Status >= 400 || r.Path == "" {
		return
	}
	if w := m.seen[route].Load(); w != nil && r.Start.Sub(w.at) < renew {
		return
	}
	m.seen[route].Store(&Witness{Route: strings.Clone(r.Route), Host: strings.Clone(r.Host), Method: strings.Clone(r.Method), Path: strings.Clone(r.Path), at: r.Start})
}

// Witnesses are those of all routes that have a series of their own.
func (m *Meter) Witnesses() (all []Witness) {
	for i := range m.seen {
		if w := m.seen[i].Load(); w != nil {
			all = append(all, *w)
		}
	}
	return all
}
