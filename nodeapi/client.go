package nodeapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/cellgate/cellgate/internal/pause"
)

// Options are what a Client needs. Controllers, TLS, Hello and Receive are required.
type Options struct {
	// Controllers are host:port addresses, own region first. The first that answers is attached to;
	// while it is not the very first, the ones before it are tried again every few seconds.
	Controllers []string
	TLS         *tls.Config
	// Log gets changes of the connection; nil = none.
	Log *slog.Logger
	// Hello is asked for before each attach and poll, from the client's own goroutines.
	Hello func() *Hello
	// Receive gets every message in order, one call at a time, never after Run has returned.
	Receive func(*Down)
	// Polled gets the messages that the second path delivered, under the same promise; nil = Receive.
	Polled func(*Down)
	// Leases settles quotas over one connection, until it breaks or ctx ends; it is run with the first of Controllers alone,
	// whose region the process is of. Nil = none.
	Leases func(ctx context.Context, client ControllerClient) error
	// PollEvery is the interval of the second path, ± 20%; 0 = 30 s.
	PollEvery time.Duration
	// MaxMessage bounds one received message in bytes; 0 = 64 MiB, far above a plan of 2,000 localities.
	MaxMessage int
}

// Client keeps one process attached to a controller of its world.
//
//	c := nodeapi.NewClient(nodeapi.Options{…})
//	go c.Run(ctx)
//	c.Send(&nodeapi.Up{Message: &nodeapi.Up_Report{Report: window}})
type Client struct {
	opt    Options
	timing timing
	out    *outbox

	deliver sync.Mutex                      // one callback at a time
	conn    atomic.Pointer[grpc.ClientConn] // the attached connection, or nil
	proven  bool                            // the session under way, or the last one, was taken; owner: the session, then attachLoop
	refusal string                          // the last loss that was logged; owner: attachLoop
	sending atomic.Int64                    // when the Send under way began, in Unix nanoseconds; 0 = none
}

// timing are the client's intervals; tests shorten them.
type timing struct {
	dial       time.Duration // one controller's time to connect and answer
	pulseEvery time.Duration // how often a live connection must prove itself
	pulseLimit time.Duration // how long one proof may take
	prefer     time.Duration // how often better controllers are tried in the long run, ± 50%
	steady     time.Duration // a session this long resets the backoff
	backoff    time.Duration // first wait
	backoffMax time.Duration
}

// defaultTiming notices a silently dead peer in pulseEvery + pulseLimit = 7 s at most.
func defaultTiming() timing {
	return timing{
		dial:       2 * time.Second,
		pulseEvery: 3 * time.Second,
		pulseLimit: 4 * time.Second,
		prefer:     10 * time.Second,
		steady:     10 * time.Second,
		backoff:    100 * time.Millisecond,
		backoffMax: 1500 * time.Millisecond,
	}
}

// NewClient gives a client that does nothing until Run.
func NewClient(opt Options) *Client {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Polled == nil {
		opt.Polled = opt.Receive
	}
	if opt.PollEvery <= 0 {
		opt.PollEvery = 30 * time.Second
	}
	if opt.MaxMessage <= 0 {
		opt.MaxMessage = 64 << 20
	}
	return &Client{opt: opt, timing: defaultTiming(), out: newOutbox()}
}

// Run attaches, reconnects and polls until ctx ends; then it returns nil. Any other return is a fault of the options.
func (c *Client) Run(ctx context.Context) error {
	if len(c.opt.Controllers) == 0 || c.opt.TLS == nil || c.opt.Hello == nil || c.opt.Receive == nil {
		return errors.New("nodeapi: a client needs controllers, TLS, Hello and Receive")
	}
	var g errgroup.Group
	g.Go(func() error { c.attachLoop(ctx); return nil })
	g.Go(func() error { c.pollLoop(ctx); return nil })
	return g.Wait()
}

// Send queues a report, a round of probes or an ACK; the newest of each kind wins. It never blocks.
// The message must not be changed afterwards.
func (c *Client) Send(up *Up) { c.out.put(up) }

// Connected says whether a controller is attached and proved alive within the last seconds.
func (c *Client) Connected() bool { return c.conn.Load() != nil }

// Fetch gets blobs by their digests (lower-case hex SHA-256), verified, from the attached controller, else from any.
// It gives all of them or an error.
func (c *Client) Fetch(ctx context.Context, digests []string) (map[string][]byte, error) {
	a, err := newAssembly(digests)
	if err != nil {
		return nil, err
	}
	defer a.close()
	fetch := func(conn *grpc.ClientConn) error { return a.fetch(ctx, NewControllerClient(conn)) }
	if conn := c.conn.Load(); conn != nil {
		if err = fetch(conn); err == nil {
			return a.blobs, nil
		}
	}
	if err := c.any(ctx, err, fetch); err != nil {
		return nil, err
	}
	return a.blobs, nil
}

// FindKey asks the attached controller whose an issued API key is; empty = nobody's.
func (c *Client) FindKey(ctx context.Context, hashes []string) (consumer string, err error) {
	conn := c.conn.Load()
	if conn == nil {
		return "", errors.New("nodeapi: no controller is attached")
	}
	answer, err := NewControllerClient(conn).FindKey(ctx, &KeyQuestion{Hashes: hashes})
	return answer.GetConsumer(), err
}

// Poll asks the controllers in turn for what Attach would send now; it needs no Run.
func (c *Client) Poll(ctx context.Context, hello *Hello) (reply *PollReply, err error) {
	err = c.any(ctx, nil, func(conn *grpc.ClientConn) error {
		reply, err = NewControllerClient(conn).Poll(ctx, hello)
		return err
	})
	return reply, err
}

// any does something with the controllers in turn, each over a connection of its own, until one succeeds.
func (c *Client) any(ctx context.Context, before error, do func(*grpc.ClientConn) error) error {
	errs := []error{before}
	for _, addr := range c.opt.Controllers {
		if ctx.Err() != nil {
			return errors.Join(append(errs, ctx.Err())...)
		}
		conn, err := c.dial(ctx, addr)
		if err == nil {
			err = do(conn)
			conn.Close()
		}
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("controller %s: %w", addr, err))
	}
	return errors.Join(errs...)
}

// pollLoop is the second path: over connections of its own, so that a stuck stream doesn't stop it.
func (c *Client) pollLoop(ctx context.Context) {
	for pause.For(ctx, pause.About(c.opt.PollEvery, 0.2)) {
		// Whether a controller can be reached is told by attachLoop; a failed poll is only the next poll's matter.
		_ = c.any(ctx, nil, func(conn *grpc.ClientConn) error {
			ctx, cancel := context.WithTimeout(ctx, c.opt.PollEvery)
			defer cancel()
			reply, err := NewControllerClient(conn).Poll(ctx, c.opt.Hello())
			if err != nil {
				return err
			}
			for _, m := range reply.GetMessages() {
				c.hand(c.opt.Polled, m)
			}
			return nil
		})
	}
}

func (c *Client) hand(to func(*Down), m *Down) {
	c.deliver.Lock()
	defer c.deliver.Unlock()
	to(m)
}

// dial connects to one controller and has it answer once.
func (c *Client) dial(ctx context.Context, addr string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("passthrough:///"+addr,
		grpc.WithTransportCredentials(credentials.NewTLS(c.opt.TLS)),
		grpc.WithNoProxy(), grpc.WithDisableServiceConfig(), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(c.opt.MaxMessage)))
	if err != nil {
		return nil, fmt.Errorf("nodeapi: dial %s: %w", addr, err)
	}
	if err := pulse(ctx, conn, c.timing.dial); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// pulse asks the peer for nothing and waits for its answer. An answer of any kind, also a refusal, proves that it lives.
// gRPC's own keepalive can't do this: its least interval is 10 s, and a stopped process's kernel still acknowledges.
func pulse(ctx context.Context, conn *grpc.ClientConn, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	stream, err := NewControllerClient(conn).Fetch(ctx, &FetchRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return err
	default:
		return nil
	}
}
