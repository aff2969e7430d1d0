package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// interopCases are those of gRPC's interoperability tests (doc/interop-test-descriptions.md of the gRPC project) that can be
// asked through a gateway; docs/conformance.md names the others.
func interopCases() []string {
	return []string{
		"empty_unary", "large_unary", "client_streaming", "server_streaming", "ping_pong", "empty_stream", "timeout_on_sleeping_server",
		"cancel_after_begin", "cancel_after_first_response", "status_code_and_message", "special_status_message", "custom_metadata",
		"unimplemented_method", "unimplemented_service",
	}
}

// caseLimit is for one case.
const caseLimit = 30 * time.Second

// interop runs grpc-go's interoperability client against a server of grpc-go through the gateway.
func interop(ctx context.Context, r *run, engine string) (failed error) {
	at, stop, err := interopServe(r.addr)
	if err != nil {
		return err
	}
	defer stop()
	to := upstream{addr: at, protocol: "h2c"}
	for _, tls := range []bool{true, false} {
		x := row{suite: "interop", protocol: "h2c", engine: engine}
		if tls {
			x.protocol = "h2"
		}
		failed = errors.Join(failed, r.interopOnce(ctx, setup{engine: engine, addr: r.addr, tls: tls, to: to}, &x))
		r.add(x)
	}
	return failed
}

func (r *run) interopOnce(ctx context.Context, s setup, x *row) error {
	client, err := r.tool("client")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(r.dir, "")
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
	args := []string{"-server_host", host, "-server_port", port}
	if s.tls {
		args = append(args, "-use_tls", "-use_test_ca", "-ca_file", filepath.Join(dir, "cert"), "-server_host_override", "localhost")
	}
	for _, name := range interopCases() {
		if r.only != "" && name != r.only {
			continue
		}
		x.total++
		if err := interopCase(ctx, client, append(args, "-test_case", name)...); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
			continue
		}
		x.passed++
	}
	return nil
}

// interopCase is one process of the client, which exits with 0 only when the case has passed.
func interopCase(ctx context.Context, client string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, caseLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, client, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
