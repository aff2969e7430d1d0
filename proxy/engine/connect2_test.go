package engine_test

import (
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/cellgate/cellgate/reason"
)

// tunnel2 is an upstream that offers extended CONNECT, agrees to all, and goes on with each of its frames as said says.
func tunnel2(t testing.TB, said func(u *up2, f http2.Frame)) string {
	return speaks2(t, func(u *up2, f http2.Frame) {
		switch f := f.(type) {
		case *http2.SettingsFrame:
			if !f.IsAck() {
				_ = u.WriteSettingsAck()
				_ = u.WriteWindowUpdate(0, 1<<24)
			}
			return
		case *http2.HeadersFrame:
			u.heads(f.StreamID, false)
		}
		said(u, f)
	}, http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1})
}

// RFC 8441, section 3: an extended CONNECT goes only to whoever has offered to take one.
func TestAnUpstreamOverHTTP2ThatOffersNoWebSocketIsNotAskedForOne(t *testing.T) {
	t.Parallel()
	doors(t, func(t *testing.T, start opening) {
		w, d := start(speaks2(t, func(u *up2, f http2.Frame) {
			if h, is := f.(*http2.HeadersFrame); is && h.StreamID > 0 {
				t.Error("a head came")
			}
		}), setup{document: over2("")})
		res, body := d.refused("/chat")
		problem(t, res, body, reason.UpgradeRefused)
		if r := <-w.logged; r.Reason != reason.UpgradeRefused {
			t.Fatalf("%+v", r)
		}
		if up := w.server.Snapshot().Upstreams[0]; up.Ejected+up.Down != 0 || up.Open != up.Idle {
			t.Fatalf("%+v", up)
		}
	}, doorKind{}, doorKind{secure: true})
}

// RFC 8441, section 3: an offer can't be taken back, and is a number that is 0 or 1.
func TestAnOfferOfWebSocketsIsNotTakenBack(t *testing.T) {
	t.Parallel()
	for name, second := range map[string]uint32{"taken back": 0, "no offer": 2} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, start starter) {
				over := make(chan http2.ErrCode, 1)
				w := start(t, tunnel2(t, func(u *up2, f http2.Frame) {
					switch f := f.(type) {
					case *http2.HeadersFrame:
						_ = u.WriteSettings(http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: second})
					case *http2.GoAwayFrame:
						over <- f.ErrCode
					}
				}), setup{document: over2("")})
				w.dial().send(handshake)
				if code := <-over; code != http2.ErrCodeProtocol {
					t.Fatal(code)
				}
			})
		})
	}
}

// An endpoint that refuses the stream has done nothing with the handshake, so another is asked; one that resets it may have.
func TestAHandshakeOverHTTP2FollowsTheRulesOfRetries(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		code http2.ErrCode
		asks int
	}{"refused": {http2.ErrCodeRefusedStream, 2}, "reset": {http2.ErrCodeInternal, 1}} {
		t.Run(name, func(t *testing.T) {
			doors(t, func(t *testing.T, start opening) {
				heads := make(chan uint32, 10)
				_, d := start(speaks2(t, func(u *up2, f http2.Frame) {
					h, is := f.(*http2.HeadersFrame)
					if !is {
						return
					}
					if heads <- h.StreamID; len(heads) == 1 {
						_ = u.WriteRSTStream(h.StreamID, c.code)
						return
					}
					u.heads(h.StreamID, true)
				}, http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1}), setup{document: over2("")})
				if c.asks == 1 {
					res, body := d.refused("/chat")
					problem(t, res, body, reason.UpstreamReset)
				} else {
					d.open("/chat").Close()
				}
				if len(heads) != c.asks {
					t.Fatalf("%d handshakes were sent", len(heads))
				}
			}, doorKind{})
		})
	}
}

// RFC 9113, section 8.5: on a stream that has left HTTP nothing but DATA comes. A length of the answer means nothing.
func TestATunnelOverHTTP2HasNeitherLengthNorTrailers(t *testing.T) {
	t.Parallel()
	doors(t, func(t *testing.T, start opening) {
		cancelled := make(chan http2.ErrCode, 1)
		_, d := start(speaks2(t, func(u *up2, f http2.Frame) {
			switch f := f.(type) {
			case *http2.HeadersFrame:
				u.heads(f.StreamID, false, "content-length", "1", "sec-websocket-accept", "x")
				u.mu.Lock()
				_ = u.WriteData(f.StreamID, false, []byte("longer"))
				u.mu.Unlock()
			case *http2.DataFrame:
				u.trail(f.StreamID, true, "x", "y")
			case *http2.RSTStreamFrame:
				cancelled <- f.ErrCode
			}
		}, http2.Setting{ID: http2.SettingEnableConnectProtocol, Val: 1}), setup{document: over2("")})
		c := d.open("/chat").expect("longer")
		_, _ = c.Write([]byte("x"))
		if code := <-cancelled; code != http2.ErrCodeProtocol {
			t.Fatal(code)
		}
		if b, err := io.ReadAll(c.r); len(b) > 0 || err == nil && d.stream {
			t.Fatalf("%q %v", b, err)
		}
	}, doorKind{})
}

// Backpressure: an upstream that gives no room holds its client up, and one that the client doesn't read is held up by its
// window; other streams of the connection go on.
func TestBackpressureOfAWebSocketOverHTTP2IsItsStreamsAlone(t *testing.T) {
	t.Parallel()
	doors(t, func(t *testing.T, start opening) {
		first, come := make(chan uint32, 10), make(chan int, 1<<16)
		_, d := start(tunnel2(t, func(u *up2, f http2.Frame) {
			switch f := f.(type) {
			case *http2.HeadersFrame:
				first <- f.StreamID
				if f.StreamID == 1 {
					for range 4 { // all that its window takes
						u.mu.Lock()
						_ = u.WriteData(f.StreamID, false, make([]byte, 1<<14))
						u.mu.Unlock()
					}
				}
			case *http2.DataFrame:
				if f.StreamID != 1 {
					u.mu.Lock()
					_ = u.WriteData(f.StreamID, false, f.Data())
					u.mu.Unlock()
					return
				}
				come <- len(f.Data())
			}
		}), setup{document: over2("")})
		full := d.open("/chat") // it reads nothing
		<-first
		other := d.open("/chat")
		go func() {
			for range 64 {
				if _, err := full.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		}()
		got := 0
		for got < 65535 {
			got += <-come
		}
		for range 50 { // the one that is full hinders nobody, and gets no more than its window
			_, _ = other.Write([]byte("ping"))
			other.expect("ping")
		}
		if len(come) > 0 || got > 65535 {
			t.Fatalf("%d bytes, and %d more pieces, for a window of 65535", got, len(come))
		}
		full.Close()
	}, doorKind{})
}

// The connection of a tunnel is lost: its client sees a cut, not an end.
func TestALostConnectionCutsTheWebSocketsOnIt(t *testing.T) {
	t.Parallel()
	doors(t, func(t *testing.T, start opening) {
		w, d := start(tunnel2(t, func(u *up2, f http2.Frame) {
			if _, is := f.(*http2.DataFrame); is {
				_ = u.nc.(*net.TCPConn).SetLinger(0)
				u.nc.Close()
			}
		}), setup{document: over2("")})
		c := d.open("/chat")
		_, _ = c.Write([]byte("x"))
		if b, err := io.ReadAll(c.r); len(b) > 0 || err == nil && d.stream {
			t.Fatalf("%q %v", b, err)
		}
		if r := <-w.logged; r.Status != d.status {
			t.Fatalf("%+v", r)
		}
		w.quiet()
	}, doorKind{})
}

// A goodbye ends no tunnel that is there; the next one goes over another connection.
func TestAGoodbyeLeavesWebSocketsWhereTheyAre(t *testing.T) {
	t.Parallel()
	doors(t, func(t *testing.T, start opening) {
		on := make(chan int, 10)
		_, d := start(tunnel2(t, func(u *up2, f http2.Frame) {
			switch f := f.(type) {
			case *http2.HeadersFrame:
				on <- u.n
				_ = u.WriteGoAway(f.StreamID, http2.ErrCodeNo, nil)
			case *http2.DataFrame:
				u.mu.Lock()
				_ = u.WriteData(f.StreamID, false, f.Data())
				u.mu.Unlock()
			}
		}), setup{document: over2("")})
		one := d.open("/chat")
		for end := time.Now().Add(8 * time.Second); ; {
			two := d.open("/chat")
			_, _ = two.Write([]byte("two"))
			two.expect("two")
			if a, b := <-on, <-on; a != b {
				break
			}
			if time.Now().After(end) {
				t.Fatal("all are on one connection")
			}
			on <- 1
		}
		_, _ = one.Write([]byte("one"))
		one.expect("one")
	}, doorKind{})
}
