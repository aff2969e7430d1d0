package auth

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/snapshot"
)

// Bounds of a key set. A set beyond them is refused whole.
const (
	MaxKeySet = 1 << 20 // bytes of the document
	maxKeys   = 64
	maxKID    = 256

	minRSA, maxRSA = 2048, 8192 // bits
)

// Keys is one provider's key set (RFC 7517). It is immutable, and equal sets have equal digests whatever their spelling.
type Keys struct {
	digest [sha256.Size]byte
	byKID  map[string][]*key
	all    []*key
}

// key is a public key with the algorithms it may verify.
type key struct {
	id     string
	algs   []jose.SignatureAlgorithm
	public any
	print  []byte // RFC 7638
}

// Len is the number of usable keys.
func (k *Keys) Len() int { return len(k.all) }

// Digest names the content of the set.
func (k *Keys) Digest() snapshot.Digest { return snapshot.Digest(fmt.Sprintf("%x", k.digest)) }

// ParseKeys reads a JWKS document. Keys that can't or mustn't verify signatures are left out and named in skipped:
// symmetric, private, weak or malformed ones, those for other uses, and those that share kid and type with a different key.
// A document without any usable key is an error.
func ParseKeys(document []byte) (keys *Keys, skipped []string, err error) {
	if len(document) > MaxKeySet {
		return nil, nil, fmt.Errorf("auth: key set of %d bytes is larger than %d", len(document), MaxKeySet)
	}
	if _, err := object(document); err != nil {
		return nil, nil, fmt.Errorf("auth: key set: %w", err)
	}
	members := map[string]json.RawMessage{}
	var raws []json.RawMessage
	if json.Unmarshal(document, &members) != nil || json.Unmarshal(members["keys"], &raws) != nil {
		return nil, nil, errors.New("auth: key set: member \"keys\" is not an array")
	}
	if len(raws) > maxKeys {
		return nil, nil, fmt.Errorf("auth: key set has %d keys, more than %d", len(raws), maxKeys)
	}
	k := &Keys{byKID: map[string][]*key{}}
	for i, raw := range raws {
		one, err := parseKey(raw)
		if err != nil {
			skipped = append(skipped, fmt.Sprintf("key %d: %v", i, err))
			continue
		}
		k.all = append(k.all, one)
	}
	skipped = append(skipped, k.distinct()...)
	if len(k.all) == 0 {
		return nil, skipped, errors.New("auth: key set has no usable key: " + strings.Join(skipped, "; "))
	}
	k.index()
	return k, skipped, nil
}

// distinct drops repetitions, and every key whose kid and type name several different keys.
func (k *Keys) distinct() (skipped []string) {
	prints := map[string]map[string]bool{}
	name := func(one *key) string { return fmt.Sprintf("%T %s", one.public, one.id) }
	for _, one := range k.all {
		if prints[name(one)] == nil {
			prints[name(one)] = map[string]bool{}
		}
		prints[name(one)][string(one.print)] = true
	}
	seen := map[string]bool{}
	k.all = slices.DeleteFunc(k.all, func(one *key) bool {
		if one.id != "" && len(prints[name(one)]) > 1 {
			skipped = append(skipped, fmt.Sprintf("kid %q names different keys", one.id))
			return true
		}
		id := name(one) + string(one.print) + fmt.Sprint(one.algs)
		twice := seen[id]
		seen[id] = true
		return twice
	})
	return skipped
}

func (k *Keys) index() {
	slices.SortFunc(k.all, func(a, b *key) int {
		return strings.Compare(a.id+"\x00"+string(a.print), b.id+"\x00"+string(b.print))
	})
	h := sha256.New()
	for _, one := range k.all {
		fmt.Fprintf(h, "%q %x %v\n", one.id, one.print, one.algs)
		k.byKID[one.id] = append(k.byKID[one.id], one)
	}
	h.Sum(k.digest[:0])
}

func parseKey(raw []byte) (*key, error) {
	m, err := object(raw)
	if err != nil {
		return nil, err
	}
	if err := usable(m); err != nil {
		return nil, err
	}
	var j jose.JSONWebKey
	if err := j.UnmarshalJSON(withoutCertificates(m)); err != nil {
		return nil, fmt.Errorf("malformed: %w", err)
	}
	algs, err := strong(j.Key)
	if err != nil {
		return nil, err
	}
	if alg, ok := m["alg"].(string); ok {
		if !slices.Contains(algs, jose.SignatureAlgorithm(alg)) {
			return nil, fmt.Errorf("algorithm %.20q is not one of %v", alg, algs)
		}
		algs = []jose.SignatureAlgorithm{jose.SignatureAlgorithm(alg)}
	}
	print, err := j.Thumbprint(crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("malformed: %w", err)
	}
	return &key{id: j.KeyID, algs: algs, public: j.Key, print: print}, nil
}

// withoutCertificates is the key without what certificates say of it (RFC 7517 sections 4.6 to 4.9), which nobody asks for here: that
// a provider's certificate is not readable, or has no positive serial number, is no fault of its key.
func withoutCertificates(m map[string]any) []byte {
	for _, name := range []string{"x5u", "x5c", "x5t", "x5t#S256"} {
		delete(m, name)
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return nil // what was read as JSON always encodes
	}
	return raw
}

// usable refuses what RFC 7517 sections 4.2 to 4.5 say the key is not for, and published secrets.
func usable(m map[string]any) error {
	for _, name := range []string{"kty", "use", "alg", "kid"} {
		if v, present := m[name]; present {
			if s, ok := v.(string); !ok || len(s) > maxKID {
				return fmt.Errorf("member %q is not a short string", name)
			}
		}
	}
	if m["kty"] == "oct" {
		return errors.New("symmetric keys are not published")
	}
	if _, private := m["d"]; private {
		return errors.New("the private key is published")
	}
	if use, present := m["use"]; present && use != "sig" {
		return fmt.Errorf("its use is %q", use)
	}
	ops, present := m["key_ops"]
	if !present {
		return nil
	}
	list, ok := ops.([]any)
	if !ok || !slices.Contains(list, any("verify")) {
		return errors.New("its key_ops do not include verify")
	}
	return nil
}

// strong gives the algorithms of a public key that is strong enough.
func strong(public any) ([]jose.SignatureAlgorithm, error) {
	switch p := public.(type) {
	case *rsa.PublicKey:
		if n := p.N.BitLen(); n < minRSA || n > maxRSA {
			return nil, fmt.Errorf("RSA key of %d bits is not between %d and %d", n, minRSA, maxRSA)
		}
		if p.E < 3 || p.E%2 == 0 || p.N.Bit(0) == 0 {
			return nil, errors.New("RSA key is malformed")
		}
		return []jose.SignatureAlgorithm{jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512}, nil
	case *ecdsa.PublicKey:
		switch p.Curve.Params().Name {
		case "P-256":
			return []jose.SignatureAlgorithm{jose.ES256}, nil
		case "P-384":
			return []jose.SignatureAlgorithm{jose.ES384}, nil
		case "P-521":
			return []jose.SignatureAlgorithm{jose.ES512}, nil
		}
	case ed25519.PublicKey: // go-jose has refused points of low order
		return []jose.SignatureAlgorithm{jose.EdDSA}, nil
	}
	return nil, fmt.Errorf("a key of type %T verifies no permitted algorithm", public)
}

// find gives the key that the header names. Unknown is true only when no key of the set bears the kid: a key that is there
// but doesn't fit the algorithm is no reason to fetch the set again. Without a kid, the one key that fits is meant.
func (k *Keys) find(kid string, alg jose.SignatureAlgorithm) (found *key, unknown bool) {
	candidates := k.byKID[kid]
	if kid == "" {
		candidates = k.all
	} else if len(candidates) == 0 {
		return nil, true
	}
	for _, one := range candidates {
		if !slices.Contains(one.algs, alg) {
			continue
		}
		if found != nil {
			return nil, false
		}
		found = one
	}
	return found, false
}
