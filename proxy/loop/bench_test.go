//go:build linux

package loop

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
)

// BenchmarkPlain is one request after the other on 64 connections, with clients and the upstream in the same process: for the
// profile of a loop (`make pgo`), not for its time.
func BenchmarkPlain(b *testing.B) {
	answer := "HTTP/1.1 200 OK\r\nServer: nginx\r\nDate: Mon, 30 Nov 2026 03:00:00 GMT\r\nContent-Type: text/plain\r\nContent-Length: 1000\r\n\r\n" + strings.Repeat("x", 1000)
	l := listen(b)
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go answering(c, answer)
		}
	}()
	w := start(b, fmt.Sprintf("%q", l.Addr()), "max_connections: 64", Options{Loops: 1})
	const clients = 64
	var all sync.WaitGroup
	b.ResetTimer()
	for range clients {
		all.Go(func() {
			c, err := net.Dial("tcp", w.addr)
			if err != nil {
				b.Error(err)
				return
			}
			defer c.Close()
			room := make([]byte, 4096)
			for range b.N/clients + 1 {
				if _, err := io.WriteString(c, get); err != nil {
					b.Error(err)
					return
				}
				for n := 0; n < len(answer); { // ours is longer
					k, err := c.Read(room)
					if n += k; err != nil {
						b.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
}

// answering gives the answer to each request; none of them has a body, and each comes in one piece.
func answering(c net.Conn, answer string) {
	defer c.Close()
	room := make([]byte, 4096)
	for {
		if _, err := c.Read(room); err != nil {
			return
		}
		if _, err := io.WriteString(c, answer); err != nil {
			return
		}
	}
}
