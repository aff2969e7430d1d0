package listen

import (
	"crypto/tls"
	"sync/atomic"
)

// handshakes counts those of a configuration, whoever carries them out: the callbacks of crypto/tls are asked in TCP's and in
// QUIC's, in full and in resumed ones.
type handshakes struct {
	begun atomic.Uint64
	ended [2][2]atomic.Uint64 // by version, 1.2 first, and whether a session was resumed
}

// begin is asked once the client's first message has been read.
func (h *handshakes) begin(*tls.ClientHelloInfo) (*tls.Config, error) {
	h.begun.Add(1)
	return nil, nil // the configuration that was asked
}

// done is asked when nothing is left that the server could refuse.
func (h *handshakes) done(s tls.ConnectionState) error {
	version, resumed := 0, 0
	if s.Version >= tls.VersionTLS13 {
		version = 1
	}
	if s.DidResume {
		resumed = 1
	}
	h.ended[version][resumed].Add(1)
	return nil
}

// Handshakes is how many of a kind have ended well.
type Handshakes struct {
	Version string // "1.2" or "1.3"
	Resumed bool
	Count   uint64
}

// Handshakes are those that clients have begun, and of these the ones that have ended well, by kind.
func (c *Certificate) Handshakes() (begun uint64, ended []Handshakes) {
	h := &c.handshakes
	for v, version := range []string{"1.2", "1.3"} {
		for r := range h.ended[v] {
			ended = append(ended, Handshakes{version, r == 1, h.ended[v][r].Load()})
		}
	}
	return h.begun.Load(), ended
}
