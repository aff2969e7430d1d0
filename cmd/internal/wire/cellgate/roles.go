package cellgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/spf13/cobra"

	"github.com/cellgate/cellgate/store/etcd/server"
)

// serveRole is the hidden command under which the supervisor runs a role of this executable.
func serveRole[C any](run func(context.Context, C, *slog.Logger) error) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "serve", Hidden: true, Args: cobra.NoArgs, Short: "run as a process of a world",
		RunE: func(cmd *cobra.Command, _ []string) error {
			raw, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			var c C
			if err := json.Unmarshal(raw, &c); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
			return run(cmd.Context(), c, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil)))
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "configuration `file`")
	_ = cmd.MarkFlagRequired("config") // the flag exists
	return cmd
}

func etcdCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "etcd", Hidden: true, Short: "one member of an etcd cluster"}
	cmd.AddCommand(serveRole(runEtcd))
	return cmd
}

// etcdConfig starts one member of an etcd cluster.
type etcdConfig struct {
	Name    string                    `json:"name"`
	Dir     string                    `json:"dir"`
	Client  netip.AddrPort            `json:"client"`
	Peer    netip.AddrPort            `json:"peer"`
	Cluster map[string]netip.AddrPort `json:"cluster"` // all members' peer addresses
	Cert    string                    `json:"cert"`    // PEM files
	Key     string                    `json:"key"`
	CA      string                    `json:"ca"`
}

// etcdGoodbye is how long a member may take to leave. Its log is on disk after every write, so cutting that loses nothing,
// and a member that was the last of its cluster would wait for others.
const etcdGoodbye = time.Second

// runEtcd elects faster than members in different regions could: here all are on one machine.
func runEtcd(ctx context.Context, c etcdConfig, log *slog.Logger) error {
	ended := make(chan error, 1)
	go func() {
		ended <- server.Run(ctx, server.Config{
			Name: c.Name, Dir: c.Dir, Addr: c.Client, Peer: c.Peer, Cluster: c.Cluster,
			Cert: c.Cert, Key: c.Key, CA: c.CA,
			Heartbeat: 150 * time.Millisecond, Election: 1500 * time.Millisecond,
			Ready: func() { log.Info("etcd serves", "clients", c.Client) }, Log: log,
		})
	}()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(etcdGoodbye):
		return nil
	}
}

func idpCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "idp", Hidden: true, Short: "the sample identity provider"}
	cmd.AddCommand(serveRole(runIDP))
	return cmd
}

// idpConfig starts the sample identity provider. Tokens are minted by `cellgate up`; here are only the public keys.
type idpConfig struct {
	Listen netip.AddrPort `json:"listen"`
	Key    string         `json:"key"` // PEM file of the signing key
	// More is a file with keys (RFC 7517, section 5) that are published beside it while the file is there.
	More string `json:"more,omitempty"`
}

func runIDP(ctx context.Context, c idpConfig, log *slog.Logger) error {
	raw, err := os.ReadFile(c.Key)
	if err != nil {
		return err
	}
	key, err := parseIDPKey(c.Key, raw)
	if err != nil {
		return err
	}
	kid, err := keyID(&key.PublicKey)
	if err != nil {
		return err
	}
	set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: kid, Algorithm: "ES256", Use: "sig"}}}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /keys", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Cache-Control", "max-age=300")
		w.Header().Set("Content-Type", "application/jwk-set+json")
		all := set
		if raw, err := os.ReadFile(c.More); err == nil {
			var more jose.JSONWebKeySet
			if err := json.Unmarshal(raw, &more); err != nil {
				log.Warn("keys are no key set", "file", c.More, "error", err)
			}
			all.Keys = append(slices.Clone(set.Keys), more.Keys...)
		}
		_ = json.NewEncoder(w).Encode(all) // the client's connection is all that can fail
	})
	return serveHTTP(ctx, log, site{c.Listen, mux})
}

// site is a handler at an address.
type site struct {
	listen  netip.AddrPort
	handler http.Handler
}

// serveHTTP serves all sites until ctx ends, then lets exchanges finish for five seconds.
func serveHTTP(ctx context.Context, log *slog.Logger, sites ...site) error {
	failed := make(chan error, len(sites))
	var servers []*http.Server
	for _, s := range sites {
		ln, err := new(net.ListenConfig).Listen(ctx, "tcp", s.listen.String())
		if err != nil {
			return err
		}
		srv := &http.Server{
			Handler: s.handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
			MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		}
		servers = append(servers, srv)
		go func() { failed <- srv.Serve(ln) }()
		log.Info("serving", "address", s.listen)
	}
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	for _, srv := range servers {
		_ = srv.Shutdown(ending) // what doesn't end in time is cut
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}
