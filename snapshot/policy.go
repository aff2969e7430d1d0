package snapshot

import (
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// policyKind is one kind of policy. Its name is its key in documents.
type policyKind struct {
	name string
	// identity: it says who calls; a route has at most one such policy, as its auth.
	identity bool
	// many: a route may name several; they take their turn in its order.
	many bool
	// since is the least form of reader that knows the kind: an older one would pass over it in silence.
	since  int
	decode func(d *decoder, n *yaml.Node, p *at, into *Policy)
	has    func(p *Policy) bool
	format func(p *Policy, into *docPolicy)
}

// policyKinds lists the kinds; each has a file of its own but the first two.
func policyKinds() []policyKind {
	return []policyKind{
		{"jwt", true, false, 1, decodeJWT, func(p *Policy) bool { return p.JWT != nil }, formatJWT},
		{"api_key", true, false, 1, decodeAPIKey, func(p *Policy) bool { return p.APIKey != nil }, formatAPIKey},
		{"cors", false, false, 2, decodeCORS, func(p *Policy) bool { return p.CORS != nil }, formatCORS},
		{"authz", false, true, 3, decodeAuthz, func(p *Policy) bool { return p.Authz != nil }, formatAuthz},
		{"introspection", true, false, 4, decodeIntrospection, func(p *Policy) bool { return p.Introspection != nil }, formatIntrospection},
		{"transform", false, true, 5, decodeTransform, func(p *Policy) bool { return p.Transform != nil }, formatTransform},
		{"session", true, false, 6, decodeSession, func(p *Policy) bool { return p.Session != nil }, formatSession},
		{"decision", false, false, 7, decodeDecision, func(p *Policy) bool { return p.Decision != nil }, formatDecision},
		{"mtls", true, false, 8, decodeMTLS, func(p *Policy) bool { return p.MTLS != nil }, formatMTLS},
	}
}

// PolicyKinds are the names of all kinds.
func PolicyKinds() (names []string) {
	for _, k := range policyKinds() {
		names = append(names, k.name)
	}
	return names
}

// ModeShadow is the mode of a policy, or of the limits of a route, tenant or plan, whose verdicts are counted and change nothing (J3).
const ModeShadow = "shadow"

// Shadow says whether the policy is only tried.
func (p *Policy) Shadow() bool { return p.Mode == ModeShadow }

// The least forms of readers that know the mode of policies and that of limits: an older one would enforce them.
const (
	sinceShadow       = 7
	sinceShadowLimits = 10 // of routes
	sinceShadowRates  = 11 // of tenants and plans
)

// CertificateBound says whether the policy takes only tokens that are bound to the client's certificate.
func (p *Policy) CertificateBound() bool {
	return p.JWT != nil && p.JWT.CertificateBound || p.Introspection != nil && p.Introspection.CertificateBound
}

// sinceBound is the least form of reader that knows it: an older one would let in tokens that are bound to nothing.
const sinceBound = 12

// tried says whether policies of the kind may be in shadow mode: those that give a verdict, and change nothing else.
func (k *policyKind) tried() bool {
	return slices.Contains([]string{"jwt", "api_key", "introspection", "session", "mtls", "authz", "decision", "cors"}, k.name)
}

// Kind is the name of the policy's kind; empty for a policy without one, which no valid Config has.
func (p *Policy) Kind() string {
	for _, k := range policyKinds() {
		if k.has(p) {
			return k.name
		}
	}
	return ""
}

// Identifies says whether the policy says who calls.
func (p *Policy) Identifies() bool {
	return slices.ContainsFunc(policyKinds(), func(k policyKind) bool { return k.identity && k.has(p) })
}

// minReader is the least form that a reader of the configuration must know.
func (c *Config) minReader() int {
	least := Form
	if len(c.IdentityKeys) > 0 {
		least = sinceIdentity
	}
	for i := range c.Routes {
		if c.Routes[i].Limits.Shadow() {
			least = max(least, sinceShadowLimits)
		}
	}
	if slices.ContainsFunc(c.Tenants, func(t Tenant) bool { return t.Limits.Shadow() }) || slices.ContainsFunc(c.Plans, func(p Plan) bool { return p.Shadow() }) {
		least = max(least, sinceShadowRates)
	}
	for i := range c.Policies {
		if c.Policies[i].Shadow() {
			least = max(least, sinceShadow)
		}
		if c.Policies[i].CertificateBound() {
			least = max(least, sinceBound)
		}
		if m := c.Policies[i].MTLS; m != nil && len(m.CRLFiles) > 0 {
			least = max(least, sinceCRL)
		}
		for _, k := range policyKinds() {
			if k.has(&c.Policies[i]) {
				least = max(least, k.since)
			}
		}
	}
	return least
}

func (d *decoder) policy(n *yaml.Node, s spot, p *at) {
	kinds := policyKinds()
	keys, names := []string{"id", "mode"}, PolicyKinds()
	o, ok := d.object(n, p, append(keys, names...))
	if !ok {
		return
	}
	var pol Policy
	pol.ID, ok = d.id(o, kindPolicy, s)
	if pol.ID == "none" {
		o.wrong("id", "none means no policy", "choose another id")
	}
	pol.Mode = o.mode()
	given := 0
	for _, k := range kinds {
		if n := o.get(k.name); n != nil {
			given++
			k.decode(d, n, p.child(k.name), &pol)
			if pol.Shadow() {
				if !k.tried() {
					o.wrong("mode", "has no meaning for "+k.name, "all kinds but transform can be tried in the shadow")
				}
				d.shadows[pol.ID], k.identity, k.many = ok, false, true
			}
			if ok {
				d.kinds[pol.ID] = k
			}
		}
	}
	if given != 1 {
		d.wrong(o.line, p, "has exactly one kind", "one of "+strings.Join(names, ", "))
	}
	if ok {
		d.cfg.Policies = append(d.cfg.Policies, pol)
	}
}

// mode reads whether something is enforced, which it is unless it says otherwise.
func (o object) mode() string {
	if o.oneOf("mode", "", "enforce", ModeShadow) == ModeShadow {
		return ModeShadow
	}
	return ""
}

func decodeJWT(d *decoder, n *yaml.Node, p *at, into *Policy) { into.JWT = d.jwt(n, p) }

func decodeAPIKey(d *decoder, n *yaml.Node, p *at, into *Policy) {
	if _, ok := d.object(n, p, nil); ok {
		into.APIKey = &APIKey{}
	}
}

func formatPolicy(p *Policy) docPolicy {
	d := docPolicy{ID: p.ID, Mode: p.Mode}
	for _, k := range policyKinds() {
		if k.has(p) {
			k.format(p, &d)
		}
	}
	return d
}

func formatJWT(p *Policy, into *docPolicy) {
	j := p.JWT
	into.JWT = &docJWT{j.Issuer, j.Audience, j.JWKS, j.Scopes, j.Algorithms, j.ConsumerClaim, "", j.IgnoreCnf, j.CertificateBound}
	if j.MaxTokenLifetime != 0 {
		into.JWT.MaxTokenLifetime = Duration(j.MaxTokenLifetime)
	}
}

func formatAPIKey(_ *Policy, into *docPolicy) { into.APIKey = &struct{}{} }
