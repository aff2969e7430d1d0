package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/cellgate/cellgate/snapshot"
)

// Every version is the world's sample and two routes that tell it from all others: /v1/soak/g<N> exists in generation N
// alone, and /v1/soak/which goes to the orders in even generations and to the catalog in odd ones. A rollback brings a
// generation back under a new number with the old checksum, so nodes are judged by the checksum that they say they serve.

// generation is a content that was published, or may have been.
type generation struct {
	number   int
	bad      string // what is wrong with it; empty = nothing
	file     string
	checksum string
}

// upstream is where /v1/soak/which goes.
func (g *generation) upstream() string { return []string{"orders", "catalog"}[g.number%2] }

func (g *generation) path() string { return fmt.Sprintf("/v1/soak/g%d", g.number) }

// library knows all generations.
type library struct {
	mu     sync.Mutex
	dir    string
	sample string
	all    []*generation
	bySum  map[string]*generation
}

func newLibrary(w *world) (*library, error) {
	raw, err := os.ReadFile(filepath.Join(w.dir, "sample.yaml"))
	if err != nil {
		return nil, err
	}
	return &library{dir: w.dir, sample: string(raw), bySum: map[string]*generation{}}, nil
}

// The ways in which a version is bad. Each fails every request of the route that the load uses.
const (
	deadUpstream = "its upstream is dead"
	failingRoute = "its route asks for a scope that nobody has"
)

// write makes the next generation.
func (l *library) write(bad string) (*generation, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	g := &generation{number: len(l.all) + 1, bad: bad}
	routes := fmt.Sprintf("\n  - {id: soak-own, match: {host: api.gw.test, path: %s, methods: [GET]}, upstream: catalog, owner: team-soak}\n"+
		"  - {id: soak-which, match: {host: api.gw.test, path: /v1/soak/which, methods: [GET]}, upstream: %s, owner: team-soak}\n\nupstreams:\n", g.path(), g.upstream())
	text := strings.Replace(l.sample, "\nupstreams:\n", routes, 1)
	switch bad {
	case deadUpstream:
		text = strings.Replace(text, "\nupstreams:\n", "\nupstreams:\n  - {id: dead, endpoints: [\"127.31.254.77:8080\"]}\n", 1)
		text = strings.Replace(text, "    upstream: orders\n", "    upstream: dead\n", 1)
		text = strings.Replace(text, "expect: {route: orders-read, upstream: orders}", "expect: {route: orders-read, upstream: dead}", 1)
	case failingRoute:
		text = strings.Replace(text, "      scopes: [orders]\n", "      scopes: [orders, nobody]\n", 1)
	}
	g.file = filepath.Join(l.dir, fmt.Sprintf("soak-%d.yaml", g.number))
	if err := os.WriteFile(g.file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	sum, err := checksum(g.file, text)
	if err != nil {
		return nil, err
	}
	g.checksum = sum
	l.all, l.bySum[sum] = append(l.all, g), g
	return g, nil
}

func checksum(file, text string) (string, error) {
	cfg, problems := snapshot.Decode([]snapshot.File{{Name: file, Data: []byte(text)}}, snapshot.Loopback())
	if err := problems.Err(); err != nil {
		return "", err
	}
	snap, err := snapshot.Seal(cfg, snapshot.Meta{Number: 1, Created: time.Unix(1e9, 0), Author: "soak"})
	if err != nil {
		return "", err
	}
	return fmt.Sprint(snap.Manifest.Checksum), nil
}

// of is the generation with a checksum; nil = none of ours.
func (l *library) of(checksum string) *generation {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.bySum[checksum]
}

// other is a generation next to g.
func (l *library) other(g *generation) *generation {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g.number > 1 {
		return l.all[g.number-2]
	}
	if len(l.all) > 1 {
		return l.all[1]
	}
	return nil
}
