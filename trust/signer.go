package trust

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// Signer is a process's own identity with the key that proves it. Reload takes a renewed certificate of the same identity
// for what is signed and for handshakes to come. It is safe for concurrent use.
type Signer struct {
	id                Identity
	certFile, keyFile string // empty: it came from memory
	current           atomic.Pointer[credential]
}

// credential is one certificate with its key. It is immutable.
type credential struct {
	id   Identity
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pair tls.Certificate
}

// LoadSigner reads the PEM files of one certificate and its key.
func LoadSigner(certFile, keyFile string) (*Signer, error) {
	c, err := readCredential(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	s := &Signer{id: c.id, certFile: certFile, keyFile: keyFile}
	s.current.Store(c)
	return s, nil
}

// NewSigner is LoadSigner from memory.
func NewSigner(certPEM, keyPEM []byte) (*Signer, error) {
	c, err := newCredential(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	s := &Signer{id: c.id}
	s.current.Store(c)
	return s, nil
}

func readCredential(certFile, keyFile string) (*credential, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	c, err := newCredential(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	return c, nil
}

func newCredential(certPEM, keyPEM []byte) (*credential, error) {
	cert, err := parseCert(certPEM)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("trust: the key does not belong to the certificate")
	}
	id, err := identityOf(cert)
	if err != nil {
		return nil, err
	}
	return &credential{id, cert, key, tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}}, nil
}

// Reload reads the files again. A certificate of somebody else, or one that is over, is refused; on an error the old one
// stays.
func (s *Signer) Reload(now time.Time) (changed bool, err error) {
	if s.certFile == "" {
		return false, nil
	}
	c, err := readCredential(s.certFile, s.keyFile)
	switch {
	case err != nil:
		return false, err
	case bytes.Equal(c.cert.Raw, s.current.Load().cert.Raw):
		return false, nil
	case c.id != s.id:
		return false, fmt.Errorf("trust: %s: the certificate is %s's, this process is %s", s.certFile, c.id, s.id)
	case now.After(c.cert.NotAfter):
		return false, fmt.Errorf("trust: %s: the certificate ended at %s", s.certFile, c.cert.NotAfter.Format(time.RFC3339))
	}
	s.current.Store(c)
	return true, nil
}

// Identity is who the certificate says the process is.
func (s *Signer) Identity() Identity { return s.id }

// Expires is when the certificate ends.
func (s *Signer) Expires() time.Time { return s.current.Load().cert.NotAfter }

// Life is when the certificate began and when it ends.
func (s *Signer) Life() (from, until time.Time) {
	cert := s.current.Load().cert
	return cert.NotBefore, cert.NotAfter
}

func (s *Signer) tlsCertificate() *tls.Certificate { return &s.current.Load().pair }

// identityOf reads the one URI SAN of a certificate.
func identityOf(cert *x509.Certificate) (Identity, error) {
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("trust: a certificate with %d URI SANs names nobody", len(cert.URIs))
	}
	return ParseIdentity(cert.URIs[0])
}
