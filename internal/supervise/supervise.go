// Package supervise runs child processes and keeps them running: each dies with its parent, writes to a bounded log file,
// and is started again one second after it died.
//
//	g := supervise.New(supervise.Options{Log: log})
//	g.Add(supervise.Spec{Name: "proxy/eu-west/a/1", Path: "/bin/proxy", Args: …, Log: "logs/proxy.log"})
//	g.Start(ctx, names)                 // returns when all are ready
//	defer g.Shutdown(ctx)
package supervise

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sort"
	"sync"
	"time"
)

// Spec is one process to keep running.
type Spec struct {
	Name string
	Path string
	Args []string
	Env  []string // the whole environment; nil = empty
	// Replace are the arguments of a process that takes the place of one that runs, which ends then. Nil = none can.
	Replace []string
	Log     string // file that receives stdout and stderr, appended and bounded
	// Tier orders the shutdown: higher tiers are stopped first, a lower one only when they are gone.
	Tier int
	// Ready says whether the process serves. Nil = ready as soon as it runs.
	Ready func(ctx context.Context) error
	// Alive is probed once the process was ready: three failures in a row and it is killed, unless this process itself ran late
	// meanwhile. Nil = never probed.
	Alive func(ctx context.Context) error
}

// Options of a Group. Zero values are the ones in the comments.
type Options struct {
	Log        *slog.Logger
	Restart    time.Duration // from death to restart: 1 s
	MaxRestart time.Duration // bound of the growing wait of a process that dies young: 10 s
	Young      time.Duration // a life shorter than this is a young death: 10 s
	Grace      time.Duration // from SIGTERM to SIGKILL: 10 s
	ProbeEvery time.Duration // 700 ms
	MaxLog     int64         // bytes of a log file before it is rotated: 8 MiB
	Files      []string      // further files to bound as the logs are
	// Changed is called, never concurrently, after a process started or ended. Nil = nobody is told.
	Changed func()
}

func (o *Options) fill() {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	set(&o.Restart, time.Second)
	set(&o.MaxRestart, 10*time.Second)
	set(&o.Young, 10*time.Second)
	set(&o.Grace, 10*time.Second)
	set(&o.ProbeEvery, 700*time.Millisecond)
	if o.MaxLog == 0 {
		o.MaxLog = 8 << 20
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
}

// State is where a process is in its life.
type State string

// The states of a process.
const (
	Stopped  State = "stopped"  // by order; stays down
	Starting State = "starting" // runs, not ready yet
	Running  State = "running"
	Waiting  State = "waiting" // died, will be started again
)

// Status is what is known of one process.
type Status struct {
	Name     string    `json:"name"`
	State    State     `json:"state"`
	PID      int       `json:"pid"` // 0 while it doesn't run
	Restarts int       `json:"restarts"`
	Since    time.Time `json:"since"`
	Last     string    `json:"last,omitempty"` // how it ended last
}

// ErrUnknown is returned for a name that was never added.
var ErrUnknown = errors.New("no such process")

// Group is a set of supervised processes. Its methods may be called from any goroutine.
type Group struct {
	opts    Options
	fork    *forker
	changes chan struct{}
	quit    chan struct{}
	loops   sync.WaitGroup

	mu       sync.Mutex
	children map[string]*child
	closed   bool
}

// New starts an empty group.
func New(opts Options) *Group {
	opts.fill()
	g := &Group{
		opts: opts, fork: newForker(), changes: make(chan struct{}, 1), quit: make(chan struct{}),
		children: map[string]*child{},
	}
	g.loops.Add(2)
	go g.tell()
	go g.rotate()
	return g
}

// Add makes a process known, stopped.
func (g *Group) Add(s Spec) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errors.New("supervise: the group is shut down")
	}
	if _, ok := g.children[s.Name]; ok {
		return fmt.Errorf("supervise: %s is added twice", s.Name)
	}
	c := newChild(g, s)
	g.children[s.Name] = c
	g.loops.Add(1)
	go func() {
		defer g.loops.Done()
		c.loop()
	}()
	return nil
}

// Names lists what was added, sorted.
func (g *Group) Names() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	names := make([]string, 0, len(g.children))
	for n := range g.children {
		names = append(names, n)
	}
	sort.Strings(names)
	return names
}

// Status lists every process by name.
func (g *Group) Status() []Status {
	var all []Status
	for _, n := range g.Names() {
		all = append(all, g.child(n).status())
	}
	return all
}

// Launch starts the processes without waiting for their readiness.
func (g *Group) Launch(names ...string) error {
	return g.each(names, func(c *child) error { return c.order(orderStart) })
}

// Start starts the processes and waits until all are ready or ctx ends.
func (g *Group) Start(ctx context.Context, names ...string) error {
	return g.each(names, func(c *child) error {
		if err := c.order(orderStart); err != nil {
			return err
		}
		return c.waitReady(ctx)
	})
}

// Stop ends the processes with SIGTERM, after the grace with SIGKILL, and waits until they are gone. They stay down.
// When ctx ends first, they are killed at once.
func (g *Group) Stop(ctx context.Context, names ...string) error {
	return g.each(names, func(c *child) error { return c.stop(ctx) })
}

// Kill sends SIGKILL to the processes that run; those that should run are started again.
func (g *Group) Kill(names ...string) error {
	return g.each(names, func(c *child) error { return c.order(orderKill) })
}

// Replace starts a new process for each of the names, which takes the place of the one that runs, and waits until that has
// ended. When the new one ends first, the old one goes on, and it is an error.
func (g *Group) Replace(ctx context.Context, names ...string) error {
	return g.each(names, func(c *child) error { return c.replace(ctx) })
}

// Shutdown stops everything, tier by tier from the highest, and ends the group.
func (g *Group) Shutdown(ctx context.Context) {
	g.mu.Lock()
	if g.closed {
		g.mu.Unlock()
		return
	}
	g.closed = true
	tiers := map[int][]string{}
	for n, c := range g.children {
		tiers[c.spec.Tier] = append(tiers[c.spec.Tier], n)
	}
	g.mu.Unlock()
	order := make([]int, 0, len(tiers))
	for t := range tiers {
		order = append(order, t)
	}
	sort.Sort(sort.Reverse(sort.IntSlice(order)))
	for _, t := range order {
		_ = g.Stop(ctx, tiers[t]...)
	}
	close(g.quit)
	g.loops.Wait()
	g.fork.close()
}

// each runs do on all named children side by side and joins their errors.
func (g *Group) each(names []string, do func(*child) error) error {
	errs := make([]error, len(names))
	var wg sync.WaitGroup
	for i, n := range names {
		c := g.child(n)
		if c == nil {
			errs[i] = fmt.Errorf("%s: %w", n, ErrUnknown)
			continue
		}
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := do(c); err != nil {
				errs[i] = fmt.Errorf("%s: %w", n, err)
			}
		}()
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (g *Group) child(name string) *child {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.children[name]
}

// note marks that something started or ended; several notes may become one call of Changed.
func (g *Group) note() {
	select {
	case g.changes <- struct{}{}:
	default:
	}
}

func (g *Group) tell() {
	defer g.loops.Done()
	for {
		select {
		case <-g.changes:
			g.opts.Changed()
		case <-g.quit:
			return
		}
	}
}
