package program

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/cors"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// The verdicts of an explanation. Depends: only a node can tell, or somebody whom it asks.
const (
	Allows  = "allows"
	Refuses = "refuses"
	Depends = "depends"
	Changes = "changes"
)

// What a policy does while what it needs is lost: Closed refuses, Open lets through, within the bounds that are told, and
// Local needs nothing but the node.
const (
	Closed = "closed"
	Open   = "open"
	Local  = "local"
)

// Verdict is what one policy, or limit, makes of the request of an explanation, in the order in which a node asks them.
type Verdict struct {
	Policy  string `json:"policy"` // its id; of a limit, whose
	Kind    string `json:"kind"`
	Shadow  bool   `json:"shadow,omitempty"` // its verdict is counted and changes nothing
	Verdict string `json:"verdict"`
	Reason  string `json:"reason,omitempty"` // of a refusal
	Status  int    `json:"status,omitempty"`
	Why     string `json:"why"`
	// Fails is Closed, Open or Local; OnFailure says it in words.
	Fails     string `json:"fails"`
	OnFailure string `json:"on_failure"`
}

// Caller is who makes the request of an explanation. The zero value has no more than the request shows.
type Caller struct {
	Claims   []byte // those of its token, as JSON; nil = unknown
	Consumer string // whose API key it shows; empty = unknown
}

// inquiry is a request on its way through the verdicts.
type inquiry struct {
	*Program
	req    *Request
	caller Caller
	now    time.Time

	known    bool // who calls is: what follows may be judged
	facts    *auth.Identity
	consumer string
}

// explainer says of a policy of one kind what it makes of the request, and what it does when what it needs is lost.
type explainer struct {
	judge func(q *inquiry, p *snapshot.Policy) Verdict
	fails func(p *snapshot.Policy) (how, words string)
}

// explainers has one for each kind of policy.
func explainers() map[string]explainer {
	return map[string]explainer{
		"jwt":           {judgeJWT, failJWT},
		"api_key":       {judgeAPIKey, failAPIKey},
		"introspection": {judgeIntrospection, failIntrospection},
		"session":       {judgeSession, failSession},
		"mtls":          {judgeMTLS, failMTLS},
		"authz":         {judgeAuthz, failLocal},
		"cors":          {judgeCORS, failLocal},
		"decision":      {judgeDecision, failDecision},
		"transform":     {judgeTransform, failLocal},
	}
}

// verdicts are those of everything that the route has.
func (p *Program) verdicts(req *Request, m *Match, who Caller, now time.Time) (all []Verdict) {
	q := &inquiry{Program: p, req: req, caller: who, now: now, consumer: who.Consumer}
	if m.Route.Policy >= 0 {
		all = append(all, q.verdict(&p.Policies[m.Route.Policy]))
	}
	for id := range strings.SplitSeq(m.Route.Named, "\n") {
		if i, ok := slices.BinarySearchFunc(p.Policies, id, func(p snapshot.Policy, id string) int { return strings.Compare(p.ID, id) }); ok {
			all = append(all, q.verdict(&p.Policies[i]))
		}
	}
	all = append(all, p.limitVerdicts(m, q.consumer)...)
	slices.SortStableFunc(all, func(a, b Verdict) int { return a.turn() - b.turn() })
	return all
}

// turn is when a node asks.
func (v *Verdict) turn() int {
	kind := v.Kind
	switch {
	case v.Shadow && kind == "limit":
		kind = "shadow limit"
	case v.Shadow:
		kind = "shadow"
	}
	const whoCalls = 1 // all other kinds
	if at, ok := map[string]int{"cors": 0, "authz": 2, "decision": 3, "shadow": 4, "limit": 5, "shadow limit": 6, "transform": 7}[kind]; ok {
		return at
	}
	return whoCalls
}

func (q *inquiry) verdict(p *snapshot.Policy) Verdict {
	kind := p.Kind()
	with, ok := explainers()[kind]
	if !ok {
		return Verdict{Policy: p.ID, Kind: kind, Verdict: Depends, Why: "nothing is known of this kind here", Fails: Closed, OnFailure: "a node that doesn't know the kind refuses the version"}
	}
	v := with.judge(q, p)
	v.Policy, v.Kind = p.ID, kind
	v.Fails, v.OnFailure = with.fails(p)
	if p.Shadow() {
		v.try()
	}
	return v
}

// try says that what the verdict is of is in shadow mode.
func (v *Verdict) try() {
	v.Shadow, v.Fails, v.OnFailure = true, Open, "it is in shadow mode: its verdict is counted and changes nothing"
}

func refusal(r reason.Reason, format string, args ...any) Verdict {
	return Verdict{Verdict: Refuses, Reason: r.String(), Status: r.Status(), Why: fmt.Sprintf(format, args...)}
}

func allowed(format string, args ...any) Verdict {
	return Verdict{Verdict: Allows, Why: fmt.Sprintf(format, args...)}
}

func depends(format string, args ...any) Verdict {
	return Verdict{Verdict: Depends, Why: fmt.Sprintf(format, args...)}
}

func (q *inquiry) header(name string) string {
	if q.req.Headers == nil {
		return ""
	}
	v, _ := q.req.Headers.Get(name)
	return v
}

// bearer is the token in Authorization; empty = none.
func (q *inquiry) bearer() string {
	scheme, token, _ := strings.Cut(q.header("authorization"), " ")
	if !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(token)
}

// identified makes a verdict of what the claims came to. What is not proved here, the rest says.
func (q *inquiry) identified(r auth.Result, rest string) Verdict {
	if r.Reason != reason.None {
		return refusal(r.Reason, "by the claims that were given: %s", strings.ToLower(r.Reason.Title()))
	}
	q.known, q.facts, q.consumer = true, r.Identity, r.Identity.Consumer
	if r.Identity.Bound != "" {
		rest += "; the client has to show the certificate that the token is bound to"
	}
	return depends("the claims that were given hold: user %q, consumer %q; %s", r.Identity.Subject, r.Identity.Consumer, rest)
}

func judgeJWT(q *inquiry, p *snapshot.Policy) Verdict {
	if q.caller.Claims != nil {
		return q.identified(q.Verifier(p.ID).Claims(q.caller.Claims, q.now), "a node checks the signature with the keys of "+p.JWT.JWKS)
	}
	if q.bearer() == "" {
		return refusal(reason.TokenMissing, "there is no bearer token in Authorization")
	}
	proof := ""
	if p.JWT.CertificateBound {
		proof = ", and that the client shows the certificate that it is bound to"
	}
	return depends("a node checks the token: issuer %s, audience %s, its time, and the signature with the keys of %s%s", p.JWT.Issuer, p.JWT.Audience, p.JWT.JWKS, proof)
}

func failJWT(*snapshot.Policy) (string, string) {
	return Closed, "if the provider's keys were never had: refuses with 503 auth_unavailable; if they can't be renewed: the last ones count on, and a token of another key is refused with 401 token_invalid"
}

func judgeAPIKey(q *inquiry, _ *snapshot.Policy) Verdict {
	if q.consumer != "" {
		if _, ok := q.Consumer(q.consumer); !ok {
			return refusal(reason.KeyInvalid, "there is no consumer %q", q.consumer)
		}
		q.known = true
		return depends("a node finds the key by its hash; it is taken to be one of consumer %q", q.consumer)
	}
	key := cmp.Or(q.header("x-api-key"), q.bearer())
	if key == "" {
		return refusal(reason.TokenMissing, "there is no API key in X-API-Key or Authorization")
	}
	if i, ok := q.Identity.APIKeys.Find([]byte(key)); ok {
		q.known, q.consumer = true, q.Consumers[i].ID
		return allowed("the key is one of consumer %q in the documents", q.consumer)
	}
	return depends("the key stands in no document; a node lets it in if it was issued")
}

func failAPIKey(*snapshot.Policy) (string, string) {
	return Closed, "if a key that was just issued can't be looked up: refuses with 503 auth_unavailable; keys that the node was told of go on"
}

func judgeIntrospection(q *inquiry, p *snapshot.Policy) Verdict {
	if q.caller.Claims != nil {
		r, err := q.Introspector(p.ID).Judge(q.caller.Claims, q.now)
		if err != nil {
			return depends("what was given is no answer of a provider: it needs \"active\"")
		}
		return q.identified(r, "a node asks "+p.Introspection.URL)
	}
	token := q.bearer()
	switch {
	case token == "":
		return refusal(reason.TokenMissing, "there is no bearer token in Authorization")
	case !auth.Opaque([]byte(token)):
		return refusal(reason.TokenInvalid, "the token has characters that no token has")
	}
	return depends("a node asks %s whose the token is", p.Introspection.URL)
}

func failIntrospection(p *snapshot.Policy) (string, string) {
	i := p.Introspection.OrDefault()
	words := fmt.Sprintf("if the provider can't be asked or gives no answer in %s: refuses with 503 auth_unavailable; an answer holds for %s", snapshot.Duration(i.Timeout), snapshot.Duration(i.TTL))
	if i.StaleOK > 0 {
		return Open, words + fmt.Sprintf("; a token that was active counts for %s more (stale_ok)", snapshot.Duration(i.StaleOK))
	}
	return Closed, words
}

func judgeSession(q *inquiry, p *snapshot.Policy) Verdict {
	if q.caller.Claims != nil {
		return q.identified(q.Sessions(p.ID).Judge(q.caller.Claims, q.now), "a node opens the cookie "+p.Session.Cookie)
	}
	if !strings.Contains(q.header("cookie"), p.Session.Cookie+"=") {
		return refusal(reason.TokenMissing, "there is no cookie %s", p.Session.Cookie)
	}
	return depends("a node opens the cookie %s with its keys; a page of another site is refused with 403 cross_site", p.Session.Cookie)
}

func failSession(p *snapshot.Policy) (string, string) {
	return Closed, "without " + p.Session.KeysFile + " a node refuses the version; nobody is asked"
}

func judgeMTLS(q *inquiry, p *snapshot.Policy) Verdict {
	if q.consumer == "" {
		return depends("a node judges the certificate that the client shows in TLS; without one it refuses with 401 certificate_missing")
	}
	if !slices.ContainsFunc(p.MTLS.Names, func(n snapshot.CertificateName) bool { return n.Consumer == q.consumer }) {
		return refusal(reason.CertificateInvalid, "no name of the policy is one of consumer %q", q.consumer)
	}
	q.known = true
	return depends("a node judges the certificate that the client shows in TLS; it is taken to be one of consumer %q", q.consumer)
}

func failMTLS(p *snapshot.Policy) (string, string) {
	switch m := p.MTLS; {
	case len(m.CRLFiles) == 0:
		return failLocal(p)
	case m.AcceptWithoutCRL:
		return Open, "if a certificate's issuer has no revocation list in force: lets it in (on_crl_loss: accept); what a list has revoked stays refused"
	default:
		return Closed, "if a certificate's issuer has no revocation list in force: refuses with 503 auth_unavailable"
	}
}

func failLocal(*snapshot.Policy) (string, string) {
	return Local, "it needs nothing but the node"
}

func judgeAuthz(q *inquiry, p *snapshot.Policy) Verdict {
	if !q.known {
		return depends("who calls is not known here; give --claims or --consumer")
	}
	i := slices.IndexFunc(q.Policies, func(one snapshot.Policy) bool { return one.ID == p.ID })
	if why := q.Identity.rules[i].Judge(q.facts, q.consumer); why != reason.None {
		return refusal(why, "%s", strings.ToLower(why.Title()))
	}
	return allowed("the caller is all that it asks for")
}

func judgeCORS(q *inquiry, p *snapshot.Policy) Verdict {
	c := cors.Compile(p.CORS)
	ask := cors.Ask{Origin: []byte(q.header("origin")), Method: []byte(q.header("access-control-request-method")), Headers: []byte(q.header("access-control-request-headers"))}
	ask.Preflight = q.req.Method == "OPTIONS" && len(ask.Origin) > 0 && len(ask.Method) > 0
	v := c.Judge(&ask)
	if ask.Preflight {
		v = c.Preflight(&ask)
	}
	switch {
	case v == cors.Same:
		return allowed("there is no Origin: it is no request of another site's script")
	case v.Refused():
		return refusal(reason.CORSRefused, "the %s is not one that it permits", v)
	}
	return allowed("scripts of %s may ask", ask.Origin)
}

func judgeDecision(_ *inquiry, p *snapshot.Policy) Verdict {
	return depends("a node asks %s, by %s", p.Decision.URL, strings.Join(p.Decision.Inputs, ", "))
}

func failDecision(p *snapshot.Policy) (string, string) {
	d := p.Decision
	words := fmt.Sprintf("if the service can't be asked or gives no answer in %s: refuses with 503 decision_unavailable", snapshot.Duration(d.OrDefault().Timeout))
	if d.MaxStale > 0 {
		words += fmt.Sprintf("; an answer holds for %s (max_stale)", snapshot.Duration(d.MaxStale))
	}
	return Closed, words
}

func judgeTransform(_ *inquiry, p *snapshot.Policy) Verdict {
	t, parts := p.Transform, []string{}
	for part, n := range map[string]int{
		"fields of the request": edited(&t.Request.Edits), "fields of the answer": edited(&t.Response.Edits) + len(t.Response.Keep),
		"the path": len(t.Request.Path + t.Request.PathPrefix), "the status": len(t.Response.Status),
	} {
		if n > 0 {
			parts = append(parts, part)
		}
	}
	slices.Sort(parts)
	return Verdict{Verdict: Changes, Why: "it changes " + strings.Join(parts, ", ")}
}

func edited(e *snapshot.Edits) int { return len(e.Remove) + len(e.Rename) + len(e.Set) + len(e.Add) }

// limitVerdicts are the limits that count the request.
func (p *Program) limitVerdicts(m *Match, consumer string) (all []Verdict) {
	add := func(whose, rate string, r reason.Reason, strict, tried bool) {
		v := Verdict{Policy: whose, Kind: "limit", Verdict: Depends, Why: fmt.Sprintf("%s; beyond: %d %s", rate, r.Status(), r)}
		v.Fails, v.OnFailure = Open, "on loss of the quota service: local_share, each node goes on with its part, together at most 1.5 times the limit"
		if strict {
			v.Fails, v.OnFailure = Closed, "on loss of the quota service: deny, refuses with "+fmt.Sprint(r.Status())+" "+r.String()
		}
		if tried {
			v.try()
		}
		all = append(all, v)
	}
	if l := p.TenantLimits(snapshot.Platform); l.Rate.Requests > 0 {
		add("platform", l.Rate.String(), reason.RatePlatform, l.OnStoreLoss == snapshot.LossDeny, l.Shadow())
	}
	if l := p.TenantLimits(m.Tenant); l.Rate.Requests > 0 {
		add("tenant "+m.Tenant, l.Rate.String(), reason.RateTenant, l.OnStoreLoss == snapshot.LossDeny, l.Shadow())
	}
	l := &m.Route.Limits
	if l.Tenant.Requests > 0 {
		add("tenant "+m.Tenant+" on this route", l.Tenant.String(), reason.RateTenant, l.OnStoreLoss == snapshot.LossDeny, l.Shadow())
	}
	if plan := p.Plan(consumer); plan != nil {
		if !plan.Day.None() {
			add("consumer "+consumer, fmt.Sprintf("%d/day", plan.Day.Limit.Day), reason.QuotaConsumer, plan.Day.Strict, plan.Day.Tried)
		}
		if !plan.Rate.None() {
			add("consumer "+consumer, fmt.Sprintf("%g/second", plan.Rate.Rate), reason.RateConsumer, plan.Rate.Strict, plan.Rate.Tried)
		}
	} else if consumer == "" && m.Route.Policy >= 0 {
		all = append(all, Verdict{Policy: "consumer", Kind: "limit", Verdict: Depends, Why: "the plan of the caller's consumer, which is not known here", Fails: Open,
			OnFailure: "on loss of the quota service: as the plan says"})
	}
	if l.User.Requests > 0 {
		add("user on this route", l.User.String(), reason.RateUser, l.OnStoreLoss == snapshot.LossDeny, l.Shadow())
	}
	return all
}
