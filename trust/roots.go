package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// Roots are the CAs that a process trusts, all of one world. It is immutable.
type Roots struct {
	world string
	pool  *x509.CertPool
}

// LoadRoots reads a PEM file with one or more CA certificates.
func LoadRoots(caFile string) (*Roots, error) {
	raw, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	r, err := NewRoots(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", caFile, err)
	}
	return r, nil
}

// World is the trust domain that the roots vouch for.
func (r *Roots) World() string { return r.world }

// check verifies that the certificate chains to the roots at now and that its holder has one of the roles.
// No roles given means that no role is accepted.
func (r *Roots) check(cert *x509.Certificate, now time.Time, usage x509.ExtKeyUsage, roles []Role) (Identity, error) {
	opts := x509.VerifyOptions{Roots: r.pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}
	if _, err := cert.Verify(opts); err != nil {
		return Identity{}, fmt.Errorf("trust: certificate: %w", err)
	}
	id, err := identityOf(cert)
	if err != nil {
		return Identity{}, err
	}
	if id.World != r.world {
		return Identity{}, fmt.Errorf("trust: %s is not of world %q", id, r.world)
	}
	if !slices.Contains(roles, id.Role) {
		return Identity{}, fmt.Errorf("trust: %s has none of the roles %v", id, roles)
	}
	return id, nil
}

// NewRoots is LoadRoots from memory. Anything in it that is no CA certificate of the same world is an error:
// a file half understood would trust less, or more, than its author thinks.
func NewRoots(raw []byte) (*Roots, error) {
	r := &Roots{pool: x509.NewCertPool()}
	for len(bytes.TrimSpace(raw)) > 0 {
		block, rest := pem.Decode(raw)
		if block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("trust: something other than PEM certificates among the roots")
		}
		raw = rest
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("trust: root: %w", err)
		}
		world, err := rootWorld(cert)
		if err != nil {
			return nil, err
		}
		if r.world != "" && r.world != world {
			return nil, fmt.Errorf("trust: roots of two worlds, %q and %q", r.world, world)
		}
		r.world = world
		r.pool.AddCert(cert)
	}
	if r.world == "" {
		return nil, errors.New("trust: no root certificate")
	}
	return r, nil
}

// rootWorld reads the trust domain of a CA certificate.
func rootWorld(cert *x509.Certificate) (string, error) {
	if !cert.IsCA || len(cert.URIs) != 1 || cert.URIs[0].Scheme != "spiffe" || cert.URIs[0].Host == "" || cert.URIs[0].Path != "" {
		return "", errors.New("trust: not the certificate of an internal CA")
	}
	return cert.URIs[0].Host, nil
}
