// Package load drives a world with ordinary clients: each looks the host up at the world's DNS on behalf of its own subnet,
// keeps the answer for its TTL, keeps its connections, and repeats a request once when a reused connection broke.
//
//	run := load.Start(load.Config{…})
//	…
//	sum := run.Stop()        // sum.Failed, sum.Repeated, sum.Cells …
package load

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"strings"
	"sync"
	"time"
)

// ErrMixed is the answer to a request that another client, or the same one earlier, sent.
var ErrMixed = errors.New("the answer to another request")

// Config of a run.
type Config struct {
	DNS     []string // servers, host:port; the next one is asked when one doesn't answer
	Host    string
	Port    uint16
	Path    string
	Token   string
	Roots   *x509.CertPool
	Clients []netip.Prefix // one entry per client: its subnet
	At      netip.AddrPort // where all requests go, if it is valid; DNS is not asked then
	HTTP2   bool
	// Every is how often each client sends a request.
	Every time.Duration
	// Tagged gives every request a query of its own, which the backend must have echoed: an answer to somebody else's
	// request is a failure.
	Tagged bool
	// Each, if set, is told of every request instead of its being kept: for runs that are too long to keep.
	Each func(Request)
}

// Request is what became of one request. It failed when it was not answered 200 even after its repetition.
type Request struct {
	Start    time.Time
	Client   netip.Prefix
	Cell     netip.Addr // where its last attempt went
	Status   int        // 0 = no answer
	Repeated bool
	Err      error
	Took     time.Duration
}

// End is when the client knew.
func (r Request) End() time.Time { return r.Start.Add(r.Took) }

// Failed says whether the client got no good answer.
func (r Request) Failed() bool { return r.Status != http.StatusOK }

// Run is a load in progress.
type Run struct {
	stop context.CancelFunc
	done sync.WaitGroup

	mu       sync.Mutex
	requests []Request
}

// Start begins the load. Clients begin spread over one interval.
func Start(c Config) *Run {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Run{stop: cancel}
	each := c.Each
	if each == nil {
		each = r.note
	}
	for i, subnet := range c.Clients {
		cl := newClient(c, subnet)
		cl.number = i
		r.done.Add(1)
		go func() {
			defer r.done.Done()
			cl.loop(ctx, c.Every*time.Duration(i)/time.Duration(len(c.Clients)), each)
		}()
	}
	return r
}

func (r *Run) note(q Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, q)
}

// Requests is what has been sent so far, in the order of completion.
func (r *Run) Requests() []Request {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Request(nil), r.requests...)
}

// Wait ends the load after the requests under way and gives them all.
func (r *Run) Wait() []Request {
	r.stop()
	r.done.Wait()
	return r.Requests()
}

// Stop ends the load as Wait does and sums it up.
func (r *Run) Stop() Summary { return Sum(r.Wait()) }

type client struct {
	config   Config
	resolver *resolver
	http     *http.Client
	url      string
	number   int // of the client
	sent     int // requests
}

func newClient(c Config, subnet netip.Prefix) *client {
	res := &resolver{servers: c.DNS, host: c.Host, subnet: subnet}
	tr := &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: c.Roots, ServerName: c.Host},
		ForceAttemptHTTP2:   c.HTTP2,
		MaxIdleConnsPerHost: 4,
		DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
			if c.At.IsValid() {
				return new(net.Dialer).DialContext(ctx, network, c.At.String())
			}
			addr, err := res.address(ctx)
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, network, netip.AddrPortFrom(addr, c.Port).String())
		},
	}
	if !c.HTTP2 {
		tr.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	}
	return &client{
		config: c, resolver: res, http: &http.Client{Transport: tr, Timeout: 10 * time.Second},
		url: fmt.Sprintf("https://%s:%d%s", c.Host, c.Port, c.Path),
	}
}

// loop sends one request per interval, never two at once; a slow answer delays the next request.
func (c *client) loop(ctx context.Context, delay time.Duration, note func(Request)) {
	defer c.http.CloseIdleConnections()
	timer := time.NewTimer(delay)
	defer timer.Stop()
	next := time.Now().Add(delay)
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		note(c.one())
		next = next.Add(c.config.Every)
		if late := time.Now(); next.Before(late) {
			next = late
		}
		timer.Reset(time.Until(next))
	}
}

// one sends a request and repeats it once when a reused connection broke. What the transport repeats by itself counts too.
func (c *client) one() Request {
	q := Request{Start: time.Now(), Client: c.resolver.subnet}
	attempts := 0
	for {
		tried, reused := 0, false
		q.Status, q.Cell, q.Err = c.attempt(&tried, &reused)
		attempts += max(tried, 1)
		if q.Err == nil || !reused || attempts > 1 {
			break
		}
	}
	q.Repeated, q.Took = attempts > 1, time.Since(q.Start)
	return q
}

func (c *client) attempt(tried *int, reused *bool) (status int, cell netip.Addr, err error) {
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		*tried++
		*reused = i.Reused
		if a, ok := i.Conn.RemoteAddr().(*net.TCPAddr); ok {
			cell = a.AddrPort().Addr().Unmap()
		}
	}}
	url, tag := c.url, ""
	if c.config.Tagged {
		c.sent++
		tag = fmt.Sprintf("tag=%d-%d-%d.", rand.Uint32(), c.number, c.sent)
		url += "?" + tag
	}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), http.MethodGet, url, nil)
	if err != nil {
		return 0, cell, err
	}
	if c.config.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.config.Token)
	}
	res, err := c.http.Do(req)
	if err != nil {
		return 0, cell, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return 0, cell, err
	}
	if res.StatusCode != http.StatusOK {
		return res.StatusCode, cell, nil
	}
	if len(body) == 0 {
		return 0, cell, errors.New("an empty answer")
	}
	if !strings.Contains(string(body), tag) {
		return 0, cell, fmt.Errorf("%w: asked with %s, answered %.300s", ErrMixed, tag, body)
	}
	return res.StatusCode, cell, nil
}
