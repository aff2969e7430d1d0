package route

import "strings"

// walk is one look-up within one host of one table.
type walk struct {
	t      *Table
	req    *Request
	method uint32
	missed uint32 // methods of the routes that failed by their method alone
	cost   int    // of the steps taken, by the measure of MaxCost
	trace  func(Step)
}

// Step is one route that a look-up considered, for explain. Outcome is "taken", "method" or "predicate".
type Step struct {
	Route   uint32
	Outcome string
}

// find looks for the route below the root of a host.
func (w *walk) find(root uint32) (route uint32, ok bool) {
	var chain [MaxSegments + 1]uint32 // the literal nodes along the path, from the root down
	var left [MaxSegments + 1]uint16  // how much of the path follows each of them
	whole := string(w.req.Path)
	rest := whole
	chain[0], left[0] = root, uint16(len(rest))
	depth := 0
	w.cost += costNode
	for rest != "" && depth < MaxSegments {
		segment, after := cut(rest)
		c := w.t.child(chain[depth], segment)
		if c == 0 {
			break
		}
		depth++
		w.cost += costNode
		rest = after
		chain[depth], left[depth] = c, uint16(len(rest))
	}
	if route, ok := w.ending(chain[depth], rest); ok {
		return route, true
	}
	for d := depth; d >= 0; d-- {
		if route, ok := w.parameter(w.t.nodes[chain[d]-1].param, whole[len(whole)-int(left[d]):]); ok {
			return route, true
		}
	}
	for d := depth; d >= 0; d-- {
		if route, ok := w.rules(w.t.nodes[chain[d]-1].prefix); ok {
			return route, true
		}
	}
	return 0, false
}

// parameter lets the parameter child ref take the next segment, and goes on below it.
func (w *walk) parameter(ref uint32, rest string) (uint32, bool) {
	if ref == 0 || rest == "" {
		return 0, false
	}
	segment, after := cut(rest)
	if segment == "" {
		return 0, false
	}
	return w.below(ref, after)
}

// below is the depth-first search for a full path: the literal child first, then the parameter.
func (w *walk) below(ref uint32, rest string) (uint32, bool) {
	w.cost += costNode
	if route, ok := w.ending(ref, rest); ok || rest == "" {
		return route, ok
	}
	segment, after := cut(rest)
	if c := w.t.child(ref, segment); c != 0 {
		if route, ok := w.below(c, after); ok {
			return route, true
		}
	}
	return w.parameter(w.t.nodes[ref-1].param, rest)
}

// ending tries the routes whose path ends at the node, if rest is what they end with.
func (w *walk) ending(ref uint32, rest string) (uint32, bool) {
	n := &w.t.nodes[ref-1]
	if !w.t.ends(n, rest) {
		return 0, false
	}
	if n.single && n.methods&w.method != 0 && w.trace == nil {
		return n.route, true
	}
	return w.rules(n.exact)
}

// rules tries rules in order from number first - 1.
func (w *walk) rules(first uint32) (uint32, bool) {
	if first == 0 {
		return 0, false
	}
	for i := first - 1; ; i++ {
		r := &w.t.rules[i]
		w.cost += costRule
		switch {
		case !w.holds(r):
			w.note(r, "predicate")
		case r.methods&w.method == 0:
			w.missed |= r.methods
			w.note(r, "method")
		default:
			w.note(r, "taken")
			return r.route, true
		}
		if r.last {
			return 0, false
		}
	}
}

func (w *walk) note(r *rule, outcome string) {
	if w.trace != nil {
		w.trace(Step{r.route, outcome})
	}
}

func (w *walk) holds(r *rule) bool {
	for _, p := range w.t.preds[r.preds : r.preds+uint32(r.npreds)] {
		name, want := w.t.str(p.name), w.t.str(p.value)
		w.cost += p.cost()
		if p.query {
			if !queryHas(w.req.Query, name, want) {
				return false
			}
			continue
		}
		if w.req.Headers == nil {
			return false
		}
		if got, ok := w.req.Headers.Get(name); !ok || got != want {
			return false
		}
	}
	return true
}

// queryHas says whether the first parameter of that name has the value. Names and values are compared decoded
// ("+" is a space); a parameter without "=" has the empty value.
func queryHas(raw, name, want string) bool {
	for raw != "" {
		var pair string
		pair, raw, _ = strings.Cut(raw, "&")
		if name != "" && (pair == "" || pair[0] != name[0] && pair[0] != '%' && pair[0] != '+') {
			continue
		}
		key, value, _ := strings.Cut(pair, "=")
		if decodedEqual(key, name) {
			return decodedEqual(value, want)
		}
	}
	return false
}

func decodedEqual(encoded, plain string) bool {
	for i := 0; i < len(encoded); i++ {
		c := encoded[i]
		switch c {
		case '+':
			c = ' '
		case '%':
			if i+2 < len(encoded) {
				if hi, lo := unhex(encoded[i+1]), unhex(encoded[i+2]); hi|lo < 16 {
					c = hi<<4 | lo
					i += 2
				}
			}
		}
		if plain == "" || plain[0] != c {
			return false
		}
		plain = plain[1:]
	}
	return plain == ""
}

func unhex(c byte) byte {
	switch {
	case '0' <= c && c <= '9':
		return c - '0'
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10
	}
	return 0xff
}
