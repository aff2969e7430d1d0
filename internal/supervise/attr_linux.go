package supervise

import "syscall"

// childAttr puts the child into a process group of its own, away from the terminal's signals, and ties its life to ours.
func childAttr() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
