package auth

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Bounds of what a client may show. MaxShown is in bytes of all its certificates, and for those who shake hands to hold.
const (
	MaxShown      = 16 << 10
	maxChain      = 8
	maxAltNames   = 100
	knownVerdicts = 8
)

// Shown is what the client of a TLS connection has shown of itself: certificates of whose first it has proved to hold the key. What
// policies make of it is remembered with it, so that it is worked out once a connection.
type Shown struct {
	// Trust names the set of authorities that the handshake has asked for certificates of; empty = it has asked for none.
	Trust string

	chain []*x509.Certificate
	sum   string                    // SHA-256 of the first one
	known atomic.Pointer[[]verdict] // replaced, never changed
}

// verdict is what a policy makes of it, until a certificate begins or ends to be valid.
type verdict struct {
	policy string
	lists  []*Revocations
	result Result
	until  time.Time // exclusive; zero = for good
}

// NewShown takes the client's certificates as they came, and what was asked for.
func NewShown(trust string, chain []*x509.Certificate) *Shown {
	s := &Shown{Trust: trust, chain: chain}
	if len(chain) > 0 {
		sum := sha256.Sum256(chain[0].Raw)
		s.sum = string(sum[:])
	}
	return s
}

// Any says whether there is a certificate. Nil has none.
func (s *Shown) Any() bool { return s != nil && s.sum != "" }

// Proves says whether the caller may use what it has shown: it is bound to no certificate, or to this one (RFC 8705, section 3).
// Who the certificate's authority is, and its time, don't count.
func (s *Shown) Proves(id *Identity) bool { return id.Bound == "" || s.Any() && s.sum == id.Bound }

// Certificates judges clients by the certificates that they show, under one policy. It is immutable.
type Certificates struct {
	roots    *x509.CertPool
	anchors  []*x509.Certificate
	consumer map[snapshot.CertificateName]string // by the name without its consumer
	spiffe   bool                                // some name is an id
	common   bool                                // some name is a subject's
	lists    bool                                // they are held to revocation lists
	lax      bool                                // one without a list in force is accepted
	print    string
}

// NewCertificates compiles an mtls policy.
func NewCertificates(p snapshot.MTLS) (*Certificates, error) {
	content, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("auth: %w", err)
	}
	sum := sha256.Sum256(content)
	v := &Certificates{roots: x509.NewCertPool(), consumer: map[snapshot.CertificateName]string{}, lists: len(p.CRLFiles) > 0, lax: p.AcceptWithoutCRL, print: string(sum[:])}
	if v.anchors, err = snapshot.Authorities(p.CA); err != nil {
		return nil, fmt.Errorf("auth: ca %w", err)
	}
	for _, c := range v.anchors {
		v.roots.AddCert(c)
	}
	for _, n := range p.Names {
		v.spiffe, v.common = v.spiffe || n.SPIFFE != "", v.common || n.CommonName != ""
		consumer := n.Consumer
		n.Consumer = ""
		v.consumer[n] = consumer
	}
	return v, nil
}

// Judge says whose the connection is, given the files of the policy's revocation lists. Only the first time does it compute signatures,
// and when a file has changed; from then on it doesn't allocate, as long as at most eight policies judge one connection.
func (v *Certificates) Judge(s *Shown, lists []*Revocations, now time.Time) (r Result, known bool) {
	if s == nil || len(s.chain) == 0 {
		return Result{Reason: reason.CertificateMissing}, true
	}
	all := s.known.Load()
	if all != nil {
		for i := range *all {
			if d := &(*all)[i]; d.policy == v.print && slices.Equal(d.lists, lists) && (d.until.IsZero() || now.Before(d.until)) {
				return d.result, true
			}
		}
	}
	result, until := v.judge(s, lists, now)
	d := verdict{v.print, slices.Clone(lists), result, until}
	next := []verdict{d}
	if all != nil {
		for _, old := range (*all)[:min(len(*all), knownVerdicts-1)] {
			if old.policy != v.print {
				next = append(next, old)
			}
		}
	}
	s.known.CompareAndSwap(all, &next) // or another exchange has been quicker
	return d.result, false
}

// judge also says until when the verdict stands; zero = for good.
func (v *Certificates) judge(s *Shown, lists []*Revocations, now time.Time) (r Result, until time.Time) {
	chain, leaf, until := s.chain, s.chain[0], v.change(s.chain, now)
	if len(chain) > maxChain || len(leaf.URIs)+len(leaf.DNSNames)+len(leaf.EmailAddresses)+len(leaf.IPAddresses) > maxAltNames {
		return Result{Reason: reason.CertificateInvalid}, until
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	ways, err := leaf.Verify(x509.VerifyOptions{Roots: v.roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return Result{Reason: reason.CertificateExpired}, until
	case err != nil:
		return Result{Reason: reason.CertificateInvalid}, until
	}
	name, consumer, ok := v.whose(leaf)
	if !ok {
		return Result{Reason: reason.CertificateInvalid}, until
	}
	way := ways[0]
	if v.lists {
		var why reason.Reason
		if way, why, until = v.standing(ways, lists, until, now); way == nil {
			return Result{Reason: why}, until
		}
	}
	return Result{Identity: &Identity{Subject: name, Consumer: consumer, Issuer: way[len(way)-1].Subject.String(), TokenID: "sha256:" + hex.EncodeToString([]byte(s.sum)), Until: leaf.NotAfter}}, until
}

// standing finds a chain in which nothing is revoked, and, unless the policy is lax, all lists are in force; until may come sooner for
// them. That nobody knows whether something is revoked is no word about the client.
func (v *Certificates) standing(ways [][]*x509.Certificate, lists []*Revocations, until, now time.Time) ([]*x509.Certificate, reason.Reason, time.Time) {
	why := reason.CertificateRevoked
	for _, way := range ways {
		s := v.hold(way, lists, now)
		until = sooner(until, s.until, now)
		switch {
		case s.revoked:
		case s.current || v.lax:
			return way, reason.None, until
		default:
			why = reason.AuthUnavailable
		}
	}
	return nil, why, until
}

// whose finds the name that the policy knows. A certificate whose names belong to two consumers is nobody's.
func (v *Certificates) whose(leaf *x509.Certificate) (shown, consumer string, ok bool) {
	for _, n := range v.names(leaf) {
		owner, known := v.owner(n)
		switch {
		case known && ok && owner != consumer:
			return "", "", false
		case known && !ok:
			shown, consumer, ok = n.SPIFFE+n.DNS+n.CommonName, owner, true
		}
	}
	return shown, consumer, ok
}

// names are those of the certificate that a policy may know: what isn't of a name's form is none, whatever bytes it has. A
// certificate with a SPIFFE id has no other URI (X.509-SVID, section 2).
func (v *Certificates) names(leaf *x509.Certificate) (all []snapshot.CertificateName) {
	if v.spiffe && len(leaf.URIs) == 1 {
		if id := leaf.URIs[0].String(); snapshot.SPIFFEID(id) {
			all = append(all, snapshot.CertificateName{SPIFFE: id})
		}
	}
	for _, d := range leaf.DNSNames {
		if d = strings.ToLower(d); len(d) <= 253 && strings.Trim(d, "abcdefghijklmnopqrstuvwxyz0123456789-_.") == "" {
			all = append(all, snapshot.CertificateName{DNS: d})
		}
	}
	if v.common && leaf.Subject.CommonName != "" {
		all = append(all, snapshot.CertificateName{CommonName: leaf.Subject.CommonName})
	}
	return all
}

// owner is the consumer of a name; the name itself comes before a pattern, the longest pattern before others.
func (v *Certificates) owner(n snapshot.CertificateName) (consumer string, known bool) {
	if consumer, known = v.consumer[n]; known {
		return consumer, true
	}
	if _, parent, ok := strings.Cut(n.DNS, "."); ok {
		consumer, known = v.consumer[snapshot.CertificateName{DNS: "*." + parent}]
		return consumer, known
	}
	for id, ok := n.SPIFFE, true; ok && len(id) > len("spiffe://"); id, ok = cutLast(id) {
		if consumer, known = v.consumer[snapshot.CertificateName{SPIFFE: id + "/*"}]; known && id != n.SPIFFE {
			return consumer, true
		}
	}
	return "", false
}

// cutLast takes the last segment off.
func cutLast(id string) (rest string, ok bool) {
	i := strings.LastIndexByte(id, '/')
	return id[:max(i, 0)], i > 0
}

// change is when the verdict may be another one, because something begins or ends to be valid.
func (v *Certificates) change(chain []*x509.Certificate, now time.Time) (at time.Time) {
	for _, list := range [][]*x509.Certificate{chain, v.anchors} {
		for _, c := range list {
			for _, t := range []time.Time{c.NotBefore, c.NotAfter.Add(1)} {
				if t.After(now) && (at.IsZero() || t.Before(at)) {
					at = t
				}
			}
		}
	}
	return at
}
