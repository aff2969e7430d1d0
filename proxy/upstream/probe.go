package upstream

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/snapshot"
)

// probes ask every endpoint of a pool whether it is well, each on a connection of its own and beside the bulkhead: what fills
// the pool must not make its endpoints look ill.
type probes struct {
	pool   *Pool
	health snapshot.Health
	ctx    context.Context
	stop   context.CancelFunc
	done   sync.WaitGroup
	begun  int // numbers that are followed; written by: whoever calls cover, one at a time
}

// watch begins to probe, until end.
func (p *Pool) watch(h snapshot.Health) *probes {
	ctx, stop := context.WithCancel(context.Background())
	w := &probes{pool: p, health: h.OrDefault(), ctx: ctx, stop: stop}
	w.cover(p.Set.Len())
	return w
}

// cover begins to follow the numbers below n that aren't followed yet.
func (w *probes) cover(n int) {
	for ; w.begun < n; w.begun++ {
		i := w.begun
		w.done.Go(func() { w.follow(w.ctx, i) })
	}
}

// end stops the probes. A nil one has none.
func (w *probes) end() {
	if w != nil {
		w.stop()
		w.done.Wait()
	}
}

// follow probes one endpoint, from a random moment of the first interval on, so that neither the endpoints of a pool nor the
// nodes of a cell are in step.
func (w *probes) follow(ctx context.Context, endpoint int) {
	v := verdict{down: w.health.Down, up: w.health.Up, isDown: w.pool.Set.Down(endpoint)}
	timer := time.NewTimer(rand.N(w.health.Interval))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if !w.pool.Set.In(endpoint) {
			timer.Reset(w.health.Interval)
			continue
		}
		v.isDown = w.pool.Set.Down(endpoint)
		err := w.ask(ctx, endpoint)
		if ctx.Err() != nil {
			return
		}
		if changed := v.take(err == nil); changed {
			w.pool.Set.Mark(endpoint, v.isDown, time.Now())
			w.pool.opts.log().Info("endpoint of an upstream", "upstream", w.pool.ID, "endpoint", w.pool.names[endpoint], "down", v.isDown, "error", err)
		}
		timer.Reset(w.health.Interval - w.health.Interval/10 + rand.N(w.health.Interval/5+1))
	}
}

// verdict turns the results of probes into down and up, each after so many in a row.
type verdict struct {
	down, up int
	row      int
	isDown   bool
}

// take says whether the verdict has changed.
func (v *verdict) take(ok bool) (changed bool) {
	if ok != v.isDown {
		v.row = 0
		return false
	}
	v.row++
	if v.isDown && v.row < v.up || !v.isDown && v.row < v.down {
		return false
	}
	v.isDown, v.row = !v.isDown, 0
	return true
}

// ask sends one probe. An answer of 200 to 399 is well.
func (w *probes) ask(ctx context.Context, endpoint int) error {
	ctx, cancel := context.WithTimeout(ctx, w.health.Timeout)
	defer cancel()
	c, err := w.dial(ctx, endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	host := w.health.Host
	if host == "" {
		host = w.pool.names[endpoint]
	}
	ask := askOver1
	if w.pool.multi {
		ask = askOver2
	}
	status, err := ask(c, w.pool.Scheme(), host, w.health.Path)
	if err == nil && (status < 200 || status > 399) {
		err = fmt.Errorf("upstream: the probe was answered %d", status)
	}
	return err
}

// dial connects for the protocol of the pool's exchanges.
func (w *probes) dial(ctx context.Context, endpoint int) (net.Conn, error) {
	p := w.pool
	if p.multi {
		return p.dialLine(ctx, endpoint, time.Now())
	}
	addr, err := p.Resolve(ctx, endpoint, time.Now())
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr.String())
	if err != nil || p.tls == nil || p.auto && addr.Addr().IsLoopback() {
		return c, err
	}
	cfg := p.tls.Clone()
	cfg.NextProtos = []string{"http/1.1"}
	if cfg.ServerName == "" {
		cfg.ServerName = p.places[endpoint].host
	}
	tc := tls.Client(c, cfg)
	if err := tc.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return tc, nil
}

func askOver1(c net.Conn, _, host, path string) (status int, err error) {
	if _, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: %s\r\nUser-Agent: %s\r\nConnection: close\r\n\r\n", path, host, probeAgent); err != nil {
		return 0, err
	}
	return readStatus(c)
}

const probeAgent = "cellgate-probe"

// askOver2 asks once the endpoint's settings have come.
func askOver2(c net.Conn, scheme, host, path string) (status int, err error) {
	var codec http2.Client
	codec.Start(time.Now(), http2.Times{})
	s := &http2.Stream{Response: new(http1.Response)}
	for in := make([]byte, 2048); ; {
		if codec.Vacant() > 0 && s.ID == 0 {
			codec.Open(s, false)
			codec.PutBlock(func(dst []byte) []byte {
				for _, f := range [...][2]string{{":method", "GET"}, {":scheme", scheme}, {":authority", host}, {":path", path}, {"user-agent", probeAgent}} {
					dst = http2.AppendField(dst, f[0], f[1])
				}
				return dst
			})
			codec.EndHead(s, 0, true)
		}
		if _, err := c.Write(codec.Out(nil)); err != nil {
			return 0, err
		}
		n, err := c.Read(in)
		for b := in[:n]; len(b) > 0 && !s.Answered(); {
			used, _ := codec.Feed(b, nil, time.Now())
			b = b[used:]
		}
		_, failed := codec.Failed()
		switch {
		case s.Answered():
			return s.Response.Status, nil
		case failed || s.Gone():
			return 0, ErrProtocol
		case err != nil:
			return 0, err
		}
	}
}

// readStatus reads until the head of an answer is there, interim ones aside.
func readStatus(c io.Reader) (int, error) {
	var res http1.Response
	var in bytes.Buffer
	piece := make([]byte, 2048)
	for {
		n, err := res.Parse(in.Bytes())
		switch {
		case err != nil:
			return 0, err
		case n > 0 && res.Status >= 200:
			return res.Status, nil
		case n > 0:
			in.Next(n)
			res.Restart()
			continue
		}
		got, err := c.Read(piece)
		if got == 0 && err != nil {
			return 0, err
		}
		in.Write(piece[:got])
	}
}
