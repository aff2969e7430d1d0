// Package cli is what the daemons' command lines share: exit codes, the serve command, signals and the logger.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit codes of every command (DESIGN, section 5).
const (
	ExitDone   = 0
	ExitFailed = 1
	ExitUsage  = 2
)

// Usage marks an error as wrong use of the command line.
func Usage(err error) error { return usageError{err} }

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// Root is a daemon's root command; it explains itself when called bare and refuses what it doesn't know.
func Root(name, short string, commands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use: name, Short: short, SilenceErrors: true, SilenceUsage: true, Args: Subcommand, RunE: Help,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return Usage(err) })
	root.AddCommand(commands...)
	return root
}

// Help is what a command does that only holds others.
func Help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// Subcommand are the Args of a command that only holds others: what is none of them is refused, and those that are near are named.
func Subcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2
	near := ""
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		near = " (did you mean " + strings.Join(names, " or ") + "?)"
	}
	return Usage(fmt.Errorf("unknown command %q for %q%s", args[0], cmd.CommandPath(), near))
}

// Tell prints why a command failed, and after wrong use where its help is.
func Tell(stderr io.Writer, cmd *cobra.Command, err error, code int) {
	fmt.Fprintf(stderr, "%s: %v\n", cmd.CommandPath(), err)
	if code == ExitUsage {
		fmt.Fprintf(stderr, "See '%s --help'.\n", cmd.CommandPath())
	}
}

// Serve is the command `serve --bootstrap FILE` of a daemon that runs only inside a world.
func Serve(name, long string, run func(ctx context.Context, bootstrapFile string, log *slog.Logger) error) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the daemon", Long: long, Args: cobra.NoArgs,
		Example: "  " + name + " serve --bootstrap /etc/cellgate/" + name + ".json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return Usage(errors.New("--bootstrap FILE is missing: the file that says who this process is and where its peers are"))
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			return run(ctx, file, slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	cmd.Flags().StringVar(&file, "bootstrap", "", "bootstrap `FILE` of this process (JSON)")
	return cmd
}

// Main runs one command line and gives its exit code. What fails before a command has begun is wrong use.
func Main(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	begun := false
	root.PersistentPreRun = func(*cobra.Command, []string) { begun = true }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteContextC(context.Background())
	if err == nil {
		return ExitDone
	}
	code := ExitFailed
	if wrong := (usageError{}); errors.As(err, &wrong) || !begun {
		code = ExitUsage
	}
	Tell(stderr, cmd, err, code)
	return code
}
