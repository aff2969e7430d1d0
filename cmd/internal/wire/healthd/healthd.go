// Package healthd wires the healthd binary: prober, node client and admin server.
package healthd

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/cmd/internal/admin"
	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/cmd/internal/cli"
	"github.com/cellgate/cellgate/health/probe"
	"github.com/cellgate/cellgate/internal/certfile"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/report"
	"github.com/cellgate/cellgate/trust"
)

const long = `Probe every cell of the world through its front door (HTTPS and HTTP, a new connection each second), and each node of
the own region by its own address, and send what is seen to the region's controller. What cannot be seen is unknown, not down:
the verdict is the controllers', from the views of all regions.`

// Main runs one command line and gives its exit code.
func Main(args []string, stdout, stderr io.Writer) int {
	return cli.Main(cli.Root("healthd", "Probe the cells of a world from one region", cli.Serve("healthd", long, serve)), args, stdout, stderr)
}

func serve(ctx context.Context, file string, log *slog.Logger) error {
	boot, err := bootstrap.Load[bootstrap.Prober](file)
	if err != nil {
		return err
	}
	if err := boot.Topology.Validate(); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	signer, err := trust.LoadSigner(boot.Identity.Cert, boot.Identity.Key)
	if err != nil {
		return err
	}
	if id := signer.Identity(); id.Role != trust.RoleProber || id.ID.Region() != boot.Region || id.World != boot.World {
		return fmt.Errorf("%s: the certificate is %s's, not that of a healthd of region %q in world %q", file, id, boot.Region, boot.World)
	}
	roots, err := trust.LoadRoots(boot.Identity.CA)
	if err != nil {
		return err
	}
	edge, err := pool(boot.EdgeCA)
	if err != nil {
		return err
	}

	var client *nodeapi.Client
	prober := probe.New(probe.Options{
		From: boot.Region, Topology: boot.Topology, Host: boot.ProbeHost, Path: boot.ProbePath, Roots: edge, Log: log,
		Send: func(seen []report.Probe) { send(client, log, seen) },
	})
	hello := &nodeapi.Hello{Boot: fmt.Sprintf("%016x", rand.Uint64())}
	client = nodeapi.NewClient(nodeapi.Options{
		Controllers: boot.Controllers, TLS: trust.ClientTLS(signer, roots, trust.RoleController), Log: log,
		Hello:   func() *nodeapi.Hello { return hello },
		Receive: func(d *nodeapi.Down) { receive(d, prober, roots, log) },
	})
	metrics := prometheus.NewRegistry()
	metrics.MustRegister(prober.Collector(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	adm, err := admin.Listen(admin.Options{
		Addr: boot.Admin, CertFile: boot.AdminCert, KeyFile: boot.AdminKey, TokenHash: boot.AdminTokenHash,
		Signer: signer, Roots: roots, Gatherer: metrics, Log: log,
		Ready: func() error {
			if !client.Connected() {
				return errors.New("not attached to a controller")
			}
			return nil
		},
	})
	if err != nil {
		return err
	}
	log.Info("healthd serves", "id", boot.ID, "region", boot.Region, "cells", len(boot.Topology.Cells()), "admin", boot.Admin)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return prober.Run(ctx) })
	g.Go(func() error { return client.Run(ctx) })
	g.Go(func() error { return adm.Run(ctx) })
	g.Go(func() error {
		return certfile.Follow(ctx, log, map[string]certfile.File{"identity": signer, "roots": roots, "admin": adm})
	})
	return g.Wait()
}

func pool(file string) (*x509.CertPool, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("edge_ca: %w", err)
	}
	p := x509.NewCertPool()
	if !p.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("edge_ca: %s holds no PEM certificate", file)
	}
	return p, nil
}

func send(client *nodeapi.Client, log *slog.Logger, seen []report.Probe) {
	raw, err := report.EncodeProbes(seen)
	if err != nil {
		log.Error("a round of probes could not be encoded", "error", err)
		return
	}
	client.Send(&nodeapi.Up{Message: &nodeapi.Up_Probes{Probes: raw}})
}

// receive takes a topology that a controller has signed; a prober is sent nothing else.
func receive(d *nodeapi.Down, prober *probe.Prober, roots *trust.Roots, log *slog.Logger) {
	if d.GetTopology() == nil {
		return
	}
	payload, _, err := roots.Verify("topology", d.GetTopology().GetEnvelope(), time.Now(), trust.RoleController)
	if err != nil {
		log.Warn("refused a topology", "error", err)
		return
	}
	var t cells.Topology
	if err = json.Unmarshal(payload, &t); err == nil {
		err = t.Validate()
	}
	if err != nil {
		log.Warn("refused a topology", "error", err)
		return
	}
	prober.SetTopology(t)
}
