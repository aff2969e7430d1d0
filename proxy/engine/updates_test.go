package engine_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
)

// sealer writes the records of a TLS 1.3 client itself (RFC 8446, section 5.2): crypto/tls never asks for new keys.
type sealer struct {
	t      testing.TB
	secret []byte
	suite  uint16
	aead   cipher.AEAD
	iv     []byte
	seq    uint64
}

// sealing makes a connection whose records s writes. What it reads, crypto/tls reads.
func (w *world) sealing() (nc net.Conn, c *raw, s *sealer) {
	d := net.Dialer{Control: func(_, _ string, rc syscall.RawConn) error { // little room, so that who doesn't read is soon noticed
		return rc.Control(func(fd uintptr) {
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10)
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_SNDBUF, 16<<10)
		})
	}}
	nc, err := d.DialContext(context.Background(), "tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { nc.Close() })
	_ = nc.SetDeadline(time.Now().Add(patience))
	var log bytes.Buffer
	cfg := w.trust.Clone()
	cfg.MinVersion, cfg.KeyLogWriter = tls.VersionTLS13, &log
	tc := tls.Client(nc, cfg)
	if err := tc.Handshake(); err != nil {
		w.t.Fatal(err)
	}
	s = &sealer{t: w.t, suite: tc.ConnectionState().CipherSuite}
	for line := range strings.Lines(log.String()) {
		if f := strings.Fields(line); f[0] == "CLIENT_TRAFFIC_SECRET_0" {
			s.secret, _ = hex.DecodeString(f[2])
		}
	}
	s.keys()
	return nc, &raw{tc, bufio.NewReader(tc), w.t}, s
}

// expand is HKDF-Expand-Label without a context (section 7.1).
func (s *sealer) expand(label string, n int) []byte {
	if s.suite == tls.TLS_AES_256_GCM_SHA384 {
		s.t.Fatal("no suite of SHA-256 was agreed on")
	}
	label = "tls13 " + label
	info := append(binary.BigEndian.AppendUint16(nil, uint16(n)), byte(len(label)))
	out, err := hkdf.Expand(func() hash.Hash { return sha256.New() }, s.secret, string(append(append(info, label...), 0)), n)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *sealer) keys() {
	var err error
	if s.suite == tls.TLS_CHACHA20_POLY1305_SHA256 {
		s.aead, err = chacha20poly1305.New(s.expand("key", 32))
	} else {
		block, _ := aes.NewCipher(s.expand("key", 16))
		s.aead, err = cipher.NewGCM(block)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.iv, s.seq = s.expand("iv", 12), 0
}

// record appends a record to b.
func (s *sealer) record(b []byte, kind byte, data string) []byte {
	nonce := bytes.Clone(s.iv)
	for i := range 8 {
		nonce[4+i] ^= byte(s.seq >> (56 - 8*i))
	}
	s.seq++
	head := []byte{23, 3, 3, 0, 0}
	binary.BigEndian.PutUint16(head[3:], uint16(len(data)+1+s.aead.Overhead()))
	return s.aead.Seal(append(b, head...), nonce, append([]byte(data), kind), head)
}

// update appends a change of keys that asks for the other side's (section 4.6.3).
func (s *sealer) update(b []byte) []byte {
	b = s.record(b, 22, "\x18\x00\x00\x01\x01")
	s.secret = s.expand("traffic upd", 32)
	s.keys()
	return b
}

// Every byte of a request may come in a record of its own, and keys change between them.
func TestKeysMayChangeWithinARequest(t *testing.T) {
	t.Parallel()
	eachOverTLS(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		nc, c, s := w.sealing()
		for range 2 {
			var b []byte
			for i, one := range strings.Split("POST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 5\r\n\r\nhello", "") {
				if i%8 == 7 { // crypto/tls takes up to 16 answers to it in a row
					b = s.update(b)
				}
				b = s.record(b, 23, one)
			}
			if _, err := nc.Write(b); err != nil {
				t.Fatal(err)
			}
			if res, body, err := c.answer("POST"); err != nil || res.StatusCode != 200 || body != "hello" {
				t.Fatal(res, body, err)
			}
		}
	})
}

// What a client's updates of keys are answered with goes to that client, though nothing else is said to it for now.
func TestAnswersToNewKeysReachNobodyElse(t *testing.T) {
	t.Parallel()
	eachOverTLS(t, func(t *testing.T, start starter) {
		asked, resume := make(chan bool), make(chan bool)
		w := start(t, handler(t, func(w http.ResponseWriter, r *http.Request) {
			if b, _ := io.ReadAll(r.Body); len(b) > 0 {
				asked <- true
				<-resume
			}
		}), setup{})
		nc, c, s := w.sealing()
		b := s.record(nil, 23, "POST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 10000\r\n\r\n")
		b = s.record(s.update(s.record(b, 23, strings.Repeat("x", 9990))), 23, "0123456789")
		if _, err := nc.Write(b); err != nil {
			t.Fatal(err)
		}
		<-asked
		for range 8 { // one of them at least is served where c is
			if res, _, err := w.dial().send(get("/other")).answer("GET"); err != nil || res.StatusCode != 200 {
				t.Error(res, err)
			}
		}
		resume <- true
		if res, _, err := c.answer("POST"); err != nil || res.StatusCode != 200 {
			t.Error(res, err)
		}
	})
}
