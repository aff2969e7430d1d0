package regionctl

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/regionctl"
)

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

func explainCommand(w *where) *cobra.Command {
	var out output
	var headers []string
	var version uint64
	var claims, consumer string
	var local offline
	cmd := &cobra.Command{
		Use: "explain [METHOD] URL", Short: "Say which route takes a request, and what its policies make of it, in the newest version or another",
		Example: "  regionctl explain https://api.gw.test/v1/orders/7\n  regionctl explain POST https://api.gw.test/v1/orders -H 'x-api-version: 2' --version 41\n  regionctl explain https://api.gw.test/v1/orders/7 --claims token.json",
		Args:    cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := out.check(); err != nil {
				return err
			}
			req, err := explained(args, headers)
			if err != nil {
				return err
			}
			req.Version, req.Consumer = version, consumer
			if req.Claims, err = claimsOf(cmd, claims); err != nil {
				return err
			}
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
	cmd.Flags().StringVar(&claims, "claims", "", "`FILE` with the claims of the caller's token as JSON; - reads standard input")
	cmd.Flags().StringVar(&consumer, "consumer", "", "the caller has an API key of this `CONSUMER`")
	cmd.Flags().Uint64Var(&version, "version", 0, "version `N` (default the newest)")
	return cmd
}

// claimsOf reads the claims that the caller is taken to have.
func claimsOf(cmd *cobra.Command, file string) (json.RawMessage, error) {
	if file == "" {
		return nil, nil
	}
	raw, err := cli.ReadFile(file)
	if file == "-" {
		raw, err = cli.ReadAll("stdin", cmd.InOrStdin())
	}
	var m map[string]json.RawMessage
	if err == nil && (json.Unmarshal(raw, &m) != nil || m == nil) {
		err = fmt.Errorf("--claims %s: not a JSON object", file)
	}
	if err != nil {
		return nil, usage(err)
	}
	return raw, nil
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
		return req, usage(fmt.Errorf("%q is no absolute URL, such as https://api.example.com/v1/orders/7", req.URL))
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

func verdictRows(t *tabwriter.Writer, v program.Verdict) {
	kind := v.Kind
	if v.Shadow {
		kind += ", shadow"
	}
	word := v.Verdict
	if v.Reason != "" {
		word += fmt.Sprintf(" with %d %s", v.Status, v.Reason)
	}
	row(t, "POLICY", fmt.Sprintf("%s (%s): %s: %s", v.Policy, kind, word, v.Why))
	row(t, "  fails "+v.Fails, v.OnFailure)
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
	for _, v := range e.Verdicts {
		verdictRows(t, v)
	}
	for _, u := range e.Upstreams {
		row(t, "UPSTREAM", fmt.Sprintf("%s (weight %d)", u.Upstream, u.Weight))
		for _, name := range slices.Sorted(maps.Keys(u.Rules)) {
			row(t, "  "+name, u.Rules[name])
		}
	}
}
