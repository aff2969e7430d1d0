// Package otlpsink is a collector for tests: it takes what is exported by OTLP over HTTP and reads it with OpenTelemetry's own
// types.
//
//	sink := otlpsink.New(t, "127.0.0.1:0")
//	… export to sink.URL …
//	for _, s := range sink.Spans() { s.Name, s.Text("http.request.method") }
package otlpsink

import (
	"encoding/hex"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is one of those that came.
type Span struct {
	*tracev1.Span
	Resource map[string]string // of who sent it
}

// Text is a string attribute; empty = there is none.
func (s Span) Text(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// Number is a whole number; 0 = there is none.
func (s Span) Number(key string) int64 {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetIntValue()
		}
	}
	return 0
}

// Yes is a true attribute.
func (s Span) Yes(key string) bool {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetBoolValue()
		}
	}
	return false
}

// ID, Trace and Parent are ids in hex.
func (s Span) ID() string     { return hex.EncodeToString(s.SpanId) }
func (s Span) Trace() string  { return hex.EncodeToString(s.TraceId) }
func (s Span) Parent() string { return hex.EncodeToString(s.ParentSpanId) }

// Sink is a collector. Answer, if set, answers in its place what it does with a message that could be read.
type Sink struct {
	URL string

	t      testing.TB
	mu     sync.Mutex
	answer http.HandlerFunc
	spans  []Span
	heads  []http.Header
}

// New starts a collector on an address until the test ends.
func New(t testing.TB, addr string) *Sink {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	s := &Sink{t: t}
	srv := &httptest.Server{Listener: l, Config: &http.Server{Handler: s}}
	srv.Start()
	t.Cleanup(srv.Close)
	s.URL = srv.URL
	return s
}

// Answer makes the sink keep nothing and answer so; nil = it takes everything again.
func (s *Sink) Answer(h http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answer = h
}

// ServeHTTP takes a message.
func (s *Sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	raw, err := io.ReadAll(r.Body)
	var all tracev1.TracesData // the same on the wire as ExportTraceServiceRequest
	if err == nil {
		err = proto.Unmarshal(raw, &all)
	}
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		s.t.Errorf("a collector got %s %s %v: %v", r.Method, r.URL, r.Header, err)
		http.Error(w, "no traces", http.StatusBadRequest)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.heads = append(s.heads, r.Header)
	if s.answer != nil {
		s.answer(w, r)
		return
	}
	for _, of := range all.ResourceSpans {
		resource := map[string]string{}
		for _, a := range of.Resource.Attributes {
			resource[a.Key] = a.Value.GetStringValue()
		}
		for _, scope := range of.ScopeSpans {
			for _, one := range scope.Spans {
				s.spans = append(s.spans, Span{one, resource})
			}
		}
	}
}

// Spans are all that came so far.
func (s *Sink) Spans() []Span {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]Span(nil), s.spans...)
}

// Of are those of a trace, by its id in hex.
func (s *Sink) Of(trace string) (spans []Span) {
	for _, one := range s.Spans() {
		if one.Trace() == trace {
			spans = append(spans, one)
		}
	}
	return spans
}

// Heads are the fields of the messages so far, one head each.
func (s *Sink) Heads() []http.Header {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]http.Header(nil), s.heads...)
}
