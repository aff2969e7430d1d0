package auth

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/big"
	"strings"
	"sync"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"
	"pgregory.net/rapid"

	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

var now = time.Unix(1_800_000_000, 0)

// world is one provider with a key of every kind.
type world struct {
	signers map[string]jose.SigningKey // by kid
	keys    *Keys
	jwks    []byte
}

var theWorld = sync.OnceValue(func() *world {
	w := &world{signers: map[string]jose.SigningKey{}}
	var set jose.JSONWebKeySet
	add := func(kid string, alg jose.SignatureAlgorithm, private crypto.Signer) {
		w.signers[kid] = jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: private, KeyID: kid}}
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: private.Public(), KeyID: kid, Algorithm: string(alg), Use: "sig"})
	}
	r, _ := rsa.GenerateKey(rand.Reader, 2048)
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512} {
		add(string(alg), alg, r)
	}
	for alg, curve := range map[jose.SignatureAlgorithm]elliptic.Curve{jose.ES256: elliptic.P256(), jose.ES384: elliptic.P384(), jose.ES512: elliptic.P521()} {
		k, _ := ecdsa.GenerateKey(curve, rand.Reader)
		add(string(alg), alg, k)
	}
	_, e, _ := ed25519.GenerateKey(rand.Reader)
	add("EdDSA", jose.EdDSA, e)
	w.jwks, _ = json.Marshal(set)
	w.keys, _, _ = ParseKeys(w.jwks)
	return w
})

func policy() snapshot.JWT {
	return snapshot.JWT{Issuer: "https://id.example.com", Audience: "api", JWKS: "https://id.example.com/keys", Scopes: []string{"orders"}}
}

func good() map[string]any {
	return map[string]any{"iss": "https://id.example.com", "aud": "api", "sub": "alice", "scope": "openid orders",
		"exp": now.Unix() + 600, "iat": now.Unix() - 10, "nbf": now.Unix() - 10, "azp": "acme"}
}

func (w *world) sign(t testing.TB, kid string, claims any, header map[jose.HeaderKey]any) string {
	payload, ok := claims.([]byte)
	if !ok {
		payload, _ = json.Marshal(claims)
	}
	s, err := jose.NewSigner(w.signers[kid], &jose.SignerOptions{ExtraHeaders: header})
	if err != nil {
		t.Fatal(err)
	}
	jws, err := s.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jws.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// raw signs the very bytes of header and payload with the RS256 key, whatever they say.
func (w *world) raw(t testing.TB, header, payload string) string {
	input := b64(header) + "." + b64(payload)
	r := w.signers["RS256"].Key.(jose.JSONWebKey).Key.(*rsa.PrivateKey)
	h := crypto.SHA256.New()
	h.Write([]byte(input))
	sig, err := rsa.SignPKCS1v15(nil, r, crypto.SHA256, h.Sum(nil))
	if err != nil {
		t.Fatal(err)
	}
	return input + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func b64(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }

func claimsWith(name string, v any) map[string]any {
	c := good()
	if v == nil {
		delete(c, name)
	} else {
		c[name] = v
	}
	return c
}

func TestEveryPermittedAlgorithmVerifies(t *testing.T) {
	w, v := theWorld(), NewVerifier(policy())
	if w.keys.Len() != 10 {
		t.Fatalf("%d keys", w.keys.Len())
	}
	for kid := range w.signers {
		r := v.Verify(w.sign(t, kid, good(), nil), w.keys, now)
		if r.Reason != reason.None || r.Identity.Subject != "alice" || len(r.Identity.Scopes) != 2 {
			t.Errorf("%s: %+v", kid, r)
		}
	}
}

func TestClaimsAreJudgedWithSkew(t *testing.T) {
	w := theWorld()
	sec := int64(1)
	for _, c := range []struct {
		name   string
		claims map[string]any
		change func(*snapshot.JWT)
		want   reason.Reason
	}{
		{"expired within skew", claimsWith("exp", now.Unix()-29*sec), nil, reason.None},
		{"expired", claimsWith("exp", now.Unix()-30*sec), nil, reason.TokenExpired},
		{"no exp", claimsWith("exp", nil), nil, reason.TokenInvalid},
		{"exp as string", claimsWith("exp", "9999999999"), nil, reason.TokenInvalid},
		{"exp beyond time", claimsWith("exp", 1e300), nil, reason.TokenInvalid},
		{"fractional exp", claimsWith("exp", float64(now.Unix())+0.5), nil, reason.None},
		{"not yet within skew", claimsWith("nbf", now.Unix()+30), nil, reason.None},
		{"not yet", claimsWith("nbf", now.Unix()+31), nil, reason.TokenExpired},
		{"nbf as bool", claimsWith("nbf", true), nil, reason.TokenInvalid},
		{"other issuer", claimsWith("iss", "https://id.example.com/"), nil, reason.TokenInvalid},
		{"no issuer", claimsWith("iss", nil), nil, reason.TokenInvalid},
		{"audience in a list", claimsWith("aud", []string{"x", "api"}), nil, reason.None},
		{"other audience", claimsWith("aud", []string{"x"}), nil, reason.TokenInvalid},
		{"audience list with a number", claimsWith("aud", []any{"api", 1}), nil, reason.TokenInvalid},
		{"no audience", claimsWith("aud", nil), nil, reason.TokenInvalid},
		{"subject as number", claimsWith("sub", 7), nil, reason.TokenInvalid},
		{"no scope", claimsWith("scope", nil), nil, reason.ScopeMissing},
		{"longer scope", claimsWith("scope", "orders2 xorders"), nil, reason.ScopeMissing},
		{"scope as number", claimsWith("scope", 1), nil, reason.TokenInvalid},
		{"for good", claimsWith("exp", int64(253402300799)), nil, reason.None},
		{"beyond all time", claimsWith("exp", int64(253402300800)), nil, reason.TokenInvalid},
		{"too long a life", good(), func(p *snapshot.JWT) { p.MaxTokenLifetime = 609 * time.Second }, reason.TokenInvalid},
		{"just the life", good(), func(p *snapshot.JWT) { p.MaxTokenLifetime = 610 * time.Second }, reason.None},
		{"life unknown", claimsWith("iat", nil), func(p *snapshot.JWT) { p.MaxTokenLifetime = time.Hour }, reason.TokenInvalid},
		{"issued in the future", claimsWith("iat", now.Unix()+31), func(p *snapshot.JWT) { p.MaxTokenLifetime = time.Hour }, reason.TokenInvalid},
		{"bound to no hash", claimsWith("cnf", map[string]any{"x5t#S256": "x"}), nil, reason.TokenInvalid},
		{"bound to a longer hash", claimsWith("cnf", map[string]any{"x5t#S256": thumb + "AAAA"}), nil, reason.TokenInvalid},
		{"bound to a padded hash", claimsWith("cnf", map[string]any{"x5t#S256": thumb + "="}), nil, reason.TokenInvalid},
		{"bound to another key", claimsWith("cnf", map[string]any{"jkt": thumb}), nil, reason.TokenInvalid},
		{"bound to two keys", claimsWith("cnf", map[string]any{"x5t#S256": thumb, "jkt": thumb}), nil, reason.TokenInvalid},
		{"bound in words", claimsWith("cnf", thumb), nil, reason.TokenInvalid},
		{"bound to a certificate", claimsWith("cnf", map[string]any{"x5t#S256": thumb}), nil, reason.None},
		{"bound as it must be", claimsWith("cnf", map[string]any{"x5t#S256": thumb}), func(p *snapshot.JWT) { p.CertificateBound = true }, reason.None},
		{"not bound as it must be", good(), func(p *snapshot.JWT) { p.CertificateBound = true }, reason.TokenInvalid},
		{"bound to nothing", claimsWith("cnf", map[string]any{}), nil, reason.TokenInvalid},
		{"bound, and nobody minds", claimsWith("cnf", map[string]any{"jkt": "x"}), func(p *snapshot.JWT) { p.IgnoreCnf = true }, reason.None},
		{"consumer", good(), func(p *snapshot.JWT) { p.ConsumerClaim = "azp" }, reason.None},
		{"no consumer", claimsWith("azp", nil), func(p *snapshot.JWT) { p.ConsumerClaim = "azp" }, reason.TokenInvalid},
		{"algorithm not in the policy", good(), func(p *snapshot.JWT) { p.Algorithms = []string{"RS256", "HS256"} }, reason.TokenInvalid},
	} {
		p := policy()
		if c.change != nil {
			c.change(&p)
		}
		if r := NewVerifier(p).Verify(w.sign(t, "ES256", c.claims, nil), w.keys, now); r.Reason != c.want {
			t.Errorf("%s: %v, want %v", c.name, r.Reason, c.want)
		}
	}
}

// thumb is the hash of some certificate.
var thumb = strings.Repeat("A", 43)

func TestHeaderTricksAreRefused(t *testing.T) {
	w, v := theWorld(), NewVerifier(policy())
	payload, _ := json.Marshal(good())
	p := string(payload)
	if r := v.Verify(w.raw(t, `{"alg":"RS256","kid":"RS256","typ":"at+JWT"}`, p), w.keys, now); r.Reason != reason.None {
		t.Fatalf("the plain header is refused: %v", r.Reason)
	}
	if r := v.Verify(w.raw(t, `{"alg":"RS256","kid":"RS256","x5t":"abc","custom":{"of":["any",1]}}`, p), w.keys, now); r.Reason != reason.None {
		t.Errorf("a member without meaning is not ignored: %v", r.Reason)
	}
	jwk := strings.TrimSuffix(strings.SplitN(string(w.jwks), "[", 2)[1], "]}")
	for _, h := range []string{
		`{"alg":"none"}`, `{"alg":"None","kid":"RS256"}`, `{"alg":"","kid":"RS256"}`, `{"kid":"RS256"}`,
		`{"alg":"HS256","kid":"RS256"}`, `{"alg":"PS256","kid":"RS256"}`, `{"alg":"RS384","kid":"RS256"}`,
		`{"alg":"ES256","kid":"RS256"}`, `{"alg":["RS256"],"kid":"RS256"}`, `{"alg":"RS256","kid":5}`, `{"alg":"RS256","kid":""}`,
		`{"alg":"RS256","kid":"RS256","jwk":{}}`, `{"alg":"RS256","kid":"RS256","jwk":` + strings.SplitN(jwk, ",{", 2)[0] + `}`,
		`{"alg":"RS256","kid":"RS256","jku":"https://evil.example/"}`, `{"alg":"RS256","kid":"RS256","x5u":"https://evil.example/"}`,
		`{"alg":"RS256","kid":"RS256","x5c":["AA=="]}`, `{"alg":"RS256","kid":"RS256","crit":["exp"],"exp":1}`,
		`{"alg":"RS256","kid":"RS256","crit":[]}`, `{"alg":"RS256","kid":"RS256","b64":false,"crit":["b64"]}`,
		`{"alg":"RS256","kid":"RS256","zip":"DEF"}`, `{"alg":"RS256","kid":"RS256","typ":"dpop+jwt"}`,
		`{"alg":"none","alg":"RS256","kid":"RS256"}`, `{"alg":"RS256","\u0061lg":"RS256","kid":"RS256"}`,
		`{"ALG":"RS256","kid":"RS256"}`, `{"alg":"RS256","kid":"RS256"} {}`, `{"alg":"RS256","kid":"RS256",}`,
		`[{"alg":"RS256"}]`, `"RS256"`, ``, "{\"alg\":\"RS256\",\"kid\":\"RS256\xff\"}",
	} {
		if r := v.Verify(w.raw(t, h, p), w.keys, now); r.Reason != reason.TokenInvalid || r.UnknownKey {
			t.Errorf("%s: %+v", h, r)
		}
	}
}

func TestPayloadTricksAreRefused(t *testing.T) {
	w, v := theWorld(), NewVerifier(policy())
	payload, _ := json.Marshal(good())
	open := strings.TrimSuffix(string(payload), "}")
	for _, whole := range []string{`"\ud83d\ude00"`, `"\\ud800"`, `"\\\ud83d\uDE00\\"`, `"\n\u0041\ufffd"`} {
		if r := v.Verify(w.raw(t, `{"alg":"RS256","kid":"RS256"}`, open+`,"x":`+whole+`}`), w.keys, now); r.Reason != reason.None {
			t.Errorf("%s: %v", whole, r.Reason)
		}
	}
	for _, p := range []string{
		open + `,"iss":"https://id.example.com"}`, open + `,"x":{"a":1,"a":2}}`, open + `,"\u0073ub":"root"}`,
		open + `,"x":"\ud800"}`, open + `,"x":"\udc00"}`, open + `,"x":"\uDC00\ud800"}`, open + `,"x":"\ud800\ud800\udc00"}`, open + `,"x":"\\\ud800x"}`, open + `,"\ud800":1}`,
		open + "}x", open, "[" + open + "}]", `null`, ``, open + `,"x":` + strings.Repeat("[", 40) + strings.Repeat("]", 40) + `}`,
	} {
		if r := v.Verify(w.raw(t, `{"alg":"RS256","kid":"RS256"}`, p), w.keys, now); r.Reason != reason.TokenInvalid {
			t.Errorf("%s: %v", p, r.Reason)
		}
	}
}

func TestLaxEncodingsOfAGoodTokenAreRefused(t *testing.T) {
	w, v := theWorld(), NewVerifier(policy())
	token := w.sign(t, "ES256", good(), nil)
	part := strings.Split(token, ".")
	lax := []string{
		token + "=", token + "\n", " " + token, token + ".", "." + token, strings.Replace(token, ".", "=.", 1), part[0] + "." + part[1],
		part[0] + ".." + part[2], part[0] + "." + part[1] + ".", part[0][:4] + "\n" + part[0][4:] + "." + part[1] + "." + part[2],
		strings.ReplaceAll(strings.ReplaceAll(token, "-", "+"), "_", "/") + "+", strings.Repeat("a", MaxToken+1),
	}
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	last := strings.IndexByte(alphabet, token[len(token)-1]) // 64 bytes leave 4 unused bits in the last character
	for i := 1; i < 16; i++ {
		lax = append(lax, token[:len(token)-1]+string(alphabet[last^i]))
	}
	for _, l := range lax {
		if r := v.Verify(l, w.keys, now); r.Reason != reason.TokenInvalid {
			t.Errorf("%q: %v", l, r.Reason)
		}
	}
}

func TestUnknownKidIsReportedOnlyForAnOtherwiseGoodToken(t *testing.T) {
	w, v := theWorld(), NewVerifier(policy())
	stranger := func(claims any) string {
		k := w.signers["ES256"]
		k.Key = jose.JSONWebKey{Key: k.Key.(jose.JSONWebKey).Key, KeyID: "rotated"}
		return (&world{signers: map[string]jose.SigningKey{"k": k}}).sign(t, "k", claims, nil)
	}
	if r := v.Verify(stranger(good()), w.keys, now); !r.UnknownKey || r.Reason != reason.TokenInvalid {
		t.Errorf("good token of an unknown key: %+v", r)
	}
	if r := v.Verify(stranger(claimsWith("iss", "x")), w.keys, now); r.UnknownKey {
		t.Error("a token of another issuer asks for a fetch")
	}
	if r := v.Verify(stranger(claimsWith("exp", 5)), w.keys, now); r.UnknownKey || r.Reason != reason.TokenExpired {
		t.Error("an expired token asks for a fetch")
	}
}

func TestTokenWithoutKidNeedsExactlyOneFittingKey(t *testing.T) {
	w, v := theWorld(), NewVerifier(policy())
	payload, _ := json.Marshal(good())
	token := w.raw(t, `{"alg":"RS256"}`, string(payload))
	if r := v.Verify(token, w.keys, now); r.Reason != reason.None {
		t.Errorf("one RS256 key: %v", r.Reason)
	}
	other, _ := rsa.GenerateKey(rand.Reader, 2048)
	var set jose.JSONWebKeySet
	_ = json.Unmarshal(w.jwks, &set)
	set.Keys = append(set.Keys, jose.JSONWebKey{Key: &other.PublicKey, KeyID: "second"})
	doc, _ := json.Marshal(set)
	two, _, err := ParseKeys(doc)
	if err != nil {
		t.Fatal(err)
	}
	if r := v.Verify(token, two, now); r.Reason != reason.TokenInvalid || r.UnknownKey {
		t.Errorf("two keys that fit: %+v", r)
	}
}

func jwk(k any, kid string, extra string) string {
	b, err := json.Marshal(jose.JSONWebKey{Key: k, KeyID: kid})
	if err != nil {
		panic(err)
	}
	return strings.TrimSuffix(string(b), "}") + extra + "}"
}

func TestKeysThatMustNotVerifyAreLeftOut(t *testing.T) {
	p256, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	second, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	n1024 := new(big.Int).SetBit(big.NewInt(1), 1023, 1)
	n2048 := new(big.Int).SetBit(big.NewInt(1), 2047, 1)
	ok := jwk(&p256.PublicKey, "ok", "")
	for name, bad := range map[string]string{
		"1024 bits":          jwk(&rsa.PublicKey{N: n1024, E: 65537}, "k", ""),
		"exponent 1":         jwk(&rsa.PublicKey{N: n2048, E: 1}, "k", ""),
		"even exponent":      jwk(&rsa.PublicKey{N: n2048, E: 4}, "k", ""),
		"17,000 bits":        jwk(&rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 17000, 1), E: 3}, "k", ""),
		"private":            jwk(second, "k", ""),
		"symmetric":          `{"kty":"oct","kid":"k","k":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}`,
		"use enc":            jwk(&second.PublicKey, "k", `,"use":"enc"`),
		"use is a list":      jwk(&second.PublicKey, "k", `,"use":["sig"]`),
		"key_ops encrypt":    jwk(&second.PublicKey, "k", `,"key_ops":["encrypt"]`),
		"key_ops a string":   jwk(&second.PublicKey, "k", `,"key_ops":"verify"`),
		"alg of another kty": jwk(&second.PublicKey, "k", `,"alg":"RS256"`),
		"alg of encryption":  jwk(&second.PublicKey, "k", `,"alg":"ECDH-ES"`),
		"off the curve":      `{"kty":"EC","crv":"P-256","kid":"k","x":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE","y":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE"}`,
		"unknown kty":        `{"kty":"XX","kid":"k"}`,
		"low order":          `{"kty":"OKP","crv":"Ed25519","kid":"k","x":"` + b64("\x01"+strings.Repeat("\x00", 31)) + `"}`,
		"same kid twice":     jwk(&second.PublicKey, "twice", "") + "," + jwk(&p256.PublicKey, "twice", ""),
		"not an object":      `7`,
	} {
		keys, skipped, err := ParseKeys([]byte(`{"keys":[` + ok + "," + bad + `]}`))
		if err != nil || keys.Len() != 1 || len(skipped) == 0 {
			t.Errorf("%s: %v, skipped %v", name, err, skipped)
		}
		if _, _, err := ParseKeys([]byte(`{"keys":[` + bad + `]}`)); err == nil {
			t.Errorf("%s alone is a key set", name)
		}
	}
	for _, doc := range []string{``, `{}`, `{"keys":{}}`, `{"keys":[]}`, `{"keys":[` + ok + `],"keys":[]}`, `[` + ok + `]`, `{"keys":[` + ok + `]}x`,
		`{"keys":[` + strings.Repeat(ok+",", 64) + ok + `]}`, strings.Repeat(" ", MaxKeySet) + `{"keys":[` + ok + `]}`} {
		if _, _, err := ParseKeys([]byte(doc)); err == nil {
			t.Errorf("%.60q is a key set", doc)
		}
	}
}

// A provider's certificates may be of authorities that x509 doesn't read, such as with negative serial numbers.
func TestWhatCertificatesSayOfAKeyCountsForNothing(t *testing.T) {
	pair, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	plain, _, err := ParseKeys([]byte(`{"keys":[` + jwk(&pair.PublicKey, "k", "") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []string{`,"x5c":["AA=="]`, `,"x5t":"AA"`, `,"x5t#S256":"AA"`, `,"x5u":"file:///x"`, `,"x5c":7`} {
		keys, skipped, err := ParseKeys([]byte(`{"keys":[` + jwk(&pair.PublicKey, "k", more) + `]}`))
		if err != nil || len(skipped) != 0 || keys.Digest() != plain.Digest() {
			t.Errorf("%s: %v, skipped %v", more, err, skipped)
		}
	}
}

func TestEqualKeySetsHaveEqualDigests(t *testing.T) {
	w := theWorld()
	var set jose.JSONWebKeySet
	_ = json.Unmarshal(w.jwks, &set)
	set.Keys[0], set.Keys[3] = set.Keys[3], set.Keys[0]
	set.Keys = append(set.Keys, set.Keys[2])
	doc, _ := json.MarshalIndent(set, "", " ")
	again, skipped, err := ParseKeys(doc)
	if err != nil || again.Digest() != w.keys.Digest() || len(skipped) != 0 {
		t.Errorf("%v %v", err, skipped)
	}
	set.Keys = set.Keys[1:]
	doc, _ = json.Marshal(set)
	if fewer, _, err := ParseKeys(doc); err != nil || fewer.Digest() == w.keys.Digest() {
		t.Error("a key less has the same digest")
	}
}

func TestCacheHoldsUntilExpiryOrAChangeOfPolicyOrKeysAndNeverForAnotherTenant(t *testing.T) {
	w, v, c := theWorld(), NewVerifier(policy()), NewCache(256)
	token := w.sign(t, "ES256", good(), nil)
	r := v.Verify(token, w.keys, now)
	c.Put("acme", v, w.keys, token, r, now)
	b := []byte(token)
	if got, ok := c.Get("acme", NewVerifier(policy()), w.keys, b, now); !ok || got.Identity != r.Identity {
		t.Fatal("not found under an equal policy")
	}
	if _, ok := c.Get("other", v, w.keys, b, now); ok {
		t.Error("found for another tenant")
	}
	p := policy()
	p.Scopes = []string{"admin"}
	if _, ok := c.Get("acme", NewVerifier(p), w.keys, b, now); ok {
		t.Error("found under another policy")
	}
	fewer, _, err := ParseKeys([]byte(`{"keys":[` + jwk(w.signers["ES256"].Key.(jose.JSONWebKey).Key.(*ecdsa.PrivateKey).Public(), "ES256", "") + `]}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := c.Get("acme", v, fewer, b, now); ok {
		t.Error("found after the keys changed")
	}
	if _, ok := c.Get("acme", v, w.keys, b, now.Add(629*time.Second)); !ok {
		t.Error("forgotten before its expiry")
	}
	if _, ok := c.Get("acme", v, w.keys, b, now.Add(630*time.Second)); ok {
		t.Error("found after its expiry")
	}
	c.Put("acme", v, w.keys, "forged", Result{Reason: reason.TokenInvalid}, now)
	if _, ok := c.Get("acme", v, w.keys, []byte("forged"), now); ok {
		t.Error("a refused token is kept")
	}
}

func TestCacheTellsTokensWithOneHashApart(t *testing.T) {
	v, c := NewVerifier(policy()), NewCache(64)
	k := theWorld().keys
	r := Result{Identity: &Identity{Subject: "a", Until: now.Add(time.Hour)}}
	c.Put("acme", v, k, "token-a", r, now)
	for i := range c.sets {
		for j := range c.sets[i] {
			if e := c.sets[i][j].Load(); e != nil {
				forged := *e
				forged.token = "token-b" // as if token-b had hashed to the place and the number of token-a
				c.sets[i][j].Store(&forged)
			}
		}
	}
	if _, ok := c.Get("acme", v, k, []byte("token-a"), now); ok {
		t.Error("an equal hash was enough")
	}
}

func TestCacheIsBounded(t *testing.T) {
	v, c, k := NewVerifier(policy()), NewCache(1<<14), theWorld().keys
	big := strings.Repeat("x", MaxToken-10)
	for i := range 20_000 {
		c.Put("acme", v, k, fmt.Sprint(big, i), Result{Identity: &Identity{Until: now.Add(time.Hour)}}, now)
	}
	if n := c.bytes.Load(); n > maxCacheRAM {
		t.Errorf("%d bytes of tokens are kept", n)
	}
}

func TestHitsDoNotAllocate(t *testing.T) {
	w, v, c := theWorld(), NewVerifier(policy()), NewCache(256)
	token := w.sign(t, "RS256", good(), nil)
	c.Put("acme", v, w.keys, token, v.Verify(token, w.keys, now), now)
	b := []byte(token)
	table, err := NewKeyTable([]snapshot.Consumer{{ID: "acme", APIKeyHashes: []string{HashKey("cg_secret-of-acme-0123456789")}}})
	if err != nil {
		t.Fatal(err)
	}
	key := []byte("cg_secret-of-acme-0123456789")
	if n := testing.AllocsPerRun(1000, func() {
		if _, ok := c.Get("acme", v, w.keys, b, now); !ok {
			t.Fatal("missed")
		}
		if _, ok := table.Find(key); !ok {
			t.Fatal("key not found")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestTheWayAheadOfATokenChangesNothing(t *testing.T) {
	w, v, c := theWorld(), NewVerifier(policy()), NewCache(256)
	token := w.sign(t, "ES256", good(), nil)
	r := v.Verify(token, w.keys, now)
	c.Put("acme", v, w.keys, token, r, now)
	for steps := range 5 {
		known, strange := c.Ahead([]byte(token)), c.Ahead([]byte("strange"))
		for range steps {
			known.Step()
			strange.Step()
		}
		if got, ok := known.Get("acme", v, w.keys, []byte(token), now); !ok || got.Identity != r.Identity {
			t.Errorf("after %d steps the token is not found", steps)
		}
		if _, ok := known.Get("acme", v, w.keys, []byte("strange"), now); ok {
			t.Errorf("after %d steps another token passes for it", steps)
		}
		if _, ok := strange.Get("acme", v, w.keys, []byte("strange"), now); ok {
			t.Errorf("after %d steps a token is found that nobody put there", steps)
		}
	}
	var none Ahead
	if none.Step(); none.Begun() {
		t.Error("the zero way has begun")
	}
}

func TestAPIKeysFindTheirConsumer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var consumers []snapshot.Consumer
		for i := range rapid.IntRange(0, 40).Draw(t, "consumers") {
			c := snapshot.Consumer{ID: fmt.Sprint("c", i)}
			for j := range rapid.IntRange(0, 2).Draw(t, "keys") {
				c.APIKeyHashes = append(c.APIKeyHashes, HashKey(fmt.Sprintf("cg_%d-%d", i, j)))
			}
			consumers = append(consumers, c)
		}
		table, err := NewKeyTable(consumers)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range consumers {
			for j := range c.APIKeyHashes {
				if got, ok := table.Find(fmt.Appendf(nil, "cg_%d-%d", i, j)); !ok || got != i {
					t.Fatalf("key %d of consumer %d belongs to %d, %v", j, i, got, ok)
				}
			}
		}
		for _, bad := range [][]byte{nil, []byte("cg_"), []byte("cg_0-0 "), []byte("CG_0-0"), []byte("0-0"), bytes.Repeat([]byte("cg_"), 100)} {
			if _, ok := table.Find(bad); ok {
				t.Fatalf("%q is a key", bad)
			}
		}
	})
}

func TestMalformedAndSharedKeyHashesAreErrors(t *testing.T) {
	h := HashKey("cg_x")
	for _, bad := range []string{"", "sha256:", h[7:], h + "0", h[:len(h)-1] + "g", "md5:" + h[7:], "sha256:" + strings.Repeat("é", 32)} {
		if _, err := NewKeyTable([]snapshot.Consumer{{ID: "a", APIKeyHashes: []string{bad}}}); err == nil {
			t.Errorf("%q is a hash", bad)
		}
	}
	if _, err := NewKeyTable([]snapshot.Consumer{{ID: "a", APIKeyHashes: []string{h}}, {ID: "b", APIKeyHashes: []string{h}}}); err == nil {
		t.Error("two consumers share a key")
	}
	if _, err := NewKeyTable([]snapshot.Consumer{{ID: "a", APIKeyHashes: []string{h, h}}}); err != nil {
		t.Error(err)
	}
}

func FuzzVerifyNeverAcceptsWhatWasNotSigned(f *testing.F) {
	w, v := theWorld(), NewVerifier(policy())
	signedTokens := map[string]bool{}
	for kid := range w.signers {
		token := w.sign(f, kid, good(), nil)
		signedTokens[token] = true
		f.Add(token)
	}
	f.Add(b64(`{"alg":"none"}`) + "." + b64(`{}`) + ".")
	f.Fuzz(func(t *testing.T, token string) {
		if r := v.Verify(token, w.keys, now); r.Identity != nil && !signedTokens[token] {
			t.Fatalf("accepted %q", token)
		}
	})
}

func FuzzParseKeysKeepsOnlyStrongKeys(f *testing.F) {
	f.Add(theWorld().jwks)
	f.Fuzz(func(t *testing.T, doc []byte) {
		keys, _, err := ParseKeys(doc)
		if err != nil {
			return
		}
		for _, k := range keys.all {
			if _, err := strong(k.public); err != nil || len(k.algs) == 0 {
				t.Fatalf("%v", err)
			}
		}
	})
}

func BenchmarkCacheHit(b *testing.B) {
	w, v, c := theWorld(), NewVerifier(policy()), NewCache(1<<13)
	token := w.sign(b, "RS256", good(), nil)
	c.Put("acme", v, w.keys, token, v.Verify(token, w.keys, now), now)
	raw := []byte(token)
	b.ReportAllocs()
	for b.Loop() {
		c.Get("acme", v, w.keys, raw, now)
	}
}

func BenchmarkVerify(b *testing.B) {
	w, v := theWorld(), NewVerifier(policy())
	for _, kid := range []string{"RS256", "ES256", "EdDSA"} {
		token := w.sign(b, kid, good(), nil)
		b.Run(kid, func(b *testing.B) {
			for b.Loop() {
				v.Verify(token, w.keys, now)
			}
		})
	}
}
