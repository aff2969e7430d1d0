// Package testpki makes authorities and certificates for tests.
//
//	ca := testpki.New(t, "Partners")
//	pair := ca.Issue(t, testpki.Leaf{URIs: []string{"spiffe://example.com/orders"}})
package testpki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/url"
	"testing"
	"time"
)

// Authority signs certificates.
type Authority struct {
	PEM  string
	Cert *x509.Certificate
	key  *ecdsa.PrivateKey
	up   [][]byte // the chain of one that isn't a root
}

// Leaf says what differs from a client's certificate that is valid for an hour.
type Leaf struct {
	Name         string
	URIs, DNS    []string
	From, Until  time.Time
	Server, Both bool // for servers, or for both sides, instead of clients
	Extra        []pkix.Extension
}

// New makes a root.
func New(t testing.TB, name string) *Authority {
	a := &Authority{key: key(t)}
	a.sign(t, authority(name), nil)
	return a
}

// Under makes an authority below this one.
func (a *Authority) Under(t testing.TB, name string) *Authority {
	b := &Authority{key: key(t)}
	b.sign(t, authority(name), a)
	b.up = append([][]byte{b.Cert.Raw}, a.up...)
	return b
}

func authority(name string) *x509.Certificate {
	return &x509.Certificate{Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
}

func (a *Authority) sign(t testing.TB, template *x509.Certificate, by *Authority) {
	t.Helper()
	template.SerialNumber = serial(t)
	parent, signer := template, a.key
	if by != nil {
		parent, signer = by.Cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &a.key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if a.Cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.PEM = string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// Issue makes a certificate with its key; the chain up to the root, without that, stands behind it. Leaf is nil where the certificate
// can't be read.
func (a *Authority) Issue(t testing.TB, l Leaf) *tls.Certificate {
	t.Helper()
	c := &x509.Certificate{SerialNumber: serial(t), Subject: pkix.Name{CommonName: l.Name}, DNSNames: l.DNS, NotBefore: l.From, NotAfter: l.Until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, ExtraExtensions: l.Extra}
	if l.From.IsZero() {
		c.NotBefore = time.Now().Add(-time.Hour)
	}
	if l.Until.IsZero() {
		c.NotAfter = time.Now().Add(time.Hour)
	}
	switch {
	case l.Server:
		c.ExtKeyUsage[0] = x509.ExtKeyUsageServerAuth
	case l.Both:
		c.ExtKeyUsage = append(c.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, text := range l.URIs {
		u, err := url.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		c.URIs = append(c.URIs, u)
	}
	k := key(t)
	der, err := x509.CreateCertificate(rand.Reader, c, a.Cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, _ := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: append([][]byte{der}, a.up...), PrivateKey: k, Leaf: leaf}
}

// Revoke makes a list of revoked certificates that is in force until then, as PEM. What is in change is done to it first.
func (a *Authority) Revoke(t testing.TB, until time.Time, change func(*x509.RevocationList), revoked ...*tls.Certificate) string {
	t.Helper()
	l := &x509.RevocationList{Number: serial(t), ThisUpdate: until.Add(-48 * time.Hour), NextUpdate: until}
	for _, c := range revoked {
		l.RevokedCertificateEntries = append(l.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: c.Leaf.SerialNumber, RevocationTime: l.ThisUpdate})
	}
	if change != nil {
		change(l)
	}
	der, err := x509.CreateRevocationList(rand.Reader, l, a.Cert, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}))
}

// Pool has this authority alone.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.Cert)
	return p
}

func key(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func serial(t testing.TB) *big.Int {
	t.Helper()
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
