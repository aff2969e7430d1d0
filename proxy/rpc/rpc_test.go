package rpc

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"
)

func TestCallersAreKnownByTheirContentType(t *testing.T) {
	for contentType, want := range map[string]Kind{
		"":                                   None,
		"application/json":                   None,
		"application/grp":                    None,
		"application/grpcx":                  None,
		"application/grpc-webx":              None,
		"application/grpc-web-texts":         None,
		"application/grpc":                   GRPC,
		"Application/gRPC":                   GRPC,
		"application/grpc+proto":             GRPC,
		"application/grpc; charset=utf-8":    GRPC,
		"application/grpc-web":               Web,
		"application/grpc-web+json":          Web,
		"application/GRPC-Web;x=y":           Web,
		"application/grpc-web-text":          WebText,
		"application/grpc-web-text+proto":    WebText,
		"application/grpc-web-text+thrift;q": WebText,
	} {
		if got := Of([]byte(contentType)); got != want {
			t.Errorf("%q: %d, want %d", contentType, got, want)
		}
	}
}

func TestAnswersAreOfTheCallersType(t *testing.T) {
	long := "application/grpc+" + string(bytes.Repeat([]byte("x"), maxType))
	for contentType, want := range map[string]string{
		"application/grpc":                    "application/grpc",
		"application/grpc-web+json;charset=x": "application/grpc-web+json",
		"application/grpc ; x":                "application/grpc",
		long:                                  "application/grpc",
	} {
		if got := string(Type([]byte(contentType))); got != want {
			t.Errorf("%q: %q, want %q", contentType, got, want)
		}
	}
}

// However a body is cut, it is known where its frames end.
func TestPropertyFramesAreFollowedOverAnyPieces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var body []byte
		ends := map[int]bool{0: true}
		for range rapid.IntRange(0, 6).Draw(t, "frames") {
			n := rapid.SampledFrom([]int{0, 1, 4, 5, 300, 70000}).Draw(t, "length")
			body = append(body, byte(rapid.IntRange(0, 1).Draw(t, "flags")), 0, byte(n>>16), byte(n>>8), byte(n))
			body = append(body, make([]byte, n)...)
			ends[len(body)] = true
		}
		var m Messages
		for at := 0; at < len(body); {
			n := min(rapid.IntRange(1, 9000).Draw(t, "piece"), len(body)-at)
			m.Feed(body[at : at+n])
			if at += n; m.Between() != ends[at] {
				t.Fatalf("after %d of %d bytes: between %v", at, len(body), m.Between())
			}
		}
	})
}

func TestAStatusIsAFrame(t *testing.T) {
	b := AppendStatus([]byte("x"), 14, "Gone")
	if want := "x\x80\x00\x00\x00\x25grpc-status: 14\r\ngrpc-message: Gone\r\n"; string(b) != want {
		t.Fatalf("%q", b)
	}
	var m Messages
	if m.Feed(b[1:]); !m.Between() {
		t.Fatal("its length isn't its own")
	}
}
