package engine_test

import (
	"testing"
	"time"
)

// The head of a pipelined request comes in two parts: one with the request before it, one while that is being answered. No
// more comes that would tell of it.
func TestAPipelinedHeadInTwoPartsIsTakenUp(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		asked, resume := make(chan bool), make(chan bool)
		up := scripted(t, func(_ int, c *raw) {
			for {
				req, _, ok := c.request()
				if !ok {
					return
				}
				if req.URL.Path == "/held" {
					asked <- true
					<-resume
				}
				c.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		})
		w := start(t, up, setup{})
		c := w.dial()
		c.send(get("/held") + get("/next")[:20])
		<-asked
		c.send(get("/next")[20:])
		for range 8 { // whichever loop has the connection, it has heard of the second part when these are answered
			w.dial().send(get("/other")).answer("GET")
		}
		resume <- true
		for range 2 {
			if res, _, err := c.answer("GET"); err != nil || res.StatusCode != 200 {
				t.Fatal(res, err)
			}
		}
	})
}

// A whole request, or the client's end, comes while the one before it is being answered.
func TestAPipelinedRequestIsTakenUpWheneverItComes(t *testing.T) {
	t.Parallel()
	eachSecure(t, func(t *testing.T, start starter) {
		asked, resume := make(chan bool), make(chan bool)
		w := start(t, scripted(t, func(_ int, c *raw) {
			for {
				if _, _, ok := c.request(); !ok {
					return
				}
				asked <- true
				<-resume
				c.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		}), setup{})
		c := w.dial()
		c.send(get("/1"))
		<-asked
		c.send(get("/2"))
		time.Sleep(10 * time.Millisecond) // it is in the socket long before the answer
		resume <- true
		<-asked
		if cw, ok := c.Conn.(interface{ CloseWrite() error }); ok {
			_ = cw.CloseWrite()
		}
		time.Sleep(10 * time.Millisecond)
		resume <- true
		for range 2 {
			if res, _, err := c.answer("GET"); err != nil || res.StatusCode != 200 {
				t.Fatal(res, err)
			}
		}
		c.closed()
	})
}
