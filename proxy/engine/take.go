package engine

import (
	"crypto/tls"
	"net"
	"time"

	"github.com/cellgate/cellgate/proxy"
)

// Handed is a connection that another engine has begun to serve, and hands over to be served here to its end.
type Handed struct {
	net.Conn
	// Read is what has been read of it and not been served. It belongs to this engine from now on.
	Read []byte
	// Unsent is what goes out ahead of everything else, as it is, below TLS.
	Unsent []byte
	// Old is when the client is asked to leave.
	Old time.Time
	// AltSvc is its listener's.
	AltSvc string
	// Exchange has been judged and is to be forwarded; its head is the first Head bytes of Read.
	Exchange *proxy.Exchange
	Head     int
}

// Take serves a connection that was handed over. After the hard stop it closes it.
func (e *Engine) Take(h Handed) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.cutOff {
		_ = h.Close()
		e.server.Release(h.Exchange)
		return
	}
	e.wg.Add(1)
	go e.run(newConn(e, h.Conn), func(c *conn) { c.goOn(h) })
}

// Hold keeps the engine from ending, for a partner that may still hand something over, until the function is called.
func (e *Engine) Hold() (done func()) {
	e.wg.Add(1)
	return e.wg.Done
}

// goOn takes the connection up where the other engine left it.
func (c *conn) goOn(h Handed) {
	_, c.secure = h.Conn.(*tls.Conn)
	c.altSvc, c.shown = h.AltSvc, h.Exchange.Certificates
	c.prepare()
	c.old.Store(h.Old.UnixNano())
	putBack(c.buf)
	room := h.Read[:cap(h.Read)]
	c.buf, c.w = &room, len(h.Read)
	c.e.server.Release(c.x)
	c.x, c.r = h.Exchange, h.Head
	if len(h.Unsent) > 0 {
		c.armWrite(c.x.Deadline)
		if _, err := rawConn(c.nc).Write(h.Unsent); err != nil {
			return
		}
	}
	if !c.exchange(forward) {
		return
	}
	c.compact()
	c.serve()
}
