// Package accesslog writes one JSON line for every finished exchange, without ever making an exchange wait.
//
//	log, err := accesslog.Open("access.log", slogger)   // "-" = standard output
//	go log.Run(ctx)                                      // writes ten times a second, and the rest when ctx ends
//	log.Record(record)                                   // proxy.Recorder
//	log.Reopen()                                         // after a rotation
//
// A line has no query, no header and no body, so no token or cookie; strings of the client's are cut to keep lines short.
package accesslog

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy"
)

const (
	every  = 100 * time.Millisecond
	buffer = 4 << 20   // bytes waiting to be written; a line that doesn't fit any more is dropped and counted
	hurry  = 256 << 10 // bytes after which the writer doesn't wait for its time: what it writes is still in the cache then
)

// Log is an access log. It is safe for any number of goroutines.
type Log struct {
	path    string
	log     *slog.Logger
	dropped atomic.Uint64
	reopen  chan struct{}
	full    chan struct{}
	scratch sync.Pool

	mu      sync.Mutex // guards the three below
	waiting []byte
	count   uint64 // lines in waiting
	lines   uint64 // written before those

	// The writer's own.
	out     io.Writer
	spare   []byte
	failing bool
}

var _ proxy.Recorder = (*Log)(nil)

// Open opens the file for appending, or standard output for "-".
func Open(path string, log *slog.Logger) (*Log, error) {
	l := newLog(path, log)
	if err := l.open(); err != nil {
		return nil, err
	}
	return l, nil
}

func newLog(path string, log *slog.Logger) *Log {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Log{
		path: path, log: log, reopen: make(chan struct{}, 1), full: make(chan struct{}, 1),
		scratch: sync.Pool{New: func() any { return &scratch{line: make([]byte, 0, 1024)} }},
	}
}

func (l *Log) open() error {
	if l.path == "-" {
		l.out = os.Stdout
		return nil
	}
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("accesslog: %w", err)
	}
	if old, ok := l.out.(io.Closer); ok {
		old.Close()
	}
	l.out = f
	return nil
}

// Reopen opens the path anew before the next write, as after a rotation. It returns at once; a path that can't be opened
// is reported and the old file stays in use.
func (l *Log) Reopen() { poke(l.reopen) }

// Dropped is the number of lines that were lost for want of room or to a failing file.
func (l *Log) Dropped() uint64 { return l.dropped.Load() }

// Lines is the number of lines accepted.
func (l *Log) Lines() uint64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines + l.count
}

// Record implements proxy.Recorder. Readiness probes that went well have no line.
func (l *Log) Record(r *proxy.Record) {
	if r.Path == proxy.ReadyPath && r.Route == "" && r.Status == 200 {
		return
	}
	s := l.scratch.Get().(*scratch)
	l.put(s.write(r))
	l.scratch.Put(s)
}

func (l *Log) put(line []byte) {
	l.mu.Lock()
	if len(l.waiting)+len(line) > buffer {
		l.mu.Unlock()
		l.dropped.Add(1)
		poke(l.full)
		return
	}
	l.waiting = append(l.waiting, line...)
	l.count++
	n := len(l.waiting)
	l.mu.Unlock()
	if n > hurry && n-len(line) <= hurry {
		poke(l.full)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// Run writes until ctx ends, then what is left, and closes the file.
func (l *Log) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			l.flush()
			if f, ok := l.out.(*os.File); ok && l.path != "-" {
				return f.Close()
			}
			return nil
		case <-l.reopen:
			l.flush()
			if err := l.open(); err != nil {
				l.log.Error("access log not reopened; the old file stays in use", "error", err)
			}
		case <-l.full:
			l.flush()
		case <-tick.C:
			l.flush()
		}
	}
}

func (l *Log) flush() {
	l.mu.Lock()
	batch, count := l.waiting, l.count
	l.waiting, l.lines, l.count = l.spare[:0], l.lines+l.count, 0
	l.mu.Unlock()
	if len(batch) > 0 {
		l.write(batch, count)
	}
	l.spare = batch
}

func (l *Log) write(batch []byte, lines uint64) {
	_, err := l.out.Write(batch)
	if err != nil {
		l.dropped.Add(lines)
	}
	if failing := err != nil; failing != l.failing {
		l.failing = failing
		l.log.Error("access log", "failing", failing, "error", err)
	}
}
