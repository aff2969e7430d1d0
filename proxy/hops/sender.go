package hops

import (
	"net/netip"
	"unsafe"

	"github.com/cellgate/cellgate/proxy/http1"
)

// Sender is who sent a request, and how.
type Sender struct {
	Client netip.Addr
	Text   string // of Client
	HTTPS  bool
	room   [45]byte
}

// Direct takes whoever is at the other end of the connection for the client.
func (s *Sender) Direct(peer netip.Addr, text string, tls bool) {
	s.Client, s.Text, s.HTTPS = peer, text, tls
}

// Behind takes the word of a trusted proxy, which is at the other end, on who the client is, and whether it came by TLS.
func (s *Sender) Behind(t Trusted, h *http1.Head) {
	if c := t.Client(s.Client, h); c != s.Client {
		b := c.AppendTo(s.room[:0])
		s.Client, s.Text = c, unsafe.String(unsafe.SliceData(b), len(b))
	}
	if https, ok := HTTPS(h); ok {
		s.HTTPS = https
	}
}

// HandedOn takes over what the proxy of the world that handed the request on says of it, and its id with that. The client could not
// have said it: that proxy builds these fields anew.
func (s *Sender) HandedOn(h *http1.Head, id []byte) (ok bool) {
	s.Client, s.Text, s.HTTPS, ok = Handed(h, id)
	return ok
}
