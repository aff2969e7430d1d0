// Package member hosts one member of an etcd cluster in this process. It is linked only where an etcd is hosted.
//
//	err := member.Run(ctx, member.Config{Name: "eu-west", Dir: dir, Client: …, Peer: …, Cluster: …}, log)
package member

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"sort"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

// Config of a member. All connections are mutual TLS under CA; a client's certificate must have one of the common names
// in Clients, a peer's one of those in Peers.
type Config struct {
	Name   string         `json:"name"`
	Dir    string         `json:"dir"`
	Client netip.AddrPort `json:"client"`
	Peer   netip.AddrPort `json:"peer"`
	// Cluster maps every member's name to its peer address, this one's too. Only a member's first start reads it.
	Cluster map[string]netip.AddrPort `json:"cluster"`
	Token   string                    `json:"token"` // names the cluster, so that two never merge
	Cert    string                    `json:"cert"`  // PEM files
	Key     string                    `json:"key"`
	CA      string                    `json:"ca"`
	Clients []string                  `json:"clients"`
	Peers   []string                  `json:"peers"`
	// Quota bounds the database in bytes; 0 = 256 MiB.
	Quota int64 `json:"quota,omitempty"`
	// Retention is how much history is kept for watches; 0 = 5 minutes.
	Retention time.Duration `json:"retention_ns,omitempty"`
}

// Run serves until ctx ends, or until the member fails.
func Run(ctx context.Context, c Config, log *slog.Logger) error {
	e, err := embed.StartEtcd(c.embed())
	if err != nil {
		return fmt.Errorf("etcd %s: %w", c.Name, err)
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
		log.Info("etcd serves", "member", c.Name, "clients", c.Client)
	case err := <-e.Err():
		return fmt.Errorf("etcd %s: %w", c.Name, err)
	case <-e.Server.StopNotify():
		return fmt.Errorf("etcd %s stopped before it was ready", c.Name)
	case <-ctx.Done():
		return nil
	}
	select {
	case err := <-e.Err():
		return fmt.Errorf("etcd %s: %w", c.Name, err)
	case <-e.Server.StopNotify():
		return fmt.Errorf("etcd %s stopped by itself", c.Name)
	case <-ctx.Done():
		return nil
	}
}

func (c Config) embed() *embed.Config {
	e := embed.NewConfig()
	e.Name, e.Dir = c.Name, c.Dir
	e.ListenClientUrls, e.AdvertiseClientUrls = urls(c.Client), urls(c.Client)
	e.ListenPeerUrls, e.AdvertisePeerUrls = urls(c.Peer), urls(c.Peer)
	e.InitialCluster = c.cluster()
	e.InitialClusterToken = c.Token
	e.ClientTLSInfo = c.tls(c.Clients)
	e.PeerTLSInfo = c.tls(c.Peers)
	e.QuotaBackendBytes = c.Quota
	if c.Quota == 0 {
		e.QuotaBackendBytes = 256 << 20
	}
	retention := c.Retention
	if retention == 0 {
		retention = 5 * time.Minute
	}
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModePeriodic, retention.String()
	e.SnapshotCount, e.SnapshotCatchUpEntries = 5000, 1000 // small values: memory before replay speed
	e.MaxRequestBytes = 2 << 20
	e.Logger, e.LogLevel, e.LogOutputs = "zap", "warn", []string{"stderr"}
	return e
}

func (c Config) cluster() string {
	var all []string
	for name, addr := range c.Cluster {
		all = append(all, name+"=https://"+addr.String())
	}
	sort.Strings(all)
	return strings.Join(all, ",")
}

func (c Config) tls(names []string) transport.TLSInfo {
	return transport.TLSInfo{
		CertFile: c.Cert, KeyFile: c.Key, ClientCertFile: c.Cert, ClientKeyFile: c.Key,
		TrustedCAFile: c.CA, ClientCertAuth: true, AllowedCNs: names,
	}
}

func urls(a netip.AddrPort) []url.URL {
	return []url.URL{{Scheme: "https", Host: a.String()}}
}
