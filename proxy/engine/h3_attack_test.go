package engine_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	qhttp3 "github.com/quic-go/quic-go/http3"

	"github.com/cellgate/cellgate/proxy/http3"
)

// detour is a way of datagrams to a world and back. The world sees the addresses of its own sockets, as it would a NAT's.
type detour struct {
	t    testing.TB
	in   net.PacketConn // where the client sends to
	to   net.Addr
	spot func(b []byte) [][]byte // what becomes of a datagram on its way to the world; nil = itself

	mu     sync.Mutex
	client net.Addr
	out    net.PacketConn
	all    sync.WaitGroup
}

func (w *world) detour(spot func(b []byte) [][]byte) *detour {
	in, err := net.ListenPacket("udp", "127.46.0.4:0")
	if err != nil {
		w.t.Fatal(err)
	}
	d := &detour{t: w.t, in: in, to: w.udp, spot: spot}
	d.rebind("127.46.0.5")
	d.all.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, from, err := in.ReadFrom(b)
			if err != nil {
				return
			}
			d.mu.Lock()
			d.client = from
			out := d.out
			d.mu.Unlock()
			all := [][]byte{b[:n]}
			if d.spot != nil {
				all = d.spot(b[:n])
			}
			for _, one := range all {
				_, _ = out.WriteTo(one, d.to)
			}
		}
	})
	w.t.Cleanup(func() {
		in.Close()
		d.mu.Lock()
		d.out.Close()
		d.mu.Unlock()
		d.all.Wait()
	})
	return d
}

// rebind gives the client another address in the world's eyes. What is sent to the old one is lost.
func (d *detour) rebind(host string) {
	out, err := net.ListenPacket("udp", host+":0")
	if err != nil {
		d.t.Fatal(err)
	}
	d.mu.Lock()
	if d.out != nil {
		d.out.Close()
	}
	d.out = out
	d.mu.Unlock()
	d.all.Go(func() {
		b := make([]byte, 1<<16)
		for {
			n, _, err := out.ReadFrom(b)
			if err != nil {
				return
			}
			d.mu.Lock()
			client := d.client
			d.mu.Unlock()
			if client != nil {
				_, _ = d.in.WriteTo(b[:n], client)
			}
		}
	})
}

// through is a client of another implementation by a detour.
func (d *detour) through(w *world) *http.Client {
	pc, err := net.ListenPacket("udp", "127.46.0.6:0")
	if err != nil {
		d.t.Fatal(err)
	}
	via := &quic.Transport{Conn: pc}
	tr := &qhttp3.Transport{TLSClientConfig: &tls.Config{RootCAs: w.roots, ServerName: "a.example"},
		Dial: func(ctx context.Context, _ string, cfg *tls.Config, qc *quic.Config) (*quic.Conn, error) {
			return via.Dial(ctx, d.in.LocalAddr(), cfg, qc)
		}}
	d.t.Cleanup(func() { tr.Close(); via.Close(); pc.Close() })
	return &http.Client{Transport: tr, Timeout: patience}
}

// RFC 9000, section 9.3: the address of a client may change behind a NAT, again and again and in the middle of bodies both ways.
// The exchanges go on, and the log names the address that was proved when they began.
func TestHTTP3ConnectionsOutliveNewAddressesOfTheirNAT(t *testing.T) {
	t.Parallel()
	w := start(t, goroutines, handler(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	}), setup{h3: true, document: patientDocument})
	d := w.detour(nil)
	c := d.through(w)
	body := strings.Repeat("0123456789abcdef", 1<<14)
	seen := map[string]bool{}
	for i := range 6 {
		slow := io.MultiReader(strings.NewReader(body), pausing(func() { d.rebind(fmt.Sprintf("127.46.1.%d", i+1)) }), strings.NewReader(body))
		res, err := c.Post("https://a.example/", "text/plain", slow)
		if got := read(t, res, err); got != body+body {
			t.Fatalf("%d: %d bytes", i, len(got))
		}
		res, err = c.Get("https://a.example/") // on the address of now
		read(t, res, err)
	}
	for range 12 {
		seen[(<-w.logged).Peer.String()] = true
	}
	if len(seen) < 3 || seen["127.46.0.6"] || seen["127.46.0.4"] {
		t.Fatalf("the log names %v", seen)
	}
	if n := w.server.Connections.Load(); n != 1 {
		t.Fatalf("%d connections", n)
	}
}

// pausing is a piece of body without a byte, which calls when it is read.
type pausing func()

func (p pausing) Read([]byte) (int, error) { p(); return 0, io.EOF }

// RFC 9000, section 9: a client may also move by itself, once the server has proved its new path.
func TestHTTP3ClientsMayMove(t *testing.T) {
	t.Parallel()
	w := start(t, goroutines, handler(t, echo), setup{h3: true})
	r := w.h3Dial(control)
	ask := func() string {
		if status, _, body, err := answer3(r.request(fieldSection(pseudo("POST")...)+frame3(0, "abc"), true)); status != 200 || body != "abc" {
			t.Fatalf("%d %q %v", status, body, err)
		}
		return (<-w.logged).Peer.String()
	}
	if from := ask(); from != "127.46.0.3" {
		t.Fatal(from)
	}
	pc, err := net.ListenPacket("udp", "127.46.0.7:0")
	if err != nil {
		t.Fatal(err)
	}
	via := &quic.Transport{Conn: pc}
	t.Cleanup(func() { via.Close(); pc.Close() })
	p, err := r.qc.AddPath(via)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Probe(ctx); err != nil {
		t.Fatal(err)
	}
	if err := p.Switch(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ask() != "127.46.0.7"; {
		if time.Now().After(end) {
			t.Fatal("the log never names the new address")
		}
	}
}

// Datagrams that are no packets, packets that were cut, changed, doubled and mixed up: nobody's connection suffers, and none of
// them leaves anything.
func TestHTTP3DatagramGarbageHarmsNobody(t *testing.T) {
	t.Parallel()
	w := start(t, goroutines, handler(t, echo), setup{h3: true, silent: true, document: patientDocument})
	r := rand.New(rand.NewPCG(1, 2))
	d := w.detour(func(b []byte) (all [][]byte) {
		all = append(all, b)
		bad := append([]byte(nil), b...)
		switch r.IntN(8) {
		case 0: // with another byte somewhere
			bad[r.IntN(len(bad))] ^= byte(1 + r.IntN(255))
		case 1: // cut
			bad = bad[:r.IntN(len(bad))]
		case 2: // a version that nobody knows
			if len(bad) > 5 {
				bad[0] |= 0xc0
				bad[1], bad[2] = 0xfa, 0xce
			}
		case 3: // noise
			for i := range bad {
				bad[i] = byte(r.Uint32())
			}
		case 4: // noise with a short head
			for i := range bad {
				bad[i] = byte(r.Uint32())
			}
			bad[0] = bad[0]&0x3f | 0x40
		case 5: // noise behind an Initial's head
			for i := min(7, len(bad)); i < len(bad); i++ {
				bad[i] = byte(r.Uint32())
			}
			copy(bad, "\xc0\x00\x00\x00\x01\x08")
		}
		return append(all, bad) // or the same again
	})
	c := d.through(w)
	for i := range 60 {
		res, err := c.Post("https://a.example/", "text/plain", strings.NewReader(strings.Repeat("x", 1+i*20)))
		if body := read(t, res, err); len(body) != 1+i*20 {
			t.Fatalf("%d: %d bytes", i, len(body))
		}
	}
	out, err := net.Dial("udp", w.udp.String())
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	own := rand.New(rand.NewPCG(3, 4)) // the other is the detour's
	for range 1000 {                   // beginnings of connections that are none
		b := make([]byte, 1200)
		copy(b, "\xc0\x00\x00\x00\x01\x08")
		for i := 6; i < len(b); i++ {
			b[i] = byte(own.Uint32())
		}
		_, _ = out.Write(b)
	}
	c.CloseIdleConnections()
	settled(t, func() int64 { return w.server.Connections.Load() })
	other := w.h3Client(nil)
	res, err := other.Get("https://a.example/")
	read(t, res, err)
}

// RFC 9114, section 5.2: a client's GOAWAY is about pushes, of which there are none. Its requests are served as before.
func TestHTTP3AClientsGoodbyeChangesNothing(t *testing.T) {
	t.Parallel()
	w := start(t, goroutines, handler(t, echo), setup{h3: true, silent: true})
	r := w.h3Dial(control)
	for _, id := range []string{"\x0f", "\x0f", "\x08", "\x00"} {
		_, _ = io.WriteString(r.ctrl, frame3(7, id)+frame3(13, "\x10"))
		if status, _, body, err := answer3(r.request(fieldSection(pseudo("POST")...)+frame3(0, "abc"), true)); status != 200 || body != "abc" {
			t.Fatalf("%d %q %v", status, body, err)
		}
	}
}

// Bombs of QPACK: what a small block says again and again is refused long before it is large, and costs nobody else anything.
func TestHTTP3SectionsThatGrowAreRefused(t *testing.T) {
	t.Parallel()
	w := start(t, goroutines, handler(t, echo), setup{h3: true, silent: true})
	r := w.h3Dial(control)
	head := fieldSection(pseudo("GET")...)
	prefix := head[len(head)-int(head[1]):]
	for name, c := range map[string]struct {
		more string
		want int
	}{
		"one static field, without end":   {strings.Repeat("\xf8", 20000), 431},
		"names without values, literally": {strings.Repeat("\x21a\x00", 15000), 431},
		"one long value":                  {"\x21a\x7f\x81\xff\x03" + strings.Repeat("x", 65536), 431},
	} {
		block := prefix + c.more
		status, why, _, err := answer3(r.request(frame3(http3.FrameHeaders, block), true))
		if status != c.want {
			t.Errorf("%s: %d %s %v, %v", name, status, why, err, context.Cause(r.qc.Context()))
		}
	}
	if status, _, _, err := answer3(r.request(head, true)); status != 200 {
		t.Fatalf("%d %v", status, err)
	}
}
