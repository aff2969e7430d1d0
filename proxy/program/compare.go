package program

import "github.com/cellgate/cellgate/snapshot"

// Difference is what two programs have in their routes, by id.
type Difference struct {
	Changed map[string]bool // in both, otherwise defined
	Removed map[string]bool // in the old one only
}

// Compare looks at the shards that the programs don't share.
func Compare(old, now *Program) Difference {
	d := Difference{Changed: map[string]bool{}, Removed: map[string]bool{}}
	was, is := old.definitions(now), now.definitions(old)
	for id, definition := range was {
		if next, ok := is[id]; !ok {
			d.Removed[id] = true
		} else if next != definition {
			d.Changed[id] = true
		}
	}
	return d
}

// definitions are those of the routes in shards that the other program doesn't have.
func (p *Program) definitions(other *Program) map[string]uint64 {
	have := map[snapshot.Digest]bool{}
	for _, sh := range other.shards {
		have[sh.digest] = true
	}
	out := map[string]uint64{}
	for _, sh := range p.shards {
		if have[sh.digest] {
			continue
		}
		for i := range sh.routes {
			out[sh.routes[i].ID] = sh.routes[i].definition
		}
	}
	return out
}

// Own is the memory in bytes of the route tables that the other program doesn't share.
func (p *Program) Own(other *Program) (bytes int) {
	have := map[*shard]bool{}
	for _, sh := range other.shards {
		have[sh] = true
	}
	for _, sh := range p.shards {
		if !have[sh] {
			bytes += sh.table.Bytes()
		}
	}
	return bytes
}
