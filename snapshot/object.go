package snapshot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Bounds of what a document may hold; beyond them is a problem.
const (
	maxString   = 4 << 10
	maxText     = 64 << 10 // certificates
	maxDepth    = 16       // aliases of aliases
	maxAliases  = 100_000  // uses of aliases per file
	maxProblems = 10_000
)

// at is the path of a value in its document, printed only for problems.
type at struct {
	parent *at
	key    string
	index  int // with an empty key
}

func (a *at) String() string {
	if a == nil {
		return ""
	}
	head := a.parent.String()
	if a.key == "" {
		return head + "[" + strconv.Itoa(a.index) + "]"
	}
	if head == "" {
		return a.key
	}
	return head + "." + a.key
}

// object is a mapping whose keys have been checked. A key that is absent has no node.
type object struct {
	d    *decoder
	line int
	at   *at
	keys []string
	vals []*yaml.Node
}

// object checks that n is a mapping of known, distinct string keys. ok is false when it is no mapping.
func (d *decoder) object(n *yaml.Node, p *at, known []string) (o object, ok bool) {
	o = object{d: d, line: n.Line, at: p}
	n = d.resolve(n)
	if n == nil || n.Kind != yaml.MappingNode {
		d.wrong(o.line, p, "must be a mapping", "write {key: value} or one key: value a line")
		return o, false
	}
	o.line = n.Line
	o.keys = make([]string, 0, len(n.Content)/2)
	o.vals = make([]*yaml.Node, 0, len(n.Content)/2)
	for i := 0; i+1 < len(n.Content); i += 2 {
		if key, ok := d.key(n.Content[i], p, o.keys); ok {
			if !slices.Contains(known, key) {
				d.wrong(n.Content[i].Line, p.child(key), "unknown key", suggest(key, known))
				continue
			}
			o.keys = append(o.keys, key)
			o.vals = append(o.vals, n.Content[i+1])
		}
	}
	return o, true
}

func (a *at) child(key string) *at { return &at{parent: a, key: key} }

func (a *at) item(i int) *at { return &at{parent: a, index: i} }

// key takes one key of a mapping, unless it is no string or stands there twice.
func (d *decoder) key(n *yaml.Node, p *at, seen []string) (string, bool) {
	if n.Kind != yaml.ScalarNode || (n.Tag != "!!str" && n.Tag != "!!merge") {
		d.wrong(n.Line, p, "a key must be a string", "put it in quotes")
		return "", false
	}
	if slices.Contains(seen, n.Value) {
		d.wrong(n.Line, p.child(n.Value), "the key stands here twice", "keep one of them")
		return "", false
	}
	return n.Value, true
}

// suggest names the known key that is meant, or all of them.
func suggest(key string, known []string) string {
	if key == "<<" {
		return "merge keys are not supported; write the fields out"
	}
	best, least := "", 3
	for _, k := range known {
		if n := distance(key, k); n < least {
			best, least = k, n
		}
	}
	if best != "" {
		return "did you mean " + best + "?"
	}
	return "known here: " + strings.Join(known, ", ")
}

// distance is the Levenshtein distance of short words.
func distance(a, b string) int {
	if len(a) > 32 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}

// resolve follows aliases, within the file's budget; nil means that it is spent or that they form a circle.
func (d *decoder) resolve(n *yaml.Node) *yaml.Node {
	for depth := 0; n != nil && n.Kind == yaml.AliasNode; depth++ {
		if d.aliases++; d.aliases > maxAliases || depth > maxDepth {
			return nil
		}
		n = n.Alias
	}
	return n
}

func (o object) get(key string) *yaml.Node {
	if i := slices.Index(o.keys, key); i >= 0 {
		return o.vals[i]
	}
	return nil
}

// either is the value of a key that has two spellings; giving both is a problem.
func (o object) either(key, other string) (*yaml.Node, string) {
	a, b := o.get(key), o.get(other)
	if a != nil && b != nil {
		o.d.wrong(b.Line, o.at.child(other), "says the same as "+key, "keep one of them")
	}
	if a == nil && b != nil {
		return b, other
	}
	return a, key
}

func (o object) wrong(key, message, hint string) {
	line := o.line
	if n := o.get(key); n != nil {
		line = n.Line
	}
	o.d.wrong(line, o.at.child(key), message, hint)
}

func (o object) string(key string) string {
	s, _ := o.d.string(o.get(key), o.at, key)
	return s
}

// string reads a scalar; ok is false when it is absent or was reported. Numbers count as their own text.
func (d *decoder) string(n *yaml.Node, p *at, key string) (string, bool) {
	return d.limited(n, p, key, maxString)
}

func (d *decoder) limited(n *yaml.Node, p *at, key string, most int) (string, bool) {
	if n == nil {
		return "", false
	}
	line := n.Line
	n = d.resolve(n)
	if key != "" {
		p = p.child(key)
	}
	switch {
	case n == nil || n.Kind != yaml.ScalarNode:
		d.wrong(line, p, "must be a string", "write one value, in quotes if it has special characters")
	case n.Tag == "!!null" || n.Tag == "!!str" && n.Value == "":
		d.wrong(line, p, "is empty", "give a value or leave the key out")
	case n.Tag == "!!bool":
		d.wrong(line, p, "must be a string, not a boolean", "put it in quotes")
	case n.Tag != "!!str" && n.Tag != "!!int" && n.Tag != "!!float" && n.Tag != "!!timestamp":
		d.wrong(line, p, "must be a string, not "+clip(n.Tag), "put it in quotes")
	case len(n.Value) > most:
		d.wrong(line, p, fmt.Sprintf("is longer than %d bytes", most), "shorten it")
	case strings.ContainsFunc(n.Value, func(r rune) bool { return r < ' ' && (most == maxString || r != '\n') || r == 0x7f }):
		d.wrong(line, p, "holds control characters", "take them out")
	default:
		return d.intern(n.Value), true
	}
	return "", false
}

// intern keeps one copy of values that recur, such as hosts and owners.
func (d *decoder) intern(s string) string {
	if len(s) > 64 {
		return s
	}
	if have, ok := d.interned[s]; ok {
		return have
	}
	if len(d.interned) < 1<<16 {
		d.interned[s] = s
	}
	return s
}

func (o object) bool(key string) bool {
	n := o.get(key)
	if n == nil {
		return false
	}
	if v := o.d.resolve(n); v != nil && v.Kind == yaml.ScalarNode && v.Tag == "!!bool" {
		return strings.EqualFold(v.Value, "true")
	}
	o.wrong(key, "must be true or false", "without quotes")
	return false
}

// int reads a decimal integer of lo…hi; ok is false when it is absent or was reported.
func (o object) int(key string, lo, hi int64) (v int64, ok bool) {
	n := o.get(key)
	if n == nil {
		return 0, false
	}
	r := o.d.resolve(n)
	if r == nil || r.Kind != yaml.ScalarNode || r.Tag != "!!int" {
		o.wrong(key, "must be a whole number", "in decimal digits, without quotes or a unit")
		return 0, false
	}
	v, err := strconv.ParseInt(r.Value, 10, 64)
	if err != nil || v < lo || v > hi {
		o.wrong(key, fmt.Sprintf("%s is not a number of %d to %d", clip(r.Value), lo, hi), "choose a number within")
		return 0, false
	}
	return v, true
}

func clip(s string) string {
	if len(s) > 40 {
		return s[:40] + "…"
	}
	return s
}

// duration reads a number with a unit; ok is false when it is absent or was reported.
func (o object) duration(key string, lo, hi time.Duration) (time.Duration, bool) {
	s, ok := o.d.string(o.get(key), o.at, key)
	if !ok {
		return 0, false
	}
	v, err := time.ParseDuration(s)
	switch {
	case err != nil:
		hint := "write 800ms, 2s, 1m or 1h"
		if _, isNumber := strconv.Atoi(s); isNumber == nil && s != "0" {
			hint = "give the unit, such as " + s + "ms"
		}
		o.wrong(key, strconv.Quote(clip(s))+" is not a duration", hint)
	case v < lo || v > hi:
		o.wrong(key, fmt.Sprintf("%s is not within %s to %s", clip(s), Duration(lo), Duration(hi)), "choose a time within")
	default:
		return v, true
	}
	return 0, false
}

// list visits the items of a sequence of at most most items; a missing key has none.
func (d *decoder) list(n *yaml.Node, p *at, most int, each func(i int, n *yaml.Node, p *at)) {
	if n == nil {
		return
	}
	line := n.Line
	n = d.resolve(n)
	switch {
	case n == nil || n.Kind != yaml.SequenceNode:
		d.wrong(line, p, "must be a list", "write [a, b] or one - item a line")
	case len(n.Content) > most:
		d.wrong(line, p, fmt.Sprintf("has %d items, more than %d", len(n.Content), most), "cut it into several items")
	default:
		for i, item := range n.Content {
			each(i, item, p.item(i))
		}
	}
}

// strings reads a list of distinct strings.
func (o object) strings(key string, most int) []string {
	var all []string
	o.d.list(o.get(key), o.at.child(key), most, func(_ int, n *yaml.Node, p *at) {
		s, ok := o.d.string(n, p, "")
		switch {
		case !ok:
		case slices.Contains(all, s):
			o.d.wrong(n.Line, p, strconv.Quote(clip(s))+" stands here twice", "keep one of them")
		default:
			all = append(all, s)
		}
	})
	return all
}

// pairs reads a mapping of strings to strings of at most most entries.
func (o object) pairs(key string, most int) map[string]string {
	n := o.get(key)
	if n == nil {
		return nil
	}
	p := o.at.child(key)
	r := o.d.resolve(n)
	if r == nil || r.Kind != yaml.MappingNode {
		o.d.wrong(n.Line, p, "must be a mapping", "write {key: value} or one key: value a line")
		return nil
	}
	if len(r.Content)/2 > most {
		o.d.wrong(n.Line, p, fmt.Sprintf("has %d entries, more than %d", len(r.Content)/2, most), "keep the ones that matter")
		return nil
	}
	var seen []string
	m := map[string]string{}
	for i := 0; i+1 < len(r.Content); i += 2 {
		name, ok := o.d.key(r.Content[i], p, seen)
		if !ok {
			continue
		}
		seen = append(seen, name)
		if v, ok := o.d.string(r.Content[i+1], p, name); ok {
			m[o.d.intern(name)] = v
		}
	}
	if len(m) == 0 {
		return nil
	}
	return m
}
