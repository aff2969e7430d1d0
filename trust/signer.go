package trust

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"
)

// Signer is a process's own identity with the key that proves it. It is immutable.
type Signer struct {
	id   Identity
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// LoadSigner reads the PEM files of one certificate and its key.
func LoadSigner(certFile, keyFile string) (*Signer, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, fmt.Errorf("trust: %w", err)
	}
	s, err := NewSigner(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", certFile, err)
	}
	return s, nil
}

// NewSigner is LoadSigner from memory.
func NewSigner(certPEM, keyPEM []byte) (*Signer, error) {
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
	return &Signer{id: id, cert: cert, key: key}, nil
}

// Identity is who the certificate says the process is.
func (s *Signer) Identity() Identity { return s.id }

// Expires is when the certificate ends.
func (s *Signer) Expires() time.Time { return s.cert.NotAfter }

func (s *Signer) tlsCertificate() tls.Certificate {
	return tls.Certificate{Certificate: [][]byte{s.cert.Raw}, PrivateKey: s.key, Leaf: s.cert}
}

// identityOf reads the one URI SAN of a certificate.
func identityOf(cert *x509.Certificate) (Identity, error) {
	if len(cert.URIs) != 1 {
		return Identity{}, fmt.Errorf("trust: a certificate with %d URI SANs names nobody", len(cert.URIs))
	}
	return ParseIdentity(cert.URIs[0])
}
