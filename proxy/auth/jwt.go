package auth

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"encoding/json"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	jose "github.com/go-jose/go-jose/v4"

	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Verifier checks tokens under one policy. It is immutable.
type Verifier struct {
	policy snapshot.JWT
	keeps  []string // claims
	algs   []jose.SignatureAlgorithm
	print  [sha256.Size]byte // of the policy's whole content and what is kept; part of every cache key
}

// allowed are the only algorithms there are; a policy can narrow them.
func allowed() []jose.SignatureAlgorithm {
	return []jose.SignatureAlgorithm{
		jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512,
		jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
	}
}

// NewVerifier compiles the JWT policy. An algorithm of the policy that isn't one of ours is left out. What rules ask for later
// of the claims is kept with the identity.
func NewVerifier(p snapshot.JWT, keeps ...string) *Verifier {
	v := &Verifier{policy: p, keeps: keeps, algs: allowed()}
	if len(p.Algorithms) > 0 {
		v.algs = slices.DeleteFunc(v.algs, func(a jose.SignatureAlgorithm) bool { return !slices.Contains(p.Algorithms, string(a)) })
	}
	content, err := json.Marshal(p)
	if err != nil {
		content = nil // a struct of strings and numbers always encodes
	}
	for _, claim := range keeps {
		content = strconv.AppendQuote(content, claim)
	}
	v.print = sha256.Sum256(content)
	return v
}

// Result is what became of a token.
type Result struct {
	// Identity is set when Reason is None, and also with ScopeMissing: the caller is known but not permitted.
	Identity *Identity
	Reason   reason.Reason
	// UnknownKey says that the token is invalid only as far as no key bears its kid: fetching the keys may help.
	UnknownKey bool
	// Forged says that the signature was computed and is wrong.
	Forged bool
}

// Verify checks the token at now: form, claims, then the signature. Everything that costs nothing comes first, so that an
// unknown key is reported only for a token that would otherwise be worth a fetch.
func (v *Verifier) Verify(token string, keys *Keys, now time.Time) Result {
	invalid := Result{Reason: reason.TokenInvalid}
	head, payload, ok := split(token)
	if !ok {
		return invalid
	}
	kid, alg, ok := v.header(head)
	if !ok {
		return invalid
	}
	id, why := v.claims(payload, now)
	if why != reason.None && why != reason.ScopeMissing {
		return Result{Reason: why}
	}
	one, unknown := keys.find(kid, alg)
	if one == nil {
		invalid.UnknownKey = unknown
		return invalid
	}
	if !signed(token, alg, one.public) {
		invalid.Forged = true
		return invalid
	}
	return Result{Identity: id, Reason: why}
}

// split takes a compact JWS (RFC 7515 section 3.1) apart; all three parts are there and strictly encoded.
func split(token string) (header, payload []byte, ok bool) {
	if len(token) > MaxToken || strings.Count(token, ".") != 2 {
		return nil, nil, false
	}
	h, rest, _ := strings.Cut(token, ".")
	p, s, _ := strings.Cut(rest, ".")
	header, okH := decode(h)
	payload, okP := decode(p)
	signature, okS := decode(s)
	return header, payload, okH && okP && okS && len(header) > 0 && len(signature) > 0
}

// header reads the protected header. Keys or certificates that the token brings along, critical extensions, unencoded or
// compressed payloads and other types of tokens are refused; what else is not known is ignored (RFC 7515 section 4).
func (v *Verifier) header(raw []byte) (kid string, alg jose.SignatureAlgorithm, ok bool) {
	m, err := object(raw)
	if err != nil {
		return "", "", false
	}
	for name, val := range m {
		s, isString := val.(string)
		switch name {
		case "alg":
			alg = jose.SignatureAlgorithm(s)
		case "kid":
			kid = s
		case "typ":
			typ := strings.TrimPrefix(strings.ToLower(s), "application/")
			isString = isString && (typ == "jwt" || typ == "at+jwt")
		case "jwk", "jku", "x5u", "x5c", "crit", "b64", "zip", "enc":
			return "", "", false
		default:
			continue
		}
		if !isString || len(s) > maxKID {
			return "", "", false
		}
	}
	if _, present := m["kid"]; present && kid == "" {
		return "", "", false
	}
	return kid, alg, slices.Contains(v.algs, alg)
}

// Claims is what a token with these claims comes to, given that its signature holds.
func (v *Verifier) Claims(claims []byte, now time.Time) Result {
	id, why := v.claims(claims, now)
	return Result{Identity: id, Reason: why}
}

// claims checks the payload (RFC 7519 section 4.1, RFC 9068 section 2.2.3) and makes the identity of it.
func (v *Verifier) claims(raw []byte, now time.Time) (*Identity, reason.Reason) {
	m, err := object(raw)
	if err != nil {
		return nil, reason.TokenInvalid
	}
	id := &Identity{Issuer: v.policy.Issuer}
	if m["iss"] != any(v.policy.Issuer) || !names(m["aud"], v.policy.Audience) || !bind(m, v.policy.IgnoreCnf, v.policy.CertificateBound, id) {
		return nil, reason.TokenInvalid
	}
	if why := times(m, id, v.policy.MaxTokenLifetime, now); why != reason.None {
		return nil, why
	}
	if !who(m, v.policy.ConsumerClaim, id) {
		return nil, reason.TokenInvalid
	}
	id.Claims = claimsOf(m, v.keeps)
	return id, permitted(id, v.policy.Scopes)
}

// times checks exp (required), nbf, iat and the bound on exp − iat, if there is one.
func times(m map[string]any, id *Identity, most time.Duration, now time.Time) reason.Reason {
	exp, hasExp, ok1 := date(m, "exp")
	nbf, hasNbf, ok2 := date(m, "nbf")
	iat, hasIat, ok3 := date(m, "iat")
	if !hasExp || !ok1 || !ok2 || !ok3 {
		return reason.TokenInvalid
	}
	if most > 0 && (!hasIat || exp.Sub(iat) > most || iat.After(now.Add(Skew))) {
		return reason.TokenInvalid
	}
	id.Until = exp.Add(Skew)
	if !now.Before(id.Until) || hasNbf && nbf.After(now.Add(Skew)) {
		return reason.TokenExpired
	}
	return reason.None
}

// forGood is the latest time that is told apart, in 2255: nanoseconds since 1970 end soon after it, and what providers call "never" lies
// beyond.
const forGood = 9e9

// date reads a NumericDate (RFC 7519 section 2) between the years 0 and 9999. One later than forGood is forGood.
func date(m map[string]any, name string) (at time.Time, present, ok bool) {
	v, present := m[name]
	if !present {
		return time.Time{}, false, true
	}
	n, isNumber := v.(json.Number)
	f, err := n.Float64()
	if !isNumber || err != nil || math.IsNaN(f) || f < -62167219200 || f > 253402300799 {
		return time.Time{}, true, false
	}
	whole, part := math.Modf(min(f, forGood))
	return time.Unix(int64(whole), int64(part*1e9)), true, true
}

// text reads an optional string claim; another type is an error.
func text(m map[string]any, name string, into *string) bool {
	v, present := m[name]
	s, ok := v.(string)
	*into = s
	return ok || !present
}

// names says whether aud, a string or an array of strings, contains the audience.
func names(aud any, want string) bool {
	list, ok := strs(aud)
	return ok && slices.Contains(list, want)
}

// scopes reads "scope" (RFC 8693 section 4.2, a list in one string) and "scp" (the same or an array).
func scopes(m map[string]any, id *Identity) bool {
	for _, name := range []string{"scope", "scp"} {
		v, present := m[name]
		if !present {
			continue
		}
		list, ok := strs(v)
		if !ok {
			return false
		}
		for _, s := range list {
			id.Scopes = append(id.Scopes, strings.Fields(s)...)
		}
	}
	return true
}

func strs(v any) ([]string, bool) {
	if s, ok := v.(string); ok {
		return []string{s}, true
	}
	list, ok := v.([]any)
	out := make([]string, 0, len(list))
	for _, e := range list {
		s, isString := e.(string)
		ok = ok && isString
		out = append(out, s)
	}
	return out, ok
}

// signed checks the signature. go-jose takes any salt length for PS*; RFC 7518 section 3.5 permits the hash's length only.
func signed(token string, alg jose.SignatureAlgorithm, public any) bool {
	if strings.HasPrefix(string(alg), "PS") {
		return signedPSS(token, alg, public)
	}
	jws, err := jose.ParseSignedCompact(token, []jose.SignatureAlgorithm{alg})
	if err != nil {
		return false
	}
	_, err = jws.Verify(public)
	return err == nil
}

func signedPSS(token string, alg jose.SignatureAlgorithm, public any) bool {
	key, ok := public.(*rsa.PublicKey)
	dot := strings.LastIndexByte(token, '.')
	hash := map[jose.SignatureAlgorithm]crypto.Hash{jose.PS256: crypto.SHA256, jose.PS384: crypto.SHA384, jose.PS512: crypto.SHA512}[alg]
	signature, decoded := decode(token[dot+1:])
	if !ok || !decoded || hash == 0 {
		return false
	}
	h := hash.New()
	h.Write([]byte(token[:dot]))
	return rsa.VerifyPSS(key, hash, h.Sum(nil), signature, &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash}) == nil
}
