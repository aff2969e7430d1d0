// Package planner reads the world's status, keeps a history of it on disk, and shows headroom and what losses would come to.
// Nothing depends on it to serve; when the status can't be read, what it shows says how old it is and proves no room.
package planner

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cellgate/cellgate/capacity"
)

// Options are what a Planner needs. Read and History are required.
type Options struct {
	Read    func(ctx context.Context) ([]Cell, error)
	History *History
	// Config is the policy of the arithmetic.
	Config capacity.Config
	// Every is the interval of reading, 0 = 5 s; Record that of the history, 0 = 1 min.
	Every, Record time.Duration
	// Log gets changes; nil = none.
	Log *slog.Logger
}

// Planner holds the newest reading.
type Planner struct {
	opt Options

	mu     sync.Mutex
	cells  []Cell
	read   time.Time // when cells were read; zero = never
	err    error     // of the last reading; nil = it succeeded
	errors uint64
}

// New gives a planner that does nothing until Run.
func New(opt Options) *Planner {
	if opt.Every <= 0 {
		opt.Every = 5 * time.Second
	}
	if opt.Record <= 0 {
		opt.Record = time.Minute
	}
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Planner{opt: opt, err: errors.New("the status has not been read yet")}
}

// Run reads until ctx ends, then returns nil.
func (p *Planner) Run(ctx context.Context) error {
	tick := time.NewTicker(p.opt.Every)
	defer tick.Stop()
	var recorded time.Time
	for {
		found, err := p.opt.Read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		now := time.Now()
		p.take(found, err, now)
		if err == nil && (recorded.IsZero() || now.Sub(recorded) >= p.opt.Record) {
			recorded = now
			if err := p.opt.History.Append(record(found, p.opt.Config, now)); err != nil {
				p.opt.Log.Error("the history could not be written", "error", err)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (p *Planner) take(found []Cell, err error, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	failedBefore := p.err != nil && p.errors > 0
	p.err = err
	if err != nil {
		if p.errors++; !failedBefore {
			p.opt.Log.Warn("waiting for the status of the world", "error", err)
		}
		return
	}
	if failedBefore || p.read.IsZero() {
		p.opt.Log.Info("the status of the world is read", "cells", len(found))
	}
	p.cells, p.read = found, now
}

// Ready says why nothing current can be shown.
func (p *Planner) Ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func record(found []Cell, cfg capacity.Config, now time.Time) Record {
	r := Record{At: now.UTC()}
	for _, c := range found {
		r.Cells = append(r.Cells, CellRecord{ID: c.ID, RPS: c.RPS, LimitRPS: c.LimitRPS, Headroom: known(capacity.Headroom(c.load(0), cfg))})
	}
	return r
}

func known(v float64, ok bool) *float64 {
	if !ok {
		return nil
	}
	return &v
}
