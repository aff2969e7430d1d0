package proxy

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/http1"
)

// once are the fields of which the upstream gets one, ours.
var once = []string{"Host", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Request-Id", "X-Request-Timeout-Ms"}

// never are those of which it gets none from a client.
var never = []string{"X-Caller", "X-Real-Ip", "Forwarded", "Proxy", "Keep-Alive", "Proxy-Connection", "Upgrade", "Http2-Settings", "X-Forwarded-Prefix", "Expect"}

// Whatever a client sends over any protocol, an upstream reads one request, with the length that we send, our words on where it
// comes from, and nothing behind it.
func FuzzAnUpstreamReadsOneRequest(f *testing.F) {
	for _, s := range []string{
		"GET /open HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"POST /x?y HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\nConnection: x-forwarded-for, content-length\r\n\r\n",
		"POST /x HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\nTE: trailers\r\nX_Forwarded-For: 1\r\n\r\n",
		"GET http://a.example/%2e%2e/\"x?<> HTTP/1.1\r\nHost: a.example\r\nX-Forwarded-For: 1\r\nX-Caller: root\r\nx-Request-ID: 1\r\n\r\n",
		"OPTIONS * HTTP/1.1\r\nHost: a.example\r\nUpgrade: websocket\r\nProxy: x\r\n\r\n",
		"M-SEARCH //a/../b;c HTTP/1.0\r\nHost: A.EXAMPLE:80\r\nConnection: keep-alive\r\nGrpc-Timeout: 1S\r\n\r\n",
	} {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	srv := serverWith(f, &script{refuse: -1}, `
version: v1
routes: [{id: any, match: {path_prefix: /, allow_catch_all: true}, upstream: up}]
upstreams: [{id: up, endpoints: ["127.0.0.1:1"]}]
`)
	f.Fuzz(func(t *testing.T, head []byte, built bool) {
		x := srv.Acquire()
		defer srv.Release(x)
		x.Start, x.PeerText = time.Now(), "192.0.2.1"
		if n, err := x.Request.Parse(head); n == 0 || err != nil {
			return
		}
		if built && !rebuild(&x.Request, head) {
			return
		}
		if x.Run(time.Now()) != Next || x.Tunnel {
			return
		}
		length := int64(0)
		if x.Request.Chunked {
			length = -1
		} else if x.Request.Length > 0 {
			length = x.Request.Length
		}
		wire := x.AppendRequest(nil, length, time.Now())
		r := bufio.NewReader(bytes.NewReader(wire))
		req, err := http.ReadRequest(r)
		if err != nil {
			t.Fatalf("%q: %v", wire, err)
		}
		if rest, _ := io.ReadAll(r); len(rest) > 0 {
			t.Fatalf("%q has %q behind it", wire, rest)
		}
		if req.Host != string(x.Request.Authority()) || req.Method != string(x.Request.Method()) || req.ContentLength != length || strings.ContainsAny(req.RequestURI, " \r\n\t#") {
			t.Fatalf("%q: %s %s %s %d", wire, req.Method, req.Host, req.RequestURI, req.ContentLength)
		}
		for _, name := range once {
			if n := bytes.Count(bytes.ToLower(wire), []byte("\r\n"+strings.ToLower(name)+":")); n != 1 {
				t.Fatalf("%q: %d times %s", wire, n, name)
			}
		}
		for _, name := range never {
			if v := req.Header.Values(name); len(v) > 0 {
				t.Fatalf("%q: %s %q", wire, name, v)
			}
		}
	})
}

// rebuild makes the request as one that has come over HTTP/2 or HTTP/3.
func rebuild(r *http1.Request, head []byte) bool {
	var from http1.Request
	if n, err := from.Parse(bytes.Clone(head)); n == 0 || err != nil {
		return false
	}
	r.Build(nil)
	r.PutMethod(from.Method())
	r.PutAuthority(from.Authority())
	if r.PutTarget(from.Target()) != nil {
		return false
	}
	for i := range from.Fields() {
		f := &from.Fields()[i]
		switch f.Kind {
		case http1.Connection, http1.TransferEncoding, http1.Upgrade, http1.TE:
			continue // which the codecs refuse
		}
		if _, err := r.Put(bytes.ToLower(from.Name(f)), from.Value(f)); err != nil {
			return false
		}
	}
	return r.Built(true) == nil
}
