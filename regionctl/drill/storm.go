package drill

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/internal/load"
	"github.com/cellgate/cellgate/internal/pause"
)

// stormRate is how many connections the storm opens in a second, each with a full handshake; stormClients open them.
const (
	stormRate    = 100
	stormClients = 16
)

func handshakeStorm(ctx context.Context, s *session) error {
	others, err := s.others(ctx)
	if err != nil {
		return err
	}
	requests, err := s.begin(ctx)
	if err != nil {
		return err
	}
	cell := s.at.cells()[0]
	s.result.Target = string(cell.ID)
	s.say("%d clients connect to %s anew for every request", stormClients, cell.ID)
	began := time.Now()
	served, refused := s.storm(ctx, netip.AddrPortFrom(cell.Address, cell.HTTPS), measured)
	ended := time.Now()
	s.figure(least("handshakes in the storm", "", stormRate*measured.Seconds()/4, float64(served)))
	s.figure(most("of them without an answer", "", 0, float64(refused)))
	s.figure(most("requests failed of clients that are connected", "", 0, float64(failed(requests(), func(load.Request) bool { return true }))))
	others.figures(began, ended)
	s.figure(most("DNS answers changed", "", 0, float64(s.watch.changed(began, ended))))
	return ctx.Err()
}

// storm opens connections to a cell for a while, and counts those that were and were not answered.
func (s *session) storm(ctx context.Context, at netip.AddrPort, last time.Duration) (served, refused int64) {
	began := time.Now()
	var good, bad atomic.Int64
	var all sync.WaitGroup
	for i := range stormClients {
		all.Go(func() {
			for next := began.Add(time.Duration(i) * time.Second / stormRate); time.Since(began) < last; next = next.Add(stormClients * time.Second / stormRate) {
				if !pause.For(ctx, time.Until(next)) {
					return
				}
				if s.connect(ctx, at) == http.StatusOK {
					good.Add(1)
				} else if ctx.Err() == nil {
					bad.Add(1)
				}
			}
		})
	}
	all.Wait()
	return good.Load(), bad.Load()
}

// connect makes one connection with a full handshake for one request; 0 when it doesn't come to an answer.
func (s *session) connect(ctx context.Context, at netip.AddrPort) int {
	tr := &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: s.at.Roots, ServerName: s.at.Host},
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, at.String())
		},
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+s.at.Host+readyPath, nil)
	if err != nil {
		return 0
	}
	res, err := (&http.Client{Transport: tr, Timeout: timeout}).Do(req)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}
