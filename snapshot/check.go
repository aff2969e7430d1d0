package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/cellgate/cellgate/problem"
)

// references reports every use of an id that no file defines.
func (d *decoder) references() {
	what := map[string]string{kindUpstream: "upstream", kindPolicy: "policy", kindPlan: "plan", kindConsumer: "consumer"}
	for _, r := range d.refs {
		if _, ok := d.ids[r.to]; ok {
			continue
		}
		hint := "define it under " + r.to.kind
		if near := d.nearest(r.to); near != "" {
			hint = "did you mean " + near + "?"
		}
		d.add(problem.Problem{
			File: r.at.file, Line: r.line, Path: r.at.path() + "." + r.key,
			Message: fmt.Sprintf("there is no %s %q", what[r.to.kind], r.to.id), Hint: hint,
		})
	}
	d.signs()
	secrets := map[string][]string{}
	for i := range d.cfg.Policies {
		secrets[d.cfg.Policies[i].ID] = d.cfg.Policies[i].Secrets()
	}
	for i := range d.cfg.Routes {
		d.identityPolicies(i)
		d.permits(i)
		d.secretsOf(i, secrets)
	}
}

// nearest is an id of that kind that differs by little; only small documents are searched.
func (d *decoder) nearest(to name) string {
	if len(d.ids) > 2000 {
		return ""
	}
	best, least := "", 3
	for n := range d.ids {
		if n.kind != to.kind {
			continue
		}
		if dist := distance(to.id, n.id); dist < least || dist == least && best != "" && n.id < best {
			best, least = n.id, dist
		}
	}
	return best
}

// identityPolicies makes `policy_ids: [customer-jwt]` mean `auth: customer-jwt`: a policy that identifies callers is the
// route's auth wherever it is named. Two different ones are a problem, and so are two of a kind that a route has one of. The
// others stay in their order, behind those of kind authz, which have none.
func (d *decoder) identityPolicies(i int) {
	r, s := &d.cfg.Routes[i], d.routes[i]
	wrong := func(key, message, hint string) {
		d.add(problem.Problem{File: s.file, Line: s.line, Path: s.path() + "." + key, Message: message, Hint: hint})
	}
	if k, ok := d.kinds[r.Auth]; d.shadows[r.Auth] {
		wrong("auth", fmt.Sprintf("%q is in shadow mode, so anybody would be let in", r.Auth), "name it in policies, beside the auth that is enforced")
	} else if ok && !k.identity {
		wrong("auth", fmt.Sprintf("%q is of kind %s, which doesn't say who calls", r.Auth, k.name), "name it in policies")
	}
	var authz, others []string // defined elsewhere, or nowhere and reported, among the others
	only := map[string]string{}
	for _, id := range r.Policies {
		k, ok := d.kinds[id]
		switch {
		case ok && k.identity && r.Auth != "" && r.Auth != id:
			wrong("policies", fmt.Sprintf("policies %q and %q both identify the caller", r.Auth, id), "keep one of them")
		case ok && k.identity:
			r.Auth = id
		case d.authz[id] != nil:
			authz = append(authz, id)
		case ok && !k.many && only[k.name] != "":
			wrong("policies", fmt.Sprintf("policies %q and %q are both of kind %s", only[k.name], id, k.name), "keep one of them")
		default:
			others, only[k.name] = append(others, id), id
		}
	}
	slices.Sort(authz)
	r.Policies = append(authz, others...)
	d.transforms(r, wrong)
}

// conflicts reports routes that are equally specific for some request: neither of them would be the right one.
func (d *decoder) conflicts() {
	groups := make(map[string]int32, len(d.cfg.Routes)) // last route of each shape
	next := make([]int32, len(d.cfg.Routes))            // the one before it, + 1
	for i := range d.cfg.Routes {
		s := shape(&d.cfg.Routes[i].Match)
		next[i] = groups[s]
		groups[s] = int32(i) + 1
	}
	for i := range d.cfg.Routes {
		seen := 0
		for j := next[i]; j > 0; j = next[j-1] {
			if seen++; seen > maxSamePath {
				d.conflict(i, int(j-1), fmt.Sprintf("is one of more than %d routes on one path, with", maxSamePath))
				break
			}
			if equallySpecific(&d.cfg.Routes[i].Match, &d.cfg.Routes[j-1].Match) {
				d.conflict(i, int(j-1), "takes the same requests as")
				break
			}
		}
	}
}

// maxSamePath bounds the routes that share host and path and differ in methods and predicates.
const maxSamePath = 64

// shape is what requests a match takes, but for methods and predicates: parameters by place, not by name.
func shape(m *Match) string {
	if m.PathPrefix != "" {
		return m.Host + " p" + m.PathPrefix
	}
	if !strings.Contains(m.Path, "{") {
		return m.Host + " e" + m.Path
	}
	var b strings.Builder
	b.WriteString(m.Host + " e")
	for segment := range strings.SplitSeq(m.Path[1:], "/") {
		if strings.HasPrefix(segment, "{") {
			segment = "{"
		}
		b.WriteString("/" + segment)
	}
	return b.String()
}

// equallySpecific says whether some request fits both matches, of one shape, and neither comes before the other.
func equallySpecific(a, b *Match) bool {
	if len(a.Headers)+len(a.Query) != len(b.Headers)+len(b.Query) || (len(a.Methods) == 0) != (len(b.Methods) == 0) {
		return false
	}
	common := len(a.Methods) == 0
	for _, m := range a.Methods {
		common = common || slices.Contains(b.Methods, m)
	}
	return common && compatible(a.Headers, b.Headers) && compatible(a.Query, b.Query)
}

func compatible(a, b map[string]string) bool {
	for k, v := range a {
		if w, ok := b[k]; ok && v != w {
			return false
		}
	}
	return true
}

func (d *decoder) conflict(i, j int, what string) {
	a, b, s := &d.cfg.Routes[i], &d.cfg.Routes[j], d.routes[i]
	message := fmt.Sprintf("route %q %s route %q at %s", a.ID, what, b.ID, d.routes[j])
	if a.Owner != b.Owner {
		message += fmt.Sprintf("; they belong to %s and %s", ownerName(a.Owner), ownerName(b.Owner))
	}
	d.add(problem.Problem{File: s.file, Line: s.line, Path: s.path(), Message: message, Hint: "let them differ in host, path, methods or predicates"})
}

func ownerName(owner string) string { return cmp.Or(owner, "nobody") }

// finish sorts the Config into its canonical order and the problems into the author's.
func (d *decoder) finish() (*Config, problem.List) {
	c := d.cfg
	c.ids = d.ids
	slices.SortFunc(c.Routes, func(a, b Route) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Upstreams, func(a, b Upstream) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Policies, func(a, b Policy) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Plans, func(a, b Plan) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Consumers, func(a, b Consumer) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(c.Tenants, func(a, b Tenant) int { return cmp.Compare(a.ID, b.ID) })
	sortIdentityKeys(c.IdentityKeys)
	slices.SortStableFunc(c.Samples, func(a, b Sample) int {
		return cmp.Or(cmp.Compare(a.Request.URL, b.Request.URL), cmp.Compare(a.Request.Method, b.Request.Method))
	})
	d.problems.Sort()
	if d.unshown > 0 {
		last := d.problems[len(d.problems)-1]
		d.problems = append(d.problems, problem.Problem{File: last.File, Line: last.Line, Message: fmt.Sprintf("%d more problems are not shown", d.unshown), Hint: "mend the ones above first"})
	}
	return c, d.problems
}
