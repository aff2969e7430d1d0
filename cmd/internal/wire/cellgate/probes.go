package cellgate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"syscall"
	"time"
)

// readyPath answers on every listener of a proxy, before routing.
const readyPath = "/.well-known/cellgate/ready"

// accepts says whether something listens at the address.
func accepts(a netip.AddrPort) probe {
	return func(ctx context.Context) error {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", a.String())
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// ask requests a proxy's readiness at its own address, over a connection of its own, and returns the status.
func ask(ctx context.Context, a netip.AddrPort) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+a.String()+readyPath, nil)
	if err != nil {
		return 0, err
	}
	tr := &http.Transport{DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	res, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, _ = io.CopyN(io.Discard, res.Body, 4096)
	return res.StatusCode, nil
}

// readyHTTP says whether the proxy at the address serves.
func readyHTTP(a netip.AddrPort) probe {
	return func(ctx context.Context) error {
		status, err := ask(ctx, a)
		if err == nil && status != http.StatusOK {
			return fmt.Errorf("not ready: status %d", status)
		}
		return err
	}
}

// frontDoor is the health check of the load balancer that a real cell has in front of its proxies.
type frontDoor struct {
	address netip.AddrPort
	refused atomic.Int64 // when connections began to be refused, in Unix nanoseconds; 0 = they are not
}

func newFrontDoor(a netip.AddrPort) *frontDoor { return &frontDoor{address: a} }

// refusedFor is how long a proxy may refuse connections: it has left its shared sockets too and is ending its exchanges.
const refusedFor = 15 * time.Second

// alive fails when the proxy takes connections and doesn't answer. 503 is an answer: the node says itself that it isn't
// ready.
func (f *frontDoor) alive(ctx context.Context) error {
	_, err := ask(ctx, f.address)
	if !errors.Is(err, syscall.ECONNREFUSED) {
		f.refused.Store(0)
		return err
	}
	now := time.Now().UnixNano()
	f.refused.CompareAndSwap(0, now)
	if time.Duration(now-f.refused.Load()) < refusedFor {
		return nil
	}
	return err
}
