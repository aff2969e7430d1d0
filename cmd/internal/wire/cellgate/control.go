package cellgate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/internal/sockdir"
)

// The words of the control socket.
type (
	request  = supervisor.Request
	response = supervisor.Response
	faults   = supervisor.Faults
)

// control is the supervisor's socket in the world's directory: who may write to the directory may give orders.
type control struct {
	listener *net.UnixListener
	handle   func(context.Context, request) response
	// answering counts requests that are not yet answered; close waits for them.
	answering sync.WaitGroup
}

func listenControl(h home, handle func(context.Context, request) response) (*control, error) {
	c := &control{handle: handle}
	err := sockdir.In(string(h), h.controlFile(), func(path string) error {
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

// call asks the supervisor of the directory and waits for its answer as long as ctx lives.
func call(ctx context.Context, h home, req request) (response, error) {
	return supervisor.Call(ctx, string(h), req)
}
