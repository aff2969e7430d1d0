//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cellgate/cellgate/internal/uring"
)

// far is the candidates' other side, both ends in one process of one thread: the backend that answers them, and the clients of the
// HTTP/1.1 rows without TLS. It is made to cost less than any candidate, so that these are what is full: all that it sends
// lies ready, it reads heads only to find their end, one wait for events serves both ends, and what that finds is received and
// answered in two system calls, where the kernel has io_uring.
//
// It is told what to do by lines of JSON on its standard input, an order each, and says on its standard output what came of it.
type far struct {
	ep      int
	ends    []end // by descriptor
	events  [512]unix.EpollEvent
	buf     []byte
	ring    *uring.Ring // nil = none
	posted  []posted    // what goes out with the ring's next call
	orders  *bufio.Reader
	answers map[string][]byte // of the backend, by the first path segment; "" is for the others
	dir     string
	sets    map[set][][]byte

	under *under // the order being carried out
	now   time.Time
}

// end is what one descriptor is.
type end struct {
	kind kind
	head []byte // what has come of a head that isn't whole yet
	out  []byte // of an answer or a request, what doesn't fit into the socket yet

	// Of a client.
	next  int // request to be sent next
	left  int // bytes of the answer that are yet to come; 0 = its head is
	since time.Time
}

// posted is something to be sent, to an end that has nothing else on its way.
type posted struct {
	fd int
	b  []byte
}

const (
	together = 32
	room     = 8 << 10 // of one receive: whoever fills it is read on alone
)

type kind uint8

const (
	none kind = iota
	control
	listening
	backend
	asking
)

// order is one measurement.
type order struct {
	Port, Connections int
	Addr              string
	Length            time.Duration
	Set               set
}

// set is the requests of a load: what they ask for, and how many tokens take turns.
type set struct {
	Paths  paths
	Tokens int
}

// outcome is what came of an order.
type outcome struct {
	Answers, Failed int
	Took            time.Duration
	P50, P99        time.Duration
}

type under struct {
	order
	outcome
	requests  [][]byte
	begun     time.Time
	open      int // requests without an answer
	clients   []int
	latencies []uint32 // µs
}

func farSide(args []string) error {
	flags := flag.NewFlagSet("far", flag.ExitOnError)
	addr, dir := flags.String("addr", "", "of the backend, host:port"), flags.String("dir", "", "where the files are")
	_ = flags.Parse(args) // ends the process itself
	f := &far{buf: make([]byte, together*room+256<<10), orders: bufio.NewReader(os.Stdin), dir: *dir, sets: map[set][][]byte{}}
	if err := f.load(); err != nil {
		return err
	}
	if err := f.open(*addr); err != nil {
		return err
	}
	if ring, err := uring.New(together); err == nil {
		f.ring = ring
	}
	for {
		if err := f.turn(); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
	}
}

// load reads what the backend answers.
func (f *far) load() error {
	f.answers = map[string][]byte{}
	for segment, file := range map[string]string{"": "1k", "large": "100k", "jwks": "jwks"} {
		body, err := os.ReadFile(filepath.Join(f.dir, file))
		if err != nil {
			return err
		}
		f.answers[segment] = fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nServer: backend/1.22.1\r\nDate: %s\r\nContent-Type: text/plain\r\nContent-Length: %d\r\nConnection: keep-alive\r\n\r\n%s",
			time.Now().UTC().Format("Mon, 02 Jan 2006 15:04:05 GMT"), len(body), body)
	}
	return nil
}

// open makes the set of events, with the orders and the backend's socket in it.
func (f *far) open(addr string) (err error) {
	if f.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return err
	}
	if err := f.watch(int(os.Stdin.Fd()), end{kind: control}, unix.EPOLLIN); err != nil {
		return err
	}
	to, err := sockaddr(addr)
	if err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if err := unix.Bind(fd, to); err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	if err := unix.Listen(fd, 4096); err != nil {
		return err
	}
	return f.watch(fd, end{kind: listening}, unix.EPOLLIN)
}

func sockaddr(addr string) (unix.Sockaddr, error) {
	var ip [4]byte
	var port int
	if _, err := fmt.Sscanf(addr, "%d.%d.%d.%d:%d", &ip[0], &ip[1], &ip[2], &ip[3], &port); err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	return &unix.SockaddrInet4{Port: port, Addr: ip}, nil
}

func (f *far) watch(fd int, e end, events uint32) error {
	for len(f.ends) <= fd {
		f.ends = append(f.ends, end{})
	}
	f.ends[fd] = e
	return unix.EpollCtl(f.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: events, Fd: int32(fd)})
}

const edges = unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff

// turn serves what one wait for events finds.
func (f *far) turn() error {
	wait := uintptr(1000)
	if f.under != nil {
		wait = 10
	}
	n, _, e := syscall.RawSyscall6(syscall.SYS_EPOLL_PWAIT, uintptr(f.ep), uintptr(ptr(f.events[:])), uintptr(len(f.events)), wait, 0, 0)
	if e != 0 {
		n = 0
	}
	for some := range slices.Chunk(f.events[:n], together) {
		if err := f.serve(some); err != nil {
			return err
		}
		f.sendPosted()
	}
	if u := f.under; u != nil {
		f.now = time.Now()
		if took := f.now.Sub(u.begun); took > u.Length && (u.open == 0 || took > u.Length+2*time.Second) {
			return f.done()
		}
	}
	return nil
}

// serve serves some events.
func (f *far) serve(some []unix.EpollEvent) error {
	var ready [together]int
	n := 0
	for _, ev := range some {
		fd := int(ev.Fd)
		switch one := &f.ends[fd]; one.kind {
		case control:
			if err := f.obey(); err != nil {
				return err
			}
		case listening:
			f.accept(fd)
		case backend, asking:
			if len(one.out) > 0 && !f.write(fd, nil) || ev.Events&^unix.EPOLLOUT == 0 {
				continue
			}
			if f.ring == nil {
				f.read(fd)
				continue
			}
			ready[n] = fd
			n++
		}
	}
	for i, fd := range ready[:n] {
		f.ring.Receive(int32(fd), f.buf[i*room:][:room])
	}
	if n == 0 {
		return nil
	}
	for i, got := range f.ring.Do() {
		fd := ready[i]
		switch {
		case got > 0:
			f.take(fd, f.buf[i*room:][:got])
			if got == room {
				f.read(fd)
			}
		case got != -int32(unix.EAGAIN):
			f.read(fd)
		}
	}
	return nil
}

func ptr[T any](s []T) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(s)) }

func (f *far) accept(from int) {
	for {
		fd, _, err := unix.Accept4(from, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		if f.watch(fd, end{kind: backend}, edges) != nil {
			unix.Close(fd)
		}
	}
}

func (f *far) drop(fd int) {
	f.ends[fd] = end{}
	unix.Close(fd)
}

// read takes in all that has come. Less than was asked for is all: the next byte is another event.
func (f *far) read(fd int) {
	buf := f.buf[together*room:]
	for more := true; more && f.ends[fd].kind != none; {
		n, _, e := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(fd), uintptr(ptr(buf)), uintptr(len(buf)), 0, 0, 0)
		switch {
		case e == syscall.EAGAIN:
			return
		case e != 0 || n == 0:
			f.ended(fd)
			return
		}
		more = int(n) == len(buf)
		f.take(fd, buf[:n])
	}
}

// take takes in what was read.
func (f *far) take(fd int, b []byte) {
	switch f.ends[fd].kind {
	case backend:
		f.answer(fd, b)
	case asking:
		f.hear(fd, b)
	}
}

var blank = []byte("\r\n\r\n")

// answer answers each head that has come: the requests have no bodies.
func (f *far) answer(fd int, b []byte) {
	e := &f.ends[fd]
	if len(e.head) > 0 {
		b = append(e.head, b...)
		e.head = nil
	}
	for len(b) > 0 {
		n := bytes.Index(b, blank)
		if n < 0 {
			e.head = slices.Clone(b)
			return
		}
		what := f.answers[""]
		if bytes.HasPrefix(b, []byte("GET /large/")) {
			what = f.answers["large"]
		} else if bytes.HasPrefix(b, []byte("GET /jwks")) {
			what = f.answers["jwks"]
		}
		b = b[n+len(blank):]
		if !f.send(fd, what) {
			return
		}
	}
}

// send sends b, now or with the ring's next call. It is false when the connection is gone.
func (f *far) send(fd int, b []byte) bool {
	if f.ring == nil || len(f.ends[fd].out) > 0 {
		return f.write(fd, b)
	}
	if len(f.posted) == together || slices.ContainsFunc(f.posted, func(p posted) bool { return p.fd == fd }) {
		f.sendPosted()
		return f.write(fd, b)
	}
	f.posted = append(f.posted, posted{fd, b})
	return true
}

func (f *far) sendPosted() {
	for _, p := range f.posted {
		f.ring.Send(int32(p.fd), p.b)
	}
	if len(f.posted) == 0 {
		return
	}
	for i, n := range f.ring.Do() {
		switch p := f.posted[i]; {
		case n == int32(len(p.b)):
		case n >= 0 || n == -int32(unix.EAGAIN):
			f.ends[p.fd].out = p.b[max(n, 0):len(p.b):len(p.b)]
		default:
			f.ended(p.fd)
		}
	}
	f.posted = f.posted[:0]
}

// write sends b after what waits. It is false when the connection is gone.
func (f *far) write(fd int, b []byte) bool {
	e := &f.ends[fd]
	if len(e.out) > 0 {
		b = append(e.out, b...)
		e.out = nil
	}
	n, _, err := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(fd), uintptr(ptr(b)), uintptr(len(b)), syscall.MSG_NOSIGNAL, 0, 0)
	if err == syscall.EAGAIN {
		n, err = 0, 0
	}
	if err != 0 {
		f.ended(fd)
		return false
	}
	if int(n) < len(b) {
		e.out = b[n:len(b):len(b)] // a copy is made if something is put behind it
	}
	return true
}

// ended closes a connection that the other end has closed; a client's was to stay open.
func (f *far) ended(fd int) {
	if f.ends[fd].kind == asking && f.under != nil {
		f.under.Failed++
		f.under.open--
	}
	f.drop(fd)
}

// obey begins to carry an order out.
func (f *far) obey() error {
	line, err := f.orders.ReadBytes('\n')
	if err != nil {
		return err
	}
	u := &under{latencies: make([]uint32, 0, 4<<20)}
	if err := json.Unmarshal(line, &u.order); err != nil {
		return err
	}
	if u.requests, err = f.requests(u.Set); err != nil {
		return err
	}
	to, err := sockaddr(fmt.Sprintf("%s:%d", u.Addr, u.Port))
	if err != nil {
		return err
	}
	f.under, f.now = u, time.Now()
	u.begun = f.now
	for i := range u.Connections {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := unix.Connect(fd, to); err != nil {
			return fmt.Errorf("%s:%d: %w", u.Addr, u.Port, err)
		}
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		_ = unix.SetNonblock(fd, true)
		if err := f.watch(fd, end{kind: asking, next: i * len(u.requests) / u.Connections}, edges); err != nil {
			return err
		}
		u.clients = append(u.clients, fd)
		u.open++
		f.ask(fd, f.now)
	}
	return nil
}

// ask sends a client's next request.
func (f *far) ask(fd int, now time.Time) {
	e := &f.ends[fd]
	e.since = now
	request := f.under.requests[e.next]
	if e.next++; e.next == len(f.under.requests) {
		e.next = 0
	}
	f.send(fd, request)
}

// hear takes in what has come of an answer; after its end the client asks again.
func (f *far) hear(fd int, b []byte) {
	e, u := &f.ends[fd], f.under
	if e.left == 0 {
		if len(e.head) > 0 {
			b = append(e.head, b...)
			e.head = nil
		}
		n := bytes.Index(b, blank)
		if n < 0 {
			e.head = slices.Clone(b)
			return
		}
		length, ok := contentLength(b[:n+2])
		if !ok || !bytes.HasPrefix(b, []byte("HTTP/1.1 200 ")) {
			f.ended(fd)
			return
		}
		e.left = n + len(blank) + length
	}
	if e.left -= len(b); e.left > 0 {
		return
	}
	now := time.Now()
	u.latencies = append(u.latencies, uint32(now.Sub(e.since).Microseconds()))
	if now.Sub(u.begun) < u.Length {
		f.ask(fd, now)
	} else {
		u.open--
	}
}

// contentLength reads the field, whose name candidates write as they like.
func contentLength(head []byte) (n int, ok bool) {
	const name = "\r\ncontent-length: "
	i := bytes.Index(head, []byte("\r\nContent-Length: "))
	if i < 0 {
		i = bytes.Index(head, []byte(name))
	}
	if i < 0 {
		return 0, false
	}
	for _, c := range head[i+len(name):] {
		if c < '0' || c > '9' {
			break
		}
		n, ok = n*10+int(c-'0'), true
	}
	return n, ok
}

// done says what came of the order.
func (f *far) done() error {
	u := f.under
	f.under = nil
	for _, fd := range u.clients {
		if f.ends[fd].kind == asking {
			f.drop(fd)
		}
	}
	u.Answers, u.Took = len(u.latencies), f.now.Sub(u.begun)
	u.Failed += u.open
	if n := len(u.latencies); n > 0 {
		slices.Sort(u.latencies)
		u.P50 = time.Duration(u.latencies[n/2]) * time.Microsecond
		u.P99 = time.Duration(u.latencies[n*99/100]) * time.Microsecond
	}
	return json.NewEncoder(os.Stdout).Encode(u.outcome)
}

// requests are those of a set, made once.
func (f *far) requests(s set) ([][]byte, error) {
	if made := f.sets[s]; made != nil {
		return made, nil
	}
	raw, err := os.ReadFile(filepath.Join(f.dir, "tokens"))
	if err != nil {
		return nil, err
	}
	tokens := strings.Fields(string(raw))[:s.Tokens]
	made := make([][]byte, routeCount)
	for k, i := range scattered() {
		host := 0
		if i >= oneHost {
			host = 1 + i%otherHosts
		}
		path := fmt.Sprintf("/v1/s%d/items/%d", i, k)
		if s.Paths == large {
			path = fmt.Sprintf("/large/%d", k)
		}
		made[k] = fmt.Appendf(nil, "GET %s HTTP/1.1\r\nHost: h%d.example.com\r\nAuthorization: Bearer %s\r\n\r\n", path, host, tokens[(k+1)%len(tokens)])
	}
	f.sets[s] = made
	return made, nil
}
