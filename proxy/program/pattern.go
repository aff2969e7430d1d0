package program

import "strings"

// patterns are what the routes of a shard match paths by, back to back: they are seldom asked for, and shouldn't lie in the way of what
// is asked for with each request.
type patterns struct {
	text string
	ends []uint32 // of each route's
}

// Pattern is the path that the route of a match takes, as its author wrote it; of a prefix with "/*" behind it. Empty without a route.
func (p *Program) Pattern(m *Match) string {
	if m.Route == nil {
		return ""
	}
	of := &p.shards[m.table].patterns
	begin := uint32(0)
	if m.number > 0 {
		begin = of.ends[m.number-1]
	}
	return of.text[begin:of.ends[m.number]]
}

// patternWriter makes patterns of one route after the other.
type patternWriter struct {
	text strings.Builder
	ends []uint32
}

func (w *patternWriter) add(path, prefix string) {
	w.text.WriteString(path)
	if prefix != "" {
		w.text.WriteString(strings.TrimSuffix(prefix, "/"))
		w.text.WriteString("/*")
	}
	w.ends = append(w.ends, uint32(w.text.Len()))
}

func (w *patternWriter) done() patterns { return patterns{w.text.String(), w.ends} }
