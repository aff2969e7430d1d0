package engine_test

import (
	"testing"
	"time"

	"github.com/cellgate/cellgate/proxy/relay"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

// Those who wait in a pool's queue are served one after the other, though clients and upstream are silent otherwise: nothing
// but the end of one exchange tells of the connection that the next one can have.
func TestAQueueMovesOnByItself(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		up := scripted(t, func(_ int, c *raw) {
			for {
				if _, _, ok := c.request(); !ok {
					return
				}
				time.Sleep(20 * time.Millisecond) // the others come to wait meanwhile
				c.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
			}
		})
		w := start(t, up, setup{document: `
version: v1
routes:
  - {id: any, match: {host: a.example, path_prefix: /, allow_catch_all: true}, upstream: up, timeout: 4s}
upstreams:
  - {id: up, endpoints: ["UP"], pool: {max_connections: 1, max_pending: 16}}
`})
		const waiting = 8 // some of them where the connection is, some elsewhere
		var clients []*raw
		for range 1 + waiting {
			clients = append(clients, w.dial().send(get("/x")))
		}
		for i, c := range clients {
			if res, body, err := c.answer("GET"); err != nil || res.StatusCode != 200 {
				t.Errorf("client %d: %v %s %v", i, res, body, err)
			}
		}
	})
}

// asking is an upstream that tells the method of each request that came, and answers it when it is told to go on.
func asking(t *testing.T) (up string, came chan string, goOn chan bool) {
	came, goOn = make(chan string), make(chan bool)
	return scripted(t, func(_ int, c *raw) {
		for {
			req, _, ok := c.request()
			if !ok {
				return
			}
			came <- req.Method
			<-goOn
			c.send("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	}), came, goOn
}

// I11 in a pool that is full: a write that waits gets the place of a read at another region's endpoint, not its connection.
func TestAWriteThatWaitsStaysWithItsOwner(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		up, came, goOn := asking(t)
		w := start(t, up, setup{here: snapshot.Locality{Region: "here"}, document: `
version: v1
routes:
  - {id: any, match: {host: a.example, path_prefix: /, allow_catch_all: true}, upstream: up, timeout: 4s}
upstreams:
  - id: up
    endpoints: [{address: "UP", region: here}, {address: "127.46.0.9:1", region: there}]
    owner_region: there
    pool: {max_connections: 1}
    outlier: off
    breaker: off
`})
		read := w.dial()
		for range 4 { // the write is at the loop of the read, or at another
			read.send(get("/"))
			<-came
			write := w.dial().send(post("x"))
			time.Sleep(20 * time.Millisecond) // it comes to wait meanwhile
			goOn <- true
			if res, _, err := read.answer("GET"); err != nil || res.StatusCode != 200 {
				t.Fatal("read", res, err)
			}
			res, body, err := write.answer("POST")
			if err != nil {
				t.Fatal(err)
			}
			problem(t, res, body, reason.ConnectFailed)
		}
	})
}

// A request whose client has left while it waited in a pool's queue reaches no upstream.
func TestWhoHasLeftTheQueueIsNotForwarded(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, start starter) {
		up, came, goOn := asking(t)
		w := start(t, up, setup{document: `
version: v1
routes:
  - {id: any, match: {host: a.example, path_prefix: /, allow_catch_all: true}, upstream: up, timeout: 4s}
upstreams:
  - {id: up, endpoints: ["UP"], pool: {max_connections: 1}}
`})
		stays := w.dial().send(get("/"))
		<-came
		leaves := w.dial().send(post("x"))
		time.Sleep(relay.LookAfter) // clients are looked at that often
		leaves.reset()
		time.Sleep(20 * time.Millisecond)
		goOn <- true
		for last := false; ; last = true {
			if res, _, err := stays.answer("GET"); err != nil || res.StatusCode != 200 {
				t.Fatal(res, err)
			}
			if last {
				return
			}
			stays.send(get("/"))
			if method := <-came; method != "GET" {
				t.Errorf("%s of a client that has left", method)
			}
			goOn <- true
		}
	})
}
