package proxy

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/internal/handover"
)

func upgradeCommand() *cobra.Command {
	var state, boot string
	var within time.Duration
	c := &cobra.Command{
		Use:   "upgrade",
		Short: "Replace a running process by a new one, with no failed request",
		Long: `Replace a running process by a new one, with no failed request.

The running process starts what lies at its binary's path now, with its own flags, and hands all its sockets over. When the
new one is ready, the old one drains and ends. When the new one isn't ready in time, or dies, the old one goes on.

A node that a supervisor runs is replaced by that: cellgate upgrade, or systemd with Type=notify. serve --takeover
is what they start.`,
		Example: `  proxy upgrade --state /var/lib/cellgate
  proxy upgrade --bootstrap node.json --within 2m`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case (state == "") == (boot == ""):
				return usagef("--state DIR or --bootstrap FILE is required, as the node was started with")
			case within <= 0:
				return usagef("--within %s: must be more than 0", within)
			}
			if boot != "" {
				b, err := bootstrap.Load[bootstrap.Proxy](boot)
				if err != nil {
					return err
				}
				state = b.DataDir
			}
			old, successor, err := handover.Order(cmd.Context(), state, within)
			if err != nil {
				return fmt.Errorf("not upgraded: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "process %d took over from process %d\n", successor, old)
			return nil
		},
	}
	fs := c.Flags()
	fs.StringVar(&state, "state", "", "the node's state `directory`")
	fs.StringVar(&boot, "bootstrap", "", "the node's bootstrap `file`")
	fs.DurationVar(&within, "within", time.Minute, "how long the new process may take to be ready")
	return c
}

// refused says whether an error is a no of the running process.
func refused(err error) bool { return errors.Is(err, handover.ErrRefused) }
