// Package snapshot is intent: the whole configuration as one immutable, numbered, checksummed value.
// Documents are decoded into a Config, a valid Config is sealed into content-addressed shards and a small manifest.
package snapshot

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// Config is the configuration in canonical form: spellings unified, values that equal the default left out, every list
// sorted by id.
// Two documents that mean the same have equal Configs and so equal checksums.
type Config struct {
	Routes    []Route    `json:"routes,omitempty"`
	Upstreams []Upstream `json:"upstreams,omitempty"`
	Policies  []Policy   `json:"policies,omitempty"`
	Plans     []Plan     `json:"plans,omitempty"`
	Consumers []Consumer `json:"consumers,omitempty"`
	Tenants   []Tenant   `json:"tenants,omitempty"`
	Samples   []Sample   `json:"samples,omitempty"`

	IdentityKeys []IdentityKey `json:"identity_keys,omitempty"`
	// faulty holds the ids of routes that Decode left out because their match is not usable; empty in a valid Config.
	faulty map[string]bool
	// ids says where Decode found what; nil in a Config that comes from elsewhere.
	ids map[name]spot
}

// RouteAt is where the route with that id stands; the zero Place when that is not known.
func (c *Config) RouteAt(id string) Place {
	s, ok := c.ids[name{kindRoute, id}]
	if !ok {
		return Place{}
	}
	return Place{s.file, s.line, s.path()}
}

// Faulty says that Decode reported problems in the match of the route with that id and left it out.
func (c *Config) Faulty(id string) bool { return c.faulty[id] }

// Route says which requests go where under which rules.
type Route struct {
	ID    string `json:"id"`
	Match Match  `json:"match"`
	// Exactly one of Upstream and Split is set.
	Upstream string         `json:"upstream,omitempty"`
	Split    []Destination  `json:"split,omitempty"`
	Sticky   string         `json:"sticky,omitempty"` // "", "user" or "consumer"
	Auth     string         `json:"auth,omitempty"`   // policy id; empty = public
	Policies []string       `json:"policies,omitempty"`
	Timeout  time.Duration  `json:"timeout,omitempty"` // total; 0 was not declared and means DefaultTimeout
	Retry    Retry          `json:"retry,omitzero"`
	Hedge    bool           `json:"hedge,omitempty"` // a late read is sent once more, elsewhere
	Limits   Limits         `json:"limits,omitzero"`
	Priority cells.Priority `json:"priority,omitempty"` // empty = normal
	Owner    string         `json:"owner,omitempty"`
}

// DefaultTimeout is the total time of an exchange whose route names none.
const DefaultTimeout = 15 * time.Second

// Bounds of a route.
const (
	MaxTimeout  = time.Hour
	MaxAttempts = 2
	MaxWeight   = 1_000_000
	MaxBranches = 32
	// MinAttempt is the least time an attempt may have: a total must hold all attempts of at least this.
	MinAttempt = 10 * time.Millisecond
)

// Match is the predicate of a route. Exactly one of Path and PathPrefix is set.
type Match struct {
	Host          string            `json:"host,omitempty"` // lower case; "*.example.com" is one label; empty = any (AllowCatchAll)
	Path          string            `json:"path,omitempty"` // exact or with {parameters}
	PathPrefix    string            `json:"path_prefix,omitempty"`
	Methods       []string          `json:"methods,omitempty"` // sorted; empty = all
	Headers       map[string]string `json:"headers,omitempty"` // lower-case name → exact value
	Query         map[string]string `json:"query,omitempty"`
	AllowCatchAll bool              `json:"allow_catch_all,omitempty"`
}

// Destination is one weighted branch of a split.
type Destination struct {
	Upstream string `json:"upstream"`
	Weight   uint32 `json:"weight"`
}

// Retry says how often and when a failed attempt is repeated. Attempts are retries after the first, 0…2.
type Retry struct {
	Attempts   int      `json:"attempts,omitempty"`
	Conditions []string `json:"conditions,omitempty"` // connect-failure, reset-before-headers, "502", "503", "504"
}

// Limits are the caller's rates on a route. A zero Rate is no limit.
type Limits struct {
	Tenant Rate `json:"tenant,omitzero"`
	User   Rate `json:"user,omitzero"`
	// Scope is where one bucket counts: "" (the world), ScopeRegion or ScopeCell.
	Scope string `json:"scope,omitempty"`
	// OnStoreLoss is what nodes do that can't reach the quota service: "" (go on with a local share) or LossDeny.
	OnStoreLoss string `json:"on_store_loss,omitempty"`
	Mode        string `json:"mode,omitempty"` // "" = they are enforced, or ModeShadow
}

// Shadow says whether the limits are only tried.
func (l *Limits) Shadow() bool { return l.Mode == ModeShadow }

// The words of Limits and Plan that are not the default.
const (
	ScopeRegion = "region"
	ScopeCell   = "cell"
	LossDeny    = "deny"
)

// Rate is Requests per Per, as in "1000/second".
type Rate struct {
	Requests uint64        `json:"requests"`
	Per      time.Duration `json:"per"`
}

// Upstream is what a route sends to, with its endpoints.
type Upstream struct {
	ID        string        `json:"id"`
	Endpoints []string      `json:"endpoints,omitempty"` // host:port, in the author's order
	Where     []Locality    `json:"where,omitempty"`     // of the endpoints, one by one; empty = nothing is said of any
	Discovery Discovery     `json:"discovery,omitzero"`
	Balance   string        `json:"balance,omitempty"` // "p2c" (default), "p2c_peak", "round_robin", "least_requests", "hash"
	Hash      Hashing       `json:"hash,omitzero"`
	SlowStart time.Duration `json:"slow_start,omitempty"` // 0 = DefaultSlowStart, Never = none
	Outlier   Outlier       `json:"outlier,omitzero"`
	Health    Health        `json:"health,omitzero"`
	Breaker   Breaker       `json:"breaker,omitzero"`
	Fallback  string        `json:"fallback,omitempty"` // id of the upstream to ask while every breaker is open
	// Concurrency bounds the exchanges under way, a node; the zero value is the pool's places.
	Concurrency Concurrency `json:"concurrency,omitzero"`
	// OwnerRegion has all writes; while it has no usable endpoint, the first of FailoverRegions that has (I11). Empty = any.
	OwnerRegion     string   `json:"owner_region,omitempty"`
	FailoverRegions []string `json:"failover_regions,omitempty"`
	// Idempotency says that the upstream executes a request once, however often its Idempotency-Key comes.
	Idempotency bool     `json:"idempotency,omitempty"`
	Pool        Pool     `json:"pool,omitzero"`
	Timeouts    Timeouts `json:"timeouts,omitzero"`
	TLS         TLS      `json:"tls,omitzero"`
	Protocol    string   `json:"protocol,omitempty"` // "http1" (default), "h2", "h2c"
	// AllowPlaintextIdentity tells the upstream who calls although the way to it isn't encrypted.
	AllowPlaintextIdentity bool `json:"allow_plaintext_identity,omitempty"`
	// IdentityToken tells it by a signed token; nil = it doesn't.
	IdentityToken *IdentityToken `json:"identity_token,omitempty"`
}

// Multiplexed says whether a connection to the upstream carries many exchanges at once.
func (u *Upstream) Multiplexed() bool { return u.Protocol == ProtocolH2 || u.Protocol == ProtocolH2C }

// Discovery names where endpoints come from when they are not listed.
type Discovery struct {
	Consul string `json:"consul,omitempty"`
	DNS    string `json:"dns,omitempty"`
}

// Pool bounds one node's use of the upstream; zero values mean DefaultPool's.
type Pool struct {
	MaxConnections int `json:"max_connections,omitempty"`
	MaxPending     int `json:"max_pending,omitempty"`
}

// DefaultPool is the bulkhead of an upstream that declares none, per node.
var defaultPool = Pool{MaxConnections: 512, MaxPending: 1024}

// DefaultPool is the bulkhead of an upstream that declares none, per node.
func DefaultPool() Pool { return defaultPool }

// Timeouts bound the phases of one attempt (I6); zero values mean DefaultTimeouts'. The route's timeout bounds them all.
type Timeouts struct {
	Connect        time.Duration `json:"connect,omitempty"`         // TCP and TLS
	ResponseHeader time.Duration `json:"response_header,omitempty"` // from the end of the request to the answer's head
	Idle           time.Duration `json:"idle,omitempty"`            // between two pieces of the answer's body
}

// DefaultTimeouts are those of an upstream that declares none.
var defaultTimeouts = Timeouts{Connect: 3 * time.Second, ResponseHeader: 60 * time.Second, Idle: 60 * time.Second}

// DefaultTimeouts are those of an upstream that declares none.
func DefaultTimeouts() Timeouts { return defaultTimeouts }

// OrDefault fills in what is not declared.
func (t Timeouts) OrDefault() Timeouts {
	return Timeouts{cmp.Or(t.Connect, defaultTimeouts.Connect), cmp.Or(t.ResponseHeader, defaultTimeouts.ResponseHeader), cmp.Or(t.Idle, defaultTimeouts.Idle)}
}

// TLS says how the upstream is spoken to. The zero value is off on loopback and verified TLS otherwise.
type TLS struct {
	Off        bool   `json:"off,omitempty"`
	CA         string `json:"ca,omitempty"` // PEM
	ServerName string `json:"server_name,omitempty"`
	ClientCert string `json:"client_cert,omitempty"` // PEM: certificate chain and key
}

// Policy is a named rule that routes refer to. Exactly one kind is set.
type Policy struct {
	ID     string  `json:"id"`
	Mode   string  `json:"mode,omitempty"` // "" = it is enforced, or ModeShadow
	JWT    *JWT    `json:"jwt,omitempty"`
	APIKey *APIKey `json:"api_key,omitempty"`
	CORS   *CORS   `json:"cors,omitempty"`
	Authz  *Authz  `json:"authz,omitempty"`

	Introspection *Introspection `json:"introspection,omitempty"`
	Transform     *Transform     `json:"transform,omitempty"`
	Session       *Session       `json:"session,omitempty"`
	Decision      *Decision      `json:"decision,omitempty"`
	MTLS          *MTLS          `json:"mtls,omitempty"`
}

// JWT verifies bearer tokens locally against a key set.
type JWT struct {
	Issuer           string        `json:"issuer"`
	Audience         string        `json:"audience"`
	JWKS             string        `json:"jwks"` // URL
	Scopes           []string      `json:"scopes,omitempty"`
	Algorithms       []string      `json:"algorithms,omitempty"` // empty = RS256 PS256 ES256 EdDSA and their larger kin
	ConsumerClaim    string        `json:"consumer_claim,omitempty"`
	MaxTokenLifetime time.Duration `json:"max_token_lifetime,omitempty"` // 0 = no bound
	// IgnoreCnf takes tokens that are bound to a key (RFC 7800) for bearer tokens.
	IgnoreCnf bool `json:"ignore_cnf,omitempty"`
	// CertificateBound takes no tokens but those that are bound to the certificate that their client shows (RFC 8705, section 3).
	CertificateBound bool `json:"certificate_bound,omitempty"`
}

// APIKey accepts the keys of consumers, in X-API-Key or as "Bearer cg_…".
type APIKey struct{}

// Plan of a consumer.
type Plan struct {
	ID          string `json:"id"`
	RatePerSec  uint64 `json:"rate_per_sec,omitempty"`
	QuotaPerDay uint64 `json:"quota_per_day,omitempty"` // worldwide, from 00:00 UTC
	Scope       string `json:"scope,omitempty"`         // of the rate; as in Limits
	OnStoreLoss string `json:"on_store_loss,omitempty"` // as in Limits
	Mode        string `json:"mode,omitempty"`          // as in Limits
}

// Shadow says whether rate and quota are only tried.
func (p *Plan) Shadow() bool { return p.Mode == ModeShadow }

// Consumer is a client organisation with its plan and key hashes ("sha256:" + hex of SHA-256 of the whole key).
type Consumer struct {
	ID           string   `json:"id"`
	Plan         string   `json:"plan,omitempty"`
	APIKeyHashes []string `json:"api_key_hashes,omitempty"`
}

// Tenant owns hosts. Requests to a host that no tenant claims belong to tenant "default".
type Tenant struct {
	ID    string      `json:"id"`
	Hosts []string    `json:"hosts,omitempty"`
	Shard int         `json:"shard,omitempty"` // how many cells carry it; 0 = all of its class
	Class cells.Class `json:"class,omitempty"` // empty = public
	// Limits are of all its requests together.
	Limits TenantLimits `json:"limits,omitzero"`
}

// TenantLimits are a tenant's own. A zero Rate is no limit.
type TenantLimits struct {
	Rate        Rate   `json:"rate,omitzero"`
	Scope       string `json:"scope,omitempty"`         // as in Limits
	OnStoreLoss string `json:"on_store_loss,omitempty"` // as in Limits
	Mode        string `json:"mode,omitempty"`          // as in Limits
}

// Shadow says whether the rate is only tried.
func (l *TenantLimits) Shadow() bool { return l.Mode == ModeShadow }

// Platform is the id of the tenant that all tenants are together: it has no hosts, and its rate is everybody's (H1).
const Platform = "*"

// DefaultTenant owns every host that no tenant claims.
const DefaultTenant = "default"

// Sample is a request that must keep going where its author expects (B4).
type Sample struct {
	Request SampleRequest `json:"request"`
	Expect  SampleExpect  `json:"expect"`
	// At is where the sample stands in its document; not part of the content.
	At Place `json:"-"`
}

// Place is a line of a document and the path of what stands there.
type Place struct {
	File string
	Line int
	Path string
}

// SampleRequest is the request of a sample.
type SampleRequest struct {
	Method  string            `json:"method"`
	URL     string            `json:"url"`
	Headers map[string]string `json:"headers,omitempty"`
}

// SampleExpect is what the sample must come to. Status (404 or 405) stands for "no route".
type SampleExpect struct {
	Route    string `json:"route,omitempty"`
	Upstream string `json:"upstream,omitempty"`
	Status   int    `json:"status,omitempty"`
}

// Allow says which addresses upstreams and identity URLs may name beyond public and private unicast ones.
type Allow struct {
	// Upstreams lists prefixes outside the ordinary ones that are permitted, such as 127.0.0.0/8.
	Upstreams []netip.Prefix
	// PlainURLs permits http: for JWKS and similar URLs whose host is a permitted loopback address.
	PlainURLs bool
}

// Loopback permits 127.0.0.0/8 and ::1 everywhere, as a single node or a world on one machine does.
func Loopback() Allow {
	return Allow{Upstreams: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}, PlainURLs: true}
}

// DefaultBalance is the balance of an upstream that names none.
const DefaultBalance = "p2c"

// What an upstream speaks. The TLS of HTTP/2 is never off, and agrees on it (ALPN); its cleartext form needs no agreement.
const (
	DefaultProtocol = "http1"
	ProtocolH2      = "h2"
	ProtocolH2C     = "h2c"
)

// The retry conditions beside the statuses "502", "503" and "504".
const (
	RetryConnectFailure = "connect-failure"
	RetryReset          = "reset-before-headers"
)
