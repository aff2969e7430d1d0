package trust

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync/atomic"
	"time"
)

// Roots are the CAs that a process trusts, all of one world. Reload takes what the file says now. It is safe for
// concurrent use.
type Roots struct {
	world   string
	file    string // empty: they came from memory
	current atomic.Pointer[rootSet]
}

// rootSet is the content of one file of roots. It is immutable.
type rootSet struct {
	raw  []byte
	pool *x509.CertPool
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
	r.file = caFile
	return r, nil
}

// Reload reads the file again. Roots of another world are refused; on an error the old ones stay.
func (r *Roots) Reload(time.Time) (changed bool, err error) {
	if r.file == "" {
		return false, nil
	}
	next, err := LoadRoots(r.file)
	switch {
	case err != nil:
		return false, err
	case bytes.Equal(next.current.Load().raw, r.current.Load().raw):
		return false, nil
	case next.world != r.world:
		return false, fmt.Errorf("trust: %s: the roots are of world %q, this process of %q", r.file, next.world, r.world)
	}
	r.current.Store(next.current.Load())
	return true, nil
}

// World is the trust domain that the roots vouch for.
func (r *Roots) World() string { return r.world }

// check verifies that the certificate chains to the roots at now and that its holder has one of the roles.
// No roles given means that no role is accepted.
func (r *Roots) check(cert *x509.Certificate, now time.Time, usage x509.ExtKeyUsage, roles []Role) (Identity, error) {
	opts := x509.VerifyOptions{Roots: r.current.Load().pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage}}
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
	r, set := &Roots{}, &rootSet{raw, x509.NewCertPool()}
	for rest := raw; len(bytes.TrimSpace(rest)) > 0; {
		block, after := pem.Decode(rest)
		if block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("trust: something other than PEM certificates among the roots")
		}
		rest = after
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
		set.pool.AddCert(cert)
	}
	if r.world == "" {
		return nil, errors.New("trust: no root certificate")
	}
	r.current.Store(set)
	return r, nil
}

// rootWorld reads the trust domain of a CA certificate.
func rootWorld(cert *x509.Certificate) (string, error) {
	if !cert.IsCA || len(cert.URIs) != 1 || cert.URIs[0].Scheme != "spiffe" || cert.URIs[0].Host == "" || cert.URIs[0].Path != "" {
		return "", errors.New("trust: not the certificate of an internal CA")
	}
	return cert.URIs[0].Host, nil
}
