package http2

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/cellgate/cellgate/proxy/http1"
)

// host is a server that another implementation writes the frames of, behind a client.
type host struct {
	*http2.Framer
	t      testing.TB
	c      Client
	now    time.Time
	wire   bytes.Buffer
	block  bytes.Buffer
	enc    *hpack.Encoder
	events []Event
	said   []http2.Frame // what the client has sent, read by the other implementation
	dec    *hpack.Decoder
}

// reach begins a connection and passes the preface and the settings of both.
func reach(t testing.TB, settings ...http2.Setting) *host {
	h := &host{t: t, now: epoch, dec: hpack.NewDecoder(0, nil)}
	h.Framer = http2.NewFramer(&h.wire, nil)
	h.AllowIllegalWrites = true
	h.enc = hpack.NewEncoder(&h.block)
	h.c.Start(h.now, Times{})
	if b := h.c.Out(nil); !bytes.HasPrefix(b, []byte(http2.ClientPreface)) {
		t.Fatalf("the connection begins with %q", b)
	}
	_ = h.WriteSettings(settings...)
	return h.send()
}

// send feeds what was written.
func (h *host) send() *host {
	for b := bytes.Clone(h.wire.Bytes()); len(b) > 0; {
		n, ev := h.c.Feed(b, nil, h.now)
		b = b[n:]
		if ev.Kind != None {
			h.events = append(h.events, ev)
		}
		if n == 0 && ev.Kind == None {
			h.t.Fatal("Feed stands still")
		}
	}
	h.wire.Reset()
	return h.hear()
}

func (h *host) hear() *host {
	f := http2.NewFramer(nil, bytes.NewReader(h.c.Out(nil)))
	f.ReadMetaHeaders = h.dec
	for {
		fr, err := f.ReadFrame()
		if err != nil {
			if err.Error() != "EOF" {
				h.t.Fatalf("the client sends what can't be read: %v", err)
			}
			return h
		}
		if d, ok := fr.(*http2.DataFrame); ok {
			fr = &data{d.Header(), bytes.Clone(d.Data())}
		}
		h.said = append(h.said, fr)
	}
}

// ask opens a stream with the usual request; a body follows when length isn't 0.
func (h *host) ask(method string, length int64, fields ...string) *Stream {
	h.t.Helper()
	return h.askOn(&Stream{Response: new(http1.Response)}, method, length, fields...)
}

func (h *host) askOn(s *Stream, method string, length int64, fields ...string) *Stream {
	h.t.Helper()
	if !h.c.Open(s, method == "HEAD") {
		h.t.Fatal("no stream can be opened")
	}
	h.c.PutBlock(func(dst []byte) []byte {
		for i, all := 0, append([]string{":method", method, ":scheme", "https", ":authority", "a.example", ":path", "/x"}, fields...); i < len(all); i += 2 {
			dst = AppendField(dst, all[i], all[i+1])
		}
		return dst
	})
	h.c.EndHead(s, length, false)
	h.hear()
	return s
}

// answer writes a head of these fields, with the status 200 unless they begin with another.
func (h *host) answer(id uint32, end bool, fields ...string) *host {
	if len(fields) == 0 || !strings.HasPrefix(fields[0], ":") {
		fields = append([]string{":status", "200"}, fields...)
	}
	return h.trail(id, end, fields...)
}

func (h *host) trail(id uint32, end bool, fields ...string) *host {
	h.block.Reset()
	for i := 0; i < len(fields); i += 2 {
		_ = h.enc.WriteField(hpack.HeaderField{Name: fields[i], Value: fields[i+1]})
	}
	b := h.block.Bytes() // large heads come in pieces
	n := min(len(b), maxFrame)
	_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: b[:n], EndHeaders: n == len(b), EndStream: end})
	for b = b[n:]; len(b) > 0; b = b[n:] {
		n = min(len(b), maxFrame)
		_ = h.WriteContinuation(id, n == len(b), b[:n])
	}
	return h
}

// resets are the streams that the client has reset, with the codes.
func (h *host) resets() string {
	var all []string
	for _, f := range h.said {
		if r, ok := f.(*http2.RSTStreamFrame); ok {
			all = append(all, fmt.Sprintf("%d:%d", r.StreamID, r.ErrCode))
		}
	}
	return strings.Join(all, " ")
}

func (h *host) kinds() string {
	var all []string
	for _, ev := range h.events {
		all = append(all, [...]string{"none", "opened", "readable", "ended", "writable", "answered", "interim"}[ev.Kind])
	}
	h.events = nil
	return strings.Join(all, " ")
}

func framesOf[T any](h *host) (all []T) {
	for _, f := range h.said {
		if f, ok := f.(T); ok {
			all = append(all, f)
		}
	}
	return all
}

func TestAClientsRequestGoesOutAndItsAnswerIn(t *testing.T) {
	h := reach(t)
	s := h.ask("POST", -1, "X-Upper", "y")
	if n := h.c.Write(s, []byte("hello")); n != 5 || !h.c.BeginHead(s, 0) {
		t.Fatal(n)
	}
	h.c.PutBlock(func(dst []byte) []byte { return AppendField(dst, "x-sum", "5") })
	h.c.EndHead(s, -1, true)
	h.hear()
	heads := framesOf[*http2.MetaHeadersFrame](h)
	if len(heads) != 2 || fmt.Sprint(heads[0].Fields) != `[header field ":method" = "POST" header field ":scheme" = "https" header field ":authority" = "a.example" header field ":path" = "/x" header field "x-upper" = "y"]` ||
		heads[0].StreamEnded() || !heads[1].StreamEnded() || heads[1].Fields[0].Value != "5" || string(framesOf[*data](h)[0].payload) != "hello" {
		t.Fatalf("%v", h.said)
	}
	h.answer(1, false, ":status", "100").answer(1, false, ":status", "103", "link", "</a>").answer(1, false, "content-length", "4", "x", "y")
	_ = h.WriteData(1, false, []byte("body"))
	h.trail(1, true, "x-sum", "4").send()
	if got := h.kinds(); got != "interim interim answered readable readable" {
		t.Fatal(got)
	}
	if v, _ := s.Response.Find("x"); string(v) != "y" || s.Response.Status != 200 || s.Response.Length != 4 || s.Response.Chunked {
		t.Fatalf("%+v", s.Response)
	}
	if v, _ := s.Trailer.Find("x-sum"); string(v) != "4" || string(s.Buffered()) != "body" || !s.Complete() {
		t.Fatalf("%q %q", v, s.Buffered())
	}
	h.c.Finish(s, h.now)
	if h.hear().resets() != "" || h.c.Streams() != 0 || h.c.Vacant() != MaxStreams {
		t.Fatalf("%q, %d streams", h.resets(), h.c.Streams())
	}
	if second := h.ask("GET", 0); second.ID != 3 || !framesOf[*http2.MetaHeadersFrame](h)[2].StreamEnded() {
		t.Fatalf("%d", second.ID)
	}
}

func TestWhatIsAnAnswer(t *testing.T) {
	many := make([]string, 0, 2*200)
	for range 200 {
		many = append(many, "x", "y")
	}
	for name, c := range map[string]struct {
		method string
		end    bool
		fields []string
		length int64 // -2 = refused
	}{
		"length":                {"GET", false, []string{"content-length", "7"}, 7},
		"no length":             {"GET", false, nil, -1},
		"no body":               {"GET", true, nil, 0},
		"no body, but a length": {"GET", true, []string{"content-length", "7"}, -2},
		"HEAD":                  {"HEAD", true, []string{"content-length", "7"}, 7},
		"HEAD without a length": {"HEAD", true, nil, -1},
		"304":                   {"GET", true, []string{":status", "304", "content-length", "7"}, 7},
		"204":                   {"GET", true, []string{":status", "204"}, -1},
		"two lengths":           {"GET", false, []string{"content-length", "7", "content-length", "7"}, -2},
		"a length that is none": {"GET", false, []string{"content-length", "+7"}, -2},
		"no status":             {"GET", false, []string{":x", "y"}, -2},
		"fields alone":          {"GET", false, []string{":status", "200", "x", "y", ":status", "200"}, -2},
		"two statuses":          {"GET", false, []string{":status", "200", ":status", "200"}, -2},
		"a short status":        {"GET", false, []string{":status", "20"}, -2},
		"a status of letters":   {"GET", false, []string{":status", "2oo"}, -2},
		"a status below all":    {"GET", false, []string{":status", "099"}, -2},
		"switching protocols":   {"GET", false, []string{":status", "101"}, -2},
		"an interim end":        {"GET", true, []string{":status", "103"}, -2},
		"a request's field":     {"GET", false, []string{":status", "200", ":path", "/"}, -2},
		"connection":            {"GET", false, []string{"connection", "close"}, -2},
		"transfer-encoding":     {"GET", false, []string{"transfer-encoding", "chunked"}, -2},
		"keep-alive":            {"GET", false, []string{"keep-alive", "timeout=5"}, -2},
		"upgrade":               {"GET", false, []string{"upgrade", "h2c"}, -2},
		"upper case":            {"GET", false, []string{"X", "y"}, -2},
		"a line break":          {"GET", false, []string{"x", "y\r\nz"}, -2},
		"a surrounding blank":   {"GET", false, []string{"x", " y"}, -2},
		"too many fields":       {"GET", false, many, -2},
		"too large":             {"GET", false, []string{"x", strings.Repeat("y", http1.MaxHead)}, -2},
	} {
		t.Run(name, func(t *testing.T) {
			h := reach(t)
			s, other := h.ask(c.method, 0), h.ask("GET", 0)
			h.answer(1, c.end, c.fields...).answer(3, true).send()
			switch {
			case c.length == -2 && (h.resets() != "1:1" || s.Answered() || !s.Malformed() || h.kinds() != "ended answered"):
				t.Fatalf("resets %q, answered %v, malformed %v", h.resets(), s.Answered(), s.Malformed())
			case c.length != -2 && (!s.Answered() || s.Response.Length != c.length || s.Complete() != c.end || h.resets() != ""):
				t.Fatalf("%+v, resets %q", s.Response, h.resets())
			}
			if !other.Answered() {
				t.Fatal("it hinders another stream")
			}
		})
	}
}

func TestWhatEndsAStreamToAServer(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		do     func(h *host)
		resets string
	}{
		"body before its head":       {"GET", func(h *host) { _ = h.WriteData(1, false, []byte("x")) }, "1:1"},
		"more body than was said":    {"GET", func(h *host) { _ = h.answer(1, false, "content-length", "1").WriteData(1, true, []byte("xy")) }, "1:1"},
		"less body than was said":    {"GET", func(h *host) { _ = h.answer(1, false, "content-length", "3").WriteData(1, true, []byte("xy")) }, "1:1"},
		"a body of HEAD":             {"HEAD", func(h *host) { _ = h.answer(1, false).WriteData(1, true, []byte("x")) }, "1:1"},
		"a body of 204":              {"GET", func(h *host) { _ = h.answer(1, false, ":status", "204").WriteData(1, true, []byte("x")) }, "1:1"},
		"a second head":              {"GET", func(h *host) { h.answer(1, false).answer(1, false) }, "1:1"},
		"trailers without an end":    {"GET", func(h *host) { h.answer(1, false).trail(1, false, "x", "y") }, "1:1"},
		"a pseudo field in trailers": {"GET", func(h *host) { h.answer(1, false).trail(1, true, ":status", "200") }, "1:1"},
		"body behind the end":        {"POST", func(h *host) { _ = h.answer(1, true).WriteData(1, false, []byte("x")) }, "1:5"},
		"a head behind the end":      {"POST", func(h *host) { h.answer(1, true).answer(1, true) }, "1:5"},
		"seventeen interim answers": {"GET", func(h *host) {
			for range 17 {
				h.answer(1, false, ":status", "103")
			}
		}, "1:1"},
		"more body than its window": {"GET", func(h *host) {
			h.answer(1, false)
			for range 5 {
				_ = h.WriteData(1, false, make([]byte, maxFrame))
			}
		}, "1:3"},
		"a window that grows too large": {"POST", func(h *host) { _ = h.WriteWindowUpdate(1, maxWindow) }, "1:3"},
		"a window that doesn't grow":    {"POST", func(h *host) { _ = h.WriteRawFrame(http2.FrameWindowUpdate, 0, 1, make([]byte, 4)) }, "1:1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := reach(t)
			s, other := h.ask(c.method, map[string]int64{"POST": -1}[c.method]), h.ask("GET", 0)
			c.do(h)
			h.answer(3, true).send()
			if h.resets() != c.resets || !s.Gone() || !s.Malformed() || !other.Answered() {
				t.Fatalf("resets %q, malformed %v, other answered %v", h.resets(), s.Malformed(), other.Answered())
			}
			if _, failed := h.c.Failed(); failed {
				t.Fatal("the connection has ended")
			}
		})
	}
}

func TestWhatEndsTheConnectionToAServer(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(h *host)
		want Code
	}{
		"a push": {func(h *host) {
			_ = h.WritePushPromise(http2.PushPromiseParam{StreamID: 1, PromiseID: 2, EndHeaders: true})
		}, ProtocolError},
		"push allowed by the server":     {func(h *host) { _ = h.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 1}) }, ProtocolError},
		"a head on an idle stream":       {func(h *host) { h.answer(5, true) }, ProtocolError},
		"a head on a server's stream":    {func(h *host) { h.answer(2, true) }, ProtocolError},
		"body on an idle stream":         {func(h *host) { _ = h.WriteData(5, true, nil) }, ProtocolError},
		"a reset of an idle stream":      {func(h *host) { _ = h.WriteRSTStream(5, http2.ErrCodeCancel) }, ProtocolError},
		"a window of an idle stream":     {func(h *host) { _ = h.WriteWindowUpdate(5, 1) }, ProtocolError},
		"a priority of wrong size, idle": {func(h *host) { _ = h.WriteRawFrame(http2.FramePriority, 0, 5, []byte{1}) }, FrameSizeError},
		"a window that grows too large":  {func(h *host) { _ = h.WriteWindowUpdate(0, maxWindow) }, FlowControlError},
		"windows that grow too large": {func(h *host) {
			_ = h.WriteWindowUpdate(3, maxWindow-firstWindow)
			_ = h.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: maxWindow})
		}, FlowControlError},
		"a frame that is too large": {func(h *host) { _ = h.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, maxFrame+1)) }, FrameSizeError},
		"a block that is no HPACK": {func(h *host) {
			_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0xff, 0xff, 0xff, 0xff, 0xff}, EndHeaders: true})
		}, CompressionError},
		"a block without an end": {func(h *host) {
			_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}})
			for range 20 {
				_ = h.WriteContinuation(1, false, make([]byte, 10000))
			}
		}, EnhanceYourCalm},
		"a block in crumbs": {func(h *host) {
			_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}})
			for range 1000 {
				_ = h.WriteContinuation(1, false, nil)
			}
		}, EnhanceYourCalm},
		"another frame inside a block": {func(h *host) {
			_ = h.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: []byte{0x88}})
			_ = h.WritePing(false, [8]byte{})
		}, ProtocolError},
		"many pings": {func(h *host) {
			for range 5000 {
				_ = h.WritePing(false, [8]byte{})
			}
		}, EnhanceYourCalm},
		"many settings": {func(h *host) {
			for range 1000 {
				_ = h.WriteSettings()
			}
		}, EnhanceYourCalm},
		"many empty bodies": {func(h *host) {
			h.answer(1, false)
			for range 5000 {
				_ = h.WriteData(1, false, nil)
			}
		}, EnhanceYourCalm},
		"many windows": {func(h *host) {
			for range 5000 {
				_ = h.WriteWindowUpdate(0, 1)
			}
		}, EnhanceYourCalm},
		"many unknown": {func(h *host) {
			for range 5000 {
				_ = h.WriteRawFrame(0x42, 0, 0, nil)
			}
		}, EnhanceYourCalm},
		"many resets": {func(h *host) {
			for range 1000 {
				_ = h.WriteRSTStream(1, http2.ErrCodeCancel)
			}
		}, EnhanceYourCalm},
		"a goodbye that is taken back": {func(h *host) {
			_ = h.WriteGoAway(1, http2.ErrCodeNo, nil)
			_ = h.WriteGoAway(3, http2.ErrCodeNo, nil)
		}, ProtocolError},
		"a goodbye on a stream": {func(h *host) { _ = h.WriteRawFrame(http2.FrameGoAway, 0, 1, make([]byte, 8)) }, ProtocolError},
		"a short goodbye":       {func(h *host) { _ = h.WriteRawFrame(http2.FrameGoAway, 0, 0, make([]byte, 7)) }, FrameSizeError},
	} {
		t.Run(name, func(t *testing.T) {
			h := reach(t)
			h.ask("GET", 0)
			h.ask("GET", 0)
			c.do(h)
			h.send()
			code, failed := h.c.Failed()
			if away := framesOf[*http2.GoAwayFrame](h); !failed || code != c.want || len(away) != 1 || away[0].ErrCode != http2.ErrCode(code) || away[0].LastStreamID != 0 {
				t.Fatalf("failed %v for %v, said %v", failed, code, away)
			}
			if !h.c.Over() || !h.c.Ending() || h.c.Vacant() != 0 {
				t.Fatal("it goes on")
			}
		})
	}
}

func TestAServersFirstFrameIsSettings(t *testing.T) {
	for name, wire := range map[string]string{
		"HTTP/1.1": "HTTP/1.1 400 Bad Request\r\n\r\n", "a ping": "\x00\x00\x08\x06\x00\x00\x00\x00\x0012345678", "an acknowledgement": "\x00\x00\x00\x04\x01\x00\x00\x00\x00",
	} {
		var c Client
		c.Start(epoch, Times{})
		c.Feed([]byte(wire), nil, epoch)
		if _, failed := c.Failed(); !failed || c.Settled() {
			t.Errorf("%s is taken", name)
		}
	}
	var c Client
	c.Start(epoch, Times{})
	if c.Open(&Stream{}, false) {
		t.Error("a stream was opened before the settings came")
	}
	c.Tick(epoch.Add(11 * time.Second))
	if code, failed := c.Failed(); !failed || code != EnhanceYourCalm {
		t.Errorf("it is waited for settings for ever: %v", code)
	}
}

// RFC 9113, section 8.7; CASES G21.
func TestOnlyTheServersWordMakesAStreamSafeToRepeat(t *testing.T) {
	for name, c := range map[string]struct {
		do   func(h *host)
		want string // of streams 1 and 3
	}{
		"refused":        {func(h *host) { _ = h.WriteRSTStream(3, http2.ErrCodeRefusedStream) }, "false true"},
		"cancelled":      {func(h *host) { _ = h.WriteRSTStream(3, http2.ErrCodeCancel) }, "false false"},
		"above the last": {func(h *host) { _ = h.WriteGoAway(1, http2.ErrCodeNo, nil) }, "false true"},
		"above the last, in two steps": {func(h *host) {
			_ = h.WriteGoAway(maxStreamID, http2.ErrCodeNo, nil)
			_ = h.WriteGoAway(1, http2.ErrCodeNo, nil)
		}, "false true"},
		"all above":                      {func(h *host) { _ = h.WriteGoAway(0, http2.ErrCodeEnhanceYourCalm, nil) }, "true true"},
		"none above":                     {func(h *host) { _ = h.WriteGoAway(maxStreamID, http2.ErrCodeNo, nil) }, "false false"},
		"refused behind a head":          {func(h *host) { _ = h.answer(3, false).WriteRSTStream(3, http2.ErrCodeRefusedStream) }, "false false"},
		"refused behind an interim head": {func(h *host) { _ = h.answer(3, false, ":status", "103").WriteRSTStream(3, http2.ErrCodeRefusedStream) }, "false false"},
	} {
		t.Run(name, func(t *testing.T) {
			h := reach(t)
			first, second := h.ask("POST", -1), h.ask("POST", -1)
			c.do(h)
			h.answer(1, true).send()
			if got := fmt.Sprint(first.Refused(), " ", second.Refused()); got != c.want {
				t.Fatalf("%s, want %s", got, c.want)
			}
			if !first.Gone() && !first.Answered() {
				t.Fatal("a stream that is not above the last one has no answer")
			}
			if _, left := h.c.Farewell(); left != h.c.Ending() || left == (h.c.Vacant() > 0) {
				t.Fatalf("left %v, %d vacant", left, h.c.Vacant())
			}
		})
	}
}

func TestAServersLimitIsKept(t *testing.T) {
	h := reach(t, http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 2})
	first, second := h.ask("GET", 0), h.ask("POST", -1)
	if h.c.Vacant() != 0 || h.c.Most() != 2 || h.c.Open(new(Stream), false) {
		t.Fatal("there is a third stream")
	}
	h.answer(first.ID, true).send()
	if h.c.Vacant() != 1 {
		t.Fatal("a stream that has ended counts")
	}
	h.answer(second.ID, true).send() // our side of it is open still
	if h.c.Vacant() != 1 {
		t.Fatal("a stream that is half open doesn't count")
	}
	_ = h.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 0})
	if h.send(); h.c.Vacant() != 0 || h.c.Ending() {
		t.Fatal("a limit of none lets in")
	}
	_ = h.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1 << 31})
	if h.send(); h.c.Most() != MaxStreams || h.c.Vacant() != MaxStreams-1 {
		t.Fatalf("%d of %d", h.c.Vacant(), h.c.Most())
	}
	h.c.Finish(second, h.now)
	if h.hear().resets() != "3:8" {
		t.Fatalf("an upload that nobody wants is not cancelled: %q", h.resets())
	}
}

// A stream whose body nobody reads holds no more than its window, and takes nothing from another's.
func TestAnAnswerThatIsNotReadStallsNoOther(t *testing.T) {
	h := reach(t)
	var all []*Stream
	for range MaxStreams {
		all = append(all, h.ask("GET", 0))
	}
	for _, s := range all[1:] {
		h.answer(s.ID, false)
		for range StreamWindow / maxFrame {
			_ = h.WriteData(s.ID, false, make([]byte, maxFrame))
		}
		h.send()
	}
	h.answer(all[0].ID, false)
	got := 0
	for range 100 {
		_ = h.WriteData(all[0].ID, false, make([]byte, maxFrame))
		h.send()
		got += len(all[0].Buffered())
		h.c.Use(all[0], len(all[0].Buffered()))
		h.hear()
	}
	if code, failed := h.c.Failed(); failed || got != 100*maxFrame || h.resets() != "" {
		t.Fatalf("%d bytes, failed %v %v, resets %q", got, failed, code, h.resets())
	}
}

// A stream may be finished while a frame of its body is on its way; what is left of it belongs to nobody, whoever the owner
// makes the stream next.
func TestTheRestOfAFrameGoesToNobodyElse(t *testing.T) {
	for _, padded := range []bool{false, true} {
		var frame bytes.Buffer
		if f := http2.NewFramer(&frame, nil); padded {
			_ = f.WriteDataPadded(1, true, bytes.Repeat([]byte("secret"), 10), make([]byte, 20))
		} else {
			_ = f.WriteData(1, true, bytes.Repeat([]byte("secret"), 10))
		}
		for cut := 1; cut < frame.Len(); cut++ {
			h := reach(t)
			s := h.ask("GET", 0)
			_, _ = h.answer(1, false).wire.Write(frame.Bytes()[:cut])
			h.send()
			h.c.Finish(s, h.now)
			h.askOn(s, "GET", 0)
			_, _ = h.wire.Write(frame.Bytes()[cut:])
			h.send().answer(3, false)
			_ = h.WriteData(3, true, []byte("fine"))
			h.send()
			if got := string(s.Buffered()); got != "fine" || !s.Complete() || h.c.failed || h.c.recv+h.c.owed != h.c.room-len("fine") {
				t.Fatalf("padded %v, cut at %d: %q, %v, %d of the window and %d owed", padded, cut, got, h.c.failed, h.c.recv, h.c.owed)
			}
		}
	}
}

func TestNumbersOfStreamsRunOut(t *testing.T) {
	h := reach(t)
	h.c.Skip(maxStreamID - 2)
	if s := h.ask("GET", 0); s.ID != maxStreamID-2 || h.c.Ending() {
		t.Fatal(s.ID)
	}
	if s := h.ask("GET", 0); s.ID != maxStreamID || !h.c.Ending() || h.c.Vacant() != 0 || h.c.Open(new(Stream), false) {
		t.Fatal(s.ID)
	}
}

func TestAServerIsAskedWhetherItIsThere(t *testing.T) {
	h := reach(t)
	h.ask("GET", 0)
	h.now = h.now.Add(time.Hour)
	h.c.Tick(h.now) // nobody has asked for anything: a server may take pings for a flood
	if len(framesOf[*http2.PingFrame](h.hear())) > 0 {
		t.Fatal("a silent server is pinged")
	}
	h.c.Ask(h.now)
	h.c.Ask(h.now)
	if len(framesOf[*http2.PingFrame](h.hear())) != 1 || !h.c.Due().Equal(h.now.Add(10*time.Second)) {
		t.Fatalf("%v", h.said)
	}
	_ = h.WritePing(true, [8]byte{})
	h.send().c.Tick(h.now.Add(time.Minute))
	if _, failed := h.c.Failed(); failed {
		t.Fatal("it was there")
	}
	h.c.Ask(h.now)
	h.c.Tick(h.now.Add(10 * time.Second))
	if code, failed := h.c.Failed(); !failed || code != NoError {
		t.Fatal("it is not there")
	}
}

func TestAServerThatDoesNotReadGetsNoMoreStreams(t *testing.T) {
	h := reach(t)
	opened := 0
	for h.c.Vacant() > 0 && opened < 1000 {
		s := &Stream{Response: new(http1.Response)}
		h.c.Open(s, false)
		h.c.PutBlock(func(dst []byte) []byte { return AppendField(dst, "x", strings.Repeat("y", 10000)) })
		h.c.EndHead(s, 0, false)
		h.c.Finish(s, h.now)
		opened++
	}
	if h.c.Pending() < stuck || h.c.Pending() > stuck+20000 {
		t.Fatalf("%d bytes wait after %d streams", h.c.Pending(), opened)
	}
}

func TestAClientsExchangeAllocatesNothing(t *testing.T) {
	h := reach(t)
	s := &Stream{Response: new(http1.Response)}
	out, body := make([]byte, 0, 8<<10), make([]byte, 1000)
	answer := h.answer(1, false, "content-length", "1000", "content-type", "text/plain")
	_ = answer.WriteData(1, true, body)
	wire := bytes.Clone(h.wire.Bytes())
	head := len(wire) - frameHead - len(body)
	block := AppendField(AppendField(nil, ":method", "POST"), ":path", "/x")
	round := func() {
		h.c.Open(s, false)
		h.c.PutBlock(func(dst []byte) []byte { return append(dst, block...) })
		h.c.EndHead(s, int64(len(body)), false)
		h.c.Write(s, body)
		out = h.c.Out(out)
		wire[8], wire[7], wire[6] = byte(s.ID), byte(s.ID>>8), byte(s.ID>>16)
		copy(wire[head+6:], wire[6:9])
		for b := wire; len(b) > 0; {
			n, ev := h.c.Feed(b, nil, h.now)
			if b = b[n:]; ev.Kind == Readable {
				h.c.Use(s, len(s.Buffered()))
			}
		}
		if !s.Answered() || !s.Complete() {
			t.Fatal("no answer")
		}
		h.c.Finish(s, h.now)
	}
	round()
	if n := testing.AllocsPerRun(500, round); n != 0 {
		t.Fatalf("%v allocations an exchange", n)
	}
}

// What a server sends, and how it is cut, breaks nothing: what is held stays bounded, and what is said can be read.
func FuzzClientFeed(f *testing.F) {
	h := reach(f)
	h.answer(1, false, "content-length", "4", "x", "y")
	_ = h.WriteData(1, false, []byte("body"))
	h.trail(1, true, "x-sum", "4")
	_ = h.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 3}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: 9})
	_ = h.WritePing(false, [8]byte{1})
	_ = h.WriteGoAway(1, http2.ErrCodeNo, nil)
	_ = h.WriteRSTStream(3, http2.ErrCodeRefusedStream)
	f.Add(bytes.Clone(h.wire.Bytes()), uint8(5))
	f.Fuzz(func(t *testing.T, wire []byte, cut uint8) {
		h := reach(t)
		streams := []*Stream{h.ask("GET", 0), h.ask("POST", -1), h.ask("HEAD", 0)}
		for len(wire) > 0 {
			n := min(len(wire), int(cut)+1)
			for b := wire[:n]; len(b) > 0; {
				m, ev := h.c.Feed(b, nil, h.now)
				if b = b[m:]; ev.Stream != nil && ev.Kind == Readable && cut&1 == 0 {
					h.c.Use(ev.Stream, len(ev.Stream.Buffered()))
				}
			}
			wire = wire[n:]
			h.hear()
		}
		for _, s := range streams {
			h.c.Write(s, make([]byte, 100))
			if len(s.Buffered()) > StreamWindow || s.Complete() && !s.Answered() || s.Refused() && s.Answered() {
				t.Fatalf("%+v", s)
			}
			h.c.Finish(s, h.now)
		}
		if h.hear(); h.c.Streams() != 0 || h.c.open != 0 {
			t.Fatalf("%d streams, %d open", h.c.Streams(), h.c.open)
		}
	})
}
