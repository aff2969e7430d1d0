package engine_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/cellgate/cellgate/reason"
)

// bytesCodec makes messages of plain bytes.
type bytesCodec struct{}

func (bytesCodec) Name() string                  { return "bytes" }
func (bytesCodec) Marshal(v any) ([]byte, error) { return *v.(*[]byte), nil }
func (bytesCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}
func (w *world) grpc() *grpc.ClientConn {
	w.t.Helper()
	c, err := grpc.NewClient("passthrough:///"+w.addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithAuthority("a.example"),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(bytesCodec{})), grpc.WithDisableRetry())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { c.Close() })
	return c
}

// call makes one unary call and gives what came of it.
func call(t *testing.T, c *grpc.ClientConn, method string) (answer string, st *status.Status, trailer metadata.MD) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	in, out := []byte("hello"), []byte(nil)
	err := c.Invoke(ctx, method, &in, &out, grpc.Trailer(&trailer))
	return string(out), status.Convert(err), trailer
}

const grpcDocument = `
version: v1
routes:
  - {id: any, match: {host: a.example, path_prefix: /any}, upstream: up, timeout: 20s}
  - {id: hasty, match: {host: a.example, path_prefix: /hasty}, upstream: up, timeout: 800ms}
  - {id: dead, match: {host: a.example, path_prefix: /dead}, upstream: dead, timeout: 20s}
  - {id: few, match: {host: a.example, path_prefix: /few}, upstream: up, limits: {tenant: 1/hour}}
  - {id: closed, match: {host: a.example, path_prefix: /closed}, upstream: up, auth: jwt}
  - {id: gets, match: {host: a.example, path_prefix: /gets, methods: [GET]}, upstream: up}
upstreams:
  - {id: up, endpoints: ["UP"]}
  - {id: dead, endpoints: ["DEAD"]}
policies: [{id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}]
`

// CASES G15: an own answer to a gRPC caller is HTTP 200, trailers only, and the log tells the reason.
func TestGRPCCallersGetGRPCStatuses(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		gone := listen(t)
		gone.Close()
		up := scripted(t, func(_ int, c *raw) {
			for {
				req, _, alive := c.request()
				if !alive || strings.HasPrefix(req.URL.Path, "/hasty") {
					_, _ = c.r.ReadByte()
					return
				}
				c.send(grpcAnswer)
			}
		})
		w := start(t, up, setup{document: strings.ReplaceAll(grpcDocument, "DEAD", gone.Addr().String())})
		c := w.grpc()
		if answer, st, _ := call(t, c, "/few/1"); answer != "abc" || st.Code() != codes.OK {
			t.Fatalf("%q %v", answer, st)
		}
		<-w.logged
		for method, want := range map[string]struct {
			code codes.Code
			why  reason.Reason
		}{
			"/few/2":    {codes.ResourceExhausted, reason.RateTenant},
			"/nowhere":  {codes.Unimplemented, reason.NoRoute},
			"/gets/1":   {codes.Unimplemented, reason.MethodNotAllowed},
			"/closed/1": {codes.Unavailable, reason.AuthUnavailable},
			"/dead/1":   {codes.Unavailable, reason.ConnectFailed},
			"/hasty/1":  {codes.DeadlineExceeded, reason.UpstreamTimeout},
		} {
			_, st, trailer := call(t, c, method)
			if st.Code() != want.code || st.Message() != want.why.Title() || strings.Join(trailer["x-cellgate-reason"], ",") != want.why.String() {
				t.Errorf("%s: %v %v", method, st, trailer)
			}
			if r := <-w.logged; r.Reason != want.why || r.Status != want.why.Status() || r.RequestID != strings.Join(trailer["x-request-id"], ",") {
				t.Errorf("%s: %+v", method, r)
			}
		}
	})
}

// A client takes an answer in another format than its own for no gRPC.
func TestGRPCOverHTTP1GetsTheSameForm(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{})
		for kind, want := range map[string]string{"application/grpc": "application/grpc", "Application/gRPC+proto": "Application/gRPC+proto",
			"application/grpc;x=y": "application/grpc", "application/grpc-web": "application/grpc-web", "application/grpc-web+json": "application/grpc-web+json",
			"application/grpc-web-text": "application/grpc-web-text", "application/grpcx": "", "application/json": ""} {
			res, body, err := w.dial().send("POST / HTTP/1.1\r\nHost: b.example\r\nContent-Type: " + kind + "\r\nContent-Length: 0\r\n\r\n").answer("POST")
			if want == "" {
				problem(t, res, body, reason.NoRoute)
				continue
			}
			if err != nil || res.StatusCode != 200 || body != "" || res.Header.Get("Grpc-Status") != "12" || res.Header.Get("Content-Type") != want ||
				res.Header.Get("Grpc-Message") != reason.NoRoute.Title() || res.Header.Get("X-Cellgate-Reason") != "no_route" {
				t.Errorf("%s: %d %v %q", kind, res.StatusCode, res.Header, body)
			}
		}
	})
}

const grpcAnswer = "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n8\r\n\x00\x00\x00\x00\x03abc\r\n0\r\nGrpc-Status: 0\r\n\r\n"

// CASES G11 and G13: trailers that nobody announced arrive, with a body and without one; te, trailers and the deadline go upstream.
func TestGRPCTrailersAndDeadlinesPass(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		seen := make(chan http.Header, 3)
		up := scripted(t, func(_ int, c *raw) {
			for {
				req, _, alive := c.request()
				if !alive {
					return
				}
				seen <- req.Header
				switch req.URL.Path {
				case "/any/empty":
					c.send("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nGrpc-Status: 5\r\nGrpc-Message: no such thing\r\nX-More: 1\r\n\r\n")
				case "/any/only":
					c.send("HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nGrpc-Status: 9\r\nContent-Length: 0\r\n\r\n")
				default:
					c.send(grpcAnswer)
				}
			}
		})
		w := start(t, up, setup{document: strings.ReplaceAll(grpcDocument, "DEAD", "127.22.0.1:1")})
		c := w.grpc()
		for method, want := range map[string]codes.Code{"/any/empty": codes.NotFound, "/any/only": codes.FailedPrecondition, "/any/full": codes.OK} {
			answer, st, trailer := call(t, c, method)
			if st.Code() != want || method == "/any/full" && answer != "abc" || method == "/any/empty" && (st.Message() != "no such thing" || len(trailer["x-more"]) != 1) {
				t.Errorf("%s: %q %v %v", method, answer, st, trailer)
			}
			h := <-seen
			if h.Get("Te") != "trailers" || !strings.HasSuffix(h.Get("Grpc-Timeout"), "m") || strings.TrimSuffix(h.Get("Grpc-Timeout"), "m") != h.Get("X-Request-Timeout-Ms") {
				t.Errorf("%s: the upstream got %v", method, h)
			}
		}
	})
}

// An answer that breaks off is none, whatever has come of it. Callers are told as the server would have told them.
func TestAGRPCAnswerThatBreaksOffIsAnError(t *testing.T) {
	t.Parallel()
	everyEngine(t, func(t *testing.T, kind maker) {
		up := scripted(t, func(_ int, c *raw) {
			c.request()
			_, _ = io.WriteString(c, strings.TrimSuffix(grpcAnswer, "0\r\nGrpc-Status: 0\r\n\r\n"))
		})
		w := start(t, kind, up, setup{})
		_, st, trailer := call(t, w.grpc(), "/any")
		if st.Code() != codes.Unavailable || st.Message() != "The upstream broke off its answer" || strings.Join(trailer["x-cellgate-reason"], ",") != "upstream_reset" {
			t.Fatalf("%v %v", st, trailer)
		}
		if r := <-w.logged; !r.Truncated || r.Status != 200 {
			t.Fatalf("%+v", r)
		}
	})
}

func everyEngine(t *testing.T, test func(t *testing.T, kind maker)) {
	kinds := engines()
	kinds["nethttp"] = standard
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) { test(t, kind) })
	}
}

// halted is an upstream that gives n bytes of a message of three and then nothing.
func halted(t *testing.T, n int) string {
	return scripted(t, func(_ int, c *raw) {
		c.request()
		message := "\x00\x00\x00\x00\x03abc"[:n]
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: application/grpc\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n", n, message)
		_, _ = c.r.ReadByte()
	})
}

// A stream that its route ends, not its caller, has the status of a deadline.
func TestAGRPCStreamThatOutlivesItsRouteEndsWithAStatus(t *testing.T) {
	t.Parallel()
	everyEngine(t, func(t *testing.T, kind maker) {
		w := start(t, kind, halted(t, 8), setup{document: strings.ReplaceAll(grpcDocument, "DEAD", "127.22.0.1:1")})
		_, st, trailer := call(t, w.grpc(), "/hasty/1")
		if st.Code() != codes.DeadlineExceeded || st.Message() != reason.TotalTimeout.Title() || strings.Join(trailer["x-cellgate-reason"], ",") != "total_timeout" {
			t.Fatalf("%v %v", st, trailer)
		}
		if r := <-w.logged; !r.Truncated || r.Status != 200 || r.BytesOut != 8 {
			t.Fatalf("%+v", r)
		}
	})
}

// In gRPC-Web the status is a frame behind the last message. Within a message nothing can be said.
func TestAGRPCWebStreamThatOutlivesItsRouteEndsWithAStatus(t *testing.T) {
	t.Parallel()
	const frame = "\x80\x00\x00\x00\x4dgrpc-status: 4\r\ngrpc-message: The request took longer than its route allows\r\n"
	for n, want := range map[int]string{8: "\x00\x00\x00\x00\x03abc" + frame, 7: ""} {
		everyEngine(t, func(t *testing.T, kind maker) {
			up := setup{document: strings.ReplaceAll(grpcDocument, "DEAD", "127.22.0.1:1")}
			ask := func(protocol string, w *world, c *http.Client, scheme string) {
				body, err := web(t, c, scheme)
				if whole := err == nil; whole != (want != "") || whole && body != want {
					t.Errorf("%s, %d bytes of a message: %q %v", protocol, n, body, err)
				}
				if r := <-w.logged; !r.Truncated || r.BytesOut != int64(n) {
					t.Errorf("%s: %+v", protocol, r)
				}
			}
			w := start(t, kind, halted(t, n), up)
			ask("HTTP/1.1", w, w.http1(), "http")
			ask("HTTP/2", w, w.h2c(nil), "http")
			up.h3 = true
			w = start(t, kind, halted(t, n), up)
			ask("HTTP/3", w, w.h3Client(nil), "https")
		})
	}
}

// web asks in gRPC-Web and reads the answer to its end.
func web(t *testing.T, c *http.Client, scheme string) (string, error) {
	t.Helper()
	req, err := http.NewRequest("POST", scheme+"://a.example/hasty", strings.NewReader("\x00\x00\x00\x00\x00"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/grpc-web+proto")
	res, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return string(b), err
}

func (w *world) http1() *http.Client {
	tr := &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, w.addr)
	}}
	w.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: patience}
}

// An answer of trailers only ends with its head, and stays so: a head behind which a body might follow is none to callers of gRPC.
func TestGRPCAnswersOfTrailersOnlyStayThat(t *testing.T) {
	t.Parallel()
	up := handler2(t, nil, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/grpc")
		w.Header().Set("Grpc-Status", "5")
		w.Header().Set("Grpc-Message", "no such thing")
	})
	everyEngine(t, func(t *testing.T, kind maker) {
		w := start(t, kind, up, setup{document: over2("")})
		if _, st, _ := call(t, w.grpc(), "/any"); st.Code() != codes.NotFound || st.Message() != "no such thing" {
			t.Fatal(st)
		}
	})
}
