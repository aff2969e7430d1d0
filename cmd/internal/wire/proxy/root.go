// Package proxy wires the proxy binary.
package proxy

import (
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cmd/internal/cli"
)

// The exit codes of every command (DESIGN, section 5).
const (
	exitDone    = 0
	exitFailed  = 1
	exitUsage   = 2
	exitRefused = 3
)

// usageError is the caller's wrong use of the command line.
type usageError struct{ error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func root() *cobra.Command {
	c := &cobra.Command{
		Use:           "proxy",
		Short:         "A gateway node",
		Long:          "A gateway node: takes requests in, decides about them by its snapshot, and forwards them.",
		Example:       "  proxy serve --document routes.yaml --http 127.0.0.1:8080",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cli.Subcommand,
		RunE:          cli.Help,
	}
	c.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	c.AddCommand(serveCommand(), upgradeCommand(), exampleCommand())
	return c
}

// Main runs one command line and gives its exit code. What fails before a command has begun is wrong use.
func Main(args []string, stdout, stderr io.Writer) int {
	begun := false
	c := root()
	c.PersistentPreRun = func(*cobra.Command, []string) { begun = true }
	c.SetArgs(args)
	c.SetOut(stdout)
	c.SetErr(stderr)
	cmd, err := c.ExecuteC()
	if err == nil {
		return exitDone
	}
	code := exitFailed
	var usage usageError
	switch {
	case errors.As(err, &usage) || !begun:
		code = exitUsage
	case refused(err):
		code = exitRefused
	}
	cli.Tell(stderr, cmd, err, code)
	return code
}
