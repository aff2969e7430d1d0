package auth

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"sync"
	"time"

	"github.com/cellgate/cellgate/snapshot"
)

// MaxRevocations bounds a file of revocation lists, in bytes: some 100,000 certificates.
const MaxRevocations = 4 << 20

// verified bounds the issuers that a list remembers to be signed by. More than one has a list only where they share a name and a key.
const verified = 16

// Revocations are the revocation lists of one file (RFC 5280, section 5). Everything but what is remembered of signatures is immutable.
type Revocations struct {
	lists []*revocationList
}

type revocationList struct {
	*x509.RevocationList
	serials map[string]struct{} // as big-endian bytes

	mu     sync.Mutex
	signed map[[sha256.Size]byte]bool // by the issuer's certificate
}

var (
	errRevocations = errors.New("not certificate revocation lists: DER, or PEM (\"BEGIN X509 CRL\") of 1 to 32")
	errScope       = errors.New("a revocation list with a critical extension (a delta, an indirect list, or one for a part of the certificates), or without nextUpdate")
)

// ParseRevocations reads the lists of a file, DER or PEM. Whose they are is found out when a certificate is judged.
func ParseRevocations(raw []byte) (*Revocations, error) {
	if !bytes.Contains(raw, []byte("-----BEGIN ")) {
		l, err := parseRevocations(raw)
		return &Revocations{[]*revocationList{l}}, err
	}
	blocks, err := snapshot.PEMBlocks(raw)
	if err != nil || len(blocks) > 32 {
		return nil, errRevocations
	}
	r := &Revocations{}
	for _, block := range blocks {
		if block.Type != "X509 CRL" {
			return nil, errRevocations
		}
		l, err := parseRevocations(block.Bytes)
		if err != nil {
			return nil, err
		}
		r.lists = append(r.lists, l)
	}
	return r, nil
}

// parseRevocations refuses what it can't hold a certificate to as a whole: a list that passes over something would let it in.
func parseRevocations(der []byte) (*revocationList, error) {
	l, err := x509.ParseRevocationList(der)
	if err != nil {
		return nil, errRevocations
	}
	for _, e := range l.Extensions {
		if e.Critical {
			return nil, errScope
		}
	}
	if l.NextUpdate.IsZero() {
		return nil, errScope
	}
	held := &x509.RevocationList{RawIssuer: l.RawIssuer, RawTBSRevocationList: l.RawTBSRevocationList, Signature: l.Signature, SignatureAlgorithm: l.SignatureAlgorithm,
		ThisUpdate: l.ThisUpdate, NextUpdate: l.NextUpdate} // without its entries, which take a multiple of their bytes
	out := &revocationList{RevocationList: held, serials: make(map[string]struct{}, len(l.RevokedCertificateEntries)), signed: map[[sha256.Size]byte]bool{}}
	for _, e := range l.RevokedCertificateEntries {
		for _, ext := range e.Extensions {
			if ext.Critical {
				return nil, errScope
			}
		}
		out.serials[string(e.SerialNumber.Bytes())] = struct{}{}
	}
	return out, nil
}

// Ends is when the first of the lists is out of date.
func (r *Revocations) Ends() (at time.Time) {
	for _, l := range r.lists {
		if at.IsZero() || l.NextUpdate.Before(at) {
			at = l.NextUpdate
		}
	}
	return at
}

// by says whether the list is of an authority. The signature of one of some megabytes is worth remembering.
func (l *revocationList) by(issuer *x509.Certificate) bool {
	if !bytes.Equal(l.RawIssuer, issuer.RawSubject) {
		return false
	}
	key := sha256.Sum256(issuer.Raw)
	l.mu.Lock()
	defer l.mu.Unlock()
	good, known := l.signed[key]
	if !known {
		good = l.CheckSignatureFrom(issuer) == nil
		if len(l.signed) < verified {
			l.signed[key] = good
		}
	}
	return good
}

// standing is what lists say of a certificate.
type standing struct {
	revoked bool
	current bool      // some list of its issuer is neither of the future nor out of date
	until   time.Time // when that changes by itself; zero = it doesn't
}

// standingOf holds a certificate to the lists of its issuer. One that is out of date has revoked what it has revoked.
func standingOf(files []*Revocations, c, issuer *x509.Certificate, now time.Time) (s standing) {
	for _, f := range files {
		for _, l := range f.lists {
			if !l.by(issuer) {
				continue
			}
			if _, listed := l.serials[string(c.SerialNumber.Bytes())]; listed {
				return standing{revoked: true}
			}
			begins := l.ThisUpdate.Add(-Skew)
			s.current = s.current || !now.Before(begins) && now.Before(l.NextUpdate)
			for _, t := range []time.Time{begins, l.NextUpdate} {
				s.until = sooner(s.until, t, now)
			}
		}
	}
	return s
}

// sooner is the first one after now; zero = none.
func sooner(at, other, now time.Time) time.Time {
	if other.After(now) && (at.IsZero() || other.Before(at)) {
		return other
	}
	return at
}

// hold goes through a verified chain, from the client's certificate to the authority that is trusted. An authority that isn't its own
// issuer may stand on a list of another one that is trusted too, and need not.
func (v *Certificates) hold(chain []*x509.Certificate, files []*Revocations, now time.Time) (worst standing) {
	worst.current = true
	for i, c := range chain {
		issuers := v.anchors
		if i+1 < len(chain) {
			issuers = chain[i+1 : i+2]
		}
		one := standing{current: i+1 == len(chain)}
		for _, issuer := range issuers {
			if c == issuer || !bytes.Equal(c.RawIssuer, issuer.RawSubject) {
				continue
			}
			s := standingOf(files, c, issuer, now)
			one.revoked, one.current = one.revoked || s.revoked, one.current || s.current
			worst.until = sooner(worst.until, s.until, now)
		}
		worst.revoked, worst.current = worst.revoked || one.revoked, worst.current && one.current
	}
	return worst
}
