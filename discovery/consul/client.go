package consul

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// newClient is one that follows no redirect, since the agent alone was named, asks no HTTP proxy, and reads no answer beyond
// maxAnswer.
func newClient(cfg *api.Config, address string) (*api.Client, error) {
	if address != "" {
		cfg.Address = address
	}
	cfg.TokenFile = "" // read for every question
	dialer := &net.Dialer{Timeout: patience}
	t := &http.Transport{DialContext: dialer.DialContext, TLSHandshakeTimeout: patience, IdleConnTimeout: 2 * time.Minute, MaxIdleConnsPerHost: maxWaiting, MaxResponseHeaderBytes: 64 << 10, ForceAttemptHTTP2: true}
	if path, ok := strings.CutPrefix(cfg.Address, "unix://"); ok {
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dialer.DialContext(ctx, "unix", path) }
		cfg.Address = "localhost"
	}
	client, err := api.NewHttpClient(t, cfg.TLSConfig)
	if err != nil {
		return nil, err
	}
	client.Transport = bounded{t}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	cfg.HttpClient = client
	return api.NewClient(cfg)
}

// bounded ends answers that are too long.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	res, err := b.RoundTripper.RoundTrip(r)
	if err == nil {
		res.Body = &body{ReadCloser: res.Body, left: maxAnswer}
	}
	return res, err
}

type body struct {
	io.ReadCloser
	left int
}

var errTooLong = errors.New("the answer is too long")

func (b *body) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, errTooLong
	}
	n, err := b.ReadCloser.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}
