package snapshot

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Decision asks a service whether a request may pass.
type Decision struct {
	URL string `json:"url"`
	// SecretFile names a file in the node's directory of secrets, shown as a bearer token; empty = none.
	SecretFile string `json:"secret_file,omitempty"`
	// Inputs are all that the service is told, sorted: DecisionInputs and "header:name".
	Inputs []string `json:"inputs"`
	// MaxStale is how long an answer holds for equal inputs; 0 = for none that come later.
	MaxStale time.Duration `json:"max_stale,omitempty"`
	Remote
}

// everyRequest is how many questions a second are begun for a policy that asks for every request, unless it says otherwise.
const everyRequest = 1000

// OrDefault fills in what is not declared about asking.
func (v *Decision) OrDefault() Remote {
	r := v.Remote
	if v.MaxStale == 0 {
		r.PerSecond = cmp.Or(r.PerSecond, everyRequest)
	}
	return r.OrDefault()
}

// InputHeader begins an input that is a field of the request.
const InputHeader = "header:"

// DecisionInputs are the inputs that are no fields.
func DecisionInputs() []string {
	return []string{"client", "consumer", "host", "issuer", "method", "path", "query", "route", "scopes", "tenant", "user"}
}

func decodeDecision(d *decoder, n *yaml.Node, p *at, into *Policy) {
	o, ok := d.object(n, p, append([]string{"url", "secret_file", "inputs", "max_stale"}, remoteKeys...))
	if !ok {
		return
	}
	o.needs("a decision policy needs url and inputs", "url", "inputs")
	v := &Decision{URL: o.service("url"), SecretFile: o.secret("secret_file"), Inputs: o.strings("inputs", 32)}
	for i, in := range v.Inputs {
		name, header := strings.CutPrefix(in, InputHeader)
		v.Inputs[i] = strings.ToLower(in)
		if header && (name == "" || len(name) > 64 || strings.ContainsFunc(name, notToken)) || !header && !slices.Contains(DecisionInputs(), in) {
			o.wrong("inputs", strconv.Quote(clip(in))+" is no input", "one of "+strings.Join(DecisionInputs(), ", ")+" and header:NAME")
		}
	}
	o.some("inputs", "a decision goes by something")
	slices.Sort(v.Inputs)
	v.Inputs = slices.Compact(v.Inputs)
	v.MaxStale, _ = o.duration("max_stale", time.Millisecond, 5*time.Minute)
	v.Remote = o.remote(v.OrDefault().PerSecond)
	into.Decision = v
}

type docDecision struct {
	URL        string   `yaml:"url"`
	SecretFile string   `yaml:"secret_file,omitempty"`
	Inputs     []string `yaml:"inputs,flow"`
	MaxStale   string   `yaml:"max_stale,omitempty"`
	docRemote  `yaml:",inline"`
}

func formatDecision(p *Policy, into *docPolicy) {
	v := p.Decision
	into.Decision = &docDecision{v.URL, v.SecretFile, v.Inputs, optional(v.MaxStale), formatRemote(v.Remote)}
}
