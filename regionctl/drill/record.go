package drill

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cellgate/cellgate/internal/durable"
)

// stamp begins the id of a run.
const stamp = "20060102T150405Z"

// maxRecords bounds how many runs a directory keeps; the oldest go first.
const maxRecords = 500

// Claim takes the right to run drills in the world whose records the directory holds: one at a time. release gives it back;
// the kernel does when the process ends.
func Claim(dir string) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("records of drills: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("records of drills: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, errors.New("another drill runs in this world: one at a time, or neither would know what it measures")
	}
	return func() { _ = f.Close() }, nil
}

// underWay says whether a drill holds the claim now.
func underWay(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "lock"))
	if err != nil {
		return false
	}
	defer f.Close()
	return syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB) != nil
}

// decode reads the record with the id.
func decode(id string, raw []byte) Result {
	var r Result
	err := json.Unmarshal(raw, &r)
	if err == nil && r.Form != Form {
		err = fmt.Errorf("form %d is not readable here", r.Form)
	}
	if err == nil {
		return r
	}
	at, name, _ := strings.Cut(id, "-")
	began, _ := time.Parse(stamp, at) // an odd name is an old one
	return Result{Form: Form, ID: id, Drill: name, Began: began, Outcome: Unreadable, Why: err.Error()}
}

// Save writes the record of a run, replacing an earlier one of the same run.
func Save(dir string, r Result) error {
	raw, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := durable.Write(filepath.Join(dir, r.ID+".json"), append(raw, '\n')); err != nil {
		return fmt.Errorf("record of the drill: %w", err)
	}
	return prune(dir)
}

func prune(dir string) error {
	names, err := records(dir)
	for len(names) > maxRecords && err == nil {
		err = os.Remove(filepath.Join(dir, names[0]))
		names = names[1:]
	}
	return err
}

// records are the names of the files, oldest first: they begin with the time.
func records(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("records of drills: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".json") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}

// List gives the runs on record, newest first. One that can't be read says so in its place.
func List(dir string) ([]Result, error) {
	names, err := records(dir)
	if err != nil {
		return nil, err
	}
	var all []Result
	for _, name := range names {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, fmt.Errorf("record of a drill: %w", err)
		}
		all = append(all, decode(strings.TrimSuffix(name, ".json"), raw))
	}
	if idle := !underWay(dir); idle {
		for i := range all {
			if r := &all[i]; r.Outcome == Running {
				r.Outcome, r.Why = Killed, "its process ended before it could put back what it had broken: cellgate status shows what is down, regionctl status what is evacuated"
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Result) int { return cmp.Or(b.Began.Compare(a.Began), strings.Compare(b.ID, a.ID)) })
	return all, nil
}
