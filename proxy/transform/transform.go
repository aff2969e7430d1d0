// Package transform changes the fields, paths and statuses of messages by the policies of a route. The policies are put together
// once, so that what they come to is a look-up a field and nothing else; bodies are not touched.
//
//	r := transform.Compile(policies, match)
//	head = r.Request.AppendFields(head, &request.Head)
//	target, ok := r.Path.Append(target, path)
//	status = r.Status(answer.Status)
package transform

import (
	"maps"
	"slices"
	"strings"
	"unsafe"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/snapshot"
)

// Rules are the transforms of a route. They are immutable.
type Rules struct {
	Request, Response Fields
	Path              *Path // nil = it stays
	statuses          []pair
	keep              map[string]bool
}

type pair struct{ from, to int }

// Compile puts policies together, in their order, for a route of this match.
func Compile(policies []*snapshot.Transform, match *snapshot.Match) *Rules {
	r := &Rules{keep: map[string]bool{}}
	var request, response edits
	for _, p := range policies {
		request.take(&p.Request.Edits)
		response.take(&p.Response.Edits)
		for i := range r.statuses {
			if to, ok := p.Response.Status[r.statuses[i].to]; ok {
				r.statuses[i].to = to
			}
		}
		for _, from := range slices.Sorted(maps.Keys(p.Response.Status)) {
			if !slices.ContainsFunc(r.statuses, func(s pair) bool { return s.from == from }) {
				r.statuses = append(r.statuses, pair{from, p.Response.Status[from]})
			}
		}
		for _, k := range p.Response.Keep {
			r.keep[k] = true
		}
		if p.Request.Path != "" || p.Request.PathPrefix != "" {
			r.Path = newPath(&p.Request, match)
		}
	}
	r.Request, r.Response = request.fields(), response.fields()
	return r
}

// RequestEdits are the edits of requests; nil without rules.
func (r *Rules) RequestEdits() *Fields {
	if r == nil {
		return nil
	}
	return &r.Request
}

// AnswerEdits are those of answers; nil without rules.
func (r *Rules) AnswerEdits() *Fields {
	if r == nil {
		return nil
	}
	return &r.Response
}

// Status is what a status becomes. r may be nil.
func (r *Rules) Status(status int) int {
	if r == nil {
		return status
	}
	for _, s := range r.statuses {
		if s.from == status {
			return s.to
		}
	}
	return status
}

// Hide marks what tells of the inside of an answer's origin as dropped. r may be nil.
func (r *Rules) Hide(h *http1.Head) {
	fields := h.Fields()
	for i := range fields {
		if f := &fields[i]; f.Kind == http1.Internal && (r == nil || !r.kept(h.Name(f))) {
			f.Drop = true
		}
	}
}

func (r *Rules) kept(name []byte) bool {
	for k := range r.keep {
		if http1.Is(name, k) {
			return true
		}
	}
	return false
}

// edits are what policies come to so far: what becomes of a field that comes with a name, and what is added.
type edits struct {
	becomes map[string]string // empty = it is dropped
	added   []Field
}

// Field is a name and a value.
type Field struct{ Name, Value string }

// take puts further edits behind those so far.
func (e *edits) take(by *snapshot.Edits) {
	for _, name := range by.Remove {
		e.rename(name, "")
	}
	for _, from := range slices.Sorted(maps.Keys(by.Rename)) {
		e.rename(from, by.Rename[from])
	}
	for _, name := range slices.Sorted(maps.Keys(by.Set)) {
		e.rename(name, "")
		e.added = append(e.added, Field{name, by.Set[name]})
	}
	for _, name := range slices.Sorted(maps.Keys(by.Add)) {
		e.added = append(e.added, Field{name, by.Add[name]})
	}
}

// rename gives another name, or none, to whatever has this one by now.
func (e *edits) rename(from, to string) {
	if from == to {
		return
	}
	if e.becomes == nil {
		e.becomes = map[string]string{}
	}
	for came, now := range e.becomes {
		if now == from {
			e.becomes[came] = to
		}
	}
	if _, ok := e.becomes[from]; !ok {
		e.becomes[from] = to
	}
	added := e.added[:0]
	for _, f := range e.added {
		if f.Name == from {
			f.Name = to
		}
		if f.Name != "" {
			added = append(added, f)
		}
	}
	e.added = added
}

func (e *edits) fields() (f Fields) {
	for _, came := range slices.Sorted(maps.Keys(e.becomes)) {
		n := len(came)
		for len(f.byLength) <= n {
			f.byLength = append(f.byLength, nil)
		}
		f.byLength[n] = append(f.byLength[n], Field{came, e.becomes[came]})
	}
	f.Added = e.added
	return f
}

// Fields are the edits of one direction.
type Fields struct {
	byLength [][]Field // what comes, by the length of its name, and its name then; empty = dropped
	Added    []Field
}

// Name is what a field of this name is called now; ok is false when it is dropped. So is one that has a hyphen for an underscore of an
// edited name, or the other way round: upstreams that put fields into environment variables would take it for that.
func (e *Fields) Name(name []byte) (now []byte, renamed string, ok bool) {
	alike := false
	if len(name) < len(e.byLength) {
		for i := range e.byLength[len(name)] {
			f := &e.byLength[len(name)][i]
			if http1.Is(name, f.Name) {
				return nil, f.Value, f.Value != ""
			}
			alike = alike || http1.Alike(name, f.Name)
		}
	}
	return name, "", !alike
}

// AppendFields appends the fields of a head that pass, as lines, under the names that they have now, and those that are added.
// Without edits, e is nil.
func (e *Fields) AppendFields(dst []byte, h *http1.Head) []byte {
	if e == nil {
		return h.AppendFields(dst)
	}
	fields := h.Fields()
	for i := range fields {
		f := &fields[i]
		if f.Drop {
			continue
		}
		switch name, renamed, ok := e.Name(h.Name(f)); {
		case !ok:
		case renamed != "":
			dst = http1.AppendLine(dst, renamed, h.Value(f))
		default:
			dst = http1.AppendLine(dst, name, h.Value(f))
		}
	}
	for i := range e.Added {
		dst = http1.AppendLine(dst, e.Added[i].Name, e.Added[i].Value)
	}
	return dst
}

// Each gives the same fields one by one; the strings are valid during the call only.
func (e *Fields) Each(h *http1.Head, give func(name, value string)) {
	fields := h.Fields()
	for i := range fields {
		f := &fields[i]
		if f.Drop {
			continue
		}
		name, value := text(h.Name(f)), text(h.Value(f))
		if e != nil {
			_, renamed, ok := e.Name(h.Name(f))
			if !ok {
				continue
			}
			if renamed != "" {
				name = renamed
			}
		}
		give(name, value)
	}
	if e != nil {
		for i := range e.Added {
			give(e.Added[i].Name, e.Added[i].Value)
		}
	}
}

// text is a string over bytes that stay as they are.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Trim marks those trailers as dropped that would have been dropped or renamed in the head: there is no room for them in another
// place. It gives h back, which may be nil.
func (e *Fields) Trim(h *http1.Head) *http1.Head {
	if e == nil || h == nil {
		return h
	}
	fields := h.Fields()
	for i := range fields {
		if _, renamed, ok := e.Name(h.Name(&fields[i])); !ok || renamed != "" {
			fields[i].Drop = true
		}
	}
	return h
}

// Path rewrites the paths of a route.
type Path struct {
	prefix string // what is put in place of the first cut bytes
	cut    int
	parts  []part // of a template; nil = a prefix
}

// part is a piece of a template: text, or a segment of the path by its place.
type part struct {
	text    string
	segment int // -1 = text
}

func newPath(r *snapshot.RequestEdits, match *snapshot.Match) *Path {
	if r.PathPrefix != "" {
		return &Path{prefix: strings.TrimSuffix(r.PathPrefix, "/"), cut: len(strings.TrimSuffix(match.PathPrefix, "/"))}
	}
	own := strings.Split(match.Path[1:], "/")
	p := &Path{parts: []part{}}
	text := ""
	for segment := range strings.SplitSeq(r.Path[1:], "/") {
		text += "/"
		if n := slices.Index(own, segment); strings.HasPrefix(segment, "{") && n >= 0 {
			p.parts = append(p.parts, part{text, -1}, part{"", n})
			text = ""
			continue
		}
		text += segment
	}
	p.parts = append(p.parts, part{text, -1})
	return p
}

// Append appends what a path of the route becomes. It stays in normal form: what it is made of is. ok is false when it would be
// longer than a path may be.
func (p *Path) Append(dst []byte, path string) (_ []byte, ok bool) {
	at := len(dst)
	if p.parts == nil {
		dst = append(dst, p.prefix...)
		if dst = append(dst, path[min(p.cut, len(path)):]...); len(dst) == at {
			dst = append(dst, '/')
		}
		return dst, len(dst)-at <= http1.MaxTarget
	}
	for i := range p.parts {
		if part := &p.parts[i]; part.segment < 0 {
			dst = append(dst, part.text...)
		} else {
			dst = append(dst, segment(path, part.segment)...)
		}
		if len(dst)-at > http1.MaxTarget {
			return dst, false
		}
	}
	return dst, true
}

// segment is the n-th one of a path, from 0.
func segment(path string, n int) string {
	rest := path[1:]
	for ; n > 0; n-- {
		_, rest, _ = strings.Cut(rest, "/")
	}
	s, _, _ := strings.Cut(rest, "/")
	return s
}
