// Package regionctl wires the regionctl binary: the commands of operators and service teams, and the server.
package regionctl

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/regionctl"
)

// The exit codes of every command (DESIGN, section 5).
const (
	ExitDone    = 0
	ExitFailed  = 1
	ExitUsage   = 2
	ExitRefused = 3 // by a safety rule; the message names the flag that overrides it
)

// ExitError is an error with an exit code of its own. Printed says that the command has already told the user.
type ExitError struct {
	Code    int
	Err     error
	Printed bool
}

func (e *ExitError) Error() string { return e.Err.Error() }
func (e *ExitError) Unwrap() error { return e.Err }

// errFailed ends a command with ExitFailed after it has printed why.
var errFailed = &ExitError{Code: ExitFailed, Err: errors.New("failed"), Printed: true}

// Root is the whole command tree.
func Root() *cobra.Command {
	root := &cobra.Command{
		Use:           "regionctl",
		Short:         "Publish configuration, steer cells, see the state of the world",
		SilenceErrors: true,
		SilenceUsage:  true,
		Example:       "  regionctl status\n  regionctl config validate gateway.yaml && regionctl config publish gateway.yaml --wait\n  regionctl evacuate eu-west/a --reason 'kernel upgrade' --wait",
		Args:          cli.Subcommand,
		RunE:          cli.Help,
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usage(err) })
	config := configCommand()
	root.AddCommand(config, sessionCommand())
	addOnline(root, config)
	return root
}

// usage marks an error as the caller's wrong use of the command line.
func usage(err error) error { return &ExitError{Code: ExitUsage, Err: err} }

// Main runs one command line and gives its exit code. What fails before a command has begun is wrong use.
func Main(args []string, stdout, stderr io.Writer) int {
	begun := false
	root := Root()
	root.PersistentPreRun = func(*cobra.Command, []string) { begun = true }
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return ExitDone
	}
	code := ExitFailed
	var exit *ExitError
	switch {
	case errors.As(err, &exit):
		code = exit.Code
		if exit.Printed {
			return code
		}
	case !begun:
		code = ExitUsage
	}
	var f *regionctl.Fault
	if errors.As(err, &f) && len(f.Problems) > 0 {
		fmt.Fprintln(stderr, f.Problems) // as they are: FILE:LINE: path: what
		return code
	}
	cli.Tell(stderr, cmd, err, code)
	return code
}
