package regionctl

import (
	"cmp"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/regionctl"
)

func rolloutCommand(w *where) *cobra.Command {
	cmd := group("rollout", "Follow rollouts and steer the running one")
	table := func(t *tabwriter.Writer, list []regionctl.RolloutStatus) {
		row(t, "VERSION", "FROM", "STATE", "RING", "STARTED", "ENDED", "WHY")
		for _, r := range list {
			row(t, r.Version, r.Previous, r.State, dash(r.Ring), moment(r.Started), moment(r.Ended), dash(r.Why))
		}
	}
	cmd.AddCommand(
		reading(w, &cobra.Command{Use: "list", Short: "List rollouts, newest first", Example: "  regionctl rollout list", Args: cobra.NoArgs}, fixed("/v1/rollouts"), table),
		reading(w, &cobra.Command{Use: "status [VERSION]", Short: "Show one rollout with its evidence (absent: the running or last one)", Example: "  regionctl rollout status", Args: cobra.MaximumNArgs(1)},
			func(args []string) (string, error) {
				if len(args) == 0 {
					return "/v1/rollouts/current", nil
				}
				n, err := versionArg(args[0])
				return fmt.Sprintf("/v1/rollouts/%d", n), err
			}, func(t *tabwriter.Writer, r regionctl.RolloutStatus) {
				table(t, []regionctl.RolloutStatus{r})
				for _, line := range r.History {
					row(t, line)
				}
			}))
	for verb, short := range map[string]string{
		"pause":   "Hold the running rollout where it is",
		"resume":  "Go on with a paused rollout",
		"promote": "Go on to the next ring without waiting for more evidence",
		"abort":   "End the running rollout and go back to the content before it",
		"force":   "Don't wait for evacuations in the regions that the rollout goes through",
	} {
		cmd.AddCommand(rolloutOrder(w, verb, short))
	}
	return cmd
}

func rolloutOrder(w *where, verb, short string) *cobra.Command {
	var out output
	var req regionctl.RolloutOrder
	cmd := &cobra.Command{
		Use: verb + " [VERSION]", Short: short,
		Long:    short + ". With VERSION nothing is done when another one is being rolled out by now.",
		Example: fmt.Sprintf("  regionctl rollout %s\n  regionctl rollout %s 42 --reason 'looking into 5xx in eu-west'", verb, verb), Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			which := "current"
			if len(args) > 0 {
				n, err := versionArg(args[0])
				if err != nil {
					return err
				}
				which = fmt.Sprint(n)
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			r, err := post[regionctl.RolloutStatus](cmd.Context(), c, "/v1/rollouts/"+which+":"+verb, req)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) {
				row(t, rolloutLine(r))
			})
		},
	}
	out.flags(cmd)
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "say what would be, change nothing")
	return cmd
}

func rolloutLine(r regionctl.RolloutStatus) string {
	return fmt.Sprintf("rollout of %d: %s, %s: %s", r.Version, r.State, cmp.Or(r.Ring, "no ring yet"), r.Why)
}
