package engine_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy"
)

// due is a limiter whose leases always have to be waited for. It refuses every other request.
type due struct {
	mu   sync.Mutex
	left bool
	wait func(waits int) <-chan struct{}
}

func (*due) Aim([]proxy.Claim) {}

func (d *due) Take(claims []proxy.Claim, waits int, _ time.Time) (int, <-chan struct{}) {
	if wait := d.wait(waits); wait != nil {
		return -1, wait
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.left = !d.left; d.left {
		return -1, nil
	}
	claims[0].RetryAfter = 3 * time.Second
	return 0, nil
}

const limitedDocument = `
version: v1
routes:
  - {id: any, match: {host: a.example, path_prefix: /, allow_catch_all: true}, upstream: up, timeout: 20s, limits: {tenant: 1/second}}
upstreams:
  - {id: up, endpoints: ["UP"]}
`

// H2: a request that waits for its lease goes on where it was, with its body, on every engine and protocol.
func TestARequestThatWaitsForALeaseGoesOnWhereItWas(t *testing.T) {
	t.Parallel()
	soon := func(waits int) <-chan struct{} {
		if waits == 2 {
			return nil
		}
		ch := make(chan struct{})
		time.AfterFunc(2*time.Millisecond, func() { close(ch) })
		return ch
	}
	echo := func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }
	both := func(t *testing.T, c *http.Client, url string) {
		var codes [600]int
		for range 10 {
			res, err := c.Post(url, "text/plain", strings.NewReader("hello"))
			if body := read(t, res, err); res.StatusCode == 200 && body != "hello" || res.StatusCode == 429 && res.Header.Get("Retry-After") != "3" {
				t.Errorf("%d %q %v", res.StatusCode, body, res.Header)
			}
			codes[res.StatusCode]++
		}
		if codes[200] != 5 || codes[429] != 5 {
			t.Errorf("%d served, %d refused", codes[200], codes[429])
		}
	}
	each(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{document: limitedDocument, limits: &due{wait: soon}})
		both(t, w.tlsClient(""), "http://a.example/x")
		both(t, w.h2c(nil), "http://a.example/x")
	})
	eachOverTLS(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{document: limitedDocument, limits: &due{wait: soon}})
		w.roots = w.trust.RootCAs
		for _, proto := range []string{"http/1.1", "h2"} {
			both(t, w.tlsClient(proto), "https://a.example/x")
		}
	})
	t.Run("net/http", func(t *testing.T) {
		w := start(t, standard, handler(t, echo), setup{document: limitedDocument, limits: &due{wait: soon}})
		both(t, w.tlsClient(""), "http://a.example/x")
		both(t, w.h2c(nil), "http://a.example/x")
	})
	t.Run("HTTP/3", func(t *testing.T) {
		w := start(t, goroutines, handler(t, echo), setup{document: limitedDocument, limits: &due{wait: soon}, h3: true})
		both(t, w.h3Client(nil), "https://a.example/x")
	})
}
