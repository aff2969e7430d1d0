//go:build !linux

// Package sockclose lets a listening TCP socket be closed without a reset for anyone, where the kernel can: on Linux.
package sockclose

import "net"

// Quiesce does nothing here.
func Quiesce(net.Listener) error { return nil }

// QuiesceFD does nothing here.
func QuiesceFD(int) error { return nil }
