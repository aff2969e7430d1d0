package regionctl

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/cellgate/cellgate/problem"
	"github.com/cellgate/cellgate/snapshot"
)

// merge replaces exactly what the team owns of the published content: its routes, the upstreams and policies that only its
// routes use, and the samples that expect its routes. Consumers, plans, tenants and identity keys are everybody's: a team may repeat them,
// not change them. Everything is then checked as one whole.
func (d *draft) merge(old *snapshot.Config, at uint64) (*snapshot.Config, error) {
	part, places, problems := snapshot.DecodeAlone(d.snapshotFiles(), d.allow)
	rest := others(old, d.owner)
	problems = append(problems, d.foreign(part, places, old, rest)...)
	if len(problems) > 0 {
		return nil, invalid(problems)
	}
	forgetRepeated(rest, part)
	doc, err := snapshot.Format(rest)
	if err != nil {
		return nil, err
	}
	everything := snapshot.Allow{Upstreams: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}, PlainURLs: true}
	files := append(d.snapshotFiles(), snapshot.File{Name: fmt.Sprintf("version %d without %s", at, d.owner), Data: doc})
	cfg, err := checked(files, everything) // addresses were judged when each part was published
	if err != nil {
		return nil, err
	}
	for i := range cfg.Routes {
		if cfg.Routes[i].Owner == "" && slices.ContainsFunc(part.Routes, func(r snapshot.Route) bool { return r.ID == cfg.Routes[i].ID }) {
			cfg.Routes[i].Owner = d.owner
		}
	}
	return cfg, nil
}

// uses counts by id who uses an upstream or a policy.
type uses map[string]struct{ ours, theirs int }

func (u uses) add(id string, ours bool) {
	n := u[id]
	if ours {
		n.ours++
	} else {
		n.theirs++
	}
	u[id] = n
}

// owned says that only the team's routes use it.
func (u uses) owned(id string) bool { return u[id].ours > 0 && u[id].theirs == 0 }

// others is the configuration without what the team owns.
func others(old *snapshot.Config, owner string) *snapshot.Config {
	upstreams, policies, routes := uses{}, uses{}, map[string]bool{}
	for _, r := range old.Routes {
		ours := r.Owner == owner
		routes[r.ID] = ours
		if r.Upstream != "" {
			upstreams.add(r.Upstream, ours)
		}
		for _, s := range r.Split {
			upstreams.add(s.Upstream, ours)
		}
		for _, p := range append([]string{r.Auth}, r.Policies...) {
			policies.add(p, ours)
		}
	}
	rest := *old
	rest.Routes = keep(old.Routes, func(r snapshot.Route) bool { return r.Owner != owner })
	rest.Upstreams = keep(old.Upstreams, func(u snapshot.Upstream) bool { return !upstreams.owned(u.ID) })
	rest.Policies = keep(old.Policies, func(p snapshot.Policy) bool { return !policies.owned(p.ID) })
	rest.Samples = keep(old.Samples, func(s snapshot.Sample) bool { return !routes[s.Expect.Route] })
	return &rest
}

func keep[T any](list []T, ok func(T) bool) []T {
	var out []T
	for _, v := range list {
		if ok(v) {
			out = append(out, v)
		}
	}
	return out
}

// foreign lists what is in the team's documents and not the team's to say.
func (d *draft) foreign(part *snapshot.Config, at snapshot.Places, old, rest *snapshot.Config) problem.List {
	var out problem.List
	say := func(list, id, key, what, hint string) { out = append(out, at.Problem(list, id, key, what, hint)) }
	for _, r := range part.Routes {
		if r.Owner != "" && r.Owner != d.owner {
			say("routes", r.ID, "owner", fmt.Sprintf("is %q, not %q", r.Owner, d.owner), "a team publishes its own routes only")
		}
		for _, other := range rest.Routes {
			if other.ID == r.ID {
				say("routes", r.ID, "id", fmt.Sprintf("%q is taken by a route of %q", r.ID, other.Owner), "choose another id")
			}
		}
	}
	shared := func(list, id string, changed bool) {
		if changed {
			say(list, id, "id", fmt.Sprintf("others use %q, so it cannot be changed here", id), "publish the whole configuration, or choose another id")
		}
	}
	for _, u := range part.Upstreams {
		shared("upstreams", u.ID, differs(rest.Upstreams, u, func(v snapshot.Upstream) string { return v.ID }, false))
	}
	for _, p := range part.Policies {
		shared("policies", p.ID, differs(rest.Policies, p, func(v snapshot.Policy) string { return v.ID }, false))
	}
	for _, p := range part.Plans {
		shared("plans", p.ID, differs(old.Plans, p, func(v snapshot.Plan) string { return v.ID }, true))
	}
	for _, p := range part.Consumers {
		shared("consumers", p.ID, differs(old.Consumers, p, func(v snapshot.Consumer) string { return v.ID }, true))
	}
	for _, k := range part.IdentityKeys {
		shared("identity_keys", k.ID, differs(old.IdentityKeys, k, func(v snapshot.IdentityKey) string { return v.ID }, true))
	}
	for _, t := range part.Tenants {
		shared("tenants", t.ID, differs(old.Tenants, t, func(v snapshot.Tenant) string { return v.ID }, true))
	}
	return out
}

// differs says whether the list has the item otherwise, or not at all when it must be there.
func differs[T any](list []T, item T, id func(T) string, must bool) bool {
	for _, v := range list {
		if id(v) == id(item) {
			return !reflect.DeepEqual(v, item)
		}
	}
	return must
}

// forgetRepeated takes out of rest what part says again in the same words, so that nothing stands twice.
func forgetRepeated(rest, part *snapshot.Config) {
	rest.Upstreams = keep(rest.Upstreams, func(u snapshot.Upstream) bool {
		return !slices.ContainsFunc(part.Upstreams, func(v snapshot.Upstream) bool { return v.ID == u.ID })
	})
	rest.Policies = keep(rest.Policies, func(u snapshot.Policy) bool {
		return !slices.ContainsFunc(part.Policies, func(v snapshot.Policy) bool { return v.ID == u.ID })
	})
	rest.Plans = keep(rest.Plans, func(u snapshot.Plan) bool {
		return !slices.ContainsFunc(part.Plans, func(v snapshot.Plan) bool { return v.ID == u.ID })
	})
	rest.Consumers = keep(rest.Consumers, func(u snapshot.Consumer) bool {
		return !slices.ContainsFunc(part.Consumers, func(v snapshot.Consumer) bool { return v.ID == u.ID })
	})
	rest.IdentityKeys = keep(rest.IdentityKeys, func(u snapshot.IdentityKey) bool {
		return !slices.ContainsFunc(part.IdentityKeys, func(v snapshot.IdentityKey) bool { return v.ID == u.ID })
	})
	rest.Tenants = keep(rest.Tenants, func(u snapshot.Tenant) bool {
		return !slices.ContainsFunc(part.Tenants, func(v snapshot.Tenant) bool { return v.ID == u.ID })
	})
}

func (d *draft) snapshotFiles() []snapshot.File {
	files := make([]snapshot.File, len(d.files))
	for i, f := range d.files {
		files[i] = snapshot.File{Name: f.Name, Data: []byte(f.Data)}
	}
	return files
}
