package proxy

import (
	"strings"
	"testing"
	"time"
)

const webDocument = `
version: v1
routes: [{id: r, match: {host: a.example, path: /r}, upstream: up, policies: [web]}]
upstreams: [{id: up, endpoints: ["127.0.0.1:1"]}]
policies: [{id: web, cors: {origins: ["https://*.example.com"], expose: [x-total], credentials: true}}]
`

// A route with a CORS policy costs no allocation, neither for a preflight nor for an answer.
func TestCORSAllocatesNothing(t *testing.T) {
	s := serverWith(t, &script{refuse: -1}, webDocument)
	x := exchangeOf(t, s, strings.Replace(get("/r", "Origin: https://app.example.com", "Access-Control-Request-Method: GET"), "GET", "OPTIONS", 1))
	var out []byte
	if n := testing.AllocsPerRun(1000, func() {
		x.reset()
		if x.Run(time.Now()) != Reply || x.Status != 204 {
			t.Fatal(x.Status, x.Reason)
		}
		out = x.AppendFields(out[:0])
	}); n != 0 {
		t.Fatalf("%v allocations for a preflight", n)
	}
	x = exchangeOf(t, s, get("/r", "Origin: https://app.example.com"))
	if n := testing.AllocsPerRun(1000, func() {
		x.reset()
		if x.Run(time.Now()) != Next {
			t.Fatal(x.Reason)
		}
		x.runAnswer()
		out = x.AppendFields(out[:0])
	}); n != 0 {
		t.Fatalf("%v allocations for an answer", n)
	}
}
