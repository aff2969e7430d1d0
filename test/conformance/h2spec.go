package main

import (
	"context"
	"errors"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// h2spec runs the conformance suite of HTTP/2 (https://github.com/summerwind/h2spec), over TLS and with prior knowledge. The
// gateway's upstream answers everything with a few bytes.
func h2spec(ctx context.Context, r *run, engine string) (failed error) {
	back, err := answering(r.addr)
	if err != nil {
		return err
	}
	defer back.Close()
	for _, tls := range []bool{true, false} {
		x := row{suite: "h2spec", protocol: "h2c", engine: engine}
		if tls {
			x.protocol = "h2"
		}
		t := h2specTotals{only: r.only}
		err := r.h2specOnce(ctx, setup{engine: engine, addr: r.addr, tls: tls, to: upstream{addr: back.addr}}, &t)
		if x.passed, x.total, x.known = t.passed, t.total, t.known(engine); x.whole() {
			err = nil // it is that of the known ones
		}
		failed = errors.Join(failed, err)
		r.add(x)
	}
	return failed
}

func (r *run) h2specOnce(ctx context.Context, s setup, t *h2specTotals) error {
	dir, err := os.MkdirTemp(r.dir, "")
	if err != nil {
		return err
	}
	spec, err := r.tool("h2spec")
	if err != nil {
		return err
	}
	g, err := r.gateway(ctx, dir, s)
	if err != nil {
		return err
	}
	defer g.stop()
	host, port, err := net.SplitHostPort(g.addr)
	if err != nil {
		return err
	}
	args := []string{"-h", host, "-p", port, "--timeout", "3"}
	if s.tls {
		args = append(args, "-t", "-k")
	}
	if t.only != "" {
		args = append(args, t.only)
	}
	return follow(ctx, t, spec, args...)
}

// h2specTotals finds the last line, and shows what went wrong.
type h2specTotals struct {
	only          string
	passed, total int
	failed        []string // titles
}

var (
	h2specLine   = regexp.MustCompile(`^(\d+) tests, (\d+) passed, \d+ skipped, \d+ failed`)
	h2specFailed = regexp.MustCompile(`^\s*× \d+: (.+)$`) // of the list at the end
)

// known is how many of the failures are net/http's, which judges so with intent.
func (t *h2specTotals) known(engine string) (n int) {
	if engine != "nethttp" {
		return 0
	}
	for _, title := range []string{
		"Sends invalid connection preface",                                                             // answered as HTTP/1, on the port of both
		"Sends multiple values of SETTINGS_INITIAL_WINDOW_SIZE",                                        // a setting that stands twice is a fault
		"Sends a HEADERS frame that contains the connection-specific header field",                     // ignored
		`Sends a HEADERS frame that contains the TE header field with any value other than "trailers"`, // ignored
	} {
		if slices.Contains(t.failed, title) {
			n++
		}
	}
	return n
}

func (t *h2specTotals) line(s string) (show bool) {
	if m := h2specLine.FindStringSubmatch(strings.TrimSpace(s)); m != nil {
		t.total, _ = strconv.Atoi(m[1])  // digits
		t.passed, _ = strconv.Atoi(m[2]) // digits
	}
	if m := h2specFailed.FindStringSubmatch(s); m != nil {
		t.failed = append(t.failed, m[1])
	}
	return strings.Contains(s, "×") || strings.Contains(s, "Actual:") || strings.Contains(s, "Expected:")
}
