package snapshot

import (
	"fmt"
	"strconv"

	"github.com/cellgate/cellgate/problem"
	"go.yaml.in/yaml/v3"
)

// File is one file of an author's documents, YAML or JSON. Name is what problems print.
type File struct {
	Name string
	Data []byte
}

// Decode reads the files as one configuration and reports every fault of all of them at once, sorted. With problems the
// Config still holds what is sound, so that the caller may check that too; it must not be published.
func Decode(files []File, allow Allow) (*Config, problem.List) {
	d := newDecoder(allow)
	for _, f := range files {
		d.file(f)
	}
	d.references()
	d.conflicts()
	return d.finish()
}

// decoder collects what the files hold. Spots are parallel to the lists of the Config, until finish sorts those.
type decoder struct {
	cfg      *Config
	allow    Allow
	problems problem.List
	unshown  int

	chunkBytes int
	name       string // of the current file
	line       int    // lines of the current file before the current chunk
	aliases    int    // uses of aliases in the current file
	interned   map[string]string

	ids    map[name]spot // where an id was first given
	refs   []reference
	routes []spot // of cfg.Routes
	claims map[string]claim
	hashes map[string]claim
	kinds  map[string]policyKind // of policies, by id
	// shadows are the policies that are only tried.
	shadows map[string]bool
	authz   map[string]*Authz // the same
}

// spot is where a list's item stands.
type spot struct {
	file  string
	list  string
	index int
	line  int
}

func (s spot) path() string { return s.list + "[" + strconv.Itoa(s.index) + "]" }

func (s spot) String() string { return fmt.Sprintf("%s:%d", s.file, s.line) }

// name is an id within its kind.
type name struct{ kind, id string }

// claim is who holds something that only one may hold.
type claim struct {
	by string
	at spot
}

// reference is one use of an id, to be checked when all files are read.
type reference struct {
	to   name
	at   spot
	line int
	key  string
}

// The kinds are the names of the lists.
const (
	kindRoute    = "routes"
	kindUpstream = "upstreams"
	kindPolicy   = "policies"
	kindPlan     = "plans"
	kindConsumer = "consumers"
	kindTenant   = "tenants"
	kindSample   = "samples"

	kindIdentityKey = "identity_keys"
)

var topLevel = []string{"version", kindRoute, kindUpstream, kindPolicy, kindPlan, kindConsumer, kindTenant, kindSample, kindIdentityKey}

func newDecoder(allow Allow) *decoder {
	return &decoder{
		cfg: &Config{}, allow: allow, chunkBytes: chunkBytes, interned: map[string]string{}, ids: map[name]spot{},
		claims: map[string]claim{}, hashes: map[string]claim{}, kinds: map[string]policyKind{}, shadows: map[string]bool{}, authz: map[string]*Authz{},
	}
}

// wrong reports a problem at a line of the current chunk.
func (d *decoder) wrong(line int, p *at, message, hint string) {
	path := ""
	if len(d.problems) < maxProblems {
		path = p.String()
	}
	d.problem(d.line+line, path, message, hint)
}

// problem reports a problem at a line of the current file.
func (d *decoder) problem(line int, path, message, hint string) {
	d.add(problem.Problem{File: d.name, Line: line, Path: path, Message: message, Hint: hint})
}

func (d *decoder) add(p problem.Problem) {
	if len(d.problems) >= maxProblems {
		d.unshown++
		return
	}
	d.problems = append(d.problems, p)
}

// topKeys are the sections of the current YAML document seen so far.
type topKeys map[string]bool

// document decodes sections of one YAML document.
func (d *decoder) document(root *yaml.Node, seen topKeys) {
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, ok := d.key(root.Content[i], nil, nil)
		if !ok {
			continue
		}
		p := &at{key: key}
		if seen[key] {
			d.wrong(root.Content[i].Line, p, "the key stands here twice", "keep one of them")
			continue
		}
		seen[key] = true
		d.section(key, root.Content[i], root.Content[i+1], p)
	}
}

func (d *decoder) section(key string, k, v *yaml.Node, p *at) {
	r := d.resolve(v)
	switch {
	case key == "version":
		if s, ok := d.string(v, nil, key); ok && s != "v1" {
			d.wrong(v.Line, p, strconv.Quote(clip(s))+" is not a version of this form", "the version is v1")
		}
	case d.itemOf(key) == nil:
		d.wrong(k.Line, p, "unknown key", suggest(key, topLevel))
	case r != nil && r.Kind == yaml.ScalarNode && r.Tag == "!!null":
	case r == nil || r.Kind != yaml.SequenceNode:
		d.wrong(v.Line, p, "must be a list", "start each item with -")
	default:
		d.items(key, r, 0)
	}
}

// items decodes items of a section, the first of which has the given index.
func (d *decoder) items(key string, list *yaml.Node, first int) {
	decode := d.itemOf(key)
	if decode == nil {
		return
	}
	for i, n := range list.Content {
		s := spot{file: d.name, list: key, index: first + i, line: d.line + n.Line}
		decode(n, s, (&at{key: key}).item(first+i))
	}
}

func (d *decoder) itemOf(section string) func(*yaml.Node, spot, *at) {
	switch section {
	case kindRoute:
		return d.route
	case kindUpstream:
		return d.upstream
	case kindPolicy:
		return d.policy
	case kindPlan:
		return d.plan
	case kindConsumer:
		return d.consumer
	case kindTenant:
		return d.tenant
	case kindSample:
		return d.sample
	case kindIdentityKey:
		return d.identityKey
	}
	return nil
}

// id reads the item's id and claims it; ok is false when it was reported. An id that is used twice is given all the same.
func (d *decoder) id(o object, kind string, s spot) (string, bool) {
	if o.get("id") == nil {
		d.wrong(o.line, o.at.child("id"), "is missing", "every item needs an id")
		return "", false
	}
	id, ok := d.string(o.get("id"), o.at, "id")
	if !ok {
		return "", false
	}
	if !validID(id) && (kind != kindTenant || id != Platform) {
		o.wrong("id", strconv.Quote(clip(id))+" is not an id", "letters, digits, '.', '_', '-', at most 128, starting with a letter or digit")
		return "", false
	}
	if first, taken := d.ids[name{kind, id}]; taken {
		o.wrong("id", fmt.Sprintf("%q is used twice, first at %s", id, first), "ids are unique over all files")
		return id, false
	}
	d.ids[name{kind, id}] = s
	return id, true
}

func validID(id string) bool {
	if id == "" || len(id) > 128 {
		return false
	}
	for i := range len(id) {
		c := id[i]
		alnum := 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9'
		if !alnum && (i == 0 || c != '.' && c != '_' && c != '-') {
			return false
		}
	}
	return true
}

// refer notes the use of an id; n is where it stands.
func (d *decoder) refer(kind, id string, s spot, n *yaml.Node, key string) {
	d.refs = append(d.refs, reference{name{kind, id}, s, d.line + n.Line, key})
}

// mark is how far the lists are filled, so that a file can be taken back.
type mark struct {
	cfg      Config
	problems int
	unshown  int
	refs     int
	routes   int
}

func (d *decoder) mark() mark {
	return mark{cfg: *d.cfg, problems: len(d.problems), unshown: d.unshown, refs: len(d.refs), routes: len(d.routes)}
}

// reset takes back what the current file has added since m.
func (d *decoder) reset(m mark) {
	*d.cfg = m.cfg
	d.problems, d.unshown, d.refs, d.routes = d.problems[:m.problems], m.unshown, d.refs[:m.refs], d.routes[:m.routes]
	d.aliases = 0
	ours := func(s spot) bool { return s.file == d.name }
	for k, s := range d.ids {
		if ours(s) {
			delete(d.ids, k)
		}
	}
	for _, claims := range []map[string]claim{d.claims, d.hashes} {
		for k, c := range claims {
			if ours(c.at) {
				delete(claims, k)
			}
		}
	}
}
