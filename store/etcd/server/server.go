// Package server hosts one member of an etcd cluster in this process. Only the process whose whole job that is links it.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/trust"
)

// Config is one member.
type Config struct {
	Name string
	Dir  string         // its data; a member with data goes on from there
	Addr netip.AddrPort // for clients
	Peer netip.AddrPort // for the other members
	// Cluster names all members with their peer addresses, itself included. Empty means that it is alone.
	Cluster map[string]netip.AddrPort
	// Cert, Key and CA are PEM files: the member's identity with the role etcd and its addresses as SANs.
	Cert, Key, CA string
	// Heartbeat and Election are the timing of the cluster; 0 means 250 ms and ten times Heartbeat.
	Heartbeat, Election time.Duration
	// Quota is the size of the database, in bytes, at which writes are refused; 0 means 512 MiB.
	Quota int64
	// Keep is how often the member looks whether room must be made; 0 means 10 s.
	Keep time.Duration
	// Ready is called once the member serves; nil is nobody.
	Ready func() `json:"-"`
	// Log gets the member's errors, and its warnings at debug level; nil is silent.
	Log *slog.Logger `json:"-"`
}

const (
	defaultQuota = 512 << 20
	// keepRevisions is the history that auto-compaction leaves to watches that reconnect.
	keepRevisions = "1000"
	snapshotCount = 5000 // entries of the log between snapshots
	defaultKeep   = 10 * time.Second
)

// Run serves until ctx ends or the member fails.
func Run(ctx context.Context, c Config) error {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Quota == 0 {
		c.Quota = defaultQuota
	}
	if c.Keep == 0 {
		c.Keep = defaultKeep
	}
	member, err := startEtcd(c.embed())
	if err != nil {
		free, unknown := durable.Free(filepath.Dir(c.Dir))
		return fmt.Errorf("etcd %s: %w%s", c.Name, err, c.remedy(err, unknown == nil && free < Room))
	}
	defer member.Close()
	keeping, kept := context.WithCancel(ctx)
	var keepers sync.WaitGroup
	defer keepers.Wait() // before the member closes its file
	defer kept()
	ready := member.Server.ReadyNotify()
	for {
		select {
		case <-ready:
			ready = nil
			keepers.Go(func() {
				(&keeper{name: c.Name, quota: c.Quota, server: member.Server, log: c.Log}).run(keeping, c.Keep)
			})
			if c.Ready != nil {
				c.Ready()
			}
		case err := <-member.Err():
			return fmt.Errorf("etcd %s: %w", c.Name, err)
		case <-member.Server.StopNotify():
			return fmt.Errorf("etcd %s: %w", c.Name, errors.New("the member has stopped by itself"))
		case <-ctx.Done():
			return nil
		}
	}
}

// Room is what a member takes of its disk to begin with, in bytes: a segment of its log, and its database.
const Room = 80 << 20

// startEtcd gives an error where etcd panics, as it does on files that it can't read.
func startEtcd(c *embed.Config) (member *embed.Etcd, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("its wal or database can't be read: %v", p)
		}
	}()
	return embed.StartEtcd(c)
}

// remedy says what can be done about a directory that is gone or damaged, or a disk that is full; etcd's own words don't.
func (c Config) remedy(err error, full bool) string {
	switch {
	case strings.Contains(err.Error(), "has already been bootstrapped"):
		return fmt.Sprintf(" (%s is empty, but the other members know this one: put a backup of all members back, or take it out of the cluster and add it anew)", c.Dir)
	case !strings.Contains(err.Error(), "wal"):
		return ""
	case full:
		return fmt.Sprintf(" (the disk of %s is full: a member takes %d MiB at least)", c.Dir, Room>>20)
	case len(c.Cluster) > 1:
		return fmt.Sprintf(" (%s is damaged: put a backup of all members back, or take this one out of the cluster and add it anew)", c.Dir)
	}
	return fmt.Sprintf(" (%s is damaged: move it away; the store of a region begins empty and is filled again)", c.Dir)
}

func (c Config) embed() *embed.Config {
	if c.Heartbeat == 0 {
		c.Heartbeat = 250 * time.Millisecond
	}
	if c.Election == 0 {
		c.Election = 10 * c.Heartbeat
	}
	if len(c.Cluster) == 0 {
		c.Cluster = map[string]netip.AddrPort{c.Name: c.Peer}
	}
	e := embed.NewConfig()
	e.Name, e.Dir = c.Name, c.Dir
	e.ListenClientUrls, e.AdvertiseClientUrls = []url.URL{https(c.Addr)}, []url.URL{https(c.Addr)}
	e.ListenPeerUrls, e.AdvertisePeerUrls = []url.URL{https(c.Peer)}, []url.URL{https(c.Peer)}
	e.InitialCluster, e.InitialClusterToken = c.members(), "cellgate"
	e.TickMs, e.ElectionMs = uint(c.Heartbeat.Milliseconds()), uint(c.Election.Milliseconds())
	e.QuotaBackendBytes = c.Quota
	e.AutoCompactionMode, e.AutoCompactionRetention = embed.CompactorModeRevision, keepRevisions
	e.SnapshotCount = snapshotCount
	e.EnableGRPCGateway = false
	e.TlsMinVersion = "TLS1.3"
	// Common names are roles (trust.CA.Issue), which is all that etcd can check. Source addresses say nothing.
	e.ClientTLSInfo = c.tls(trust.RoleController, trust.RoleEtcd)
	e.PeerTLSInfo = c.tls(trust.RoleEtcd)
	e.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zapTo(c.Log.With("etcd", c.Name)))
	return e
}

func (c Config) tls(roles ...trust.Role) transport.TLSInfo {
	info := transport.TLSInfo{CertFile: c.Cert, KeyFile: c.Key, TrustedCAFile: c.CA, ClientCertAuth: true, SkipClientSANVerify: true}
	for _, role := range roles {
		info.AllowedCNs = append(info.AllowedCNs, string(role))
	}
	return info
}

func (c Config) members() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(c.Cluster)) {
		u := https(c.Cluster[name])
		all = append(all, name+"="+u.String())
	}
	return strings.Join(all, ",")
}

func https(addr netip.AddrPort) url.URL { return url.URL{Scheme: "https", Host: addr.String()} }
