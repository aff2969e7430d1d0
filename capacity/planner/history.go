package planner

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cellgate/cellgate/cells"
)

// HistoryForm is the version of the stored form of Record.
const HistoryForm = 1

// Record is one line of the history.
type Record struct {
	Form  int          `json:"form"`
	At    time.Time    `json:"at"`
	Cells []CellRecord `json:"cells"`
}

// CellRecord is one cell at one time; RPS and Headroom are null when they were not known.
type CellRecord struct {
	ID       cells.CellID `json:"id"`
	RPS      *float64     `json:"rps"`
	LimitRPS float64      `json:"limit_rps"`
	Headroom *float64     `json:"headroom"`
}

// History is an append-only file of JSON lines that is rotated once, so that it takes twice its bound at most;
// the oldest half is dropped then. A line torn by a crash is left behind and skipped by readers.
type History struct {
	path  string
	bound int64 // bytes of one file

	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenHistory opens or makes dir/history.jsonl. A bound of 0 means 16 MiB.
func OpenHistory(dir string, bound int64) (*History, error) {
	if bound <= 0 {
		bound = 16 << 20
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("planner: history: %w", err)
	}
	h := &History{path: filepath.Join(dir, "history.jsonl"), bound: bound}
	if err := h.open(); err != nil {
		return nil, err
	}
	return h, nil
}

// open is called by OpenHistory and with mu held.
func (h *History) open() error {
	f, err := os.OpenFile(h.path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("planner: history: %w", err)
	}
	info, err := f.Stat()
	if err != nil {
		f.Close()
		return fmt.Errorf("planner: history: %w", err)
	}
	h.file, h.size = f, info.Size()
	return h.endTornLine()
}

func (h *History) endTornLine() error {
	last := make([]byte, 1)
	if h.size == 0 {
		return nil
	}
	if _, err := h.file.ReadAt(last, h.size-1); err != nil {
		return fmt.Errorf("planner: history: %w", err)
	}
	if last[0] == '\n' {
		return nil
	}
	return h.write([]byte("\n"))
}

func (h *History) write(line []byte) error {
	n, err := h.file.Write(line)
	h.size += int64(n)
	if err != nil {
		return fmt.Errorf("planner: history: %w", err)
	}
	return nil
}

// Append adds a record.
func (h *History) Append(r Record) error {
	r.Form = HistoryForm
	line, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("planner: history: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.size > 0 && h.size+int64(len(line))+1 > h.bound {
		if err := h.rotate(); err != nil {
			return err
		}
	}
	return h.write(append(line, '\n'))
}

func (h *History) old() string { return h.path + ".old" }

func (h *History) rotate() error {
	if err := os.Rename(h.path, h.old()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("planner: history: %w", err)
	}
	h.file.Close()
	return h.open()
}

// WriteTo copies the whole history, oldest first.
func (h *History) WriteTo(w io.Writer) (int64, error) {
	var total int64
	for _, path := range []string{h.old(), h.path} {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return total, fmt.Errorf("planner: history: %w", err)
		}
		n, err := io.Copy(w, f)
		f.Close()
		if total += n; err != nil {
			return total, fmt.Errorf("planner: history: %w", err)
		}
	}
	return total, nil
}

// Close ends writing.
func (h *History) Close() error { return h.file.Close() }
