package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	"github.com/cellgate/cellgate/internal/pause"
)

// errPreferred ends a session because a better controller answers again.
var errPreferred = errors.New("a controller nearer to the front of the list is back")

// attachLoop owns the attached connection: c.conn is written here alone.
func (c *Client) attachLoop(ctx context.Context) {
	wait := c.timing.backoff
	unreachable := false // logged once per spell
	first := 0           // where the search begins: behind a controller that refused the session
	for ctx.Err() == nil {
		index, conn, err := c.reach(ctx, first)
		first = 0
		if conn == nil {
			if !unreachable && ctx.Err() == nil {
				c.opt.Log.Warn("no controller can be reached", "error", err)
			}
			unreachable = true
			wait = c.pause(ctx, wait)
			continue
		}
		unreachable = false
		began := time.Now()
		for conn != nil { // a preferred controller follows without a pause
			index, conn, err = c.session(ctx, index, conn)
		}
		if ctx.Err() != nil {
			return
		}
		c.lost(index, err)
		if time.Since(began) >= c.timing.steady {
			wait = c.timing.backoff
		} else {
			first = index + 1
		}
		wait = c.pause(ctx, wait)
	}
}

// lost logs the end of a session, and a controller's standing refusal once.
func (c *Client) lost(index int, err error) {
	line := c.opt.Controllers[index] + ": " + err.Error()
	if c.proven || c.refusal != line {
		c.opt.Log.Warn("lost the controller", "controller", c.opt.Controllers[index], "error", err)
	}
	c.refusal = line
	c.proven = false
}

// pause sleeps for half to the whole of wait and gives the next wait.
func (c *Client) pause(ctx context.Context, wait time.Duration) time.Duration {
	pause.For(ctx, pause.About(wait*3/4, 1.0/3))
	return min(wait*2, c.timing.backoffMax)
}

// reach connects to the first controller that answers, beginning with the one at index first; behind the last it gives up.
func (c *Client) reach(ctx context.Context, first int) (int, *grpc.ClientConn, error) {
	var errs []error
	for i := range c.opt.Controllers {
		index := (first + i) % len(c.opt.Controllers)
		conn, err := c.dial(ctx, c.opt.Controllers[index])
		if err == nil {
			return index, conn, nil
		}
		errs = append(errs, fmt.Errorf("%s: %w", c.opt.Controllers[index], err))
	}
	return 0, nil, errors.Join(errs...)
}

// session is one attached stream over conn, which it closes. When a better controller is back, its open connection
// and index are given; else conn is nil and err says what ended the session.
func (c *Client) session(ctx context.Context, index int, conn *grpc.ClientConn) (int, *grpc.ClientConn, error) {
	defer conn.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	stream, err := NewControllerClient(conn).Attach(ctx)
	if err == nil {
		err = stream.Send(&Up{Message: &Up_Hello{Hello: c.opt.Hello()}})
	}
	if err != nil && !errors.Is(err, io.EOF) { // EOF: Recv has the status
		return index, nil, err
	}
	c.out.attached()
	c.conn.Store(conn)
	defer c.conn.Store(nil)
	proof := sync.OnceFunc(func() {
		c.proven = true
		c.opt.Log.Info("attached to a controller", "controller", c.opt.Controllers[index])
	})
	var better *grpc.ClientConn
	betterIndex := index
	g.Go(func() error { return c.receive(stream, proof) })
	g.Go(func() error { return c.transmit(ctx, stream) })
	g.Go(func() error { return c.watch(ctx, conn, proof) })
	if index == 0 && c.opt.Leases != nil {
		g.Go(func() error { c.lease(ctx, conn); return nil })
	}
	g.Go(func() error {
		betterIndex, better = c.seek(ctx, index)
		if better == nil {
			return nil
		}
		return errPreferred
	})
	err = g.Wait()
	return betterIndex, better, err
}

// receive hands on every message; the first one, or the first pulse, proves that the controller took the stream.
func (c *Client) receive(stream grpc.BidiStreamingClient[Up, Down], proof func()) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the controller ended the stream")
		}
		if err != nil {
			return err
		}
		proof()
		c.hand(c.opt.Receive, m)
	}
}

// transmit sends what waits in the outbox until ctx ends. After an error of Send, Recv tells the stream's status.
func (c *Client) transmit(ctx context.Context, stream grpc.BidiStreamingClient[Up, Down]) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-c.out.ready:
		}
		for up := c.out.take(); up != nil; up = c.out.take() {
			c.sending.Store(time.Now().UnixNano())
			err := stream.Send(up)
			c.sending.Store(0)
			if err != nil {
				c.out.giveBack(up)
				<-ctx.Done()
				return err
			}
		}
	}
}

// lease keeps quotas settled as long as the session lasts; it never ends it: a controller of the version before knows none.
func (c *Client) lease(ctx context.Context, conn *grpc.ClientConn) {
	for wait := c.timing.backoff; ctx.Err() == nil; wait = min(wait*2, c.timing.backoffMax) {
		err := c.opt.Leases(ctx, NewControllerClient(conn))
		if ctx.Err() == nil {
			c.opt.Log.Debug("leases are not settled", "error", err)
		}
		pause.For(ctx, pause.About(wait, 0.5))
	}
}

// Settle keeps quotas settled until ctx ends, without being attached: by a process that ends what it has under way, while its
// successor is the one that is attached.
func (c *Client) Settle(ctx context.Context) {
	for wait := c.timing.backoff; c.opt.Leases != nil && ctx.Err() == nil; wait = c.pause(ctx, wait) {
		if conn, err := c.dial(ctx, c.opt.Controllers[0]); err == nil {
			c.lease(ctx, conn)
			conn.Close()
		}
	}
}

// watch ends the session when the peer stops answering or stops reading.
func (c *Client) watch(ctx context.Context, conn *grpc.ClientConn, proof func()) error {
	for pause.For(ctx, c.timing.pulseEvery) {
		if err := pulse(ctx, conn, c.timing.pulseLimit); err != nil {
			return fmt.Errorf("nodeapi: the controller does not answer: %w", err)
		}
		proof()
		began := c.sending.Load()
		if began != 0 && time.Since(time.Unix(0, began)) > c.timing.pulseEvery+c.timing.pulseLimit {
			return errors.New("nodeapi: the controller answers but does not read its stream")
		}
	}
	return ctx.Err()
}

// seek tries the controllers before index until one answers; it gives nil when ctx ends. It begins quickly, since a world
// that starts or a controller that restarts is back in a second or two.
func (c *Client) seek(ctx context.Context, index int) (int, *grpc.ClientConn) {
	for wait := c.timing.prefer / 8; index > 0 && pause.For(ctx, pause.About(wait, 0.5)); wait = min(wait*2, c.timing.prefer) {
		for i := range index {
			if conn, err := c.dial(ctx, c.opt.Controllers[i]); err == nil {
				return i, conn
			}
		}
	}
	return index, nil
}
