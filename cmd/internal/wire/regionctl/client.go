package regionctl

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/regionctl"
)

// maxAnswer bounds what is read of an answer, in bytes.
const maxAnswer = 256 << 20

// client asks the controllers of a world, each region's in turn until one answers.
type client struct {
	place place
	http  *http.Client
}

func (w *where) client() (*client, error) {
	p, err := w.find()
	if err != nil {
		return nil, err
	}
	t := &http.Transport{
		DialContext:           (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		TLSHandshakeTimeout:   3 * time.Second,
		ResponseHeaderTimeout: 2 * time.Minute,
		TLSClientConfig:       &tls.Config{MinVersion: tls.VersionTLS12},
	}
	if p.ca != "" {
		pem, err := os.ReadFile(p.ca)
		if err != nil {
			return nil, fmt.Errorf("%s: CA: %w", p.from, err)
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: CA %s holds no certificate", p.from, p.ca)
		}
	}
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &client{place: p, http: &http.Client{Transport: t, CheckRedirect: noRedirect}}, nil
}

// get asks for a document.
func get[T any](ctx context.Context, c *client, path string) (T, error) {
	return do[T](ctx, c, http.MethodGet, path, nil)
}

// post sends a document. Every attempt carries the same idempotency key, so that asking a second server after a first one
// was lost in the middle publishes nothing twice.
func post[T any](ctx context.Context, c *client, path string, v any) (T, error) {
	return do[T](ctx, c, http.MethodPost, path, v)
}

func do[T any](ctx context.Context, c *client, method, path string, v any) (out T, err error) {
	var body []byte
	if v != nil {
		if body, err = json.Marshal(v); err != nil {
			return out, err
		}
	}
	key := rand.Text()
	var lost []error
	for _, server := range c.place.servers {
		raw, err := c.try(ctx, server, method, path, key, body)
		var f *regionctl.Fault
		if err == nil {
			if err := json.Unmarshal(raw, &out); err != nil {
				return out, fmt.Errorf("%s answered what is no such document: %w", server, err)
			}
			return out, nil
		}
		if errors.As(err, &f) && f.Status < http.StatusInternalServerError {
			return out, c.asExit(f)
		}
		lost = append(lost, fmt.Errorf("%s: %w", server, err))
		if ctx.Err() != nil {
			break
		}
	}
	says := "no controller answers"
	if f := (*regionctl.Fault)(nil); errors.As(errors.Join(lost...), &f) {
		says = "no controller can do it now"
	} else if c.place.dir != "" && !supervisor.Running(c.place.dir) {
		says = fmt.Sprintf("no controller answers, and nothing runs in %s (cellgate up --dir %s starts it again)", c.place.dir, c.place.dir)
	}
	return out, fmt.Errorf("%s:\n%w", says, errors.Join(lost...))
}

func (c *client) try(ctx context.Context, server, method, path, key string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, server+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	if c.place.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.place.token)
	}
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", key)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode == http.StatusOK {
		return raw, nil
	}
	f := &regionctl.Fault{}
	if json.Unmarshal(raw, f) != nil || f.Status == 0 {
		return nil, &regionctl.Fault{Status: resp.StatusCode, Title: resp.Status}
	}
	return nil, f
}

// asExit gives an answer of the API its exit code and says whose token was not taken.
func (c *client) asExit(f *regionctl.Fault) error {
	switch {
	case f.Refused:
		return &ExitError{Code: ExitRefused, Err: f}
	case f.Status == http.StatusBadRequest:
		return usage(f)
	case f.Status == http.StatusUnauthorized && c.place.token == "":
		return fmt.Errorf("%w, and %s gives no token", f, c.place.from)
	case f.Status == http.StatusUnauthorized:
		return fmt.Errorf("%w: the token of %s is not valid there", f, c.place.from)
	}
	return f
}
