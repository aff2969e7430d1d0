package snapshot

import (
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

var (
	endpointKeys = []string{"address", "region", "zone"}
	hashKeys     = []string{"on", "bound"}
	outlierKeys  = []string{"consecutive", "rate", "calls", "for", "most"}
	adaptiveKeys = []string{"min", "max"}
	breakerKeys  = []string{"failures", "calls", "window", "for", "probes", "restore"}
	healthKeys   = []string{"path", "host", "interval", "timeout", "down", "up"}
)

// place reads an endpoint: host:port, or a mapping that also says where it is.
func (d *decoder) place(n *yaml.Node, p *at) (address string, where Locality, ok bool) {
	if r := d.resolve(n); r == nil || r.Kind != yaml.MappingNode {
		address, ok = d.string(n, p, "")
		return address, where, ok
	}
	o, ok := d.object(n, p, endpointKeys)
	if !ok {
		return "", where, false
	}
	if o.get("address") == nil {
		d.wrong(o.line, p.child("address"), "is missing", "such as {address: \"10.0.0.7:8080\", zone: a}")
		return "", where, false
	}
	address, ok = d.string(o.get("address"), p, "address")
	return address, Locality{o.label("region"), o.label("zone")}, ok
}

// label reads the name of a region or zone.
func (o object) label(key string) string {
	s := o.string(key)
	if s != "" && !validID(s) {
		o.wrong(key, strconv.Quote(clip(s))+" is not the name of a "+key, "letters, digits, '.', '_', '-'")
		return ""
	}
	return s
}

const balanceHash = "hash"

// balancing reads how an endpoint is chosen.
func (d *decoder) balancing(o object, u *Upstream) {
	n, key := o.either("balance", "lb")
	if s, ok := d.string(n, o.at, key); ok {
		s = strings.ReplaceAll(s, "-", "_")
		words := []string{DefaultBalance, "p2c_peak", "round_robin", "least_requests", balanceHash}
		if !slices.Contains(words, s) {
			o.wrong(key, strconv.Quote(clip(s))+" is not known", "one of "+strings.Join(words, ", "))
		} else if s != DefaultBalance {
			u.Balance = s
		}
	}
	h := o.get("hash")
	switch {
	case h == nil && u.Balance == balanceHash:
		o.wrong("hash", "is missing", "say what to hash, such as hash: {on: \"header:x-session\"}")
	case h != nil && u.Balance != balanceHash:
		o.wrong("hash", "does nothing without balance: hash", "write balance: hash beside it, or take it out")
	case h != nil:
		if in, ok := d.object(h, o.at.child("hash"), hashKeys); ok {
			u.Hash = in.hashing()
		}
	}
	u.SlowStart = o.switched("slow_start", DefaultSlowStart, 100*time.Millisecond, MaxTimeout)
}

// switched reads a duration that may be off.
func (o object) switched(key string, usual, lo, hi time.Duration) time.Duration {
	n := o.get(key)
	if n == nil {
		return 0
	}
	if r := o.d.resolve(n); r != nil && r.Kind == yaml.ScalarNode && r.Value == "off" {
		return Never
	}
	v, _ := o.duration(key, lo, hi)
	if v == usual {
		return 0
	}
	return v
}

// usually reads a number that is left out when it is the usual one.
func (o object) usually(key string, usual, lo, hi int) int {
	v, _ := o.int(key, int64(lo), int64(hi))
	if int(v) == usual {
		return 0
	}
	return int(v)
}

func (o object) hashing() (h Hashing) {
	h.Bound = o.usually("bound", 125, 101, 1000)
	if o.get("on") == nil {
		o.d.wrong(o.line, o.at.child("on"), "is missing", "client, consumer, header:NAME or cookie:NAME")
		return h
	}
	on := o.string("on")
	switch kind, name, _ := strings.Cut(on, ":"); {
	case on == "", on == HashClient, on == HashConsumer:
		h.On = on
	case kind+":" == HashHeader && token(name) && !strings.EqualFold(name, "host"): // which HTTP/2 has no field for
		h.On = HashHeader + strings.ToLower(name)
	case kind+":" == HashCookie && token(name):
		h.On = on
	default:
		o.wrong("on", strconv.Quote(clip(on))+" is nothing to hash", "client, consumer, header:NAME or cookie:NAME")
	}
	return h
}

// token is that of RFC 9110, section 5.6.2.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || strings.IndexByte("!#$%&'*+-.^_`|~", c) >= 0) {
			return false
		}
	}
	return s != "" && len(s) <= 256
}

// orOff is the mapping of a key that may also be off; ok is false for off, and for what is absent or was reported.
func (o object) orOff(key string, keys []string) (in object, off, ok bool) {
	n := o.get(key)
	if n == nil {
		return in, false, false
	}
	if r := o.d.resolve(n); r != nil && r.Kind == yaml.ScalarNode {
		if off = r.Value == "off"; !off {
			o.wrong(key, strconv.Quote(clip(r.Value))+" is not known", "off, or {"+strings.Join(keys, ", ")+"}")
		}
		return in, off, false
	}
	in, ok = o.d.object(n, o.at.child(key), keys)
	return in, false, ok
}

func (d *decoder) outlier(o object) (out Outlier) {
	in, off, ok := o.orOff("outlier", outlierKeys)
	if out.Off = off; !ok {
		return out
	}
	u := defaultOutlier
	out.Consecutive = in.usually("consecutive", u.Consecutive, 1, 1000)
	out.Rate = in.usually("rate", u.Rate, 1, 100)
	out.Calls = in.usually("calls", u.Calls, 1, 10_000)
	out.Most = in.usually("most", u.Most, 1, 100)
	out.For = in.usualTime("for", u.For, 100*time.Millisecond, MaxTimeout)
	return out
}

func (d *decoder) breaker(o object) (b Breaker) {
	in, off, ok := o.orOff("breaker", breakerKeys)
	if b.Off = off; !ok {
		return b
	}
	u := defaultBreaker
	b.Failures, b.Calls, b.Probes = in.usually("failures", u.Failures, 1, 99), in.usually("calls", u.Calls, 1, 10_000), in.usually("probes", u.Probes, 1, 100)
	b.Window = in.usualTime("window", u.Window, time.Second, 10*time.Minute)
	b.For = in.usualTime("for", u.For, 100*time.Millisecond, MaxTimeout)
	b.Restore = in.usualTime("restore", u.Restore, 100*time.Millisecond, MaxTimeout)
	return b
}

// fallback reads the upstream to ask while the breakers are open.
func (d *decoder) fallback(o object, s spot, u *Upstream) {
	if u.Fallback = o.string("fallback"); u.Fallback == "" {
		return
	}
	if u.Fallback == u.ID {
		o.wrong("fallback", "is the upstream itself", "name another one")
		return
	}
	d.refer(kindUpstream, u.Fallback, s, o.get("fallback"), "fallback")
}

// usualTime reads a duration that is left out when it is the usual one.
func (o object) usualTime(key string, usual, lo, hi time.Duration) time.Duration {
	v, _ := o.duration(key, lo, hi)
	if v == usual {
		return 0
	}
	return v
}

func (d *decoder) health(o object) (h Health) {
	n := o.get("health")
	if n == nil {
		return h
	}
	in, ok := d.object(n, o.at.child("health"), healthKeys)
	if !ok {
		return h
	}
	h = Health{Path: in.string("path"), Host: in.string("host")}
	switch {
	case in.get("path") == nil:
		d.wrong(in.line, in.at.child("path"), "is missing", "such as /healthz")
	case h.Path != "" && (h.Path[0] != '/' || strings.ContainsFunc(h.Path, func(r rune) bool { return r <= ' ' || r > '~' || r == '#' })):
		in.wrong("path", strconv.Quote(clip(h.Path))+" can't be asked for", "it starts with a slash and holds printable ASCII only")
	}
	if h.Host != "" && !validHostname(h.Host) {
		in.wrong("host", strconv.Quote(clip(h.Host))+" is not a host name", "such as orders.internal.example.com")
	}
	u := defaultHealth
	h.Interval = in.usualTime("interval", u.Interval, 100*time.Millisecond, MaxTimeout)
	h.Timeout = in.usualTime("timeout", u.Timeout, 10*time.Millisecond, time.Minute)
	h.Down, h.Up = in.usually("down", u.Down, 1, 100), in.usually("up", u.Up, 1, 100)
	if full := h.OrDefault(); full.Timeout > full.Interval {
		in.wrong("timeout", "is longer than the interval of "+Duration(full.Interval), "let one probe end before the next begins")
	}
	return h
}

// concurrency reads a number, the word adaptive, or the bounds of an adaptive one.
func (d *decoder) concurrency(o object) (c Concurrency) {
	const most = 1_000_000
	n := o.get("concurrency")
	if n == nil {
		return c
	}
	if r := d.resolve(n); r != nil && r.Kind == yaml.ScalarNode {
		if c.Adaptive = r.Value == "adaptive"; !c.Adaptive {
			v, _ := o.int("concurrency", 1, most)
			c.Most = int(v)
		}
		return c
	}
	in, ok := d.object(n, o.at.child("concurrency"), adaptiveKeys)
	if !ok {
		return c
	}
	c.Adaptive = true
	c.Least = in.usually("min", DefaultLeast, 1, most)
	v, _ := in.int("max", 1, most)
	least := c.Least
	if least == 0 && in.get("min") != nil { // the usual one gives way to a lower max, unless it is written
		least = DefaultLeast
	}
	if c.Most = int(v); c.Most > 0 && c.Most < least {
		in.wrong("max", "is below min", "exchange them")
	}
	return c
}

// dnsName checks the name that an upstream is found by: host:port for addresses, _service._proto.name for SRV records.
func (o object) dnsName(name string) {
	host, port, err := net.SplitHostPort(name)
	if strings.HasPrefix(name, "_") {
		host, port, err = name, "1", nil
		service, rest, _ := strings.Cut(name, ".")
		proto, _, named := strings.Cut(rest, ".")
		if service == "_" || proto == "_" || !strings.HasPrefix(proto, "_") || !named {
			o.wrong("dns", clip(name)+" is no service", "such as _orders._tcp.internal.example.com")
			return
		}
	}
	if n, bad := strconv.ParseUint(port, 10, 16); err != nil || bad != nil || n == 0 {
		o.wrong("dns", clip(name)+" has no port", "write host:port, or _service._proto.name for SRV records")
		return
	}
	if _, literal := netip.ParseAddr(host); literal == nil {
		o.wrong("dns", clip(host)+" is an address", "list it under endpoints")
		return
	}
	if fault, hint := o.d.allow.host(host); fault != "" {
		o.wrong("dns", clip(host)+" "+fault, hint)
	}
}

// writes reads who has the writes of an upstream, and whether they may be sent twice.
func (d *decoder) writes(o object, u *Upstream) {
	u.Idempotency = o.oneOf("idempotency", "", "supported") != ""
	u.OwnerRegion = o.label("owner_region")
	for _, r := range o.strings("failover_regions", 16) {
		if !validID(r) || r == u.OwnerRegion {
			o.wrong("failover_regions", strconv.Quote(clip(r))+" is not the name of another region", "letters, digits, '.', '_', '-'")
			continue
		}
		u.FailoverRegions = append(u.FailoverRegions, r)
	}
	switch {
	case o.get("failover_regions") != nil && o.get("owner_region") == nil:
		o.wrong("failover_regions", "stands without owner_region", "say which region has the writes as long as it is well")
	case u.OwnerRegion != "" && len(u.Endpoints) > 0 && !slices.ContainsFunc(u.Where, func(at Locality) bool { return at.Region == u.OwnerRegion }):
		o.wrong("owner_region", "has no endpoint", "say of an endpoint that it is there: {address: …, region: "+u.OwnerRegion+"}")
	}
}
