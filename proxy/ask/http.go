package ask

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/snapshot"
)

// Dialer connects to permitted addresses alone. It looks at the address that a connection really goes to, so a name that
// changes its answer between check and use gains nothing.
func Dialer(allow snapshot.Allow, loopbackOnly bool) *net.Dialer {
	return &net.Dialer{Timeout: 3 * time.Second, Control: func(_, address string, _ syscall.RawConn) error {
		to, err := netip.ParseAddrPort(address)
		if err != nil || !allow.Permits(to.Addr()) || loopbackOnly && !to.Addr().Unmap().IsLoopback() {
			return fmt.Errorf("ask: address %s is not permitted", address)
		}
		return nil
	}}
}

// client keeps connections for the next question. It takes no proxy from the environment and follows no redirect: what a
// service says at another place is not its answer.
func client(allow snapshot.Allow, loopbackOnly bool) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            Dialer(allow, loopbackOnly).DialContext,
			TLSHandshakeTimeout:    3 * time.Second,
			MaxIdleConnsPerHost:    16,
			MaxIdleConns:           256,
			IdleConnTimeout:        30 * time.Second,
			MaxResponseHeaderBytes: 16 << 10,
			ForceAttemptHTTP2:      true,
			DisableCompression:     true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

var errLarge = errors.New("ask: the answer is larger than 64 KiB")

// exchange is one request and its whole answer.
func (s *Services) exchange(ctx context.Context, raw string, build func(context.Context, string) (*http.Request, error)) (int, http.Header, []byte, error) {
	req, err := build(ctx, raw)
	if err != nil {
		return 0, nil, nil, fmt.Errorf("ask: %w", err)
	}
	// A question may be repeated that a kept connection took with it when its other end closed it, before a byte of the answer.
	// Without a value the field says so to net/http alone and is not sent.
	req.Header["Idempotency-Key"] = nil
	c, err := s.clientFor(req.URL)
	if err != nil {
		return 0, nil, nil, err
	}
	res, err := c.Do(req)
	if err != nil {
		return 0, nil, nil, plain(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, MaxAnswer+1))
	switch {
	case err != nil:
		return 0, nil, nil, plain(err)
	case len(body) > MaxAnswer:
		return 0, nil, nil, errLarge
	}
	return res.StatusCode, res.Header, body, nil
}

// clientFor takes the scheme apart: http is for loopback on one machine.
func (s *Services) clientFor(u *url.URL) (*http.Client, error) {
	switch {
	case u.Scheme == "https":
		return s.secure, nil
	case u.Scheme == "http" && s.opt.Allow.PlainURLs:
		return s.open, nil
	}
	return nil, fmt.Errorf("ask: %s is not an https URL", u.Redacted())
}

// plain leaves the URL out of an error, which may say more than a log should.
func plain(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		err = u.Err
	}
	return fmt.Errorf("ask: %w", err)
}
