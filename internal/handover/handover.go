// Package handover lets a process take another's place without anybody noticing: the new one asks the old one for copies of
// its listening sockets, over a Unix socket in a directory that both know, and gets ready beside it. Only then does the old
// one leave. The sockets are never closed, so that what waits in their queues is served.
//
//	new                            old
//	take     ─────────────────▶    refuses while another one takes over, or when it is leaving
//	         ◀───────── sockets    both hold them; the old one serves
//	(loads, gets ready)
//	ready    ─────────────────▶    yields what only one process may do
//	         ◀──── yours, a note
//	(serves)
//	serving  ─────────────────▶
//	         ◀──────────── done    leaves: ends what is under way, then itself
//
// What fails before "serving", or takes too long, leaves the old one as it was. If the old one dies before it leaves, the
// new one goes on as if it had been told to.
//
//	g, err := handover.Listen(dir, handover.Options{Holder: …})   // old
//	err = g.Run(ctx)
//
//	t, err := handover.Take(ctx, dir)                             // new
//	… t.Sockets …
//	note, err := t.Ready(ctx)
//	err = t.Serving()
//
// Each directory has one owner: who holds its lock, which is handed over as a socket is.
package handover

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// socketFile and lockFile are what the package has in a directory. The socket is its owner's alone.
const (
	socketFile = "upgrade.sock"
	lockFile   = "lock"
)

// Handed is a set of descriptors with what they are for. Name is the holder's own word.
type Handed struct {
	Name string
	FDs  []int // at most maxFDs
}

// Close closes the descriptors.
func (h Handed) Close() {
	for _, fd := range h.FDs {
		unix.Close(fd)
	}
}

// ErrRefused marks an answer of the running process that says no; it goes on as before.
var ErrRefused = errors.New("refused")

// Lock makes the directory the process's own. It is an error when another process has it.
func Lock(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s belongs to a process that runs", dir)
		}
		return nil, fmt.Errorf("lock %s: %w", dir, err)
	}
	return f, nil
}

// held says whether a process has the directory.
func held(dir string) bool {
	f, err := os.Open(filepath.Join(dir, lockFile))
	if err != nil {
		return false
	}
	defer f.Close()
	return errors.Is(unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// The steps of the protocol. Each message is one record of a SOCK_SEQPACKET socket.
const (
	stepTake    = "take"    // new: give me the sockets
	stepSocket  = "socket"  // old: one set of descriptors
	stepReady   = "ready"   // new: I could serve; old, after the sockets: that was the last
	stepYours   = "yours"   // old: what only one may do is yours
	stepServing = "serving" // new: leave
	stepFailed  = "failed"  // new: I can't, because
	stepRefused = "refused" // old: no, because
	stepUpgrade = "upgrade" // a command: start your successor
	stepDone    = "done"    // old: the successor serves
)

const (
	form       = 1
	maxFDs     = 4
	maxMessage = 64 << 10
	answerTime = 5 * time.Second // for what needs no preparation
)

// message is one record; what a step doesn't need is absent.
type message struct {
	Form   int             `json:"form"`
	Step   string          `json:"step"`
	Name   string          `json:"name,omitempty"`
	Why    string          `json:"why,omitempty"`
	Note   json.RawMessage `json:"note,omitempty"`
	Within time.Duration   `json:"within_ns,omitempty"`
	PID    int             `json:"pid,omitempty"`
}

// line is one end of a connection.
type line struct{ *net.UnixConn }

func (l line) send(m message, fds ...int) error {
	m.Form = form
	raw, err := json.Marshal(m)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	_ = l.SetWriteDeadline(time.Now().Add(answerTime))
	_, _, err = l.WriteMsgUnix(raw, rights, nil)
	return err
}

// receive gives the next message with its descriptors, which are the caller's then. io.EOF is the other side's end.
func (l line) receive(by time.Time) (m message, fds []int, err error) {
	raw, oob := make([]byte, maxMessage), make([]byte, unix.CmsgSpace(4*maxFDs))
	_ = l.SetReadDeadline(by)
	n, on, flags, _, err := l.ReadMsgUnix(raw, oob)
	if err != nil {
		return m, nil, err
	}
	if fds, err = rights(oob[:on]); err == nil && flags&(unix.MSG_CTRUNC|unix.MSG_TRUNC) != 0 {
		err = errors.New("handover: a message that is too long, or more descriptors than this process may have")
	}
	if err == nil {
		if err = json.Unmarshal(raw[:n], &m); err == nil && m.Form != form {
			err = fmt.Errorf("handover: a message of form %d; this process knows %d", m.Form, form)
		}
	}
	if err != nil {
		Handed{FDs: fds}.Close()
		return message{}, nil, err
	}
	return m, fds, nil
}

func rights(oob []byte) (fds []int, err error) {
	parts, err := unix.ParseSocketControlMessage(oob)
	for _, p := range parts {
		more, fault := unix.ParseUnixRights(&p)
		fds, err = append(fds, more...), errors.Join(err, fault)
	}
	return fds, err
}

// same says whether the other end is a process of the same user, or of the superuser, and gives its id.
func (l line) same() (pid int, err error) {
	raw, err := l.SyscallConn()
	if err != nil {
		return 0, err
	}
	var uid int
	var fault error
	if err := raw.Control(func(fd uintptr) { pid, uid, fault = Peer(int(fd)) }); err != nil {
		return 0, err
	}
	if fault == nil && uid != os.Geteuid() && uid != 0 {
		fault = fmt.Errorf("handover: the other process belongs to user %d, not to %d", uid, os.Geteuid())
	}
	return pid, fault
}

// nobody says whether an error of connecting means that no process listens.
func nobody(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}
