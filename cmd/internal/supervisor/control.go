// Package supervisor is what commands know of a world that runs on this machine: its world.json and the control socket of
// its supervisor.
//
//	world, err := supervisor.Read(dir)
//	res, err := supervisor.Call(ctx, dir, supervisor.Request{Op: supervisor.Stop, Patterns: []string{"proxy/eu-west/a/*"}})
package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/sockdir"
	"github.com/cellgate/cellgate/internal/supervise"
)

// Socket is the name of the control socket in a world's directory: who may write to the directory may give orders.
const Socket = "control.sock"

// LockFile is the name of the file in a world's directory that its supervisor holds locked.
const LockFile = "lock"

// UpgradeEnv is the variable that tells a daemon which command replaces it by a new process: its supervisor must start that.
const UpgradeEnv = "CELLGATE_UPGRADE"

// The orders of a Request.
const (
	Status  = "status"
	Upgrade = "upgrade"
	Start   = "start"
	Stop    = "stop"
	Kill    = "kill"
	Backend = "backend"
	Down    = "down"
)

// Request is what a command asks of the running supervisor, one per connection.
type Request struct {
	Op       string   `json:"op"`
	Patterns []string `json:"patterns,omitempty"`
	Faults   *Faults  `json:"faults,omitempty"` // of Backend
	Memory   bool     `json:"memory,omitempty"` // of Status: measured, too, which may have to wait for each process
}

// Response is the supervisor's answer.
type Response struct {
	Error     string             `json:"error,omitempty"`
	Processes []supervise.Status `json:"processes,omitempty"`
	Matched   []string           `json:"matched,omitempty"`
	Ready     bool               `json:"ready"`
	PID       int                `json:"pid"`
	Memory    int64              `json:"memory_bytes,omitempty"`
}

// Faults are what a sample backend is told to do wrong. The zero value is a good backend.
type Faults struct {
	FailPercent float64       `json:"fail_percent,omitempty"` // share of requests answered 500, 0–100
	Slow        time.Duration `json:"slow_ns,omitempty"`      // before every answer
}

// Validate says what is out of range.
func (f Faults) Validate() error {
	if !(f.FailPercent >= 0 && f.FailPercent <= 100) {
		return fmt.Errorf("--fail takes 0%% to 100%%, not %v%%", f.FailPercent)
	}
	if f.Slow < 0 || f.Slow > time.Hour {
		return fmt.Errorf("--slow takes 0s to 1h, not %v", f.Slow)
	}
	return nil
}

// ErrNotRunning: no supervisor holds the directory.
var ErrNotRunning = errors.New("no world is running")

// Call asks the supervisor of the directory and waits for its answer as long as ctx lives.
func Call(ctx context.Context, dir string, req Request) (Response, error) {
	var res Response
	if _, err := os.Stat(dir); err != nil {
		return res, fmt.Errorf("there is no world in %s: start one with `cellgate up`, or name its directory with --dir", dir)
	}
	if !Running(dir) {
		return res, notRunning(dir)
	}
	err := sockdir.In(dir, Socket, func(path string) error {
		conn, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err != nil {
			return err
		}
		defer conn.Close()
		stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
		defer stop()
		if err := json.NewEncoder(conn).Encode(req); err != nil {
			return err
		}
		return json.NewDecoder(conn).Decode(&res)
	})
	if err != nil && !Running(dir) { // it ended meanwhile
		return res, notRunning(dir)
	}
	if err != nil && ctx.Err() != nil {
		return res, fmt.Errorf("no longer waiting for the supervisor of %s; what was ordered stands: %w", dir, context.Cause(ctx))
	}
	if err != nil {
		return res, fmt.Errorf("the supervisor of %s does not answer: %w", dir, err)
	}
	if res.Error != "" {
		return res, errors.New(res.Error)
	}
	return res, nil
}

func notRunning(dir string) error {
	return fmt.Errorf("%w in %s: start it with `cellgate up --dir %s`", ErrNotRunning, dir, dir)
}

// Running says whether a supervisor holds the directory.
func Running(dir string) bool {
	f, err := os.OpenFile(filepath.Join(dir, LockFile), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	query := unix.Flock_t{Type: unix.F_WRLCK}
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &query)
	return err == nil && query.Type != unix.F_UNLCK
}
