// Package jwks keeps the key sets of identity providers at hand: fetched in the background, kept when the provider is gone,
// on disk across restarts. Nothing on the request path waits for it, except once for a key that nobody has seen yet.
//
//	pool := jwks.New(jwks.Options{Dir: …, Allow: …})
//	go pool.Run(ctx)
//	pool.Want(urls)                                   // with every new program; others are forgotten
//	keys := pool.Keys(url)                            // nil = never had any: 503, never 401
//	wait := pool.Refetch(url)                         // unknown kid: wait ≤ 500 ms for the one shared fetch; nil = answer now
package jwks

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/snapshot"
)

// The intervals of a provider.
const (
	Keep    = 10 * time.Minute       // between two fetches that went well, ± 10%
	Wait    = 500 * time.Millisecond // that a request waits for a fetch that it asked for
	spacing = time.Minute            // at least between two fetches that requests asked for, failed ones included
	first   = time.Second            // after a failed fetch, doubling up to spacing
	timeout = 5 * time.Second        // of one fetch as a whole
)

// maxProviders bounds the key sets of one node; URLs beyond it are never fetched, so their routes answer auth_unavailable.
const maxProviders = 1024

// Options are what a Pool needs; every zero value works.
type Options struct {
	Dir   string         // where key sets are kept across restarts; empty = nowhere
	Allow snapshot.Allow // addresses and schemes that may be fetched from
	Log   *slog.Logger   // changes of the providers; nil = none
	// Fetch gets a document; nil = over HTTP as Fetcher does.
	Fetch func(ctx context.Context, url string) ([]byte, error)
}

// Pool holds the key sets of all providers that the current programs name.
type Pool struct {
	opt   Options
	table atomic.Pointer[map[string]*provider] // replaced, never changed

	mu     sync.Mutex // guards what follows and the replacement of table
	run    context.Context
	active sync.WaitGroup
}

// provider is one URL. Its loop alone writes keys.
type provider struct {
	url    string
	keys   atomic.Pointer[auth.Keys]
	stored bool          // the keys are on disk; the loop's own
	ask    chan struct{} // capacity 1: fetch now
	stop   context.CancelFunc

	mu      sync.Mutex
	started time.Time     // of the newest fetch
	done    chan struct{} // closed when the fetch under way ends or Wait is over; nil when nobody may wait
}

// New makes a pool without providers.
func New(opt Options) *Pool {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	if opt.Fetch == nil {
		opt.Fetch = Fetcher(opt.Allow)
	}
	p := &Pool{opt: opt}
	p.table.Store(&map[string]*provider{})
	return p
}

// Run fetches until ctx ends, and returns when no goroutine is left.
func (p *Pool) Run(ctx context.Context) error {
	p.mu.Lock()
	p.run = ctx
	for _, one := range *p.table.Load() {
		p.start(one)
	}
	p.mu.Unlock()
	<-ctx.Done()
	p.active.Wait()
	return nil
}

// Want names the providers that are needed from now on. Those that stay keep their keys and their clock; those that are
// new take their keys from disk at once and are fetched in the background; the others are forgotten.
func (p *Pool) Want(urls []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := *p.table.Load()
	next := make(map[string]*provider, len(urls))
	for _, url := range urls {
		if one, have := old[url]; have {
			next[url] = one
		} else if next[url] == nil && len(next) < maxProviders {
			next[url] = p.open(url)
		}
	}
	p.table.Store(&next)
	for url, one := range old {
		if next[url] == nil && one.stop != nil {
			one.stop()
		}
	}
}

func (p *Pool) open(url string) *provider {
	one := &provider{url: url, ask: make(chan struct{}, 1)}
	if keys := p.load(url); keys != nil {
		one.keys.Store(keys)
		one.stored = true
	}
	if p.run != nil {
		p.start(one)
	}
	return one
}

// start runs the provider's loop; the caller holds p.mu.
func (p *Pool) start(one *provider) {
	ctx, cancel := context.WithCancel(p.run)
	if ctx.Err() != nil {
		cancel()
		return
	}
	one.stop = cancel
	if one.keys.Load() == nil { // else the loop begins later, unless a request asks
		one.begin(time.Now())
	}
	p.active.Go(func() { p.loop(ctx, one) })
}

// Keys is the newest good key set of the provider; nil when there has never been one or nobody wants the provider.
// It neither locks nor allocates.
func (p *Pool) Keys(url string) *auth.Keys {
	if one := (*p.table.Load())[url]; one != nil {
		return one.keys.Load()
	}
	return nil
}

// Refetch asks for a fetch on behalf of a request whose key is not in the set. The channel is closed when the fetch has
// ended, or Wait after it began; all requests share it. Nil means that waiting is of no use: the last fetch was less than
// a minute ago, whatever came of it. So any number of made-up keys causes one fetch a minute at most.
func (p *Pool) Refetch(url string) <-chan struct{} {
	one := (*p.table.Load())[url]
	if one == nil {
		return nil
	}
	return one.refetch(time.Now())
}

func (one *provider) refetch(now time.Time) <-chan struct{} {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.done != nil {
		return one.done
	}
	if !one.started.IsZero() && now.Sub(one.started) < spacing {
		return nil
	}
	one.beginLocked(now)
	select {
	case one.ask <- struct{}{}:
	default:
	}
	return one.done
}

// begin notes that a fetch starts at now and gives the waiters their channel.
func (one *provider) begin(now time.Time) {
	one.mu.Lock()
	defer one.mu.Unlock()
	one.beginLocked(now)
}

func (one *provider) beginLocked(now time.Time) {
	if one.done != nil {
		return
	}
	done := make(chan struct{})
	one.started, one.done = now, done
	time.AfterFunc(Wait, func() { one.release(done) })
}

// release lets the waiters of done go, once.
func (one *provider) release(done chan struct{}) {
	one.mu.Lock()
	defer one.mu.Unlock()
	if one.done == done {
		one.done = nil
		close(done)
	}
}

func (one *provider) waiters() chan struct{} {
	one.mu.Lock()
	defer one.mu.Unlock()
	return one.done
}

// loop fetches at once (after a jitter when there are keys from disk, so that a restarted fleet isn't a herd), then
// when asked, when a fetch failed, and when the set is old.
func (p *Pool) loop(ctx context.Context, one *provider) {
	failed := first
	var next <-chan time.Time // nil before the first fetch
	if one.keys.Load() != nil {
		next = time.After(time.Duration(rand.Int64N(int64(2 * time.Second))))
	}
	for {
		if next != nil {
			select {
			case <-ctx.Done():
			case <-one.ask:
			case <-next:
			}
		}
		if ctx.Err() != nil {
			return
		}
		one.begin(time.Now())
		err := p.fetch(ctx, one)
		if done := one.waiters(); done != nil {
			one.release(done)
		}
		if err == nil {
			next, failed = time.After(Keep*9/10+time.Duration(rand.Int64N(int64(Keep/5)))), first
			continue
		}
		if one.keys.Load() != nil {
			failed = spacing // nobody is waiting for it
		}
		p.opt.Log.Warn("key set not fetched", "url", one.url, "error", err, "have_keys", one.keys.Load() != nil, "again_in", failed)
		next, failed = time.After(failed/2+time.Duration(rand.Int64N(int64(failed)))), min(2*failed, spacing)
	}
}

// fetch gets the set and keeps it; whatever goes wrong leaves the last good one in place.
func (p *Pool) fetch(ctx context.Context, one *provider) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	doc, err := p.opt.Fetch(ctx, one.url)
	if err != nil {
		return err
	}
	keys, skipped, err := auth.ParseKeys(doc)
	if err != nil {
		return err
	}
	old := one.keys.Load()
	changed := old == nil || old.Digest() != keys.Digest()
	if !changed && one.stored {
		return nil
	}
	if changed {
		one.keys.Store(keys)
		p.opt.Log.Info("key set changed", "url", one.url, "keys", keys.Len(), "skipped", skipped)
	}
	err = p.save(one.url, doc)
	one.stored = err == nil // else tried again with the next fetch
	if err != nil && changed {
		p.opt.Log.Warn("key set not stored; a restart needs the provider", "url", one.url, "error", err)
	}
	return nil
}

var errTooLarge = errors.New("jwks: the document is larger than 1 MiB")
