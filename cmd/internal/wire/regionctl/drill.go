package regionctl

import (
	"errors"
	"fmt"
	"math"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/regionctl/drill"
)

func drillCommand(w *where) *cobra.Command {
	cmd := group("drill", "Break the world on purpose and measure what its users see")
	cmd.Long = `Break the world on purpose, under load of the drill's own, and measure what its users see against pass figures. A drill
undoes whatever it did, also after Ctrl-C. It breaks real processes through their supervisor, so the world must be one that
runs on this machine (cellgate up). Every run is recorded in the world's directory, below drills/.`
	cmd.AddCommand(drillRun(w), drillList(w), drillHistory(w), drillShow(w))
	return cmd
}

func drillRun(w *where) *cobra.Command {
	var out output
	var o drill.Options
	var dry bool
	cmd := &cobra.Command{
		Use: "run NAME", Short: "Run one drill: exit code 0 when every figure is within its limit",
		Long: `Run one drill. Exit code 0: every figure is within its limit; 1: one is not, or the drill could not be done; 3: the world is
not in order (something is down, evacuated or being rolled out), so a drill would prove nothing (--force runs it nevertheless).`,
		Example:   "  regionctl drill run cell --world .cellgate\n  regionctl drill run gateway-process --target eu-west/a/2\n  regionctl drill run bad-config -o json\n  regionctl drill run region --dry-run",
		Args:      cobra.ExactArgs(1),
		ValidArgs: drillNames(),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			d, ok := drill.Find(args[0])
			if !ok {
				return usage(fmt.Errorf("there is no drill %q: regionctl drill list shows them", args[0]))
			}
			if !(o.Rate >= 10 && o.Rate <= 5000) || math.IsNaN(o.Rate) {
				return usage(errors.New("--rate takes 10 to 5000 requests per second"))
			}
			if o.Target != "" && d.Target == "" {
				return usage(fmt.Errorf("the drill %s takes no --target", d.Name))
			}
			world, err := w.drillWorld(cmd.Context())
			if err != nil {
				return err
			}
			if dry {
				return dryDrill(cmd, &out, world, d, o)
			}
			return runDrill(cmd, &out, world, d, o)
		},
	}
	out.flags(cmd)
	cmd.Flags().StringVar(&o.Target, "target", "", "the node, cell or region that fails (`ID`; absent: the drill chooses)")
	cmd.Flags().Float64Var(&o.Rate, "rate", drill.DefaultRate, "load of the drill in requests per second")
	cmd.Flags().BoolVar(&o.Force, "force", false, "run it although the world is not in order")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "say what would be done and whether the world is in order, change nothing")
	return cmd
}

func drillNames() []string {
	var names []string
	for _, d := range drill.All() {
		names = append(names, d.Name)
	}
	return names
}

// planned is what --dry-run prints as json or yaml.
type planned struct {
	Name   string   `json:"drill"`
	Short  string   `json:"what_fails"`
	Proves string   `json:"passes_when"`
	Target string   `json:"target,omitempty"`
	Rate   float64  `json:"rate"`
	Amiss  []string `json:"not_in_order"` // only with --force more than nothing
}

func dryDrill(cmd *cobra.Command, out *output, world *drillWorld, d drill.Drill, o drill.Options) error {
	if err := d.Aim(world.Layout(), o.Target); err != nil {
		return err
	}
	amiss := drill.Check(cmd.Context(), world)
	if len(amiss) > 0 && !o.Force {
		return &ExitError{Code: ExitRefused, Err: &drill.Refused{Why: amiss}}
	}
	p := planned{d.Name, d.Short, d.Proves, o.Target, o.Rate, append([]string{}, amiss...)}
	return out.print(cmd.OutOrStdout(), p, func(t *tabwriter.Writer) {
		row(t, fmt.Sprintf("%s: %s, under %.0f requests per second.", p.Name, p.Short, p.Rate))
		row(t, fmt.Sprintf("It passes when %s.", p.Proves))
		if len(amiss) == 0 {
			row(t, "The world is in order.")
			return
		}
		row(t, "The world is not in order: "+strings.Join(amiss, "; "))
	})
}

func runDrill(cmd *cobra.Command, out *output, world *drillWorld, d drill.Drill, o drill.Options) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	release, err := drill.Claim(world.records())
	if err != nil {
		return err
	}
	defer release()
	o.Say = func(line string) { fmt.Fprintln(cmd.ErrOrStderr(), line) }
	o.Record = func(r drill.Result) error { return drill.Save(world.records(), r) }
	result, err := drill.Run(ctx, world, d, o)
	var refused *drill.Refused
	switch {
	case errors.As(err, &refused):
		return &ExitError{Code: ExitRefused, Err: err}
	case result.ID == "":
		return err
	}
	if perr := out.print(cmd.OutOrStdout(), result, func(t *tabwriter.Writer) { drillTable(t, result) }); perr != nil || err != nil {
		return errors.Join(err, perr)
	}
	if result.Outcome != drill.Passed {
		return errFailed
	}
	return nil
}

func drillTable(t *tabwriter.Writer, r drill.Result) {
	if len(r.Figures) > 0 {
		row(t, "FIGURE", "LIMIT", "MEASURED", "PASS")
	}
	for _, f := range r.Figures {
		pass := "yes"
		if !f.Pass {
			pass = "NO"
		}
		row(t, f.Name, f.LimitText(), f.MeasuredText(), pass)
	}
	if len(r.Figures) > 0 {
		row(t)
	}
	on := ""
	if r.Target != "" {
		on = " of " + r.Target
	}
	why := ""
	if r.Why != "" {
		why = ": " + r.Why
	}
	row(t, fmt.Sprintf("%s%s %s, %d requests, record %s%s", r.Drill, on, r.Outcome, r.Requests, r.ID, why))
	for _, u := range r.Undone {
		row(t, "  put back: "+u)
	}
}

// drilled is a drill with its last run.
type drilled struct {
	Name   string        `json:"name"`
	Short  string        `json:"what_fails"`
	Proves string        `json:"passes_when"`
	Target string        `json:"target,omitempty"`
	Last   *drill.Result `json:"last"`
}

// recorded makes a command that shows something of the runs on record, which need no running world.
func recorded[T any](w *where, cmd *cobra.Command, find func(past []drill.Result, args []string) (T, error), table func(*tabwriter.Writer, T)) *cobra.Command {
	var out output
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := out.check(); err != nil {
			return err
		}
		past, err := w.drillRecords()
		if err != nil {
			return err
		}
		v, err := find(past, args)
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), v, func(t *tabwriter.Writer) { table(t, v) })
	}
	out.flags(cmd)
	return cmd
}

func drillList(w *where) *cobra.Command {
	return recorded(w, &cobra.Command{
		Use: "list", Short: "List the drills, and how each went when it was last run here", Example: "  regionctl drill list --world .cellgate", Args: cobra.NoArgs,
	}, func(past []drill.Result, _ []string) ([]drilled, error) {
		var all []drilled
		for _, d := range drill.All() {
			x := drilled{Name: d.Name, Short: d.Short, Proves: d.Proves, Target: d.Target}
			if i := slices.IndexFunc(past, func(r drill.Result) bool { return r.Drill == d.Name }); i >= 0 {
				x.Last = &past[i]
			}
			all = append(all, x)
		}
		return all, nil
	}, drilledTable)
}

func drilledTable(t *tabwriter.Writer, all []drilled) {
	row(t, "DRILL", "WHAT FAILS", "LAST RUN", "OUTCOME")
	for _, d := range all {
		last, outcome := "never", "-"
		if d.Last != nil {
			last, outcome = moment(d.Last.Began), string(d.Last.Outcome)
		}
		row(t, d.Name, d.Short, last, outcome)
	}
}

func drillHistory(w *where) *cobra.Command {
	return recorded(w, &cobra.Command{
		Use: "history", Short: "List the runs on record, newest first", Example: "  regionctl drill history -o json", Args: cobra.NoArgs,
	}, func(past []drill.Result, _ []string) ([]drill.Result, error) { return past, nil }, historyTable)
}

func historyTable(t *tabwriter.Writer, past []drill.Result) {
	row(t, "RUN", "DRILL", "TARGET", "BEGAN", "TOOK", "REQUESTS", "OUTCOME", "WHY")
	for _, r := range past {
		took := "-"
		if !r.Ended.IsZero() {
			took = fmt.Sprintf("%.0fs", r.Ended.Sub(r.Began).Seconds())
		}
		row(t, r.ID, r.Drill, dash(r.Target), moment(r.Began), took, r.Requests, r.Outcome, dash(r.Why))
	}
}

func drillShow(w *where) *cobra.Command {
	return recorded(w, &cobra.Command{
		Use: "show NAME|RUN", Short: "Show the figures of a run: the last one of a drill, or one by its id", Example: "  regionctl drill show cell\n  regionctl drill show 20260301T120000Z-cell -o json",
		Args: cobra.ExactArgs(1), ValidArgs: drillNames(),
	}, func(past []drill.Result, args []string) (drill.Result, error) {
		i := slices.IndexFunc(past, func(r drill.Result) bool { return r.ID == args[0] || r.Drill == args[0] })
		if i < 0 {
			return drill.Result{}, fmt.Errorf("no run of %q is on record: regionctl drill history lists them", args[0])
		}
		return past[i], nil
	}, drillTable)
}

var _ drill.World = (*drillWorld)(nil)
