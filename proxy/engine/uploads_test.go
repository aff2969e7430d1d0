package engine_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
)

// Bodies that come faster than they are read wait in parts, of many clients beside each other: each arrives as it was sent.
func TestLargeUploadsBesideEachOtherArriveWhole(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, func(rw http.ResponseWriter, r *http.Request) {
			sum := sha256.New()
			_, _ = io.Copy(sum, r.Body)
			fmt.Fprintf(rw, "%x", sum.Sum(nil))
		}), setup{silent: true})
		var all sync.WaitGroup
		for i := range uint64(12) {
			all.Go(func() {
				dice := rand.New(rand.NewPCG(i, 1))
				body := make([]byte, 1<<20+dice.IntN(1<<20))
				for j := range body {
					body[j] = byte(dice.Uint32())
				}
				c := w.dial()
				go func() {
					fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a.example\r\nContent-Length: %d\r\n\r\n", len(body))
					for r := bytes.NewReader(body); ; {
						if n, _ := io.CopyN(c, r, int64(1+dice.IntN(30000))); n == 0 {
							return
						}
					}
				}()
				res, err := http.ReadResponse(c.r, nil)
				if err != nil {
					t.Error(err)
					return
				}
				if got, err := io.ReadAll(res.Body); err != nil || string(got) != fmt.Sprintf("%x", sha256.Sum256(body)) {
					t.Errorf("%d: %q %v", res.StatusCode, got, err)
				}
			})
		}
		all.Wait()
	})
}
