// Package disk is a store in one directory, for worlds without etcd: everything in memory, every commit in a log on disk
// before it is applied. One process has it open; a process that is killed at any instant loses nothing that was committed.
//
//	s, err := disk.Open("/var/lib/cellgate/store")
package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/durable"
	"github.com/cellgate/cellgate/store"
	"github.com/cellgate/cellgate/store/mem"
)

const (
	logName  = "store.log"
	lockName = "lock"
	// minGarbage is how many bytes of commits gather behind the state before the log is rewritten, at least.
	minGarbage = 1 << 20
)

// ErrLocked says that another process has the directory open.
var ErrLocked = errors.New("store: the directory is open in another process")

// Store is the first handle on the directory; Join opens more. Closing it closes the directory for all of them.
type Store struct {
	*mem.Store
	log  *log
	lock *os.File
}

// Open reads the directory, and makes it when there is none. A commit that was cut off at the end of the log was never
// acknowledged and is dropped; any other damage is an error that says where it is. Leases died with their holders.
func Open(dir string) (*Store, error) { return open(dir, noFault) }

func open(dir string, fault fault) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, lockName), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("store: %w", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		lock.Close()
		return nil, fmt.Errorf("%w: %s", ErrLocked, dir)
	}
	l := &log{path: filepath.Join(dir, logName), fault: fault}
	state, err := l.load()
	if err != nil {
		lock.Close()
		return nil, err
	}
	return &Store{Store: mem.Open(state, l.append), log: l, lock: lock}, nil
}

// Close ends every handle: commits fail from then on.
func (s *Store) Close() error {
	err := errors.Join(s.Store.Close(), s.log.close(), s.lock.Close())
	if err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("store: close: %w", err)
	}
	return nil
}

// fault stands between the log and the disk, so that tests can let each step fail before or after it was done.
type fault func(step string, do func() error) error

func noFault(_ string, do func() error) error { return do() }

// log is the file: one state, then commits. mu guards it against close; append is called under the data's lock.
type log struct {
	path  string
	fault fault

	mu     sync.Mutex
	file   *os.File
	closed bool
	// size is the length of what is known to be whole, base that of the state at its beginning.
	size, base int64
	// broken is the first failure since the last rewrite: what the file ends with is unknown, so nothing is appended to it.
	broken error
}

// load reads the file, drops a torn tail and the keys of dead leases.
func (l *log) load() (mem.State, error) {
	raw, err := os.ReadFile(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		state := mem.State{Entries: map[string]mem.Held{}}
		return state, l.rewrite(&state)
	}
	if err != nil {
		return mem.State{}, fmt.Errorf("store: %w", err)
	}
	state, base, size, err := decode(raw)
	if err != nil {
		return mem.State{}, fmt.Errorf("%s: %w", l.path, err)
	}
	if l.file, err = os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0); err != nil {
		return mem.State{}, fmt.Errorf("store: %w", err)
	}
	l.base, l.size = base, size
	if size < int64(len(raw)) {
		if err := l.file.Truncate(size); err != nil {
			return mem.State{}, fmt.Errorf("store: torn tail: %w", err)
		}
	}
	return state, l.bury(&state)
}

// bury deletes the keys of leases, whose holders are all dead.
func (l *log) bury(state *mem.State) error {
	var ops []store.Op
	for key, held := range state.Entries {
		if held.Leased {
			ops = append(ops, store.Delete(key))
		}
	}
	if len(ops) == 0 {
		return nil
	}
	rev := state.Revision + 1
	if err := l.append(rev, ops, state); err != nil {
		return err
	}
	state.Apply(rev, ops)
	return nil
}

// append makes a commit durable: write, fsync. Before that the log is rewritten when it is long or its end unknown.
func (l *log) append(rev store.Revision, ops []store.Op, state *mem.State) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return store.ErrClosed
	}
	if l.broken != nil || l.size-l.base > max(minGarbage, 2*l.base) {
		if err := l.rewrite(state); err != nil {
			return err
		}
	}
	record := frame(encodeCommit(rev, ops))
	err := l.fault("write", func() error { _, err := l.file.Write(record); return err })
	if err == nil {
		err = l.fault("sync", l.file.Sync)
	}
	if err != nil {
		l.broken = fmt.Errorf("store: %s: %w", l.path, err)
		return l.broken
	}
	l.size += int64(len(record))
	return nil
}

// rewrite puts a file with nothing but the state in the log's place. Until that has worked, nothing is appended.
func (l *log) rewrite(state *mem.State) error {
	raw := append([]byte(header), frame(encodeState(state))...)
	err := l.fault("rewrite", func() error { return durable.Write(l.path, raw) })
	var file *os.File
	if err == nil {
		err = l.fault("open", func() (err error) {
			file, err = os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND, 0)
			return err
		})
	}
	if err != nil {
		if file != nil {
			file.Close()
		}
		l.broken = fmt.Errorf("store: %w", err)
		return l.broken
	}
	if l.file != nil {
		l.file.Close()
	}
	l.file, l.broken = file, nil
	l.base, l.size = int64(len(raw)), int64(len(raw))
	return nil
}

func (l *log) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
