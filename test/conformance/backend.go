package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"
)

// backend is a server of this process behind the gateway.
type backend struct {
	addr   string
	server *http.Server
}

func (b *backend) Close() { b.server.Close() }

// answering starts a server that takes and gives what the suites of HTTP itself need: GET /bytes/N gives N bytes, a POST to
// /echo gets its body back with the number of bytes in a trailer, everything else a short answer.
func answering(addr string) (*backend, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(addr, "0"))
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bytes/{n}", giveBytes)
	mux.HandleFunc("POST /echo", echo)
	mux.HandleFunc("/", func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body) // the client may give up
		_, _ = io.WriteString(w, "an answer\n")
	})
	b := &backend{addr: l.Addr().String(), server: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}}
	go b.server.Serve(l)
	return b, nil
}

func giveBytes(w http.ResponseWriter, q *http.Request) {
	n, err := strconv.Atoi(q.PathValue("n"))
	if err != nil || n < 0 || n > 64<<20 {
		http.Error(w, "no number of bytes", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(n))
	_, _ = w.Write(pattern(n)) // the client may give up
}

func echo(w http.ResponseWriter, q *http.Request) {
	if http.NewResponseController(w).EnableFullDuplex() != nil { // net/http would read the request to its end before it answers
		return
	}
	w.Header().Set("Trailer", "X-Bytes")
	n, _ := io.Copy(w, q.Body) // the trailer says how far it came
	w.Header().Set("X-Bytes", strconv.FormatInt(n, 10))
}

// pattern is n bytes whose order can be seen.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i ^ i>>8 ^ i>>16)
	}
	return b
}

// gateway starts one with the product's proxy.
func (r *run) gateway(ctx context.Context, dir string, s setup) (*gateway, error) {
	proxy, err := r.tool("proxy")
	if err != nil {
		return nil, err
	}
	return serve(ctx, proxy, dir, s)
}
