package http2

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cellgate/cellgate/proxy/http1"
)

var epoch = time.Unix(1e9, 0)

// peer is a client that another implementation writes the frames of, in front of a server.
type peer struct {
	*http2.Framer
	t      testing.TB
	c      Server
	now    time.Time
	wire   bytes.Buffer
	block  bytes.Buffer
	enc    *hpack.Encoder
	spare  *Stream
	opened []*Stream
	events []Event
	said   []http2.Frame // what the server has sent, read by the other implementation
	dec    *hpack.Decoder
}

func newSpare() *Stream { return &Stream{Request: new(http1.Request)} }

// connect begins a connection and passes the preface and the settings.
func connect(t testing.TB, settings ...http2.Setting) *peer {
	p := &peer{t: t, now: epoch, spare: newSpare(), dec: hpack.NewDecoder(0, nil)}
	p.Framer = http2.NewFramer(&p.wire, nil)
	p.AllowIllegalWrites = true
	p.enc = hpack.NewEncoder(&p.block)
	p.c.Start(p.now, Times{})
	p.wire.WriteString(http2.ClientPreface)
	_ = p.WriteSettings(settings...)
	p.send()
	return p
}

// send feeds what was written.
func (p *peer) send() *peer {
	p.feed(bytes.Clone(p.wire.Bytes()))
	p.wire.Reset()
	return p
}

func (p *peer) feed(b []byte) {
	for len(b) > 0 {
		n, ev := p.c.Feed(b, p.spare, p.now)
		b = b[n:]
		if ev.Kind != None {
			p.events = append(p.events, ev)
		}
		if ev.Kind == Opened {
			p.opened = append(p.opened, ev.Stream)
			p.spare = newSpare()
		}
		if n == 0 && ev.Kind == None {
			p.t.Fatal("Feed stands still")
		}
	}
	p.hear()
}

// hear reads what the server has to say.
func (p *peer) hear() {
	f := http2.NewFramer(nil, bytes.NewReader(p.c.Out(nil)))
	f.ReadMetaHeaders = p.dec
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			if err.Error() != "EOF" {
				p.t.Fatalf("the server sends what can't be read: %v", err)
			}
			return
		}
		switch fr := fr.(type) {
		case *http2.DataFrame:
			p.said = append(p.said, &data{fr.Header(), bytes.Clone(fr.Data())})
		case *http2.SettingsFrame, *http2.WindowUpdateFrame, *http2.RSTStreamFrame, *http2.GoAwayFrame, *http2.PingFrame, *http2.MetaHeadersFrame:
			p.said = append(p.said, fr)
		default:
			p.t.Fatalf("the server sends %v", fr)
		}
	}
}

// data is a DATA frame that outlives its framer's buffer.
type data struct {
	http2.FrameHeader
	payload []byte
}

// head writes a request; fields are names and values, after the usual pseudo-header fields unless they begin with one.
func (p *peer) head(id uint32, end bool, fields ...string) *peer {
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: p.encode(fields), EndHeaders: true, EndStream: end})
	return p
}

func (p *peer) encode(fields []string) []byte {
	if len(fields) == 0 || !strings.HasPrefix(fields[0], ":") {
		fields = append([]string{":method", "POST", ":scheme", "https", ":authority", "a.example", ":path", "/x"}, fields...)
	}
	p.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = p.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	return p.block.Bytes()
}

// resets are the streams that the server has reset, with the codes.
func (p *peer) resets() string {
	var all []string
	for _, f := range p.said {
		if r, ok := f.(*http2.RSTStreamFrame); ok {
			all = append(all, fmt.Sprintf("%d:%d", r.StreamID, r.ErrCode))
		}
	}
	return strings.Join(all, " ")
}

func last[T any](p *peer) (v T) {
	for _, f := range p.said {
		if f, ok := f.(T); ok {
			v = f
		}
	}
	return v
}

func TestARequestGoesInAndItsAnswerOut(t *testing.T) {
	p := connect(t)
	p.head(1, false, "x-a", "b", "content-length", "5").send()
	s := p.opened[0]
	if r := s.Request; string(r.Method())+" "+string(r.Authority())+string(r.Target()) != "POST a.example/x" || r.Length != 5 || r.Chunked {
		t.Fatalf("%s %s %s %d", r.Method(), r.Authority(), r.Target(), r.Length)
	}
	if v, _ := s.Request.Find("x-a"); string(v) != "b" {
		t.Fatalf("%q", v)
	}
	_ = p.WriteDataPadded(1, false, []byte("hel"), make([]byte, 7))
	_ = p.WriteData(1, true, []byte("lo"))
	p.send()
	if string(s.Buffered()) != "hello" || !s.Complete() {
		t.Fatalf("%q %v", s.Buffered(), s.Complete())
	}
	p.c.BeginHead(s, 418)
	PutField(&p.c, "X-Long", strings.Repeat("v", 40000)) // three frames
	p.c.EndHead(s, -1, false)
	p.c.Write(s, []byte("tea"))
	p.c.BeginHead(s, 0)
	PutField(&p.c, "grpc-status", "0")
	p.c.EndHead(s, -1, true)
	p.c.Finish(s, p.now)
	p.hear()
	var heads []*http2.MetaHeadersFrame
	for _, f := range p.said {
		if h, ok := f.(*http2.MetaHeadersFrame); ok {
			heads = append(heads, h)
		}
	}
	if len(heads) != 2 || heads[0].PseudoValue("status") != "418" || heads[0].Fields[1].Name != "x-long" || len(heads[0].Fields[1].Value) != 40000 ||
		heads[1].Fields[0].Name != "grpc-status" || !heads[1].StreamEnded() || string(last[*data](p).payload) != "tea" || p.resets() != "" || p.c.Streams() != 0 {
		t.Fatalf("%v %v", heads, p.said)
	}
}

func TestHeads(t *testing.T) {
	const malformed, taken = "malformed", "taken"
	pseudo := func(s ...string) []string { return s }
	for name, c := range map[string]struct {
		fields []string
		want   any // malformed, taken, or the error of a head that is answered
	}{
		"plain":                               {nil, taken},
		"cookies in pieces":                   {pseudo("cookie", "a=b", "cookie", "c=d", "x", "y", "cookie", "e=f"), taken},
		"TE trailers":                         {pseudo("te", "trailers"), taken},
		"the same host twice":                 {pseudo("host", "A.example"), taken},
		"host without authority":              {pseudo(":method", "GET", ":scheme", "http", ":path", "/", "host", "a.example"), taken},
		"OPTIONS *":                           {pseudo(":method", "OPTIONS", ":scheme", "http", ":authority", "a.example", ":path", "*"), taken},
		"CONNECT":                             {pseudo(":method", "CONNECT", ":authority", "a.example:443"), taken},
		"CONNECT with a path":                 {pseudo(":method", "CONNECT", ":scheme", "https", ":authority", "a.example:443", ":path", "/"), malformed},
		"CONNECT without authority":           {pseudo(":method", "CONNECT"), malformed},
		"extended CONNECT (RFC 8441)":         {pseudo(":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "a.example", ":path", "/"), taken},
		"of an unknown protocol":              {pseudo(":method", "CONNECT", ":protocol", "x", ":scheme", "https", ":authority", "a.example", ":path", "/"), taken},
		"its protocol first":                  {pseudo(":protocol", "websocket", ":scheme", "https", ":path", "/", ":authority", "a.example", ":method", "CONNECT"), taken},
		"it without a scheme":                 {pseudo(":method", "CONNECT", ":protocol", "websocket", ":authority", "a.example", ":path", "/"), malformed},
		"it without a path":                   {pseudo(":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "a.example"), malformed},
		"it without an authority":             {pseudo(":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":path", "/"), http1.ErrSyntax},
		"it with another host":                {pseudo(":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "a.example", ":path", "/", "host", "b.example"), http1.ErrSyntax},
		"it with two protocols":               {pseudo(":method", "CONNECT", ":protocol", "websocket", ":protocol", "websocket", ":scheme", "https", ":authority", "a.example", ":path", "/"), malformed},
		"it with an empty protocol":           {pseudo(":method", "CONNECT", ":protocol", "", ":scheme", "https", ":authority", "a.example", ":path", "/"), malformed},
		"it with a list of protocols":         {pseudo(":method", "CONNECT", ":protocol", "websocket, x", ":scheme", "https", ":authority", "a.example", ":path", "/"), malformed},
		"CONNECT with scheme and path":        {pseudo(":method", "CONNECT", ":scheme", "https", ":authority", "a.example", ":path", "/"), malformed},
		"a protocol behind other fields":      {pseudo(":method", "CONNECT", ":scheme", "https", ":authority", "a.example", ":path", "/", "x", "y", ":protocol", "websocket"), malformed},
		"protocol without CONNECT (G3)":       {pseudo(":method", "GET", ":protocol", "websocket", ":scheme", "https", ":authority", "a.example", ":path", "/"), malformed},
		"an unknown pseudo field":             {pseudo(":method", "GET", ":scheme", "http", ":path", "/", ":x", "y"), malformed},
		"a pseudo field of answers":           {pseudo(":method", "GET", ":scheme", "http", ":path", "/", ":status", "200"), malformed},
		"a pseudo field behind others":        {pseudo(":method", "GET", ":scheme", "http", ":authority", "a.example", "x", "y", ":path", "/"), malformed},
		"two methods":                         {pseudo(":method", "GET", ":method", "GET", ":scheme", "http", ":authority", "a.example", ":path", "/"), malformed},
		"two paths":                           {pseudo(":method", "GET", ":path", "/", ":scheme", "http", ":authority", "a.example", ":path", "/"), malformed},
		"two schemes":                         {pseudo(":method", "GET", ":scheme", "http", ":scheme", "http", ":authority", "a.example", ":path", "/"), malformed},
		"two authorities":                     {pseudo(":method", "GET", ":scheme", "http", ":authority", "a.example", ":authority", "a.example", ":path", "/"), malformed},
		"no method":                           {pseudo(":scheme", "http", ":authority", "a.example", ":path", "/"), malformed},
		"no scheme":                           {pseudo(":method", "GET", ":authority", "a.example", ":path", "/"), malformed},
		"no path":                             {pseudo(":method", "GET", ":scheme", "http", ":authority", "a.example"), malformed},
		"an empty path":                       {pseudo(":method", "GET", ":scheme", "http", ":authority", "a.example", ":path", ""), malformed},
		"another scheme":                      {pseudo(":method", "GET", ":scheme", "ftp", ":authority", "a.example", ":path", "/"), malformed},
		"upper case":                          {pseudo("X-a", "b"), malformed},
		"an empty name":                       {pseudo("", "b"), malformed},
		"a blank in a name":                   {pseudo("x a", "b"), malformed},
		"a colon in a name":                   {pseudo("x:a", "b"), malformed},
		"CR in a value":                       {pseudo("x", "a\rb"), malformed},
		"LF in a value":                       {pseudo("x", "a\nb"), malformed},
		"NUL in a value":                      {pseudo("x", "a\x00b"), malformed},
		"a blank before a value":              {pseudo("x", " a"), malformed},
		"a tab behind a value":                {pseudo("x", "a\t"), malformed},
		"LF in a cookie's piece":              {pseudo("cookie", "a=b", "cookie", "c\n"), malformed},
		"connection":                          {pseudo("connection", "close"), malformed},
		"keep-alive":                          {pseudo("keep-alive", "5"), malformed},
		"proxy-connection":                    {pseudo("proxy-connection", "close"), malformed},
		"transfer-encoding":                   {pseudo("transfer-encoding", "chunked"), malformed},
		"upgrade":                             {pseudo("upgrade", "h2c"), malformed},
		"TE gzip":                             {pseudo("te", "trailers, gzip"), malformed},
		"no host at all":                      {pseudo(":method", "GET", ":scheme", "http", ":path", "/"), http1.ErrSyntax},
		"an empty authority":                  {pseudo(":method", "GET", ":scheme", "http", ":authority", "", ":path", "/"), http1.ErrSyntax},
		"a user in the authority":             {pseudo(":method", "GET", ":scheme", "http", ":authority", "u@a.example", ":path", "/"), http1.ErrSyntax},
		"another host":                        {pseudo("host", "b.example"), http1.ErrSyntax},
		"two hosts":                           {pseudo("host", "a.example", "host", "a.example"), http1.ErrSyntax},
		"a relative path":                     {pseudo(":method", "GET", ":scheme", "http", ":authority", "a.example", ":path", "x"), http1.ErrSyntax},
		"a fragment":                          {pseudo(":method", "GET", ":scheme", "http", ":authority", "a.example", ":path", "/#x"), http1.ErrSyntax},
		"a blank in the path":                 {pseudo(":method", "GET", ":scheme", "http", ":authority", "a.example", ":path", "/a b"), http1.ErrSyntax},
		"half an escape":                      {pseudo(":method", "GET", ":scheme", "http", ":authority", "a.example", ":path", "/%4"), http1.ErrSyntax},
		"a blank in the method":               {pseudo(":method", "G T", ":scheme", "http", ":authority", "a.example", ":path", "/"), http1.ErrSyntax},
		"an unknown expectation":              {pseudo("expect", "tea"), http1.ErrSyntax},
		"two lengths":                         {pseudo("content-length", "3", "content-length", "3"), http1.ErrFraming},
		"a length with a sign (G29)":          {pseudo("content-length", "+3"), http1.ErrFraming},
		"an empty length (G29)":               {pseudo("content-length", ""), http1.ErrFraming},
		"a list of lengths (G29)":             {pseudo("content-length", "3,3"), http1.ErrFraming},
		"a long path":                         {pseudo(":method", "GET", ":scheme", "http", ":authority", "a.example", ":path", "/"+strings.Repeat("x", http1.MaxTarget)), http1.ErrURL},
		"many fields":                         {slices.Repeat(pseudo("x", "y"), http1.MaxFields+1), http1.ErrTooMany},
		"much":                                {slices.Repeat(pseudo("x", strings.Repeat("y", 3000)), 30), http1.ErrTooLarge},
		"a bomb of references into the table": {slices.Repeat(pseudo("x", strings.Repeat("y", 4000)), 17), http1.ErrTooLarge},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t)
			p.head(1, false, c.fields...).send()
			got := any(taken)
			switch {
			case p.resets() == "1:1":
				got = malformed
			case len(p.opened) == 1 && p.events[0].Err != nil:
				got = p.events[0].Err
			case len(p.opened) != 1:
				got = fmt.Sprint("nothing: ", p.said)
			}
			if got != c.want {
				t.Fatalf("%v, want %v", got, c.want)
			}
			p.head(3, true).send() // the connection goes on, and its table is in step
			if s := p.opened[len(p.opened)-1]; s.ID != 3 || string(s.Request.Authority()) != "a.example" {
				t.Fatalf("%v", p.said)
			}
		})
	}
}

// RFC 9113, section 8.5: on a stream that CONNECT has opened there is DATA, and an end without trailers.
func TestAConnectedStreamTakesNoTrailers(t *testing.T) {
	p := connect(t)
	p.head(1, false, ":method", "CONNECT", ":protocol", "websocket", ":scheme", "https", ":authority", "a.example", ":path", "/").send()
	_ = p.WriteData(1, false, []byte("early"))
	p.send()
	s := p.opened[0]
	if string(s.Request.Protocol()) != "websocket" || string(s.Buffered()) != "early" || s.Complete() {
		t.Fatalf("%q %q", s.Request.Protocol(), s.Buffered())
	}
	p.head(1, true, "x", "y").send()
	if p.resets() != "1:1" || s.Complete() {
		t.Fatal(p.said)
	}
}

func TestTheServerOffersExtendedConnect(t *testing.T) {
	var c Server
	c.Start(epoch, Times{})
	f, err := http2.NewFramer(nil, bytes.NewReader(c.Out(nil))).ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	if v, ok := f.(*http2.SettingsFrame).Value(http2.SettingEnableConnectProtocol); !ok || v != 1 {
		t.Fatal(f)
	}
}

func TestCookiesAreJoined(t *testing.T) {
	p := connect(t)
	p.head(1, true, "cookie", "a=b", "cookie", "c=d", "x", "y", "cookie", "e=f").send()
	r := p.opened[0].Request
	if v, _ := r.Find("cookie"); string(v) != "a=b; c=d; e=f" || len(r.Fields()) != 2 {
		t.Fatalf("%q, %d fields", v, len(r.Fields()))
	}
}

func TestTrailers(t *testing.T) {
	for name, c := range map[string]struct {
		fields []string
		end    bool
		want   string
	}{
		"plain":             {[]string{"x-sum", "42", "x-caller", "root"}, true, ""},
		"a pseudo field":    {[]string{":path", "/"}, true, "1:1"},
		"without an end":    {[]string{"x-sum", "42"}, false, "1:1"},
		"upper case":        {[]string{"X", "42"}, true, "1:1"},
		"HTTP/1's":          {[]string{"connection", "close"}, true, "1:1"},
		"more than allowed": {slices.Repeat([]string{"x", "y"}, 101), true, "1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t)
			p.head(1, false).send()
			_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, EndHeaders: true, EndStream: c.end, BlockFragment: func() []byte {
				p.block.Reset()
				for i := 0; i < len(c.fields); i += 2 {
					_ = p.enc.WriteField(hpack.HeaderField{Name: c.fields[i], Value: c.fields[i+1]})
				}
				return p.block.Bytes()
			}()})
			p.send()
			if p.resets() != c.want {
				t.Fatalf("%q, want %q", p.resets(), c.want)
			}
			if s := p.opened[0]; c.want == "" && (!s.Complete() || s.Trailer == nil || string(s.Trailer.AppendFields(nil)) != "x-sum: 42\r\n") {
				t.Fatalf("%v", s.Trailer)
			}
		})
	}
}

// Faults of the connection, with the code that ends it.
func TestFaultsOfTheConnection(t *testing.T) {
	raw := func(kind http2.FrameType, flags http2.Flags, id uint32, payload ...byte) func(p *peer) {
		return func(p *peer) { _ = p.WriteRawFrame(kind, flags, id, payload) }
	}
	opened := func(then func(p *peer)) func(p *peer) {
		return func(p *peer) { p.head(1, false).send(); then(p) }
	}
	for name, c := range map[string]struct {
		do   func(p *peer)
		want Code
	}{
		"data on no stream":                 {raw(0, 0, 0, 'x'), ProtocolError},
		"data on an idle stream":            {raw(0, 0, 1, 'x'), ProtocolError},
		"data on a stream of ours":          {raw(0, 0, 2, 'x'), ProtocolError},
		"padding beyond the frame":          {opened(raw(0, 8, 1, 2, 'x')), ProtocolError},
		"padding without its length":        {opened(raw(0, 8, 1)), FrameSizeError},
		"head on no stream":                 {raw(1, 4, 0, 0x82), ProtocolError},
		"head on a stream of ours":          {raw(1, 4, 2, 0x82), ProtocolError},
		"padding beyond the head":           {raw(1, 4|8, 1, 2, 0x82), ProtocolError},
		"a head too short for its priority": {raw(1, 4|0x20, 1, 0, 0), FrameSizeError},
		"a stream that was passed over": {func(p *peer) {
			p.head(5, true).head(3, true)
		}, ProtocolError},
		"a block that goes on elsewhere":   {func(p *peer) { raw(1, 0, 1, 0x82)(p); raw(9, 4, 3)(p) }, ProtocolError},
		"another frame within a block":     {func(p *peer) { raw(1, 0, 1, 0x82)(p); raw(6, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8)(p) }, ProtocolError},
		"an unknown frame within a block":  {func(p *peer) { raw(1, 0, 1, 0x82)(p); raw(0x42, 0, 0)(p) }, ProtocolError},
		"a continuation of nothing":        {raw(9, 4, 1, 0x82), ProtocolError},
		"a continuation behind an end":     {opened(raw(9, 4, 1, 0x82)), ProtocolError},
		"an invalid block":                 {raw(1, 4, 1, 0x80), CompressionError},
		"priority of no stream":            {raw(2, 0, 0, 0, 0, 0, 3, 1), ProtocolError},
		"reset of no stream":               {raw(3, 0, 0, 0, 0, 0, 8), ProtocolError},
		"reset of an idle stream":          {raw(3, 0, 1, 0, 0, 0, 8), ProtocolError},
		"a short reset":                    {opened(raw(3, 0, 1, 0, 0, 8)), FrameSizeError},
		"settings of a stream":             {raw(4, 0, 1), ProtocolError},
		"settings of odd length":           {raw(4, 0, 0, 0, 1, 0), FrameSizeError},
		"an answer that has settings":      {raw(4, 1, 0, 0, 1, 0, 0, 0, 0), FrameSizeError},
		"push 2":                           {raw(4, 0, 0, 0, 2, 0, 0, 0, 2), ProtocolError},
		"a window beyond the largest":      {raw(4, 0, 0, 0, 4, 0x80, 0, 0, 0), FlowControlError},
		"frames below the smallest":        {raw(4, 0, 0, 0, 5, 0, 0, 0x3f, 0xff), ProtocolError},
		"frames above the largest":         {raw(4, 0, 0, 0, 5, 1, 0, 0, 0), ProtocolError},
		"a setting that overflows windows": {opened(func(p *peer) { _ = p.WriteWindowUpdate(1, maxWindow-firstWindow); raw(4, 0, 0, 0, 4, 0, 1, 0, 0)(p) }), FlowControlError},
		"push":                             {opened(raw(5, 4, 1, 0, 0, 0, 2, 0x82)), ProtocolError},
		"a ping of a stream":               {raw(6, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8), ProtocolError},
		"a short ping":                     {raw(6, 0, 0, 1, 2, 3, 4, 5, 6, 7), FrameSizeError},
		"goaway of a stream":               {raw(7, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0), ProtocolError},
		"a short goaway":                   {raw(7, 0, 0, 0, 0, 0, 0), FrameSizeError},
		"a short window update":            {raw(8, 0, 0, 0, 0, 1), FrameSizeError},
		"a window update by nothing":       {raw(8, 0, 0, 0, 0, 0, 0), ProtocolError},
		"a window above the largest":       {raw(8, 0, 0, 0x7f, 0xff, 0xff, 0xff), FlowControlError},
		"a window update of an idle one":   {raw(8, 0, 1, 0, 0, 0, 1), ProtocolError},
		"a frame above the limit":          {raw(0x42, 0, 0, make([]byte, maxFrame+1)...), FrameSizeError},
		"more than the window": {func(p *peer) {
			for id := uint32(1); id < 100; id += 2 {
				p.head(id, false)
				for range 4 {
					_ = p.WriteData(id, false, make([]byte, maxFrame))
				}
			}
		}, FlowControlError},
		"a head on a stream that has ended": {opened(func(p *peer) {
			_ = p.WriteData(1, true, nil)
			p.send()
			s := p.opened[0]
			p.c.BeginHead(s, 200)
			p.c.EndHead(s, -1, true)
			p.c.Finish(s, p.now)
			p.head(1, true)
		}), StreamClosed},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t)
			c.do(p)
			p.send()
			code, failed := p.c.Failed()
			away := last[*http2.GoAwayFrame](p)
			if !failed || code != c.want || away == nil || Code(away.ErrCode) != c.want || !p.c.Over() {
				t.Fatalf("%v %d, want %d: %v", failed, code, c.want, p.said)
			}
		})
	}
}

func TestTheFirstFrameIsSettings(t *testing.T) {
	for name, wire := range map[string]string{
		"another preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\rX",
		"a ping":          http2.ClientPreface + "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678",
		"an answer":       http2.ClientPreface + "\x00\x00\x00\x04\x01\x00\x00\x00\x00",
	} {
		var c Server
		c.Start(epoch, Times{})
		c.Feed([]byte(wire), newSpare(), epoch)
		if code, failed := c.Failed(); !failed || code != ProtocolError {
			t.Errorf("%s: %v %v", name, code, failed)
		}
	}
}

// Faults of one stream: it is reset, and the connection goes on.
func TestFaultsOfAStream(t *testing.T) {
	raw := func(kind http2.FrameType, flags http2.Flags, id uint32, payload ...byte) func(p *peer) {
		return func(p *peer) { _ = p.WriteRawFrame(kind, flags, id, payload) }
	}
	for name, c := range map[string]struct {
		do   func(p *peer)
		want string
	}{
		"a window update by nothing": {raw(8, 0, 1, 0, 0, 0, 0), "1:1"},
		"a window above the largest": {raw(8, 0, 1, 0x7f, 0xff, 0xff, 0xff), "1:3"},
		"a short priority":           {raw(2, 0, 1, 0, 0, 0, 3), "1:6"},
		"a stream on itself":         {raw(2, 0, 1, 0, 0, 0, 1, 1), "1:1"},
		"a new stream on itself":     {raw(1, 4|0x20|1, 3, 0, 0, 0, 3, 1, 0x82), "3:1"},
		"data behind the end":        {func(p *peer) { raw(0, 1, 1)(p); raw(0, 0, 1, 'x')(p) }, "1:5"},
		"a head behind the end":      {func(p *peer) { raw(0, 1, 1)(p); p.head(1, true) }, "1:5"},
		"data behind a reset":        {func(p *peer) { raw(3, 0, 1, 0, 0, 0, 8)(p); raw(0, 0, 1, 'x')(p) }, "1:5"},
		"more than the window": {func(p *peer) {
			raw(0, 0, 1, make([]byte, maxFrame)...)(p)
			p.opened[0].recv = 10
			raw(0, 0, 1, make([]byte, 11)...)(p)
		}, "1:3"},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t)
			p.head(1, false).send()
			c.do(p)
			p.send()
			if p.resets() != c.want {
				t.Fatalf("%q, want %q: %v", p.resets(), c.want, p.said)
			}
			p.head(9, true).send()
			if p.opened[len(p.opened)-1].ID != 9 {
				t.Fatal("the connection doesn't go on")
			}
		})
	}
}

// A body is as long as its head says (RFC 9113, section 8.1.1).
func TestBodiesUnlikeTheirLengthAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		length string
		pieces []string
		want   string
	}{
		"right":    {"5", []string{"hel", "lo"}, ""},
		"short":    {"5", []string{"hel", ""}, "1:1"},
		"long":     {"5", []string{"hel", "lo!"}, "1:1"},
		"longer":   {"0", []string{"x"}, "1:1"},
		"no body":  {"0", []string{""}, ""},
		"any body": {"", []string{"abc", "def"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := connect(t)
			var fields []string
			if c.length != "" {
				fields = []string{"content-length", c.length}
			}
			p.head(1, false, fields...)
			for i, s := range c.pieces {
				_ = p.WriteDataPadded(1, i == len(c.pieces)-1, []byte(s), make([]byte, i))
			}
			p.send()
			if s := p.opened[0]; p.resets() != c.want || s.Complete() != (c.want == "") {
				t.Fatalf("%q, want %q", p.resets(), c.want)
			}
			p.c.Finish(p.opened[0], p.now)
			if p.c.recv+p.c.owed != ConnWindow {
				t.Fatalf("%d of the connection's window are lost", ConnWindow-p.c.recv-p.c.owed)
			}
		})
	}
}

func TestStreamsBeyondTheLimitAreRefused(t *testing.T) {
	p := connect(t)
	for i := range uint32(MaxStreams + 1) {
		p.head(2*i+1, i%2 == 0)
	}
	p.send()
	if len(p.opened) != MaxStreams || p.resets() != "201:7" {
		t.Fatalf("%d streams, %q", len(p.opened), p.resets())
	}
	// Those that the client gives up make room, as long as their owner doesn't hold too many.
	next := uint32(203)
	for i := range uint32(MaxStreams) {
		_ = p.WriteRSTStream(2*i+1, http2.ErrCodeCancel)
		p.head(next, true)
		next += 2
	}
	p.send()
	if p.c.Streams() != maxHeld {
		t.Fatalf("%d streams are held", p.c.Streams())
	}
}

// What was on its way when we gave a stream up is no fault of the client's.
func TestFramesOfAStreamThatWeGaveUpAreIgnored(t *testing.T) {
	p := connect(t)
	p.head(1, false).send()
	s := p.opened[0]
	p.c.BeginHead(s, 413)
	p.c.EndHead(s, 0, true)
	p.c.Finish(s, p.now)
	for range 200 {
		_ = p.WriteData(1, false, make([]byte, 10000))
		p.send()
	}
	_ = p.WriteWindowUpdate(1, 5)
	p.head(1, true, "x", "y").head(3, true, "x", "y").send()
	if _, failed := p.c.Failed(); failed || p.resets() != "1:0" || len(p.opened) != 2 {
		t.Fatalf("%v", p.said)
	}
}

// A client that has just come would take a GOAWAY before its first stream for a connection that failed.
func TestAYoungClientIsAskedToLeaveWithItsFirstStream(t *testing.T) {
	for name, comes := range map[string]bool{"which comes": true, "which does not come": false} {
		t.Run(name, func(t *testing.T) {
			p := connect(t)
			p.c.Leave(p.now)
			if p.hear(); last[*http2.GoAwayFrame](p) != nil || !p.c.Leaving() || p.c.Over() {
				t.Fatalf("%v", p.said)
			}
			if comes {
				p.head(1, true).send()
			} else {
				p.now = p.c.Due()
				p.c.Tick(p.now)
				p.hear()
			}
			if first := last[*http2.GoAwayFrame](p); first == nil || first.LastStreamID != maxStreamID {
				t.Fatalf("%v", p.said)
			}
			_ = p.WritePing(true, last[*http2.PingFrame](p).Data)
			p.send()
			if second := last[*http2.GoAwayFrame](p); second.LastStreamID != uint32(len(p.opened)) || p.c.Over() == comes {
				t.Fatalf("%v", p.said)
			}
		})
	}
}

func TestLeaving(t *testing.T) {
	for name, answers := range map[string]bool{"with an answer to the ping": true, "by time": false} {
		t.Run(name, func(t *testing.T) {
			p := connect(t)
			p.head(1, true).send()
			p.c.Leave(p.now)
			p.head(3, true).send()
			if first := last[*http2.GoAwayFrame](p); first == nil || first.LastStreamID != maxStreamID || len(p.opened) != 2 {
				t.Fatalf("%v", p.said)
			}
			if answers {
				_ = p.WritePing(true, last[*http2.PingFrame](p).Data)
				p.send()
			} else {
				p.now = p.c.Due()
				p.c.Tick(p.now)
				p.hear()
			}
			if second := last[*http2.GoAwayFrame](p); second.LastStreamID != 3 || second.ErrCode != 0 || p.c.Over() {
				t.Fatalf("%v", p.said)
			}
			p.head(5, true, "x", "y").send()
			if len(p.opened) != 2 || p.resets() != "" {
				t.Fatalf("%v", p.said)
			}
			for _, s := range p.opened {
				p.c.BeginHead(s, 200)
				p.c.EndHead(s, 0, true)
				p.c.Finish(s, p.now)
			}
			if !p.c.Over() {
				t.Fatal("not over")
			}
		})
	}
}

func TestTimes(t *testing.T) {
	until := func(p *peer, most int) (left time.Duration) {
		for range most {
			p.now = p.c.Due()
			p.c.Tick(p.now)
			p.hear()
			if p.c.Over() {
				break
			}
		}
		return p.now.Sub(epoch)
	}
	t.Run("idle", func(t *testing.T) {
		p := connect(t)
		for !p.c.Over() {
			p.now = p.c.Due()
			p.c.Tick(p.now)
			if p.hear(); last[*http2.PingFrame](p) != nil && p.now.Sub(epoch) < 70*time.Second {
				_ = p.WritePing(true, [8]byte{})
				p.now = p.now.Add(time.Second)
				p.send()
			}
		}
		if d := p.now.Sub(epoch); d != 75*time.Second || last[*http2.GoAwayFrame](p).ErrCode != 0 {
			t.Fatalf("after %v: %v", d, p.said)
		}
	})
	t.Run("silent", func(t *testing.T) {
		p := connect(t)
		p.head(1, true).send()
		if d := until(p, 5); d != 40*time.Second {
			t.Fatalf("after %v", d)
		}
	})
	t.Run("half a head", func(t *testing.T) {
		p := connect(t)
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(nil)})
		p.send()
		if d := until(p, 5); d != 10*time.Second {
			t.Fatalf("after %v", d)
		}
	})
	t.Run("a head byte by byte", func(t *testing.T) {
		p := connect(t)
		p.head(1, false).send() // a stream that lasts
		p.head(3, true)
		wire := bytes.Clone(p.wire.Bytes())
		for i := range wire[1:] {
			if p.feed(wire[i : i+1]); !p.now.Before(p.c.Due()) {
				break
			}
			p.now = p.now.Add(time.Second)
		}
		p.c.Tick(p.now)
		if code, failed := p.c.Failed(); !failed || code != EnhanceYourCalm || p.now.Sub(epoch) > 12*time.Second {
			t.Fatalf("%v after %v", failed, p.now.Sub(epoch))
		}
	})
	t.Run("heads without a break", func(t *testing.T) { // each read ends within a frame
		p := connect(t)
		for i := range uint32(100) {
			p.head(2*i+1, true)
		}
		for wire := bytes.Clone(p.wire.Bytes()); len(wire) > 0; p.now = p.now.Add(time.Second) {
			n := min(len(wire), 100)
			p.feed(wire[:n])
			wire = wire[n:]
			p.c.Tick(p.now)
		}
		if _, failed := p.c.Failed(); failed || len(p.opened) != 100 {
			t.Fatalf("%v, %d streams", failed, len(p.opened))
		}
	})
	t.Run("no settings", func(t *testing.T) {
		p := &peer{t: t, now: epoch, spare: newSpare(), dec: hpack.NewDecoder(0, nil)}
		p.c.Start(p.now, Times{})
		if d := until(p, 5); d != 10*time.Second {
			t.Fatalf("after %v", d)
		}
	})
}

// A flood ends the connection with ENHANCE_YOUR_CALM; the same frames in an ordinary measure don't.
func TestFloods(t *testing.T) {
	id := uint32(1)
	fresh := func(p *peer) *Stream {
		id += 2
		p.head(id, false).send()
		return p.spare
	}
	for name, one := range map[string]func(p *peer){
		"pings":                                  func(p *peer) { _ = p.WritePing(false, [8]byte{}) },
		"answers to no ping":                     func(p *peer) { _ = p.WritePing(true, [8]byte{}) },
		"answers to the ping that asks to leave": func(p *peer) { _ = p.WritePing(true, leavePing) },
		"settings":                               func(p *peer) { _ = p.WriteSettings() },
		"heads of a stream that was given up": func(p *peer) {
			if p.c.memory.of(1) == 0 {
				_ = p.WriteWindowUpdate(1, 0)
				p.send()
				p.c.Finish(p.opened[0], p.now)
			}
			p.head(1, true)
		},
		"priorities":                 func(p *peer) { _ = p.WritePriority(1, http2.PriorityParam{StreamDep: 3}) },
		"window updates":             func(p *peer) { _ = p.WriteWindowUpdate(0, 1) },
		"window updates of a stream": func(p *peer) { _ = p.WriteWindowUpdate(1, 1) },
		"empty data":                 func(p *peer) { _ = p.WriteData(1, false, nil) },
		"padding only":               func(p *peer) { _ = p.WriteDataPadded(1, false, nil, make([]byte, 1)) },
		"unknown frames":             func(p *peer) { _ = p.WriteRawFrame(0x42, 0, 0, nil) },
		"goaways":                    func(p *peer) { _ = p.WriteGoAway(0, 0, nil) },
		"rapid resets (G43)": func(p *peer) {
			fresh(p)
			_ = p.WriteRSTStream(id, http2.ErrCodeCancel)
			p.send()
			p.c.Finish(p.opened[len(p.opened)-1], p.now)
		},
		"streams that make us reset them": func(p *peer) {
			fresh(p)
			_ = p.WriteWindowUpdate(id, 0)
			p.send()
			p.c.Finish(p.opened[len(p.opened)-1], p.now)
		},
		"malformed heads": func(p *peer) {
			id += 2
			p.head(id, true, "X", "y")
		},
		"refused streams": func(p *peer) {
			for p.c.open < MaxStreams {
				fresh(p)
			}
			id += 2
			p.head(id, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			id = 1
			p := connect(t)
			p.head(1, false).send()
			n := 0
			for ; n < 10*accountMost && !p.c.failed; n++ {
				one(p)
				p.send()
				if n == 50 && p.c.failed {
					t.Fatal("already after 50")
				}
			}
			if code, failed := p.c.Failed(); !failed || code != EnhanceYourCalm {
				t.Fatalf("%d were taken", n)
			}
			if n < 51 {
				t.Fatalf("only %d were taken", n)
			}
			// In a steady measure it goes on for ever.
			id = 1
			p = connect(t)
			p.head(1, false).send()
			for range 500 {
				p.now = p.now.Add(time.Second / 40)
				one(p)
				p.send()
			}
			if code, failed := p.c.Failed(); failed {
				t.Fatalf("%d although it was no flood", code)
			}
		})
	}
}

// What a SETTINGS frame asks for is paid by the setting: each may move the windows of a hundred streams.
func TestManySettingsInOneFrameAreAFlood(t *testing.T) {
	settings := func(n int) []http2.Setting {
		return slices.Repeat([]http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 1}, {ID: http2.SettingInitialWindowSize, Val: 1 << 16}}, n/2)
	}
	p := connect(t, settings(100)...)
	if _, failed := p.c.Failed(); failed {
		t.Fatal("100 settings are no flood")
	}
	n := 0
	for ; n < 100 && !p.c.failed; n++ {
		_ = p.WriteSettings(settings(1000)...)
		p.send()
	}
	if code, failed := p.c.Failed(); !failed || code != EnhanceYourCalm || n > 2 {
		t.Fatalf("%d frames of 1000 settings were taken", n)
	}
}

// A client that opens its window byte by byte makes us send crumbs, and is let go (CVE-2019-9511); one that pings with
// every small message that it gets, as gRPC's clients do, is served for ever.
func TestCrumbsEarnNothingMessagesDo(t *testing.T) {
	answer := func(p *peer) *Stream {
		p.head(1, true).send()
		s := p.opened[0]
		p.c.BeginHead(s, 200)
		p.c.EndHead(s, -1, false)
		return s
	}
	p := connect(t, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 0})
	s, body := answer(p), make([]byte, 100_000)
	n := 0
	for ; n < 10*accountMost && !p.c.failed; n++ {
		_ = p.WriteWindowUpdate(1, 1)
		p.send()
		body = body[p.c.Write(s, body):]
		p.hear()
	}
	if code, failed := p.c.Failed(); !failed || code != EnhanceYourCalm {
		t.Fatalf("%d crumbs were sent", n)
	}
	p = connect(t)
	s = answer(p)
	for i := range 10 * accountMost {
		if p.c.Write(s, make([]byte, 20)) != 20 {
			t.Fatal("the window is closed")
		}
		_ = p.WritePing(false, [8]byte{})
		if i%500 == 0 {
			_ = p.WriteWindowUpdate(0, 10_000)
			_ = p.WriteWindowUpdate(1, 10_000)
		}
		p.send()
	}
	if code, failed := p.c.Failed(); failed {
		t.Fatalf("%v for pings with messages", code)
	}
}

func TestFloodsOfContinuations(t *testing.T) {
	for name, size := range map[string]int{"empty": 0, "of one byte": 1, "full": maxFrame} {
		p := connect(t)
		_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: p.encode(nil)})
		n := 0
		for ; n < 10000 && !p.c.failed; n++ {
			_ = p.WriteContinuation(1, false, bytes.Repeat([]byte{0x82}, size))
			p.send()
		}
		if code, failed := p.c.Failed(); !failed || code != EnhanceYourCalm || n > 2*accountMost/costState || cap(p.c.block) > 3*maxBlock {
			t.Errorf("%s: %v after %d, %d bytes", name, failed, n, cap(p.c.block))
		}
	}
}

// A client that makes us answer and reads nothing is let go before what waits for it grows.
func TestControlFramesThatNobodyReadsAreBounded(t *testing.T) {
	p := connect(t)
	for range 100000 {
		p.now = p.now.Add(time.Second)
		_ = p.WritePing(false, [8]byte{})
		p.c.Feed(p.wire.Bytes(), p.spare, p.now)
		p.wire.Reset()
	}
	if code, failed := p.c.Failed(); !failed || code != EnhanceYourCalm || p.c.Pending() > maxQueued+100 {
		t.Fatalf("%v, %d bytes wait", failed, p.c.Pending())
	}
}

// What is left of a frame of body goes to nobody once its stream is finished, whoever has the stream next: it would be another
// client's request.
func TestTheRestOfAFrameEndsWithItsStream(t *testing.T) {
	p := connect(t)
	p.head(1, false).send()
	_ = p.WriteData(1, true, bytes.Repeat([]byte("secret"), 10))
	whole := bytes.Clone(p.wire.Bytes())
	p.wire.Reset()
	p.feed(whole[:20])
	s := p.opened[0]
	p.c.Finish(s, p.now)
	p.spare = s
	p.feed(whole[20:])
	p.events = nil
	p.head(3, false).send()
	_ = p.WriteData(3, true, []byte("fine"))
	if p.send(); p.opened[1] != s || string(s.Buffered()) != "fine" || !s.Complete() || p.c.failed || len(p.events) != 2 {
		t.Fatalf("%q, %d events, %v", s.Buffered(), len(p.events), p.c.failed)
	}
	q := connect(t) // and so if the next request comes on another connection meanwhile
	p.head(5, false).send()
	_ = p.WriteData(5, false, bytes.Repeat([]byte("secret"), 10))
	whole = bytes.Clone(p.wire.Bytes())
	p.wire.Reset()
	p.feed(whole[:20])
	s = p.opened[2]
	p.c.Finish(s, p.now)
	q.spare = s
	q.head(1, false).send()
	if p.feed(whole[20:]); len(s.Buffered()) > 0 {
		t.Fatalf("on another connection: %q", s.Buffered())
	}
}

// Answers without a body wait for no window: only the bound of streams that a client may have unanswered bounds them.
func TestAnswersWithoutABodyThatNobodyReadsAreBounded(t *testing.T) {
	ask := func(p *peer, from, n int, size int) {
		for i := from; i < from+n; i++ {
			p.wire.Reset()
			p.head(uint32(2*i+1), true, ":method", "HEAD", ":scheme", "https", ":authority", "a.example", ":path", "/")
			_, ev := p.c.Feed(p.wire.Bytes(), p.spare, p.now)
			if ev.Kind != Opened {
				return
			}
			p.c.BeginHead(ev.Stream, 200)
			PutField(&p.c, "x-long", strings.Repeat("x", size))
			p.c.EndHead(ev.Stream, -1, true)
			p.c.Finish(ev.Stream, p.now)
		}
	}
	p := connect(t)
	for i := 0; i < 100_000 && !p.c.failed; i++ {
		p.now = p.now.Add(5 * time.Millisecond)
		ask(p, i, 1, 100)
	}
	if code, failed := p.c.Failed(); !failed || code != EnhanceYourCalm || p.c.Pending() > stuck+maxQueued {
		t.Fatalf("%v %v, %d bytes wait", failed, code, p.c.Pending())
	}
	p = connect(t) // who keeps to the bound is never refused, however long the heads are
	for round := range 5 {
		ask(p, 100*round, 100, 16<<10)
		p.hear()
	}
	if n := p.c.last; p.c.failed || n != 2*499+1 || p.resets() != "" {
		t.Fatalf("up to stream %d, %s", n, p.resets())
	}
}

// usual writes n requests as usual clients send them, each for itself.
func usual(p *peer, n uint32) (wires [][]byte) {
	fields := []string{":method", "POST", ":scheme", "https", ":authority", "api.example.com", ":path", "/v1/orders/7?x=y", "user-agent", "", "accept", "*/*",
		"authorization", "Bearer " + strings.Repeat("x", 300), "cookie", "a=b", "cookie", "c=d", "content-length", "100", "x-request-id", strings.Repeat("0", 32)}
	for i := range n {
		p.wire.Reset()
		fields[9] = fmt.Sprint("h2load/", i%7)
		p.head(2*i+1, false, fields...)
		_ = p.WriteData(2*i+1, true, make([]byte, 100))
		if i%10 == 0 {
			_ = p.WriteWindowUpdate(0, 10000)
		}
		wires = append(wires, bytes.Clone(p.wire.Bytes()))
	}
	return wires
}

// serve takes one of them and answers it with a body, as an owner does. It gives what is to be sent.
func (p *peer) serve(wire, body, out []byte) []byte {
	for len(wire) > 0 {
		n, ev := p.c.Feed(wire, p.spare, p.now)
		if wire = wire[n:]; ev.Kind != Readable || !ev.Stream.Complete() {
			continue
		}
		s := ev.Stream
		p.c.Use(s, len(s.Buffered()))
		p.c.BeginHead(s, 200)
		PutField(&p.c, "Content-Type", []byte("application/json"))
		PutField(&p.c, "X-Request-Id", "0123456789abcdef0123456789abcdef")
		p.c.EndHead(s, int64(len(body)), false)
		p.c.Write(s, body)
		p.c.Finish(s, p.now)
		s.Scratch = s.Request.Scratch()
	}
	return p.c.Out(out)
}

// The hot path allocates nothing: a request with the usual fields, some body, an answer with fields and body.
func TestARequestAllocatesNothing(t *testing.T) {
	const rounds = 200
	p := connect(t)
	wires, out, body := usual(p, 2*rounds), make([]byte, 0, 8<<10), make([]byte, 1000)
	round := func() {
		out = p.serve(wires[0], body, out)
		wires = wires[1:]
	}
	for range rounds / 2 {
		round()
	}
	if n := testing.AllocsPerRun(rounds, round); n != 0 {
		t.Fatalf("%v allocations a request", n)
	}
	if p.c.Streams() != 0 || p.c.failed {
		t.Fatal("they were not served")
	}
}

func BenchmarkRequest(b *testing.B) {
	b.ReportAllocs()
	p := connect(b)
	wires, out, body := usual(p, 10_000), make([]byte, 0, 8<<10), make([]byte, 1000)
	for i := 0; b.Loop(); i++ {
		if i == len(wires) { // another connection
			b.StopTimer()
			p, i = connect(b), 0
			b.StartTimer()
		}
		out = p.serve(wires[i], body, out)
	}
}

// Cutting the bytes anywhere changes nothing of what happens.
func TestPiecesMakeNoDifference(t *testing.T) {
	p := connect(t)
	p.head(1, false, "content-length", "40000")
	for i := range 4 {
		_ = p.WriteDataPadded(1, i == 3, make([]byte, 10000), make([]byte, 200))
	}
	p.head(3, true, "x", strings.Repeat("y", 3000))
	_ = p.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 7})
	_ = p.WritePing(false, [8]byte{1})
	_ = p.WriteRawFrame(0x42, 0, 0, make([]byte, 100))
	_ = p.WriteHeaders(http2.HeadersFrameParam{StreamID: 5, BlockFragment: p.encode([]string{"x", "z"})[:4], EndStream: true})
	_ = p.WriteContinuation(5, true, p.block.Bytes()[4:])
	_ = p.WriteWindowUpdate(0, 9)
	wire := bytes.Clone(p.wire.Bytes())
	run := func(cut func() int) string {
		q := connect(t)
		for rest := wire; len(rest) > 0; {
			n := min(max(cut(), 1), len(rest))
			q.feed(rest[:n])
			rest = rest[n:]
		}
		var b strings.Builder
		for _, s := range q.opened {
			fmt.Fprintf(&b, "%d %s %d %v|", s.ID, s.Request.AppendFields(nil), len(s.Buffered()), s.Complete())
		}
		return b.String() + fmt.Sprint(q.said, q.c.recv, q.c.owed, q.c.peerWindow, q.c.sendWindow)
	}
	want := run(func() int { return len(wire) })
	if strings.Count(want, "|") != 3 {
		t.Fatal(want)
	}
	r := rand.New(rand.NewPCG(3, 4))
	for i := range 50 {
		if got := run(func() int { return r.IntN(1 + i*i) }); got != want {
			t.Fatalf("%s\nwant\n%s", got, want)
		}
	}
}
