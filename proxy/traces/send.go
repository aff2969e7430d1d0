package traces

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/snapshot"
)

const (
	timeout    = 10 * time.Second // of one message
	lastTime   = time.Second      // for what is left at the end
	tries      = 5                // of one message
	firstWait  = time.Second      // after a failure; each further one waits twice as long
	longest    = time.Minute
	maxAnswer  = 64 << 10
	maxHeaders = 32
	maxFile    = 16 << 10
)

// sender is the way to the collector. It has one user.
type sender struct {
	url     string
	headers string
	client  *http.Client
	log     *slog.Logger
	first   time.Duration // of waits
	wait    time.Duration // before the next try; 0 = the last one went well
	failing bool
}

// outcome is what became of a message.
type outcome struct {
	refused     uint64 // spans of it that the collector did not take
	unreachable bool   // it got no answer, or none that says anything
}

const all = 1<<64 - 1

// Endpoint is where traces for a collector go, or says why its URL may not be used.
func Endpoint(raw string, allow snapshot.Allow) (*url.URL, error) {
	if fault, hint := allow.ServiceURL(raw); fault != "" {
		return nil, fmt.Errorf("the collector's URL %s (%s)", fault, hint)
	}
	u, err := url.Parse(raw)
	if err != nil || u.RawQuery != "" || u.ForceQuery {
		return nil, errors.New("the collector's URL has a query (what is secret goes into the file of headers)")
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	return u, nil
}

func newSender(o Options) (*sender, error) {
	u, err := Endpoint(o.URL, o.Allow)
	if err != nil {
		return nil, err
	}
	trusts, err := authorities(o.CAFile)
	if err != nil {
		return nil, err
	}
	s := &sender{url: u.String(), headers: o.HeadersFile, log: o.Log, first: firstWait, client: &http.Client{
		Timeout: timeout,
		Transport: &http.Transport{
			DialContext:            ask.Dialer(o.Allow, u.Scheme == "http").DialContext,
			TLSClientConfig:        &tls.Config{RootCAs: trusts},
			TLSHandshakeTimeout:    5 * time.Second,
			IdleConnTimeout:        30 * time.Second,
			MaxConnsPerHost:        1,
			MaxResponseHeaderBytes: 16 << 10,
			ForceAttemptHTTP2:      true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	_, err = s.fields()
	return s, err
}

// authorities are those of a file; nil = the system's.
func authorities(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	all, err := snapshot.Authorities(string(raw))
	if err == nil && len(all) == 0 {
		err = errors.New("holds no certificate in PEM")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	pool := x509.NewCertPool()
	for _, c := range all {
		pool.AddCert(c)
	}
	return pool, nil
}

// send gives the message to the collector, again if that may help, until it is taken, refused, or given up.
func (s *sender) send(ctx context.Context, message []byte) outcome {
	var err error
	for range tries {
		if s.wait > 0 && !pause.For(ctx, s.wait+rand.N(s.wait/2)) {
			break
		}
		var o outcome
		var again time.Duration
		if o, again, err = s.post(ctx, message); err == nil {
			s.wait = 0
			s.say(nil)
			return o
		}
		s.wait = max(again, min(longest, max(s.first, 2*s.wait)))
		s.say(err)
	}
	return outcome{unreachable: true}
}

// post is one try. An error means that another may help, after again at the earliest.
func (s *sender) post(ctx context.Context, message []byte) (o outcome, again time.Duration, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(message))
	if err != nil {
		return o, 0, err
	}
	if req.Header, err = s.fields(); err != nil {
		return o, 0, err
	}
	req.Header.Set("Content-Type", "application/x-protobuf")
	req.Header.Set("User-Agent", "cellgate")
	res, err := s.client.Do(req)
	if err != nil {
		var u *url.Error
		if errors.As(err, &u) {
			err = u.Err // the URL is known
		}
		return o, 0, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	switch {
	case res.StatusCode/100 == 2 && err == nil:
		return outcome{refused: rejected(body)}, 0, nil
	case err != nil:
		return o, 0, err
	case res.StatusCode == 429 || res.StatusCode == 502 || res.StatusCode == 503 || res.StatusCode == 504:
		after, _ := strconv.Atoi(res.Header.Get("Retry-After"))
		return o, min(longest, max(0, time.Duration(min(after, 3600))*time.Second)), fmt.Errorf("the collector answers %s", res.Status)
	}
	s.log.Warn("the collector refuses traces", "status", res.Status)
	return outcome{refused: all}, 0, nil
}

// say logs changes.
func (s *sender) say(err error) {
	if failing := err != nil; failing != s.failing {
		s.failing = failing
		s.log.Warn("traces to the collector", "failing", failing, "error", err)
	}
}

// rejected is how many spans the collector says it has not taken (ExportTraceServiceResponse: partial_success = 1, in it
// rejected_spans = 1). What isn't one says nothing.
func rejected(answer []byte) uint64 {
	for len(answer) > 0 {
		number, kind, n := protowire.ConsumeTag(answer)
		if n < 0 {
			return 0
		}
		answer = answer[n:]
		if number == 1 && kind == protowire.BytesType {
			if answer, n = protowire.ConsumeBytes(answer); n < 0 {
				return 0
			}
			continue
		}
		if number == 1 && kind == protowire.VarintType {
			v, _ := protowire.ConsumeVarint(answer)
			return v
		}
		if n = protowire.ConsumeFieldValue(number, kind, answer); n < 0 {
			return 0
		}
		answer = answer[n:]
	}
	return 0
}

// fields are those of the file. Errors don't say what is in it.
func (s *sender) fields() (http.Header, error) {
	if s.headers == "" {
		return http.Header{}, nil
	}
	f, err := os.Open(s.headers)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	fields, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(append(raw, "\n\n"...)))).ReadMIMEHeader()
	if err != nil || len(raw) > maxFile || len(fields) == 0 || len(fields) > maxHeaders {
		return nil, fmt.Errorf("%s: must be 1 to %d lines of the form Name: value, of %d bytes together", s.headers, maxHeaders, maxFile)
	}
	for name, values := range fields {
		if reserved(name) || slices.ContainsFunc(values, func(v string) bool { return v == "" || strings.ContainsFunc(v, unicode.IsControl) }) {
			return nil, fmt.Errorf("%s: %s is not the file's to set, or its value is none", s.headers, name)
		}
	}
	return http.Header(fields), nil
}

func reserved(name string) bool {
	switch name {
	case "Host", "Connection", "Content-Length", "Content-Type", "Content-Encoding", "Transfer-Encoding", "Te", "Trailer", "Upgrade", "Expect":
		return true
	}
	return false
}
