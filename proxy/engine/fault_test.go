package engine_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"golang.org/x/net/http2"

	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/reason"
)

// faulty panics for those who ask it to, as a fault of ours would.
type faulty struct{}

func (faulty) Authenticate(c *proxy.Credentials, _ *proxy.Identity, _ time.Time) (reason.Reason, <-chan struct{}) {
	if string(c.Authorization) == "Bearer fault" {
		panic("a fault made for a test")
	}
	return reason.None, nil
}

func (faulty) Foresee(*proxy.Credentials) {}

const closedDocument = `
version: v1
routes:
  - {id: any, match: {host: a.example, path_prefix: /, allow_catch_all: true}, upstream: up, auth: jwt, timeout: 3s}
upstreams: [{id: up, endpoints: ["UP"]}]
policies: [{id: jwt, jwt: {issuer: "https://i.example", audience: a, jwks: "https://i.example/keys"}}]
`

// A fault of ours costs the exchange that met it, over HTTP/1.1 with its connection, and nobody else anything.
func TestAFaultCostsItsExchangeAlone(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		release := make(chan struct{})
		w := start(t, handler(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/held" {
				<-release
			}
			_, _ = io.WriteString(w, "ok")
		}), setup{document: closedDocument, auth: faulty{}})
		other := w.dial().send(get("/held"))
		f := w.frames().head(1, true, ":path", "/held")
		for id := uint32(3); id < 20; id += 4 {
			f.head(id, true, "authorization", "Bearer fault").head(id+2, true)
			if code := resetOf(f, id); code != http2.ErrCodeInternal {
				t.Fatal(code)
			}
			w.dial().send("GET / HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer fault\r\n\r\n").closed()
		}
		close(release)
		if got, _ := dataOf(f, 1, 2); got != "ok" {
			t.Fatalf("%q", got)
		}
		if res, body, err := other.answer("GET"); err != nil || res.StatusCode != 200 || body != "ok" {
			t.Fatal(res, err)
		}
		if res, _, err := other.send(get("/")).answer("GET"); err != nil || res.StatusCode != 200 {
			t.Fatal(res, err)
		}
		w.quiet()
	})
}
