package engine_test

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quic-go/qpack"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cellgate/cellgate/proxy"
	. "github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/http3"
)

// standard is the engine of net/http.
func standard(s *proxy.Server, o Options) runner { return NewNetHTTP(s, o) }

// sample is one request: as bytes of HTTP/1, or in parts, from which both protocols make theirs.
type sample struct {
	raw string

	method, target string
	fields         []string
	body           string
	trailers       []string // with them the body comes in chunks
	open           bool     // the body that was announced doesn't come
}

func (s *sample) http1() string {
	if s.raw != "" {
		return s.raw
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s HTTP/1.1\r\nHost: a.example\r\n", s.method, s.target)
	for i := 0; i < len(s.fields); i += 2 {
		fmt.Fprintf(&b, "%s: %s\r\n", s.fields[i], s.fields[i+1])
	}
	switch {
	case s.trailers != nil:
		fmt.Fprintf(&b, "Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n", len(s.body), s.body)
		for i := 0; i < len(s.trailers); i += 2 {
			fmt.Fprintf(&b, "%s: %s\r\n", s.trailers[i], s.trailers[i+1])
		}
	case s.body != "":
		fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(s.body), s.body)
		return b.String()
	}
	return b.String() + "\r\n"
}

// head is that of HTTP/2 and HTTP/3: names and values.
func (s *sample) head() []string {
	fields := []string{":method", s.method, ":scheme", "https", ":authority", "a.example", ":path", s.target}
	if s.method == "CONNECT" {
		fields = []string{":method", "CONNECT", ":authority", s.target}
	}
	for i := 0; i < len(s.fields); i += 2 {
		fields = append(fields, strings.ToLower(s.fields[i]), s.fields[i+1])
	}
	if s.body != "" && s.trailers == nil {
		fields = append(fields, "content-length", strconv.Itoa(len(s.body)))
	}
	return fields
}

func (s *sample) http3() string {
	b := fieldSection(s.head()...)
	if s.body != "" {
		b += frame3(http3.FrameData, s.body)
	}
	if s.trailers != nil {
		b += fieldSection(s.trailers...)
	}
	return b
}

// samples are good, odd and hostile requests.
func samples() map[string]sample {
	all := map[string]sample{
		"get":                      {method: "GET", target: "/ok?q=1"},
		"head":                     {method: "HEAD", target: "/ok"},
		"options":                  {method: "OPTIONS", target: "/ok"},
		"a long method":            {method: strings.Repeat("G", 65), target: "/ok"},
		"an unknown method":        {method: "BREW", target: "/ok"},
		"trace":                    {method: "TRACE", target: "/ok"},
		"trace in small letters":   {method: "trace", target: "/ok"},
		"track":                    {method: "TRACK", target: "/ok"},
		"post":                     {method: "POST", target: "/ok", body: "hello"},
		"post without a body":      {method: "POST", target: "/ok", fields: []string{"Content-Length", "0"}},
		"trailers":                 {method: "POST", target: "/ok", body: "hello", trailers: []string{"x-sum", "1", "x-caller", "root"}},
		"te trailers":              {method: "GET", target: "/ok", fields: []string{"TE", "trailers"}},
		"te in a list":             {method: "GET", target: "/ok", fields: []string{"TE", "gzip;q=0.5, trailers", "TE", "deflate"}},
		"an expectation":           {method: "POST", target: "/ok", fields: []string{"Expect", "100-continue"}, body: "hello"},
		"another expectation":      {method: "POST", target: "/ok", fields: []string{"Expect", "tea"}, body: "hello"},
		"fields twice":             {method: "GET", target: "/ok", fields: []string{"X-A", "1", "X-A", "2", "Accept", "a", "Cookie", "a=1"}},
		"fields of ours":           {method: "GET", target: "/ok", fields: []string{"X-Forwarded-For", "1.2.3.4", "X-Caller", "root", "X_Caller", "root", "Forwarded", "for=1", "X-Request-Id", "1", "X-Forwarded", "for=1", "X-Forwarded-Prefix", "/p", "X-Real-IP", "1", "Client-IP", "1", "Proxy", "http://b"}},
		"a value of other letters": {method: "GET", target: "/ok", fields: []string{"X-A", "\xe4\t\xff"}},
		"an empty value":           {method: "GET", target: "/ok", fields: []string{"X-A", ""}},
		"grpc to nowhere":          {method: "POST", target: "/../none", fields: []string{"Content-Type", "application/grpc", "TE", "trailers"}, body: "x"},
		"dots":                     {method: "GET", target: "/a/../ok"},
		"coded dots":               {method: "GET", target: "/a/%2e%2e/ok"},
		"a coded slash":            {method: "GET", target: "/a%2fok"},
		"a broken escape":          {method: "GET", target: "/%zz"},
		"a broken escape behind ?": {method: "GET", target: "/ok?%zz"},
		"odd characters":           {method: "GET", target: "/\"<>^`{|}"},
		"two slashes":              {method: "GET", target: "//ok"},
		"a fragment":               {method: "GET", target: "/ok#x"},
		"options for all":          {method: "OPTIONS", target: "*"},
		"get for all":              {method: "GET", target: "*"},
		"connect":                  {method: "CONNECT", target: "a.example:443"},
		"a long target":            {method: "GET", target: "/" + strings.Repeat("x", 9<<10)},
		"an upgrade":               {method: "GET", target: "/ok", fields: []string{"Connection", "Upgrade", "Upgrade", "foo"}},
		"h2c":                      {method: "GET", target: "/ok", fields: []string{"Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c", "HTTP2-Settings", "AA"}},
		"named fields":             {method: "GET", target: "/ok", fields: []string{"Connection", "X-A, X-Request-Timeout-Ms", "X-A", "1", "X-B", "2"}},
		"keep-alive":               {method: "GET", target: "/ok", fields: []string{"Keep-Alive", "1"}},
		"two lengths":              {method: "POST", target: "/ok", fields: []string{"Content-Length", "4", "Content-Length", "5"}},
		"two equal lengths":        {method: "POST", target: "/ok", fields: []string{"Content-Length", "5"}, body: "hello"},
		"answered in chunks":       {method: "GET", target: "/chunks"},
		"answered with trailers":   {method: "GET", target: "/trailers"},
		"answered with no body":    {method: "GET", target: "/nobody"},
		"answered 600":             {method: "GET", target: "/600"},
		"answered 204":             {method: "GET", target: "/204"},
		"answered 304":             {method: "GET", target: "/304"},
		"answered 500":             {method: "GET", target: "/500"},
		"answered 599":             {method: "GET", target: "/599"},
		"answered in the end":      {method: "GET", target: "/103"},
		"answered hop by hop":      {method: "GET", target: "/hops"},
		"answered with garbage":    {method: "GET", target: "/garbage"},
		"an answer that breaks":    {method: "GET", target: "/dies"},
		"nobody answers":           {method: "POST", target: "/closes", body: "hello"},
	}
	for _, n := range []int{99, 101} { // Host is one more over HTTP/1 alone
		var many []string
		for i := range n {
			many = append(many, fmt.Sprint("X-", i), "1")
		}
		all[fmt.Sprint(n, " fields")] = sample{method: "GET", target: "/ok", fields: many}
	}
	for name, raw := range map[string]string{
		"no host":                  "GET /ok HTTP/1.1\r\n\r\n",
		"two hosts":                "GET /ok HTTP/1.1\r\nHost: a.example\r\nHost: a.example\r\n\r\n",
		"a host with a path":       "GET /ok HTTP/1.1\r\nHost: a.example/x\r\n\r\n",
		"a host with a user":       "GET /ok HTTP/1.1\r\nHost: u@a.example\r\n\r\n",
		"an empty host":            "GET /ok HTTP/1.1\r\nHost:\r\n\r\n",
		"absolute":                 "GET http://a.example/ok HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"absolute, another host":   "GET http://a.example/ok HTTP/1.1\r\nHost: b.example\r\n\r\n",
		"absolute, another scheme": "GET ftp://a.example/ok HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"absolute, no host":        "GET http:/ok HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"absolute, a user":         "GET http://u@a.example/ok HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"absolute, no path":        "GET http://a.example HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"absolute, a query":        "GET http://a.example?q=1 HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"http 1.0":                 "GET /ok HTTP/1.0\r\nHost: a.example\r\n\r\n",
		"http 1.0, kept":           "GET /ok HTTP/1.0\r\nHost: a.example\r\nConnection: keep-alive\r\n\r\n",
		"http 1.2":                 "GET /ok HTTP/1.2\r\nHost: a.example\r\n\r\n",
		"http 2.0":                 "GET /ok HTTP/2.0\r\nHost: a.example\r\n\r\n",
		"http 0.9":                 "GET /ok?with-a-longer-query\r\n\r\n",
		"close":                    "GET /ok HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n",
		"length and chunks":        "POST /ok HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunks twice":             "POST /ok HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"another coding":           "POST /ok HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"identity":                 "POST /ok HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: identity\r\n\r\n",
		"chunks in http 1.0":       "POST /ok HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"a length with a sign":     "POST /ok HTTP/1.1\r\nHost: a.example\r\nContent-Length: +3\r\n\r\nabc",
		"an empty length":          "POST /ok HTTP/1.1\r\nHost: a.example\r\nContent-Length: \r\n\r\n",
		"a list of lengths":        "POST /ok HTTP/1.1\r\nHost: a.example\r\nContent-Length: 3, 3\r\n\r\nabc",
		"a chunk extension":        "POST /ok HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n",
		"an open quote":            "POST /ok HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3;a=\"\r\nabc\r\n0\r\n\r\n",
		"a chunk that is no hex":   "POST /ok HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nabc\r\n0\r\n\r\n",
		"a bare LF in a chunk":     "POST /ok HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n",
		"bare LFs":                 "GET /ok HTTP/1.1\nHost: a.example\n\n",
		"a bare CR":                "GET /ok HTTP/1.1\r\nHost: a.example\r\nX-A: a\rb\r\n\r\n",
		"a folded line":            "GET /ok HTTP/1.1\r\nHost: a.example\r\nX-A: a\r\n b\r\n\r\n",
		"a blank ahead of :":       "GET /ok HTTP/1.1\r\nHost: a.example\r\nX-A : a\r\n\r\n",
		"a blank in a name":        "GET /ok HTTP/1.1\r\nHost: a.example\r\nX A: a\r\n\r\n",
		"no colon":                 "GET /ok HTTP/1.1\r\nHost: a.example\r\nX-A\r\n\r\n",
		"a NUL":                    "GET /ok HTTP/1.1\r\nHost: a.example\r\nX-A: a\x00b\r\n\r\n",
		"two blanks in the line":   "GET  /ok HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"a blank in the target":    "GET /ok x HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"a letter beyond ASCII":    "GET /\xe4 HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"an empty line first":      "\r\nGET /ok HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"fields of 70 kB":          "GET /ok HTTP/1.1\r\nHost: a.example\r\nX-A: " + strings.Repeat("x", 70<<10) + "\r\n\r\n",
		"a method with a bracket":  "G(T /ok HTTP/1.1\r\nHost: a.example\r\n\r\n",
	} {
		all[name] = sample{raw: raw}
	}
	return all
}

// answerer is the upstream: it keeps what it gets, in an order of its own, and answers by path.
func answerer(t *testing.T, seen chan string) string {
	return scripted(t, func(_ int, c *raw) {
		for {
			req, err := http.ReadRequest(c.r)
			if err != nil {
				return
			}
			body, err := io.ReadAll(req.Body)
			if err != nil { // the client's fault, which may become known ahead of it or behind it
				return
			}
			seen <- told(req, body)
			switch req.URL.Path {
			case "/chunks":
				c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")
			case "/trailers":
				c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n3\r\nabc\r\n0\r\nX-Sum: 1\r\nX-Other: 2\r\n\r\n")
			case "/nobody":
				c.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum\r\n\r\n0\r\nX-Sum: 1\r\n\r\n")
			case "/204":
				c.send("HTTP/1.1 204 No Content\r\nX-A: 1\r\n\r\n")
			case "/304":
				c.send("HTTP/1.1 304 Not Modified\r\nEtag: \"1\"\r\nContent-Length: 5\r\n\r\n")
			case "/500", "/599", "/600":
				c.send("HTTP/1.1 " + req.URL.Path[1:] + " Odd\r\nContent-Length: 3\r\n\r\nabc")
			case "/103":
				c.send("HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
			case "/hops":
				c.send("HTTP/1.1 200 OK\r\nConnection: X-A\r\nX-A: 1\r\nKeep-Alive: 1\r\nUpgrade: h3\r\nX-B: 2\r\nContent-Length: 2\r\n\r\nok")
			case "/garbage":
				c.send("ICY 200 OK\r\n\r\n")
				return
			case "/dies":
				c.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nabc")
				return
			case "/closes":
				return
			default:
				c.send("HTTP/1.1 200 OK\r\nDate: now\r\nX-A: 1\r\nX-A: 2\r\nContent-Length: 2\r\n\r\n")
				if req.Method != "HEAD" {
					c.send("ok")
				}
			}
		}
	})
}

func told(req *http.Request, body []byte) string {
	return fmt.Sprintf("%s %s %s %q %d %q %v", req.Method, req.RequestURI, req.Host, lines(req.Header, "X-Request-Id", "Traceparent", "X-Request-Timeout-Ms", "X-Forwarded-Proto", "X-Forwarded-For"),
		req.ContentLength, body, lines(req.Trailer))
}

// answerer2 gives the answers of answerer over HTTP/2.
func answerer2(t *testing.T, seen chan string) string {
	return handler2(t, nil, func(w http.ResponseWriter, req *http.Request) {
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		seen <- told(req, body)
		h := w.Header()
		h["Date"], h["Content-Type"] = nil, nil
		give := func(status int, length, body string) {
			if length != "" {
				h.Set("Content-Length", length)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
			_ = http.NewResponseController(w).Flush()
		}
		switch req.URL.Path {
		case "/chunks":
			give(200, "", "abcdef")
		case "/trailers":
			h.Set("Trailer", "X-Sum")
			give(200, "", "abc")
			h.Set("X-Sum", "1")
			h.Set(http.TrailerPrefix+"X-Other", "2")
		case "/nobody":
			h.Set("Trailer", "X-Sum")
			give(200, "", "")
			h.Set("X-Sum", "1")
		case "/204":
			h.Set("X-A", "1")
			give(204, "", "")
		case "/304":
			h.Set("Etag", `"1"`)
			give(304, "5", "")
		case "/500":
			give(500, "3", "abc")
		case "/599":
			give(599, "3", "abc")
		case "/600":
			give(600, "3", "abc")
		case "/103":
			h.Set("Link", "x")
			w.WriteHeader(103)
			h.Del("Link")
			give(200, "2", "ok")
		case "/hops":
			h.Set("X-B", "2")
			give(200, "2", "ok")
		case "/dies":
			give(200, "10", "abc")
			panic(http.ErrAbortHandler)
		case "/garbage", "/closes":
			panic(http.ErrAbortHandler)
		default:
			h["X-A"] = []string{"1", "2"}
			give(200, "2", "ok")
		}
	})
}

// otherUpstreamOver2 are the samples whose outcome HTTP/2 to the upstream can't share.
func otherUpstreamOver2() map[string]string {
	return map[string]string{
		"answered with garbage": "a stream that is reset instead",
		"te in a list":          "there is no Connection",
		"te trailers":           "there is no Connection",
		"trailers":              "net/http drops those that weren't announced",
	}
}

// lines are fields in an order of their own, without some.
func lines(h http.Header, without ...string) (all []string) {
	for name, values := range h {
		if !slices.Contains(without, name) {
			all = append(all, strings.ToLower(name)+": "+strings.Join(values, "|"))
		}
	}
	slices.Sort(all)
	return all
}

// outcome is what a request came to, for the client and for the upstream.
func outcome(status int, fields http.Header, trailers []string, body string, cut bool, seen chan string) string {
	if why := fields.Get("X-Cellgate-Reason"); why != "" {
		body = why // a problem document holds the request's id
	}
	said := fmt.Sprintf("%d %q %v %q cut=%v", status, lines(fields, "Date", "X-Request-Id", "Connection", "Trailer", "Alt-Svc"), trailers, body, cut)
	switch {
	case status > 0 && fields.Get("X-Request-Id") == "":
		said = fmt.Sprint(status, " in net/http's words")
	case cut:
		said = "cut short" // over HTTP/3 the reset may overtake what came before it
	case status == 0:
		said = "no answer"
	}
	for {
		select {
		case s := <-seen:
			said += "\n\tupstream: " + s
		default:
			return said
		}
	}
}

func overHTTP1(t *testing.T, w *world, s sample, seen chan string) string {
	c := w.dial()
	defer c.Close()
	_, _ = io.WriteString(c, s.http1()) // it may be refused before it is whole
	res, err := http.ReadResponse(c.r, &http.Request{Method: s.method})
	for err == nil && res.StatusCode < 200 {
		res, err = http.ReadResponse(c.r, &http.Request{Method: s.method})
	}
	if err != nil {
		return outcome(0, nil, nil, "", false, seen)
	}
	body, err := io.ReadAll(res.Body)
	return outcome(res.StatusCode, res.Header, lines(res.Trailer), string(body), err != nil, seen)
}

func overHTTP2(w *world, s sample, seen chan string) string {
	c := w.dial()
	defer c.Close()
	f := http2.NewFramer(c, c.r)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	_, _ = io.WriteString(c, http2.ClientPreface)
	_ = f.WriteSettings()
	block := func(fields []string) []byte {
		var b bytes.Buffer
		enc := hpack.NewEncoder(&b)
		for i := 0; i < len(fields); i += 2 {
			_ = enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
		}
		return b.Bytes()
	}
	_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(s.head()), EndHeaders: true, EndStream: s.body == "" && !s.open})
	if s.body != "" {
		_ = f.WriteData(1, s.trailers == nil, []byte(s.body))
	}
	if s.trailers != nil {
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(s.trailers), EndHeaders: true, EndStream: true})
	}
	status, fields, trailers, body, cut := 0, http.Header{}, []string(nil), "", false
	for ended := false; !ended; {
		frame, err := f.ReadFrame()
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			h := http.Header{}
			for _, field := range frame.RegularFields() {
				h.Add(field.Name, field.Value)
			}
			if said := frame.PseudoValue("status"); said != "" {
				status, _ = strconv.Atoi(said)
				fields = h
			} else {
				trailers = lines(h)
			}
			ended = frame.StreamEnded()
		case *http2.DataFrame:
			body += string(frame.Data())
			ended = frame.StreamEnded()
		case *http2.RSTStreamFrame:
			ended, cut = true, status > 0
		default:
			ended, cut = err != nil, err != nil && status > 0
		}
	}
	return outcome(status, fields, trailers, body, cut, seen)
}

func overHTTP3(r *h3Raw, s sample, seen chan string) string {
	b, err := io.ReadAll(r.request(s.http3(), !s.open))
	status, fields, trailers, body := 0, http.Header{}, []string(nil), ""
	for len(b) > 0 {
		typ, length, n := http3.FrameHead(b)
		if n == 0 || uint64(len(b)-n) < length {
			err = io.ErrUnexpectedEOF
			break
		}
		payload := b[n : n+int(length)]
		b = b[n+int(length):]
		if typ == http3.FrameData {
			body += string(payload)
			continue
		}
		section := decoded(payload)
		if said := section.Get(":status"); said != "" {
			status, _ = strconv.Atoi(said)
			section.Del(":status")
			fields = section
		} else {
			trailers = lines(section)
		}
	}
	return outcome(status, fields, trailers, body, err != nil, seen)
}

func decoded(block []byte) http.Header {
	h := http.Header{}
	next := qpack.NewDecoder().Decode(block)
	for f, err := next(); err == nil; f, err = next() {
		h.Add(f.Name, f.Value)
	}
	return h
}

// Every engine and protocol makes the same of the same request: for the client, and for the upstream. What may differ is
// named here with the reason; a name that doesn't differ any more must go.
func TestEnginesAndProtocolsAgree(t *testing.T) {
	t.Parallel()
	type way struct {
		name    string
		ask     func(sample) string
		differs map[string]string
	}
	var ways []way
	over1 := func(name string, kind maker, differs map[string]string) {
		seen := make(chan string, 10)
		w := start(t, kind, answerer(t, seen), setup{silent: true})
		ways = append(ways, way{name, func(s sample) string { return overHTTP1(t, w, s, seen) }, differs})
	}
	over1("goroutine", goroutines, nil)
	over1("nethttp", standard, laxNetHTTP())
	if loops := engines()["loop"]; loops != nil {
		over1("loop", loops, nil)
	}
	over1to2 := func(name string, kind maker, differs map[string]string) {
		seen := make(chan string, 10)
		w := start(t, kind, answerer2(t, seen), setup{silent: true, document: over2("")})
		ways = append(ways, way{name, func(s sample) string { return overHTTP1(t, w, s, seen) }, differs})
	}
	over1to2("goroutine, upstream over 2", goroutines, otherUpstreamOver2())
	over1to2("nethttp, upstream over 2", standard, both(laxNetHTTP(), otherUpstreamOver2()))
	if loops := engines()["loop"]; loops != nil {
		over1to2("loop, upstream over 2", loops, otherUpstreamOver2())
	}
	by2 := func(name string, kind maker, differs map[string]string) {
		seen := make(chan string, 10)
		w := start(t, kind, answerer(t, seen), setup{silent: true})
		ways = append(ways, way{name, func(s sample) string { return overHTTP2(w, s, seen) }, differs})
	}
	by2("HTTP/2", goroutines, otherOverHTTP3())
	if loops := engines()["loop"]; loops != nil {
		by2("loop, HTTP/2", loops, otherOverHTTP3())
	}
	by2("nethttp, HTTP/2", standard, laxNetHTTP2())
	seen := make(chan string, 10)
	r := start(t, goroutines, answerer(t, seen), setup{silent: true, h3: true}).h3Dial(control)
	ways = append(ways, way{"HTTP/3", func(s sample) string { return overHTTP3(r, s, seen) }, otherOverHTTP3()})
	all := samples()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		s, want := all[name], ""
		for i, w := range ways {
			if s.raw != "" && strings.Contains(w.name, "HTTP/") {
				continue
			}
			got := w.ask(s)
			why, known := w.differs[name]
			switch {
			case i == 0:
				want = got
			case got != want && !known:
				t.Errorf("%s, %s:\n\t%s\nwant as %s:\n\t%s", name, w.name, got, ways[0].name, want)
			case got == want && known:
				t.Errorf("%s, %s: no longer differs (%s)", name, w.name, why)
			}
		}
	}
}

// both are two sets of differences.
func both(a, b map[string]string) map[string]string {
	maps.Copy(a, b)
	return a
}

// laxNetHTTP is where net/http is laxer, or refuses in its own words, before the pipeline hears of a request.
func laxNetHTTP() map[string]string {
	differs := map[string]string{
		"a folded line":          "lines are unfolded, which RFC 9112 allows (section 5.2)",
		"absolute, another host": "the target wins over the Host field, as RFC 9112 says for those who take it (section 3.2.2)",
		"bare LFs":               "a bare LF ends a line, which RFC 9112 allows (section 2.2)",
		"chunks in http 1.0":     "a coding that HTTP/1.0 doesn't have is ignored",
		"length and chunks":      "chunks win, which RFC 9112 allows for those who close afterwards (section 6.3)",
		"two equal lengths":      "equal lengths are one, which RFC 9112 allows (section 6.3)",
		"an open quote":          "extensions are not looked at; the connection is closed behind chunks",
		"http 1.2":               "minor versions to come are taken",
		"answered 304":           "the length that a 304 announces is not passed on",
	}
	for _, name := range []string{
		"a NUL", "a bare CR", "a blank ahead of :", "a blank in a name", "a blank in the target", "a broken escape", "a host with a path",
		"a host with a user", "a length with a sign", "a list of lengths", "a method with a bracket", "an empty length", "an empty line first",
		"another coding", "another expectation", "chunks twice", "fields of 70 kB", "http 0.9", "http 2.0", "identity", "no colon", "no host",
		"two blanks in the line", "two hosts", "two lengths",
	} {
		differs[name] = "refused in net/http's words"
	}
	return differs
}

// otherOverHTTP3 is where a request means something else, over HTTP/2 as well: the fields of a connection make one malformed
// (RFC 9113, section 8.2.2, and RFC 9114, section 4.2).
func otherOverHTTP3() map[string]string {
	differs := map[string]string{}
	for _, name := range []string{"an upgrade", "h2c", "keep-alive", "named fields", "te in a list"} {
		differs[name] = "a field of HTTP/1 connections"
	}
	return differs
}

// laxNetHTTP2 is where net/http's HTTP/2 does less, or refuses in its own words or without any.
func laxNetHTTP2() map[string]string {
	differs := map[string]string{"trailers": "only trailers that are announced are kept"}
	for _, name := range []string{"a broken escape", "an upgrade", "h2c", "keep-alive", "named fields", "te in a list"} {
		differs[name] = "refused by net/http"
	}
	return differs
}

// A Host field beside the authority says the same, or is refused (RFC 9113, section 8.3.1); alone it is the authority.
func TestAHostBesideTheAuthorityIsTheSame(t *testing.T) {
	t.Parallel()
	kinds := engines()
	kinds["nethttp"] = standard
	for name, kind := range kinds {
		seen := make(chan string, 10)
		w := start(t, kind, answerer(t, seen), setup{silent: true})
		for host, want := range map[string]string{"a.example": "200 ", "b.example": "400 "} {
			if got := overHTTP2(w, sample{method: "GET", target: "/ok", fields: []string{"Host", host}}, seen); !strings.HasPrefix(got, want) {
				t.Errorf("%s, %s: %s", name, host, got)
			}
		}
	}
}
