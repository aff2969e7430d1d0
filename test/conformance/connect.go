package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// way is how the gateway speaks to the suite's server, and what of the suite can go that way.
type way struct {
	to       string // as in between
	features string // of the suite's configuration
}

// ways to the server. Over HTTP/1.1 there is no gRPC, and no stream on which both sides speak at once: net/http, which the
// reference server stands on, reads the request to its end before it answers.
func ways() []way {
	const web = "  protocols: [PROTOCOL_CONNECT, PROTOCOL_GRPC_WEB]\n"
	const oneAtATime = "  stream_types: [STREAM_TYPE_UNARY, STREAM_TYPE_CLIENT_STREAM, STREAM_TYPE_SERVER_STREAM, STREAM_TYPE_HALF_DUPLEX_BIDI_STREAM]\n"
	return []way{{"HTTP/2", ""}, {"HTTP/1.1", web + oneAtATime}}
}

// configuration is what the suite is told of a server that it reaches through the gateway: everything but client certificates,
// which end at the gateway.
func (w way) configuration(version string, short bool) string {
	codings := "[COMPRESSION_IDENTITY, COMPRESSION_GZIP, COMPRESSION_BR, COMPRESSION_ZSTD, COMPRESSION_DEFLATE, COMPRESSION_SNAPPY]"
	if short {
		codings = "[COMPRESSION_IDENTITY, COMPRESSION_GZIP]"
	}
	return "features:\n  versions: [HTTP_VERSION_" + version + "]\n  codecs: [CODEC_PROTO, CODEC_JSON]\n  compressions: " + codings +
		"\n  supports_half_duplex_bidi_over_http1: true\n" + w.features
}

// connect runs the conformance suite of Connect, gRPC and gRPC-Web (https://github.com/connectrpc/conformance): its client
// asks its server through the gateway.
func connect(ctx context.Context, r *run, engine string) (failed error) {
	for _, w := range ways() {
		for _, version := range r.versions {
			config := filepath.Join(r.dir, "connect.yaml")
			if err := os.WriteFile(config, []byte(w.configuration(version, r.short)), 0o600); err != nil {
				return err
			}
			t, err := r.connectOnce(ctx, engine, version, w, config)
			r.add(row{suite: "connect", protocol: "HTTP/" + version + " to " + w.to, engine: engine, passed: t.passed, total: t.total, known: t.known, again: t.again})
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// mayFail are the cases that an engine may fail, with the suite's patterns. Once a wait for more of a request over HTTP/1.1 was
// ended, net/http reads no more of it: a client that goes on sending loses the answer when the connection is closed.
func mayFail(engine, version string) []string {
	if engine != "nethttp" || version != "1" {
		return nil
	}
	return []string{"Server Message Size/HTTPVersion:1/**"}
}

func (r *run) connectOnce(ctx context.Context, engine, version string, w way, config string) (t totals, err error) {
	self, err := os.Executable()
	if err != nil {
		return t, err
	}
	runner, err := r.tool("connectconformance")
	if err != nil {
		return t, err
	}
	b := between{addr: r.addr, engine: engine, to: w.to}
	if b.proxy, err = r.tool("proxy"); err != nil {
		return t, err
	}
	if b.reference, err = r.tool("referenceserver"); err != nil {
		return t, err
	}
	args := []string{"--mode", "server", "--conf", config, "-v", "--parallel", "4"}
	for _, pattern := range mayFail(engine, version) {
		args = append(args, "--known-flaky", pattern)
	}
	first := slices.Clone(args)
	if r.only != "" {
		first = append(first, "--run", r.only)
	}
	server := append([]string{"--", self}, b.args()...)
	if err = follow(ctx, &t, runner, slices.Concat(first, server)...); err == nil || !t.late() {
		return t, err
	}
	return t, t.alone(ctx, runner, args, server)
}

// mostAgain is how many cases may be asked a second time.
const mostAgain = 20

// late says whether nothing failed but few of the cases that say how much time may pass until a request has arrived: on a machine
// that does much else more does.
func (t *totals) late() bool {
	for _, name := range t.failed {
		if !strings.HasPrefix(name, "Deadline Propagation/") {
			return false
		}
	}
	return len(t.failed) > 0 && len(t.failed) <= mostAgain
}

// alone asks the cases that failed once more, with nothing beside them. The table says how many passed only so.
func (t *totals) alone(ctx context.Context, runner string, args, server []string) error {
	var second totals
	for _, name := range t.failed {
		args = append(args, "--run", name)
	}
	err := follow(ctx, &second, runner, slices.Concat(args, []string{"--parallel", "1", "--max-servers", "1"}, server)...)
	t.again = second.passed
	t.passed += second.passed
	return err
}

// totals finds what connectconformance says at its end, and shows what is worth it meanwhile.
type totals struct {
	passed, total, known, again int
	failed                      []string // names of cases
}

var (
	totalLine  = regexp.MustCompile(`^Total cases: (\d+)$`)
	passedLine = regexp.MustCompile(`^(\d+) passed, \d+ failed`)
	failedLine = regexp.MustCompile(`^FAILED: (.+):$`)
	knownLine  = regexp.MustCompile(`^\(Another (\d+) failed as expected`)
)

func (t *totals) line(s string) (show bool) {
	if m := failedLine.FindStringSubmatch(s); m != nil {
		t.failed = append(t.failed, m[1])
	}
	for _, f := range []struct {
		pattern *regexp.Regexp
		figure  *int
	}{{totalLine, &t.total}, {passedLine, &t.passed}, {knownLine, &t.known}} {
		if m := f.pattern.FindStringSubmatch(s); m != nil {
			*f.figure, _ = strconv.Atoi(m[1]) // digits
			return false
		}
	}
	return s != ""
}
