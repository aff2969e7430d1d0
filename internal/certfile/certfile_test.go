package certfile

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// issue writes a new key with a self-signed certificate of the serial number.
func issue(t *testing.T, cert, key string, serial int64, end time.Time) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: end}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &k.PublicKey, k)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	for file, b := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: raw}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(b), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func serial(t *testing.T, p *Pair) int64 {
	t.Helper()
	c, err := p.Get(&tls.ClientHelloInfo{ServerName: "any"})
	if err != nil {
		t.Fatal(err)
	}
	return c.Leaf.SerialNumber.Int64()
}

func TestARenewedPairIsTakenAndABadOneIsNot(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "c"), filepath.Join(dir, "k")
	now := time.Now()
	issue(t, cert, key, 1, now.Add(time.Hour))
	p, err := Load(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	if changed, err := p.Reload(now); changed || err != nil {
		t.Fatalf("nothing was renewed: %v, %v", changed, err)
	}
	issue(t, cert, key, 2, now.Add(time.Hour))
	if changed, err := p.Reload(now); !changed || err != nil || serial(t, p) != 2 {
		t.Fatalf("%v, %v, serial %d", changed, err, serial(t, p))
	}
	issue(t, cert, filepath.Join(dir, "another"), 3, now.Add(time.Hour)) // its key is not there yet
	if changed, err := p.Reload(now); changed || err == nil || serial(t, p) != 2 {
		t.Fatalf("half a renewal was taken: %v, %v", changed, err)
	}
	issue(t, cert, key, 4, now.Add(-time.Minute))
	if changed, err := p.Reload(now); changed || err == nil || serial(t, p) != 2 {
		t.Fatalf("a certificate that is over was taken: %v, %v", changed, err)
	}
	if _, err := Load(cert, filepath.Join(dir, "none")); err == nil {
		t.Fatal("loaded without a key")
	}
}

// scripted is a file whose looks end as listed.
type scripted struct {
	errs  []error
	looks int
}

func (s *scripted) Reload(time.Time) (bool, error) {
	s.looks++
	err := s.errs[0]
	if len(s.errs) > 1 {
		s.errs = s.errs[1:]
	}
	return err == nil && s.looks == 4, err
}

func TestAFaultIsSaidOnceAndARenewalToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		f := &scripted{errs: []error{errors.New("torn"), errors.New("torn"), errors.New("gone"), nil, nil, errors.New("torn")}}
		ctx, cancel := context.WithTimeout(t.Context(), 7*Every+time.Second)
		defer cancel()
		if err := Follow(ctx, slog.New(slog.NewTextHandler(&log, nil)), map[string]File{"identity": f}); err != nil {
			t.Fatal(err)
		}
		text := log.String()
		if f.looks != 7 || strings.Count(text, "error=torn") != 2 || strings.Count(text, "error=gone") != 1 || strings.Count(text, "renewed") != 1 {
			t.Fatalf("%d looks:\n%s", f.looks, text)
		}
	})
}

// mortal is a file that nobody renews.
type mortal struct{ from, until time.Time }

func (mortal) Reload(time.Time) (bool, error)  { return false, nil }
func (m mortal) Life() (from, until time.Time) { return m.from, m.until }

func TestACertificateThatNobodyRenewsIsAnAlarm(t *testing.T) {
	var log bytes.Buffer
	begin := time.Now()
	files := map[string]File{"identity": mortal{begin, begin.Add(100 * time.Hour)}}
	said := map[string]string{}
	at := func(h int) int {
		look(begin.Add(time.Duration(h)*time.Hour), slog.New(slog.NewTextHandler(&log, nil)), files, said)
		return strings.Count(log.String(), "ALARM")
	}
	for h, want := range map[int]int{1: 0, 79: 0} {
		if got := at(h); got != want {
			t.Errorf("after %d hours: %d alarms", h, got)
		}
	}
	for _, h := range []int{81, 82, 99, 200} {
		if got := at(h); got != 1 {
			t.Errorf("after %d hours: %d alarms", h, got)
		}
	}
	files["identity"] = mortal{begin.Add(99 * time.Hour), begin.Add(199 * time.Hour)}
	if got := at(100); got != 1 {
		t.Errorf("after the renewal: %d alarms", got)
	}
	if got := at(190); got != 2 {
		t.Errorf("at the next end: %d alarms", got)
	}
}
