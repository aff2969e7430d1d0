package supervise

import (
	"io"
	"os"
	"time"
)

// rotate bounds the log files. Processes hold them open for appending, so a full one is copied to FILE.1 and cut to zero;
// what is written between the copy and the cut is lost.
func (g *Group) rotate() {
	defer g.loops.Done()
	tick := time.NewTicker(5 * time.Second)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			files := append([]string{}, g.opts.Files...)
			for _, n := range g.Names() {
				files = append(files, g.child(n).spec.Log)
			}
			for _, f := range files {
				if err := bound(f, g.opts.MaxLog); err != nil {
					g.opts.Log.Warn("log not rotated", "file", f, "err", err)
				}
			}
		case <-g.quit:
			return
		}
	}
}

// bound moves the last half of most bytes of an oversized file to path.1 and empties the file.
func bound(path string, most int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.Size() <= most {
		return err
	}
	old, err := os.OpenFile(path+".1", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	keep := min(info.Size(), most)
	_, err = io.Copy(old, io.NewSectionReader(f, info.Size()-keep, keep))
	if cerr := old.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return err
	}
	return f.Truncate(0)
}
