package regionctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/regionctl"
)

func evacuateCommand(w *where) *cobra.Command {
	var out output
	var wait waiting
	var req regionctl.EvacuateRequest
	var over, expires time.Duration
	cmd := &cobra.Command{
		Use: "evacuate CELL|REGION --reason WHY", Short: "Move clients off a cell or a region, gradually",
		Long: `Move clients off a cell or a region, gradually. Refused (exit code 3) when the rest of the world cannot carry them within its
targets, when more than half of a traffic class would be gone, or when no usable cell would be left. The order ends by itself
when it expires.

With --break-glass nobody asks whether the rest can carry it, and the order also works without leader and global store: it then
goes to every region that can be reached, whose routers and proxies act on it by themselves. The output says which way it went.`,
		Example:           "  regionctl evacuate eu-west/a --reason 'kernel upgrade' --over 5m --expires 2h\n  regionctl evacuate eu-west --reason drill --dry-run\n  regionctl evacuate eu-west --reason 'region is flooding' --over 0s --break-glass",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeCells(w),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if strings.TrimSpace(req.Reason) == "" {
				return usage(errors.New("--reason WHY is required"))
			}
			if over < 0 || expires <= over {
				return usage(errors.New("--over must not be negative, and --expires must be longer than --over"))
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			req.What, req.Expires = args[0], expires.String()
			if cmd.Flags().Changed("over") { // else an order that stands keeps its move
				req.Over = over.String()
			}
			e, err := post[regionctl.Evacuated](cmd.Context(), c, "/v1/evacuations", req)
			if err != nil {
				return showRefusal(cmd.ErrOrStderr(), err)
			}
			return finishOrder(cmd, c, &out, &wait, e, cells.Evacuated)
		},
	}
	out.flags(cmd)
	wait.flags(cmd, "no new client is sent there any more")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why (`WHY`), required")
	cmd.Flags().DurationVar(&over, "over", 5*time.Minute, "how long the move takes; given again for a cell that is evacuated, it only makes the move end sooner")
	cmd.Flags().DurationVar(&expires, "expires", 2*time.Hour, "when the order ends by itself, from now")
	cmd.Flags().BoolVar(&req.Force, "force", false, "do it although the rest cannot carry it within its targets")
	cmd.Flags().BoolVar(&req.NoForward, "no-forward", false, "requests that still come are served by the cell itself, not handed to the cells that its clients went to")
	cmd.Flags().BoolVar(&req.BreakGlass, "break-glass", false, "don't ask whether the rest can carry it; go through the regions when the global store doesn't answer")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "say where the traffic goes and what headroom is left, change nothing")
	return cmd
}

func restoreCommand(w *where) *cobra.Command {
	var out output
	var wait waiting
	var req regionctl.RestoreRequest
	cmd := &cobra.Command{
		Use: "restore CELL|REGION", Short: "End an evacuation; clients come back gradually",
		Example: "  regionctl restore eu-west/a --wait", Args: cobra.ExactArgs(1), ValidArgsFunction: completeCells(w),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			req.What = args[0]
			e, err := post[regionctl.Evacuated](cmd.Context(), c, "/v1/restorations", req)
			if err != nil {
				return err
			}
			return finishOrder(cmd, c, &out, &wait, e, cells.Active)
		},
	}
	out.flags(cmd)
	wait.flags(cmd, "its clients are back")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "say what would be, change nothing")
	return cmd
}

// showRefusal shows where the traffic would have gone before the refusal is told.
func showRefusal(stderr io.Writer, err error) error {
	var f *regionctl.Fault
	if errors.As(err, &f) && len(f.Outcomes) > 0 {
		t := tabwriter.NewWriter(stderr, 0, 4, 2, ' ', 0)
		evacuatedTable(t, regionctl.Evacuated{Outcomes: f.Outcomes, DryRun: true})
		t.Flush()
	}
	return err
}

// finishOrder prints the order and waits for its cells to reach the state when asked to.
func finishOrder(cmd *cobra.Command, c *client, out *output, wait *waiting, e regionctl.Evacuated, want cells.State) error {
	err := out.print(cmd.OutOrStdout(), e, func(t *tabwriter.Writer) { evacuatedTable(t, e) })
	if err != nil || !wait.wait || e.DryRun {
		return err
	}
	return wait.until(cmd, "every cell is "+string(want), func(ctx context.Context) (string, bool, error) {
		list, err := get[[]regionctl.CellStatus](ctx, c, "/v1/cells")
		if err != nil {
			return "", false, err
		}
		return reached(list, e.Orders, want)
	})
}

// reached says how the ordered cells stand, and whether every one is in the state. An order that ended before it was done is an error.
func reached(list []regionctl.CellStatus, orders []cells.Evacuation, want cells.State) (stand string, all bool, err error) {
	done := 0
	var words []string
	for _, c := range list {
		if !slices.ContainsFunc(orders, func(o cells.Evacuation) bool { return o.Cell == c.ID }) {
			continue
		}
		words = append(words, fmt.Sprintf("%s is %s, with %s of the world's clients", c.ID, c.State, percent(&c.Share)))
		if c.State == want {
			done++
		}
		if want == cells.Evacuated && (c.State == cells.Restoring || c.State == cells.Active) {
			return "", false, &ExitError{Code: ExitFailed, Err: fmt.Errorf("the evacuation of %s was ended before it was done", c.ID)}
		}
	}
	return strings.Join(words, "; "), done == len(orders), nil
}

func evacuatedTable(t *tabwriter.Writer, e regionctl.Evacuated) {
	for _, o := range e.Orders {
		switch {
		case !o.Restored.IsZero():
			row(t, fmt.Sprintf("%s: restored, clients come back gradually", o.Cell))
		case e.DryRun:
			row(t, fmt.Sprintf("%s: would be evacuated over %s, until %s", o.Cell, o.Over, moment(o.Expires)))
		default:
			row(t, fmt.Sprintf("%s: evacuated over %s, until %s", o.Cell, o.Over, moment(o.Expires)))
		}
	}
	if !e.DryRun {
		switch e.Path {
		case regionctl.PathGlobal:
			row(t, "path: global store; the leader acts on it")
		case regionctl.PathRegional:
			row(t, "path: the regions themselves, without leader and global store")
		}
	}
	reachedTable(t, e.Reached)
	for _, w := range e.Warnings {
		row(t, "warning: "+w)
	}
	for _, o := range e.Outcomes {
		row(t)
		row(t, fmt.Sprintf("%s gives away %.1f rps", o.Cell, float64(o.Load)/1000))
		for _, m := range o.Moves {
			row(t, "  to "+string(m.To), fmt.Sprintf("%.1f rps", float64(m.Load)/1000))
		}
		row(t, "CELL", "BEFORE", "AFTER", "TARGET", "LEFT")
		for _, r := range o.Cells {
			row(t, r.ID, rate(r.Before), rate(r.After), rate(r.Target), rate(r.Headroom))
		}
		for _, u := range o.Unplaced {
			row(t, fmt.Sprintf("no room for %s from %s at %s: %s", rate(u.Load), u.Set, u.Locality, u.Why))
		}
	}
}

func rate(m cells.MilliRPS) string { return fmt.Sprintf("%.1f", float64(m)/1000) }
