// Package capacityd wires the capacityd binary: planner, the controllers' API and the admin server.
package capacityd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/capacity/planner"
	"github.com/cellgate/cellgate/cmd/internal/admin"
	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/internal/certfile"
	"github.com/cellgate/cellgate/trust"
)

const long = `Read the world's status from the controllers, keep a bounded history of it in data_dir, and show on the admin address:
/headroom   headroom of every cell, every region and the globe, and what the loss of each would come to (JSON; CSV with ?format=csv)
/history    the history as JSON lines
/metrics    the same for Prometheus
Nothing depends on this process to serve.`

// Main runs one command line and gives its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	return cli.Main(cli.Root("capacityd", "Watch headroom and what losses would come to", cli.Serve("capacityd", long, serve)), args, stdout, stderr)
}

func serve(ctx context.Context, file string, log *slog.Logger) error {
	boot, err := bootstrap.Load[bootstrap.Planner](file)
	if err != nil {
		return err
	}
	if boot.DataDir == "" {
		return fmt.Errorf("%s: %w", file, errors.New("data_dir is missing"))
	}
	signer, err := trust.LoadSigner(boot.Identity.Cert, boot.Identity.Key)
	if err != nil {
		return err
	}
	if id := signer.Identity(); id.Role != trust.RolePlanner || id.World != boot.World {
		return fmt.Errorf("%s: the certificate is %s's, not that of a capacityd in world %q", file, id, boot.World)
	}
	roots, err := trust.LoadRoots(boot.Identity.CA)
	if err != nil {
		return err
	}
	api, err := planner.NewAPI(boot.API, boot.APICA, boot.APIToken)
	if err != nil {
		return err
	}
	defer api.Close()
	history, err := planner.OpenHistory(boot.DataDir, 0)
	if err != nil {
		return err
	}
	defer history.Close()
	plan := planner.New(planner.Options{Read: api.Read, History: history, Log: log})
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(plan.Collector(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	adm, err := admin.Listen(admin.Options{
		Addr: boot.Admin, CertFile: boot.AdminCert, KeyFile: boot.AdminKey, TokenHash: boot.AdminTokenHash,
		Signer: signer, Roots: roots, Ready: plan.Ready, Gatherer: metrics, Pages: plan.Pages(), Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("capacityd serves", "id", boot.ID, "admin", boot.Admin, "api", boot.API)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return plan.Run(ctx) })
	g.Go(func() error { return adm.Run(ctx) })
	g.Go(func() error {
		return certfile.Follow(ctx, log, map[string]certfile.File{"identity": signer, "roots": roots, "admin": adm})
	})
	return g.Wait()
}
