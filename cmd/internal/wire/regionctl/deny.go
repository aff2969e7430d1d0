package regionctl

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/regionctl"
)

func denyCommand(w *where) *cobra.Command {
	cmd := group("deny", "Shut out users, tokens, API keys and routes at once, without publishing anything")
	cmd.Long = `Shut out users, tokens, API keys and routes within two seconds, on every node of a region or of all. It needs neither the
leader nor the global store. Denied callers are answered 401 with the reason "denied", denied routes 503 with "route_denied".`
	cmd.AddCommand(
		denyChange(w, "add", "/v1/denials", "Deny a user, a token, an API key or a route",
			"  regionctl deny add --user alice --reason 'account taken over'\n"+
				"  regionctl deny add --token 7f9c1b --for 1h --reason 'token leaked' --region eu-west\n"+
				"  regionctl deny add --key sha256:9f86d081884c7d65 --reason 'key in a public repository'\n"+
				"  regionctl deny add --route orders-export --reason 'overloads the database' --for 2h --confirm"),
		denyChange(w, "remove", "/v1/denials:remove", "Take a denial back",
			"  regionctl deny remove --user alice --reason 'account is its owner’s again'"),
		denyList(w),
	)
	return cmd
}

// subject is what --user, --token, --key and --route name: exactly one of them.
type subject struct{ user, token, key, route string }

func (s *subject) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&s.user, "user", "", "`SUBJECT` (sub) of the user's tokens")
	cmd.Flags().StringVar(&s.token, "token", "", "`ID` (jti) of one token")
	cmd.Flags().StringVar(&s.key, "key", "", "`HASH` of an API key: sha256: and at least its first 16 hexadecimal digits; - reads the key itself from standard input")
	cmd.Flags().StringVar(&s.route, "route", "", "`ID` of a route")
}

// fill puts the subject into the request.
func (s *subject) fill(req *regionctl.DenyRequest, stdin io.Reader) error {
	n := 0
	for kind, id := range map[string]string{"user": s.user, "token": s.token, "key": s.key, "route": s.route} {
		if id != "" {
			req.Kind, req.ID = kind, id
			n++
		}
	}
	if n != 1 {
		return usage(errors.New("exactly one of --user, --token, --key and --route is required"))
	}
	if req.Kind != "key" || req.ID != "-" {
		if req.Kind == "key" && !strings.HasPrefix(req.ID, "sha256:") {
			return usage(errors.New("--key takes a hash, sha256:…; a key itself is read from standard input with --key -, so that it shows in no list of processes"))
		}
		return nil
	}
	line, err := bufio.NewReader(io.LimitReader(stdin, 4096)).ReadString('\n')
	if key := strings.TrimSpace(line); key != "" && (err == nil || errors.Is(err, io.EOF)) {
		req.ID = auth.HashKey(key)
		return nil
	}
	return usage(errors.New("--key -: standard input holds no key"))
}

func denyChange(w *where, verb, path, short, example string) *cobra.Command {
	var out output
	var of subject
	var req regionctl.DenyRequest
	var life time.Duration
	var region string
	cmd := &cobra.Command{
		Use: verb + " (--user SUBJECT|--token ID|--key HASH|--route ID) --reason WHY", Short: short, Example: example, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.check(); err != nil {
				return err
			}
			if err := of.fill(&req, cmd.InOrStdin()); err != nil {
				return err
			}
			if strings.TrimSpace(req.Reason) == "" {
				return usage(errors.New("--reason WHY is required"))
			}
			if life < 0 || life == 0 && cmd.Flags().Changed("for") {
				return usage(errors.New("--for must be longer than nothing"))
			}
			if life > 0 {
				req.For = life.String()
			}
			req.Region = cells.RegionID(region)
			c, err := w.client()
			if err != nil {
				return err
			}
			d, err := post[regionctl.Denied](cmd.Context(), c, path, req)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), d, func(t *tabwriter.Writer) { deniedTable(t, d) })
		},
	}
	out.flags(cmd)
	of.flags(cmd)
	cmd.Flags().StringVar(&req.Issuer, "issuer", "", "of a user or token: `URL` of the issuer (absent: any)")
	cmd.Flags().StringVar(&region, "region", "", "only in this `REGION` (absent: everywhere)")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why (`WHY`), required")
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "say what would be, change nothing")
	if verb == "add" {
		cmd.Flags().DurationVar(&life, "for", 0, "how long it holds (absent: users and tokens as long as the policies let a token live, else 7 days; keys 30 days, routes 24 hours)")
		cmd.Flags().BoolVar(&req.Confirm, "confirm", false, "deny a route although it carries more than 1% of a cell's requests")
	}
	return cmd
}

func deniedTable(t *tabwriter.Writer, d regionctl.Denied) {
	word, would := "denied", ""
	if d.Entry.Removed {
		word = "no longer denied"
	}
	if d.DryRun {
		would = "would be "
	}
	place := "everywhere"
	if d.Entry.Region != "" {
		place = "in " + string(d.Entry.Region)
	}
	until := ""
	if !d.Entry.Removed {
		until = ", until " + moment(d.Entry.Expires)
	}
	row(t, fmt.Sprintf("%s %s: %s%s %s%s", d.Entry.Kind, d.Entry.ID, would, word, place, until))
	reachedTable(t, d.Reached)
	for _, w := range d.Warnings {
		row(t, "warning: "+w)
	}
}

// reachedTable says which regions took what went through the regions.
func reachedTable(t *tabwriter.Writer, reached []regionctl.RegionReach) {
	for _, r := range reached {
		switch {
		case !r.Taken:
			row(t, fmt.Sprintf("  region %s: not reached, it is told until it hears: %s", r.Region, r.Why))
		case r.Why != "":
			row(t, fmt.Sprintf("  region %s: taken; %s", r.Region, r.Why))
		default:
			row(t, fmt.Sprintf("  region %s: taken", r.Region))
		}
	}
}

func denyList(w *where) *cobra.Command {
	var region string
	cmd := reading(w, &cobra.Command{Use: "list", Short: "List what is denied", Example: "  regionctl deny list\n  regionctl deny list --region eu-west -o json", Args: cobra.NoArgs},
		func([]string) (string, error) {
			if region == "" {
				return "/v1/denials", nil
			}
			return "/v1/denials?region=" + url.QueryEscape(region), nil
		}, func(t *tabwriter.Writer, d regionctl.Denials) {
			row(t, "KIND", "ID", "ISSUER", "REGION", "UNTIL", "BY", "REASON")
			for _, e := range d.Entries {
				row(t, e.Kind, e.ID, dash(e.Issuer), dash(string(e.Region)), moment(e.Expires), e.By, e.Reason)
			}
			row(t, fmt.Sprintf("%d of %d", d.Used, d.Limit))
			for _, w := range d.Warnings {
				row(t, "warning: "+w)
			}
		})
	cmd.Flags().StringVar(&region, "region", "", "what holds in this `REGION`")
	return cmd
}
