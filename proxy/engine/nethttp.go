package engine

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/proxy/http2"
)

// NetHTTP is an engine whose HTTP/1.1 and HTTP/2 are the standard library's, before the same pipeline: the oracle that the
// other engines are compared with, and a switch for the day that one of their codecs fails. HTTP/3 and the listener for
// other proxies are this package's own. It opens no tunnels, and refuses what net/http refuses in net/http's words.
type NetHTTP struct{ *Engine }

// NewNetHTTP makes an engine for a server.
func NewNetHTTP(s *proxy.Server, o Options) *NetHTTP { return &NetHTTP{New(s, o)} }

// Run serves until ctx ends, then drains, as Engine does. It is called once.
func (n *NetHTTP) Run(ctx context.Context, listeners ...Listener) error {
	ctx, fail := context.WithCancel(ctx)
	defer fail()
	var all errgroup.Group
	var rest []Listener
	for _, l := range listeners {
		if l.UDP != nil || l.Via != nil {
			rest = append(rest, l)
			continue
		}
		all.Go(func() error { defer fail(); return n.serve(ctx, l) })
	}
	all.Go(func() error { defer fail(); return n.Engine.Run(ctx, rest...) })
	return all.Wait()
}

// serve runs one listener's server until ctx ends and its exchanges have ended, or the hard stop.
func (n *NetHTTP) serve(ctx context.Context, l Listener) error {
	srv := n.standard(l)
	ended := make(chan error, 1)
	go func() {
		if l.TLS != nil {
			ended <- srv.ServeTLS(l, "", "")
		} else {
			ended <- srv.Serve(l)
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
	return &http.Server{
		Handler: http.HandlerFunc(n.handle), TLSConfig: l.TLS.Clone(), Protocols: protocols, DisableGeneralOptionsHandler: true,
		ReadHeaderTimeout: n.opts.HeaderTime, IdleTimeout: n.opts.Idle, MaxHeaderBytes: http1.MaxHead,
		HTTP2: &http.HTTP2Config{MaxConcurrentStreams: http2.MaxStreams, MaxReceiveBufferPerStream: http2.StreamWindow,
			MaxReceiveBufferPerConnection: http2.ConnWindow, SendPingTimeout: 30 * time.Second, PingTimeout: 10 * time.Second, WriteByteTimeout: 30 * time.Second},
		ErrorLog:  log.New(io.Discard, "", 0),
		ConnState: n.count,
		ConnContext: func(ctx context.Context, nc net.Conn) context.Context {
			return context.WithValue(ctx, stdKey{}, &stdConn{altSvc: l.AltSvc, peer: remote(nc), old: n.age(time.Now())})
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
		if n.atBound() {
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
}

type stdKey struct{}

// handle runs one exchange.
func (n *NetHTTP) handle(w http.ResponseWriter, r *http.Request) {
	c, s := r.Context().Value(stdKey{}).(*stdConn), n.server
	s.InFlight.Add(1)
	defer s.InFlight.Add(-1)
	x := s.Acquire()
	st := &stdStream{x: x, w: w, r: r, ctl: http.NewResponseController(w), start: time.Now()}
	_ = st.ctl.EnableFullDuplex() // HTTP/2 is so anyway
	x.Start, x.Peer, x.PeerText, x.TLS, x.AltSvc, x.Protocol = st.start, c.peer, c.peer.String(), r.TLS != nil, c.altSvc, r.Proto
	if r.ProtoMajor == 1 {
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
		x.Closing = x.Request.Close || s.Leaving() || st.start.After(c.old)
		drive(x, st)
	}
	x.Finish(time.Now())
	s.Release(x)
}
