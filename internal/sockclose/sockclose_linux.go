// Package sockclose lets a listening TCP socket be closed without a reset for anyone: closing one resets the connections
// that wait in its queue, and whoever connects at any time finds a place in that queue.
//
//	sockclose.Quiesce(l); time.Sleep(aWhile) // the accept loop goes on and empties the queue
//	l.Close()
package sockclose

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// Quiesce makes the kernel ignore connections that begin now. Their clients ask again after a second, and find what is
// there then: a sibling in the SO_REUSEPORT group, a successor, or a refusal. Handshakes under way end as usual.
// Multipath TCP, which net.Listen uses where it can, is not supported. A listener that has a Quiesce of its own is asked.
func Quiesce(l net.Listener) error {
	if own, ok := l.(interface{ Quiesce() error }); ok {
		return own.Quiesce()
	}
	sc, ok := l.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return fmt.Errorf("sockclose: %w", err)
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = QuiesceFD(int(fd)) })
	if err == nil {
		err = set
	}
	if err != nil {
		return fmt.Errorf("sockclose: %w", err)
	}
	return nil
}

// QuiesceFD does it to a descriptor.
func QuiesceFD(fd int) error {
	// The program sees a segment from its TCP header on: byte 13 holds the flags, 0x02 is SYN. Connections inherit it
	// and carry no SYN.
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 13},
		{Code: unix.BPF_ALU | unix.BPF_AND | unix.BPF_K, K: 0x02},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: 0x02, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0},
		{Code: unix.BPF_RET | unix.BPF_K, K: 0xffffffff},
	}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]})
}
