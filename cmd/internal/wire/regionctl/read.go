package regionctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/regionctl"
)

// reading makes a command that asks for one document and prints it.
func reading[T any](w *where, cmd *cobra.Command, path func(args []string) (string, error), table func(t *tabwriter.Writer, v T)) *cobra.Command {
	var out output
	out.flags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := out.check(); err != nil {
			return err
		}
		p, err := path(args)
		if err != nil {
			return err
		}
		c, err := w.client()
		if err != nil {
			return err
		}
		v, err := get[T](cmd.Context(), c, p)
		if err != nil {
			return err
		}
		return out.print(cmd.OutOrStdout(), v, func(t *tabwriter.Writer) { table(t, v) })
	}
	return cmd
}

func fixed(path string) func([]string) (string, error) {
	return func([]string) (string, error) { return path, nil }
}

func statusCommand(w *where) *cobra.Command {
	var out output
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "status", Short: "Show versions, rollout, nodes and cells of the world",
		Long:    "Show versions, rollout, nodes and cells of the world. Every region's controller answers for all regions.",
		Example: "  regionctl status\n  regionctl status -o json\n  regionctl status --watch",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if interval < 100*time.Millisecond {
				return usage(errors.New("--interval must be at least 100ms"))
			}
			c, err := w.client()
			if err != nil {
				return err
			}
			if !watch {
				return printStatus(cmd.Context(), c, &out, cmd.OutOrStdout())
			}
			return watchStatus(cmd, c, &out, interval)
		},
	}
	out.flags(cmd)
	cmd.Flags().BoolVar(&watch, "watch", false, "print it again every interval until interrupted")
	cmd.Flags().DurationVar(&interval, "interval", 2*time.Second, "time between two prints of --watch")
	return cmd
}

// watchStatus prints until the user interrupts; a controller that is away for a while is told and asked again.
func watchStatus(cmd *cobra.Command, c *client, out *output, interval time.Duration) error {
	ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	for {
		if err := printStatus(ctx, c, out, cmd.OutOrStdout()); err != nil && ctx.Err() == nil {
			fmt.Fprintln(cmd.ErrOrStderr(), err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(interval):
		}
		if out.format == "table" {
			fmt.Fprintln(cmd.OutOrStdout(), "---")
		}
	}
}

func printStatus(ctx context.Context, c *client, out *output, w io.Writer) error {
	s, err := get[regionctl.Status](ctx, c, "/v1/status")
	if err != nil {
		return err
	}
	return out.print(w, s, func(t *tabwriter.Writer) { statusTable(t, s) })
}

func statusTable(t *tabwriter.Writer, s regionctl.Status) {
	row(t, fmt.Sprintf("version %d: %s", s.Version, s.Summary))
	if r := s.Rollout; r != nil {
		row(t, fmt.Sprintf("rollout of %d: %s, %s", r.Version, r.State, r.Why))
	}
	for _, w := range s.Warnings {
		row(t, "warning: "+w)
	}
	row(t)
	cellTable(t, s.Cells)
	row(t)
	nodeTable(t, s.Nodes)
}

func cellTable(t *tabwriter.Writer, list []regionctl.CellStatus) {
	row(t, "CELL", "STATE", "HEALTHY", "RPS", "LIMIT", "HEADROOM", "SHARE", "WHY")
	for _, c := range list {
		healthy := "unknown"
		if c.Healthy != nil {
			healthy = strconv.FormatBool(*c.Healthy)
		}
		row(t, c.ID, c.State, healthy, number(c.RPS, "%.0f"), fmt.Sprintf("%.0f", c.LimitRPS), percent(c.Headroom), percent(&c.Share), cellWhy(c))
	}
}

func cellWhy(c regionctl.CellStatus) string {
	if c.Evacuation != nil && c.State != cells.Restoring {
		return fmt.Sprintf("%s (by %s, until %s)", c.Evacuation.Reason, c.Evacuation.By, moment(c.Evacuation.Expires))
	}
	if c.Healthy != nil && *c.Healthy {
		return "-"
	}
	return dash(c.Why)
}

func nodeTable(t *tabwriter.Writer, list []regionctl.NodeStatus) {
	row(t, "NODE", "KNOWN", "STORED", "SERVED", "SOURCE", "AGE", "REASON")
	for _, n := range list {
		age := "never"
		if n.AgeS >= 0 {
			age = fmt.Sprintf("%.1fs", n.AgeS)
		}
		row(t, n.ID, n.Known, n.Stored, n.Served, dash(n.Source), age, dash(n.Reason))
	}
}

func cellsCommand(w *where) *cobra.Command {
	cmd := group("cells", "List cells and show one")
	cmd.AddCommand(
		reading(w, &cobra.Command{Use: "list", Short: "List every cell with state, health and headroom", Example: "  regionctl cells list -o yaml", Args: cobra.NoArgs},
			fixed("/v1/cells"), cellTable),
		reading(w, &cobra.Command{Use: "show CELL", Short: "Show one cell with its nodes", Example: "  regionctl cells show eu-west/a", Args: cobra.ExactArgs(1), ValidArgsFunction: completeCells(w)},
			func(args []string) (string, error) { return "/v1/cells/" + escape(args[0]), nil },
			func(t *tabwriter.Writer, c regionctl.CellDocument) {
				cellTable(t, []regionctl.CellStatus{c.CellStatus})
				row(t)
				nodeTable(t, c.Nodes)
			}))
	return cmd
}

// escape puts an id with slashes into a path: every segment is escaped, the slashes stay.
func escape(id string) string {
	parts := strings.Split(id, "/")
	for i := range parts {
		parts[i] = url.PathEscape(parts[i])
	}
	return strings.Join(parts, "/")
}

func dnsCommand(w *where) *cobra.Command {
	cmd := group("dns", "Explain what clients are answered")
	var client string
	explain := reading(w, &cobra.Command{
		Use: "explain NAME --client ADDR", Short: "Say which cell a client is sent to, and why",
		Example: "  regionctl dns explain api.gw.test --client 5.1.2.3", Args: cobra.ExactArgs(1),
	}, func(args []string) (string, error) {
		if client == "" {
			return "", usage(errors.New("--client ADDR is missing: the client's address or prefix"))
		}
		return "/v1/dns/explain?" + url.Values{"name": {args[0]}, "client": {client}}.Encode(), nil
	}, dnsTable)
	explain.Flags().StringVar(&client, "client", "", "address or prefix of the client (`ADDR`)")
	cmd.AddCommand(explain)
	return cmd
}

func dnsTable(t *tabwriter.Writer, d regionctl.DNSExplained) {
	row(t, "NAME", d.Name)
	row(t, "CLIENT", d.Client)
	if d.Steered {
		row(t, "LOCALITY", d.Locality+" by "+dash(d.Prefix))
		row(t, "SET", d.Set)
		row(t, "SLOT", d.Slot)
		row(t, "CELL", dash(string(d.Cell)))
		row(t, "ADDRESSES", strings.Join(d.Addresses, " "))
		row(t, "TTL", d.TTL)
		for _, id := range slices.Sorted(maps.Keys(d.Shares)) {
			row(t, "SHARE", fmt.Sprintf("%s %d/256", id, d.Shares[id]))
		}
	}
	row(t, "PLAN", fmt.Sprintf("epoch %d, number %d", d.Plan.Epoch, d.Plan.Number))
	row(t, "WHY", dash(d.Why))
}

func capacityCommand(w *where) *cobra.Command {
	cmd := group("capacity", "Show spare capacity")
	cmd.AddCommand(reading(w, &cobra.Command{
		Use: "headroom", Short: "Show the headroom of every cell, region and the world against their targets",
		Example: "  regionctl capacity headroom", Args: cobra.NoArgs,
	}, fixed("/v1/capacity/headroom"), func(t *tabwriter.Writer, h regionctl.Headroom) {
		row(t, "WHAT", "RPS", "TARGET", "LIMIT", "HEADROOM")
		for _, list := range [][]regionctl.HeadroomRow{h.Cells, h.Regions, {h.World}} {
			for _, r := range list {
				row(t, r.ID, number(r.RPS, "%.0f"), fmt.Sprintf("%.0f", r.Target), fmt.Sprintf("%.0f", r.Limit), percent(r.Headroom))
			}
		}
	}))
	return cmd
}

func auditCommand(w *where) *cobra.Command {
	var limit int
	cmd := reading(w, &cobra.Command{
		Use: "audit", Short: "List who changed what, when and why, newest first", Example: "  regionctl audit --limit 20 -o json", Args: cobra.NoArgs,
	}, func([]string) (string, error) {
		if limit < 1 {
			return "", usage(errors.New("--limit must be at least 1"))
		}
		return "/v1/audit?limit=" + strconv.Itoa(limit), nil
	}, func(t *tabwriter.Writer, list []regionctl.AuditEntry) {
		row(t, "AT", "WHO", "WHAT", "ON", "WHY")
		for _, a := range list {
			row(t, moment(a.At), a.Who, a.What, dash(a.On), dash(a.Why))
		}
	})
	cmd.Flags().IntVar(&limit, "limit", 100, "how many entries")
	return cmd
}

// group is a command that only holds others.
func group(use, short string) *cobra.Command {
	return &cobra.Command{Use: use, Short: short, Args: cli.Subcommand, RunE: cli.Help}
}

// completeCells completes the ids of cells and regions.
func completeCells(w *where) func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		c, err := w.client()
		if err != nil || len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		list, err := get[[]regionctl.CellStatus](cmd.Context(), c, "/v1/cells")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var ids []string
		for _, cell := range list {
			ids = append(ids, string(cell.ID))
			if r := string(cell.ID.Region()); len(ids) < 2 || ids[0] != r {
				ids = append([]string{r}, ids...)
			}
		}
		return ids, cobra.ShellCompDirectiveNoFileComp
	}
}
