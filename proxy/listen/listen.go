// Package listen binds a node's sockets and keeps its edge certificates.
package listen

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
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

func reusePort(_, _ string, c syscall.RawConn) error {
	var set error
	if err := c.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }); err != nil {
		return err
	}
	return set
}

// Certificate is an edge certificate from files. Reload replaces it for handshakes to come.
type Certificate struct {
	certFile, keyFile string
	current           atomic.Pointer[tls.Certificate]
}

// LoadCertificate reads PEM files.
func LoadCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile}
	return c, c.Reload()
}

// Reload reads the files again. On an error the old certificate stays.
func (c *Certificate) Reload() error {
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("certificate: %w", err)
	}
	c.current.Store(&pair)
	return nil
}

// Config serves this certificate for any name: TLS 1.3 and 1.2, HTTP/2 preferred.
func (c *Certificate) Config() *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
	}
}
