package snapshot

import (
	"bytes"
	"fmt"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cellgate/cellgate/problem"
)

// The canonical document: keys in a fixed order, one item a line, what equals the default left out.
type document struct {
	Version   string        `yaml:"version"`
	Routes    []docRoute    `yaml:"routes,omitempty"`
	Upstreams []docUpstream `yaml:"upstreams,omitempty"`
	Policies  []docPolicy   `yaml:"policies,omitempty"`
	Plans     []docPlan     `yaml:"plans,omitempty"`
	Consumers []docConsumer `yaml:"consumers,omitempty"`
	Tenants   []docTenant   `yaml:"tenants,omitempty"`
	Samples   []docSample   `yaml:"samples,omitempty"`

	IdentityKeys []docIdentityKey `yaml:"identity_keys,omitempty"`
}

type docRoute struct {
	ID       string     `yaml:"id"`
	Match    docMatch   `yaml:"match,flow"`
	Upstream string     `yaml:"upstream,omitempty"`
	Split    []docShare `yaml:"split,omitempty"`
	Sticky   string     `yaml:"sticky,omitempty"`
	Auth     string     `yaml:"auth,omitempty"`
	Policies []string   `yaml:"policies,omitempty,flow"`
	Timeout  string     `yaml:"timeout,omitempty"`
	Retry    *docRetry  `yaml:"retry,omitempty,flow"`
	Hedge    bool       `yaml:"hedge,omitempty"`
	Limits   *docLimits `yaml:"limits,omitempty,flow"`
	Priority string     `yaml:"priority,omitempty"`
	Owner    string     `yaml:"owner,omitempty"`
}

type docMatch struct {
	Host          string            `yaml:"host,omitempty"`
	Path          string            `yaml:"path,omitempty"`
	PathPrefix    string            `yaml:"path_prefix,omitempty"`
	Methods       []string          `yaml:"methods,omitempty,flow"`
	Headers       map[string]string `yaml:"headers,omitempty,flow"`
	Query         map[string]string `yaml:"query,omitempty,flow"`
	AllowCatchAll bool              `yaml:"allow_catch_all,omitempty"`
}

type docShare struct {
	Upstream string `yaml:"upstream"`
	Weight   uint32 `yaml:"weight"`
}

type docRetry struct {
	Attempts   int      `yaml:"attempts"`
	Conditions []string `yaml:"conditions,omitempty,flow"`
}

type docLimits struct {
	Tenant      string `yaml:"tenant,omitempty"`
	User        string `yaml:"user,omitempty"`
	Scope       string `yaml:"scope,omitempty"`
	OnStoreLoss string `yaml:"on_store_loss,omitempty"`
	Mode        string `yaml:"mode,omitempty"`
}

type docUpstream struct {
	ID              string        `yaml:"id"`
	Endpoints       []any         `yaml:"endpoints,omitempty"`
	Discovery       *docDiscovery `yaml:"discovery,omitempty,flow"`
	Balance         string        `yaml:"balance,omitempty"`
	Hash            *docHash      `yaml:"hash,omitempty,flow"`
	SlowStart       string        `yaml:"slow_start,omitempty"`
	Outlier         any           `yaml:"outlier,omitempty"`
	Health          *docHealth    `yaml:"health,omitempty,flow"`
	Breaker         any           `yaml:"breaker,omitempty"`
	Fallback        string        `yaml:"fallback,omitempty"`
	Concurrency     any           `yaml:"concurrency,omitempty"`
	OwnerRegion     string        `yaml:"owner_region,omitempty"`
	FailoverRegions []string      `yaml:"failover_regions,omitempty,flow"`
	Idempotency     string        `yaml:"idempotency,omitempty"`
	Pool            *docPool      `yaml:"pool,omitempty,flow"`
	Timeouts        *docTimeouts  `yaml:"timeouts,omitempty,flow"`
	Protocol        string        `yaml:"protocol,omitempty"`
	TLS             any           `yaml:"tls,omitempty"`

	AllowPlaintextIdentity bool `yaml:"allow_plaintext_identity,omitempty"`

	IdentityToken *docIdentityToken `yaml:"identity_token,omitempty,flow"`
}

type docDiscovery struct {
	Consul string `yaml:"consul,omitempty"`
	DNS    string `yaml:"dns,omitempty"`
}

type docEndpoint struct {
	Address string `yaml:"address"`
	Region  string `yaml:"region,omitempty"`
	Zone    string `yaml:"zone,omitempty"`
}

type docHash struct {
	On    string `yaml:"on"`
	Bound int    `yaml:"bound,omitempty"`
}

type docOutlier struct {
	Consecutive int    `yaml:"consecutive,omitempty"`
	Rate        int    `yaml:"rate,omitempty"`
	Calls       int    `yaml:"calls,omitempty"`
	For         string `yaml:"for,omitempty"`
	Most        int    `yaml:"most,omitempty"`
}

type docConcurrency struct {
	Min int `yaml:"min,omitempty"`
	Max int `yaml:"max,omitempty"`
}

type docBreaker struct {
	Failures int    `yaml:"failures,omitempty"`
	Calls    int    `yaml:"calls,omitempty"`
	Window   string `yaml:"window,omitempty"`
	For      string `yaml:"for,omitempty"`
	Probes   int    `yaml:"probes,omitempty"`
	Restore  string `yaml:"restore,omitempty"`
}

type docHealth struct {
	Path     string `yaml:"path"`
	Host     string `yaml:"host,omitempty"`
	Interval string `yaml:"interval,omitempty"`
	Timeout  string `yaml:"timeout,omitempty"`
	Down     int    `yaml:"down,omitempty"`
	Up       int    `yaml:"up,omitempty"`
}

type docPool struct {
	MaxConnections int `yaml:"max_connections,omitempty"`
	MaxPending     int `yaml:"max_pending,omitempty"`
}

type docTimeouts struct {
	Connect        string `yaml:"connect,omitempty"`
	ResponseHeader string `yaml:"response_header,omitempty"`
	Idle           string `yaml:"idle,omitempty"`
}

type docTLS struct {
	CA         string `yaml:"ca,omitempty"`
	ServerName string `yaml:"server_name,omitempty"`
	ClientCert string `yaml:"client_cert,omitempty"`
}

type docPolicy struct {
	ID     string    `yaml:"id"`
	Mode   string    `yaml:"mode,omitempty"`
	JWT    *docJWT   `yaml:"jwt,omitempty"`
	APIKey *struct{} `yaml:"api_key,omitempty,flow"`
	CORS   *docCORS  `yaml:"cors,omitempty"`
	Authz  *docAuthz `yaml:"authz,omitempty"`

	Introspection *docIntrospection `yaml:"introspection,omitempty"`
	Transform     *docTransform     `yaml:"transform,omitempty"`
	Session       *docSession       `yaml:"session,omitempty"`
	Decision      *docDecision      `yaml:"decision,omitempty"`
	MTLS          *docMTLS          `yaml:"mtls,omitempty"`
}

type docJWT struct {
	Issuer           string   `yaml:"issuer"`
	Audience         string   `yaml:"audience"`
	JWKS             string   `yaml:"jwks"`
	Scopes           []string `yaml:"scopes,omitempty,flow"`
	Algorithms       []string `yaml:"algorithms,omitempty,flow"`
	ConsumerClaim    string   `yaml:"consumer_claim,omitempty"`
	MaxTokenLifetime string   `yaml:"max_token_lifetime,omitempty"`
	IgnoreCnf        bool     `yaml:"ignore_cnf,omitempty"`
	CertificateBound bool     `yaml:"certificate_bound,omitempty"`
}

type docPlan struct {
	ID          string `yaml:"id"`
	RatePerSec  uint64 `yaml:"rate_per_sec,omitempty"`
	QuotaPerDay uint64 `yaml:"quota_per_day,omitempty"`
	Scope       string `yaml:"scope,omitempty"`
	OnStoreLoss string `yaml:"on_store_loss,omitempty"`
	Mode        string `yaml:"mode,omitempty"`
}

type docConsumer struct {
	ID           string   `yaml:"id"`
	Plan         string   `yaml:"plan,omitempty"`
	APIKeyHashes []string `yaml:"api_key_hashes,omitempty"`
}

type docTenant struct {
	ID     string           `yaml:"id"`
	Hosts  []string         `yaml:"hosts,omitempty,flow"`
	Shard  int              `yaml:"shard,omitempty"`
	Class  string           `yaml:"class,omitempty"`
	Limits *docTenantLimits `yaml:"limits,omitempty,flow"`
}

type docTenantLimits struct {
	Rate        string `yaml:"rate,omitempty"`
	Scope       string `yaml:"scope,omitempty"`
	OnStoreLoss string `yaml:"on_store_loss,omitempty"`
	Mode        string `yaml:"mode,omitempty"`
}

type docSample struct {
	Request docRequest `yaml:"request,flow"`
	Expect  docExpect  `yaml:"expect,flow"`
}

type docRequest struct {
	Method  string            `yaml:"method"`
	URL     string            `yaml:"url"`
	Headers map[string]string `yaml:"headers,omitempty"`
}

type docExpect struct {
	Route    string `yaml:"route,omitempty"`
	Upstream string `yaml:"upstream,omitempty"`
	Status   int    `yaml:"status,omitempty"`
}

// Format writes the Config as one canonical document: decoding it gives an equal Config, formatting that the same bytes.
func Format(c *Config) ([]byte, error) {
	doc := document{Version: "v1"}
	for i := range c.Routes {
		doc.Routes = append(doc.Routes, formatRoute(&c.Routes[i]))
	}
	for i := range c.Upstreams {
		doc.Upstreams = append(doc.Upstreams, formatUpstream(&c.Upstreams[i]))
	}
	for i := range c.Policies {
		doc.Policies = append(doc.Policies, formatPolicy(&c.Policies[i]))
	}
	for _, p := range c.Plans {
		doc.Plans = append(doc.Plans, docPlan(p))
	}
	for _, p := range c.Consumers {
		doc.Consumers = append(doc.Consumers, docConsumer(p))
	}
	for _, t := range c.Tenants {
		doc.Tenants = append(doc.Tenants, formatTenant(&t))
	}
	for _, s := range c.Samples {
		doc.Samples = append(doc.Samples, formatSample(&s))
	}
	for _, k := range c.IdentityKeys {
		doc.IdentityKeys = append(doc.IdentityKeys, formatIdentityKey(&k))
	}
	var out bytes.Buffer
	enc := yaml.NewEncoder(&out)
	enc.SetIndent(2)
	if err := enc.Encode(doc); err != nil {
		return nil, fmt.Errorf("snapshot: format: %w", err)
	}
	return out.Bytes(), nil
}

func formatRoute(r *Route) docRoute {
	d := docRoute{
		ID: r.ID, Match: docMatch(r.Match), Upstream: r.Upstream, Sticky: r.Sticky, Auth: r.Auth, Policies: r.Policies,
		Priority: string(r.Priority), Owner: r.Owner,
	}
	for _, s := range r.Split {
		d.Split = append(d.Split, docShare(s))
	}
	if r.Timeout != 0 {
		d.Timeout = Duration(r.Timeout)
	}
	d.Hedge = r.Hedge
	if r.Retry.Attempts > 0 {
		d.Retry = &docRetry{r.Retry.Attempts, r.Retry.Conditions}
	}
	if r.Limits != (Limits{}) {
		d.Limits = &docLimits{r.Limits.Tenant.String(), r.Limits.User.String(), r.Limits.Scope, r.Limits.OnStoreLoss, r.Limits.Mode}
	}
	return d
}

func formatUpstream(u *Upstream) docUpstream {
	d := docUpstream{ID: u.ID, Balance: u.Balance, Protocol: u.Protocol, SlowStart: switched(u.SlowStart), Fallback: u.Fallback, OwnerRegion: u.OwnerRegion, FailoverRegions: u.FailoverRegions, AllowPlaintextIdentity: u.AllowPlaintextIdentity, IdentityToken: (*docIdentityToken)(u.IdentityToken)}
	if u.Idempotency {
		d.Idempotency = "supported"
	}
	for i, e := range u.Endpoints {
		if i < len(u.Where) && u.Where[i] != (Locality{}) {
			d.Endpoints = append(d.Endpoints, docEndpoint{e, u.Where[i].Region, u.Where[i].Zone})
			continue
		}
		d.Endpoints = append(d.Endpoints, e)
	}
	if u.Hash != (Hashing{}) {
		v := docHash(u.Hash)
		d.Hash = &v
	}
	switch o := u.Outlier; {
	case o.Off:
		d.Outlier = "off"
	case o != (Outlier{}):
		d.Outlier = docOutlier{o.Consecutive, o.Rate, o.Calls, optional(o.For), o.Most}
	}
	switch b := u.Breaker; {
	case b.Off:
		d.Breaker = "off"
	case b != (Breaker{}):
		d.Breaker = docBreaker{b.Failures, b.Calls, optional(b.Window), optional(b.For), b.Probes, optional(b.Restore)}
	}
	switch c := u.Concurrency; {
	case c == Concurrency{Adaptive: true}:
		d.Concurrency = "adaptive"
	case c.Adaptive:
		d.Concurrency = docConcurrency{c.Least, c.Most}
	case c.Most > 0:
		d.Concurrency = c.Most
	}
	if h := u.Health; h != (Health{}) {
		d.Health = &docHealth{h.Path, h.Host, optional(h.Interval), optional(h.Timeout), h.Down, h.Up}
	}
	if u.Discovery != (Discovery{}) {
		v := docDiscovery(u.Discovery)
		d.Discovery = &v
	}
	if u.Pool != (Pool{}) {
		v := docPool(u.Pool)
		d.Pool = &v
	}
	if t := u.Timeouts; t != (Timeouts{}) {
		d.Timeouts = &docTimeouts{optional(t.Connect), optional(t.ResponseHeader), optional(t.Idle)}
	}
	switch {
	case u.TLS.Off:
		d.TLS = "off"
	case u.TLS != (TLS{}):
		d.TLS = docTLS{u.TLS.CA, u.TLS.ServerName, u.TLS.ClientCert}
	}
	return d
}

// switched is optional for what may be off.
func switched(d time.Duration) string {
	if d == Never {
		return "off"
	}
	return optional(d)
}

// optional writes a duration, and nothing for 0.
func optional(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return Duration(d)
}

func formatTenant(t *Tenant) docTenant {
	d := docTenant{ID: t.ID, Hosts: t.Hosts, Shard: t.Shard, Class: string(t.Class)}
	if l := t.Limits; l != (TenantLimits{}) {
		d.Limits = &docTenantLimits{l.Rate.String(), l.Scope, l.OnStoreLoss, l.Mode}
	}
	return d
}

func formatSample(s *Sample) docSample { return docSample{docRequest(s.Request), docExpect(s.Expect)} }

// Places says where the items of decoded documents stand.
type Places struct{ ids map[name]spot }

// Problem is a fault of the item that has this id in this list, at the key of it.
func (p Places) Problem(list, id, key, message, hint string) problem.Problem {
	s := p.ids[name{list, id}]
	return problem.Problem{File: s.file, Line: s.line, Path: s.path() + "." + key, Message: message, Hint: hint}
}

// DecodeAlone is Decode for one part of a configuration: what its items refer to may stand elsewhere.
func DecodeAlone(files []File, allow Allow) (*Config, Places, problem.List) {
	d := newDecoder(allow)
	for _, f := range files {
		d.file(f)
	}
	for i := range d.cfg.Routes {
		d.identityPolicies(i)
	}
	d.conflicts()
	cfg, problems := d.finish()
	return cfg, Places{d.ids}, problems
}
