package regionctl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/internal/certfile"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/regionctl"
	"github.com/cellgate/cellgate/regionctl/quota/redis"
	"github.com/cellgate/cellgate/store/etcd"
	"github.com/cellgate/cellgate/trust"
)

func serveCommand() *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "serve --bootstrap FILE", Short: "Run the controller of a region", Example: "  regionctl serve --bootstrap /etc/cellgate/regionctl.json", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if file == "" {
				return usage(errors.New("--bootstrap FILE is required"))
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			return serve(ctx, file, cmd.ErrOrStderr())
		},
	}
	cmd.Flags().StringVar(&file, "bootstrap", "", "`FILE` that says who this controller is and where its stores and peers are")
	return cmd
}

// serve wires the controller: identity, stores, listeners, parts.
func serve(ctx context.Context, file string, stderr io.Writer) error {
	b, err := bootstrap.Load[bootstrap.Controller](file)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewJSONHandler(stderr, nil)).With("id", string(b.ID))
	signer, err := trust.LoadSigner(b.Identity.Cert, b.Identity.Key)
	if err != nil {
		return err
	}
	if id := signer.Identity(); id.Role != trust.RoleController || id.ID != b.ID || id.World != b.World {
		return fmt.Errorf("the certificate is for %s, the bootstrap file for controller %s of %s", id, b.ID, b.World)
	}
	roots, err := trust.LoadRoots(b.Identity.CA)
	if err != nil {
		return err
	}
	cert, err := certfile.Load(b.APICert, b.APIKey)
	if err != nil {
		return fmt.Errorf("API certificate: %w", err)
	}
	nodes, err := net.Listen("tcp", b.NodeAPI.String())
	if err != nil {
		return fmt.Errorf("node API: %w", err)
	}
	defer nodes.Close()
	api, err := net.Listen("tcp", b.API.String())
	if err != nil {
		return fmt.Errorf("API: %w", err)
	}
	defer api.Close()
	toEtcd := trust.ClientTLS(signer, roots, trust.RoleEtcd)
	global, err := etcd.Open(etcd.Config{Endpoints: b.Global, TLS: toEtcd, Log: log.With("store", "global")})
	if err != nil {
		return fmt.Errorf("global store: %w", err)
	}
	defer global.Close()
	regional, err := etcd.Open(etcd.Config{Endpoints: b.Regional, TLS: toEtcd, Log: log.With("store", "regional")})
	if err != nil {
		return fmt.Errorf("regional store: %w", err)
	}
	defer regional.Close()
	backend, err := quotaBackend(b.QuotaRedis)
	if err != nil {
		return err
	}
	c, err := regionctl.New(regionctl.Options{
		World: b.World, ID: b.ID, Region: b.Region, Topology: b.Topology, Zone: b.Zone, SteeredNames: b.SteeredNames,
		PermitLoopback: b.PermitLoopback, AdminTokenHash: b.AdminTokenHash,
		TTL: b.Timing.TTL, Bake: b.Timing.Bake, Ramp: b.Timing.Ramp,
		DownAfter: b.Timing.DownAfter, UpAfter: b.Timing.UpAfter, FlapCap: b.Timing.FlapCap, OnInsufficient: b.Timing.OnInsufficient,
		Global: global, Regional: regional,
		Signer: signer, Roots: roots, APICert: cert.Get, NodeAPI: nodes, API: api, Peers: b.Peers,
		Quota: backend, Now: time.Now, Log: log,
	})
	if err != nil {
		return err
	}
	log.Info("controller started", "region", string(b.Region), "node_api", nodes.Addr().String(), "api", api.Addr().String(), "pid", os.Getpid())
	defer log.Info("controller stopped")
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.Run(ctx) })
	g.Go(func() error {
		return certfile.Follow(ctx, log, map[string]certfile.File{"identity": signer, "roots": roots, "API": cert})
	})
	return g.Wait()
}

// quotaBackend is nil when no server is named.
func quotaBackend(r bootstrap.Redis) (nodeapi.Grantor, error) {
	if r.URL == "" {
		return nil, nil
	}
	var password func() (string, error)
	if r.PasswordFile != "" {
		password = func() (string, error) {
			raw, err := os.ReadFile(r.PasswordFile)
			return strings.TrimSpace(string(raw)), err
		}
	}
	return redis.New(r.URL, password)
}
