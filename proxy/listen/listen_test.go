package listen

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestExclusiveSocketsAreExclusiveAndSharedOnesShared(t *testing.T) {
	a, err := TCP(t.Context(), "127.22.2.1:0", false)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	for _, shared := range []bool{false, true} {
		if _, err := TCP(t.Context(), a.Addr().String(), shared); err == nil || !strings.HasSuffix(err.Error(), "address in use") {
			t.Errorf("shared=%v: %v", shared, err)
		}
	}
	b, err := TCP(t.Context(), "127.22.2.1:0", true)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	c, err := TCP(t.Context(), b.Addr().String(), true)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := TCP(t.Context(), b.Addr().String(), false); err == nil {
		t.Error("an exclusive bind joined a shared address")
	}
}

func write(t *testing.T, cert, key string, serial int64) {
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), DNSNames: []string{"a"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, _ := x509.MarshalPKCS8PrivateKey(k)
	for file, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestReloadedCertificateIsServedAndABadOneIsNot(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	write(t, cert, key, 1)
	c, err := LoadCertificate(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	cfg := c.Config()
	serial := func() int64 {
		pair, err := cfg.GetCertificate(&tls.ClientHelloInfo{ServerName: "any"})
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.SerialNumber.Int64()
	}
	write(t, cert, key, 2)
	if serial() != 1 {
		t.Fatal("replaced without being asked")
	}
	if changed, err := c.Reload(time.Now()); !changed || err != nil || serial() != 2 {
		t.Fatal(err, serial())
	}
	if err := os.WriteFile(cert, []byte("none"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Reload(time.Now()); err == nil || serial() != 2 {
		t.Fatal("a bad certificate was taken")
	}
	if _, err := LoadCertificate(cert, key); err == nil {
		t.Fatal("a bad certificate was loaded")
	}
}
