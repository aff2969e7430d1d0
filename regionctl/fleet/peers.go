package fleet

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/nodeapi"
)

// maxRollup bounds one roll-up message: the reports of a region's nodes.
const maxRollup = 64 << 20

// silence is how long a peer may send nothing before its stream is opened anew; it sends once a second.
const silence = 5 * time.Second

// Peers listens to the roll-ups of every other region's controller, so that each controller can answer for all nodes
// and any can lead.
type Peers struct {
	Addresses map[cells.RegionID]string
	TLS       *tls.Config
	Evidence  *Evidence
	Log       *slog.Logger
}

// Run listens until ctx ends.
func (p *Peers) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for region, addr := range p.Addresses {
		g.Go(func() error { return p.follow(ctx, region, addr) })
	}
	return g.Wait()
}

// follow keeps one stream open, with pauses of 0.2 to 2 seconds between tries.
func (p *Peers) follow(ctx context.Context, region cells.RegionID, addr string) error {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(p.TLS.Clone())),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxRollup)), grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: 2 * time.Second}))
	if err != nil {
		return fmt.Errorf("fleet: peer %s: %w", region, err)
	}
	defer conn.Close()
	client, pause, lost := nodeapi.NewControllerClient(conn), 200*time.Millisecond, true
	for {
		n, err := p.listen(ctx, client, region, lost)
		if ctx.Err() != nil {
			return nil
		}
		if n > 0 {
			pause, lost = 200*time.Millisecond, false
		}
		if !lost {
			p.Log.Warn("peer controller lost", "region", string(region), "err", err)
			lost = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause + rand.N(pause)):
		}
		conn.ResetConnectBackoff()
		pause = min(2*pause, time.Second)
	}
}

// listen hears one stream to its end and says how many roll-ups came.
func (p *Peers) listen(ctx context.Context, client nodeapi.ControllerClient, region cells.RegionID, lost bool) (n int, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	quiet := time.AfterFunc(silence, cancel)
	defer quiet.Stop()
	stream, err := client.Rollups(ctx, &nodeapi.RollupsRequest{})
	if err != nil {
		return 0, err
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return n, err
		}
		quiet.Reset(silence)
		if cells.RegionID(r.Region) != region {
			return n, fmt.Errorf("fleet: the peer at %s's address speaks for %q", region, r.Region)
		}
		if err := p.Evidence.hearPeer(region, r); err != nil {
			return n, err
		}
		if n++; n == 1 && lost {
			p.Log.Info("peer controller heard", "region", string(region))
		}
	}
}
