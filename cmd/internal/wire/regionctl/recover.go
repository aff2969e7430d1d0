package regionctl

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/regionctl"
)

func recoverCommand(w *where) *cobra.Command {
	var out output
	var req regionctl.RecoverRequest
	cmd := &cobra.Command{
		Use: "recover --confirm", Short: "Go on after the global store was restored from a backup",
		Long: `Go on after the global store was restored from a backup. The epoch and the version number are raised above everything that any
controller, region's copy, node or router has seen, so that nothing goes back; versions that run and that the backup does not know
are given back by the regions' copies. Nothing changes where it runs. Run it once after each restore, before the next publication.`,
		Example: "  regionctl recover --dry-run\n  regionctl recover --confirm --reason 'restored the backup of Monday'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			r, err := post[regionctl.Recovered](cmd.Context(), c, "/v1/recovery", req)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) { recoveredTable(t, r) })
		},
	}
	out.flags(cmd)
	cmd.Flags().BoolVar(&req.Confirm, "confirm", false, "do it")
	cmd.Flags().BoolVar(&req.Force, "force", false, "go on without the controllers that are not heard")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "say what would be, change nothing")
	return cmd
}

func recoveredTable(t *tabwriter.Writer, r regionctl.Recovered) {
	done := "is"
	if r.DryRun {
		done = "would be"
	}
	row(t, fmt.Sprintf("the next version %s above %d (the store knew %d), the next epoch above %d (the store knew %d)", done, r.Head, r.StoreHead, r.Epoch, r.StoreEpoch))
	if len(r.Adopted) > 0 {
		row(t, fmt.Sprintf("versions %v come back from the regions' copies", r.Adopted))
	}
	for _, id := range r.Orders {
		row(t, fmt.Sprintf("the evacuation of %s comes back from the copy", id))
	}
	if r.Keys {
		row(t, "issued API keys come back from the copy, and revoked ones go")
	}
	for _, w := range r.Warnings {
		row(t, "warning: "+w)
	}
}
