package identity

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/snapshot"
)

func pkcs8(t testing.TB, key any) string {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

func keysOf(t testing.TB) map[string]string {
	t.Helper()
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ec, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"EdDSA": pkcs8(t, ed), "ES256": pkcs8(t, ec)}
}

func TestTokensSayWhoCallsAndVerifyByThePublicKey(t *testing.T) {
	now := time.Unix(1_800_000_000, 5e8)
	facts := &auth.Identity{ClientID: "app", Scopes: []string{"read", "write"}, Until: now.Add(time.Hour)}
	short := &auth.Identity{Until: now.Add(20 * time.Second)}
	for alg, file := range keysOf(t) {
		s, err := ParseSigner([]byte(file))
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range []struct {
			told Told
			want string
		}{
			{Told{User: "alice", Consumer: "acme", Issuer: "https://id", Facts: facts}, `{"iss":"gw","aud":"orders","sub":"alice","iat":1800000000,"exp":1800000060,"tenant":"shop","user":"alice","caller_iss":"https://id","consumer":"acme","client_id":"app","scope":"read write"}`},
			{Told{Consumer: "acme"}, `{"iss":"gw","aud":"orders","sub":"acme","iat":1800000000,"exp":1800000060,"tenant":"shop","consumer":"acme"}`},
			{Told{User: "a\"\x00<b>", Facts: short}, `{"iss":"gw","aud":"orders","sub":"a\"\u0000\u003cb\u003e","iat":1800000000,"exp":1800000020,"tenant":"shop","user":"a\"\u0000\u003cb\u003e"}`},
			{Told{User: "ünal"}, `{"iss":"gw","aud":"orders","sub":"ünal","iat":1800000000,"exp":1800000060,"tenant":"shop","user":"ünal"}`},
		} {
			token, until, err := s.Sign("k-1", "gw", "orders", "shop", c.told, now, rand.Reader)
			if err != nil || until.Sub(now) > TokenLife {
				t.Fatal(until, err)
			}
			signed, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{jose.SignatureAlgorithm(alg)})
			if err != nil {
				t.Fatal(err)
			}
			var key jose.JSONWebKey
			if err := key.UnmarshalJSON(s.AppendJWK(nil, "k-1")); err != nil || !key.IsPublic() || key.KeyID != "k-1" || key.Algorithm != alg || key.Use != "sig" {
				t.Fatalf("%+v %v", key, err)
			}
			got, err := signed.Verify(key)
			if h := signed.Signatures[0].Header; err != nil || string(got) != c.want || h.KeyID != "k-1" || h.ExtraHeaders["typ"] != TokenType {
				t.Errorf("%s %d: %v %s %+v", alg, i, err, got, h)
			}
			changed := []byte(token)
			changed[strings.IndexByte(token, '.')+5] ^= 1
			if bad, err := jose.ParseSignedCompact(string(changed), []jose.SignatureAlgorithm{jose.SignatureAlgorithm(alg)}); err == nil {
				if _, err := bad.Verify(key); err == nil {
					t.Error("a changed token verifies")
				}
			}
			set := fmt.Sprintf(`{"keys":[%s]}`, s.AppendJWK(nil, "k-1"))
			keys, _, err := auth.ParseKeys([]byte(set))
			if err != nil {
				t.Fatal(err)
			}
			v := auth.NewVerifier(snapshot.JWT{Issuer: "gw", Audience: "orders"})
			if r := v.Verify(token, keys, now); r.Identity != nil {
				t.Error("the token is good as a bearer token of a jwt policy: its type is another one")
			}
		}
	}
}

// Two callers must not become one.
func TestWhoCannotBeNamedHasNoToken(t *testing.T) {
	s := mustSigner(t, keysOf(t)["EdDSA"])
	for _, told := range []Told{{User: "a\xff"}, {Consumer: "a\xff"}, {User: "a", Issuer: "\xff"}, {User: "a", Facts: &auth.Identity{ClientID: "\xff"}}, {User: "a", Facts: &auth.Identity{Scopes: []string{"b", "\xff"}}}} {
		if token, _, err := s.Sign("k", "gw", "orders", "shop", told, time.Unix(1e9, 0), rand.Reader); err == nil || token != "" {
			t.Errorf("%+v: %q %v", told, token, err)
		}
	}
}

func TestWhatIsNoPrivateKeyIsRefusedAndNotTold(t *testing.T) {
	weak, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	other, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	good := keysOf(t)["ES256"]
	public, _ := x509.MarshalPKIXPublicKey(&other.PublicKey)
	for what, text := range map[string]string{
		"empty": "", "no PEM": "secret", "RSA": pkcs8(t, weak), "P-384": pkcs8(t, other), "two": good + good, "more": good + "secret",
		"public":  string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})),
		"damaged": string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("secret")})),
	} {
		if _, err := ParseSigner([]byte(text)); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := ParseSigner([]byte(good + "\n")); err != nil {
		t.Error(err)
	}
	if !json.Valid(mustSigner(t, good).AppendJWK(nil, "a")) {
		t.Error("no JSON")
	}
}

func mustSigner(t testing.TB, file string) *Signer {
	t.Helper()
	s, err := ParseSigner([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func BenchmarkSign(b *testing.B) {
	for alg, file := range keysOf(b) {
		b.Run(alg, func(b *testing.B) {
			s := mustSigner(b, file)
			for b.Loop() {
				if _, _, err := s.Sign("k", "gw", "orders", "shop", Told{User: "alice"}, time.Unix(1e9, 0), rand.Reader); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
