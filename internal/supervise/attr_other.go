//go:build !linux

package supervise

import "syscall"

// childAttr puts the child into a process group of its own; only Linux can tie its life to ours.
func childAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
