package cellgate

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/cmd/internal/supervisor"
)

// claim is the exclusive right to an address block of this machine. It is a socket in the kernel's abstract namespace,
// which is as wide as the loopback interface and disappears with its process, however that ends.
type claim struct {
	listener net.Listener
}

// claimBlock takes the block, or says which world has it.
func claimBlock(block netip.Prefix, dir string) (*claim, error) {
	name := "@cellgate/" + block.String()
	ln, err := net.Listen("unix", name)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("the address block %s is taken by the world in %s: stop that one (cellgate down --dir …) or choose another block (--net 127.11.0.0/16)", block, holder(name))
	}
	if err != nil {
		return nil, fmt.Errorf("claim of the address block %s: %w", block, err)
	}
	c := &claim{listener: ln}
	go c.tell(dir)
	return c, nil
}

// tell answers everyone who asks with the directory of this world.
func (c *claim) tell(dir string) {
	for {
		conn, err := c.listener.Accept()
		if err != nil {
			return
		}
		_ = conn.SetDeadline(time.Now().Add(time.Second))
		_, _ = conn.Write([]byte(dir + "\n"))
		_ = conn.Close()
	}
}

func (c *claim) release() { _ = c.listener.Close() }

// holder asks the process that has the claim for its directory.
func holder(name string) string {
	conn, err := net.DialTimeout("unix", name, time.Second)
	if err != nil {
		return "an unknown directory"
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second))
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "an unknown directory"
	}
	return strings.TrimSpace(line)
}

// dirLock is the exclusive right to a world's directory; the kernel frees it with the process.
type dirLock struct{ f *os.File }

func lockDir(dir string) (*dirLock, error) {
	f, err := os.OpenFile(filepath.Join(dir, supervisor.LockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock of the directory: %w", err)
	}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK}); err != nil {
		f.Close()
		return nil, fmt.Errorf("a world already runs in %s: see `cellgate status --dir %s`, stop it with `cellgate down --dir %s`, or choose another directory (--dir)", dir, dir, dir)
	}
	return &dirLock{f}, nil
}

// lost says that the lock's file is no longer in the directory, so that it keeps nobody out.
func (l *dirLock) lost() bool {
	there, err := os.Stat(l.f.Name())
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	own, err := l.f.Stat()
	return err == nil && !os.SameFile(own, there)
}

func (l *dirLock) release() { _ = l.f.Close() }

// bindings are the addresses that a process will bind.
type bindings struct {
	process  string
	tcp, udp []netip.AddrPort
}

// checkFree binds every address once without sharing and lets it go: one message names all that are in use.
func checkFree(ctx context.Context, all []bindings) error {
	var taken []string
	seen := map[netip.AddrPort]bool{}
	for _, b := range all {
		for _, a := range b.tcp {
			if !seen[a] {
				seen[a] = true
				taken = note(taken, b.process, "tcp", a, tryTCP(ctx, a))
			}
		}
		for _, a := range b.udp {
			taken = note(taken, b.process, "udp", a, tryUDP(ctx, a))
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("addresses that the world needs are not free: %s (choose another block with --net)", strings.Join(taken, "; "))
	}
	return nil
}

func note(taken []string, process, network string, a netip.AddrPort, err error) []string {
	switch {
	case err == nil:
		return taken
	case errors.Is(err, syscall.EADDRINUSE):
		return append(taken, fmt.Sprintf("%s needs %s %s, address in use", process, network, a))
	default:
		return append(taken, fmt.Sprintf("%s needs %s %s: %v", process, network, a, err))
	}
}

func tryTCP(ctx context.Context, a netip.AddrPort) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", a.String())
	if err != nil {
		return err
	}
	return ln.Close()
}

func tryUDP(ctx context.Context, a netip.AddrPort) error {
	pc, err := new(net.ListenConfig).ListenPacket(ctx, "udp", a.String())
	if err != nil {
		return err
	}
	return pc.Close()
}
