//go:build long

package engine_test

import (
	"strings"
	"testing"
	"time"
)

// Who asks for new keys over and over and doesn't read the answers is not read from for ever.
func TestKeysThatAreAskedForAndNotReadAreBounded(t *testing.T) {
	t.Parallel()
	eachOverTLS(t, func(t *testing.T, start starter) {
		w := start(t, handler(t, echo), setup{document: strings.Replace(plainDocument, "20s", "60s", 1)})
		nc, _, s := w.sealing()
		_ = nc.SetDeadline(time.Now().Add(60 * time.Second))
		_, err := nc.Write(s.record(nil, 23, "POST /x HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1000000\r\n\r\n"))
		const rounds, updates = 20000, 15
		for i := 0; i < rounds && err == nil; i++ {
			var b []byte
			for range updates {
				b = s.update(b)
			}
			_ = nc.SetWriteDeadline(time.Now().Add(time.Second))
			_, err = nc.Write(s.record(b, 23, "x"))
		}
		if err == nil {
			t.Fatalf("%d changes of keys were taken, and no answer to them was read", rounds*updates)
		}
	})
}
