package contract

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
	"github.com/cellgate/cellgate/trust"
)

func TestCapacitydShowsHeadroomAndWaitsForAnAbsentAPI(t *testing.T) {
	t.Parallel()
	r := newRealm(t)
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if q.URL.Path != "/v1/status" || q.Header.Get("Authorization") != "Bearer api token" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		_, _ = w.Write([]byte(`{"cells":[{"id":"eu-west/a","state":"active","healthy":true,"rps":406,"limit_rps":1000},
			{"id":"us-east/a","state":"active","healthy":true,"rps":0,"limit_rps":1000}]}`))
	}))
	api.TLS = &tls.Config{Certificates: []tls.Certificate{r.pair(trust.RoleController, "eu-west/1", "localhost")}}
	api.StartTLS()
	defer api.Close()
	token := r.write("api.token", []byte("api token\n"))
	admin := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddrPort(harness.FreeAddr(t)).Port())
	file := r.bootstrap(trust.RolePlanner, "world/1", admin, map[string]any{
		"api": []string{"https://127.0.0.1:1", api.URL}, "api_ca": filepath.Join(r.dir, "ca.pem"), "api_token": token,
	})
	d := harness.Start(t, "capacityd", "serve", "--bootstrap", file)
	base := "https://" + admin.String()
	harness.Eventually(t, 10*time.Second, "ready", func() bool { s, _ := r.ask(base+"/readyz", adminToken); return s == 200 })
	if _, body := r.ask(base+"/headroom", adminToken); !strings.Contains(body, `"id":"eu-west/a","limit_rps":1000,"rps":406,"headroom":0.42`) {
		t.Errorf("/headroom: %s", body)
	}
	if _, body := r.ask(base+"/headroom?format=csv", adminToken); !strings.Contains(body, "region,eu-west,1000,406,0.42,true,0\n") {
		t.Errorf("csv: %s", body)
	}
	if _, body := r.ask(base+"/metrics", adminToken); !strings.Contains(body, `cellgate_capacity_headroom_ratio{id="eu-west/a",scope="cell"} 0.42`) {
		t.Errorf("/metrics: %s", body)
	}
	if _, body := r.ask(base+"/history", adminToken); !strings.Contains(body, `"id":"eu-west/a","rps":406`) {
		t.Errorf("/history: %s", body)
	}
	if s, _ := r.ask(base+"/headroom", ""); s != 401 {
		t.Errorf("/headroom without anything: %d", s)
	}
	api.Close()
	d.WaitOutput("waiting for the status of the world", 10*time.Second)
	if s, body := r.ask(base+"/readyz", adminToken); s != 503 || !strings.Contains(body, "refused") {
		t.Errorf("/readyz without an API: %d %s", s, body)
	}
	if strings.Contains(d.Stderr(), "api token") {
		t.Error("the token is in the log")
	}
	if got := d.Stop(5 * time.Second); got.Code != 0 {
		t.Errorf("SIGTERM: exit %d", got.Code)
	}
	if raw, err := os.ReadFile(filepath.Join(r.dir, "history.jsonl")); err != nil || !strings.Contains(string(raw), "eu-west/a") {
		t.Errorf("history on disk: %s %v", raw, err)
	}
}
