package engine

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/handshake"
	"github.com/cellgate/cellgate/proxy/http3"
)

// The limits of QUIC connections, those of HTTP/2 where there are such.
const (
	h3Streams      = 100
	h3UniStreams   = 8 // control, two of QPACK, and some of types that nobody knows
	h3StreamWindow = 64 << 10
	h3ConnWindow   = 1 << 20
	h3KeepAlive    = 15 * time.Second // a request may wait longer for its answer than QUIC does for a packet
	h3Silence      = 40 * time.Second // of a peer that answers nothing

	// From so many unfinished handshakes on, clients prove their address first (Retry, RFC 9000, section 8.1.2); from so
	// many on, they are refused.
	h3Validate   = 64
	h3Handshakes = 1024

	// Between the GOAWAY that only asks and the one that refuses, requests that are on their way arrive. What the last
	// answer was may still be on its way when its stream has ended.
	h3Grace  = time.Second
	h3Linger = 2 * time.Second

	// Bytes beside requests that a connection may send: at once, in a second, and more with each whole answer.
	h3Spare     = 64 << 10
	h3Rate      = 16 << 10
	h3PerAnswer = 1 << 10
	h3Empty     = 256 // what a stream counts for that carries no request, or one that its client gives up
	h3Head      = 16  // and a frame that carries nothing: reading many costs more than sending them
)

// h3Listener is a UDP socket that takes QUIC connections.
type h3Listener struct {
	e         *Engine
	udp       net.PacketConn
	transport *quic.Transport
	listener  *quic.Listener
	pending   atomic.Int64 // handshakes
}

// listenQUIC begins to take connections. Early data is not taken: what can be replayed isn't executed twice (RFC 8470).
func (e *Engine) listenQUIC(l Listener) (*h3Listener, error) {
	h := &h3Listener{e: e, udp: l.UDP}
	h.transport = &quic.Transport{Conn: l.UDP, ConnectionIDLength: 12, VerifySourceAddress: h.suspicious, ConnContext: h.begin}
	h.transport.ConnectionIDGenerator, _ = l.UDP.(quic.ConnectionIDGenerator)
	if l.Secret != nil {
		reset, token := quic.StatelessResetKey(l.Secret("QUIC stateless reset")), quic.TokenGeneratorKey(l.Secret("QUIC token"))
		h.transport.StatelessResetKey, h.transport.TokenGeneratorKey = &reset, &token
	}
	cfg := handshake.Asking(l.TLS, e.server.Program, func(cfg *tls.Config) { cfg.NextProtos, cfg.MinVersion = []string{"h3"}, tls.VersionTLS13 })
	var err error
	h.listener, err = h.transport.Listen(cfg, &quic.Config{
		HandshakeIdleTimeout: e.opts.HeaderTime / 2, // twice that is the most a handshake may take
		MaxIdleTimeout:       h3Silence, KeepAlivePeriod: h3KeepAlive,
		InitialStreamReceiveWindow: h3StreamWindow, MaxStreamReceiveWindow: h3StreamWindow,
		InitialConnectionReceiveWindow: h3ConnWindow, MaxConnectionReceiveWindow: h3ConnWindow,
		MaxIncomingStreams: h3Streams, MaxIncomingUniStreams: h3UniStreams,
		RequireStreamCreditRelease: true, // a stream counts until its exchange has ended, whoever gave it up
	})
	return h, err
}

func (h *h3Listener) suspicious(net.Addr) bool {
	return h.pending.Load() >= h3Validate || h.e.server.Connections.Load() >= h.e.opts.MaxConnections*3/4
}

var errBound = errors.New("engine: connections at their bound")

type pendingKey struct{}

// begin counts a connection from its first packet on.
func (h *h3Listener) begin(ctx context.Context, _ *quic.ClientInfo) (context.Context, error) {
	if h.pending.Load() >= h3Handshakes || !h.e.Room(h.e.Evict) {
		return nil, errBound
	}
	h.e.server.Connections.Add(1)
	h.pending.Add(1)
	shaken := sync.OnceFunc(func() { h.pending.Add(-1) })
	context.AfterFunc(ctx, func() {
		shaken()
		h.e.server.Connections.Add(-1)
	})
	return context.WithValue(ctx, pendingKey{}, shaken), nil
}

// accept takes connections until the listener is closed.
func (h *h3Listener) accept() error {
	for {
		qc, err := h.listener.Accept(context.Background())
		if errors.Is(err, quic.ErrServerClosed) || errors.Is(err, quic.ErrTransportClosed) {
			return nil
		}
		if err != nil {
			return err
		}
		qc.Context().Value(pendingKey{}).(func())()
		h.e.wg.Go(func() { h.e.serveQUIC(qc) })
	}
}

// quiesce leaves those who come to the other processes of a shared address.
func (h *h3Listener) quiesce() error {
	if u, ok := h.udp.(interface{ Leave() }); ok {
		u.Leave()
	}
	return nil
}

// close refuses handshakes under way. Where another process takes those that begin now, they are awaited.
func (h *h3Listener) close() {
	if u, ok := h.udp.(interface{ Left() bool }); !ok || !u.Left() {
		_ = h.listener.Close()
		return
	}
	h.e.wg.Go(func() {
		for end := time.Now().Add(h.e.opts.HeaderTime); h.pending.Load() > 0 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		_ = h.listener.Close()
	})
}

func (h *h3Listener) release() {
	_ = h.transport.Close()
	_ = h.udp.Close()
}

// h3Conn is one QUIC connection.
type h3Conn struct {
	e       *Engine
	qc      *quic.Conn
	shown   *auth.Shown
	control *quic.SendStream
	old     atomic.Int64          // unix nanoseconds from which the client is asked to leave
	over    atomic.Bool           // fail was called
	wake    chan struct{}         // keep looks again
	allowed *allowance            // of what comes beside requests, and of requests that are given up
	opened  [uniTypes]atomic.Bool // which of the client's streams there may be but one of are there

	mu     sync.Mutex
	next   uint64    // id of the next request stream
	refuse uint64    // ids from here on are refused
	active int       // exchanges
	last   time.Time // when the last of them ended
}

// uniTypes is how many types of unidirectional streams there are.
const uniTypes = http3.StreamDecoder + 1

func (e *Engine) serveQUIC(qc *quic.Conn) {
	now := time.Now()
	c := &h3Conn{e: e, qc: qc, wake: make(chan struct{}, 1), refuse: http3.MaxStreamID, last: now, allowed: newAllowance(h3Spare, h3Rate, now)}
	c.shown = handshake.Shown(qc.ConnectionState().TLS, qc, e.server.Program())
	c.old.Store(e.age(now).UnixNano())
	e.mu.Lock()
	e.quic[c] = struct{}{}
	e.mu.Unlock()
	defer func() {
		c.fail(http3.NoError)
		e.mu.Lock()
		delete(e.quic, c)
		e.mu.Unlock()
	}()
	if err := c.settle(); err != nil {
		return
	}
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(c.keep)
	parts.Go(func() { c.acceptUni(&parts) })
	for {
		str, err := qc.AcceptStream(context.Background())
		if err != nil {
			return
		}
		if !c.enter(uint64(str.StreamID())) {
			reject(str)
			if c.charge(h3Empty) {
				continue
			}
			return
		}
		parts.Go(func() { c.exchange(str) })
	}
}

// settle opens our control stream.
func (c *h3Conn) settle() (err error) {
	if c.control, err = c.qc.OpenUniStream(); err != nil {
		c.fail(http3.StreamCreationError)
		return err
	}
	return c.tell(http3.AppendControl(nil))
}

// tell writes to the control stream. A client that doesn't read it is let go.
func (c *h3Conn) tell(b []byte) error {
	_ = c.control.SetWriteDeadline(time.Now().Add(c.e.opts.HeaderTime))
	_, err := c.control.Write(b)
	return err
}

// fail ends the connection, and counts it if that is the client's fault. Only the first call counts.
func (c *h3Conn) fail(code http3.Code) {
	if !c.over.Swap(true) && code != http3.NoError && c.qc.Context().Err() == nil {
		c.e.server.Faults3[code.Place()].Add(1)
	}
	_ = c.qc.CloseWithError(quic.ApplicationErrorCode(code), "")
}

// enter takes a request stream in, unless the client was told that it would not be.
func (c *h3Conn) enter(id uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if id >= c.refuse {
		return false
	}
	c.next = id + 4
	c.active++
	return true
}

// reject gives a stream back of which nothing was executed (RFC 9114, section 5.2).
func reject(str *quic.Stream) {
	str.CancelRead(quic.StreamErrorCode(http3.RequestRejected))
	str.CancelWrite(quic.StreamErrorCode(http3.RequestRejected))
	str.ReleaseStreamCredit()
}

func (c *h3Conn) leave() {
	c.mu.Lock()
	c.active--
	c.last = time.Now()
	none := c.active == 0
	c.mu.Unlock()
	if none {
		c.look()
	}
}

// idle says since when the connection has no exchange, if it has none.
func (c *h3Conn) idle() (since time.Time, is bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last, c.active == 0
}

func (c *h3Conn) isOld(now time.Time) bool { return now.UnixNano() >= c.old.Load() }

func (c *h3Conn) look() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// ageBy makes the connection old at t at the latest.
func (c *h3Conn) ageBy(t time.Time) {
	if t.UnixNano() < c.old.Load() {
		c.old.Store(t.UnixNano())
		c.look()
	}
}

// keep ends the connection in time: when it is old, or idle for long, the client is asked to leave, then its new requests
// are refused, and when the last exchange has ended and the client had time to take its answer, the connection is closed.
//
//	serving ──old or idle──▶ asked ──h3Grace──▶ refusing ──no exchange for h3Linger──▶ closed
func (c *h3Conn) keep() {
	t := time.NewTimer(0)
	defer t.Stop()
	var asked time.Time
	for {
		select {
		case <-c.qc.Context().Done():
			return
		case <-c.wake:
		case <-t.C:
		}
		now := time.Now()
		at := c.dueToAsk()
		if asked.IsZero() && !now.Before(at) {
			if asked = now; c.tell(http3.AppendGoAway(nil, http3.MaxStreamID)) != nil {
				c.fail(http3.NoError)
				return
			}
		}
		if !asked.IsZero() {
			if at = c.dueToClose(asked, now); !at.After(now) {
				c.fail(http3.NoError)
				return
			}
		}
		t.Reset(time.Until(at))
	}
}

// dueToAsk is when the client is to be asked to leave.
func (c *h3Conn) dueToAsk() time.Time {
	old := time.Unix(0, c.old.Load())
	c.mu.Lock()
	defer c.mu.Unlock()
	if idle := c.last.Add(c.e.opts.Idle); c.active == 0 && idle.Before(old) {
		return idle
	}
	return old
}

// dueToClose is when to look again after the client was asked; now or before: close. From h3Grace on new requests are
// refused.
func (c *h3Conn) dueToClose(asked, now time.Time) time.Time {
	grace := asked.Add(h3Grace)
	if now.Before(grace) {
		return grace
	}
	c.mu.Lock()
	first := c.refuse == http3.MaxStreamID
	if first {
		c.refuse = c.next
	}
	next, active, last := c.refuse, c.active, c.last
	c.mu.Unlock()
	if first && c.tell(http3.AppendGoAway(nil, next)) != nil {
		return now
	}
	if active > 0 {
		return now.Add(c.e.opts.Idle) // its end wakes
	}
	if last.Before(grace) {
		last = grace
	}
	return last.Add(h3Linger)
}

// acceptUni takes the client's unidirectional streams.
func (c *h3Conn) acceptUni(parts *sync.WaitGroup) {
	for {
		str, err := c.qc.AcceptUniStream(context.Background())
		if err != nil {
			return
		}
		if !c.charge(h3Empty) {
			return
		}
		parts.Go(func() {
			c.uni(str)
			str.ReleaseStreamCredit()
		})
	}
}

// charge takes bytes that bring nothing from what the connection may send of them.
func (c *h3Conn) charge(n int) bool {
	if !c.allowed.spend(n, time.Now()) {
		c.fail(http3.ExcessiveLoad)
		return false
	}
	return true
}

// uni follows one unidirectional stream.
func (c *h3Conn) uni(str *quic.ReceiveStream) {
	var first [8]byte
	_ = str.SetReadDeadline(time.Now().Add(c.e.opts.HeaderTime))
	typ, ok := readVarint(str, first[:])
	_ = str.SetReadDeadline(time.Time{})
	switch {
	case !ok || typ >= uniTypes: // not begun, or of a type that nobody knows
		str.CancelRead(quic.StreamErrorCode(http3.StreamCreationError))
	case typ == http3.StreamPush || c.opened[typ].Swap(true):
		c.fail(http3.StreamCreationError)
	case typ == http3.StreamControl:
		c.follow(str, new(http3.Control).Feed)
	default:
		c.follow(str, (&http3.Instructions{Encoder: typ == http3.StreamEncoder}).Feed)
	}
}

// follow feeds a stream that must not end before its connection does (RFC 9114, section 6.2.1).
func (c *h3Conn) follow(str *quic.ReceiveStream, feed func([]byte) error) {
	var buf [512]byte
	for {
		n, err := str.Read(buf[:])
		if n > 0 && !c.charge(n) {
			return
		}
		var code http3.Code
		if fault := feed(buf[:n]); errors.As(fault, &code) {
			c.fail(code)
			return
		}
		if reset := (*quic.StreamError)(nil); errors.Is(err, io.EOF) || errors.As(err, &reset) {
			c.fail(http3.ClosedCriticalStream)
		}
		if err != nil { // else the connection has ended
			return
		}
	}
}

// reader is the reading end of a QUIC stream.
type reader interface{ Read([]byte) (int, error) }

// readVarint reads one integer into b, which has room for the longest.
func readVarint(r reader, b []byte) (uint64, bool) {
	if n, _ := r.Read(b[:1]); n == 0 {
		return 0, false
	}
	want := http3.VarintLen(b[0])
	for have := 1; have < want; {
		n, err := r.Read(b[have:want])
		if have += n; err != nil && have < want {
			return 0, false
		}
	}
	v, _ := http3.Varint(b[:want])
	return v, true
}

func (c *h3Conn) peer() netip.Addr {
	if a, ok := c.qc.RemoteAddr().(*net.UDPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
