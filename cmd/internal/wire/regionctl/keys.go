package regionctl

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/regionctl"
)

func keysCommand(w *where) *cobra.Command {
	cmd := group("keys", "Issue, list and revoke API keys of consumers")
	cmd.Long = `Issue, list and revoke API keys of consumers. A key holds from the moment it is issued, on every node; once it is revoked no
node takes it within two seconds. A consumer has at most two live keys, those in documents included.`
	cmd.AddCommand(keysIssue(w), keysList(w), keysRevoke(w))
	return cmd
}

func keysIssue(w *where) *cobra.Command {
	var out output
	var req regionctl.KeyRequest
	cmd := &cobra.Command{
		Use: "issue CONSUMER", Short: "Issue an API key, which is shown once", Args: cobra.ExactArgs(1),
		Example: "  regionctl keys issue acme --reason 'replaces the one of 2025'\n  regionctl keys issue acme -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Consumer = args[0]
			return ordered(cmd, w, &out, "/v1/keys", req, issuedTable)
		},
	}
	out.flags(cmd)
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why (`WHY`)")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "say what would be, change nothing")
	return cmd
}

func issuedTable(t *tabwriter.Writer, k regionctl.IssuedKey) {
	if k.DryRun {
		row(t, fmt.Sprintf("a key would be issued to %s", k.Consumer))
		return
	}
	row(t, k.Secret)
	row(t, fmt.Sprintf("This is the key %s of %s. It is not shown again.", k.ID, k.Consumer))
}

func keysList(w *where) *cobra.Command {
	var consumer string
	cmd := reading(w, &cobra.Command{Use: "list", Short: "List the live API keys, by their hashes", Example: "  regionctl keys list --consumer acme", Args: cobra.NoArgs},
		func([]string) (string, error) { return "/v1/keys?consumer=" + url.QueryEscape(consumer), nil },
		func(t *tabwriter.Writer, k regionctl.Keys) {
			row(t, "CONSUMER", "KEY", "HASH", "ISSUED", "BY", "REASON")
			for _, one := range k.Keys {
				id := one.ID
				if one.Document > 0 {
					id = fmt.Sprintf("document of version %d", one.Document)
				}
				row(t, one.Consumer, id, one.Hash, moment(one.Issued), dash(one.By), dash(one.Reason))
			}
			row(t, fmt.Sprintf("%d of %d issued", k.Issued, k.Limit))
			for _, w := range k.Warnings {
				row(t, "warning: "+w)
			}
		})
	cmd.Flags().StringVar(&consumer, "consumer", "", "of this `CONSUMER` alone")
	return cmd
}

func keysRevoke(w *where) *cobra.Command {
	var out output
	var req regionctl.KeyRevocation
	cmd := &cobra.Command{
		Use: "revoke ID --reason WHY", Short: "End an issued API key", Args: cobra.ExactArgs(1),
		Long:    "End an issued API key. ID is the part of the key between the underscores, cg_ID_…, as `keys list` shows it.",
		Example: "  regionctl keys revoke 17zg17zg17 --reason 'acme uses the new one'",
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.ID = args[0]; strings.TrimSpace(req.Reason) == "" {
				return usage(errors.New("--reason WHY is required"))
			}
			return ordered(cmd, w, &out, "/v1/keys:revoke", req, revokedTable)
		},
	}
	out.flags(cmd)
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why (`WHY`), required")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "say what would be, change nothing")
	return cmd
}

func revokedTable(t *tabwriter.Writer, k regionctl.RevokedKey) {
	would := ""
	if k.DryRun {
		would = "would be "
	}
	row(t, fmt.Sprintf("key %s of %s: %srevoked", k.ID, k.Consumer, would))
}

// ordered sends an order and prints what came of it.
func ordered[T any](cmd *cobra.Command, w *where, out *output, path string, req any, table func(*tabwriter.Writer, T)) error {
	if err := out.check(); err != nil {
		return err
	}
	c, err := w.client()
	if err != nil {
		return err
	}
	answer, err := post[T](cmd.Context(), c, path, req)
	if err != nil {
		return err
	}
	return out.print(cmd.OutOrStdout(), answer, func(t *tabwriter.Writer) { table(t, answer) })
}
