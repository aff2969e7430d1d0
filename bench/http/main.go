//go:build linux

// Command http measures the proxy beside nginx and HAProxy: CPU time per request of the proxy process alone.
//
// Each candidate has core 0 for itself while it is measured; the load and the backend share core 1: for HTTP/1.1 without TLS they are
// one process of ours (far.go), which costs less than any candidate, else wrk or h2load before that process's backend.
// Candidates take turns within a round. A round in which a candidate gave an error or a peer was not saturated is void for it, and
// ratios are medians of ratios within one round. Ours does all that production does: 100,000 routes hit at random, rotating
// JWTs, three buckets, deadlines, metrics, an access log to a file. The peers run bare.
//
//	go run ./bench/http                         # all rows, 6 rounds: about ten minutes
//	go run ./bench/http --rows plain,tls --rounds 10 --engine loop
package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// parts are the processes that this program itself is.
var parts = map[string]func([]string) error{"node": node, "far": farSide}

func main() {
	if len(os.Args) > 1 && parts[os.Args[1]] != nil {
		if err := parts[os.Args[1]](os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench/http", os.Args[1]+":", err)
			os.Exit(1)
		}
		return
	}
	var o options
	rowsFlag := flag.String("rows", "", "rows to measure, with commas between; all unless given")
	flag.IntVar(&o.rounds, "rounds", 6, "rounds per row")
	flag.DurationVar(&o.length, "length", 4*time.Second, "of one measurement")
	flag.StringVar(&o.engine, "engine", "", "engine of the proxy; its default unless given")
	flag.StringVar(&o.other, "other", "", "another build of the proxy, measured beside this one in the rows that have peers")
	flag.StringVar(&o.addr, "addr", "127.54.0.1", "loopback address to use")
	flag.Parse()
	chosen, err := choose(*rowsFlag)
	if err == nil {
		err = run(o, chosen)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/http:", err)
		os.Exit(1)
	}
}

type options struct {
	rounds       int
	length       time.Duration
	engine, addr string
	other        string
}

// choose gives the rows of these names, in the table's order.
func choose(names string) ([]row, error) {
	all := rows()
	if names == "" {
		return all, nil
	}
	wanted := strings.Split(names, ",")
	for _, name := range wanted {
		if !slices.ContainsFunc(all, func(r row) bool { return r.name == name }) {
			return nil, fmt.Errorf("there is no row %q", name)
		}
	}
	return slices.DeleteFunc(all, func(r row) bool { return !slices.Contains(wanted, r.name) }), nil
}

func run(o options, chosen []row) error {
	for _, tool := range []string{"nginx", "haproxy", "wrk", "h2load", "taskset"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%s is missing (Debian: nginx haproxy wrk nghttp2-client util-linux)", tool)
		}
	}
	if runtime.NumCPU() < 2 {
		return fmt.Errorf("two cores are needed: one for the proxy, one for load and backend")
	}
	dir, err := os.MkdirTemp("", "bench-http-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	s := &stage{dir: dir, addr: o.addr, engine: o.engine, other: o.other}
	defer s.stop()
	stopOnSignal(s, dir)
	if err := s.start(); err != nil {
		return err
	}
	var all []figure
	for _, r := range chosen {
		if o.other != "" {
			r = r.besides(otherPlain - ownPlain)
		}
		res, err := measure(s, r, o)
		if err != nil {
			return err
		}
		res.print(os.Stdout)
		all = append(all, res.figures()...)
	}
	for _, f := range all {
		fmt.Println(f)
	}
	return nil
}

// stopOnSignal ends the processes also when the measurement is broken off.
func stopOnSignal(s *stage, dir string) {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-ch
		s.stop()
		_ = os.RemoveAll(dir)
		os.Exit(130)
	}()
}
