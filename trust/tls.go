package trust

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"
)

// ServerTLS accepts clients of the world that hold one of the roles. TLS 1.3 only; sessions are never resumed, since a
// ticket would outlive the certificate and the roots that it was given under. Handshakes go by the certificate and the
// roots of their moment: see Reload.
func ServerTLS(s *Signer, r *Roots, roles ...Role) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetCertificate:         func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return s.tlsCertificate(), nil },
		ClientAuth:             tls.RequireAnyClientCert, // verified below, against our roots and roles
		SessionTicketsDisabled: true,
		VerifyConnection:       r.verifier(x509.ExtKeyUsageClientAuth, roles),
	}
}

// ClientTLS connects to servers of the world that hold the role. The server is known by its URI SAN, so addresses and
// host names don't matter.
func ClientTLS(s *Signer, r *Roots, role Role) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		GetClientCertificate:   func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return s.tlsCertificate(), nil },
		InsecureSkipVerify:     true, // replaced by VerifyConnection: chain, expiry, world and role
		SessionTicketsDisabled: true,
		VerifyConnection:       r.verifier(x509.ExtKeyUsageServerAuth, []Role{role}),
	}
}

// ClientTLSTo is ClientTLS narrowed to the servers that accept knows: a role alone doesn't say which of them it is.
func ClientTLSTo(s *Signer, r *Roots, role Role, accept func(Identity) bool) *tls.Config {
	cfg := ClientTLS(s, r, role)
	cfg.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("trust: the peer has no certificate")
		}
		id, err := r.check(state.PeerCertificates[0], time.Now(), x509.ExtKeyUsageServerAuth, []Role{role})
		if err == nil && !accept(id) {
			err = fmt.Errorf("trust: the peer is %s, not the one that is called", id)
		}
		return err
	}
	return cfg
}

func (r *Roots) verifier(usage x509.ExtKeyUsage, roles []Role) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("trust: the peer has no certificate")
		}
		_, err := r.check(state.PeerCertificates[0], time.Now(), usage, roles)
		return err
	}
}

// PeerIdentity is who is at the other end of a connection that was made with ServerTLS or ClientTLS.
func PeerIdentity(state tls.ConnectionState) (Identity, error) {
	if !state.HandshakeComplete || len(state.PeerCertificates) == 0 {
		return Identity{}, errors.New("trust: the peer has not shown a certificate")
	}
	return identityOf(state.PeerCertificates[0])
}
