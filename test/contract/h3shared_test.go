package contract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/test/harness"
	"github.com/cellgate/cellgate/trust"
)

// F8: clients over HTTP/3 come to the address that the nodes of a cell share, and lose no request while nodes come, are replaced and
// go, although the kernel deals their packets out anew each time.
func TestHTTP3OfACellOutlivesItsNodesComingAndGoing(t *testing.T) {
	g := newGateway(t)
	defer g.control()()
	g.publish(1)
	first := harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("version 1", g.shared("/open1"), "", 200, 10*time.Second)

	var clients sync.WaitGroup
	var stop atomic.Bool
	var asked [8]atomic.Int64
	for i := range asked {
		clients.Go(func() {
			tr := &http3.Transport{TLSClientConfig: g.client.Transport.(*http.Transport).TLSClientConfig.Clone()}
			defer tr.Close()
			for !stop.Load() {
				if err := askOver(tr, "https://"+g.boot.SharedHTTPS.String()+"/open1"); err != nil && !ownEnd(err) {
					t.Errorf("client %d, request %d: %v", i, asked[i].Load(), err)
					return
				}
				asked[i].Add(1)
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	goOn := func(what string) {
		t.Helper()
		for i := range asked {
			n := asked[i].Load()
			harness.Eventually(t, 10*time.Second, fmt.Sprintf("client %d to go on once %s", i, what), func() bool { return asked[i].Load() > n+3 })
		}
	}
	goOn("there is one node")
	for i := range 2 {
		second, admin := g.sibling("eu-west/a/2", i)
		other := harness.Start(t, "proxy", "serve", "--bootstrap", second)
		g.becomes("the sibling to be ready", admin, "admin-token", 200, 10*time.Second)
		goOn("a sibling came")
		next := harness.Start(t, "proxy", "serve", "--bootstrap", g.file, "--takeover")
		if r := first.Wait(20 * time.Second); r.Code != 0 {
			t.Fatalf("exit %d", r.Code)
		}
		first = next
		goOn("a node was replaced")
		if r := other.Stop(20 * time.Second); r.Code != 0 {
			t.Errorf("SIGTERM: exit %d", r.Code)
		}
		goOn("the sibling went")
	}
	stop.Store(true)
	clients.Wait()
}

// sibling makes the bootstrap file of another node of the cell, and says where it is asked whether it is ready.
func (g *gateway) sibling(id cells.NodeID, n int) (file, ready string) {
	b := g.boot
	cert, key := g.issue(trust.RoleProxy, id, "api.gw.test")
	b.ID, b.DataDir, b.AccessLog = id, filepath.Join(g.dir, fmt.Sprint("data", n)), filepath.Join(g.dir, fmt.Sprint("access", n, ".log"))
	b.Identity = map[string]string{"cert": cert, "key": key, "ca": filepath.Join(g.dir, "ca.pem")}
	b.OwnHTTP, b.OwnHTTPS, b.Admin = netip.MustParseAddrPort(harness.FreeAddr(g.t)), netip.MustParseAddrPort(harness.FreeAddr(g.t)), netip.MustParseAddrPort(harness.FreeAddr(g.t))
	return g.write(fmt.Sprint("sibling", n, ".json"), b.encode()), "https://" + b.Admin.String() + "/readyz"
}

// ownEnd says whether it was this client that ended the connection, without a fault: having been told to leave, quic-go's does so
// when it knows of no request under way, though one may just have been given to it.
func ownEnd(err error) bool {
	var end *http3.Error
	return errors.As(err, &end) && !end.Remote && end.ErrorCode == http3.ErrCodeNoError
}

// askOver sends a request that may not be repeated.
func askOver(rt http.RoundTripper, url string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "POST", url, http.NoBody)
	req.Host = "api.gw.test"
	res, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
		return fmt.Errorf("%s, %w", res.Status, err)
	}
	return nil
}
