package regionctl

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/regionctl"
)

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
	return wait.until(cmd, fmt.Sprintf("version %d is live", p.Version), func(ctx context.Context) (string, bool, error) {
		live, err := isLive(ctx, c, p.Version)
		if live || err != nil {
			return "", live, err
		}
		r, err := get[regionctl.RolloutStatus](ctx, c, fmt.Sprintf("/v1/rollouts/%d", p.Version))
		if err != nil { // it waits for the one before
			return "", false, nil
		}
		return rolloutLine(r), false, nil
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
			raw, err := cli.ReadAll("stdin", stdin)
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
			raw, err := cli.ReadFile(path)
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
