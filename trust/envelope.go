package trust

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// The kinds of envelopes; what is signed as one kind is never taken for another.
const (
	KindManifest  = "manifest"  // snapshot.Manifest
	KindTarget    = "target"    // regionctl/rollout.Target
	KindPlan      = "plan"      // globalrouter/steer.Plan
	KindTopology  = "topology"  // cells.Topology
	KindOverrides = "overrides" // []cells.Evacuation
	KindDenylist  = "denylist"  // denylist.List
	KindVerdicts  = "verdicts"  // health.Verdicts
	KindKeys      = "keys"      // apikey.List
)

// MaxPayload bounds what one envelope carries, in bytes.
const MaxPayload = 32 << 20

// Bounds of the other fields.
const (
	maxKind = 64
	maxCert = 8 << 10
	maxSig  = 128
)

// The encoded form, integers big-endian:
//
//	"CGE" form | uint32 n, kind[n] | uint32 n, certificate[n] (DER) | uint32 n, payload[n] | uint32 n, signature[n] (ASN.1)
//
// and nothing after it. The signature is over domain and everything before the signature's length, so that it covers
// the form, the kind and the certificate as well; lengths go before every field, so no two contents look alike.
const (
	envelopeForm = 1
	magic        = "CGE"
	domain       = "cellgate signed envelope\x00"
)

// Sign puts the payload into an envelope of the kind.
func (s *Signer) Sign(kind string, payload []byte) ([]byte, error) {
	own := s.current.Load()
	if kind == "" || len(kind) > maxKind || len(payload) > MaxPayload || len(own.cert.Raw) > maxCert {
		return nil, fmt.Errorf("trust: envelope of kind %q with %d bytes is out of bounds", kind, len(payload))
	}
	b := make([]byte, 0, len(magic)+1+16+len(kind)+len(own.cert.Raw)+len(payload)+maxSig)
	b = append(b, magic...)
	b = append(b, envelopeForm)
	b = appendField(b, []byte(kind))
	b = appendField(b, own.cert.Raw)
	b = appendField(b, payload)
	sig, err := ecdsa.SignASN1(rand.Reader, own.key, digest(b))
	if err != nil {
		return nil, fmt.Errorf("trust: sign %s: %w", kind, err)
	}
	return appendField(b, sig), nil
}

// Verify opens an envelope: it must be of the kind, unchanged, and signed by a holder of one of the roles whose
// certificate chains to the roots at now. The payload shares memory with the envelope.
func (r *Roots) Verify(kind string, envelope []byte, now time.Time, roles ...Role) (payload []byte, by Identity, err error) {
	e, err := parseEnvelope(envelope)
	if err != nil {
		return nil, Identity{}, err
	}
	if e.kind != kind {
		return nil, Identity{}, fmt.Errorf("trust: envelope of kind %q where %q is expected", e.kind, kind)
	}
	cert, err := x509.ParseCertificate(e.cert)
	if err != nil {
		return nil, Identity{}, fmt.Errorf("trust: envelope: certificate: %w", err)
	}
	by, err = r.check(cert, now, x509.ExtKeyUsageAny, roles)
	if err != nil {
		return nil, Identity{}, fmt.Errorf("%s envelope: %w", kind, err)
	}
	key, ok := cert.PublicKey.(*ecdsa.PublicKey)
	if !ok || !ecdsa.VerifyASN1(key, digest(e.signed), e.sig) {
		return nil, Identity{}, fmt.Errorf("trust: the signature on the %s of %s is wrong", kind, by)
	}
	return e.payload, by, nil
}

// VerifyNamed is Verify for an envelope that something trusted names by its digest, such as a manifest by its target: the
// certificate of its signer may have ended since, so it is also taken as of the time at which made says it was made, if
// that is past. An envelope that nothing names must not be taken so: whoever finds an old key could say any time.
func (r *Roots) VerifyNamed(kind string, envelope []byte, now time.Time, made func(payload []byte) time.Time, roles ...Role) (payload []byte, by Identity, err error) {
	payload, by, err = r.Verify(kind, envelope, now, roles...)
	if err == nil {
		return payload, by, nil
	}
	claimed, err2 := Payload(kind, envelope)
	if err2 != nil {
		return nil, Identity{}, err
	}
	if at := made(claimed); at.Before(now) && !at.IsZero() {
		if payload, by, err2 = r.Verify(kind, envelope, at, roles...); err2 == nil {
			return payload, by, nil
		}
	}
	return nil, Identity{}, err
}

// Until is when the certificate of the envelope's signer ends: later, Verify doesn't take it. It is not verified; zero for
// what is no envelope.
func Until(envelope []byte) time.Time {
	e, err := parseEnvelope(envelope)
	if err != nil {
		return time.Time{}
	}
	cert, err := x509.ParseCertificate(e.cert)
	if err != nil {
		return time.Time{}
	}
	return cert.NotAfter
}

// Payload reads an envelope of the kind without verifying who signed it: for a process that reads back what it wrote
// itself or shows it to people. Whoever applies the payload uses Verify.
func Payload(kind string, envelope []byte) ([]byte, error) {
	e, err := parseEnvelope(envelope)
	if err != nil {
		return nil, err
	}
	if e.kind != kind {
		return nil, fmt.Errorf("trust: envelope of kind %q where %q is expected", e.kind, kind)
	}
	return e.payload, nil
}

// parsed is an envelope cut into its fields; all share memory with it.
type parsed struct {
	kind    string
	cert    []byte
	payload []byte
	signed  []byte
	sig     []byte
}

func parseEnvelope(b []byte) (parsed, error) {
	bad := errors.New("trust: not an envelope, or a damaged one")
	if len(b) < len(magic)+1 || string(b[:len(magic)]) != magic {
		return parsed{}, bad
	}
	if form := b[len(magic)]; form != envelopeForm {
		return parsed{}, fmt.Errorf("trust: envelope of form %d is not readable here", form)
	}
	rest := b[len(magic)+1:]
	kind, rest, ok1 := cutField(rest, maxKind)
	cert, rest, ok2 := cutField(rest, maxCert)
	payload, rest, ok3 := cutField(rest, MaxPayload)
	signed := b[:len(b)-len(rest)]
	sig, rest, ok4 := cutField(rest, maxSig)
	if !ok1 || !ok2 || !ok3 || !ok4 || len(rest) != 0 {
		return parsed{}, bad
	}
	return parsed{kind: string(kind), cert: cert, payload: payload, signed: signed, sig: sig}, nil
}

func appendField(b, field []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(len(field)))
	return append(b, field...)
}

func cutField(b []byte, limit int) (field, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, false
	}
	n := int64(binary.BigEndian.Uint32(b))
	if b = b[4:]; n > int64(limit) || n > int64(len(b)) {
		return nil, nil, false
	}
	return b[:n:n], b[n:], true
}

func digest(signed []byte) []byte {
	h := sha256.New()
	h.Write([]byte(domain))
	h.Write(signed)
	return h.Sum(nil)
}
