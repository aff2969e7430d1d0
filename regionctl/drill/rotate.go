package drill

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
)

// rotatedWithin is how long a new key may stay unknown: a node asks its provider once a minute at most (G2).
const rotatedWithin = 62 * time.Second

func keyRotation(ctx context.Context, s *session) error {
	key, set, err := newKey()
	if err != nil {
		return err
	}
	var claims map[string]any
	if err := claimsOf(s.at.Customer, &claims); err != nil {
		return err
	}
	token, err := sign(key, claims)
	if err != nil {
		return err
	}
	forged, err := forge(token)
	if err != nil {
		return err
	}
	answers := func(token string, want int) func(Node) bool {
		return func(n Node) bool {
			return s.ask(ctx, n, s.at.Host, s.at.Path, "Authorization", "Bearer "+token) == want
		}
	}
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	s.later("the identity provider has its own keys alone", func(ctx context.Context) error { return s.world.Keys(ctx, nil) })
	s.say("the identity provider publishes a new key")
	published := time.Now()
	if err := s.world.Keys(ctx, set); err != nil {
		return err
	}
	took := s.untilEverywhere(ctx, published, 2*rotatedWithin, answers(token, 200))
	s.say("tokens of the new key are good at every node after %.2f s", took.Seconds())
	wrong, refused := 0, 0
	for range 8 {
		wrong += len(s.at.nodes()) - s.countNodes(answers(forged, 401))
		refused += len(s.at.nodes()) - s.countNodes(answers(token, 200))
		if !pause.For(ctx, 250*time.Millisecond) {
			return ctx.Err()
		}
	}
	s.figure(most("tokens of the new key are good at every node after", "s", rotatedWithin.Seconds(), took.Seconds()))
	s.figure(most("of them refused after that", "", 0, float64(refused)))
	s.figure(most("made-up tokens of the new key not refused with 401", "", 0, float64(wrong)))
	s.figure(most("requests with tokens of the old key failed", "", 0, float64(failed(requests(), func(load.Request) bool { return true }))))
	s.figure(most("DNS answers changed", "", 0, float64(s.watch.changed(published, time.Now()))))
	return ctx.Err()
}

const newKeyID = "drill"

// newKey is a signing key, and the key set (RFC 7517) that publishes it.
func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	point, err := key.PublicKey.Bytes() // 4, x, y (SEC 1, section 2.3.3)
	if err != nil {
		return nil, nil, err
	}
	set, err := json.Marshal(map[string]any{"keys": []any{map[string]string{
		"kty": "EC", "crv": "P-256", "kid": newKeyID, "alg": "ES256", "use": "sig",
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}}})
	return key, set, err
}

// sign makes an ES256 token (RFC 7518, section 3.4).
func sign(key *ecdsa.PrivateKey, claims map[string]any) (string, error) {
	payload, err := json.Marshal(claims)
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"ES256","kid":"`+newKeyID+`","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(payload)
	sum := sha256.Sum256([]byte(text))
	r, t, err := ecdsa.Sign(rand.Reader, key, sum[:])
	if err != nil {
		return "", err
	}
	var both [64]byte
	r.FillBytes(both[:32])
	t.FillBytes(both[32:])
	return text + "." + base64.RawURLEncoding.EncodeToString(both[:]), nil
}

// claimsOf reads what a JWT says; numbers keep all their digits.
func claimsOf(token string, to any) error {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return errors.New("the world's token is no JWT")
	}
	raw, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		dec := json.NewDecoder(strings.NewReader(string(raw)))
		dec.UseNumber()
		err = dec.Decode(to)
	}
	if err != nil {
		return fmt.Errorf("the world's token is no JWT: %w", err)
	}
	return nil
}
