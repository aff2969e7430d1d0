package listen

import (
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"

	"github.com/cellgate/cellgate/internal/certfile"
)

// Certificate is an edge certificate from files. Reload replaces it for handshakes to come.
type Certificate struct {
	*certfile.Pair
	seed       [32]byte // of the key that was loaded first
	handshakes handshakes
}

// LoadCertificate reads PEM files.
func LoadCertificate(certFile, keyFile string) (*Certificate, error) {
	pair, err := certfile.Load(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	first, _ := pair.Get(nil)
	der, err := x509.MarshalPKCS8PrivateKey(first.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return &Certificate{Pair: pair, seed: sha256.Sum256(der)}, nil
}

// Secret derives a key from the private key (HKDF, RFC 5869): every process that serves this certificate has the same one
// for a purpose, also after a restart. It stays while the process lives, whatever Reload brings.
func (c *Certificate) Secret(purpose string) (key [32]byte) {
	b, err := hkdf.Key(sha256.New, c.seed[:], nil, purpose, len(key))
	if err != nil {
		panic(err) // only for a length that is too large
	}
	copy(key[:], b)
	return key
}

// Config serves this certificate for any name, and counts handshakes: TLS 1.3 and 1.2, HTTP/2 preferred.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: c.Get,
		GetConfigForClient: c.handshakes.begin, VerifyConnection: c.handshakes.done}
}
