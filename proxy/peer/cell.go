package peer

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/cellgate/cellgate/nodeapi"
)

// How long one peer may take. A peer that stalls is passed over; when all were, each gets the patience of the next round.
const (
	askLimit = 2 * time.Second
	maxAsked = 16       // peers of one look, all at once: a look must not take longer for those that hang
	maxOffer = 16 << 20 // bytes of what one peer offers, target and denylists
)

func patience() []time.Duration { return []time.Duration{3 * time.Second, 30 * time.Second} }

// Cell asks the peers of the node's own cell.
type Cell struct {
	Peers []string    // host:port of their peer listeners
	TLS   *tls.Config // to a proxy of the world
	Log   *slog.Logger

	mu       sync.Mutex
	answered []string // the peers that gave a target at the last look, the quickest first
}

func (c *Cell) client(address string) *nodeapi.Client {
	return nodeapi.NewClient(nodeapi.Options{Controllers: []string{address}, TLS: c.TLS, Log: c.Log, MaxMessage: maxOffer})
}

// some are the peers in an order of chance, so that nodes that start together don't ask the same one; those that answered
// at the last look come first.
func (c *Cell) some() []string {
	all := slices.Clone(c.Peers)
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	c.mu.Lock()
	defer c.mu.Unlock()
	live := slices.Clone(c.answered)
	all = append(live, slices.DeleteFunc(all, func(p string) bool { return slices.Contains(live, p) })...)
	return all[:min(len(all), maxAsked)]
}

// Ask asks the peers what they serve and whom they deny. Who doesn't answer in time has nothing.
func (c *Cell) Ask(ctx context.Context) (targets, denylists [][]byte) {
	var mu sync.Mutex
	var answered []string
	var wg sync.WaitGroup
	for _, p := range c.some() {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, askLimit)
			defer cancel()
			reply, err := c.client(p).Poll(ctx, &nodeapi.Hello{})
			if err != nil {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			target := false // one is all that a peer serves
			for _, m := range reply.GetMessages() {
				if e := m.GetTarget().GetEnvelope(); e != nil && !target {
					targets, answered, target = append(targets, e), append(answered, p), true
				}
				if e := m.GetDenylist().GetEnvelope(); e != nil {
					denylists = append(denylists, e)
				}
			}
		})
	}
	wg.Wait()
	c.mu.Lock()
	c.answered = answered
	c.mu.Unlock()
	return targets, denylists
}

// Fetch gets all blobs from one peer, verified by digest.
func (c *Cell) Fetch(ctx context.Context, digests []string) (map[string][]byte, error) {
	var faults []error
	for _, limit := range patience() {
		for _, p := range c.some() {
			blobs, err := c.fetch(ctx, p, digests, limit)
			if err == nil {
				return blobs, nil
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			if limit == patience()[0] || !errors.Is(err, context.DeadlineExceeded) {
				faults = append(faults, fmt.Errorf("peer %s: %w", p, err))
			}
		}
	}
	return nil, errors.Join(append(faults, errors.New("peer: no peer of the cell has all that is needed"))...)
}

func (c *Cell) fetch(ctx context.Context, address string, digests []string, limit time.Duration) (map[string][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return c.client(address).Fetch(ctx, digests)
}
