package globalrouter

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/globalrouter/steer"
	"github.com/cellgate/cellgate/health"
)

const exampleZone = `; A zone for globalrouter. The names that the plan steers need no records here.
$ORIGIN gw.test.
$TTL 300
@            IN SOA   ns1 hostmaster 1 3600 600 86400 20
             IN NS    ns1
             IN NS    ns2
             IN CAA   0 issue "ca.example"
ns1          IN A     192.0.2.53
ns2          IN A     198.51.100.53
www          IN CNAME api
docs         IN A     192.0.2.80
             IN AAAA  2001:db8::80
_sip._tcp    IN SRV   10 5 5060 docs
docs         IN HTTPS 1 . alpn="h2,http/1.1"
mail         IN MX    10 docs
note         IN TXT   "served by globalrouter"
`

const exampleGeo = `# PREFIX LOCALITY: clients of the prefix belong to a locality of the plan; the longest prefix wins.
5.2.0.0/16        eu-west
5.2.128.0/20      us-east
2001:db8:2::/48   us-east
`

func exampleCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "example {zone|plan|geo}", Short: "Print a working example of a file format",
		Long: "Print a working example of a file format. The three go together.",
		Example: "  globalrouter example zone >zone; globalrouter example plan >plan; globalrouter example geo >geo\n" +
			"  globalrouter serve --zone zone --plan plan --geo geo --listen 127.0.0.1:5300",
		Args: cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs), ValidArgs: []string{"zone", "plan", "geo"},
		RunE: func(cmd *cobra.Command, args []string) error {
			text, err := example(args[0])
			if err != nil {
				return err
			}
			_, err = fmt.Fprint(cmd.OutOrStdout(), text)
			return err
		},
	}
	return cmd
}

func example(what string) (string, error) {
	switch what {
	case "zone":
		return exampleZone, nil
	case "geo":
		return exampleGeo, nil
	}
	raw, err := json.MarshalIndent(examplePlan(), "", "  ")
	if err != nil {
		return "", fmt.Errorf("example: %w", err)
	}
	return string(raw) + "\n", nil
}

// examplePlan is the first plan of a world of two regions.
func examplePlan() steer.Plan {
	addr, pre := netip.MustParseAddr, netip.MustParsePrefix
	cell := func(id cells.CellID, addrs ...netip.Addr) cells.Cell {
		return cells.Cell{ID: id, HTTPS: 443, Limit: 2_000_000, Addresses: addrs}
	}
	in := steer.Inputs{
		Topology: cells.Topology{
			Regions: []cells.Region{
				{ID: "eu-west", Clients: []netip.Prefix{pre("5.1.0.0/16"), pre("2001:db8:1::/48")}, Cells: []cells.Cell{
					cell("eu-west/a", addr("192.0.2.1"), addr("2001:db8::1")), cell("eu-west/b", addr("192.0.2.2"), addr("2001:db8::2")),
				}},
				{ID: "us-east", Clients: []netip.Prefix{pre("6.1.0.0/16")}, Cells: []cells.Cell{cell("us-east/a", addr("198.51.100.1"), addr("2001:db8::3"))}},
			},
			LatencyMS: [][]int32{{5, 80}, {80, 5}},
		},
		Names: map[string]string{"api.gw.test": "public", "gw.test": "public"}, TTL: 20 * time.Second, Epoch: 1,
		Health: map[cells.CellID]health.Status{},
	}
	return steer.Step(steer.State{}, in, time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)).Plan
}
