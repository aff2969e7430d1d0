package cellgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cellgate/cellgate/internal/supervise"
)

// request is what a command asks of the running supervisor, one per connection.
type request struct {
	Op       string   `json:"op"` // status, start, stop, kill, backend, down
	Patterns []string `json:"patterns,omitempty"`
	Faults   *faults  `json:"faults,omitempty"`
}

// response is the supervisor's answer.
type response struct {
	Error     string             `json:"error,omitempty"`
	Processes []supervise.Status `json:"processes,omitempty"`
	Matched   []string           `json:"matched,omitempty"`
	Ready     bool               `json:"ready"`
	PID       int                `json:"pid"`
	Memory    int64              `json:"memory_bytes,omitempty"`
}

// inDir runs do with a path of the file that is short enough for a socket address, however long the directory's name is.
func inDir(dir, file string, do func(path string) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return do(filepath.Join(fmt.Sprintf("/proc/self/fd/%d", d.Fd()), file))
}

// control is the supervisor's socket in the world's directory: who may write to the directory may give orders.
type control struct {
	listener *net.UnixListener
	handle   func(context.Context, request) response
	// answering counts requests that are not yet answered; close waits for them.
	answering sync.WaitGroup
}

func listenControl(h home, handle func(context.Context, request) response) (*control, error) {
	c := &control{handle: handle}
	err := inDir(string(h), h.controlFile(), func(path string) error {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) { // a dead supervisor's; the lock is ours
			return err
		}
		ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			return err
		}
		ln.SetUnlinkOnClose(false)
		c.listener = ln
		return os.Chmod(path, 0o600)
	})
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	return c, nil
}

// serve answers until the listener is closed.
func (c *control) serve(ctx context.Context) {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return
		}
		c.answering.Add(1)
		go func() {
			defer c.answering.Done()
			c.answer(ctx, conn)
		}()
	}
}

func (c *control) answer(ctx context.Context, conn net.Conn) {
	defer conn.Close()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	var req request
	if err := json.NewDecoder(io.LimitReader(conn, 64<<10)).Decode(&req); err != nil {
		_ = json.NewEncoder(conn).Encode(response{Error: "unreadable request: " + err.Error()})
		return
	}
	res := c.handle(ctx, req)
	_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	_ = json.NewEncoder(conn).Encode(res) // a client that went away gets no answer
}

func (c *control) close(h home) {
	_ = c.listener.Close()
	c.answering.Wait()
	_ = os.Remove(h.path(h.controlFile()))
}

// errNotRunning: no supervisor holds the directory.
var errNotRunning = errors.New("no world is running")

// call asks the supervisor of the directory and waits for its answer as long as ctx lives.
func call(ctx context.Context, h home, req request) (response, error) {
	var res response
	if _, err := os.Stat(string(h)); err != nil {
		return res, fmt.Errorf("there is no world in %s: start one with `cellgate up`, or name its directory with --dir", h)
	}
	if !running(string(h)) {
		return res, fmt.Errorf("%w in %s", errNotRunning, h)
	}
	err := inDir(string(h), h.controlFile(), func(path string) error {
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
	if err != nil && !running(string(h)) { // it ended meanwhile
		return res, fmt.Errorf("%w in %s", errNotRunning, h)
	}
	if err != nil {
		return res, fmt.Errorf("the supervisor of %s does not answer: %w", h, err)
	}
	if res.Error != "" {
		return res, errors.New(res.Error)
	}
	return res, nil
}
