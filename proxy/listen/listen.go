// Package listen binds a node's sockets and keeps its edge certificates.
package listen

import (
	"context"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/certfile"
)

// TCP binds addr ("host:port", or ":port" for all addresses). shared uses SO_REUSEPORT, so that the processes of one cell
// stand behind one address; otherwise the address is this process's alone, and one that is taken is an error.
func TCP(ctx context.Context, addr string, shared bool) (net.Listener, error) {
	cfg := net.ListenConfig{}
	cfg.SetMultipathTCP(false) // its sockets take no filter, which sockclose needs
	if shared {
		cfg.Control = reusePort
	}
	l, err := cfg.Listen(ctx, "tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s: address in use", addr)
	case err != nil:
		return nil, fmt.Errorf("listen on %s: %w", addr, err)
	}
	return l, nil
}

// UDP binds addr for datagrams, to this process alone.
func UDP(ctx context.Context, addr string) (net.PacketConn, error) {
	c, err := (&net.ListenConfig{}).ListenPacket(ctx, "udp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen on %s (UDP): address in use", addr)
	case err != nil:
		return nil, fmt.Errorf("listen on %s (UDP): %w", addr, err)
	}
	return c, nil
}

func reusePort(_, _ string, c syscall.RawConn) error {
	var set error
	if err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); err != nil {
		return err
	}
	return set
}

// Certificate is an edge certificate from files. Reload replaces it for handshakes to come.
type Certificate struct {
	*certfile.Pair
	seed [32]byte // of the key that was loaded first
}

// LoadCertificate reads PEM files.
func LoadCertificate(certFile, keyFile string) (*Certificate, error) {
	pair, err := certfile.Load(certFile, keyFile)
	if err != nil {
		return nil, err
	}
	first, _ := pair.Get(nil)
	der, err := x509.MarshalPKCS8PrivateKey(first.PrivateKey)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return &Certificate{pair, sha256.Sum256(der)}, nil
}

// Secret derives a key from the private key (HKDF, RFC 5869): every process that serves this certificate has the same one
// for a purpose, also after a restart. It stays while the process lives, whatever Reload brings.
func (c *Certificate) Secret(purpose string) (key [32]byte) {
	b, err := hkdf.Key(sha256.New, c.seed[:], nil, purpose, len(key))
	if err != nil {
		panic(err) // only for a length that is too large
	}
	copy(key[:], b)
	return key
}

// Config serves this certificate for any name: TLS 1.3 and 1.2, HTTP/2 preferred.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: c.Get}
}
