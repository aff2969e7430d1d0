package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func message(s string) *[]byte                        { b := []byte(s); return &b }
func method(name string) string                       { return "/test.Echo/" + name }
func statusOf(err error) (codes.Code, string)         { s := status.Convert(err); return s.Code(), s.Message() }
func grpcError(code codes.Code, message string) error { return status.Error(code, message) }

// readMessage reads one length-prefixed message.
func readMessage(r io.Reader) (string, error) {
	var head [5]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return "", err
	}
	b := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(r, b)
	return string(b), err
}

func writeMessage(w http.ResponseWriter, s string) {
	_, _ = w.Write(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(s))), s...))
	w.(http.Flusher).Flush()
}

// grpcOverHTTP1 is a service that speaks gRPC's messages and trailers over HTTP/1.1 too.
func grpcOverHTTP1(w http.ResponseWriter, r *http.Request) {
	_ = http.NewResponseController(w).EnableFullDuplex()
	defer func() { _, _ = io.Copy(io.Discard, r.Body) }() // net/http wants it read to its end then
	h := w.Header()
	h.Set("Content-Type", "application/grpc")
	end := func(err error) {
		code, text := statusOf(err)
		h.Set(http.TrailerPrefix+"Grpc-Status", fmt.Sprint(int(code)))
		h.Set(http.TrailerPrefix+"Grpc-Message", text)
		h.Set(http.TrailerPrefix+"X-Method", r.URL.Path)
	}
	switch r.URL.Path {
	case method("Unary"), method("Slow"):
		s, err := readMessage(r.Body)
		if r.URL.Path == method("Slow") {
			_, _ = io.Copy(io.Discard, r.Body) // only then does net/http hear of a client that leaves
			<-r.Context().Done()
		}
		if err == nil {
			writeMessage(w, s+" te="+r.Header.Get("Te"))
		}
		end(err)
	case method("Refused"): // trailers only
		h.Set("Grpc-Status", "7")
		h.Set("Grpc-Message", "not you")
	case method("Fails"): // after a message
		writeMessage(w, "half")
		end(grpcError(codes.DataLoss, "lost"))
	case method("Down"):
		for i := range 50 {
			writeMessage(w, fmt.Sprint(i))
		}
		end(nil)
	case method("Up"):
		n := 0
		for {
			if _, err := readMessage(r.Body); err != nil {
				break
			}
			n++
		}
		writeMessage(w, fmt.Sprint(n))
		end(nil)
	case method("Both"):
		for {
			s, err := readMessage(r.Body)
			if err != nil {
				break
			}
			writeMessage(w, strings.ToUpper(s))
		}
		end(nil)
	}
}

func TestGRPCOfAllFourKinds(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		t.Run("upstream over HTTP/1.1", func(t *testing.T) {
			allFourKinds(t, start(t, handler(t, grpcOverHTTP1), setup{document: patientDocument}))
		})
		t.Run("upstream over HTTP/2", func(t *testing.T) {
			allFourKinds(t, start(t, handler2(t, nil, grpcOverHTTP1), setup{document: over2("")}))
		})
	})
}

func allFourKinds(t *testing.T, w *world) {
	cc := w.grpc()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream := func(name string, client, server bool) grpc.ClientStream {
		s, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: client, ServerStreams: server}, method(name))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	ended := func(s grpc.ClientStream) {
		t.Helper()
		if err := s.RecvMsg(message("")); !errors.Is(err, io.EOF) || s.Trailer().Get("x-method") == nil {
			t.Fatalf("%v %v", err, s.Trailer())
		}
	}

	t.Run("unary", func(t *testing.T) {
		var trailer metadata.MD
		for range 20 {
			got := message("")
			if err := cc.Invoke(ctx, method("Unary"), message("hello"), got, grpc.Trailer(&trailer)); err != nil || string(*got) != "hello te=trailers" || len(trailer.Get("x-method")) != 1 {
				t.Fatalf("%q %v %v", *got, err, trailer)
			}
		}
	})
	t.Run("trailers only", func(t *testing.T) {
		if code, text := statusOf(cc.Invoke(ctx, method("Refused"), message(""), message(""))); code != codes.PermissionDenied || text != "not you" {
			t.Fatalf("%v %q", code, text)
		}
	})
	t.Run("status behind a message", func(t *testing.T) {
		s := stream("Fails", false, true)
		_ = s.SendMsg(message(""))
		_ = s.CloseSend()
		got := message("")
		if err := s.RecvMsg(got); err != nil || string(*got) != "half" {
			t.Fatalf("%q %v", *got, err)
		}
		if code, text := statusOf(s.RecvMsg(got)); code != codes.DataLoss || text != "lost" {
			t.Fatalf("%v %q", code, text)
		}
	})
	t.Run("server streaming", func(t *testing.T) {
		s := stream("Down", false, true)
		_ = s.SendMsg(message(""))
		_ = s.CloseSend()
		for i := range 50 {
			got := message("")
			if err := s.RecvMsg(got); err != nil || string(*got) != fmt.Sprint(i) {
				t.Fatalf("%q %v", *got, err)
			}
		}
		ended(s)
	})
	t.Run("client streaming", func(t *testing.T) {
		s := stream("Up", true, false)
		for range 100 {
			if err := s.SendMsg(message(strings.Repeat("x", 3000))); err != nil {
				t.Fatal(err)
			}
		}
		_ = s.CloseSend()
		got := message("")
		if err := s.RecvMsg(got); err != nil || string(*got) != "100" {
			t.Fatalf("%q %v", *got, err)
		}
	})
	t.Run("both", func(t *testing.T) {
		s := stream("Both", true, true)
		for i := range 50 { // each answer comes before the next message is sent
			if err := s.SendMsg(message(fmt.Sprint("m", i))); err != nil {
				t.Fatal(err)
			}
			got := message("")
			if err := s.RecvMsg(got); err != nil || string(*got) != fmt.Sprint("M", i) {
				t.Fatalf("%q %v", *got, err)
			}
		}
		_ = s.CloseSend()
		ended(s)
	})
	t.Run("deadline", func(t *testing.T) {
		short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
		defer cancel()
		if code, _ := statusOf(cc.Invoke(short, method("Slow"), message(""), message(""))); code != codes.DeadlineExceeded {
			t.Fatal(code)
		}
	})
}
