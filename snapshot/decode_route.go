package snapshot

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cellgate/cellgate/cells"
	"go.yaml.in/yaml/v3"
)

var (
	matchKeys = []string{"host", "path", "path_prefix", "methods", "headers", "query", "allow_catch_all"}
	routeKeys = append([]string{
		"id", "match", "upstream", "upstream_id", "split", "sticky", "auth", "policies", "policy_ids", "timeout", "timeout_ms",
		"retry", "hedge", "limits", "priority", "owner", "owner_team",
	}, matchKeys...)
	splitKeys = []string{"upstream", "upstream_id", "weight"}
	retryKeys = []string{"attempts", "conditions"}
	limitKeys = []string{"tenant", "user", "scope", "on_store_loss", "mode"}
)

// Bounds of a match (A8 for patterns).
const (
	maxPattern    = 2 << 10
	maxSegments   = 32
	maxParameters = 16
	maxPredicates = 16
)

func (d *decoder) route(n *yaml.Node, s spot, p *at) {
	o, ok := d.object(n, p, routeKeys)
	if !ok {
		return
	}
	var r Route
	id, ok := d.id(o, kindRoute, s)
	r.ID = id
	matched := d.match(o, &r.Match)
	d.destinations(o, s, &r)
	d.routePolicies(o, s, &r)
	d.timing(o, &r)
	if r.Hedge = o.bool("hedge"); r.Hedge && len(r.Match.Methods) > 0 && !slices.Contains(r.Match.Methods, "GET") && !slices.Contains(r.Match.Methods, "HEAD") {
		o.wrong("hedge", "does nothing without GET or HEAD", "only reads are sent twice")
	}
	d.limits(o, &r.Limits)
	r.Priority = cells.Priority(o.oneOf("priority", "", string(cells.PriorityNormal), string(cells.PriorityCritical), string(cells.PriorityBackground)))
	if r.Priority == cells.PriorityNormal {
		r.Priority = ""
	}
	r.Owner = d.owner(o)
	switch {
	case !ok:
	case !matched:
		if d.cfg.faulty == nil {
			d.cfg.faulty = map[string]bool{}
		}
		d.cfg.faulty[id] = true
	default:
		d.cfg.Routes = append(d.cfg.Routes, r)
		d.routes = append(d.routes, s)
	}
}

func (d *decoder) owner(o object) string {
	n, key := o.either("owner", "owner_team")
	owner, ok := d.string(n, o.at, key)
	if ok && !validID(owner) {
		o.wrong(key, strconv.Quote(clip(owner))+" is not the name of a team", "letters, digits, '.', '_', '-'")
		return ""
	}
	return owner
}

// oneOf reads a word of a closed set; absent is the given default.
func (o object) oneOf(key, absent string, words ...string) string {
	s, ok := o.d.string(o.get(key), o.at, key)
	if !ok {
		return absent
	}
	if !slices.Contains(words, s) {
		o.wrong(key, strconv.Quote(clip(s))+" is not known", "one of "+strings.Join(words, ", "))
		return absent
	}
	return s
}

// match reads the predicate from match, or from the route itself; false means that it is not usable.
func (d *decoder) match(o object, m *Match) bool {
	before := len(d.problems) + d.unshown
	where := o
	if n := o.get("match"); n != nil {
		for _, k := range matchKeys {
			if flat := o.get(k); flat != nil {
				d.wrong(flat.Line, o.at.child(k), "stands beside match", "put it inside match")
			}
		}
		inner, ok := d.object(n, o.at.child("match"), matchKeys)
		if !ok {
			return false
		}
		where = inner
	}
	m.AllowCatchAll = where.bool("allow_catch_all")
	d.matchHost(where, m)
	d.matchPath(where, m)
	m.Methods = d.methods(where)
	m.Headers = d.headerPredicates(where)
	m.Query = where.pairs("query", maxPredicates)
	return len(d.problems)+d.unshown == before
}

func (d *decoder) matchHost(o object, m *Match) {
	if o.get("host") == nil {
		if !m.AllowCatchAll {
			d.wrong(o.line, o.at.child("host"), "is missing, so the route takes every host", "name the host, or set allow_catch_all: true")
		}
		return
	}
	host, ok := d.string(o.get("host"), o.at, "host")
	if !ok {
		return
	}
	clean, fault, hint := hostPattern(host)
	if fault != "" {
		o.wrong("host", strconv.Quote(clip(host))+" "+fault, hint)
		return
	}
	m.Host = d.intern(clean)
}

func (d *decoder) matchPath(o object, m *Match) {
	exact, prefix := o.get("path"), o.get("path_prefix")
	switch {
	case exact == nil && prefix == nil:
		d.wrong(o.line, o.at.child("path"), "is missing", "give path, or path_prefix")
	case exact != nil && prefix != nil:
		d.wrong(prefix.Line, o.at.child("path_prefix"), "stands beside path", "a match has exactly one of them")
	case exact != nil:
		if s, ok := d.string(exact, o.at, "path"); ok {
			if fault, hint := pathPattern(s); fault != "" {
				o.wrong("path", strconv.Quote(clip(s))+" "+fault, hint)
			}
			m.Path = s
		}
	default:
		d.matchPrefix(o, prefix, m)
	}
}

func (d *decoder) matchPrefix(o object, n *yaml.Node, m *Match) {
	s, ok := d.string(n, o.at, "path_prefix")
	if !ok {
		return
	}
	if strings.ContainsAny(s, "{}") {
		o.wrong("path_prefix", strconv.Quote(clip(s))+" has parameters", "a prefix is literal; use path for parameters")
	} else if fault, hint := pathPattern(s); fault != "" {
		o.wrong("path_prefix", strconv.Quote(clip(s))+" "+fault, hint)
	}
	if s == "/" && !m.AllowCatchAll {
		o.wrong("path_prefix", "takes every path of the host", "narrow it, or set allow_catch_all: true")
	}
	if m.PathPrefix = s; len(s) > 1 {
		m.PathPrefix = strings.TrimSuffix(s, "/")
	}
}

// Methods lists what match.methods may name.
func Methods() []string {
	return []string{
		"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE",
		"PROPFIND", "PROPPATCH", "MKCOL", "COPY", "MOVE", "LOCK", "UNLOCK", "REPORT", "SEARCH", "PURGE", "QUERY",
	}
}

func (d *decoder) methods(o object) []string {
	n := o.get("methods")
	if n == nil {
		return nil
	}
	all := o.strings("methods", len(knownMethods))
	if r := d.resolve(n); r != nil && r.Kind == yaml.SequenceNode && len(r.Content) == 0 {
		o.wrong("methods", "is empty", "leave methods out to take all")
	}
	for _, m := range all {
		o.routable(m)
	}
	slices.Sort(all)
	return all
}

// routable reports a method in methods that no request of a route could have.
func (o object) routable(m string) {
	if slices.Contains(knownMethods, m) {
		return
	}
	hint := "methods are upper case, such as GET"
	if m == "CONNECT" {
		hint = "CONNECT is not offered"
	}
	o.wrong("methods", strconv.Quote(clip(m))+" is not a method that can be routed", hint)
}

var knownMethods = Methods()

func (d *decoder) headerPredicates(o object) map[string]string {
	given := o.pairs("headers", maxPredicates)
	if given == nil {
		return nil
	}
	m := map[string]string{}
	for k, v := range given {
		lower := strings.ToLower(k)
		if !isToken(k) || lower == "host" {
			o.wrong("headers", strconv.Quote(clip(k))+" is not a header that can be matched", "a header name other than host, such as x-api-version")
			continue
		}
		if _, twice := m[lower]; twice {
			o.wrong("headers", strconv.Quote(lower)+" stands here twice", "header names don't differ by case")
		}
		m[lower] = v
	}
	return m
}

// isToken is RFC 9110, section 5.6.2.
func isToken(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != ""
}

func (d *decoder) destinations(o object, s spot, r *Route) {
	n, key := o.either("upstream", "upstream_id")
	split := o.get("split")
	switch {
	case n == nil && split == nil:
		d.wrong(o.line, o.at.child("upstream"), "is missing", "give upstream, or split")
	case n != nil && split != nil:
		d.wrong(split.Line, o.at.child("split"), "stands beside "+key, "a route has exactly one of them")
	}
	if id, ok := d.string(n, o.at, key); ok {
		r.Upstream = id
		d.refer(kindUpstream, id, s, n, key)
	}
	d.split(o, s, r)
	r.Sticky = o.oneOf("sticky", "", "user", "consumer")
	if r.Sticky != "" && split == nil {
		o.wrong("sticky", "has nothing to choose from", "sticky belongs to split")
	}
}

func (d *decoder) split(o object, s spot, r *Route) {
	n := o.get("split")
	if n == nil {
		return
	}
	before := len(d.problems) + d.unshown
	var total uint64
	d.list(n, o.at.child("split"), MaxBranches, func(i int, n *yaml.Node, p *at) {
		b, ok := d.object(n, p, splitKeys)
		if !ok {
			return
		}
		un, key := b.either("upstream", "upstream_id")
		if un == nil || b.get("weight") == nil {
			d.wrong(b.line, p, "needs upstream and weight", "such as {upstream: orders-v2, weight: 5}")
			return
		}
		id, ok1 := d.string(un, p, key)
		weight, ok2 := b.int("weight", 0, MaxWeight)
		if !ok1 || !ok2 {
			return
		}
		if slices.ContainsFunc(r.Split, func(have Destination) bool { return have.Upstream == id }) {
			b.wrong(key, strconv.Quote(id)+" stands in the split twice", "add the weights up")
		}
		d.refer(kindUpstream, id, s, un, "split["+strconv.Itoa(i)+"]."+key)
		r.Split = append(r.Split, Destination{id, uint32(weight)})
		total += uint64(weight)
	})
	if total == 0 && len(d.problems)+d.unshown == before {
		o.wrong("split", "has no weight above 0", "give at least one upstream a weight")
	}
}

// routePolicies reads auth and policies. Which kind a policy has is only known at the end: see identityPolicies.
func (d *decoder) routePolicies(o object, s spot, r *Route) {
	if id, ok := d.string(o.get("auth"), o.at, "auth"); ok && id != "none" {
		r.Auth = id
		d.refer(kindPolicy, id, s, o.get("auth"), "auth")
	}
	n, key := o.either("policies", "policy_ids")
	if n == nil {
		return
	}
	r.Policies = o.strings(key, 32)
	for _, id := range r.Policies {
		d.refer(kindPolicy, id, s, n, key)
	}
}

func (d *decoder) timing(o object, r *Route) {
	n, key := o.either("timeout", "timeout_ms")
	ok := true
	switch {
	case n == nil:
	case key == "timeout":
		r.Timeout, ok = o.timeout()
	default:
		var ms int64
		if ms, ok = o.int(key, 0, int64(MaxTimeout/time.Millisecond)); ok && ms == 0 {
			o.wrong(key, "0 would let no request pass", "leave it out for "+Duration(DefaultTimeout))
		}
		r.Timeout = time.Duration(ms) * time.Millisecond
	}
	if retry := o.get("retry"); retry != nil {
		d.retry(retry, o.at.child("retry"), &r.Retry)
		total := r.Timeout
		if total == 0 {
			total = DefaultTimeout
		}
		if need := MinAttempt * time.Duration(r.Retry.Attempts+1); ok && total < need {
			d.wrong(retry.Line, o.at.child("retry"), fmt.Sprintf("%d attempts don't fit into a timeout of %s", r.Retry.Attempts+1, Duration(total)),
				"each needs at least "+Duration(MinAttempt))
		}
	}
	if r.Timeout == DefaultTimeout {
		r.Timeout = 0
	}
}

// timeout reads a total time; 0 is refused with words of its own.
func (o object) timeout() (time.Duration, bool) {
	v, ok := o.duration("timeout", 0, MaxTimeout)
	switch {
	case ok && v == 0:
		o.wrong("timeout", "0 would let no request pass", "leave it out for "+Duration(DefaultTimeout))
		return 0, false
	case ok && v < time.Millisecond:
		o.wrong("timeout", "is shorter than 1ms", "give at least 1ms")
		return 0, false
	}
	return v, ok
}

func (d *decoder) retry(n *yaml.Node, p *at, r *Retry) {
	o, ok := d.object(n, p, retryKeys)
	if !ok {
		return
	}
	if o.get("attempts") == nil {
		d.wrong(o.line, p.child("attempts"), "is missing", "attempts are the retries after the first, 0 to 2")
	}
	attempts, _ := o.int("attempts", 0, MaxAttempts)
	conditions := o.strings("conditions", 8)
	known := []string{RetryConnectFailure, RetryReset, "502", "503", "504"}
	for _, c := range conditions {
		if !slices.Contains(known, c) {
			o.wrong("conditions", strconv.Quote(clip(c))+" is not a condition", "one of "+strings.Join(known, ", "))
		}
	}
	o.some("conditions", "leave it out for "+RetryConnectFailure+" and "+RetryReset+", or leave retry out for no retries")
	if attempts == 0 {
		return
	}
	if len(conditions) == 0 {
		conditions = []string{RetryConnectFailure, RetryReset}
	}
	slices.Sort(conditions)
	*r = Retry{Attempts: int(attempts), Conditions: conditions}
}

func (d *decoder) limits(o object, l *Limits) {
	n := o.get("limits")
	if n == nil {
		return
	}
	in, ok := d.object(n, o.at.child("limits"), limitKeys)
	if !ok {
		return
	}
	l.Tenant = in.rate("tenant")
	l.User = in.rate("user")
	some := in.get("tenant") != nil || in.get("user") != nil
	l.Scope, l.OnStoreLoss, l.Mode = in.shared(some, some, "write tenant or user beside it")
	in.notEmpty(n, "write tenant or user into it, or leave it out")
}

// notEmpty refuses limits that say nothing.
func (o object) notEmpty(n *yaml.Node, hint string) {
	if len(n.Content) == 0 {
		o.d.wrong(n.Line, o.at, "limit nothing", hint)
	}
}

// shared reads how a limit is kept together, and whether it is enforced. Rate and any say whether there is a rate, and anything,
// that it would apply to.
func (o object) shared(rate, any bool, hint string) (scope, onLoss, mode string) {
	if scope = o.oneOf("scope", "", "global", ScopeRegion, ScopeCell); scope == "global" {
		scope = ""
	}
	if onLoss = o.oneOf("on_store_loss", "", "local_share", LossDeny); onLoss == "local_share" {
		onLoss = ""
	}
	if o.get("scope") != nil && !rate {
		o.wrong("scope", "has no rate to apply to", hint)
	}
	mode = o.mode()
	for _, key := range []string{"on_store_loss", "mode"} {
		if o.get(key) != nil && !any {
			o.wrong(key, "has no limit to apply to", hint)
		}
	}
	return scope, onLoss, mode
}

func (o object) rate(key string) Rate {
	s, ok := o.d.string(o.get(key), o.at, key)
	if !ok {
		return Rate{}
	}
	r, err := ParseRate(s)
	if err != nil {
		o.wrong(key, strconv.Quote(clip(s))+" is not a rate", "write 1000/second, 1000/minute or 1000/hour, from 1 to 1000000000")
	}
	return r
}
