package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/cellgate/cellgate/cmd/internal/supervisor"
	"github.com/cellgate/cellgate/internal/handover"
	"github.com/cellgate/cellgate/proxy/listen"
)

// takeoverFlag makes a process take the place of the one that runs with the same state directory.
const takeoverFlag = "takeover"

// place is what a process holds alone and may pass on: the state directory and the sockets.
type place struct {
	dir     string // empty = none: nobody can take over
	lock    *os.File
	sockets *listen.Sockets
	taken   *handover.Taken // nil = started as usual
	giver   *handover.Giver
	orders  handover.Options
	again   time.Duration // between attempts to take orders
	self    string        // how this binary is found, also when it is another one by then
}

// newPlace asks the process that runs with dir for its place, if it is to be taken over and there is one.
func newPlace(ctx context.Context, dir string, takeover bool) (p *place, err error) {
	p = &place{dir: dir, sockets: new(listen.Sockets), again: 5 * time.Second}
	if p.self, err = exec.LookPath(os.Args[0]); err == nil {
		p.self, err = filepath.Abs(p.self)
	}
	if err != nil {
		return nil, fmt.Errorf("the path of this binary: %w", err)
	}
	if dir == "" || !takeover {
		return p, nil
	}
	p.taken, err = handover.Take(ctx, dir)
	if errors.Is(err, handover.ErrNobody) {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("takeover: %w", err)
	}
	p.sockets, p.lock = listen.Given(p.taken.Sockets), p.taken.Lock
	return p, nil
}

// own makes the directory this process's, unless it came with a takeover.
func (p *place) own() (err error) {
	if p.dir == "" || p.lock != nil {
		return nil
	}
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	p.lock, err = handover.Lock(p.dir)
	return err
}

// failed tells the process that was to be taken over from; err is passed on.
func (p *place) failed(err error) error {
	if p.taken != nil && err != nil {
		p.taken.Fail(err)
	}
	return err
}

// confirm tells the process before this one, if there is one, to leave, and begins to take orders. On an error that one serves
// on, and this one must not.
func (p *place) confirm(h handover.Holder, log *slog.Logger) error {
	p.orders = handover.Options{Holder: h, Successor: p.successor, Log: log}
	if p.taken != nil {
		if err := p.taken.Serving(); err != nil {
			return fmt.Errorf("takeover: %w", err)
		}
		p.sockets.Alone()
		p.orders.Predecessor = p.taken.Gone()
	}
	if p.dir != "" {
		var err error
		if p.giver, err = handover.Listen(p.dir, p.lock, p.orders); err != nil {
			log.Error("this process can't be upgraded for now", "error", err)
		}
	}
	tellSystemd("READY=1")
	return nil
}

// serve takes orders until ctx ends. What has kept it from that, such as a full disk, may pass.
func (p *place) serve(ctx context.Context) error {
	if p.dir == "" {
		return nil
	}
	for p.giver == nil {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(p.again):
		}
		var err error
		if p.giver, err = handover.Listen(p.dir, p.lock, p.orders); err == nil {
			p.orders.Log.Info("this process can be upgraded")
		}
	}
	return p.giver.Run(ctx)
}

// successor is the command line of this process once more, with what lies at the binary's path by then.
func (p *place) successor() (*exec.Cmd, error) {
	if err := replaceable(os.Getpid(), os.Getenv); err != nil {
		return nil, err
	}
	args := slices.Clone(os.Args[1:])
	if !slices.Contains(args, "--"+takeoverFlag) {
		args = append(args, "--"+takeoverFlag)
	}
	cmd := exec.Command(p.self, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	return cmd, nil
}

// replaceable says why the end of this process would be taken for the end of the service.
func replaceable(pid int, env func(string) string) error {
	switch {
	case env(supervisor.UpgradeEnv) != "":
		return fmt.Errorf("this process has a supervisor, which must start the new one: %s", env(supervisor.UpgradeEnv))
	case pid == 1:
		return errors.New("the first process of a container ends its container: start a new container")
	case env("SYSTEMD_EXEC_PID") == strconv.Itoa(pid) && env("NOTIFY_SOCKET") == "":
		return errors.New("systemd would end the service with this process: its unit needs Type=notify")
	}
	return nil
}

// tellSystemd sends a word to the service manager, if one asked for it; see sd_notify(3).
func tellSystemd(word string) {
	name := os.Getenv("NOTIFY_SOCKET")
	if name == "" {
		return
	}
	if name[0] == '@' {
		name = "\x00" + name[1:]
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return
	}
	defer c.Close()
	_, _ = c.Write([]byte(word))
}

// holder is a node as its successor meets it.
type holder struct {
	*core
	place *place
	lend  func() (json.RawMessage, error) // what a node of a world does besides; nil = nothing
	back  func()
	leave func()
}

func (h *holder) Sockets() ([]handover.Handed, error) { return h.place.sockets.Hand() }

func (h *holder) Yield() (note json.RawMessage, err error) {
	if h.lend != nil {
		if note, err = h.lend(); err != nil {
			return nil, err
		}
	}
	h.place.sockets.Yield()
	return note, nil
}

func (h *holder) Resume() {
	h.place.sockets.Resume()
	if h.back != nil {
		h.back()
	}
}

func (h *holder) Leave(successor int) {
	h.log.Info("another process serves; this one ends what is under way", "successor", successor)
	tellSystemd(fmt.Sprintf("MAINPID=%d", successor))
	h.place.sockets.Left()
	h.server.Succeed()
	h.leave()
}
