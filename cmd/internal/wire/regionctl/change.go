package regionctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/regionctl"
)

// waiting is --wait with its bound.
type waiting struct {
	wait    bool
	timeout time.Duration
}

func (w *waiting) flags(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&w.wait, "wait", false, "return when "+what)
	cmd.Flags().DurationVar(&w.timeout, "timeout", time.Hour, "give up waiting after this time")
}

// until asks every half second until done says so. Controllers that don't answer are asked again.
func (w *waiting) until(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	for {
		ok, err := done(ctx)
		var final *ExitError
		if ok || errors.As(err, &final) {
			return err
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("waited %s until %s; last error: %w", w.timeout, what, err)
			}
			return fmt.Errorf("waited %s until %s: it is not so yet", w.timeout, what)
		case <-time.After(500 * time.Millisecond):
		}
	}
}

func publishCommand(w *where) *cobra.Command {
	var out output
	var wait waiting
	var req regionctl.PublishRequest
	cmd := &cobra.Command{
		Use:   "publish FILE…",
		Short: "Check documents and publish them as the next version",
		Long: `Check documents and publish them as the next version. FILE is a YAML or JSON document, a directory of them, or - for
standard input. Everything published before is replaced; with --owner exactly what that team owns is.
It returns when the number is given; the rollout goes on by itself.`,
		Example: "  regionctl publish gateway.yaml --wait\n  regionctl publish --owner team-orders ./orders/ --message 'split to v2'\n  regionctl publish gateway.yaml --dry-run",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			files, err := readFiles(args, cmd.InOrStdin())
			if err != nil {
				return err
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			req.Files = files
			p, err := post[regionctl.Published](cmd.Context(), c, "/v1/config/versions", req)
			if err != nil {
				return err
			}
			return finishPublication(cmd, c, &out, &wait, p)
		},
	}
	out.flags(cmd)
	wait.flags(cmd, "the version is live on every node")
	cmd.Flags().StringVar(&req.Owner, "owner", "", "replace exactly what this `TEAM` owns")
	cmd.Flags().StringVarP(&req.Message, "message", "m", "", "why, for the audit")
	cmd.Flags().BoolVar(&req.Confirm, "confirm", false, "publish although more than a tenth of routes, hosts or consumers is dropped")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "check everything, change nothing")
	cmd.Flags().StringSliceVar(&req.AllowUpstreams, "allow-upstreams", nil, "`PREFIX` that upstreams may use beyond the ordinary ones, such as 127.0.0.0/8")
	return cmd
}

// finishPublication prints the number, at once, and waits for it to be live when asked to.
func finishPublication(cmd *cobra.Command, c *client, out *output, wait *waiting, p regionctl.Published) error {
	err := out.print(cmd.OutOrStdout(), p, func(t *tabwriter.Writer) { publishedTable(t, p) })
	if err != nil || !wait.wait || p.DryRun {
		return err
	}
	return wait.until(cmd.Context(), fmt.Sprintf("version %d is live", p.Version), func(ctx context.Context) (bool, error) {
		return isLive(ctx, c, p.Version)
	})
}

func publishedTable(t *tabwriter.Writer, p regionctl.Published) {
	verb := "published"
	if p.DryRun {
		verb = "would publish"
	}
	row(t, fmt.Sprintf("%s version %d, checksum %s: %d routes (%d added, %d changed, %d removed)", verb, p.Version, short(p.Checksum), p.Counts.Routes, p.Added, p.Changed, p.Removed))
	if p.Unchanged {
		row(t, fmt.Sprintf("the content equals that of version %d", p.Previous))
	}
}

// isLive says whether the version, or a later one that replaced it, is live; a rollback is final.
func isLive(ctx context.Context, c *client, number uint64) (bool, error) {
	list, err := get[[]regionctl.Version](ctx, c, "/v1/config/versions")
	if err != nil {
		return false, err
	}
	for _, v := range list {
		switch {
		case v.Number == number && v.Status == "rolled_back":
			why := ""
			if r, err := get[regionctl.RolloutStatus](ctx, c, fmt.Sprintf("/v1/rollouts/%d", number)); err == nil {
				why = ": " + r.Why
			}
			return true, &ExitError{Code: ExitFailed, Err: fmt.Errorf("version %d was rolled back%s", number, why)}
		case v.Number >= number && v.Status == "live" && v.RollbackOf == 0, v.Number == number && v.Status == "live":
			return true, nil
		}
	}
	return false, nil
}

// readFiles reads documents; of a directory the .yaml, .yml and .json files in it and below, in the order of their names.
func readFiles(args []string, stdin io.Reader) ([]regionctl.PublishFile, error) {
	var out []regionctl.PublishFile
	add := func(name string, raw []byte) {
		out = append(out, regionctl.PublishFile{Name: name, Data: string(raw)})
	}
	for _, arg := range args {
		if arg == "-" {
			raw, err := io.ReadAll(stdin)
			if err != nil {
				return nil, err
			}
			add("stdin", raw)
			continue
		}
		err := filepath.WalkDir(arg, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || path != arg && !slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(path)) {
				return err
			}
			raw, err := os.ReadFile(path)
			add(path, raw)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no .yaml, .yml or .json file in %s", strings.Join(args, ", "))
	}
	return out, nil
}

func versionsCommand(w *where) *cobra.Command {
	return reading(w, &cobra.Command{Use: "versions", Short: "List published versions with their status", Example: "  regionctl versions -o json", Args: cobra.NoArgs},
		fixed("/v1/config/versions"), func(t *tabwriter.Writer, list []regionctl.Version) {
			row(t, "VERSION", "STATUS", "CHECKSUM", "CREATED", "AUTHOR", "ROUTES", "MESSAGE")
			for _, v := range slices.Backward(list) {
				row(t, v.Number, v.Status, short(v.Checksum), moment(v.Created), v.Author, v.Counts.Routes, dash(v.Message))
			}
		})
}

func showCommand(w *where) *cobra.Command {
	return reading(w, &cobra.Command{Use: "show [VERSION]", Short: "Show one version and its content in canonical form (absent: the newest)", Example: "  regionctl config show 41", Args: cobra.MaximumNArgs(1)},
		func(args []string) (string, error) {
			if len(args) == 0 {
				return "/v1/config/versions/latest", nil
			}
			n, err := versionArg(args[0])
			return fmt.Sprintf("/v1/config/versions/%d", n), err
		}, func(t *tabwriter.Writer, v regionctl.VersionDocument) {
			row(t, fmt.Sprintf("# version %d (%s), checksum %s, by %s at %s", v.Number, v.Status, v.Checksum, v.Author, moment(v.Created)))
			fmt.Fprint(t, v.Document)
		})
}

func versionArg(s string) (uint64, error) {
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil || n == 0 {
		return 0, usage(fmt.Errorf("%q is no version number", s))
	}
	return n, nil
}

func rollbackCommand(w *where) *cobra.Command {
	var out output
	var wait waiting
	var req regionctl.RollbackRequest
	cmd := &cobra.Command{
		Use: "rollback VERSION", Short: "Publish the content of an older version as a new one",
		Example: "  regionctl rollback 41 --message 'checkout errors' --wait", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			n, err := versionArg(args[0])
			if err != nil {
				return err
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			p, err := post[regionctl.Published](cmd.Context(), c, fmt.Sprintf("/v1/config/versions/%d:rollback", n), req)
			if err != nil {
				return err
			}
			return finishPublication(cmd, c, &out, &wait, p)
		},
	}
	out.flags(cmd)
	wait.flags(cmd, "the new version is live on every node")
	cmd.Flags().StringVarP(&req.Message, "message", "m", "", "why, for the audit")
	cmd.Flags().BoolVar(&req.Confirm, "confirm", false, "do it although more than a tenth of routes, hosts or consumers is dropped")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "check everything, change nothing")
	return cmd
}

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
	} {
		cmd.AddCommand(rolloutOrder(w, verb, short))
	}
	return cmd
}

func rolloutOrder(w *where, verb, short string) *cobra.Command {
	var out output
	var req regionctl.RolloutOrder
	cmd := &cobra.Command{
		Use: verb, Short: short, Example: "  regionctl rollout " + verb + " --reason 'looking into 5xx in eu-west'", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			r, err := post[regionctl.RolloutStatus](cmd.Context(), c, "/v1/rollouts/current:"+verb, req)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), r, func(t *tabwriter.Writer) {
				row(t, fmt.Sprintf("rollout of %d: %s, %s", r.Version, r.State, r.Why))
			})
		},
	}
	out.flags(cmd)
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the audit")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "say what would be, change nothing")
	return cmd
}

func evacuateCommand(w *where) *cobra.Command {
	var out output
	var wait waiting
	var req regionctl.EvacuateRequest
	var over, expires time.Duration
	cmd := &cobra.Command{
		Use: "evacuate CELL|REGION --reason WHY", Short: "Move clients off a cell or a region, gradually",
		Long: `Move clients off a cell or a region, gradually. Refused (exit code 3) when the rest of the world cannot carry them within its
targets, or when no usable cell would be left. The order ends by itself when it expires.`,
		Example:           "  regionctl evacuate eu-west/a --reason 'kernel upgrade' --over 5m --expires 2h\n  regionctl evacuate eu-west --reason drill --dry-run",
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
			req.What, req.Over, req.Expires = args[0], over.String(), expires.String()
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
	cmd.Flags().DurationVar(&over, "over", 5*time.Minute, "how long the move takes")
	cmd.Flags().DurationVar(&expires, "expires", 2*time.Hour, "when the order ends by itself, from now")
	cmd.Flags().BoolVar(&req.Force, "force", false, "do it although the rest cannot carry it within its targets")
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
	return wait.until(cmd.Context(), "every cell is "+string(want), func(ctx context.Context) (bool, error) {
		list, err := get[[]regionctl.CellStatus](ctx, c, "/v1/cells")
		if err != nil {
			return false, err
		}
		return reached(list, e.Orders, want)
	})
}

// reached says whether every ordered cell is in the state. An order that ended before it was done is an error.
func reached(list []regionctl.CellStatus, orders []cells.Evacuation, want cells.State) (bool, error) {
	done := 0
	for _, c := range list {
		if !slices.ContainsFunc(orders, func(o cells.Evacuation) bool { return o.Cell == c.ID }) {
			continue
		}
		if c.State == want {
			done++
		}
		if want == cells.Evacuated && (c.State == cells.Restoring || c.State == cells.Active) {
			return false, &ExitError{Code: ExitFailed, Err: fmt.Errorf("the evacuation of %s was ended before it was done", c.ID)}
		}
	}
	return done == len(orders), nil
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

func explainCommand(w *where) *cobra.Command {
	var out output
	var headers []string
	var version uint64
	var local offline
	cmd := &cobra.Command{
		Use: "explain [METHOD] URL", Short: "Say which route takes a request, in the newest version or another",
		Example: "  regionctl explain https://api.gw.test/v1/orders/7\n  regionctl explain POST https://api.gw.test/v1/orders -H 'x-api-version: 2' --version 41",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			req, err := explained(args, headers)
			if err != nil {
				return err
			}
			req.Version = version
			if len(local.documents) > 0 {
				e, err := local.explain(cmd, req)
				if err != nil {
					return err
				}
				return out.print(cmd.OutOrStdout(), e, func(t *tabwriter.Writer) { explainedTable(t, e) })
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			e, err := post[regionctl.Explained](cmd.Context(), c, "/v1/config/explain", req)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), e, func(t *tabwriter.Writer) { explainedTable(t, e) })
		},
	}
	out.flags(cmd)
	local.flags(cmd)
	cmd.Flags().StringArrayVarP(&headers, "header", "H", nil, "request header, `NAME: VALUE`")
	cmd.Flags().Uint64Var(&version, "version", 0, "version `N` (default the newest)")
	return cmd
}

// explained reads "URL", "METHOD URL" or both words in one argument.
func explained(args, headers []string) (regionctl.ExplainRequest, error) {
	words := strings.Fields(strings.Join(args, " "))
	req := regionctl.ExplainRequest{Method: "GET", Headers: map[string]string{}}
	switch len(words) {
	case 1:
		req.URL = words[0]
	case 2:
		req.Method, req.URL = words[0], words[1]
	default:
		return req, usage(errors.New("give a URL, or a method and a URL"))
	}
	if u, err := url.Parse(req.URL); err != nil || u.Host == "" {
		return req, usage(fmt.Errorf("%q is no absolute URL", req.URL))
	}
	for _, h := range headers {
		name, value, ok := strings.Cut(h, ":")
		if !ok {
			return req, usage(fmt.Errorf("-H %q: NAME: VALUE is needed", h))
		}
		req.Headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	return req, nil
}

func explainedTable(t *tabwriter.Writer, e regionctl.Explained) {
	if e.Version != 0 {
		row(t, "VERSION", e.Version)
	}
	row(t, "REQUEST", e.Method+" "+e.Host+e.Path)
	row(t, "TENANT", dash(e.Tenant))
	for _, c := range e.Considered {
		row(t, "CONSIDERED", c.Route+": "+c.Outcome)
	}
	if e.Route == "" {
		row(t, "ANSWER", fmt.Sprintf("%d %s", e.Status, e.Reason))
		if e.Allow != "" {
			row(t, "ALLOW", e.Allow)
		}
		return
	}
	row(t, "ROUTE", e.Route)
	row(t, "OWNER", dash(e.Owner))
	row(t, "AUTH", dash(e.Auth))
	for _, u := range e.Upstreams {
		row(t, "UPSTREAM", fmt.Sprintf("%s (weight %d)", u.Upstream, u.Weight))
	}
}
