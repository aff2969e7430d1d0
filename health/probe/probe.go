// Package probe looks at cells as clients do: through their front doors, with a new connection each time, certificates
// verified. Nodes of the prober's own region are looked at by their own addresses too.
package probe

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"reflect"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/report"
)

// ReadyPath is the data ports' own readiness answer.
const ReadyPath = "/.well-known/cellgate/ready"

// Options say what to look at. From, Topology, Host, Roots and Send are required.
type Options struct {
	From     cells.RegionID
	Topology cells.Topology
	// DoorsOnly leaves the nodes of the own region to other probers.
	DoorsOnly bool
	// Host is asked for by SNI and Host header, Path by the request line; empty Path = ReadyPath.
	Host, Path string
	Roots      *x509.CertPool
	// Every is the interval of one target, ± 10%, and of Send; 0 = 1 s. Limit bounds one look; 0 = 1 s.
	Every, Limit time.Duration
	// Send gets the newest look at every target, so that a lost message costs nothing. A look that has not been renewed in
	// time is left out. It must not block.
	Send func([]report.Probe)
	// Log gets changes of what is seen; nil = none.
	Log *slog.Logger
}

// Prober looks at every target of its topology until Run ends.
type Prober struct {
	opt     Options
	changed chan cells.Topology // capacity 1, newest wins

	mu    sync.Mutex
	seen  map[target]*sight
	total map[bool]uint64 // looks by outcome
}

// target is one thing to look at. Node is empty for a cell's front door.
type target struct {
	cell        cells.CellID
	node        cells.NodeID
	https, http netip.AddrPort // the zero value is not asked
}

// sight is the newest look at a target.
type sight struct {
	probe report.Probe
	ended time.Time
}

// New gives a prober that does nothing until Run.
func New(opt Options) *Prober {
	if opt.Path == "" {
		opt.Path = ReadyPath
	}
	if opt.Every <= 0 {
		opt.Every = time.Second
	}
	if opt.Limit <= 0 {
		opt.Limit = time.Second
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Prober{opt: opt, changed: make(chan cells.Topology, 1), seen: map[target]*sight{}, total: map[bool]uint64{}}
}

// SetTopology replaces what is looked at.
func (p *Prober) SetTopology(t cells.Topology) {
	for {
		select {
		case p.changed <- t:
			return
		default:
		}
		select {
		case <-p.changed:
		default:
		}
	}
}

// Run looks until ctx ends, then returns nil.
func (p *Prober) Run(ctx context.Context) error {
	topology := p.opt.Topology
	for ctx.Err() == nil {
		targets := p.targets(topology)
		p.forget(targets)
		generation, stop := context.WithCancel(ctx)
		var all sync.WaitGroup
		for _, t := range targets {
			all.Go(func() { p.follow(generation, t) })
		}
		all.Go(func() { p.tell(generation) })
		topology = p.await(ctx, topology)
		stop()
		all.Wait()
	}
	return nil
}

// await gives the next topology that differs from the present one, or the present one when ctx ends.
func (p *Prober) await(ctx context.Context, present cells.Topology) cells.Topology {
	for {
		select {
		case <-ctx.Done():
			return present
		case next := <-p.changed:
			if !reflect.DeepEqual(next, present) {
				return next
			}
		}
	}
}

// targets are all front doors, and the nodes of the own region. A node is asked over plain HTTP where its cell has it:
// the handshake was proven at the front door, and costs most of a look.
func (p *Prober) targets(topology cells.Topology) []target {
	var list []target
	for _, c := range topology.Cells() {
		for _, a := range c.Addresses[:min(len(c.Addresses), 1)] {
			list = append(list, target{cell: c.ID, https: at(a, c.HTTPS), http: at(a, c.HTTP)})
		}
		if c.ID.Region() != p.opt.From || p.opt.DoorsOnly {
			continue
		}
		for _, n := range c.Nodes {
			t := target{cell: c.ID, node: n.ID, http: at(n.Address, c.HTTP)}
			if !t.http.IsValid() {
				t.https = at(n.Address, c.HTTPS)
			}
			list = append(list, t)
		}
	}
	return list
}

func at(a netip.Addr, port uint16) netip.AddrPort {
	if port == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(a, port)
}

func (p *Prober) forget(keep []target) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.seen
	p.seen = make(map[target]*sight, len(keep))
	for _, t := range keep {
		if s := old[t]; s != nil {
			p.seen[t] = s
		}
	}
}

// follow looks at one target at its own pace, so that a slow one delays no other.
func (p *Prober) follow(ctx context.Context, t target) {
	for wait := rand.N(p.opt.Every / 4); pause.For(ctx, wait); {
		began := time.Now()
		err := p.look(ctx, t)
		if ctx.Err() != nil {
			return
		}
		took := time.Since(began)
		p.record(t, err, took)
		wait = max(p.opt.Every*9/10+rand.N(p.opt.Every/5)-took, 0)
	}
}

func (p *Prober) record(t target, err error, took time.Duration) {
	probe := report.Probe{Form: report.Form, From: p.opt.From, Cell: t.cell, Node: t.node, OK: err == nil, Latency: took}
	if err != nil {
		probe.Why = err.Error()
	}
	p.mu.Lock()
	old := p.seen[t]
	p.seen[t] = &sight{probe: probe, ended: time.Now()}
	p.total[probe.OK]++
	p.mu.Unlock()
	if old == nil || old.probe.OK != probe.OK {
		p.opt.Log.Info("a target changed", "cell", t.cell, "node", t.node, "ok", probe.OK, "why", probe.Why)
	}
}

// tell sends once per interval.
func (p *Prober) tell(ctx context.Context) {
	for pause.For(ctx, p.opt.Every) {
		if round := p.round(time.Now()); len(round) > 0 {
			p.opt.Send(round)
		}
	}
}

func (p *Prober) round(now time.Time) []report.Probe {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []report.Probe
	for _, s := range p.seen {
		if now.Sub(s.ended) <= p.opt.Every*3/2+p.opt.Limit {
			list = append(list, s.probe)
		}
	}
	return list
}

// look asks the target's ports at once; all must answer.
func (p *Prober) look(ctx context.Context, t target) error {
	ctx, cancel := context.WithTimeout(ctx, p.opt.Limit)
	defer cancel()
	errs := make([]error, 2)
	var both sync.WaitGroup
	for i, scheme := range []string{"https", "http"} {
		addr := []netip.AddrPort{t.https, t.http}[i]
		if addr.IsValid() {
			both.Go(func() { errs[i] = p.ask(ctx, scheme, addr) })
		}
	}
	both.Wait()
	return joined(errs)
}

// joined says all failures in one line; nil when there is none.
func joined(errs []error) error {
	var all []string
	for _, err := range errs {
		if err != nil {
			all = append(all, err.Error())
		}
	}
	if len(all) == 0 {
		return nil
	}
	return errors.New(strings.Join(all, "; "))
}

// ask makes one request over a new connection.
func (p *Prober) ask(ctx context.Context, scheme string, addr netip.AddrPort) error {
	transport := &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: p.opt.Roots, ServerName: p.opt.Host},
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", addr.String())
		},
	}
	defer transport.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+p.opt.Host+p.opt.Path, nil)
	if err != nil {
		return fmt.Errorf("%s: %w", scheme, err)
	}
	req.Header.Set("User-Agent", "cellgate-probe")
	res, err := transport.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("%s: %s", scheme, words(err))
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, 4<<10)); err != nil {
		return fmt.Errorf("%s: %s", scheme, words(err))
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", scheme, res.StatusCode)
	}
	return nil
}

// words says what failed without the addresses and ports that make each message another.
func words(err error) string {
	var unverified *tls.CertificateVerificationError
	var number syscall.Errno
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded):
		return "no answer in time"
	case errors.As(err, &unverified):
		return "certificate: " + unverified.Err.Error()
	case errors.As(err, &number):
		return number.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed before the answer"
	default:
		return err.Error()
	}
}
