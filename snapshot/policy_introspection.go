package snapshot

import (
	"cmp"
	"strconv"
	"time"

	"go.yaml.in/yaml/v3"
)

// Introspection asks a provider whose a bearer token is (RFC 7662). Zero values mean DefaultIntrospection's.
type Introspection struct {
	URL      string `json:"url"`
	ClientID string `json:"client_id"`
	// ClientSecretFile names a file in the node's directory of secrets; the secret itself is in no document.
	ClientSecretFile string        `json:"client_secret_file"`
	Issuer           string        `json:"issuer,omitempty"`
	Audience         string        `json:"audience,omitempty"`
	Scopes           []string      `json:"scopes,omitempty"`
	ConsumerClaim    string        `json:"consumer_claim,omitempty"`
	TTL              time.Duration `json:"ttl,omitempty"`          // of an active token
	NegativeTTL      time.Duration `json:"negative_ttl,omitempty"` // of one that is not
	// StaleOK is how much longer a token counts as active that was, while the provider gives no answer; 0 = no longer.
	StaleOK time.Duration `json:"stale_ok,omitempty"`
	// IgnoreCnf and CertificateBound are as in JWT.
	IgnoreCnf        bool `json:"ignore_cnf,omitempty"`
	CertificateBound bool `json:"certificate_bound,omitempty"`
	Remote
}

// Remote bounds the questions to a service, of a node.
type Remote struct {
	Timeout   time.Duration `json:"timeout,omitempty"`         // of one
	InFlight  int           `json:"in_flight,omitempty"`       // at once
	PerSecond int           `json:"lookups_per_sec,omitempty"` // begun in a second
}

var (
	defaultRemote        = Remote{Timeout: 100 * time.Millisecond, InFlight: 16, PerSecond: 10}
	defaultIntrospection = Introspection{TTL: 30 * time.Second, NegativeTTL: 5 * time.Second, Remote: defaultRemote}
)

// OrDefault fills in what is not declared.
func (r Remote) OrDefault() Remote {
	d := defaultRemote
	return Remote{cmp.Or(r.Timeout, d.Timeout), cmp.Or(r.InFlight, d.InFlight), cmp.Or(r.PerSecond, d.PerSecond)}
}

// OrDefault fills in what is not declared.
func (i Introspection) OrDefault() Introspection {
	i.TTL, i.NegativeTTL = cmp.Or(i.TTL, defaultIntrospection.TTL), cmp.Or(i.NegativeTTL, defaultIntrospection.NegativeTTL)
	i.Remote = i.Remote.OrDefault()
	return i
}

// The most that a document may say.
const (
	maxRemoteTime = time.Second
	maxStaleOK    = 5 * time.Minute
)

var remoteKeys = []string{"timeout", "in_flight", "lookups_per_sec"}

// usual reads a duration; what equals the default is left out.
func (o object) usual(key string, usual, lo, hi time.Duration) time.Duration {
	if v, _ := o.duration(key, lo, hi); v != usual {
		return v
	}
	return 0
}

// remote reads the bounds; what equals the default, of which perSecond is the policy's own, is left out.
func (o object) remote(perSecond int) (r Remote) {
	r.Timeout = o.usual("timeout", defaultRemote.Timeout, 10*time.Millisecond, maxRemoteTime)
	if n, _ := o.int("in_flight", 1, 1000); int(n) != defaultRemote.InFlight {
		r.InFlight = int(n)
	}
	if n, _ := o.int("lookups_per_sec", 1, 100_000); int(n) != perSecond {
		r.PerSecond = int(n)
	}
	return r
}

// service reads the URL of a service that nodes ask.
func (o object) service(key string) string {
	given := o.string(key)
	if given == "" {
		return ""
	}
	if fault, hint := o.d.allow.ServiceURL(given); fault != "" {
		o.wrong(key, strconv.Quote(clip(given))+" "+fault, hint)
	}
	return given
}

const secretHint = "a file in the node's directory of secrets, or TENANT/FILE: letters, digits, '.', '_', '-'"

// secret reads the name of a file in the node's directory of secrets. A path would let an author have any file sent to a URL
// of his.
func (o object) secret(key string) string {
	name := o.string(key)
	if name != "" && !ValidSecret(name) {
		o.wrong(key, strconv.Quote(clip(name))+" is not the name of a file", secretHint)
	}
	return name
}

// needs reports the keys that are missing.
func (o object) needs(hint string, keys ...string) {
	for _, key := range keys {
		if o.get(key) == nil {
			o.d.wrong(o.line, o.at.child(key), "is missing", hint)
		}
	}
}

func decodeIntrospection(d *decoder, n *yaml.Node, p *at, into *Policy) {
	o, ok := d.object(n, p, append([]string{"url", "client_id", "client_secret_file", "issuer", "audience", "scopes", "consumer_claim", "ttl", "negative_ttl", "stale_ok", "ignore_cnf", "certificate_bound"}, remoteKeys...))
	if !ok {
		return
	}
	o.needs("an introspection policy needs url, client_id and client_secret_file", "url", "client_id", "client_secret_file")
	i := &Introspection{URL: o.service("url"), ClientID: o.string("client_id"), ClientSecretFile: o.secret("client_secret_file"), Issuer: o.string("issuer"),
		Audience: o.string("audience"), Scopes: o.scopes("scopes", maxAuthz), ConsumerClaim: o.string("consumer_claim"), Remote: o.remote(defaultRemote.PerSecond)}
	i.TTL = o.usual("ttl", defaultIntrospection.TTL, time.Second, 10*time.Minute)
	i.NegativeTTL = o.usual("negative_ttl", defaultIntrospection.NegativeTTL, 100*time.Millisecond, time.Minute)
	i.StaleOK, _ = o.duration("stale_ok", 0, maxStaleOK)
	if v := i.OrDefault(); v.NegativeTTL > v.TTL {
		o.wrong("negative_ttl", "is longer than the ttl", "what is refused is asked again sooner than what is let in")
	}
	i.IgnoreCnf, i.CertificateBound = o.confirmation()
	into.Introspection = i
}

type docIntrospection struct {
	URL              string   `yaml:"url"`
	ClientID         string   `yaml:"client_id"`
	ClientSecretFile string   `yaml:"client_secret_file"`
	Issuer           string   `yaml:"issuer,omitempty"`
	Audience         string   `yaml:"audience,omitempty"`
	Scopes           []string `yaml:"scopes,omitempty,flow"`
	ConsumerClaim    string   `yaml:"consumer_claim,omitempty"`
	TTL              string   `yaml:"ttl,omitempty"`
	NegativeTTL      string   `yaml:"negative_ttl,omitempty"`
	StaleOK          string   `yaml:"stale_ok,omitempty"`
	IgnoreCnf        bool     `yaml:"ignore_cnf,omitempty"`
	CertificateBound bool     `yaml:"certificate_bound,omitempty"`
	docRemote        `yaml:",inline"`
}

type docRemote struct {
	Timeout   string `yaml:"timeout,omitempty"`
	InFlight  int    `yaml:"in_flight,omitempty"`
	PerSecond int    `yaml:"lookups_per_sec,omitempty"`
}

func formatRemote(r Remote) docRemote { return docRemote{optional(r.Timeout), r.InFlight, r.PerSecond} }

func formatIntrospection(p *Policy, into *docPolicy) {
	i := p.Introspection
	into.Introspection = &docIntrospection{i.URL, i.ClientID, i.ClientSecretFile, i.Issuer, i.Audience, i.Scopes, i.ConsumerClaim,
		optional(i.TTL), optional(i.NegativeTTL), optional(i.StaleOK), i.IgnoreCnf, i.CertificateBound, formatRemote(i.Remote)}
}
