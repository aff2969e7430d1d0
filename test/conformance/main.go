// Command conformance asks the gateway with the test suites of others, on every engine, and prints one table:
//
//	make conformance                                  # every suite, every engine
//	make conformance CONFORMANCE="--suite connect --engine loop --version 2"
//
// What the suites are, and what of them can't be asked of a gateway, is in docs/conformance.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// run is one run of this command.
type run struct {
	bin, tools string // directories of the product's commands and of the suites'
	addr       string // a loopback address that is this run's alone
	suites     []string
	engines    []string
	versions   []string // of HTTP, of the suite connect
	short      bool
	only       string // pattern of the suite's own, for one suite
	rows       []row
	dir        string // of files that end with the run
}

// suite is the work of others that the gateway is asked with.
type suite struct {
	name  string
	needs []string // commands that must be there
	run   func(context.Context, *run, string) error
}

func suites() []suite {
	return []suite{
		{"h2spec", []string{"h2spec"}, h2spec},
		{"connect", []string{"connectconformance", "referenceserver"}, connect},
		{"interop", []string{"client"}, interop},
		{"h3", []string{"gtlsclient"}, h3},
	}
}

func main() {
	if len(os.Args) > 1 && os.Args[1] == serverCommand {
		os.Exit(finish(asServer(os.Args[2:])))
	}
	r := &run{}
	var chosen, engines, versions string
	flag.StringVar(&r.bin, "bin", "bin", "`directory` of the product's commands")
	flag.StringVar(&r.tools, "tools", "bin/conformance", "`directory` of the suites' commands")
	flag.StringVar(&r.addr, "addr", "127.46.9.1", "loopback `address` to serve on")
	flag.StringVar(&chosen, "suite", "h2spec,connect,interop,h3", "`suites` to run")
	flag.StringVar(&engines, "engine", "loop,goroutine,nethttp", "`engines` to ask")
	flag.StringVar(&versions, "version", "1,2,3", "`versions` of HTTP that suite connect uses")
	flag.BoolVar(&r.short, "short", false, "fewer permutations of the same cases: two codings of messages instead of six")
	flag.StringVar(&r.only, "only", "", "the suite's own `pattern` of cases: a section of h2spec, a --run of connectconformance, a case of interop")
	flag.Parse()
	r.suites, r.engines, r.versions = strings.Split(chosen, ","), strings.Split(engines, ","), strings.Split(versions, ",")
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(finish(r.all(ctx)))
}

func finish(err error) int {
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "conformance:", err)
	return 1
}

func (r *run) all(ctx context.Context) (err error) {
	wanted, err := r.wanted()
	if err != nil {
		return err
	}
	if r.dir, err = os.MkdirTemp("", "cellgate-conformance-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.dir)
	var failed error
	for _, s := range wanted {
		for _, engine := range r.engines {
			if err := s.run(ctx, r, engine); err != nil {
				failed = errors.Join(failed, fmt.Errorf("%s on %s: %w", s.name, engine, err))
			}
			if ctx.Err() != nil {
				return ctx.Err()
			}
		}
	}
	fmt.Print(table(r.rows))
	return errors.Join(failed, shortfall(r.rows))
}

// wanted are the suites that were asked for; each of their commands is there.
func (r *run) wanted() (all []suite, err error) {
	for _, dir := range []*string{&r.bin, &r.tools} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return nil, err
		}
	}
	known := suites()
	for _, name := range r.suites {
		i := slices.IndexFunc(known, func(s suite) bool { return s.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no suite %q", name)
		}
		for _, command := range known[i].needs {
			if _, err := r.tool(command); err != nil {
				return nil, err
			}
		}
		all = append(all, known[i])
	}
	for _, e := range r.engines {
		if !slices.Contains([]string{"loop", "epoll", "goroutine", "nethttp"}, e) {
			return nil, fmt.Errorf("there is no engine %q", e)
		}
	}
	return all, nil
}
