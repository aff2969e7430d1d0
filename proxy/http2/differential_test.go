//lint:file-ignore SA1019 the oracle: net/http has no way to serve one connection.

package http2

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"pgregory.net/rapid"
)

// Fragments that heads are put together from, with every kind of fault; the first of each is sound.
var (
	someMethods     = []string{"GET", "POST", "OPTIONS", "G T", "", "CONNECT", "M-SEARCH"}
	someSchemes     = []string{"https", "http", "https", "ftp", ""}
	someAuthorities = []string{"a.example", "a.example", "a.example:8443", "[::1]:80", "", "u@a.example", "a b", "a.example:x"}
	somePaths       = []string{"/", "/a?b=c", "/a//b", "*", "", "a", "/%zz", "/%41", "/a b", "/\xff", "/#x", "//b/c", "http://b/"}
	someNames       = []string{"x", "content-length", "te", "host", "cookie", "cookie", "connection", "X", "", "x y", "transfer-encoding", "expect", ":path", ":x", "x_y", "keep-alive", "upgrade"}
	someValues      = []string{"a", "", "0", "3", "+3", "trailers", "gzip", "a.example", "close", "100-continue", " a", "a\t", "a\nb", "a\x00", "\xe4", "a\x7f"}
)

// What this codec takes, another implementation takes too, and both understand the same: ours is never laxer.
func TestHeadsAreNeverTakenMoreLaxly(t *testing.T) {
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		of := func(name string, all []string) string { return rapid.SampledFrom(all).Draw(t, name) }
		mostlySound := func(name string, all []string) string { // the first of all, four times out of five
			if rapid.IntRange(0, 4).Draw(t, "odd "+name) < 4 {
				return all[0]
			}
			return of(name, all)
		}
		fields := []string{":method", mostlySound("method", someMethods), ":scheme", mostlySound("scheme", someSchemes), ":authority", mostlySound("authority", someAuthorities), ":path", mostlySound("path", somePaths)}
		if cut := 2 * (rapid.IntRange(0, 11).Draw(t, "without") - 8); cut >= 0 {
			fields = append(fields[:cut:cut], fields[cut+2:]...)
		}
		for range rapid.IntRange(0, 4).Draw(t, "fields") {
			fields = append(fields, of("name", someNames), of("value", someValues))
		}
		end := rapid.Bool().Draw(t, "end")
		p := connect(&testing.T{})
		p.raw(end, fields).send()
		if len(p.opened) == 0 || p.events[0].Err != nil || string(p.opened[0].Request.Method()) == "CONNECT" {
			return
		}
		taken++
		r := p.opened[0].Request
		theirs := elsewhere(fields, end)
		if theirs == nil {
			t.Fatalf("elsewhere %q is refused", fields)
		}
		length := r.Length
		if r.Chunked {
			length = -1
		}
		if theirs.Method != string(r.Method()) || theirs.Host != string(r.Authority()) || theirs.RequestURI != string(r.Target()) || theirs.ContentLength != length {
			t.Fatalf("%q: %s %s %s %d against %s %s %s %d", fields, theirs.Method, theirs.Host, theirs.RequestURI, theirs.ContentLength, r.Method(), r.Authority(), r.Target(), length)
		}
		for i := range r.Fields() {
			f := &r.Fields()[i]
			if f.Drop {
				continue
			}
			if all := strings.Join(theirs.Header[http.CanonicalHeaderKey(string(r.Name(f)))], "; "); !strings.Contains(all, string(r.Value(f))) {
				t.Fatalf("%q: %s is %q, elsewhere %q", fields, r.Name(f), r.Value(f), all)
			}
		}
	})
	if taken == 0 {
		t.Fatal("no head was taken at all")
	}
}

// raw writes a head of exactly these fields.
func (p *peer) raw(end bool, fields []string) *peer {
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.block.Bytes(), EndHeaders: true, EndStream: end})
	return p
}

// elsewhere gives what golang.org/x/net/http2 makes of a head; nil = it refuses it.
func elsewhere(fields []string, end bool) *http.Request {
	client, server := net.Pipe()
	defer client.Close()
	got := make(chan *http.Request, 1)
	go (&http2.Server{}).ServeConn(server, &http2.ServeConnOpts{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r })})
	go func() {
		var wire, block bytes.Buffer
		f := http2.NewFramer(&wire, nil)
		enc := hpack.NewEncoder(&block)
		for i := 0; i < len(fields); i += 2 {
			_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		fmt.Fprint(&wire, http2.ClientPreface)
		_ = f.WriteSettings()
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
		_, _ = client.Write(wire.Bytes())
	}()
	refused := make(chan struct{})
	go func() {
		defer close(refused)
		for f := http2.NewFramer(nil, client); ; {
			fr, err := f.ReadFrame()
			if err != nil {
				return
			}
			switch fr.(type) {
			case *http2.RSTStreamFrame, *http2.GoAwayFrame, *http2.HeadersFrame:
				return
			}
		}
	}()
	select {
	case r := <-got:
		client.Close()
		_, _ = io.Copy(io.Discard, r.Body)
		return r
	case <-refused:
		select {
		case r := <-got: // its answer was faster than the channel
			return r
		default:
			return nil
		}
	}
}
