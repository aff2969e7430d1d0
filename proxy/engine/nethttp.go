package engine

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/internal/sockclose"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/handshake"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/relay"
)

// NetHTTP is an engine whose HTTP/1.1 and HTTP/2 are the standard library's, before the same pipeline: the oracle that the
// other engines are compared with, and a switch for the day that one of their codecs fails. HTTP/3 and the listener for
// other proxies are this package's own. It opens tunnels over HTTP/1.1 alone, and refuses what net/http refuses in net/http's
// words.
type NetHTTP struct{ *Engine }

// NewNetHTTP makes an engine for a server.
func NewNetHTTP(s *proxy.Server, o Options) *NetHTTP { return &NetHTTP{New(s, o)} }

// Run serves until ctx ends, then drains, as Engine does. It is called once.
func (n *NetHTTP) Run(ctx context.Context, listeners ...Listener) error {
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	var all errgroup.Group
	var standard sync.WaitGroup
	var rest []Listener
	for _, l := range listeners {
		if l.UDP != nil || l.Via != nil {
			rest = append(rest, l)
			continue
		}
		standard.Add(1)
		all.Go(func() error { defer standard.Done(); defer fail(); return n.serve(ctx, l) })
	}
	release := n.Hold() // tunnels are the engine's, from net/http's connections
	all.Go(func() error { defer release(); standard.Wait(); return nil })
	all.Go(func() error { defer fail(); return n.Engine.Run(ctx, rest...) })
	return all.Wait()
}

// serve runs one listener's server until ctx ends and its exchanges have ended, or the hard stop.
func (n *NetHTTP) serve(ctx context.Context, l Listener) error {
	srv := n.standard(l)
	ended := make(chan error, 1)
	go func() {
		if l.TLS != nil {
			ended <- srv.ServeTLS(metered{l, &n.server.Faults[http2.EnhanceYourCalm]}, "", "")
		} else {
			ended <- srv.Serve(metered{l, &n.server.Faults[http2.EnhanceYourCalm]})
		}
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	n.server.Drain()
	hard, cancel := context.WithTimeout(context.Background(), n.opts.HardStop)
	defer cancel()
	if err := sockclose.Quiesce(l.Listener); err != nil {
		n.opts.Log.Warn("drain: connections that wait may be reset", "error", err)
	}
	time.Sleep(min(relay.DrainAccept, n.opts.HardStop/4))
	_ = l.Close()
	time.Sleep(min(relay.DrainIdle, n.opts.HardStop/2)) // Shutdown would close idle connections at once
	if srv.Shutdown(hard) != nil {
		n.opts.Log.Warn("drain: hard stop", "connections", n.server.Connections.Load(), "in_flight", n.server.InFlight.Load())
		_ = srv.Close()
	}
	<-ended
	return nil
}

func (n *NetHTTP) standard(l Listener) *http.Server {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	var cfg *tls.Config
	if l.TLS != nil {
		cfg = handshake.Asking(l.TLS, n.server.Program, nil)
	}
	return &http.Server{
		Handler: http.HandlerFunc(n.handle), TLSConfig: cfg, Protocols: protocols, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: n.opts.HeaderTime, IdleTimeout: n.opts.Idle, MaxHeaderBytes: http1.MaxHead,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: http2.MaxStreams, MaxReadFrameSize: 16 << 10, MaxReceiveBufferPerStream: http2.StreamWindow,
			MaxReceiveBufferPerConnection: http2.ConnWindow, SendPingTimeout: 30 * time.Second, PingTimeout: 10 * time.Second, WriteByteTimeout: min(30*time.Second, n.opts.TakeTime)},
		ErrorLog:  log.New(io.Discard, "", 0),
		ConnState: n.count,
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			return context.WithValue(ctx, stdKey{}, &stdConn{altSvc: l.AltSvc, conn: nc, peer: remote(nc), old: n.age(time.Now()), meter: meterOf(nc)})
		},
	}
}

func remote(nc net.Conn) netip.Addr {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// count keeps the books of connections, and their bound.
func (n *NetHTTP) count(nc net.Conn, to http.ConnState) {
	switch to {
	case http.StateNew:
		if !n.Room(func() bool { return false }) { // which ones are idle net/http alone knows
			_ = nc.Close()
		}
		n.server.Connections.Add(1)
	case http.StateClosed, http.StateHijacked:
		n.server.Connections.Add(-1)
	}
}

// stdConn is what is known of a connection of net/http.
type stdConn struct {
	altSvc string
	peer   netip.Addr
	old    time.Time // from then on the client is asked to leave
	meter  *meteredConn
	conn   net.Conn
	once   sync.Once
	shown  *auth.Shown // once there was a request
}

// has is what the client of a connection over TLS has shown, nil of another one.
func (c *stdConn) has(s *tls.ConnectionState, serving func() *program.Program) *auth.Shown {
	if s != nil {
		c.once.Do(func() { c.shown = handshake.Shown(*s, c.conn, serving()) })
	}
	return c.shown
}

type stdKey struct{}

// handle runs one exchange.
func (n *NetHTTP) handle(w http.ResponseWriter, r *http.Request) {
	c, s := r.Context().Value(stdKey{}).(*stdConn), n.server
	s.InFlight.Add(1)
	defer s.InFlight.Add(-1)
	x := s.Acquire()
	st := &stdStream{e: n.Engine, x: x, w: w, r: r, ctl: http.NewResponseController(w), start: time.Now(), most: n.opts.TakeTime, meter: c.meter}
	st.meter.earn(stdHead)
	_ = st.ctl.EnableFullDuplex() // HTTP/2 is so anyway
	x.Start, x.Peer, x.PeerText, x.TLS, x.AltSvc, x.Protocol = st.start, c.peer, c.peer.String(), r.TLS != nil, c.altSvc, r.Proto
	if x.Certificates = c.has(r.TLS, s.Program); r.ProtoMajor == 1 {
		x.Protocol = "HTTP/1.1"
	}
	defer func() {
		fault := recover()
		n.caught(fault)
		if fault != nil || st.aborted {
			panic(http.ErrAbortHandler) // the client must not take the answer for whole
		}
	}()
	if err := st.request(); err != nil {
		x.Refuse(headReason(err))
		answer(x, st, false)
	} else {
		// net/http doesn't tell that a length stood beside the chunks, after which the connection must not go on (RFC 9112, section 6.3).
		st.old = s.Leaving() || st.start.After(c.old)
		x.Closing = x.Request.Close || st.old || r.ProtoMajor == 1 && x.Request.Chunked
		drive(x, st)
		if r.ProtoMajor == 1 {
			_ = st.ctl.SetReadDeadline(time.Now().Add(relay.LingerQuiet)) // for what net/http reads behind the answer
		}
	}
	st.settle()
	x.Finish(time.Now())
	s.Release(x)
}
