package snapshot

import (
	"crypto/x509"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cellgate/cellgate/apikey"
	"github.com/cellgate/cellgate/cells"
	"go.yaml.in/yaml/v3"
)

var (
	upstreamKeys  = []string{"id", "endpoints", "discovery", "balance", "lb", "hash", "slow_start", "outlier", "health", "breaker", "fallback", "concurrency", "owner_region", "failover_regions", "idempotency", "pool", "timeouts", "protocol", "tls", "allow_plaintext_identity", "identity_token"}
	discoveryKeys = []string{"consul", "dns"}
	poolKeys      = []string{"max_connections", "max_pending"}
	timeoutKeys   = []string{"connect", "response_header", "idle"}
	tlsKeys       = []string{"ca", "server_name", "client_cert"}
	jwtKeys       = []string{"issuer", "audience", "jwks", "scopes", "algorithms", "consumer_claim", "max_token_lifetime", "ignore_cnf", "certificate_bound"}
	planKeys      = []string{"id", "rate_per_sec", "quota_per_day", "scope", "on_store_loss", "mode"}
	consumerKeys  = []string{"id", "plan", "api_key_hashes"}
	tenantKeys    = []string{"id", "hosts", "shard", "class", "limits"}
	tenantLimits  = []string{"rate", "scope", "on_store_loss", "mode"}
	sampleKeys    = []string{"request", "expect"}
	requestKeys   = []string{"method", "url", "headers"}
	expectKeys    = []string{"route", "upstream", "status"}
	algorithms    = []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"}
)

const (
	maxHashes    = 100
	maxEndpoints = 1000
	maxHosts     = 1000
)

func (d *decoder) upstream(n *yaml.Node, s spot, p *at) {
	o, ok := d.object(n, p, upstreamKeys)
	if !ok {
		return
	}
	var u Upstream
	u.ID, ok = d.id(o, kindUpstream, s)
	d.endpoints(o, &u)
	d.discovery(o, &u)
	d.balancing(o, &u)
	u.Outlier = d.outlier(o)
	u.Health = d.health(o)
	u.Breaker = d.breaker(o)
	d.fallback(o, s, &u)
	u.Concurrency = d.concurrency(o)
	d.writes(o, &u)
	if n := o.get("pool"); n != nil {
		if in, ok := d.object(n, p.child("pool"), poolKeys); ok {
			u.Pool = in.pool()
		}
	}
	if n := o.get("timeouts"); n != nil {
		if in, ok := d.object(n, p.child("timeouts"), timeoutKeys); ok {
			u.Timeouts = in.timeouts()
		}
	}
	d.tls(o, &u.TLS)
	o.protocol(&u)
	u.AllowPlaintextIdentity = o.bool("allow_plaintext_identity")
	d.identityToken(o, &u)
	if ok {
		d.cfg.Upstreams = append(d.cfg.Upstreams, u)
	}
}

func (d *decoder) endpoints(o object, u *Upstream) {
	given, found := o.get("endpoints"), o.get("discovery")
	switch {
	case given == nil && found == nil:
		d.wrong(o.line, o.at.child("endpoints"), "is missing", "give endpoints, or discovery")
	case given != nil && found != nil:
		d.wrong(found.Line, o.at.child("discovery"), "stands beside endpoints", "an upstream has exactly one of them")
	}
	if r := d.resolve(given); r != nil && r.Kind == yaml.SequenceNode && len(r.Content) == 0 {
		o.wrong("endpoints", "is empty", "give at least one host:port")
	}
	var where []Locality
	some := false
	d.list(given, o.at.child("endpoints"), maxEndpoints, func(_ int, n *yaml.Node, p *at) {
		address, at, ok := d.place(n, p)
		if !ok {
			return
		}
		clean, fault, hint := d.allow.endpoint(address)
		switch {
		case fault != "":
			d.wrong(n.Line, p, clip(address)+" "+fault, hint)
		case slices.Contains(u.Endpoints, clean):
			d.wrong(n.Line, p, clip(address)+" stands here twice", "keep one of them")
		default:
			u.Endpoints, where, some = append(u.Endpoints, clean), append(where, at), some || at != Locality{}
		}
	})
	if some {
		u.Where = where
	}
}

func (d *decoder) discovery(o object, u *Upstream) {
	n := o.get("discovery")
	if n == nil {
		return
	}
	in, ok := d.object(n, o.at.child("discovery"), discoveryKeys)
	if !ok {
		return
	}
	u.Discovery = Discovery{Consul: in.string("consul"), DNS: in.string("dns")}
	switch {
	case len(in.keys) != 1:
		d.wrong(in.line, in.at, "has exactly one of consul and dns", "such as {consul: orders}")
	case u.Discovery.DNS != "":
		in.dnsName(u.Discovery.DNS)
	case u.Discovery.Consul != "" && !validID(u.Discovery.Consul):
		in.wrong("consul", strconv.Quote(clip(u.Discovery.Consul))+" is not the name of a service", "letters, digits, '.', '_', '-'")
	}
}

func (o object) pool() Pool {
	connections, _ := o.int("max_connections", 1, 100_000)
	pending, _ := o.int("max_pending", 1, 1_000_000)
	p := Pool{int(connections), int(pending)}
	if p.MaxConnections == defaultPool.MaxConnections {
		p.MaxConnections = 0
	}
	if p.MaxPending == defaultPool.MaxPending {
		p.MaxPending = 0
	}
	return p
}

func (o object) timeouts() Timeouts {
	read := func(key string, usual time.Duration) time.Duration {
		v, _ := o.duration(key, time.Millisecond, MaxTimeout)
		if v == usual {
			return 0
		}
		return v
	}
	return Timeouts{read("connect", defaultTimeouts.Connect), read("response_header", defaultTimeouts.ResponseHeader), read("idle", defaultTimeouts.Idle)}
}

func (d *decoder) tls(o object, t *TLS) {
	n := o.get("tls")
	if n == nil {
		return
	}
	if r := d.resolve(n); r != nil && r.Kind == yaml.ScalarNode {
		if t.Off = r.Value == "off"; !t.Off {
			o.wrong("tls", strconv.Quote(clip(r.Value))+" is not known", "off, or {ca, server_name, client_cert}")
		}
		return
	}
	in, ok := d.object(n, o.at.child("tls"), tlsKeys)
	if !ok {
		return
	}
	t.CA, _ = d.limited(in.get("ca"), in.at, "ca", maxText)
	t.ServerName = in.string("server_name")
	t.ClientCert, _ = d.limited(in.get("client_cert"), in.at, "client_cert", maxText)
	if t.ClientCert != "" && !validPair(t.ClientCert) { // a node would refuse the version
		in.wrong("client_cert", "holds no certificate with its key in PEM", "paste both BEGIN blocks, the certificate first")
	}
	if t.CA != "" && !validCA(t.CA) {
		in.wrong("ca", "holds no certificate in PEM", "paste the whole BEGIN CERTIFICATE block")
	}
	if t.ServerName != "" && !validHostname(t.ServerName) {
		in.wrong("server_name", strconv.Quote(clip(t.ServerName))+" is not a host name", "such as orders.internal.example.com")
	}
}

// protocol is what the upstream speaks, which says something about TLS too.
func (o object) protocol(u *Upstream) {
	switch p := o.oneOf("protocol", "", DefaultProtocol, ProtocolH2, ProtocolH2C); {
	case p == DefaultProtocol:
	case p == ProtocolH2 && u.TLS.Off:
		o.wrong("tls", "is off, and h2 is spoken over TLS", "leave tls out, or write protocol: h2c")
	case p == ProtocolH2C && !u.TLS.Off && o.get("tls") != nil:
		o.wrong("tls", "stands beside h2c, which is spoken without TLS", "leave tls out, or write protocol: h2")
	case p == ProtocolH2C:
		u.Protocol, u.TLS = p, TLS{}
	default:
		u.Protocol = p
	}
}

func validCA(text string) bool {
	blocks, err := PEMBlocks([]byte(text))
	for _, block := range blocks {
		if _, err := x509.ParseCertificate(block.Bytes); err != nil || block.Type != "CERTIFICATE" {
			return false
		}
	}
	return err == nil && len(blocks) > 0
}

func (d *decoder) jwt(n *yaml.Node, p *at) *JWT {
	o, ok := d.object(n, p, jwtKeys)
	if !ok {
		return nil
	}
	j := &JWT{Issuer: o.string("issuer"), Audience: o.string("audience"), JWKS: o.string("jwks"), ConsumerClaim: o.string("consumer_claim")}
	for _, key := range []string{"issuer", "audience", "jwks"} {
		if o.get(key) == nil {
			d.wrong(o.line, p.child(key), "is missing", "a jwt policy needs issuer, audience and jwks")
		}
	}
	if j.JWKS != "" {
		if fault, hint := d.allow.ServiceURL(j.JWKS); fault != "" {
			o.wrong("jwks", strconv.Quote(clip(j.JWKS))+" "+fault, hint)
		}
	}
	j.Scopes = o.scopes("scopes", maxAuthz)
	j.Algorithms = o.strings("algorithms", len(algorithms))
	for _, a := range j.Algorithms {
		if !slices.Contains(algorithms, a) {
			o.wrong("algorithms", strconv.Quote(clip(a))+" is not accepted", "one of "+strings.Join(algorithms, ", "))
		}
	}
	o.some("algorithms", "leave it out to accept "+strings.Join(algorithms, ", "))
	slices.Sort(j.Algorithms)
	j.IgnoreCnf, j.CertificateBound = o.confirmation()
	j.MaxTokenLifetime, _ = o.duration("max_token_lifetime", time.Second, 10*365*24*time.Hour)
	return j
}

// confirmation reads what becomes of tokens that are bound to a key, and of those that aren't.
func (o object) confirmation() (ignore, must bool) {
	ignore, must = o.bool("ignore_cnf"), o.bool("certificate_bound")
	if ignore && must {
		o.wrong("ignore_cnf", "contradicts certificate_bound", "keep one of them")
	}
	return ignore, must
}

func (d *decoder) plan(n *yaml.Node, s spot, p *at) {
	o, ok := d.object(n, p, planKeys)
	if !ok {
		return
	}
	id, ok := d.id(o, kindPlan, s)
	rate, _ := o.int("rate_per_sec", 1, maxRate)
	quota, _ := o.int("quota_per_day", 1, 1<<53)
	hasRate := o.get("rate_per_sec") != nil
	scope, onLoss, mode := o.shared(hasRate, hasRate || o.get("quota_per_day") != nil, "a scope is of rate_per_sec; a quota is worldwide")
	if ok {
		d.cfg.Plans = append(d.cfg.Plans, Plan{id, uint64(rate), uint64(quota), scope, onLoss, mode})
	}
}

func (d *decoder) consumer(n *yaml.Node, s spot, p *at) {
	o, ok := d.object(n, p, consumerKeys)
	if !ok {
		return
	}
	id, ok := d.id(o, kindConsumer, s)
	c := Consumer{ID: id, Plan: o.string("plan")}
	if c.Plan != "" {
		d.refer(kindPlan, c.Plan, s, o.get("plan"), "plan")
	}
	d.list(o.get("api_key_hashes"), p.child("api_key_hashes"), maxHashes, func(_ int, n *yaml.Node, p *at) {
		if h, ok := d.keyHash(n, p, id, s); ok {
			c.APIKeyHashes = append(c.APIKeyHashes, h)
		}
	})
	slices.Sort(c.APIKeyHashes)
	if n := len(c.APIKeyHashes); n > apikey.PerConsumer {
		o.wrong("api_key_hashes", fmt.Sprintf("has %d keys; a consumer has at most %d", n, apikey.PerConsumer), "the one in use and the one that takes its place")
	}
	if ok {
		d.cfg.Consumers = append(d.cfg.Consumers, c)
	}
}

// keyHash reads the hash of a key, which one consumer alone may hold.
func (d *decoder) keyHash(n *yaml.Node, p *at, consumer string, s spot) (string, bool) {
	given, ok := d.string(n, p, "")
	if !ok {
		return "", false
	}
	hash, err := apikey.Parse(strings.ToLower(given))
	if err != nil {
		d.wrong(n.Line, p, "is not sha256: or sha512-256: and 64 hex digits", "the hash of the whole key")
		return "", false
	}
	h := hash.String()
	if first, taken := d.hashes[h]; taken {
		d.wrong(n.Line, p, fmt.Sprintf("is also a key of consumer %q at %s", first.by, first.at), "one key has one consumer")
		return "", false
	}
	d.hashes[h] = claim{consumer, s}
	return h, true
}

func (d *decoder) tenant(n *yaml.Node, s spot, p *at) {
	o, ok := d.object(n, p, tenantKeys)
	if !ok {
		return
	}
	id, ok := d.id(o, kindTenant, s)
	shard, _ := o.int("shard", 0, 10_000)
	t := Tenant{ID: id, Shard: int(shard)}
	t.Class = cells.Class(o.oneOf("class", "", string(cells.Public), string(cells.Partner), string(cells.Internal)))
	if t.Class == cells.Public {
		t.Class = ""
	}
	d.list(o.get("hosts"), p.child("hosts"), maxHosts, func(_ int, n *yaml.Node, p *at) {
		if h, ok := d.tenantHost(n, p, id, s); ok {
			t.Hosts = append(t.Hosts, h)
		}
	})
	slices.Sort(t.Hosts)
	if n := o.get("limits"); n != nil {
		if in, ok := d.object(n, p.child("limits"), tenantLimits); ok {
			t.Limits.Rate = in.rate("rate")
			some := in.get("rate") != nil
			t.Limits.Scope, t.Limits.OnStoreLoss, t.Limits.Mode = in.shared(some, some, "write rate beside it")
			in.notEmpty(n, "write a rate into it, or leave it out")
		}
	}
	if id == Platform {
		d.platform(o, &t)
	}
	if ok {
		d.cfg.Tenants = append(d.cfg.Tenants, t)
	}
}

// platform says what the tenant that is all tenants can't have, and what it is for.
func (d *decoder) platform(o object, t *Tenant) {
	for _, key := range []string{"hosts", "shard", "class"} {
		if o.get(key) != nil {
			o.wrong(key, "is not for the tenant \"*\"", "it is all tenants together, and only has limits")
		}
	}
	if t.Limits.Rate == (Rate{}) && o.get("limits") == nil {
		o.wrong("limits", "is missing", "the tenant \"*\" is there for the rate of all tenants together")
	}
}

// tenantHost reads a host pattern, which one tenant alone may claim.
func (d *decoder) tenantHost(n *yaml.Node, p *at, tenant string, s spot) (string, bool) {
	given, ok := d.string(n, p, "")
	if !ok {
		return "", false
	}
	h, fault, hint := hostPattern(given)
	if fault != "" {
		d.wrong(n.Line, p, strconv.Quote(clip(given))+" "+fault, hint)
		return "", false
	}
	if first, taken := d.claims[h]; taken {
		d.wrong(n.Line, p, fmt.Sprintf("%s is claimed by tenant %q and, at %s, by tenant %q", h, tenant, first.at, first.by), "a host has one tenant")
		return "", false
	}
	d.claims[h] = claim{tenant, s}
	return h, true
}

func (d *decoder) sample(n *yaml.Node, s spot, p *at) {
	o, ok := d.object(n, p, sampleKeys)
	if !ok {
		return
	}
	before := len(d.problems) + d.unshown
	sample := Sample{At: Place{File: s.file, Line: s.line, Path: s.path()}}
	if n := o.get("request"); n == nil {
		d.wrong(o.line, p.child("request"), "is missing", "such as {method: GET, url: \"https://api.example.com/v1\"}")
	} else if in, ok := d.object(n, p.child("request"), requestKeys); ok {
		sample.Request = d.sampleRequest(in)
	}
	if n := o.get("expect"); n == nil {
		d.wrong(o.line, p.child("expect"), "is missing", "give route, upstream or status")
	} else if in, ok := d.object(n, p.child("expect"), expectKeys); ok {
		sample.Expect = d.sampleExpect(in)
	}
	if len(d.problems)+d.unshown == before {
		d.cfg.Samples = append(d.cfg.Samples, sample)
	}
}

func (d *decoder) sampleRequest(o object) SampleRequest {
	r := SampleRequest{Method: "GET", URL: o.string("url")}
	if o.get("method") != nil {
		r.Method = o.string("method")
	}
	if o.get("url") == nil {
		d.wrong(o.line, o.at.child("url"), "is missing", "such as https://api.example.com/v1/orders/7")
	} else if r.URL != "" && !strings.HasPrefix(r.URL, "https://") && !strings.HasPrefix(r.URL, "http://") {
		o.wrong("url", strconv.Quote(clip(r.URL))+" is not an absolute URL", "such as https://api.example.com/v1/orders/7")
	}
	for k, v := range o.pairs("headers", maxPredicates) {
		if r.Headers == nil {
			r.Headers = map[string]string{}
		}
		r.Headers[strings.ToLower(k)] = v
	}
	return r
}

func (d *decoder) sampleExpect(o object) SampleExpect {
	status, _ := o.int("status", 400, 499)
	e := SampleExpect{Route: o.string("route"), Upstream: o.string("upstream"), Status: int(status)}
	switch {
	case len(o.keys) == 0:
		d.wrong(o.line, o.at, "expects nothing", "give route, upstream or status")
	case status != 0 && status != 404 && status != 405 && status != 400:
		o.wrong("status", "must be 400, 404 or 405", "other answers are not routing's")
	case status != 0 && len(o.keys) > 1:
		o.wrong("status", "stands beside route or upstream", "a status means that no route takes the request")
	}
	return e
}
