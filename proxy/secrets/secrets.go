// Package secrets reads what documents name and must not hold: files in one directory of the node, or in one directory below it
// that is named after a tenant, whose requests alone may make use of them. They are read when a program
// begins to need them and again every five seconds, so that a rotation needs neither a restart nor a publication.
//
//	store := secrets.New(dir, log)
//	err := store.Want([]secrets.Need{secrets.Text("idp.secret")}) // all there, or an error that names the file
//	s := store.Get("acme", "idp.secret")                          // nil = not wanted, or another tenant's
//
// A file that goes bad or away leaves what was read in use and is said once in the log. What a file holds is never in an error.
package secrets

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/snapshot"
)

// MaxFile bounds a file in bytes whose Need says nothing else.
const MaxFile = 64 << 10

// every is how often the files are looked at.
const every = 5 * time.Second

// Need is a file, and what its bytes come to. Read's errors must not hold what is in the file.
type Need struct {
	Name string
	Kind string // of what Read gives; one file is of one kind
	Most int64  // bytes that it may have; 0 = MaxFile
	Read func([]byte) (any, error)
}

// Store is safe for concurrent use. Looking up takes no lock.
type Store struct {
	dir string
	log *slog.Logger

	current atomic.Pointer[map[string]*Secret] // replaced, never changed

	mu   sync.Mutex // held by who replaces
	said map[string]string
}

// Secret is one file's content. It is immutable.
type Secret struct {
	Value any
	// Digest is that of the file. It is no secret's stand-in: keep it in the process.
	Digest [sha256.Size]byte
	need   Need
}

// New takes the directory; without one there are no secrets.
func New(dir string, log *slog.Logger) *Store {
	s := &Store{dir: dir, log: log, said: map[string]string{}}
	s.current.Store(&map[string]*Secret{})
	return s
}

// Get is the secret of that name, for a request of the tenant; nil when Want has not been told of it, or it is for another
// tenant. Nil has none. It doesn't allocate.
func (s *Store) Get(tenant, name string) *Secret {
	if s == nil || !snapshot.SecretFor(tenant, name) {
		return nil
	}
	return (*s.current.Load())[name]
}

// Check says whether all could be had, without keeping any.
func (s *Store) Check(needs []Need) error {
	var errs []error
	for _, n := range needs {
		if _, err := s.read(n, nil); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, mixed(needs))...)
}

// mixed reports a file that is to be of two kinds.
func mixed(needs []Need) error {
	kinds := map[string]string{}
	for _, n := range needs {
		if k, named := kinds[n.Name]; named && k != n.Kind {
			return fmt.Errorf("secrets: %s is named as %s and as %s", n.Name, k, n.Kind)
		}
		kinds[n.Name] = n.Kind
	}
	return nil
}

// Want reads those that are new and forgets those that are not named. With an error nothing changes. One that was read before
// stays in use even if its file is bad now.
func (s *Store) Want(needs []Need) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old, next := *s.current.Load(), map[string]*Secret{}
	errs := []error{mixed(needs)}
	for _, n := range needs {
		if have := old[n.Name]; have != nil && have.need.Kind == n.Kind {
			next[n.Name] = have
			continue
		}
		one, err := s.read(n, nil)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		next[n.Name] = one
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	s.current.Store(&next)
	return nil
}

// Run looks at the files until ctx ends.
func (s *Store) Run(ctx context.Context) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			s.Reload()
		}
	}
}

// Reload reads all files again.
func (s *Store) Reload() {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := map[string]*Secret{}
	for name, have := range *s.current.Load() {
		next[name] = have
		one, err := s.read(have.need, have)
		switch {
		case err != nil && s.said[name] != err.Error():
			s.log.Error("a file with a secret is refused, what was read stays in use", "error", err)
			s.said[name] = err.Error()
		case err == nil:
			if delete(s.said, name); one.Digest != have.Digest {
				next[name] = one
				s.log.Info("a secret was renewed", "file", name)
			}
			s.over(name, one, time.Now())
		}
	}
	s.current.Store(&next)
}

// mortal is what is of no use any more after some time.
type mortal interface{ Ends() time.Time }

// over gives the alarm, once, for what has come to its end.
func (s *Store) over(name string, one *Secret, now time.Time) {
	m, ok := one.Value.(mortal)
	if !ok || !now.After(m.Ends()) {
		return
	}
	key, end := name+" ends", m.Ends().Format(time.RFC3339)
	if s.said[key] != end {
		s.said[key] = end
		s.log.Error("ALARM: a file is out of date and nobody has renewed it", "file", name, "kind", one.need.Kind, "ended", end)
	}
}

// read takes a regular file of the directory, without following the name out of it. What is the same as before it gives back.
func (s *Store) read(n Need, before *Secret) (*Secret, error) {
	if s.dir == "" {
		return nil, fmt.Errorf("secrets: %s: this node has no directory of secrets (--secrets DIR, or secrets of its bootstrap file)", n.Name)
	}
	if !snapshot.ValidSecret(n.Name) {
		return nil, fmt.Errorf("secrets: %q is not the name of a file", n.Name)
	}
	f, err := os.OpenFile(filepath.Join(s.dir, n.Name), os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe would keep us
	if err != nil {
		return nil, fmt.Errorf("secrets: %w", err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fmt.Errorf("secrets: %s is not a file", n.Name)
	}
	most := cmp.Or(n.Most, MaxFile)
	raw, err := io.ReadAll(io.LimitReader(f, most+1))
	sum := sha256.Sum256(raw)
	switch {
	case err != nil:
		return nil, fmt.Errorf("secrets: %w", err)
	case int64(len(raw)) > most:
		return nil, fmt.Errorf("secrets: %s is larger than %d bytes", n.Name, most)
	case before != nil && before.Digest == sum:
		return before, nil
	}
	v, err := n.Read(raw)
	if err != nil {
		return nil, fmt.Errorf("secrets: %s: %w", n.Name, err)
	}
	return &Secret{Value: v, Digest: sum, need: n}, nil
}

var errText = errors.New("it does not hold one line of printable characters")

// Text needs a file of one line, whose end is not part of it. Its value is a string.
func Text(name string) Need { return Need{Name: name, Kind: "a text", Read: text} }

func text(raw []byte) (any, error) {
	line := bytes.TrimRight(raw, "\r\n")
	if len(line) == 0 || bytes.ContainsFunc(line, func(r rune) bool { return r < 0x20 || r > 0x7e }) {
		return nil, errText
	}
	return string(line), nil
}
