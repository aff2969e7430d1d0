//go:build long

package engine_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// A client that has sent its body in time waits for its answer as long as its route says, whatever time the body had.
func TestALongWaitBehindABodyIsNoLeave(t *testing.T) {
	up := func(t *testing.T) string {
		return handler(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			time.Sleep(11 * time.Second)
			_, _ = io.WriteString(w, "ok")
		})
	}
	eachClient(t, up, setup{silent: true}, func(t *testing.T, c *http.Client, base string) {
		for _, body := range []io.Reader{strings.NewReader("hello"), io.MultiReader(strings.NewReader("hello"))} {
			res, err := c.Post(base+"/", "", body)
			if got := read(t, res, err); res.StatusCode != 200 || got != "ok" {
				t.Errorf("%d %s", res.StatusCode, got)
			}
		}
	})
}
