//lint:file-ignore SA1019 the oracle: net/http has no way to use one connection.

package http2

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"pgregory.net/rapid"
)

var (
	someStatuses    = []string{"200", "204", "304", "404", "599", "101", "103", "20", "2oo", "", "0200"}
	someAnswerNames = []string{"x", "content-length", "content-length", "te", "connection", "X", "", "x y", "transfer-encoding", ":status", ":path", "x_y", "keep-alive", "upgrade", "trailer"}
)

// What this codec takes of an answer, another implementation takes too, and both understand the same: ours is never laxer.
func TestAnswersAreNeverTakenMoreLaxly(t *testing.T) {
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		of := func(name string, all []string) string { return rapid.SampledFrom(all).Draw(t, name) }
		status := "200"
		if rapid.IntRange(0, 2).Draw(t, "odd status") == 0 {
			status = of("status", someStatuses)
		}
		fields := []string{":status", status}
		for range rapid.IntRange(0, 3).Draw(t, "fields") {
			fields = append(fields, of("name", someAnswerNames), of("value", someValues))
		}
		end, method, body := rapid.Bool().Draw(t, "end"), of("method", []string{"GET", "GET", "HEAD"}), of("body", []string{"", "abc"})
		h := reach(&testing.T{})
		s := h.ask(method, 0)
		h.answer(s.ID, end, fields...)
		if !end {
			_ = h.WriteData(s.ID, true, []byte(body))
		}
		h.send()
		if !s.Complete() || s.Gone() {
			return
		}
		taken++
		theirs, got, err := answeredElsewhere(method, fields, end, body)
		if err != nil {
			t.Fatalf("%s %q is an error elsewhere: %v", method, fields, err)
		}
		r := s.Response
		if theirs.StatusCode != r.Status || got != string(s.Buffered()) {
			t.Fatalf("%s %q: %d %q, elsewhere %d %q", method, fields, r.Status, s.Buffered(), theirs.StatusCode, got)
		}
		if want := theirs.ContentLength; r.Status != 204 && r.Status != 304 && want != r.Length && !(method == "HEAD" && r.Length < 0) {
			t.Fatalf("%s %q: a length of %d, elsewhere %d", method, fields, r.Length, want)
		}
		for i := range r.Fields() {
			f := &r.Fields()[i]
			name := http.CanonicalHeaderKey(string(r.Name(f)))
			if all := strings.Join(theirs.Header[name], "\n"); !f.Drop && name != "Trailer" && !strings.Contains(all, string(r.Value(f))) {
				t.Fatalf("%q: %s is %q, elsewhere %q", fields, name, r.Value(f), all)
			}
		}
	})
	if taken == 0 {
		t.Fatal("no answer was taken at all")
	}
}

// answeredElsewhere gives what golang.org/x/net/http2's client makes of an answer.
func answeredElsewhere(method string, fields []string, end bool, body string) (*http.Response, string, error) {
	client, server := net.Pipe()
	defer client.Close()
	defer server.Close()
	_ = server.SetDeadline(time.Now().Add(10 * time.Second))
	go func() {
		_, _ = io.ReadFull(server, make([]byte, len(http2.ClientPreface)))
		var block bytes.Buffer
		enc := hpack.NewEncoder(&block)
		for i := 0; i < len(fields); i += 2 {
			_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		out := make(chan []byte, 10)
		defer close(out)
		go func() {
			for b := range out {
				_, _ = server.Write(b)
			}
		}()
		var wire bytes.Buffer
		w := http2.NewFramer(&wire, nil)
		w.AllowIllegalWrites = true
		_ = w.WriteSettings()
		out <- bytes.Clone(wire.Bytes())
		for f := http2.NewFramer(nil, server); ; {
			fr, err := f.ReadFrame()
			if err != nil {
				return
			}
			if fr.Header().Type != http2.FrameHeaders {
				continue
			}
			wire.Reset()
			_ = w.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: end})
			if !end {
				_ = w.WriteData(1, true, []byte(body))
			}
			out <- bytes.Clone(wire.Bytes())
		}
	}()
	c, err := (&http2.Transport{AllowHTTP: true, DisableCompression: true}).NewClientConn(client)
	if err != nil {
		return nil, "", err
	}
	defer c.Close()
	req, _ := http.NewRequest(method, "http://a.example/x", nil)
	res, err := c.RoundTrip(req)
	if err != nil {
		return nil, "", err
	}
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}
