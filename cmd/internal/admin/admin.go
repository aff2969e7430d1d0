// Package admin is the HTTPS server that every daemon of a world has for its operators: /healthz, /readyz, /metrics and
// the daemon's own pages, for holders of an operator's certificate or of the admin token.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cellgate/cellgate/internal/certfile"
	"github.com/cellgate/cellgate/trust"
)

// Options describe one admin server.
type Options struct {
	Addr netip.AddrPort
	// Listener is bound already; nil = Addr is to be bound.
	Listener net.Listener
	// CertFile and KeyFile are the PEM files that it serves with.
	CertFile, KeyFile string
	// TokenHash is "sha256:" + hex of the bearer token; empty = certificates only.
	TokenHash string
	// Signer and Roots verify client certificates of the world with the roles operator, regionctl and capacityd.
	Signer *trust.Signer
	Roots  *trust.Roots
	// Ready says why the daemon is not ready; nil = always ready.
	Ready    func() error
	Gatherer prometheus.Gatherer
	// Pages are further handlers by pattern, such as "GET /headroom".
	Pages map[string]http.Handler
	Log   *slog.Logger
}

// Server is a bound admin server. Its certificate may be renewed while it runs.
type Server struct {
	*certfile.Pair
	opt      Options
	listener net.Listener
	http     *http.Server
}

// Listen binds the address, so that a port in use is told before anything else starts.
func Listen(opt Options) (*Server, error) {
	cert, err := certfile.Load(opt.CertFile, opt.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("admin: certificate: %w", err)
	}
	if want := strings.TrimPrefix(opt.TokenHash, "sha256:"); opt.TokenHash != "" && len(want) != 2*sha256.Size {
		return nil, errors.New("admin: the token hash is not sha256:<64 hex digits>")
	}
	l := opt.Listener
	if l == nil {
		if l, err = net.Listen("tcp", opt.Addr.String()); err != nil {
			return nil, fmt.Errorf("admin: %w", err)
		}
	}
	s := &Server{Pair: cert, opt: opt, listener: tls.NewListener(l, opt.tls(cert))}
	s.http = &http.Server{
		Handler: s.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), // handshakes of strangers are not news
	}
	return s, nil
}

// tls asks for a client certificate and refuses one that is not of the world; none at all is left to the token.
func (o Options) tls(cert *certfile.Pair) *tls.Config {
	verify := trust.ServerTLS(o.Signer, o.Roots, trust.RoleOperator, trust.RoleController, trust.RolePlanner).VerifyConnection
	return &tls.Config{
		MinVersion: tls.VersionTLS12, GetCertificate: cert.Get, ClientAuth: tls.RequestClientCert,
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return nil
			}
			return verify(s)
		},
	}
}

// Run serves until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() {
		grace, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if s.http.Shutdown(grace) != nil {
			s.http.Close()
		}
	})
	defer stop()
	if err := s.http.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin: %w", err)
	}
	return nil
}

func (s *Server) routes() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", s.readyz)
	if s.opt.Gatherer != nil {
		mux.Handle("GET /metrics", promhttp.HandlerFor(s.opt.Gatherer, promhttp.HandlerOpts{}))
	}
	for pattern, h := range s.opt.Pages {
		mux.Handle(pattern, h)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.known(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			http.Error(w, "a client certificate or the admin token is needed", http.StatusUnauthorized)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) {
	if s.opt.Ready != nil {
		if err := s.opt.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
	}
	fmt.Fprintln(w, "ready")
}

// known is true for a certificate, which the handshake has verified, and for the token.
func (s *Server) known(r *http.Request) bool {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		return true
	}
	kind, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(kind, "Bearer") || s.opt.TokenHash == "" {
		return false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(token)))
	want, err := hex.DecodeString(strings.TrimPrefix(s.opt.TokenHash, "sha256:"))
	return err == nil && subtle.ConstantTimeCompare(sum[:], want) == 1
}
