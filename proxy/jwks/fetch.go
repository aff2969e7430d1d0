package jwks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/snapshot"
)

// Fetcher gets documents over HTTPS (HTTP where permitted, and then from loopback only). It takes no proxy from the
// environment, follows redirects on the same host alone, and looks at each address when it connects.
func Fetcher(allow snapshot.Allow) func(ctx context.Context, url string) ([]byte, error) {
	secure, open := client(allow, false), client(allow, true)
	return func(ctx context.Context, raw string) ([]byte, error) {
		u, err := url.Parse(raw)
		if err != nil {
			return nil, fmt.Errorf("jwks: %w", err)
		}
		switch {
		case u.Scheme == "https":
			return get(ctx, secure, u)
		case u.Scheme == "http" && allow.PlainURLs:
			return get(ctx, open, u)
		}
		return nil, fmt.Errorf("jwks: %q is not an https URL", u.Redacted())
	}
}

func client(allow snapshot.Allow, loopbackOnly bool) *http.Client {
	return &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DialContext:            ask.Dialer(allow, loopbackOnly).DialContext,
			DisableKeepAlives:      true, // a fetch in ten minutes isn't worth an open connection
			TLSHandshakeTimeout:    3 * time.Second,
			ResponseHeaderTimeout:  4 * time.Second,
			MaxResponseHeaderBytes: 64 << 10,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(next *http.Request, via []*http.Request) error {
			if from := via[0].URL; len(via) > 3 || next.URL.Host != from.Host || next.URL.Scheme != from.Scheme {
				return errors.New("redirect to another host or too many of them")
			}
			return nil
		},
	}
}

func get(ctx context.Context, c *http.Client, u *url.URL) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, fmt.Errorf("jwks: %w", err)
	}
	req.Header.Set("Accept", "application/jwk-set+json, application/json")
	resp, err := c.Do(req)
	if err != nil {
		return nil, fmt.Errorf("jwks: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("jwks: the provider answered %s", resp.Status)
	}
	doc, err := io.ReadAll(io.LimitReader(resp.Body, auth.MaxKeySet+1))
	if err != nil {
		return nil, fmt.Errorf("jwks: %w", err)
	}
	if len(doc) > auth.MaxKeySet {
		return nil, errTooLarge
	}
	return doc, nil
}
