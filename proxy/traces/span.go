package traces

import (
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/record"
	"github.com/cellgate/cellgate/proxy/retry"
	"github.com/cellgate/cellgate/proxy/tracecontext"
	"github.com/cellgate/cellgate/reason"
)

// The longest that strings of the client's or an author's appear in a span, in bytes. maxSpans is more than the spans of one
// exchange can have together: a server's and those of eight attempts.
const (
	maxPath  = 256
	maxWord  = 64
	maxSpans = 8 << 10
)

// Numbers of fields and values of opentelemetry/proto/trace/v1/trace.proto and common/v1/common.proto.
const (
	scopeSpans = 2 // of ScopeSpans

	spanTrace, spanID, spanParent, spanName, spanKind = 1, 2, 4, 5, 6
	spanStart, spanEnd, spanAttribute                 = 7, 8, 9
	spanLink, spanStatus, spanFlags                   = 13, 15, 16

	kindServer, kindClient = 2, 3

	linkTrace, linkSpan, linkFlags = 1, 2, 6

	statusCode  = 3
	statusError = 2

	pairKey, pairValue    = 1, 2
	valueString, valueInt = 1, 3
	valueBool             = 2

	flagKnown, flagRemote = 0x100, 0x200 // whether the parent, or what a link leads to, is another process's
)

// buffer is a protocol buffer in the making.
type buffer []byte

// open begins a message within the message; close ends it, given what open gave.
func (b *buffer) open(field protowire.Number) int {
	*b = protowire.AppendTag(*b, field, protowire.BytesType)
	return len(*b)
}

func (b *buffer) close(at int) {
	n := len(*b) - at
	room := protowire.SizeVarint(uint64(n))
	*b = append(*b, "0123456789"[:room]...)
	copy((*b)[at+room:], (*b)[at:at+n])
	protowire.AppendVarint((*b)[:at], uint64(n))
}

func (b *buffer) bytes(field protowire.Number, v []byte) {
	*b = protowire.AppendBytes(protowire.AppendTag(*b, field, protowire.BytesType), v)
}

func (b *buffer) number(field protowire.Number, v uint64) {
	*b = protowire.AppendVarint(protowire.AppendTag(*b, field, protowire.VarintType), v)
}

func (b *buffer) instant(field protowire.Number, at time.Time) {
	*b = protowire.AppendFixed64(protowire.AppendTag(*b, field, protowire.Fixed64Type), uint64(at.UnixNano()))
}

func (b *buffer) flags(field protowire.Number, v uint32) {
	*b = protowire.AppendFixed32(protowire.AppendTag(*b, field, protowire.Fixed32Type), v)
}

// put appends at most limit bytes of s; what isn't UTF-8, which the receiver would refuse, becomes question marks.
func (b *buffer) put(s string, limit int) {
	if len(s) > limit {
		for limit > 0 && !utf8.RuneStart(s[limit]) {
			limit--
		}
		s = s[:limit]
	}
	if utf8.ValidString(s) {
		*b = append(*b, s...)
		return
	}
	for _, r := range s {
		if r == utf8.RuneError {
			r = '?'
		}
		*b = utf8.AppendRune(*b, r)
	}
}

// text is an attribute that isn't empty.
func (b *buffer) text(key, value string, limit int) {
	if value == "" {
		return
	}
	at := b.key(spanAttribute, key)
	v := b.open(pairValue)
	s := b.open(valueString)
	b.put(value, limit)
	b.close(s)
	b.close(v)
	b.close(at)
}

// address is an attribute that is one.
func (b *buffer) address(key string, a netip.Addr) {
	at := b.key(spanAttribute, key)
	v := b.open(pairValue)
	s := b.open(valueString)
	*b = a.WithZone("").AppendTo(*b)
	b.close(s)
	b.close(v)
	b.close(at)
}

// whole is an attribute that is a number.
func (b *buffer) whole(key string, value int64) {
	at := b.key(spanAttribute, key)
	v := b.open(pairValue)
	b.number(valueInt, uint64(value))
	b.close(v)
	b.close(at)
}

// yes is an attribute that is true.
func (b *buffer) yes(key string, is bool) {
	if !is {
		return
	}
	at := b.key(spanAttribute, key)
	v := b.open(pairValue)
	b.number(valueBool, 1)
	b.close(v)
	b.close(at)
}

func (b *buffer) key(field protowire.Number, key string) int {
	at := b.open(field)
	k := b.open(pairKey)
	b.put(key, maxWord)
	b.close(k)
	return at
}

// spans appends the spans of an exchange, each as a field of ScopeSpans, and says how many they are.
func (b *buffer) spans(r *proxy.Record) int {
	b.server(r)
	for i := range r.Tries {
		b.attempt(r, &r.Tries[i])
	}
	return 1 + len(r.Tries)
}

// begin appends what every span has.
func (b *buffer) begin(own tracecontext.Context, parent *tracecontext.Context, remote uint32, kind uint64, start time.Time, took time.Duration) int {
	at := b.open(scopeSpans)
	b.bytes(spanTrace, own.Trace[:])
	b.bytes(spanID, own.Span[:])
	if parent != nil {
		b.bytes(spanParent, parent.Span[:])
	}
	b.number(spanKind, kind)
	b.instant(spanStart, start)
	b.instant(spanEnd, start.Add(max(took, 0)))
	b.flags(spanFlags, uint32(own.Flags)|flagKnown|remote)
	return at
}

// server is the span of the exchange, by the conventions for HTTP servers
// (https://opentelemetry.io/docs/specs/semconv/http/http-spans/).
func (b *buffer) server(r *proxy.Record) {
	parent, remote := (*tracecontext.Context)(nil), uint32(0)
	if continued(r) {
		parent, remote = &r.Outside, flagRemote
	}
	at := b.begin(r.Trace, parent, remote, kindServer, r.Start, r.Total+r.Open)
	if parent == nil && r.Outside.Valid() {
		link := b.open(spanLink)
		b.bytes(linkTrace, r.Outside.Trace[:])
		b.bytes(linkSpan, r.Outside.Span[:])
		b.flags(linkFlags, uint32(r.Outside.Flags)|flagKnown|flagRemote)
		b.close(link)
	}
	method := known(r.Method)
	b.name(method, r.Route)
	b.text("http.request.method", method, maxWord)
	b.text("url.scheme", scheme(r.TLS), maxWord)
	b.text("url.path", r.Path, maxPath)
	b.text("server.address", r.Host, maxWord)
	b.text("network.protocol.version", version(r.Protocol), maxWord)
	if r.Peer.IsValid() {
		b.address("client.address", r.Peer)
	}
	b.whole("http.response.status_code", int64(r.Status))
	b.text("cellgate.tenant", r.Tenant, maxWord)
	b.text("http.route", r.Pattern, maxPath)
	b.text("cellgate.route", r.Route, maxWord)
	b.text("cellgate.upstream", r.UpstreamID, maxWord)
	b.text("cellgate.reason", r.Reason.String(), maxWord)
	b.whole("cellgate.version", int64(min(r.Snapshot, math.MaxInt64)))
	b.yes("cellgate.truncated", r.Truncated)
	if failed(r) {
		b.text("cellgate.cause", cause(r.Reason), maxWord)
		b.error(r.Reason.String(), r.Status)
	}
	b.close(at)
}

// attempt is the span of one, up to the head of its answer, by the conventions for HTTP clients.
func (b *buffer) attempt(r *proxy.Record, a *record.Attempt) {
	at := b.begin(r.Trace.Attempt(a.Number), &r.Trace, 0, kindClient, a.Start, a.Took)
	method := known(r.Method)
	b.name(method, "")
	b.text("http.request.method", method, maxWord)
	host, port := place(a.Endpoint)
	b.text("server.address", host, maxWord)
	if port > 0 {
		b.whole("server.port", int64(port))
	}
	if a.Status > 0 {
		b.whole("http.response.status_code", int64(a.Status))
	}
	if a.Number > 1 && !a.Hedge {
		b.whole("http.request.resend_count", int64(a.Number-1))
	}
	b.text("cellgate.upstream", r.UpstreamID, maxWord)
	b.text("cellgate.result", a.Result.String(), maxWord)
	b.yes("cellgate.hedge", a.Hedge)
	switch { // one that was given up is nobody's failure
	case a.Result != retry.Answered && a.Result != retry.Fatal:
		b.error(a.Result.String(), 0)
	case a.Status >= 400:
		b.error("", int(a.Status))
	}
	b.close(at)
}

// name is "GET orders-read": what is short and of few values.
func (b *buffer) name(method, route string) {
	at := b.open(spanName)
	if method == other {
		method = "HTTP"
	}
	b.put(method, maxWord)
	if route != "" {
		*b = append(*b, ' ')
		b.put(route, maxWord)
	}
	b.close(at)
}

// error says that the span is one, of this type, or of the status.
func (b *buffer) error(kind string, status int) {
	if kind == "" {
		var room [8]byte
		kind = string(strconv.AppendInt(room[:0], int64(status), 10))
	}
	b.text("error.type", kind, maxWord)
	at := b.open(spanStatus)
	b.number(statusCode, statusError)
	b.close(at)
}

// continued says whether the trace is an outside one that goes on.
func continued(r *proxy.Record) bool { return r.Outside.Valid() && r.Outside.Trace == r.Trace.Trace }

// failed says whether the answer is an error of a server's.
func failed(r *proxy.Record) bool { return r.Status >= 500 }

func cause(why reason.Reason) string {
	if why.Gateway() {
		return "gateway"
	}
	return "upstream"
}

func scheme(tls bool) string {
	if tls {
		return "https"
	}
	return "http"
}

// version is that of "HTTP/2.0" as the conventions have it.
func version(protocol string) string {
	v := strings.TrimPrefix(protocol, "HTTP/")
	if v == "2.0" || v == "3.0" {
		return v[:1]
	}
	return v
}

const other = "_OTHER"

// known is the method, if it is one that the conventions know.
func known(method string) string {
	switch method {
	case "GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH":
		return method
	}
	return other
}

// place takes an endpoint apart; port 0 = it has none.
func place(endpoint string) (host string, port uint64) {
	i := strings.LastIndexByte(endpoint, ':')
	if i < 0 {
		return endpoint, 0
	}
	port, err := strconv.ParseUint(endpoint[i+1:], 10, 16)
	if err != nil {
		return endpoint, 0
	}
	return strings.Trim(endpoint[:i], "[]"), port
}
