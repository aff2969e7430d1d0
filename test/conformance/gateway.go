package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// gateway is a `proxy serve` with one route that takes everything.
type gateway struct {
	*child
	addr string // host:port
	cert []byte // PEM, with TLS
}

// setup says what a gateway is between.
type setup struct {
	engine string
	addr   string // the loopback address to serve on, at a port of the system's choice
	tls    bool   // towards clients
	h3     bool
	to     upstream
}

// upstream is where the requests go.
type upstream struct {
	addr     string
	protocol string // of the document: empty for HTTP/1.1, h2, h2c
	ca       []byte // PEM; plain without
}

// document is the configuration. The route's time is beyond all that the suites wait for.
func (u upstream) document() string {
	var b strings.Builder
	fmt.Fprintf(&b, "version: v1\nroutes:\n- {id: all, match: {path_prefix: /, allow_catch_all: true}, upstream: suite, timeout: 5m}\nupstreams:\n- id: suite\n  endpoints: [%q]\n", u.addr)
	if u.protocol != "" {
		fmt.Fprintf(&b, "  protocol: %s\n", u.protocol)
	}
	if u.ca != nil {
		fmt.Fprintf(&b, "  tls: {ca: %q, server_name: localhost}\n", u.ca)
	}
	return b.String()
}

// serve starts a gateway; its files are in dir.
func serve(ctx context.Context, proxy, dir string, s setup) (*gateway, error) {
	g := &gateway{}
	document := filepath.Join(dir, "document")
	args := []string{"serve", "--engine", s.engine, "--document", document}
	if err := os.WriteFile(document, []byte(s.to.document()), 0o600); err != nil {
		return nil, err
	}
	if !s.tls {
		args = append(args, "--http", net.JoinHostPort(s.addr, "0"))
	} else {
		cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
		var err error
		if g.cert, err = makeCertificate(cert, key, s.addr); err != nil {
			return nil, err
		}
		args = append(args, "--https", net.JoinHostPort(s.addr, "0"), "--cert", cert, "--key", key)
	}
	if s.h3 {
		args = append(args, "--h3")
	}
	var err error
	if g.child, err = start(ctx, proxy, nil, args...); err != nil {
		return nil, err
	}
	if g.addr, err = g.served(); err != nil {
		return nil, err
	}
	return g, nil
}

// makeCertificate writes a key and a certificate for an address that signs itself, and gives the certificate.
func makeCertificate(certFile, keyFile, addr string) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "conformance"}, DNSNames: []string{"localhost"}, IPAddresses: []net.IP{net.ParseIP(addr)},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(24 * time.Hour), BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	cert := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, errors.Join(
		os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600),
		os.WriteFile(certFile, cert, 0o600))
}
