package admin

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/trust"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(t *testing.T) Options {
	t.Helper()
	ca, err := trust.NewCA("gw.test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(trust.Identity{World: "gw.test", Role: trust.RoleProber, ID: "e/1"}, []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	opt := Options{Addr: netip.MustParseAddrPort("127.0.0.1:0"), CertFile: write("c.pem", cert), KeyFile: write("k.pem", key)}
	if opt.Signer, err = trust.NewSigner(cert, key); err != nil {
		t.Fatal(err)
	}
	if opt.Roots, err = trust.NewRoots(ca.CertPEM()); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte("secret"))
	opt.TokenHash = "sha256:" + hex.EncodeToString(sum[:])
	return opt
}

func TestListenSaysWhatIsWrong(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	for says, spoil := range map[string]func(*Options){
		"no such file":           func(o *Options) { o.CertFile = "/nowhere" },
		"token hash":             func(o *Options) { o.TokenHash = "secret" },
		"address already in use": func(o *Options) { o.Addr = netip.MustParseAddrPort(busy.Addr().String()) },
	} {
		opt := options(t)
		spoil(&opt)
		if _, err := Listen(opt); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
}

func TestOnlyTheTokenOpens(t *testing.T) {
	opt := options(t)
	ready := errors.New("not attached")
	opt.Ready = func() error { return ready }
	s, err := Listen(opt)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	get := func(path, authorization string) int {
		req, err := http.NewRequest(http.MethodGet, "https://"+s.listener.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", authorization)
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	for _, c := range []struct {
		path, authorization string
		status              int
	}{
		{"/healthz", "Bearer secret", 200}, {"/healthz", "bearer  secret", 200}, {"/readyz", "Bearer secret", 503}, {"/nothing", "Bearer secret", 404},
		{"/healthz", "", 401}, {"/healthz", "Bearer", 401}, {"/healthz", "Bearer secre", 401}, {"/healthz", "Basic secret", 401},
		{"/healthz", "Bearer " + opt.TokenHash, 401}, {"/nothing", "", 401},
	} {
		if got := get(c.path, c.authorization); got != c.status {
			t.Errorf("%s with %q: %d, want %d", c.path, c.authorization, got, c.status)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// Without a token hash nobody gets in by an empty token.
func TestNoTokenHashMeansCertificatesOnly(t *testing.T) {
	s := &Server{}
	for _, v := range []string{"", "Bearer", "Bearer ", "Bearer x"} {
		r := &http.Request{Header: http.Header{"Authorization": {v}}}
		if s.known(r) {
			t.Errorf("%q opens", v)
		}
	}
}
