package contract

import (
	"crypto/tls"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/denylist"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/test/harness"
	"github.com/cellgate/cellgate/trust"
)

// beside is the bootstrap file of another node of the gateway's cell.
func (g *gateway) beside(id cells.NodeID, change func(*proxyBoot)) (file string, boot proxyBoot) {
	boot = g.boot
	cert, key := g.issue(trust.RoleProxy, id, "api.gw.test")
	addr := func() netip.AddrPort { return netip.MustParseAddrPort(harness.FreeAddr(g.t)) }
	name := strings.ReplaceAll(string(id), "/", "-")
	boot.ID, boot.DataDir = id, filepath.Join(g.dir, name)
	boot.Identity = map[string]string{"cert": cert, "key": key, "ca": filepath.Join(g.dir, "ca.pem")}
	boot.OwnHTTP, boot.OwnHTTPS, boot.Admin, boot.AccessLog = addr(), addr(), addr(), ""
	change(&boot)
	return g.write(name+".json", boot.encode()), boot
}

// The third step of the boot order (C6): with an empty disk and no controller, the cell's own copy.
func TestAnEmptyNodeServesWhatAPeerOrAnObjectStoreHas(t *testing.T) {
	g := newGateway(t)
	g.boot.Peer = netip.MustParseAddrPort(harness.FreeAddr(t))
	g.file = g.write("proxy.json", g.boot.encode())
	stop := g.control()
	g.publish(1)
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("version 1 to be served", g.shared("/open1"), "", 200, 10*time.Second)
	now := time.Now()
	denied := denylist.NewList("eu-west", []denylist.Entry{{Kind: denylist.Route, ID: "keyed", Reason: "x", By: "t", At: now, Expires: now.Add(time.Hour)}}, now)
	raw, _ := json.Marshal(denied)
	envelope, err := g.signer.Sign(trust.KindDenylist, raw)
	if err != nil {
		t.Fatal(err)
	}
	g.board.PostTo("eu-west", fleet.Mail{Kind: fleet.KindDenylist, Envelope: envelope})
	g.becomes("a route to be denied", g.shared("/keyed"), "", 503, 10*time.Second)
	stop() // no controller from here on

	dead := netip.MustParseAddrPort(harness.FreeAddr(t))
	began := time.Now()
	file, boot := g.beside("eu-west/a/2", func(b *proxyBoot) {
		b.Peer, b.Peers = netip.MustParseAddrPort(harness.FreeAddr(t)), []netip.AddrPort{dead, g.boot.Peer}
	})
	second := harness.Start(t, "proxy", "serve", "--bootstrap", file)
	g.becomes("the second node to serve", "http://"+boot.OwnHTTP.String()+"/open1", "", 200, 10*time.Second)
	t.Logf("ready %v after its start", time.Since(began))
	if _, body, _ := g.get("https://"+boot.Admin.String()+"/config", "admin-token"); !strings.Contains(body, `"source":"copy"`) {
		t.Errorf("config: %s", body)
	}
	if status, _, _ := g.get("http://"+boot.OwnHTTP.String()+"/v1/orders", g.token()); status != 200 {
		t.Errorf("a protected route: %d", status)
	}
	if status, body, _ := g.get("http://"+boot.OwnHTTP.String()+"/keyed", ""); status != 503 || !strings.Contains(body, "route_denied") {
		t.Errorf("a route that its peers deny: %d %s", status, body)
	}
	if r := second.Stop(15 * time.Second); r.Code != 0 {
		t.Errorf("SIGTERM: exit %d, %s", r.Code, r.Stderr)
	}

	var seen sync.Map
	store := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen.Store(r.URL.Path, true)
		digest, isBlob := strings.CutPrefix(r.URL.Path, "/copy/blobs/")
		switch {
		case r.URL.Path == "/copy/targets/eu-west":
			_, _ = w.Write(g.target)
		case isBlob && g.blobs[digest] != nil:
			_, _ = w.Write(g.blobs[digest])
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	}))
	defer store.Close()
	file, boot = g.beside("eu-west/a/3", func(b *proxyBoot) {
		b.Peer, b.Peers, b.ObjectStore = netip.AddrPort{}, []netip.AddrPort{dead}, store.URL+"/copy"
	})
	harness.Start(t, "proxy", "serve", "--bootstrap", file)
	g.becomes("the third node to serve", "http://"+boot.OwnHTTP.String()+"/open1", "", 200, 10*time.Second)
	if _, ok := seen.Load("/copy/targets/eu-west"); !ok {
		t.Error("the object store was not asked")
	}
}

func TestThePeerListenerIsForProxiesOfTheWorldAlone(t *testing.T) {
	g := newGateway(t)
	defer g.control()()
	g.publish(1)
	g.boot.Peer = netip.MustParseAddrPort(harness.FreeAddr(t))
	g.file = g.write("proxy.json", g.boot.encode())
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("version 1 to be served", g.shared("/open1"), "", 200, 10*time.Second)
	roots, _ := trust.NewRoots(g.ca.CertPEM())
	ask := func(role trust.Role, id cells.NodeID) int {
		signer, err := trust.LoadSigner(g.issue(role, id))
		if err != nil {
			t.Fatal(err)
		}
		tr := &http.Transport{TLSClientConfig: trust.ClientTLS(signer, roots, trust.RoleProxy), DisableKeepAlives: true}
		tr.TLSClientConfig.NextProtos = []string{"http/1.1"}
		req, _ := http.NewRequest(http.MethodGet, "https://"+g.boot.Peer.String()+"/open1", nil)
		req.Host = "api.gw.test"
		req.Header.Set("X-Forwarded-For", "5.1.1.1")
		req.Header.Set("X-Forwarded-Proto", "https")
		req.Header.Set("X-Request-Id", strings.Repeat("0a", 16))
		resp, err := tr.RoundTrip(req)
		if err != nil {
			return 0
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	for role, want := range map[trust.Role]int{trust.RoleProxy: 200, trust.RoleRouter: 0, trust.RoleController: 0, trust.RoleOperator: 0} {
		if got := ask(role, "us-east/b/1"); got != want {
			t.Errorf("%s: %d, want %d", role, got, want)
		}
	}
	bare := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
	if resp, err := bare.Get("https://" + g.boot.Peer.String() + "/open1"); err == nil {
		t.Errorf("without a certificate: %d", resp.StatusCode)
	}
}

// A renewed certificate is taken by every listener of a running node.
func TestRenewedCertificatesNeedNoRestart(t *testing.T) {
	g := newGateway(t)
	g.boot.Peer = netip.MustParseAddrPort(harness.FreeAddr(t))
	g.file = g.write("proxy.json", g.boot.encode())
	defer g.control()()
	g.publish(1)
	harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("version 1 to be served", g.shared("/open1"), "", 200, 10*time.Second)
	asker, err := trust.LoadSigner(g.issue(trust.RoleProxy, "us-east/b/1"))
	if err != nil {
		t.Fatal(err)
	}
	roots, _ := trust.NewRoots(g.ca.CertPEM())
	serial := func(at netip.AddrPort) string {
		cfg := trust.ClientTLS(asker, roots, trust.RoleProxy)
		cfg.NextProtos = []string{"http/1.1"}
		c, err := tls.DialWithDialer(&net.Dialer{Timeout: 2 * time.Second}, "tcp", at.String(), cfg)
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	listeners := map[string]netip.AddrPort{"peers": g.boot.Peer, "clients": g.boot.SharedHTTPS, "operators": g.boot.Admin}
	before := map[string]string{}
	for name, at := range listeners {
		before[name] = serial(at)
	}
	g.issue(trust.RoleProxy, theNode, "api.gw.test")
	cert, err := trust.LoadSigner(g.boot.Identity["cert"], g.boot.Identity["key"])
	if err != nil || cert.Identity().ID != theNode {
		t.Fatal(err)
	}
	for name, at := range listeners {
		harness.Eventually(t, 20*time.Second, "the renewed certificate at the listener for "+name, func() bool {
			now := serial(at)
			return now != before[name] && len(now) > 20 && !strings.Contains(now, " ")
		})
	}
	if status, _, _ := g.get(g.shared("/open1"), ""); status != 200 {
		t.Errorf("after the renewal: %d", status)
	}
}
