package http1

import "testing"

// The corpus: what users and researchers reported of other gateways, each with what is sound around it. The numbers are those
// of docs/requirements.md, second part.
var requestSeeds = []string{
	"GET /a?b=c HTTP/1.1\r\nHost: a\r\n\r\n",
	"POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n\r\nabcGET / HTTP/1.1\r\nHost: b\r\n\r\n",
	"POST /x HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX-T: 1\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n",
	"GET http://a:80/ HTTP/1.1\r\nHost: a:80\r\nConnection: close, x\r\nX: y\r\n\r\n",
	"OPTIONS * HTTP/1.0\r\n\r\n",
	"CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
	"GET / HTTP/1.1\nHost: a\n\n",

	// G7, G9: a tunnel that is refused, with another request behind it.
	"CONNECT a:80 HTTP/1.1\r\nHost: a:80\r\nContent-Length: 40\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 777\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\n\r\n",
	// G17: trailers that would be believed in a head.
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-Caller\r\n\r\n0\r\nX-Caller: root\r\nContent-Length: 3\r\nX_Forwarded_For: 1\r\n\r\n",
	// G29: lengths.
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length:\r\n\r\nGET / HTTP/1.1\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3,4\r\n\r\nabc",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0x3\r\n\r\nabc",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3 \r\n\r\nabc",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nContent-Length : 3\r\n\r\nabc",
	// G31: codings.
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding:\r\n chunked\r\nContent-Length: 3\r\n\r\nabc",
	"POST / HTTP/1.0\r\nHost: a\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	// Chunks: extensions, bare LF in them, blanks, signs, what overflows, what ends in LF.
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"b\nc\"\r\nabc\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3;\nxx\r\n4c\r\n0\r\n\r\nGET /admin HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\n0\n\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n10000000000000003\r\nabc\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcxx0\r\n\r\nGET / HTTP/1.1\r\nHost: b\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n: z\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nGET /admin HTTP/1.1\r\nHost: b\r\n\r\n",
	// G33: what Connection names.
	"GET / HTTP/1.1\r\nHost: a\r\nConnection:\r\nConnection: x-forwarded-for, X\r\nX: y\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nConnection: host, content-length\r\nContent-Length: 3\r\n\r\nabc",
	// G39: expectations.
	"POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
	"GET / HTTP/1.1\r\nHost: a\r\nExpect: y 100-continue\r\n\r\n",
	// Hosts and targets.
	"GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n",
	"GET / HTTP/1.1\r\n Host: b\r\nHost: a\r\n\r\n",
	"GET //b/../c?http://x HTTP/1.1\r\nHost: [::1]:80\r\n\r\n",
	"GET / HTTP/1.1\r\nHost: a\r\nX: a\rb\r\nY: \x00\r\n\r\n",
}

var responseSeeds = []string{
	"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 204 No Content\r\n\r\n",
	"HTTP/1.0 304\r\nTransfer-Encoding: chunked\r\n\r\n",
	"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: y\r\n\r\nHTTP/1.1 500 \r\n\r\n",
	// G31, G37: codings, lengths where none may be, bodies where none may be.
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
	"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
	"HTTP/1.1 204 No Content\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 304 Not Modified\r\nContent-Length: 3\r\n\r\nHTTP/1.1 200 OK\r\n\r\nabc",
	"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\nabc",
	"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcdef",
	"HTTP/1.1 200 OK\r\nX: a\r\n b\r\nContent-Length: 0\r\n\r\n",
	"HTTP/1.1 200 O\x7fK\r\nContent-Length: -1\r\n\r\n",
	"HTTP/1.1 999 \r\nConnection: close\r\nContent-Length: 0\r\n\r\n",
	"ICY 200 OK\r\n\r\n",
}

func seeds(f *testing.F) {
	for _, s := range requestSeeds {
		f.Add([]byte(s))
	}
}
