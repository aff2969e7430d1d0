package engine

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy/http2"
)

// What a connection of net/http may send beside what is carried for it. net/http tells nobody of frames that carry nothing, so
// all bytes count, and heads and bodies are given back as they are used. As much as the windows of HTTP/2 let a client send ahead
// of its exchanges is no sign of anything.
const (
	stdSpare   = http2.ConnWindow + 256<<10
	stdRate    = 16 << 10
	stdHead    = 1 << 10 // of each request, for frames around it, and for records of TLS
	stdGivenUp = 4 << 10 // a request that its client gives up
)

// metered is a listener whose connections keep such an account. Those that end by it are counted as HTTP/2's floods.
type metered struct {
	net.Listener
	floods *atomic.Uint64
}

func (m metered) Accept() (net.Conn, error) {
	nc, err := m.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &meteredConn{Conn: nc, allowed: newAllowance(stdSpare, stdRate, time.Now()), floods: m.floods}, nil
}

// meteredConn ends with a read for which nothing is left.
type meteredConn struct {
	net.Conn
	allowed *allowance
	free    atomic.Bool // it has left HTTP: every byte is carried
	over    atomic.Bool // it was closed for want of anything left
	floods  *atomic.Uint64
}

var errFlood = errors.New("engine: the client sends what carries nothing")

func (c *meteredConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.spend(n) {
		return 0, errFlood
	}
	return n, err
}

// spend closes the connection if there was not as much.
func (c *meteredConn) spend(n int) bool {
	if c.free.Load() || c.allowed.spend(n, time.Now()) {
		return true
	}
	if !c.over.Swap(true) {
		c.floods.Add(1)
	}
	_ = c.Conn.Close()
	return false
}

func (c *meteredConn) earn(n int) { c.allowed.earn(n) }

// CloseWrite is for tunnels.
func (c *meteredConn) CloseWrite() error {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok {
		return errors.ErrUnsupported
	}
	return half.CloseWrite()
}

// meterOf finds the account of a connection of net/http's.
func meterOf(nc net.Conn) *meteredConn {
	if tc, ok := nc.(*tls.Conn); ok {
		nc = tc.NetConn()
	}
	return nc.(*meteredConn)
}
