// Package cellgate is the command that runs a whole world on one machine: it supervises the daemons, hosts the etcds and
// the sample services, and stands in for the load balancers of the cells.
package cellgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/internal/pause"
)

// DefaultDir holds a world's state unless --dir names another directory.
const DefaultDir = ".cellgate"

// errUsage marks errors in how a command was called.
type errUsage struct{ error }

func (e errUsage) Unwrap() error { return e.error }

// Main runs the command line and returns its exit code: 0 done, 1 failed, 2 usage.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := Command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return cli.ExitDone
	}
	code := cli.ExitFailed
	if usage := (errUsage{}); errors.As(err, &usage) {
		code = cli.ExitUsage
	}
	cli.Tell(stderr, cmd, err, code)
	return code
}

// Command is the command tree.
func Command() *cobra.Command {
	root := &cobra.Command{
		Use: "cellgate", Short: "Run a world of gateway cells on one machine",
		Example:       "  cellgate up --detach\n  cellgate status\n  cellgate kill proxy/eu-west/a/1\n  cellgate down",
		SilenceErrors: true, SilenceUsage: true, Args: cli.Subcommand, RunE: cli.Help,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return errUsage{err} })
	var dir string
	root.PersistentFlags().StringVar(&dir, "dir", DefaultDir, "the world's `directory`")
	root.AddCommand(upCommand(&dir), downCommand(&dir), statusCommand(&dir))
	for _, op := range []struct{ name, short string }{
		{"start", "Start stopped processes and wait until they are ready"},
		{"stop", "Stop processes (SIGTERM, after 10 s SIGKILL); they stay down"},
		{"kill", "Kill processes (SIGKILL); they are started again after a second"},
		{supervisor.Upgrade, "Replace proxies by new processes, which take their sockets over; no request fails"},
	} {
		root.AddCommand(orderCommand(&dir, op.name, op.short))
	}
	root.AddCommand(backendCommand(&dir), etcdCommand(), idpCommand())
	usageErrors(root)
	return root
}

// usageErrors makes wrong arguments usage errors in the whole tree.
func usageErrors(cmd *cobra.Command) {
	if check := cmd.Args; check != nil {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if err := check(c, args); err != nil {
				return errUsage{err}
			}
			return nil
		}
	}
	for _, c := range cmd.Commands() {
		usageErrors(c)
	}
}

func upCommand(dir *string) *cobra.Command {
	o := Options{Patience: 90 * time.Second}
	var block, insufficient string
	var ttl, bake, ramp time.Duration
	var limit int64
	var detached bool
	cmd := &cobra.Command{
		Use: "up", Args: cobra.NoArgs, Short: "Start a world and keep it until Ctrl-C or `cellgate down`",
		Example: "  cellgate up\n  cellgate up --detach --dir /tmp/small --net 127.11.0.0/16 --regions 2 --cells 1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			net, err := netip.ParsePrefix(block)
			if err != nil {
				return errUsage{fmt.Errorf("--net %q is no address block such as 127.10.0.0/16", block)}
			}
			o.Dir, o.Size.Net, o.Timing = *dir, net, defaultTiming(ttl, bake, ramp)
			o.Timing.OnInsufficient = insufficient
			o.Limit = cells.MilliRPS(min(max(limit, -1), 1e12)) * 1000
			if o.OTLP.CAFile != "" {
				if o.OTLP.CAFile, err = filepath.Abs(o.OTLP.CAFile); err != nil {
					return err
				}
			}
			if err := o.validate(); err != nil {
				return errUsage{err}
			}
			return runUp(cmd, o, detached)
		},
	}
	f := cmd.Flags()
	f.IntVar(&o.Size.Regions, "regions", 3, "how many regions, 1 to 9")
	f.IntVar(&o.Size.Cells, "cells", 2, "how many cells in each region, 1 to 9")
	f.IntVar(&o.Size.Proxies, "proxies", 2, "how many proxies in each cell, 1 to 9")
	f.StringVar(&block, "net", "127.10.0.0/16", "the loopback address `block` to live in, a /16")
	f.StringVar(&o.Netns, "netns", "", "run processes in the network namespaces `PREFIX`-REGION or PREFIX-ROLE-ID where such exist, to try partitions")
	f.BoolVar(&detached, "detach", false, "return when the world is ready; it goes on in the background")
	f.DurationVar(&bake, "bake", 3*time.Second, "how long each ring of a rollout is watched")
	f.StringVar(&insufficient, "on-insufficient", bootstrap.OnInsufficientProceed, "what a ring without enough evidence does: `hold`, or proceed-if-synthetics-pass")
	f.DurationVar(&ttl, "ttl", 5*time.Second, "TTL of steered DNS answers")
	f.DurationVar(&ramp, "ramp", 30*time.Second, "how long a restored cell takes to be full again")
	f.StringVar(&o.Engine, "engine", "", "`engine` of the proxies, as of proxy serve; their default unless given")
	f.StringVar(&o.QuotaRedis, "quota-redis", "", "`URL` of a Redis server that has the buckets of limits, such as redis://127.0.0.1:6379; they are in the controllers' memory unless given")
	f.StringVar(&o.Consul, "consul", "", "`address` of a Consul agent that tells the proxies of upstreams' endpoints; 254.4:8500 of the block unless given")
	f.StringVar(&o.OTLP.URL, "otlp", "", "`URL` of an OpenTelemetry collector that gets traces of the proxies (OTLP over HTTP), such as http://127.0.0.1:4318; none unless given")
	f.StringVar(&o.OTLP.CAFile, "otlp-ca", "", "PEM `file` with the authorities that the collector's certificate may be of; the system's unless given")
	f.Int64Var(&limit, "cell-limit", 5000, "what every cell is taken to carry, in requests per second")
	return cmd
}

func runUp(cmd *cobra.Command, o Options, detached bool) error {
	line, err := startedDetached()
	if err != nil {
		return err
	}
	keepToOurselves()
	out := cmd.OutOrStdout()
	if detached && line == nil {
		return detach(cmd.Context(), o.Dir, os.Args[1:], func(s string) { fmt.Fprintln(out, s) })
	}
	now := secondSignal()
	if line == nil {
		ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGHUP)
		defer stop()
		log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
		return Up(ctx, o, log, Hooks{
			Say:     func(f string, a ...any) { fmt.Fprintf(out, f+"\n", a...) },
			Claimed: func(home) error { return nil },
			Ready:   func() {}, Now: now,
		})
	}
	signal.Ignore(syscall.SIGHUP)
	return superviseDetached(cmd.Context(), o, line, now)
}

// superviseDetached runs the world for a starter that listens until it is ready. A starter that ends before takes the
// world with it.
func superviseDetached(ctx context.Context, o Options, line *starter, now <-chan struct{}) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	gone, ready := line.gone(), make(chan struct{})
	go func() {
		select {
		case <-gone:
			cancel()
		case <-ready:
		}
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	say := func(f string, a ...any) {
		text := fmt.Sprintf(f, a...)
		line.send(markSay, text)
		fmt.Fprintln(os.Stdout, text)
	}
	err := Up(ctx, o, log, Hooks{
		Say: say, Claimed: keepOutput, Now: now,
		Ready: func() { close(ready); line.send(markReady, "") },
	})
	if err != nil {
		line.send(markFail, err.Error())
	}
	return err
}

// secondSignal is closed by the second signal to end, which cuts a slow stop short.
func secondSignal() <-chan struct{} {
	signals, now := make(chan os.Signal, 2), make(chan struct{})
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		<-signals
		close(now)
	}()
	return now
}

func downCommand(dir *string) *cobra.Command {
	return &cobra.Command{
		Use: "down", Args: cobra.NoArgs, Short: "Stop the world; its state stays in the directory",
		Example: "  cellgate down --dir /tmp/small",
		RunE: func(cmd *cobra.Command, _ []string) error {
			h, err := openHome(*dir)
			if err != nil {
				return err
			}
			_, err = call(cmd.Context(), h, request{Op: "down"})
			if errors.Is(err, supervisor.ErrNotRunning) {
				fmt.Fprintf(cmd.OutOrStdout(), "%v in %s\n", supervisor.ErrNotRunning, h)
				return nil
			}
			if err != nil {
				return err
			}
			for supervisor.Running(string(h)) && pause.For(cmd.Context(), 20*time.Millisecond) {
			}
			fmt.Fprintf(cmd.OutOrStdout(), "stopped the world in %s\n", h)
			return cmd.Context().Err()
		},
	}
}

// errNoDir: an empty name would silently be the current directory.
var errNoDir = errors.New("--dir is empty: it takes a directory such as " + DefaultDir)

func openHome(dir string) (home, error) {
	if dir == "" {
		return "", errUsage{errNoDir}
	}
	abs, err := filepath.Abs(dir)
	return home(abs), err
}

func statusCommand(dir *string) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use: "status", Args: cobra.NoArgs, Short: "List the processes of the world",
		Example: "  cellgate status -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"table", "json", "yaml"}, output) {
				return errUsage{fmt.Errorf("--output %q is not known: it takes table, json or yaml", output)}
			}
			h, err := openHome(*dir)
			if err != nil {
				return err
			}
			res, err := call(cmd.Context(), h, request{Op: supervisor.Status, Memory: true})
			if err != nil {
				return err
			}
			if output == "table" {
				return printStatus(cmd.OutOrStdout(), h, res)
			}
			return printDocument(cmd.OutOrStdout(), output, res)
		},
	}
	cmd.Flags().StringVarP(&output, "output", "o", "table", "`format`: table, json or yaml")
	return cmd
}

// printDocument prints the response as JSON, or as YAML with the same keys.
func printDocument(out io.Writer, format string, res response) error {
	raw, err := json.MarshalIndent(res, "", "  ")
	if err != nil {
		return err
	}
	if format == "yaml" {
		var doc map[string]any
		if err := yaml.Unmarshal(raw, &doc); err != nil { // JSON is YAML
			return err
		}
		if raw, err = yaml.Marshal(doc); err != nil {
			return err
		}
	}
	_, err = fmt.Fprintln(out, strings.TrimSpace(string(raw)))
	return err
}

func printStatus(out io.Writer, h home, res response) error {
	state := "ready"
	if !res.Ready {
		state = "starting or stopping"
	}
	fmt.Fprintf(out, "world in %s: %s, supervisor %d, memory %d MiB\n", h, state, res.PID, res.Memory>>20)
	tw := tabwriter.NewWriter(out, 0, 4, 2, ' ', 0)
	fmt.Fprintln(tw, "PROCESS\tSTATE\tPID\tRESTARTS\tSINCE\tLAST END")
	now := time.Now()
	for _, s := range res.Processes {
		fmt.Fprintln(tw, strings.Join(line(s, now), "\t"))
	}
	return tw.Flush()
}

func orderCommand(dir *string, op, short string) *cobra.Command {
	return &cobra.Command{
		Use: op + " ROLE/ID…", Short: short, Args: cobra.MinimumNArgs(1),
		Example: fmt.Sprintf("  cellgate %s proxy/eu-west/a/1\n  cellgate %s 'proxy/*'", op, op),
		Long:    short + ".\nNames are as `cellgate status` lists them; `*` matches anything, slashes too.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return order(cmd, *dir, request{Op: op, Patterns: args})
		},
		ValidArgsFunction: completeNames(dir),
	}
}

// completeNames completes the names of the world's processes.
func completeNames(dir *string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, _ []string, _ string) (names []string, _ cobra.ShellCompDirective) {
		h, err := openHome(*dir)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		res, _ := call(cmd.Context(), h, request{Op: supervisor.Status}) // without a world there is nothing to name
		for _, p := range res.Processes {
			names = append(names, p.Name)
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

func order(cmd *cobra.Command, dir string, req request) error {
	h, err := openHome(dir)
	if err != nil {
		return err
	}
	res, err := call(cmd.Context(), h, req)
	for _, n := range res.Matched {
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), n)
		}
	}
	return err
}

func backendCommand(dir *string) *cobra.Command {
	var fail string
	var slow time.Duration
	var ok bool
	cmd := &cobra.Command{
		Use: "backend ID", Args: cobra.ExactArgs(1), Short: "Make a sample backend fail, slow or good again",
		Long:    "Make a sample backend fail, slow or good again. Each order replaces the one before; `*` in ID matches anything.",
		Example: "  cellgate backend orders-1 --fail 30%\n  cellgate backend 'orders-*' --slow 200ms\n  cellgate backend orders-1 --ok",
		RunE: func(cmd *cobra.Command, args []string) error {
			f := faults{Slow: slow}
			var err error
			if fail != "" {
				if f.FailPercent, err = parsePercent(fail); err != nil {
					return errUsage{err}
				}
			}
			if err := f.Validate(); err != nil {
				return errUsage{err}
			}
			if bad := fail != "" || cmd.Flags().Changed("slow"); bad == ok {
				return errUsage{errors.New("name what the backend should do: --fail PERCENT and --slow DURATION, or --ok")}
			}
			return order(cmd, *dir, request{Op: "backend", Patterns: []string{"backend/" + args[0]}, Faults: &f})
		},
	}
	cmd.Flags().StringVar(&fail, "fail", "", "answer this `share` of requests with 500, such as 30%")
	cmd.Flags().DurationVar(&slow, "slow", 0, "wait this long before every answer")
	cmd.Flags().BoolVar(&ok, "ok", false, "no faults")
	cmd.AddCommand(serveRole(runBackend))
	return cmd
}
