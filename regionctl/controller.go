// Package regionctl is the controller of one region: it keeps the region's copy of what was published, talks to the
// region's processes, answers operators, and stands for leader of the world. The leader runs rollouts and the steering plan.
//
//	c, err := regionctl.New(regionctl.Options{…})
//	err = c.Run(ctx)
//
// Every part follows the same beat: read, step a pure decision, store by compare-and-set, then act. What runs in a region
// goes on without the global store; what an operator reads comes from memory; what he orders goes to the global store.
package regionctl

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
	"github.com/cellgate/cellgate/regionctl/fleet"
	"github.com/cellgate/cellgate/regionctl/quota"
	"github.com/cellgate/cellgate/regionctl/rollout"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/trust"
)

// Options are what a controller is made of. Zero timings are production's; everything else is needed unless it says otherwise.
type Options struct {
	World    string
	ID       cells.NodeID
	Region   cells.RegionID
	Topology cells.Topology
	Zone     string
	// SteeredNames are answered by the plan beside the hosts of published tenants; may be empty.
	SteeredNames []string
	// PermitLoopback lets upstreams and identity URLs be on loopback.
	PermitLoopback bool
	AdminTokenHash string // "sha256:" + hex; empty = certificates only

	TTL, Bake, Ramp             time.Duration // 20 s, 2 min, 10 min
	DownAfter, UpAfter, FlapCap time.Duration // health's defaults
	OnInsufficient              string        // "hold" (default) or "proceed-if-synthetics-pass"
	// Beat is how often the leader looks at the rollout and the evacuations; 0 = 1 s.
	Beat time.Duration
	// DenyBeat is how often nodes are told that their denylist is the newest still; 0 = 15 s.
	DenyBeat time.Duration

	Global, Regional store.Store
	Signer           *trust.Signer
	Roots            *trust.Roots
	APICert          func(*tls.ClientHelloInfo) (*tls.Certificate, error) // of the API server
	// NodeAPI and API are listening; Run closes them.
	NodeAPI, API net.Listener
	// Peers are the node APIs of the other regions' controllers; empty for a single region.
	Peers map[cells.RegionID]string
	// Quota has the buckets of all rates; nil = they are in the controllers' memory. All controllers of a world have the same.
	Quota nodeapi.Grantor
	Now   func() time.Time
	Log   *slog.Logger
}

// Controller is one region's controller.
type Controller struct {
	opt Options
	log *slog.Logger

	intent *mirror // of the global store
	copied *mirror // of the region's store

	globalBlobs, regionalBlobs *store.Blobs
	recent                     recent
	plans                      plans

	board    *fleet.Board
	evidence *fleet.Evidence
	nodes    *fleet.Server
	verdicts verdicts
	names    names
	// postedOverrides is what was last shown. Written by: announceOrders.
	postedOverrides posted
	// copiedBefore is the target before the region's copy. Written by: replicateTargets, as copiesSwept.
	copiedBefore *rollout.Target
	copiesSwept  time.Time
	ledger       *ledger
	ordering     sync.Mutex // one regional order at a time: without the region's store it alone keeps the safety rules
	couriers     map[cells.RegionID]*fleet.Courier
	quota        *quota.Service
	lives        lifetimes
	keys         issuedKeys
	consumers    atomic.Pointer[consumers] // of the live version
	alarmed      map[alarm]bool            // expiries told. Written by: announceOrders

	leading                  atomic.Bool
	globalSeen, regionalSeen reach
	space                    space
	lineage                  lineage
	publishing               chan struct{} // bounds publications compiled at once
	started                  time.Time
}

// New checks the options and makes a controller that does nothing yet.
func New(o Options) (*Controller, error) {
	if err := o.Topology.Validate(); err != nil {
		return nil, err
	}
	o.TTL, o.Bake, o.Ramp = or(o.TTL, 20*time.Second), or(o.Bake, 2*time.Minute), or(o.Ramp, 10*time.Minute)
	o.Beat, o.DenyBeat = or(o.Beat, time.Second), or(o.DenyBeat, 15*time.Second)
	if o.OnInsufficient == "" {
		o.OnInsufficient = "hold"
	}
	c := &Controller{
		opt: o, log: o.Log,
		intent: newMirror(store.PrefixIntent), copied: newMirror(store.PrefixCopy),
		globalBlobs: store.NewBlobs(o.Global), regionalBlobs: store.NewBlobs(o.Regional),
		board: fleet.NewBoard(), evidence: fleet.NewEvidence(o.Region, o.Now),
		publishing: make(chan struct{}, maxPublishing),
		ledger:     newLedger(), alarmed: map[alarm]bool{},
		started: o.Now(),
	}
	born := time.Now()
	c.quota = quota.New(quota.Options{Region: o.Region, Topology: o.Topology, Now: o.Now, Backed: o.Quota != nil, Clock: func() int64 { return time.Since(born).Nanoseconds() }})
	c.nodes = fleet.NewServer(fleet.Config{
		World: o.World, Region: o.Region, Board: c.board, Evidence: c.evidence, Blobs: c.blob,
		Leader: c.leading.Load, Identify: identify, Seen: c.tellSeen, Now: o.Now, Log: o.Log, Orders: c.hearOrders, FindKey: c.findKey, Quota: c.quota,
	})
	var err error
	c.couriers, err = couriersOf(o)
	return c, err
}

func or(d, absent time.Duration) time.Duration {
	if d <= 0 {
		return absent
	}
	return d
}

// Run works until ctx ends. It starts without either store and waits for them; only a broken listener makes it fail.
func (c *Controller) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, part := range []func(context.Context) error{
		func(ctx context.Context) error { return c.intent.run(ctx, c.opt.Global) },
		func(ctx context.Context) error { return c.copied.run(ctx, c.opt.Regional) },
		c.watchReach,
		c.watchSpace,
		c.watchLineage,
		c.replicateTargets,
		c.replicatePlan,
		c.runLifeline,
		c.announceKeys,
		c.reconcile,
		c.serveNodes,
		c.serveAPI,
		(&fleet.Peers{Addresses: c.opt.Peers, TLS: trust.ClientTLS(c.opt.Signer, c.opt.Roots, trust.RoleController), Evidence: c.evidence, Log: c.log}).Run,
		c.judge,
		c.lease,
		c.campaign,
	} {
		g.Go(func() error { return part(ctx) })
	}
	return g.Wait()
}

func (c *Controller) serveNodes(ctx context.Context) error {
	creds := credentials.NewTLS(trust.ServerTLS(c.opt.Signer, c.opt.Roots, trust.RoleProxy, trust.RoleRouter, trust.RoleProber, trust.RoleController))
	srv := grpc.NewServer(grpc.Creds(creds), grpc.MaxRecvMsgSize(8<<20), grpc.ConnectionTimeout(10*time.Second))
	c.nodes.Register(srv)
	down := make(chan struct{})
	unbind := context.AfterFunc(ctx, func() {
		defer close(down)
		c.nodes.Close()
		bye := time.AfterFunc(time.Second, srv.Stop)
		srv.GracefulStop()
		bye.Stop()
	})
	err := srv.Serve(c.opt.NodeAPI)
	if !unbind() {
		<-down
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (c *Controller) serveAPI(ctx context.Context) error {
	srv := &http.Server{
		Handler: c.routes(), ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, WriteTimeout: 2 * time.Minute,
		IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(c.log.Handler(), slog.LevelDebug),
	}
	down := make(chan struct{})
	unbind := context.AfterFunc(ctx, func() {
		defer close(down)
		short, cancel := context.WithTimeout(context.Background(), 2*time.Second)
		defer cancel()
		if srv.Shutdown(short) != nil {
			srv.Close()
		}
	})
	err := srv.Serve(tls.NewListener(c.opt.API, c.apiTLS()))
	if !unbind() {
		<-down
	}
	if ctx.Err() != nil || errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func identify(ctx context.Context) (trust.Identity, error) {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return trust.Identity{}, errors.New("regionctl: no peer")
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return trust.Identity{}, errors.New("regionctl: the peer has no certificate")
	}
	return trust.PeerIdentity(info.State)
}
