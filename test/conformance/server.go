package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
)

// serverCommand makes this command what connectconformance takes for the server under test: the suite's reference server
// with a gateway ahead of it.
const serverCommand = "as-server"

// between is how the server under test is made.
type between struct {
	proxy, reference, addr, engine string
	to                             string // the upstream: over HTTP/1.1 or HTTP/2; with TLS when clients come with it
}

func (w between) args() []string {
	return []string{serverCommand, "--proxy", w.proxy, "--reference", w.reference, "--addr", w.addr, "--engine", w.engine, "--to", w.to}
}

// asServer reads on standard input what kind of server is wanted, says where it is, and serves until it is told to stop.
func asServer(args []string) error {
	var w between
	f := flag.NewFlagSet(serverCommand, flag.ContinueOnError)
	f.StringVar(&w.proxy, "proxy", "", "")
	f.StringVar(&w.reference, "reference", "", "")
	f.StringVar(&w.addr, "addr", "", "")
	f.StringVar(&w.engine, "engine", "", "")
	f.StringVar(&w.to, "to", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	m, err := readMessage(os.Stdin)
	if err != nil {
		return err
	}
	want, err := parseServerRequest(m)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "cellgate-conformance-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	return w.serve(ctx, dir, want)
}

func (w between) serve(ctx context.Context, dir string, want serverRequest) error {
	reference, to, err := w.behind(ctx, want)
	if err != nil {
		return err
	}
	defer reference.stop()
	g, err := serve(ctx, w.proxy, dir, setup{engine: w.engine, addr: w.addr, tls: want.tls, h3: want.version == http3, to: to})
	if err != nil {
		return err
	}
	defer func() {
		if logs := g.stop(); strings.Contains(logs, "panic") {
			fmt.Fprintln(os.Stderr, logs)
		}
	}()
	host, port, err := net.SplitHostPort(g.addr)
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return err
	}
	if _, err := os.Stdout.Write(framed(serverResponse{host: host, port: n, cert: g.cert}.append(nil))); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// behind starts the suite's server for the gateway's side.
func (w between) behind(ctx context.Context, want serverRequest) (*child, upstream, error) {
	q := want
	if q.version = http2; w.to == "HTTP/1.1" {
		q.version = http1
	}
	c, err := start(ctx, w.reference, strings.NewReader(string(framed(q.append(nil)))), "-bind", w.addr)
	if err != nil {
		return nil, upstream{}, err
	}
	m, err := readMessage(c.out)
	if err != nil {
		return nil, upstream{}, errors.Join(err, errors.New(c.stop()))
	}
	a, err := parseServerResponse(m)
	if err != nil {
		return nil, upstream{}, errors.Join(err, errors.New(c.stop()))
	}
	to := upstream{addr: net.JoinHostPort(a.host, strconv.FormatUint(a.port, 10))}
	if q.version == http2 {
		to.protocol = "h2c"
	}
	if q.tls {
		to.ca, to.protocol = a.cert, strings.TrimSuffix(to.protocol, "c")
	}
	return c, to, nil
}
