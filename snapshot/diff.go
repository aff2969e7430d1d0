package snapshot

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Change is one difference between two Configs.
type Change struct {
	Kind string `json:"kind"` // "routes", "upstreams", …
	ID   string `json:"id"`
	Op   string `json:"op"` // "added", "removed" or "changed"
	// Fields are the differing fields of a changed item, by path.
	Fields []FieldChange `json:"fields,omitempty"`
}

// FieldChange is one differing field, its values as documents write them; empty = not there.
type FieldChange struct {
	Path   string `json:"path"`
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// Diff lists what has to change to make b of a, in the order of the document and by id. Values are as documents write them.
func Diff(a, b *Config) ([]Change, error) {
	var d differ
	compare(&d, kindRoute, a.Routes, b.Routes, func(r *Route) string { return r.ID }, func(r *Route) any { return formatRoute(r) })
	compare(&d, kindUpstream, a.Upstreams, b.Upstreams, func(u *Upstream) string { return u.ID }, func(u *Upstream) any { return formatUpstream(u) })
	compare(&d, kindPolicy, a.Policies, b.Policies, func(p *Policy) string { return p.ID }, func(p *Policy) any { return formatPolicy(p) })
	compare(&d, kindPlan, a.Plans, b.Plans, func(p *Plan) string { return p.ID }, func(p *Plan) any { return docPlan(*p) })
	compare(&d, kindConsumer, a.Consumers, b.Consumers, func(c *Consumer) string { return c.ID }, func(c *Consumer) any { return docConsumer(*c) })
	compare(&d, kindTenant, a.Tenants, b.Tenants, func(t *Tenant) string { return t.ID }, func(t *Tenant) any { return formatTenant(t) })
	compare(&d, kindSample, a.Samples, b.Samples, sampleID, func(s *Sample) any { return formatSample(s) })
	compare(&d, kindIdentityKey, a.IdentityKeys, b.IdentityKeys, func(k *IdentityKey) string { return k.ID }, func(k *IdentityKey) any { return formatIdentityKey(k) })
	return d.changes, d.err
}

// sampleID stands for an id, which samples don't have.
func sampleID(s *Sample) string { return s.Request.Method + " " + s.Request.URL }

type differ struct {
	changes []Change
	err     error
}

func compare[T any](d *differ, kind string, a, b []T, id func(*T) string, form func(*T) any) {
	before := map[string]*T{}
	for i := range a {
		before[id(&a[i])] = &a[i]
	}
	var changes []Change
	for i := range b {
		key := id(&b[i])
		old, ok := before[key]
		delete(before, key)
		switch {
		case !ok:
			changes = append(changes, Change{Kind: kind, ID: key, Op: "added"})
		case !reflect.DeepEqual(form(old), form(&b[i])):
			changes = append(changes, Change{Kind: kind, ID: key, Op: "changed", Fields: d.fields(form(old), form(&b[i]))})
		}
	}
	for key := range before {
		changes = append(changes, Change{Kind: kind, ID: key, Op: "removed"})
	}
	slices.SortFunc(changes, func(x, y Change) int { return cmp.Compare(x.ID, y.ID) })
	d.changes = append(d.changes, changes...)
}

func (d *differ) fields(a, b any) []FieldChange {
	x, y := d.flat(a), d.flat(b)
	union := maps.Clone(x)
	maps.Copy(union, y)
	var all []FieldChange
	for _, path := range slices.Sorted(maps.Keys(union)) {
		if x[path] != y[path] {
			all = append(all, FieldChange{path, x[path], y[path]})
		}
	}
	return all
}

// flat gives an item's fields by path; lists stay whole.
func (d *differ) flat(item any) map[string]string {
	into := map[string]string{}
	var root yaml.Node
	if err := root.Encode(item); err != nil {
		d.err = fmt.Errorf("snapshot: diff: %w", err)
		return into
	}
	flatten("", &root, into)
	return into
}

func flatten(path string, n *yaml.Node, into map[string]string) {
	switch n.Kind {
	case yaml.MappingNode:
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i].Value
			if path != "" {
				key = path + "." + key
			}
			flatten(key, n.Content[i+1], into)
		}
	case yaml.SequenceNode:
		into[path] = inlineList(n)
	default:
		into[path] = n.Value
	}
}

// inlineList writes a list in flow style: [a, b] or [{upstream: a, weight: 1}].
func inlineList(n *yaml.Node) string {
	parts := make([]string, 0, len(n.Content))
	for _, c := range n.Content {
		if c.Kind != yaml.MappingNode {
			parts = append(parts, c.Value)
			continue
		}
		var fields []string
		for i := 0; i+1 < len(c.Content); i += 2 {
			fields = append(fields, c.Content[i].Value+": "+c.Content[i+1].Value)
		}
		parts = append(parts, "{"+strings.Join(fields, ", ")+"}")
	}
	return "[" + strings.Join(parts, ", ") + "]"
}
