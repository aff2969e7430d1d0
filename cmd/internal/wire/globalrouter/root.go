// Package globalrouter wires the globalrouter binary: alone from files, or as a router of a world.
package globalrouter

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/problem"
)

// Main runs one command line and gives its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	return cli.Main(cli.Root("globalrouter", "Serve DNS that steers clients to cells", serveCommand(), exampleCommand()), args, stdout, stderr)
}

// options are the flags of serve.
type options struct {
	bootstrap       string
	zone, plan, geo string
	listen          []string
	dot, doh, doq   string
}

const serveLong = `Serve one zone on UDP and TCP.

Alone, from files: --zone is an RFC 1035 master file, --plan a steering plan (without it all names are static), and --geo
maps client prefixes to the plan's localities. SIGHUP reads them again; a bad file is refused and the old ones stay.
In a world: --bootstrap says who this process is and where its controllers are; the plan comes from them.`

func serveCommand() *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use: "serve", Short: "Run the DNS server", Long: serveLong, Args: cobra.NoArgs,
		Example: "  globalrouter serve --zone gw.test.zone --plan plan.json --geo geo.txt --listen 127.0.0.1:5300\n" +
			"  globalrouter serve --bootstrap /etc/cellgate/globalrouter.json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGTERM, os.Interrupt)
			defer stop()
			return o.serve(ctx, slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), nil)), cmd.ErrOrStderr())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.bootstrap, "bootstrap", "", "bootstrap `FILE` of this process in a world (JSON)")
	f.StringVar(&o.zone, "zone", "", "master `FILE` of the zone (RFC 1035)")
	f.StringVar(&o.plan, "plan", "", "steering plan `FILE` (JSON); absent = all names are static")
	f.StringVar(&o.geo, "geo", "", "`FILE` of lines \"PREFIX LOCALITY\", beside the plan's own prefixes")
	f.StringArrayVar(&o.listen, "listen", nil, "`ADDR` (IP:PORT) to serve on, UDP and TCP; repeatable")
	f.StringVar(&o.dot, "dot", "", "`ADDR` for DNS over TLS (not served yet)")
	f.StringVar(&o.doh, "doh", "", "`ADDR` for DNS over HTTPS (not served yet)")
	f.StringVar(&o.doq, "doq", "", "`ADDR` for DNS over QUIC (not served yet)")
	return cmd
}

func (o *options) serve(ctx context.Context, log *slog.Logger, stderr io.Writer) error {
	for flag, v := range map[string]string{"dot": o.dot, "doh": o.doh, "doq": o.doq} {
		if v != "" {
			return cli.Usage(fmt.Errorf("--%s: this version serves UDP and TCP only", flag))
		}
	}
	alone := o.zone != "" || o.plan != "" || o.geo != "" || len(o.listen) > 0
	switch {
	case o.bootstrap != "" && alone:
		return cli.Usage(errors.New("--bootstrap goes with none of --zone, --plan, --geo, --listen"))
	case o.bootstrap != "":
		return inWorld(ctx, o.bootstrap, log)
	case o.zone == "":
		return cli.Usage(errors.New("--zone FILE (or --bootstrap FILE) is missing"))
	case len(o.listen) == 0:
		return cli.Usage(errors.New("--listen ADDR is missing"))
	case o.geo != "" && o.plan == "":
		return cli.Usage(errors.New("--geo maps clients to the localities of a plan: --plan FILE is missing"))
	}
	var addrs []netip.AddrPort
	for _, l := range o.listen {
		a, err := netip.ParseAddrPort(l)
		if err != nil {
			return cli.Usage(fmt.Errorf("--listen %s: not IP:PORT", l))
		}
		addrs = append(addrs, a)
	}
	return o.printed(o.standalone(ctx, addrs, log), stderr)
}

func problems(n int) string {
	if n == 1 {
		return "1 problem"
	}
	return fmt.Sprintf("%d problems", n)
}

// printed puts the problems of a document on lines of their own, as every tool that prints FILE:LINE does.
func (o *options) printed(err error, stderr io.Writer) error {
	if list := problem.List(nil); errors.As(err, &list) {
		fmt.Fprintln(stderr, list.Error())
		return errors.New(problems(len(list)))
	}
	return err
}
