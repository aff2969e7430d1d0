package callers

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/quota"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

var start = time.Now()

type provider struct {
	keys      *auth.Keys
	wait      chan struct{}
	refetches int
}

func (p *provider) Keys(string) *auth.Keys { return p.keys }
func (p *provider) Refetch(string) <-chan struct{} {
	p.refetches++
	if p.wait == nil {
		return nil
	}
	return p.wait
}

func theProgram(t testing.TB) *program.Program {
	policies := []snapshot.Policy{
		{ID: "admin", JWT: &snapshot.JWT{Issuer: "i", Audience: "a", JWKS: "u", Scopes: []string{"admin"}}},
		{ID: "jwt", JWT: &snapshot.JWT{Issuer: "i", Audience: "a", JWKS: "u", ConsumerClaim: "azp"}},
		{ID: "key", APIKey: &snapshot.APIKey{}},
	}
	identity, err := program.CompileIdentity(policies, []snapshot.Consumer{{ID: "acme", APIKeyHashes: []string{auth.HashKey("cg_acme")}}})
	if err != nil {
		t.Fatal(err)
	}
	return &program.Program{Policies: policies, Identity: identity, Consumers: []program.Consumer{{ID: "acme"}}}
}

type issuer struct {
	key  *ecdsa.PrivateKey
	keys *auth.Keys
}

func newIssuer(t testing.TB) issuer {
	k, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	doc, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &k.PublicKey, KeyID: "k"}}})
	keys, _, err := auth.ParseKeys(doc)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{k, keys}
}

func (i issuer) token(kid string, expires time.Time) []byte {
	s, _ := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: kid}}, nil)
	payload, _ := json.Marshal(map[string]any{"iss": "i", "aud": "a", "sub": "alice", "azp": "acme", "jti": "alices-token", "exp": expires.Unix()})
	jws, _ := s.Sign(payload)
	token, _ := jws.CompactSerialize()
	return append([]byte("Bearer "), token...)
}

func TestCredentialsComeToAnIdentityOrAReason(t *testing.T) {
	p, i := theProgram(t), newIssuer(t)
	a := NewAuthenticator(Sources{Keys: &provider{keys: i.keys}}, start)
	now := start.Add(time.Second)
	good := i.token("k", now.Add(time.Hour))
	for name, c := range map[string]struct {
		policy        int
		authorization []byte
		key           []byte
		want          reason.Reason
		id            proxy.Identity
	}{
		"token":              {1, good, nil, reason.None, proxy.Identity{User: "alice", Consumer: "acme", Issuer: "i"}},
		"scheme in capitals": {1, append([]byte("BEARER  "), good[7:]...), nil, reason.None, proxy.Identity{User: "alice", Consumer: "acme", Issuer: "i"}},
		"no token":           {1, nil, []byte("cg_acme"), reason.TokenMissing, proxy.Identity{}},
		"another scheme":     {1, []byte("Basic YTpi"), nil, reason.TokenMissing, proxy.Identity{}},
		"empty bearer":       {1, []byte("Bearer "), nil, reason.TokenMissing, proxy.Identity{}},
		"garbage":            {1, []byte("Bearer x.y.z"), nil, reason.TokenInvalid, proxy.Identity{}},
		"key for a token":    {1, []byte("Bearer cg_acme"), nil, reason.TokenInvalid, proxy.Identity{}},
		"expired":            {1, i.token("k", now.Add(-time.Hour)), nil, reason.TokenExpired, proxy.Identity{}},
		"scope missing":      {0, good, nil, reason.ScopeMissing, proxy.Identity{User: "alice", Issuer: "i"}},
		"key":                {2, nil, []byte("cg_acme"), reason.None, proxy.Identity{Consumer: "acme"}},
		"key as bearer":      {2, []byte("Bearer cg_acme"), nil, reason.None, proxy.Identity{Consumer: "acme"}},
		"key twice":          {2, []byte("Bearer cg_acme"), []byte("cg_acme"), reason.None, proxy.Identity{Consumer: "acme"}},
		"two keys":           {2, []byte("Bearer cg_acme"), []byte("cg_other"), reason.KeyInvalid, proxy.Identity{}},
		"no key":             {2, good, nil, reason.TokenMissing, proxy.Identity{}},
		"wrong key":          {2, nil, []byte("cg_wrong"), reason.KeyInvalid, proxy.Identity{}},
		"empty key":          {2, nil, []byte{}, reason.KeyInvalid, proxy.Identity{}},
	} {
		id := proxy.Identity{User: "left over", Facts: &auth.Identity{}}
		why, wait := a.Authenticate(&proxy.Credentials{Program: p, Policy: &p.Policies[c.policy], Tenant: "acme",
			Authorization: c.authorization, APIKey: c.key}, &id, now)
		if (id.Facts != nil) != (id.User != "") {
			t.Errorf("%s: facts %v", name, id.Facts)
		}
		id.Facts = nil
		if why != c.want || id != c.id || wait != nil {
			t.Errorf("%s: %v %+v", name, why, id)
		}
	}
}

func TestUnknownKeysWaitAndMissingKeySetsAre503(t *testing.T) {
	p, i := theProgram(t), newIssuer(t)
	src := &provider{keys: i.keys, wait: make(chan struct{})}
	a := NewAuthenticator(Sources{Keys: src}, start)
	now := start.Add(time.Second)
	ask := func(token []byte) (reason.Reason, <-chan struct{}) {
		var id proxy.Identity
		return a.Authenticate(&proxy.Credentials{Program: p, Policy: &p.Policies[1], Tenant: "acme", Authorization: token}, &id, now)
	}
	if why, wait := ask(i.token("rotated", now.Add(time.Hour))); why != reason.TokenInvalid || wait == nil {
		t.Errorf("unknown kid: %v, waits %v", why, wait != nil)
	}
	if why, wait := ask(i.token("k", now.Add(time.Hour))); why != reason.None || wait != nil || src.refetches != 1 {
		t.Errorf("known kid: %v, waits %v", why, wait != nil)
	}
	src.keys = nil
	if why, wait := ask(i.token("k", now.Add(time.Hour))); why != reason.AuthUnavailable || wait == nil {
		t.Errorf("no keys: %v, waits %v", why, wait != nil)
	}
	src.wait = nil
	if why, wait := ask(i.token("k", now.Add(time.Hour))); why != reason.AuthUnavailable || wait != nil {
		t.Errorf("no keys and no wait: %v, waits %v", why, wait != nil)
	}
}

func TestBadSignaturesAreBoundedPerSource(t *testing.T) {
	p, i, stranger := theProgram(t), newIssuer(t), newIssuer(t)
	a := NewAuthenticator(Sources{Keys: &provider{keys: i.keys}}, start)
	now := start.Add(time.Second)
	ask := func(token []byte, peer string) reason.Reason {
		var id proxy.Identity
		why, _ := a.Authenticate(&proxy.Credentials{Program: p, Policy: &p.Policies[1], Tenant: "acme", Authorization: token, Peer: netip.MustParseAddr(peer)}, &id, now)
		return why
	}
	known := i.token("k", now.Add(time.Hour))
	ask(known, "192.0.2.1")
	forged := stranger.token("k", now.Add(time.Hour))
	for range 150 {
		ask(forged, "192.0.2.1")
		ask(forged, "127.0.0.1")
	}
	fresh := i.token("k", now.Add(2*time.Hour))
	if why := ask(fresh, "192.0.2.1"); why != reason.TokenInvalid {
		t.Errorf("over the budget a signature is computed: %v", why)
	}
	if ask(known, "192.0.2.1") != reason.None || ask(fresh, "192.0.2.2") != reason.None || ask(fresh, "127.0.0.1") != reason.None {
		t.Error("a known token, another source or loopback pays for it")
	}
}

func TestAKnownCallerCostsNoAllocation(t *testing.T) {
	p, i := theProgram(t), newIssuer(t)
	a, l := NewAuthenticator(Sources{Keys: &provider{keys: i.keys}}, start), NewLimiter(start)
	now := start.Add(time.Second)
	c := &proxy.Credentials{Program: p, Policy: &p.Policies[1], Tenant: "acme", Authorization: i.token("k", now.Add(time.Hour))}
	var id proxy.Identity
	claims := []proxy.Claim{
		{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.RateTenant, Route: "r"}, Limit: quota.Limit{Rate: 1e9, Burst: 1e9}},
		{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.RateUser, Route: "r", Caller: "alice"}, Limit: quota.Limit{Rate: 1e9, Burst: 1e9}},
	}
	if n := testing.AllocsPerRun(1000, func() {
		if why, _ := a.Authenticate(c, &id, now); why != reason.None || take(l, claims, now) != -1 {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// take asks a limiter whose answer is there at once.
func take(l *Limiter, claims []proxy.Claim, now time.Time) int {
	l.Aim(claims)
	i, wait := l.Take(claims, 0, now)
	if wait != nil {
		return len(claims)
	}
	return i
}

func TestASharedLimitCostsNoAllocationAndGivesBackWhatAnotherRefused(t *testing.T) {
	l, now := NewShared(start), start.Add(time.Second)
	claims := []proxy.Claim{
		{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.RateTenant, Route: "r"}, Limit: quota.Limit{Rate: 1e9, Burst: 1e9}},
		{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.QuotaConsumer, Caller: "c"}, Limit: quota.PerDay(1 << 50)},
		{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.RateUser, Route: "r", Caller: "alice"}, Limit: quota.Limit{Rate: 1e9, Burst: 1e9}},
	}
	if n := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Second)
		if take(l, claims, now) != -1 {
			t.Fatal("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	claims[0].Limit = quota.Limit{Rate: 1, Burst: 1, Strict: true} // its service is lost
	if got := take(l, claims, now); got != 0 || claims[0].RetryAfter <= 0 {
		t.Errorf("refused by %d: %+v", got, claims[0])
	}
}

// Only who is known to have spent his day is told to come back the next one.
func TestWhoHasSpentHisDayComesBackTheNextOne(t *testing.T) {
	l := NewShared(start)
	claims := []proxy.Claim{{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.QuotaConsumer, Caller: "c"}, Limit: quota.Limit{Rate: 1, Burst: 1, Day: 5, Strict: true}}}
	now := start.Add(time.Second)
	if got := take(l, claims, now); got != 0 || claims[0].RetryAfter > time.Second {
		t.Errorf("its service is lost: refused by %d: %+v", got, claims[0])
	}
	l.Leases().Connected()
	now = start.Add(2 * time.Second)
	l.Aim(claims)
	if _, wait := l.Take(claims, 0, now); wait == nil {
		t.Fatal("a cold key is not waited for")
	}
	at := now.Sub(start).Nanoseconds()
	batch := l.Leases().Table.Due(at, true, 10)
	batch.Granted(at, []quota.Grant{{Share: 1}})
	if got := take(l, claims, now); got != 0 || claims[0].RetryAfter != untilMidnight(now) {
		t.Errorf("it is spent: refused by %d: %+v", got, claims[0])
	}
	midnight := time.Date(2026, 5, 6, 0, 0, 0, 0, time.UTC)
	for past, want := range map[time.Duration]time.Duration{-time.Millisecond: time.Millisecond, 0: time.Second, early: 24*time.Hour - early} {
		if got := untilMidnight(midnight.Add(past)); got != want {
			t.Errorf("%v after midnight it is %v until the next", past, got)
		}
	}
}

func TestANodeThatIsAloneCountsTheDay(t *testing.T) {
	l, now := NewLimiter(start), time.Date(2026, 5, 6, 23, 59, 50, 0, time.UTC)
	claims := []proxy.Claim{
		{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.QuotaConsumer, Caller: "c"}, Limit: quota.PerDay(3)},
		{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.RateUser, Route: "r", Caller: "u"}, Limit: quota.Limit{Rate: 1e9, Burst: 1e9}},
	}
	for i, want := range []int{-1, -1, -1, 0, 0} {
		if got := take(l, claims, now); got != want {
			t.Fatalf("request %d: refused by %d", i, got)
		}
	}
	if claims[0].RetryAfter != 10*time.Second {
		t.Errorf("ten seconds before midnight: Retry-After %v", claims[0].RetryAfter)
	}
	for i, at := range []time.Duration{10, 9, 11, 9} { // the clock is set back over midnight
		if got := take(l, claims, now.Add(at*time.Second)); (got == -1) != (i < 3) {
			t.Errorf("request %d after midnight: refused by %d", i, got)
		}
	}
}

func TestAllClaimsAreTakenOrNone(t *testing.T) {
	l, now := NewLimiter(start), start.Add(time.Second)
	claims := []proxy.Claim{
		{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.RateTenant, Route: "r"}, Limit: quota.Limit{Rate: 1, Burst: 3}},
		{Key: proxy.LimitKey{Tenant: "acme", Kind: reason.RateUser, Route: "r", Caller: "alice"}, Limit: quota.Limit{Rate: 1, Burst: 2}},
	}
	for i, want := range []int{-1, -1, 1, 1} {
		if got := take(l, claims, now); got != want {
			t.Fatalf("request %d: refused by %d", i, got)
		}
	}
	if claims[1].RetryAfter != time.Second {
		t.Errorf("%+v", claims[1])
	}
	claims[1].Key.Caller = "bob"
	if take(l, claims, now) != -1 {
		t.Fatal("refused requests took the tenant's tokens")
	}
	for range 2 {
		if take(l, claims, now) != 0 {
			t.Fatal("the tenant's limit does not hold")
		}
	}
	if take(l, claims[1:], now) != -1 {
		t.Error("a request that the tenant's limit refused took the user's token")
	}
}
