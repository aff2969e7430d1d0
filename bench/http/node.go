//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/internal/heap"
	"github.com/cellgate/cellgate/proxy"
	"github.com/cellgate/cellgate/proxy/accesslog"
	"github.com/cellgate/cellgate/proxy/callers"
	"github.com/cellgate/cellgate/proxy/engine"
	"github.com/cellgate/cellgate/proxy/jwks"
	"github.com/cellgate/cellgate/proxy/listen"
	"github.com/cellgate/cellgate/proxy/loop"
	"github.com/cellgate/cellgate/proxy/meter"
	"github.com/cellgate/cellgate/proxy/program"
	"github.com/cellgate/cellgate/proxy/upstream"
	"github.com/cellgate/cellgate/snapshot"
)

// node is a process that serves the document and, with --swap, gets a snapshot with one shard in a hundred changed every
// second: it stores what changed, compiles and swaps, as a node of a world does. Both have two sealed snapshots in memory.
func node(args []string) error {
	flags := flag.NewFlagSet("node", flag.ExitOnError)
	document, addr := flags.String("document", "", "YAML file"), flags.String("http", "", "address")
	dir, swap := flags.String("dir", "", "directory for what it writes"), flags.Bool("swap", false, "a changed snapshot every second")
	_ = flags.Parse(args) // ends the process itself
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	snapshots, err := alternating(*document)
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	access, err := accesslog.Open(filepath.Join(*dir, "access.log"), log)
	if err != nil {
		return err
	}
	keys := jwks.New(jwks.Options{Allow: snapshot.Loopback(), Log: log})
	start := time.Now()
	server := proxy.New(proxy.Options{Auth: callers.NewAuthenticator(callers.Sources{Keys: keys}, start), Limits: callers.NewLimiter(start),
		Recorders: []proxy.Recorder{meter.New(), access}, Upstream: upstream.Options{Allow: snapshot.Loopback()}})
	p, err := program.Compile(snapshots[0], nil)
	if err != nil {
		return err
	}
	keys.Want(callers.Providers(p.Policies))
	if err := server.Apply(p); err != nil {
		return err
	}
	var garbage heap.Keeper
	garbage.Swapped()
	l, err := new(listen.Sockets).TCP(ctx, "http", *addr, false, 1)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.Go(func() error { return keys.Run(ctx) })
	g.Go(func() error { return access.Run(ctx) })
	g.Go(func() error {
		return loop.New(server, loop.Options{Options: engine.Options{Log: log}, Loops: 1}).Run(ctx, engine.Listener{Listener: l[0]})
	})
	if *swap {
		g.Go(func() error { return swapping(ctx, server, p, snapshots, *dir, &garbage) })
	}
	defer runtime.KeepAlive(snapshots)
	return g.Wait()
}

// alternating gives two snapshots of the document of which one host in a hundred differs.
func alternating(document string) (two [2]*snapshot.Snapshot, err error) {
	raw, err := os.ReadFile(document)
	if err != nil {
		return two, err
	}
	cfg, problems := snapshot.Decode([]snapshot.File{{Name: document, Data: raw}}, snapshot.Loopback())
	if err := problems.Err(); err != nil {
		return two, err
	}
	other := *cfg
	other.Routes = slices.Clone(cfg.Routes)
	changed := 0
	for i := range other.Routes {
		var host int
		if _, err := fmt.Sscanf(other.Routes[i].Match.Host, "h%d.", &host); err == nil && host%100 == 1 {
			other.Routes[i].Timeout = 14 * time.Second
			changed++
		}
	}
	if changed == 0 {
		return two, fmt.Errorf("%s: no route was changed", document)
	}
	for i, c := range []*snapshot.Config{cfg, &other} {
		if two[i], err = snapshot.Seal(c, snapshot.Meta{Number: uint64(i + 1)}); err != nil {
			return two, err
		}
	}
	return two, nil
}

func swapping(ctx context.Context, server *proxy.Server, last *program.Program, two [2]*snapshot.Snapshot, dir string, garbage *heap.Keeper) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		next, before := two[n%2], two[(n+1)%2]
		files := map[string][]byte{}
		for digest, blob := range next.Blobs {
			if before.Blobs[digest] == nil {
				files[string(digest)] = blob
			}
		}
		if err := durable.WriteAll(dir, files); err != nil {
			return err
		}
		p, err := program.Compile(next, last)
		if err != nil {
			return err
		}
		if err := server.Apply(p); err != nil {
			return err
		}
		garbage.Swapped()
		last = p
	}
}
