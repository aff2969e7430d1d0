package engine_test

import (
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/http2"
)

// A client that sends its body in pieces of a byte each, packed together, makes the gateway do no more for the upstream than it would
// for one long piece: over HTTP/2 with every engine, over HTTP/1.1 with this one. Event loops hand chunks on as they are, in one write.
func TestCrumbsOfABodyAreSentOnTogether(t *testing.T) {
	t.Parallel()
	const crumbs = 4000
	count := func(t *testing.T) (up string, begun chan bool, chunks, length chan int) {
		begun, chunks, length = make(chan bool, 1), make(chan int, 1), make(chan int, 1)
		return scripted(t, func(_ int, c *raw) {
			for line := ""; line != "\r\n"; {
				line, _ = c.r.ReadString('\n')
			}
			begun <- true
			n, sum := 0, 0
			for size := int64(-1); size != 0; n, sum = n+1, sum+int(size) {
				line, _ := c.r.ReadString('\n')
				size, _ = strconv.ParseInt(strings.TrimSpace(line), 16, 32)
				_, _ = c.r.Discard(int(size) + 2)
			}
			chunks <- n
			length <- sum
			c.send(ok)
		}), begun, chunks, length
	}
	judge := func(t *testing.T, chunks, length chan int) {
		t.Helper()
		if n, sum := <-chunks, <-length; sum != crumbs || n > crumbs/20 {
			t.Errorf("%d bytes in %d chunks", sum, n)
		}
	}
	each(t, func(t *testing.T, start starter) {
		up, begun, chunks, length := count(t)
		f := start(t, up, setup{}).frames()
		f.head(1, false)
		var all strings.Builder
		w := http2.NewFramer(&all, nil)
		for i := range crumbs {
			_ = w.WriteData(1, i == crumbs-1, []byte("x"))
		}
		<-begun // what is whole by then has a length
		if _, err := f.Write([]byte(all.String())); err != nil {
			t.Fatal(err)
		}
		if h := answerOf(f, 1); h.PseudoValue("status") != "200" {
			t.Error(h.Fields)
		}
		judge(t, chunks, length)
	})
	up, begun, chunks, length := count(t)
	c := start(t, goroutines, up, setup{}).dial()
	c.send("POST / HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n")
	<-begun
	c.send(strings.Repeat("1\r\nx\r\n", crumbs) + "0\r\n\r\n")
	if res, _, err := c.answer("POST"); err != nil || res.StatusCode != 200 {
		t.Error(res, err)
	}
	judge(t, chunks, length)
}
