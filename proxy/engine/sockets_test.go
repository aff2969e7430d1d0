//lint:file-ignore SA1019 the tests speak HTTP/2 with prior knowledge over connections of their own.

package engine_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// opener is a way to a WebSocket of a world.
type opener struct {
	// open makes one for a path, with more fields.
	open func(path string, fields ...string) *raw
	// refused does so where that must not succeed, and gives the answer with its body.
	refused func(path string, fields ...string) (*http.Response, string)
	stream  bool // of HTTP/2
	status  int  // that agrees
}

// opening starts a world with such a way to it.
type opening func(up string, s setup) (*world, opener)

// eachDoor runs a test for every engine and protocol that has WebSockets, to upstreams over HTTP/1.1 and over HTTP/2.
func eachDoor(t *testing.T, test func(t *testing.T, start opening)) {
	doors(t, test, doorKind{}, doorKind{secure: true}, doorKind{up2: true})
}

// eachPlainDoor leaves TLS away, for what no byte of it touches.
func eachPlainDoor(t *testing.T, test func(t *testing.T, start opening)) {
	doors(t, test, doorKind{}, doorKind{up2: true})
}

// eachDoorTo1 is for upstreams over HTTP/1.1 alone.
func eachDoorTo1(t *testing.T, test func(t *testing.T, start opening)) { doors(t, test, doorKind{}) }

// doorKind is what lies around an engine that has WebSockets.
type doorKind struct {
	secure bool // the client comes over TLS
	up2    bool // the upstream gets HTTP/2
}

func doors(t *testing.T, test func(t *testing.T, start opening), of ...doorKind) {
	cert, roots := selfSigned(t)
	kinds := engines()
	kinds["nethttp"] = standard
	for name, kind := range kinds {
		for _, d := range of {
			for _, protocol := range []string{"http/1.1", "h2"} {
				if protocol == "h2" && name == "nethttp" {
					continue // net/http offers none over HTTP/2
				}
				way, secure := name+", "+protocol, d.secure
				if secure {
					way += " over TLS"
				}
				if d.up2 {
					way += ", h2 upstream"
				}
				t.Run(way, func(t *testing.T) {
					t.Parallel()
					test(t, func(up string, s setup) (*world, opener) {
						if d.up2 {
							up, s.document = bridged(t, up), over2(s.document)
						}
						if secure {
							s.tls = &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}, MinVersion: tls.VersionTLS12}
						}
						w := start(t, kind, up, s)
						if secure {
							w.trust = &tls.Config{RootCAs: roots, ServerName: "a.example", NextProtos: []string{protocol}}
						}
						if protocol == "h2" {
							return w, w.streams()
						}
						return w, w.connections()
					})
				})
			}
		}
	}
}

// connections are WebSockets over HTTP/1.1.
func (w *world) connections() opener {
	ask := func(path string, fields []string) *raw {
		b := strings.TrimSuffix(strings.Replace(handshake, "/chat", path, 1), "\r\n")
		for i := 0; i < len(fields); i += 2 {
			b += fields[i] + ": " + fields[i+1] + "\r\n"
		}
		return w.dial().send(b + "\r\n")
	}
	return opener{
		status: 101,
		open: func(path string, fields ...string) *raw {
			w.t.Helper()
			c := ask(path, fields)
			c.upgraded()
			return c
		},
		refused: func(path string, fields ...string) (*http.Response, string) {
			w.t.Helper()
			c := ask(path, fields)
			res, body, _ := c.answer("GET")
			if !res.Close {
				w.t.Error("the connection is kept")
			}
			c.closed()
			return res, body
		},
	}
}

// streams are WebSockets over HTTP/2, all on one connection of another implementation.
func (w *world) streams() opener {
	tr := &http2.Transport{AllowHTTP: true, DialTLSContext: func(ctx context.Context, network, _ string, _ *tls.Config) (net.Conn, error) {
		if w.trust != nil {
			return (&tls.Dialer{Config: w.trust}).DialContext(ctx, network, w.addr)
		}
		return (&net.Dialer{}).DialContext(ctx, network, w.addr)
	}}
	w.t.Cleanup(tr.CloseIdleConnections)
	ask := func(path string, fields []string) *h2socket {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		w.t.Cleanup(cancel)
		r, wr := io.Pipe()
		req, err := http.NewRequestWithContext(ctx, "CONNECT", "https://a.example"+path, r)
		if err != nil {
			w.t.Fatal(err)
		}
		req.Header = http.Header{":protocol": {"websocket"}, "Sec-Websocket-Version": {"13"}}
		for i := 0; i < len(fields); i += 2 {
			req.Header.Add(fields[i], fields[i+1])
		}
		res, err := tr.RoundTrip(req)
		if err != nil {
			w.t.Fatal(err)
		}
		return &h2socket{PipeWriter: wr, res: res, cancel: cancel}
	}
	return opener{
		stream: true, status: 200,
		open: func(path string, fields ...string) *raw {
			w.t.Helper()
			s := ask(path, fields)
			if h := s.res.Header; s.res.StatusCode != 200 || h.Get("Upgrade")+h.Get("Connection")+h.Get("Sec-Websocket-Accept")+h.Get("Content-Length") != "" {
				w.t.Fatalf("%+v", s.res)
			}
			return &raw{s, bufio.NewReader(s), w.t}
		},
		refused: func(path string, fields ...string) (*http.Response, string) {
			w.t.Helper()
			s := ask(path, fields)
			defer s.Close()
			b, err := io.ReadAll(s.res.Body)
			if err != nil {
				w.t.Fatal(err)
			}
			return s.res, string(b)
		},
	}
}

// h2socket is a stream of a client's.
type h2socket struct {
	*io.PipeWriter
	net.Conn // nil: a stream has none of the rest
	res      *http.Response
	cancel   context.CancelFunc
}

func (s *h2socket) Read(b []byte) (int, error)  { return s.res.Body.Read(b) }
func (s *h2socket) Write(b []byte) (int, error) { return s.PipeWriter.Write(b) }
func (s *h2socket) CloseWrite() error           { return s.PipeWriter.Close() }
func (s *h2socket) SetLinger(int) error         { return nil }

func (s *h2socket) Close() error {
	s.cancel()
	return s.PipeWriter.Close()
}

// half ends the client's direction, if there still is one.
func (c *raw) half() *raw {
	_ = c.Conn.(interface{ CloseWrite() error }).CloseWrite()
	return c
}
