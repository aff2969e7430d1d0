//go:build linux

package uring

import (
	"fmt"
	"math"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NotDone is the outcome of what the kernel didn't get to.
const NotDone = math.MinInt32

// Ring is a pair of queues shared with the kernel. It belongs to one goroutine.
type Ring struct {
	fd       int
	queues   []byte // the kernel's memory: both queues' heads and tails, and the outcomes
	entries  []byte // the kernel's memory: submissions
	sq       []submission
	cq       []completion
	sqHead   *uint32
	sqTail   *uint32
	cqHead   *uint32
	cqTail   *uint32
	n        uint32  // submissions that wait for Do
	held     []*byte // their buffers, which the collector doesn't see in the kernel's memory
	outcomes []int32
}

// The kernel's structures (include/uapi/linux/io_uring.h).

type setup struct {
	sqEntries, cqEntries, flags, cpu, idle, features, workers uint32
	_                                                         [3]uint32
	sq                                                        struct {
		head, tail, mask, entries, flags, dropped, array, _ uint32
		_                                                   uint64
	}
	cq struct {
		head, tail, mask, entries, overflow, outcomes, flags, _ uint32
		_                                                       uint64
	}
}

type submission struct {
	op, flags uint8
	priority  uint16
	fd        int32
	offset    uint64
	addr      uint64
	length    uint32
	msgFlags  uint32
	user      uint64
	_         [3]uint64
}

type completion struct {
	user    uint64
	outcome int32
	flags   uint32
}

const (
	opSend    = 26
	opReceive = 27

	setupSubmitAll = 1 << 7 // one failure doesn't hold up those behind it
	setupCoopTask  = 1 << 8 // no interrupt when something is over: Do looks itself

	enterGetEvents = 1 << 0

	offsetQueues  = 0
	offsetEntries = 0x10000000
	oneMapping    = 1 << 0 // the feature that both queues lie in one
)

// New makes a ring for at most size calls at once, a power of two.
func New(size uint32) (*Ring, error) {
	p := setup{flags: setupSubmitAll | setupCoopTask}
	fd, _, e := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(size), uintptr(unsafe.Pointer(&p)), 0)
	if e != 0 {
		return nil, fmt.Errorf("io_uring_setup: %w", e)
	}
	r := &Ring{fd: int(fd), held: make([]*byte, p.sqEntries), outcomes: make([]int32, p.sqEntries)}
	if p.features&oneMapping == 0 {
		r.Close()
		return nil, fmt.Errorf("io_uring_setup: %w", unix.ENOSYS)
	}
	length := max(int(p.sq.array+p.sqEntries*4), int(p.cq.outcomes+p.cqEntries*uint32(unsafe.Sizeof(completion{}))))
	var err error
	if r.queues, err = unix.Mmap(r.fd, offsetQueues, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE); err == nil {
		r.entries, err = unix.Mmap(r.fd, offsetEntries, int(p.sqEntries)*int(unsafe.Sizeof(submission{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	}
	if err != nil {
		r.Close()
		return nil, fmt.Errorf("io_uring: mmap: %w", err)
	}
	r.sqHead, r.sqTail, r.cqHead, r.cqTail = r.word(p.sq.head), r.word(p.sq.tail), r.word(p.cq.head), r.word(p.cq.tail)
	r.sq = unsafe.Slice((*submission)(unsafe.Pointer(&r.entries[0])), p.sqEntries)
	r.cq = unsafe.Slice((*completion)(unsafe.Pointer(&r.queues[p.cq.outcomes])), p.cqEntries)
	for i := range p.sqEntries { // submissions are handed over in the order they lie in
		*r.word(p.sq.array + 4*i) = i
	}
	return r, nil
}

func (r *Ring) word(offset uint32) *uint32 { return (*uint32)(unsafe.Pointer(&r.queues[offset])) }

// Close gives all back. The ring can't be used any more.
func (r *Ring) Close() {
	if r.queues != nil {
		_ = unix.Munmap(r.queues)
	}
	if r.entries != nil {
		_ = unix.Munmap(r.entries)
	}
	_ = unix.Close(r.fd)
}

// Len is how many calls wait for Do.
func (r *Ring) Len() int { return int(r.n) }

// Full says that no other call can be added before Do.
func (r *Ring) Full() bool { return int(r.n) == len(r.sq) }

// Receive adds recv(2) into b, which is not empty and is the kernel's until Do has returned.
func (r *Ring) Receive(fd int32, b []byte) { r.add(opReceive, fd, b, unix.MSG_DONTWAIT) }

// Send adds send(2) of b, which is not empty and stays as it is until Do has returned.
func (r *Ring) Send(fd int32, b []byte) { r.add(opSend, fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) }

func (r *Ring) add(op uint8, fd int32, b []byte, flags uint32) {
	tail := *r.sqTail + r.n
	r.held[r.n] = unsafe.SliceData(b)
	r.sq[tail&uint32(len(r.sq)-1)] = submission{op: op, fd: fd, addr: uint64(uintptr(unsafe.Pointer(r.held[r.n]))),
		length: uint32(len(b)), msgFlags: flags, user: uint64(r.n)}
	r.n++
}

// Do carries all calls out, in the order they were added. The outcomes are good until the next Do.
func (r *Ring) Do() []int32 {
	todo := r.n
	r.n = 0
	out := r.outcomes[:todo]
	for i := range out {
		out[i] = NotDone
	}
	start := *r.sqTail
	atomic.StoreUint32(r.sqTail, start+todo)
	for done := uint32(0); done < todo; {
		taken := atomic.LoadUint32(r.sqHead) - start
		flags := uintptr(0)
		if taken == todo { // something is under way, which only a kernel does that takes a socket for one that may block
			flags = enterGetEvents
		}
		_, _, e := syscall.RawSyscall6(unix.SYS_IO_URING_ENTER, uintptr(r.fd), uintptr(todo-taken), uintptr(1), flags, 0, 0)
		got := r.reap(out)
		if done += got; e != 0 && e != unix.EINTR && got == 0 {
			if taken = atomic.LoadUint32(r.sqHead) - start; done == taken {
				break // no memory: what it has not taken, it will not do
			}
		}
	}
	atomic.StoreUint32(r.sqTail, atomic.LoadUint32(r.sqHead))
	return out
}

// reap takes in what is over.
func (r *Ring) reap(out []int32) (n uint32) {
	head, tail := *r.cqHead, atomic.LoadUint32(r.cqTail)
	for ; head != tail; head++ {
		c := &r.cq[head&uint32(len(r.cq)-1)]
		out[c.user] = c.outcome
		n++
	}
	atomic.StoreUint32(r.cqHead, head)
	return n
}
