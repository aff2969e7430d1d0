package snapshot

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Transform changes what upstreams get and what clients get. Names are in lower case.
type Transform struct {
	Request  RequestEdits  `json:"request,omitzero"`
	Response ResponseEdits `json:"response,omitzero"`
}

// Edits change fields, in the order in which they stand here, each by name.
type Edits struct {
	Remove []string          `json:"remove,omitempty"`
	Rename map[string]string `json:"rename,omitempty"` // from → to
	Set    map[string]string `json:"set,omitempty"`    // in place of all of that name
	Add    map[string]string `json:"add,omitempty"`    // beside those of that name
}

// RequestEdits also change the path. At most one of Path and PathPrefix is set.
type RequestEdits struct {
	Edits
	Path       string `json:"path,omitempty"`        // with {parameters} of the route's
	PathPrefix string `json:"path_prefix,omitempty"` // in place of the route's
}

// ResponseEdits also change the status.
type ResponseEdits struct {
	Edits
	Status map[int]int `json:"status,omitempty"`
	Keep   []string    `json:"keep,omitempty"` // of the fields that are removed anyway
}

// Bounds of the transforms of a route together.
const (
	maxEdits     = 32
	maxEditBytes = 16 << 10
)

// internalFields are removed from answers unless a transform keeps them: they tell what runs inside.
var internalFields = []string{
	"server", "x-aspnet-version", "x-aspnetmvc-version", "x-backend", "x-backend-server", "x-debug-token", "x-debug-token-link",
	"x-envoy-decorator-operation", "x-envoy-upstream-service-time", "x-generator", "x-powered-by", "x-runtime", "x-upstream",
}

// InternalFields lists, sorted, what is removed from answers unless a transform keeps it.
func InternalFields() []string { return slices.Clone(internalFields) }

// untouchable are fields that frame a message, belong to a connection, say who calls, or are the gateway's own.
var (
	untouchable = []string{
		"alt-svc", "connection", "content-length", "date", "expect", "forwarded", "forwarded-for", "host", "http2-settings", "keep-alive", "proxy",
		"proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "traceparent", "tracestate", "trailer", "transfer-encoding", "upgrade", "x-caller",
		"x-client-ip", "x-cluster-client-ip", "true-client-ip", "x-real-ip", "x-original-url", "x-rewrite-url", "client-ip", "x-original-host",
		"x-original-forwarded-for", "x-originating-ip", "x-remote-ip", "x-remote-addr", "x-remote-user", "x-host", "x-real-port", "x-scheme",
		"x-url-scheme", "front-end-https", "client-cert", "client-cert-chain", "x-client-cert", "x-client-verify", "x-client-dn",
		"remote-user", "x-webauth-user", "x-authenticated-user", "x-authenticated-userid", "cf-connecting-ip", "fastly-client-ip", "x-forwarded", "x-request-id", "x-request-timeout-ms", "idempotency-key",
		"x-ratelimit-remaining", "ratelimit",
	}
	untouchableFamilies = []string{"x-forwarded-", "x-caller-", "x-auth-request-", "x-ssl-client-", "ssl-client-", "x-cellgate-", "grpc-", "sec-websocket-", "access-control-"}
	credentialFields    = []string{"authorization", "x-api-key"}
)

// Untouchable says whether transforms leave a field alone, however its name is spelt.
func Untouchable(name string) bool {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	return slices.Contains(untouchable, name) || slices.ContainsFunc(untouchableFamilies, func(f string) bool { return strings.HasPrefix(name, f) })
}

type docTransform struct {
	Request  *docRequestEdits  `yaml:"request,omitempty"`
	Response *docResponseEdits `yaml:"response,omitempty"`
}

type docRequestEdits struct {
	Remove     []string          `yaml:"remove,omitempty,flow"`
	Rename     map[string]string `yaml:"rename,omitempty,flow"`
	Set        map[string]string `yaml:"set,omitempty,flow"`
	Add        map[string]string `yaml:"add,omitempty,flow"`
	Path       string            `yaml:"path,omitempty"`
	PathPrefix string            `yaml:"path_prefix,omitempty"`
}

type docResponseEdits struct {
	Remove []string          `yaml:"remove,omitempty,flow"`
	Rename map[string]string `yaml:"rename,omitempty,flow"`
	Set    map[string]string `yaml:"set,omitempty,flow"`
	Add    map[string]string `yaml:"add,omitempty,flow"`
	Status map[int]int       `yaml:"status,omitempty,flow"`
	Keep   []string          `yaml:"keep,omitempty,flow"`
}

func formatTransform(p *Policy, into *docPolicy) {
	t := p.Transform
	into.Transform = &docTransform{}
	if r := t.Request; !r.empty() || r.Path != "" || r.PathPrefix != "" {
		into.Transform.Request = &docRequestEdits{r.Remove, r.Rename, r.Set, r.Add, r.Path, r.PathPrefix}
	}
	if r := t.Response; !r.empty() || len(r.Status) > 0 || len(r.Keep) > 0 {
		into.Transform.Response = &docResponseEdits{r.Remove, r.Rename, r.Set, r.Add, r.Status, r.Keep}
	}
}

func (e *Edits) empty() bool { return len(e.Remove)+len(e.Rename)+len(e.Set)+len(e.Add) == 0 }

// bytes is how much the edits may add to a head.
func (e *Edits) bytes() (n int) {
	for _, m := range []map[string]string{e.Rename, e.Set, e.Add} {
		for k, v := range m {
			n += len(k) + len(v) + 4
		}
	}
	return n
}

func decodeTransform(d *decoder, n *yaml.Node, p *at, into *Policy) {
	o, ok := d.object(n, p, []string{"request", "response"})
	if !ok {
		return
	}
	t := &Transform{}
	if n := o.get("request"); n != nil {
		if in, ok := d.object(n, p.child("request"), []string{"remove", "rename", "set", "add", "path", "path_prefix"}); ok {
			t.Request.Edits = in.edits()
			in.rewrite(&t.Request)
		}
	}
	if n := o.get("response"); n != nil {
		if in, ok := d.object(n, p.child("response"), []string{"remove", "rename", "set", "add", "status", "keep"}); ok {
			t.Response.Edits = in.edits()
			t.Response.Status = in.statuses()
			t.Response.Keep = in.fields("keep")
			for _, k := range t.Response.Keep {
				if !slices.Contains(internalFields, k) {
					in.wrong("keep", strconv.Quote(clip(k))+" is not removed anyway", "one of "+strings.Join(internalFields, ", "))
				}
			}
		}
	}
	if len(o.keys) == 0 {
		d.wrong(o.line, p, "changes nothing", "give request or response")
	}
	into.Transform = t
}

func (o object) edits() (e Edits) {
	e.Remove = o.fields("remove")
	for _, name := range e.Remove {
		o.touch("remove", name, false)
	}
	e.Rename, e.Set, e.Add = o.named("rename"), o.named("set"), o.named("add")
	for from, to := range e.Rename {
		o.touch("rename", from, false)
		if o.touch("rename", to, true); !isToken(to) || len(to) > 64 {
			o.wrong("rename", strconv.Quote(clip(to))+" is no name", "letters, digits and '-', at most 64")
		}
		e.Rename[from] = strings.ToLower(to)
	}
	for key, m := range map[string]map[string]string{"set": e.Set, "add": e.Add} {
		for name, value := range m {
			o.touch(key, name, true)
			if strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) || strings.TrimSpace(value) != value {
				o.wrong(key, "the value of "+name+" is not printable ASCII without blanks around it", "encode it")
			}
		}
	}
	return e
}

// named reads a mapping of field names, which become lower case.
func (o object) named(key string) map[string]string {
	given := o.pairs(key, maxEdits)
	if given == nil {
		return nil
	}
	m := map[string]string{}
	for _, k := range slices.Sorted(maps.Keys(given)) {
		lower := strings.ToLower(k)
		if _, twice := m[lower]; twice {
			o.wrong(key, strconv.Quote(lower)+" stands here twice", "field names don't differ by case")
		}
		if !isToken(k) || len(k) > 64 {
			o.wrong(key, strconv.Quote(clip(k))+" is no name", "letters, digits and '-', at most 64")
		}
		m[lower] = given[k]
	}
	return m
}

// touch reports a field that transforms leave alone. given: it would get a value.
func (o object) touch(key, name string, given bool) {
	switch {
	case Untouchable(name):
		o.wrong(key, strconv.Quote(clip(name))+" is not to be changed", "it frames the message, belongs to the connection, says who calls, or is the gateway's own")
	case given && slices.Contains(credentialFields, strings.ToLower(name)):
		o.wrong(key, strconv.Quote(clip(name))+" would put a credential into a document", "it can be removed; upstreams know the gateway by its certificate")
	}
}

func (o object) rewrite(r *RequestEdits) {
	r.Path, r.PathPrefix = o.string("path"), o.string("path_prefix")
	if r.Path != "" && r.PathPrefix != "" {
		o.wrong("path_prefix", "stands beside path", "a transform has one of them")
	}
	for key, s := range map[string]string{"path": r.Path, "path_prefix": r.PathPrefix} {
		if s == "" {
			continue
		}
		if fault, hint := templateFault(s); fault != "" {
			o.wrong(key, strconv.Quote(clip(s))+" "+fault, hint)
		}
	}
	if strings.ContainsAny(r.PathPrefix, "{}") {
		o.wrong("path_prefix", strconv.Quote(clip(r.PathPrefix))+" has parameters", "a prefix is literal; use path for parameters")
	}
	if len(r.PathPrefix) > 1 {
		r.PathPrefix = strings.TrimSuffix(r.PathPrefix, "/")
	}
}

// templateFault is pathPattern's, but for a parameter that stands there twice.
func templateFault(s string) (fault, hint string) {
	seen := map[string]bool{}
	segments := strings.Split(s, "/")
	for i, segment := range segments {
		if strings.HasPrefix(segment, "{") && seen[segment] {
			segments[i] = "twice"
		}
		seen[segment] = true
	}
	return pathPattern(strings.Join(segments, "/"))
}

// statuses reads which status becomes which: final ones alone that have a body by nature.
func (o object) statuses() map[int]int {
	n := o.get("status")
	if n == nil {
		return nil
	}
	r, p := o.d.resolve(n), o.at.child("status")
	if r == nil || r.Kind != yaml.MappingNode {
		o.d.wrong(n.Line, p, "must be a mapping", "such as {502: 503}")
		return nil
	}
	m := map[int]int{}
	for i := 0; i+1 < len(r.Content) && len(m) < maxEdits; i += 2 {
		from, ok1 := o.status(r.Content[i], p)
		if to, ok2 := o.status(r.Content[i+1], p); ok1 && ok2 {
			if _, twice := m[from]; twice {
				o.d.wrong(r.Content[i].Line, p, fmt.Sprintf("%d stands here twice", from), "keep one of them")
			}
			m[from] = to
		}
	}
	if len(r.Content) > 2*maxEdits {
		o.d.wrong(n.Line, p, fmt.Sprintf("has more than %d entries", maxEdits), "keep the ones that matter")
	}
	return m
}

func (o object) status(n *yaml.Node, p *at) (int, bool) {
	r := o.d.resolve(n)
	if r != nil && r.Kind == yaml.ScalarNode {
		if v, err := strconv.Atoi(r.Value); err == nil && v >= 200 && v <= 599 && v != 204 && v != 205 && v != 206 && v != 304 {
			return v, true
		}
	}
	o.d.wrong(n.Line, p, "must map statuses of 200 to 599 that have a body", "not 204, 205, 206, 304")
	return 0, false
}

// transforms checks the transforms of a route together, and their paths against its own.
func (d *decoder) transforms(r *Route, wrong func(key, message, hint string)) {
	rewritten, size := "", 0
	for _, id := range r.Policies {
		t := d.transformOf(id)
		if t == nil {
			continue
		}
		size += max(t.Request.bytes(), t.Response.bytes())
		if t.Request.Path == "" && t.Request.PathPrefix == "" {
			continue
		}
		if rewritten != "" {
			wrong("policies", fmt.Sprintf("policies %q and %q both rewrite the path", rewritten, id), "keep one of them")
		}
		rewritten = id
		if t.Request.PathPrefix != "" && r.Match.PathPrefix == "" {
			wrong("policies", fmt.Sprintf("policy %q rewrites a prefix, and the route has none", id), "use path in the policy, or path_prefix in the route")
		}
		for segment := range strings.SplitSeq(t.Request.Path, "/") {
			if strings.HasPrefix(segment, "{") && !slices.Contains(strings.Split(r.Match.Path, "/"), segment) {
				wrong("policies", fmt.Sprintf("policy %q uses the parameter %s, which the route's path doesn't have", id, segment), "name it in the route's path")
			}
		}
	}
	if size > maxEditBytes {
		wrong("policies", fmt.Sprintf("its transforms add more than %d bytes to a message", maxEditBytes), "shorten them")
	}
}

func (d *decoder) transformOf(id string) *Transform {
	if d.kinds[id].name != "transform" {
		return nil
	}
	for i := range d.cfg.Policies {
		if d.cfg.Policies[i].ID == id {
			return d.cfg.Policies[i].Transform
		}
	}
	return nil
}
