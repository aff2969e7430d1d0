package fleet

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/nodeapi"
)

// Courier takes orders to the controller of another region.
type Courier struct {
	Region cells.RegionID
	client nodeapi.ControllerClient
	conn   *grpc.ClientConn
}

// NewCourier makes one; it connects when there is something to take.
func NewCourier(region cells.RegionID, addr string, tls *tls.Config) (*Courier, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(credentials.NewTLS(tls.Clone())), grpc.WithNoProxy(),
		grpc.WithConnectParams(grpc.ConnectParams{MinConnectTimeout: time.Second, Backoff: backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond}}))
	if err != nil {
		return nil, fmt.Errorf("fleet: courier to %s: %w", region, err)
	}
	return &Courier{Region: region, client: nodeapi.NewControllerClient(conn), conn: conn}, nil
}

// Take delivers the orders, or says why not.
func (c *Courier) Take(ctx context.Context, orders *nodeapi.RegionalOrders) (*nodeapi.OrdersReply, error) {
	return c.client.Orders(ctx, orders)
}

// Leases runs serve with the other region's controller, as often as it ends, until ctx does.
func (c *Courier) Leases(ctx context.Context, serve func(context.Context, nodeapi.ControllerClient) error) {
	for ctx.Err() == nil {
		_ = serve(ctx, c.client) // whether it answers is in the metrics; another region's death is told elsewhere
		pause.For(ctx, pause.About(400*time.Millisecond, 0.5))
	}
}

// Close ends the connection.
func (c *Courier) Close() { c.conn.Close() }
