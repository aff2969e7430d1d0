package supervise

import (
	"errors"
	"os/exec"
	"runtime"
)

// forker starts every process from one locked thread: the kernel sends the parent-death signal when the thread that
// forked ends, not when the process does, and Go's other threads may end at any time.
type forker struct {
	jobs chan func()
}

func newForker() *forker {
	f := &forker{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for job := range f.jobs {
			job()
		}
	}()
	return f
}

func (f *forker) start(cmd *exec.Cmd) error {
	result := make(chan error, 1)
	f.jobs <- func() { result <- cmd.Start() }
	if err := <-result; err != nil {
		return err
	}
	if cmd.Process == nil {
		return errors.New("supervise: no process")
	}
	return nil
}

// close ends the thread, and with it whatever was forked from it.
func (f *forker) close() { close(f.jobs) }
