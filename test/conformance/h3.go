package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	quichttp "github.com/quic-go/quic-go/http3"
)

// h3 asks over HTTP/3 with clients of other hands: gtlsclient of ngtcp2 (Debian: ngtcp2-client) and the client of quic-go.
func h3(ctx context.Context, r *run, engine string) (failed error) {
	dir, err := os.MkdirTemp(r.dir, "")
	if err != nil {
		return err
	}
	back, err := answering(r.addr)
	if err != nil {
		return err
	}
	defer back.Close()
	g, err := r.gateway(ctx, dir, setup{engine: engine, addr: r.addr, tls: true, h3: true, to: upstream{addr: back.addr}})
	if err != nil {
		return err
	}
	defer g.stop()
	for _, c := range []struct {
		client string
		cases  []h3Case
	}{{"gtlsclient", gtlsclient(r, g, dir)}, {"quic-go", quicgo(g)}} {
		x := row{suite: "h3", protocol: "HTTP/3, " + c.client, engine: engine}
		for _, k := range c.cases {
			if r.only != "" && k.name != r.only {
				continue
			}
			x.total++
			ctx, cancel := context.WithTimeout(ctx, caseLimit)
			if err := k.run(ctx); err != nil {
				fmt.Fprintf(os.Stderr, "%s, %s: %v\n", c.client, k.name, err)
			} else {
				x.passed++
			}
			cancel()
		}
		r.add(x)
	}
	return nil
}

type h3Case struct {
	name string
	run  func(context.Context) error
}

// large is more than a stream's first window takes.
const large = 3 << 20

// gtlsclient asks and sends on good paths, on paths that lose packets, and from an address that changes meanwhile. The gateway
// changes the keys after a hundred packets; the client would give up if it wanted to just then.
func gtlsclient(r *run, g *gateway, dir string) (all []h3Case) {
	got := filepath.Join(dir, "got")
	ask := func(ctx context.Context, path string, args ...string) error {
		client, err := r.tool("gtlsclient")
		if err != nil {
			return err
		}
		host, port, err := net.SplitHostPort(g.addr)
		if err != nil {
			return err
		}
		args = append([]string{"--exit-on-all-streams-close", "--quiet", "--download", got}, args...)
		out, err := exec.CommandContext(ctx, client, append(args, host, port, "https://localhost:"+port+path)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}
	body := filepath.Join(dir, "body")
	get := func(ctx context.Context, n int, args ...string) error {
		name := strconv.Itoa(n)
		if err := errors.Join(fresh(got), ask(ctx, "/bytes/"+name, args...)); err != nil {
			return err
		}
		return same(filepath.Join(got, name), pattern(n))
	}
	ways := map[string][]string{"": nil, " with losses": {"--tx-loss=0.1", "--rx-loss=0.1"}, " from elsewhere": {"--change-local-addr=5ms"}}
	for _, how := range []string{"", " with losses", " from elsewhere"} {
		all = append(all, h3Case{"get" + how, func(ctx context.Context) error {
			return get(ctx, 300000, ways[how]...)
		}}, h3Case{"post" + how, func(ctx context.Context) error {
			if err := errors.Join(fresh(got), os.WriteFile(body, pattern(300000), 0o600)); err != nil {
				return err
			}
			if err := ask(ctx, "/echo", append(ways[how], "--http-method=POST", "--data="+body)...); err != nil {
				return err
			}
			return same(filepath.Join(got, "echo"), pattern(300000))
		}})
	}
	return all
}

// fresh makes an empty directory.
func fresh(dir string) error { return errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o700)) }

func same(file string, want []byte) error {
	b, err := os.ReadFile(file)
	if err == nil && !bytes.Equal(b, want) {
		err = fmt.Errorf("%d bytes came, not the %d that were sent", len(b), len(want))
	}
	return err
}

// quicgo does what clients do with the library that many of them use.
func quicgo(g *gateway) []h3Case {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(g.cert)
	client := &http.Client{Transport: &quichttp.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}}}
	_, port, _ := net.SplitHostPort(g.addr) // it was split before
	u := "https://" + g.addr
	do := func(ctx context.Context, method, path string, body io.Reader) (*http.Response, []byte, error) {
		q, err := http.NewRequestWithContext(ctx, method, u+path, body)
		if err != nil {
			return nil, nil, err
		}
		res, err := client.Do(q)
		if err != nil {
			return nil, nil, err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		return res, b, err
	}
	return []h3Case{
		{"get", func(ctx context.Context) error { return gets(ctx, do, large) }},
		{"head", func(ctx context.Context) error {
			res, b, err := do(ctx, http.MethodHead, "/bytes/1000", nil)
			if err == nil && (res.StatusCode != 200 || res.ContentLength != 1000 || len(b) != 0) {
				err = fmt.Errorf("status %d, length %d, %d bytes", res.StatusCode, res.ContentLength, len(b))
			}
			return err
		}},
		{"post", func(ctx context.Context) error {
			res, b, err := do(ctx, http.MethodPost, "/echo", io.MultiReader(bytes.NewReader(pattern(large)))) // of no known length
			if err == nil && (!bytes.Equal(b, pattern(large)) || res.Trailer.Get("X-Bytes") != strconv.Itoa(large)) {
				err = fmt.Errorf("%d bytes, trailer %q", len(b), res.Trailer.Get("X-Bytes"))
			}
			return err
		}},
		{"many at once", func(ctx context.Context) error {
			errs := make(chan error)
			for range 64 {
				go func() { errs <- gets(ctx, do, 20_000) }()
			}
			var all error
			for range 64 {
				all = errors.Join(all, <-errs)
			}
			return all
		}},
		{"cancelled", func(ctx context.Context) error {
			short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
			defer cancel()
			pr, pw := io.Pipe() // a body that never ends
			defer pw.Close()
			if _, _, err := do(short, http.MethodPost, "/echo", pr); err == nil {
				return errors.New("an answer without an end has ended")
			}
			return gets(ctx, do, 1) // on the same connection
		}},
		{"announced", func(ctx context.Context) error { return announced(ctx, roots, u, port) }},
	}
}

func gets(ctx context.Context, do func(context.Context, string, string, io.Reader) (*http.Response, []byte, error), n int) error {
	res, b, err := do(ctx, http.MethodGet, "/bytes/"+strconv.Itoa(n), nil)
	if err == nil && (res.StatusCode != 200 || res.ProtoMajor != 3 || !bytes.Equal(b, pattern(n))) {
		err = fmt.Errorf("status %d over %s, %d bytes", res.StatusCode, res.Proto, len(b))
	}
	return err
}

// announced asks over TCP where HTTP/3 is.
func announced(ctx context.Context, roots *x509.CertPool, u, port string) error {
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, u, nil)
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	res, err := transport.RoundTrip(q)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if v := res.Header.Get("Alt-Svc"); !strings.Contains(v, `h3=":`+port+`"`) {
		return fmt.Errorf("Alt-Svc: %q", v)
	}
	return nil
}
