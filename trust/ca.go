package trust

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"time"
)

const (
	// caLife is how long a new CA is valid; leaf certificates never outlive it.
	caLife = 10 * 365 * 24 * time.Hour
	// backdate is how far behind the issuer's clock a verifier's may be.
	backdate = time.Hour
)

// CA issues the certificates of one world. Its key never leaves the machine that starts the world.
type CA struct {
	world string
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
}

// NewCA makes a CA for the trust domain world, such as "gw.test". Its own URI SAN is spiffe://<world>.
func NewCA(world string, now time.Time) (*CA, error) {
	uri := &url.URL{Scheme: "spiffe", Host: world}
	if parsed, err := url.Parse(uri.String()); err != nil || world == "" || parsed.Host != world || parsed.Hostname() != world {
		return nil, fmt.Errorf("trust: %q is no trust domain", world)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("trust: CA key: %w", err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "cellgate internal CA", Organization: []string{world}},
		URIs:                  []*url.URL{uri},
		NotBefore:             now.Add(-backdate),
		NotAfter:              now.Add(caLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		MaxPathLenZero:        true,
	}
	cert, err := sign(template, template, key, key)
	if err != nil {
		return nil, err
	}
	return &CA{world: world, cert: cert, key: key}, nil
}

// LoadCA reads what CertPEM and KeyPEM wrote.
func LoadCA(certPEM, keyPEM []byte) (*CA, error) {
	cert, err := parseCert(certPEM)
	if err != nil {
		return nil, err
	}
	key, err := parseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	world, err := rootWorld(cert)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("trust: the CA's key does not belong to its certificate")
	}
	return &CA{world: world, cert: cert, key: key}, nil
}

// World is the trust domain of the CA.
func (c *CA) World() string { return c.world }

// CertPEM is the root certificate that every process of the world trusts.
func (c *CA) CertPEM() []byte { return encodeCert(c.cert.Raw) }

// KeyPEM is the CA's private key, for a file that only its owner reads.
func (c *CA) KeyPEM() ([]byte, error) { return encodeKey(c.key) }

// Issue makes a key and a certificate for the identity, valid from now for life. The subject's common name is the role,
// which is what etcd can tell its clients apart by; everything of ours goes by the URI SAN alone.
func (c *CA) Issue(id Identity, ips []netip.Addr, names []string, now time.Time, life time.Duration) (certPEM, keyPEM []byte, err error) {
	if id.World != c.world {
		return nil, nil, fmt.Errorf("trust: the CA of %q issues nothing for world %q", c.world, id.World)
	}
	uri := id.URI()
	if back, err := url.Parse(uri.String()); err != nil {
		return nil, nil, fmt.Errorf("trust: identity %s: %w", id, err)
	} else if parsed, err := ParseIdentity(back); err != nil || parsed != id {
		return nil, nil, fmt.Errorf("trust: %q is no identity", id)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("trust: key of %s: %w", id, err)
	}
	expires := now.Add(life)
	if expires.After(c.cert.NotAfter) {
		expires = c.cert.NotAfter
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: string(id.Role), Organization: []string{id.World}},
		URIs:                  []*url.URL{uri},
		DNSNames:              names,
		IPAddresses:           toIPs(ips),
		NotBefore:             now.Add(-backdate),
		NotAfter:              expires,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	cert, err := sign(template, c.cert, key, c.key)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = encodeKey(key)
	return encodeCert(cert.Raw), keyPEM, err
}

// sign gives the template a random serial number and signs it for the holder of key.
func sign(template, parent *x509.Certificate, key, parentKey *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("trust: serial number: %w", err)
	}
	template.SerialNumber = serial.Add(serial, big.NewInt(1))
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, parentKey)
	if err != nil {
		return nil, fmt.Errorf("trust: certificate: %w", err)
	}
	return x509.ParseCertificate(der)
}

func toIPs(addrs []netip.Addr) []net.IP {
	var ips []net.IP
	for _, a := range addrs {
		ips = append(ips, a.AsSlice())
	}
	return ips
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("trust: private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func parseCert(raw []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("trust: no PEM certificate")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("trust: certificate: %w", err)
	}
	return cert, nil
}

func parseKey(raw []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(raw)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("trust: no PEM private key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("trust: private key: %w", err)
	}
	ec, ok := key.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("trust: the private key is not ECDSA P-256")
	}
	return ec, nil
}
