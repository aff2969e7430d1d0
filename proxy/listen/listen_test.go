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
	"slices"
	"strings"
	"testing"
	"time"
)

// tcp listens through a set of its own, as another process would.
func tcp(t *testing.T, addr string, shared bool, n int) ([]*Socket, error) {
	all, err := new(Sockets).TCP(t.Context(), "http", addr, shared, n)
	t.Cleanup(func() {
		for _, s := range all {
			s.Close()
		}
	})
	return all, err
}

func TestExclusiveSocketsAreExclusiveAndSharedOnesShared(t *testing.T) {
	for n := 1; n < 4; n++ {
		a, err := tcp(t, "127.22.2.1:0", false, n)
		if err != nil || len(a) != n {
			t.Fatalf("%d sockets, %v", len(a), err)
		}
		for _, shared := range []bool{false, true} {
			if _, err := tcp(t, a[n-1].Addr().String(), shared, n); n == 1 && (err == nil || !strings.HasSuffix(err.Error(), "address in use")) {
				t.Errorf("shared=%v: %v", shared, err)
			}
		}
		b, err := tcp(t, "127.22.2.1:0", true, n)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tcp(t, b[0].Addr().String(), true, n); err != nil {
			t.Fatal(err)
		}
		if _, err := tcp(t, b[0].Addr().String(), false, n); err == nil {
			t.Error("an exclusive bind joined a shared address")
		}
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

// G75: a session goes on where it began, and nowhere else: another certificate's listener, with what it may ask of its clients,
// doesn't know its tickets.
func TestTicketsAreGoodForTheirOwnListenerAlone(t *testing.T) {
	dir := t.TempDir()
	at, certs := map[string]string{}, map[string]*Certificate{}
	for i, name := range []string{"a", "b"} {
		cert, key := filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
		write(t, cert, key, int64(i+1))
		c, err := LoadCertificate(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		l, err := tls.Listen("tcp", "127.44.0.1:0", c.Config())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		at[name], certs[name] = l.Addr().String(), c
		go func() {
			for {
				nc, err := l.Accept()
				if err != nil {
					return
				}
				_, _ = nc.Write([]byte("x")) // behind the ticket
				nc.Close()
			}
		}()
	}
	client := &tls.Config{InsecureSkipVerify: true, ServerName: "a", ClientSessionCache: tls.NewLRUClientSessionCache(1)}
	for i, want := range []struct {
		at      string
		resumed bool
	}{{"a", false}, {"a", true}, {"b", false}, {"b", true}, {"a", false}} {
		c, err := tls.Dial("tcp", at[want.at], client)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		if got := c.ConnectionState().DidResume; got != want.resumed {
			t.Errorf("connection %d, to %s: resumed %v", i, want.at, got)
		}
		c.Close()
	}
	if c, err := tls.Dial("tcp", at["a"], &tls.Config{ServerName: "a", MaxVersion: tls.VersionTLS12}); err == nil {
		c.Close()
		t.Error("a client trusts whom it doesn't know")
	}
	begun, ended := certs["a"].Handshakes()
	if want := []Handshakes{{"1.2", false, 0}, {"1.2", true, 0}, {"1.3", false, 2}, {"1.3", true, 1}}; begun != 4 || !slices.Equal(ended, want) {
		t.Errorf("%d handshakes were begun, %v", begun, ended)
	}
}
