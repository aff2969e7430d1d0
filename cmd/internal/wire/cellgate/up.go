package cellgate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/cells"
	"github.com/cellgate/cellgate/cmd/internal/bootstrap"
	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/internal/pause"
	"github.com/cellgate/cellgate/internal/supervise"
	"github.com/cellgate/cellgate/snapshot"
	"github.com/cellgate/cellgate/store/etcd/server"
)

// Options of `cellgate up`.
type Options struct {
	Dir        string
	Size       Size
	Timing     bootstrap.Timing
	Limit      cells.MilliRPS // of every cell, in thousandths of a request per second
	Patience   time.Duration  // how long a start may take
	Engine     string         // of the proxies: "loop" or "goroutine"; empty = their default
	QuotaRedis string         // URL of a Redis server that has the buckets of limits; empty = controllers have them
	Consul     string         // address of the Consul agent that proxies ask; empty = where one of the world would stand
	OTLP       bootstrap.OTLP // the collector that gets the proxies' traces
	// Netns is the prefix of the network namespaces that processes run in, see builder.inside; empty = all run in ours.
	Netns string
}

func (o Options) validate() error {
	if o.Dir == "" {
		return errNoDir
	}
	if err := o.Size.validate(); err != nil {
		return err
	}
	if o.Engine != "" && o.Engine != "loop" && o.Engine != "goroutine" {
		return fmt.Errorf("--engine %q is none of loop, goroutine", o.Engine)
	}
	if o.OTLP.URL == "" && o.OTLP.CAFile != "" {
		return errors.New("--otlp-ca needs --otlp URL")
	}
	if fault, hint := snapshot.Loopback().ServiceURL(o.OTLP.URL); o.OTLP.URL != "" && fault != "" {
		return fmt.Errorf("--otlp: the collector's URL %s (%s)", fault, hint)
	}
	t := o.Timing
	for _, f := range []struct {
		flag        string
		v, min, max time.Duration
	}{
		{"--ttl", t.TTL, time.Second, time.Hour}, {"--bake", t.Bake, 0, time.Hour}, {"--ramp", t.Ramp, 0, 24 * time.Hour},
	} {
		if f.v < f.min || f.v > f.max {
			return fmt.Errorf("%s %v is out of range: it takes %v to %v", f.flag, f.v, f.min, f.max)
		}
	}
	if v := t.OnInsufficient; v != bootstrap.OnInsufficientHold && v != bootstrap.OnInsufficientProceed {
		return fmt.Errorf("--on-insufficient %q is neither %s nor %s", v, bootstrap.OnInsufficientHold, bootstrap.OnInsufficientProceed)
	}
	if t.TTL%time.Second != 0 {
		return fmt.Errorf("--ttl %v is not usable: DNS counts in whole seconds", t.TTL)
	}
	if o.Limit < 1000 || o.Limit > 1e12 {
		return fmt.Errorf("--cell-limit %d is out of range: it takes 1 to 1000000000 requests per second", o.Limit/1000)
	}
	return nil
}

var (
	errDown    = errors.New("ordered down")
	errGone    = errors.New("the world's directory was removed")
	errTooLong = errors.New("the world did not become ready in time")
)

// world is a running world as its supervisor holds it.
type world struct {
	*layout
	opts    Options
	home    home
	keys    *keyring
	lock    *dirLock
	group   *supervise.Group
	made    []process
	say     func(format string, args ...any)
	stop    context.CancelCauseFunc
	ready   atomic.Bool
	stopped chan struct{} // closed when all processes are gone
	files   sync.Mutex    // world.json
}

// Hooks are what Up tells its caller. All are set.
type Hooks struct {
	Say     func(format string, args ...any) // progress
	Claimed func(home) error                 // the directory is ours; nothing runs yet
	Ready   func()
	Now     <-chan struct{} // closed = end a slow stop at once
}

// Up starts a world and keeps it until ctx ends or it is ordered down. When ctx ends before the world is ready,
// everything is stopped again.
func Up(ctx context.Context, o Options, log *slog.Logger, hooks Hooks) error {
	if err := o.validate(); err != nil {
		return err
	}
	bin, err := findDaemons()
	if err != nil {
		return err
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return err
	}
	_, statErr := os.Stat(dir)
	w := &world{opts: o, home: home(dir), layout: newLayout(o.Size, o.Limit), say: hooks.Say, stopped: make(chan struct{})}
	release, err := w.claim()
	if err != nil {
		if os.IsNotExist(statErr) && !supervisor.Running(dir) { // the directory came into being here and holds nothing
			_ = os.RemoveAll(dir)
		}
		return err
	}
	defer release()
	if err := hooks.Claimed(w.home); err != nil {
		return err
	}
	ctx, w.stop = context.WithCancelCause(ctx)
	defer w.stop(nil)
	if err := w.prepare(ctx, bin); err != nil {
		return err
	}
	return w.live(ctx, bin, log, hooks)
}

// claim takes the directory and the address block, in this order.
func (w *world) claim() (release func(), err error) {
	if err := w.home.create(); err != nil {
		return nil, err
	}
	lock, err := lockDir(string(w.home))
	if err != nil {
		return nil, err
	}
	block, err := claimBlock(w.Net, string(w.home))
	if err != nil {
		lock.release()
		return nil, err
	}
	w.lock = lock
	return func() { block.release(); lock.release() }, nil
}

// prepare writes every file and checks every address before the first process starts.
func (w *world) prepare(ctx context.Context, bin string) error {
	if err := w.home.keepSize(w.Size); err != nil {
		return err
	}
	if err := os.Remove(w.home.worldFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	keys, err := openKeyring(w.home, time.Now())
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	w.keys = keys
	b := &builder{layout: w.layout, home: w.home, keys: keys, bin: bin, timing: w.opts.Timing, engine: w.opts.Engine, redis: w.opts.QuotaRedis, consul: cmp.Or(w.opts.Consul, w.consul().String()), otlp: w.opts.OTLP, netns: netnsPrefix(w.opts.Netns)}
	if w.made, err = b.build(); err != nil {
		return fmt.Errorf("bootstrap files: %w", err)
	}
	text, err := w.sample(hashOf(keys.tokens.APIKey))
	if err != nil {
		return fmt.Errorf("sample document: %w", err)
	}
	if err := writeFile(w.home.path("sample.yaml"), []byte(text)); err != nil {
		return err
	}
	free, err := durable.Free(string(w.home))
	if err != nil {
		return err
	}
	if err := w.room(free); err != nil {
		return err
	}
	binds := make([]bindings, len(w.made))
	for i, p := range w.made {
		binds[i] = p.binds
	}
	return checkFree(ctx, binds)
}

// room says whether the free bytes of the disk are less than what stores that have nothing yet take at once.
func (w *world) room(free uint64) error {
	need := uint64(0)
	for _, p := range w.made {
		if _, err := os.Stat(filepath.Join(w.home.etcdDir(p.id), "member")); p.role == "etcd" && errors.Is(err, os.ErrNotExist) {
			need += server.Room
		}
	}
	if free < need {
		return fmt.Errorf("the disk of %s has %d MiB left, the stores of this world take %d MiB to begin with: make room, or choose another directory (--dir)", w.home, free>>20, need>>20)
	}
	return nil
}

// live runs the processes from the first fork to the last exit.
func (w *world) live(ctx context.Context, bin string, log *slog.Logger, hooks Hooks) error {
	w.group = supervise.New(supervise.Options{Log: log, Changed: w.rewrite, Files: []string{w.home.logFile("supervisor")}})
	ctl, err := listenControl(w.home, w.handle)
	if err != nil {
		w.group.Shutdown(ctx)
		return err
	}
	defer func() {
		w.end(hooks.Now)
		ctl.close(w.home)
	}()
	for _, p := range w.made {
		if err := w.group.Add(p.spec); err != nil {
			return err
		}
	}
	go ctl.serve(ctx)
	go w.guard(ctx)
	if err := w.start(ctx, bin); err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("stopped before the world was ready: %w", context.Cause(ctx))
		}
		return err
	}
	hooks.Ready()
	<-ctx.Done()
	if cause := context.Cause(ctx); errors.Is(cause, errGone) {
		return cause
	}
	return nil
}

// guard ends a world whose directory is gone: it could be neither ordered nor started again.
func (w *world) guard(ctx context.Context) {
	for pause.For(ctx, time.Second) {
		if w.lock.lost() {
			w.stop(errGone)
		}
	}
}

func (w *world) start(ctx context.Context, bin string) error {
	began := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, w.opts.Patience, errTooLong)
	defer cancel()
	w.say("starting %d processes in %s on %s", len(w.made), w.home, w.Net)
	for _, p := range w.made {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := w.group.Launch(p.name()); err != nil {
			return err
		}
	}
	r := &readiness{layout: w.layout, say: w.say, broken: w.crashing}
	for i := range w.Regions {
		r.operators = append(r.operators, operator{bin: bin, server: w.apiURLs(i)[0], token: w.keys.tokens.Admin, ca: w.home.caFile()})
	}
	if err := r.publishFirst(ctx, w.home.path("sample.yaml")); err != nil {
		return w.explain(err)
	}
	w.say("configuration published after %.1f s", time.Since(began).Seconds())
	if err := r.wait(ctx); err != nil {
		return w.explain(err)
	}
	w.ready.Store(true)
	if err := w.save(); err != nil {
		return err
	}
	w.say("ready after %.1f s", time.Since(began).Seconds())
	w.tour()
	return nil
}

// hopeless is how often a process may end during the start of a world before that is given up.
const hopeless = 4

// crashing names a process that ends again and again, with the last words of its log.
func (w *world) crashing() error {
	for _, s := range w.group.Status() {
		if s.Restarts >= hopeless {
			log := w.home.logFile(s.Name)
			return fmt.Errorf("%s ends again and again (%s): %s (see %s)", s.Name, s.Last, lastWords(log), log)
		}
	}
	return nil
}

// lastWords is the end of a log file, at most 400 bytes: its last line, or the two last ones above the stack of a crash.
func lastWords(path string) string {
	raw, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	text, keep := strings.TrimSpace(string(raw)), 1
	if at := max(strings.LastIndex("\n"+text, "\npanic: "), strings.LastIndex("\n"+text, "\nfatal error: ")); at >= 0 {
		line, _, _ := strings.Cut(text[at:], "\n")
		text, keep = text[:at]+line, 2
	}
	lines := strings.Split(text, "\n")
	text = strings.Join(lines[max(0, len(lines)-keep):], "; ")
	return text[:min(len(text), 400)]
}

// explain adds to a failed start which processes don't run well.
func (w *world) explain(err error) error {
	if !errors.Is(err, errTooLong) {
		return err
	}
	var bad []string
	for _, s := range w.group.Status() {
		if s.State != supervise.Running {
			bad = append(bad, strings.TrimSpace(fmt.Sprintf("%s is %s %s", s.Name, s.State, s.Last)))
		}
	}
	if len(bad) == 0 {
		return fmt.Errorf("%w; logs are in %s", err, w.home.path("logs"))
	}
	return fmt.Errorf("%w; %s; logs are in %s", err, strings.Join(bad, "; "), w.home.path("logs"))
}

// tour prints where things are and what to do next.
func (w *world) tour() {
	var routers []string
	for _, r := range w.routers() {
		routers = append(routers, r.String())
	}
	w.say("%-12s %s  zone %s", "DNS", strings.Join(routers, " "), worldName)
	for i, r := range w.topology.Regions {
		var cs []string
		for _, c := range r.Cells {
			cs = append(cs, c.Addresses[0].String())
		}
		w.say("%-12s clients %v  cells %s  ports %d, %d  admin https://%s", r.ID, r.Clients[0], strings.Join(cs, " "), portHTTPS, portHTTP, w.api(i))
	}
	w.say("all of it: %s   memory: %d MiB in %d processes", w.home.worldFile(), w.memory()>>20, len(w.made))
	dir, regionctl := "", "regionctl"
	if self, err := os.Executable(); err == nil {
		regionctl = shellWord(filepath.Join(filepath.Dir(self), "regionctl"))
	}
	if w.opts.Dir != DefaultDir {
		dir = " --world " + shellWord(w.home.path())
	}
	cell := w.topology.Regions[0].Cells[0].ID
	w.say("next:  %s%s status", regionctl, dir)
	w.say("       %s%s dns explain %s --client %s", regionctl, dir, sampleHost, w.topology.Regions[0].Clients[0].Addr().Next())
	w.say("       %s%s evacuate %s --reason \"first look\" --over 30s --dry-run", regionctl, dir, cell)
}

// shellWord quotes what a shell would not take as one word.
func shellWord(s string) string {
	plain := func(r rune) bool {
		return r > 127 || strings.ContainsRune("/._-+,:@%", r) || '0' <= r && r <= '9' || 'a' <= r|0x20 && r|0x20 <= 'z'
	}
	if strings.TrimFunc(s, plain) == "" {
		return s
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

func (w *world) memory() int64 {
	total := memoryOf(os.Getpid())
	for _, s := range w.group.Status() {
		if s.PID > 0 {
			total += memoryOf(s.PID)
		}
	}
	return total
}

// rewrite brings the pids of world.json up to date; before the world is ready, and once it ends, there is none.
func (w *world) rewrite() {
	if err := w.save(); err != nil {
		w.say("%v", err)
	}
}

func (w *world) save() error {
	w.files.Lock()
	defer w.files.Unlock()
	if !w.ready.Load() {
		return nil
	}
	ttl := int(w.opts.Timing.TTL / time.Second)
	if err := writeJSON(w.home.worldFile(), w.worldFile(w.home, w.keys.tokens, ttl, w.group.Status())); err != nil {
		return fmt.Errorf("world.json is not up to date: %w", err)
	}
	return nil
}

// end stops everything, at once when now is closed.
func (w *world) end(now <-chan struct{}) {
	w.ready.Store(false)
	w.say("stopping")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-now:
			cancel()
		case <-ctx.Done():
		}
	}()
	w.group.Shutdown(ctx)
	w.files.Lock()
	_ = os.Remove(w.home.worldFile())
	w.files.Unlock()
	close(w.stopped)
}
