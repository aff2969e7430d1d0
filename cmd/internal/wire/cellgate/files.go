package cellgate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cellgate/cellgate/cmd/internal/supervisor"
)

// home is the directory of one world.
//
//	lock, control.sock      the running supervisor
//	world.json, ca.pem      for users and tools
//	sample.yaml, api-key    the sample document, and the key of its consumer "partner"
//	size.json               what the world was made with
//	boot/ keys/ data/ logs/ bootstrap files, CAs and identities, the daemons' state, their output
type home string

func (h home) path(elem ...string) string {
	return filepath.Join(append([]string{string(h)}, elem...)...)
}

func (h home) worldFile() string   { return supervisor.WorldFile(string(h)) }
func (h home) controlFile() string { return supervisor.Socket }
func (h home) caFile() string      { return h.path("ca.pem") }
func (h home) logFile(process string) string {
	return h.path("logs", fileName(process)+".log")
}
func (h home) bootFile(process string) string {
	return h.path("boot", fileName(process)+".json")
}

// etcdDir is where a member of an etcd cluster has its data.
func (h home) etcdDir(id string) string { return h.path("data", "etcd", fileName(id)) }

// create makes the directory and its parts, readable by their owner only.
func (h home) create() error {
	for _, d := range []string{"", "boot", "keys", "data", "logs", "secrets"} {
		if err := os.MkdirAll(h.path(d), 0o700); err != nil {
			return fmt.Errorf("world directory: %w", err)
		}
	}
	return nil
}

// writeFile replaces the file in one step: a reader sees the old content or the new, never half of it. What must survive
// a crash of the machine is written with durable.Write instead; this saves many fsyncs at every start.
func writeFile(path string, data []byte) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*") // mode 0600
	if err != nil {
		return err
	}
	_, err = tmp.Write(data)
	if cerr := tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(tmp.Name(), path)
	}
	if err != nil {
		_ = os.Remove(tmp.Name())
	}
	return err
}

func writeJSON(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(path, append(raw, '\n'))
}

// readJSON reads the file; found is false when there is none.
func readJSON(path string, v any) (found bool, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, fmt.Errorf("%s is damaged: %w (remove the directory to start a new world)", path, err)
	}
	return true, nil
}

// keepSize records the size of a new world and refuses to run an old one with another: its stores hold its shape.
func (h home) keepSize(s Size) error {
	var old Size
	found, err := readJSON(h.path("size.json"), &old)
	if err != nil {
		return err
	}
	if !found {
		return writeJSON(h.path("size.json"), s)
	}
	if old != s {
		return fmt.Errorf("%s holds a world of %d regions, %d cells and %d proxies in %s: start it with these figures, or choose another directory (--dir)", h, old.Regions, old.Cells, old.Proxies, old.Net)
	}
	return nil
}
