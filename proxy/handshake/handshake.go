// Package handshake asks TLS clients for certificates where the routes of the host that they name want one, and nobody else; what a
// client shows is judged later, by the policy of the route that a request comes to.
//
//	cfg := handshake.Asking(base, server.Program, nil)   // for tls.Server, or QUIC
//	shown := handshake.Shown(conn.ConnectionState(), conn, server.Program())
//
// A session ticket is good for handshakes that ask as the one did that it was given in: with the certificates of the same
// authorities, and with one in it if one is asked for. Otherwise a client could take what it has proved to one host to another one
// that asks for something else, and one that has got a certificate since then could not show it.
package handshake

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"slices"
	"strings"
	"sync"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/path"
	"github.com/cellgate/cellgate/proxy/program"
)

// Asking makes a config that asks by the program which serves when a handshake begins. Base's ticket keys, and their rotation, are
// used for all. What is made of base may be changed once, ahead of its use; nil = it stays as it is.
func Asking(base *tls.Config, serving func() *program.Program, change func(*tls.Config)) *tls.Config {
	a := &asker{base: base, serving: serving, change: change}
	cfg := a.config("")
	cfg.GetConfigForClient = a.forClient
	return cfg
}

// asker keeps the configs of a program's sets of authorities.
type asker struct {
	base    *tls.Config
	serving func() *program.Program
	change  func(*tls.Config)

	mu   sync.Mutex
	of   *program.Program
	made map[*program.Trust]*tls.Config
}

func (a *asker) forClient(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	p := a.serving()
	t := trust(p, hello.ServerName, hello.Conn)
	if t == nil {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.of != p {
		a.of, a.made = p, map[*program.Trust]*tls.Config{}
	}
	if a.made[t] == nil {
		cfg := a.config(t.Digest)
		cfg.ClientAuth, cfg.ClientCAs, cfg.VerifyConnection = tls.RequestClientCert, t.Hint, bounded
		a.made[t] = cfg
	}
	return a.made[t], nil
}

// Conn is what has come to an address.
type Conn interface{ LocalAddr() net.Addr }

// trust is what is asked of clients that name this host, or, without a name, have come to this address.
func trust(p *program.Program, name string, conn Conn) *program.Trust {
	if p == nil || !p.AsksClients() {
		return nil
	}
	if name == "" {
		if host, _, err := net.SplitHostPort(conn.LocalAddr().String()); err == nil {
			name = host
		}
		if strings.Contains(name, ":") {
			name = "[" + name + "]"
		}
	}
	host, err := path.Host(name)
	if err != nil {
		return nil
	}
	return p.Trust(host)
}

var errTooLarge = errors.New("handshake: the client's certificates are too large")

// bounded ends connections with more than a connection may hold for as long as it lives. What is too large can't be meant well.
func bounded(s tls.ConnectionState) error {
	size := 0
	for _, c := range s.PeerCertificates {
		size += len(c.Raw)
	}
	if size > auth.MaxShown {
		return errTooLarge
	}
	return nil
}

const asksFor = "cellgate asks for "

// config is one whose tickets are good for the set of authorities alone; an empty one stands for no certificate.
func (a *asker) config(digest string) *tls.Config {
	cfg := a.base.Clone()
	if a.change != nil {
		a.change(cfg)
	}
	cfg.WrapSession = func(cs tls.ConnectionState, s *tls.SessionState) ([]byte, error) {
		s.Extra = append(s.Extra, mark(digest, cs.PeerCertificates))
		return a.base.EncryptTicket(cs, s)
	}
	cfg.UnwrapSession = func(ticket []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
		s, err := a.base.DecryptTicket(ticket, cs)
		if err != nil || s == nil || !slices.ContainsFunc(s.Extra, func(e []byte) bool { return string(e) == asksFor+digest }) {
			return nil, err
		}
		return s, nil
	}
	return cfg
}

// mark is what a ticket says; one that was given where a certificate was asked for and none came is good nowhere.
func mark(digest string, shown []*x509.Certificate) []byte {
	if digest != "" && len(shown) == 0 {
		digest = "nothing"
	}
	return []byte(asksFor + digest)
}

// Shown is what the client of a connection has shown, beside what it was asked for.
func Shown(s tls.ConnectionState, conn Conn, p *program.Program) *auth.Shown {
	digest := ""
	if t := trust(p, s.ServerName, conn); t != nil {
		digest = t.Digest
	}
	return auth.NewShown(digest, s.PeerCertificates)
}
