package upstream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"

	h2 "github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/snapshot"
)

// speaker is an endpoint that speaks HTTP/2 as its script says; each connection has one of its own.
type speaker struct {
	*http2.Framer
	nc net.Conn
	n  int        // which connection it is, from 1
	mu sync.Mutex // of writes
}

// heads sends heads with status 200, which end their streams.
func (s *speaker) heads(ids ...uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		_ = s.WriteHeaders(http2.HeadersFrameParam{StreamID: id, BlockFragment: []byte{0x88}, EndHeaders: true, EndStream: true})
	}
}

// speaks starts an endpoint. said is called with every frame that comes, after the first settings.
func speaks(t *testing.T, settings []http2.Setting, said func(s *speaker, f http2.Frame)) string {
	l, err := net.Listen("tcp", "127.201.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for n := 1; ; n++ {
			nc, err := l.Accept()
			if err != nil {
				return
			}
			t.Cleanup(func() { nc.Close() })
			all.Go(func() {
				defer nc.Close()
				if _, err := io.ReadFull(nc, make([]byte, len(http2.ClientPreface))); err != nil {
					return
				}
				s := &speaker{Framer: http2.NewFramer(nc, nc), nc: nc, n: n}
				_ = s.WriteSettings(settings...)
				for {
					f, err := s.ReadFrame()
					if err != nil {
						return
					}
					said(s, f)
				}
			})
		}
	})
	return l.Addr().String()
}

func limit(n uint32) []http2.Setting {
	return []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: n}}
}

// lined gives a pool of one endpoint over HTTP/2 without TLS.
func lined(t *testing.T, max int, endpoints ...string) (*Registry, *Pool) {
	return one(t, snapshot.Upstream{ID: "u", Endpoints: endpoints, Protocol: snapshot.ProtocolH2C, Pool: snapshot.Pool{MaxConnections: max, MaxPending: 1}}, Options{})
}

// open gets a stream and asks for something on it.
func open(t *testing.T, p *Pool, endpoint int) *Stream {
	t.Helper()
	s, err := p.Open(endpoint, time.Now(), in(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(h2.AppendField(nil, ":method", "GET"), false, 0); err != nil {
		t.Fatal(err)
	}
	return s
}

// read waits for the head of the answer.
func (s *Stream) read() error {
	s.ArmRead(time.Now(), 2*time.Second, in(2*time.Second))
	return s.ReadHead()
}

func (p *Pool) count() string {
	st := p.stats(time.Now())
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Sprint(st.Open, " lines, ", st.Idle, " rest, ", p.open, " exchanges")
}

// soon waits for what another goroutine does.
func soon(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(3 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

func silent(*speaker, http2.Frame) {}

func answers(s *speaker, f http2.Frame) {
	if f.Header().Type == http2.FrameHeaders {
		s.heads(f.Header().StreamID)
	}
}

func TestStreamsShareALineUntilItIsFull(t *testing.T) {
	_, p := lined(t, 100, speaks(t, limit(3), silent))
	var all []*Stream
	for range 7 {
		all = append(all, open(t, p, 0))
	}
	if got := p.count(); got != "3 lines, 0 rest, 7 exchanges" {
		t.Fatal(got)
	}
	p.Finish(all[1], time.Now())
	all[1] = open(t, p, 0) // the place of the one that has gone
	if got := p.count(); got != "3 lines, 0 rest, 7 exchanges" {
		t.Fatal(got)
	}
	for _, s := range all {
		p.Finish(s, time.Now())
	}
	if got := p.count(); got != "3 lines, 3 rest, 0 exchanges" {
		t.Fatal(got)
	}
	p.sweep(time.Now().Add(idleTimeout+time.Second), false)
	if got := p.count(); got != "0 lines, 0 rest, 0 exchanges" {
		t.Fatal(got)
	}
}

func TestWhoComesTogetherOpensOneLine(t *testing.T) {
	var mu sync.Mutex
	lines := map[int]bool{}
	_, p := lined(t, 100, speaks(t, nil, func(s *speaker, f http2.Frame) {
		mu.Lock()
		lines[s.n] = true
		mu.Unlock()
		answers(s, f)
	}))
	var all sync.WaitGroup
	for range 60 {
		all.Go(func() {
			s, err := p.Open(0, time.Now(), in(2*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
			defer p.Finish(s, time.Now())
			if err := s.Send(h2.AppendField(nil, ":method", "GET"), false, 0); err != nil || s.read() != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if len(lines) != 1 || p.count() != "1 lines, 1 rest, 0 exchanges" {
		t.Fatalf("%d lines, %s", len(lines), p.count())
	}
}

// An endpoint that takes one stream a line is known by its first line; the others are opened side by side.
func TestLinesThatTakeFewStreamsAreOpenedTogether(t *testing.T) {
	const n = 10
	l, err := net.Listen("tcp", "127.201.1.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var all, others sync.WaitGroup
	others.Add(n - 1)
	t.Cleanup(func() { l.Close(); all.Wait() })
	all.Go(func() {
		for i := range n {
			nc, err := l.Accept()
			if err != nil {
				others.Add(i - n)
				return
			}
			all.Go(func() {
				defer nc.Close()
				_, _ = io.ReadFull(nc, make([]byte, len(http2.ClientPreface)))
				if i > 0 {
					others.Done()
					others.Wait() // none of them is open before all have come
				}
				_ = http2.NewFramer(nc, nil).WriteSettings(limit(1)...)
				_, _ = io.Copy(io.Discard, nc)
			})
		}
	})
	_, p := lined(t, 100, l.Addr().String())
	var users sync.WaitGroup
	for range n {
		users.Go(func() {
			s, err := p.Open(0, time.Now(), in(2*time.Second))
			if err != nil {
				t.Error(err)
				return
			}
			t.Cleanup(func() { p.Finish(s, time.Now()) })
		})
	}
	users.Wait()
}

// The bulkhead counts exchanges, whatever carries them.
func TestThePoolOfLinesIsABulkhead(t *testing.T) {
	_, p := lined(t, 2, speaks(t, nil, silent))
	first, second := open(t, p, 0), open(t, p, 0)
	if _, err := p.Open(0, time.Now(), in(20*time.Millisecond)); !errors.Is(err, ErrNoTime) {
		t.Fatal(err)
	}
	got := make(chan *Stream)
	go func() {
		s, _ := p.Open(0, time.Now(), in(2*time.Second))
		got <- s
	}()
	soon(t, "nobody waits", func() bool { return p.stats(time.Now()).Pending == 1 })
	if _, err := p.Open(0, time.Now(), in(time.Second)); !errors.Is(err, ErrPoolFull) {
		t.Fatalf("beyond the queue: %v", err)
	}
	p.Finish(first, time.Now())
	third := <-got
	if third == nil || p.count() != "1 lines, 0 rest, 2 exchanges" {
		t.Fatal(p.count())
	}
	p.Finish(second, time.Now())
	p.Finish(third, time.Now())
	if got := p.count(); got != "1 lines, 1 rest, 0 exchanges" {
		t.Fatal(got)
	}
}

// RFC 9113, section 6.8; CASES G21.
func TestAGoodbyeMovesNewStreamsToAnotherLine(t *testing.T) {
	closed := make(chan struct{})
	_, p := lined(t, 100, speaks(t, nil, func(s *speaker, f http2.Frame) {
		switch {
		case s.n == 1 && f.Header().StreamID == 3:
			s.mu.Lock()
			_ = s.WriteGoAway(1, http2.ErrCodeNo, nil)
			s.mu.Unlock()
		case s.n == 1 && f.Header().Type == http2.FramePing:
			s.heads(1)
		case s.n == 1 && f.Header().Type == http2.FrameGoAway:
			close(closed)
		case s.n == 2:
			answers(s, f)
		}
	}))
	first, second := open(t, p, 0), open(t, p, 0)
	if err := second.read(); !errors.Is(err, ErrLeft) || second.Started() {
		t.Fatalf("a stream above the last one: %v", err)
	}
	third := open(t, p, 0)
	if err := third.read(); err != nil || third.Answer().Status != 200 || third.line == first.line {
		t.Fatal(err)
	}
	first.line.lock()
	first.line.codec.Ask(time.Now()) // for the script to go on
	first.line.unlock()
	if err := first.read(); err != nil {
		t.Fatalf("a stream below the last one: %v", err)
	}
	for _, s := range []*Stream{first, second, third} {
		p.Finish(s, time.Now())
	}
	select {
	case <-closed:
	case <-time.After(3 * time.Second):
		t.Fatal("the line stays open")
	}
	if got := p.count(); got != "1 lines, 1 rest, 0 exchanges" {
		t.Fatal(got)
	}
}

func TestARefusedStreamHindersNoOther(t *testing.T) {
	_, p := lined(t, 100, speaks(t, nil, func(s *speaker, f http2.Frame) {
		if f.Header().StreamID == 1 {
			_ = s.WriteRSTStream(1, http2.ErrCodeRefusedStream)
			return
		}
		answers(s, f)
	}))
	first, second := open(t, p, 0), open(t, p, 0)
	if err := first.read(); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	if err := second.read(); err != nil {
		t.Fatal(err)
	}
	p.Finish(first, time.Now())
	p.Finish(second, time.Now())
}

func TestALineWhoseNumbersRunOutIsReplaced(t *testing.T) {
	_, p := lined(t, 100, speaks(t, nil, answers))
	p.firstID = 1<<31 - 3
	for i := range 3 {
		s := open(t, p, 0)
		if err := s.read(); err != nil {
			t.Fatal(err)
		}
		if want := [...]uint32{1<<31 - 3, 1<<31 - 1, 1<<31 - 3}[i]; s.codec.ID != want {
			t.Fatalf("stream %d has the number %d, want %d", i, s.codec.ID, want)
		}
		p.Finish(s, time.Now())
	}
}

func TestALimitThatIsLoweredIsKept(t *testing.T) {
	_, p := lined(t, 100, speaks(t, nil, func(s *speaker, f http2.Frame) {
		if f.Header().StreamID == 1 && s.n == 1 {
			s.mu.Lock()
			_ = s.WriteSettings(limit(1)...)
			s.mu.Unlock()
			s.heads(1)
		}
	}))
	first := open(t, p, 0)
	if err := first.read(); err != nil {
		t.Fatal(err)
	}
	second := open(t, p, 0)
	if second.line == first.line {
		t.Fatal("a second stream")
	}
	p.Finish(first, time.Now())
	third := open(t, p, 0)
	if third.line == second.line {
		t.Fatal("the place that has become free was not taken")
	}
	p.Finish(second, time.Now())
	p.Finish(third, time.Now())
}

func TestAnEndpointThatTakesNoStreamsIsNoEndpoint(t *testing.T) {
	_, p := lined(t, 100, speaks(t, limit(0), silent))
	if _, err := p.Open(0, time.Now(), in(time.Second)); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
	if got := p.count(); got != "0 lines, 0 rest, 0 exchanges" {
		t.Fatal(got)
	}
}

// What an endpoint doesn't say for long is asked for, and nothing more is trusted to it meanwhile.
func TestADeadLineIsFoundByAPing(t *testing.T) {
	_, p := lined(t, 100, speaks(t, nil, silent))
	p.patience = patience{ask: 20 * time.Millisecond, pong: 200 * time.Millisecond}
	first := open(t, p, 0)
	first.ArmRead(time.Now(), 40*time.Millisecond, in(time.Second))
	if err := first.ReadHead(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	second := open(t, p, 0)
	if second.line == first.line {
		t.Fatal("a line that is asked whether it is there was given a stream")
	}
	if err := first.read(); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatalf("the dead line: %v", err)
	}
	p.Finish(first, time.Now())
	p.Finish(second, time.Now())
	soon(t, "the dead line is counted", func() bool { return p.count() == "1 lines, 1 rest, 0 exchanges" })
}

func TestALineThatAnswersAPingIsTrustedAgain(t *testing.T) {
	pings := make(chan struct{}, 10)
	_, p := lined(t, 100, speaks(t, nil, func(s *speaker, f http2.Frame) {
		if f, ok := f.(*http2.PingFrame); ok {
			_ = s.WritePing(true, f.Data)
			pings <- struct{}{}
		}
	}))
	p.patience = patience{ask: 10 * time.Millisecond, pong: time.Second}
	first := open(t, p, 0)
	for range 5 { // an endpoint may take more than one ping for a flood
		first.ArmRead(time.Now(), 20*time.Millisecond, in(time.Second))
		_ = first.ReadHead()
	}
	<-pings
	soon(t, "it is not trusted", func() bool { return first.line.most.Load() > 0 })
	if len(pings) > 0 {
		t.Fatalf("%d pings more", len(pings))
	}
	p.Finish(first, time.Now())
}

func TestALineThatRestsMakesRoomForAnotherEndpoint(t *testing.T) {
	_, p := lined(t, 1, speaks(t, nil, answers), speaks(t, nil, answers))
	for i := range 4 {
		s := open(t, p, i%2)
		if err := s.read(); err != nil || s.Endpoint != i%2 {
			t.Fatal(err)
		}
		p.Finish(s, time.Now())
		if got := p.count(); got != "1 lines, 1 rest, 0 exchanges" {
			t.Fatal(got)
		}
	}
}

func TestLinesOfADroppedPoolEndWithTheirExchanges(t *testing.T) {
	r, p := lined(t, 100, speaks(t, limit(1), silent))
	first, second := open(t, p, 0), open(t, p, 0)
	p.Finish(second, time.Now())
	r.Retire(nil)
	if got := p.count(); got != "1 lines, 0 rest, 1 exchanges" {
		t.Fatal(got)
	}
	third := open(t, p, 0) // an exchange that had begun
	p.Finish(first, time.Now())
	p.Finish(third, time.Now())
	if got := p.count(); got != "0 lines, 0 rest, 0 exchanges" {
		t.Fatal(got)
	}
}

func TestAnOldLineEndsWithItsExchanges(t *testing.T) {
	_, p := lined(t, 100, speaks(t, nil, answers))
	first := open(t, p, 0)
	p.mu.Lock()
	first.line.born = time.Now().Add(-maxAge - time.Second)
	p.mu.Unlock()
	second := open(t, p, 0)
	if second.line == first.line {
		t.Fatal("an old line was given a stream")
	}
	if err := first.read(); err != nil {
		t.Fatal(err)
	}
	p.Finish(first, time.Now())
	p.Finish(second, time.Now())
	if got := p.count(); got != "1 lines, 1 rest, 0 exchanges" {
		t.Fatal(got)
	}
}

// An endpoint that gives no window holds the one that writes to it, and nobody else.
func TestAWriterWithoutAWindowHoldsNoOther(t *testing.T) {
	_, p := lined(t, 100, speaks(t, []http2.Setting{{ID: http2.SettingInitialWindowSize, Val: 0}}, func(s *speaker, f http2.Frame) {
		if f.Header().StreamID == 3 {
			answers(s, f)
		}
	}))
	first, err := p.Open(0, time.Now(), in(time.Second))
	if err != nil || first.Send(h2.AppendField(nil, ":method", "POST"), false, -1) != nil {
		t.Fatal(err)
	}
	first.ArmWrite(in(3 * time.Second))
	done := make(chan error)
	go func() { done <- first.WriteBody(make([]byte, 100)) }()
	second := open(t, p, 0)
	if err := second.read(); err != nil {
		t.Fatal(err)
	}
	first.InterruptWrite()
	if err := <-done; !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal(err)
	}
	p.Finish(first, time.Now())
	p.Finish(second, time.Now())
}

// Exchanges come and go in any order, lines die and say goodbye: no place and no line is lost or counted twice.
func TestBooksOfLinesStayRightUnderContention(t *testing.T) {
	_, p := lined(t, 20, speaks(t, limit(4), func(s *speaker, f http2.Frame) {
		id := f.Header().StreamID
		switch {
		case f.Header().Type != http2.FrameHeaders:
		case id > 40:
			s.nc.Close()
		case id > 30:
			_ = s.WriteGoAway(id-2, http2.ErrCodeNo, nil)
		case id%7 == 0:
			_ = s.WriteRSTStream(id, http2.ErrCodeRefusedStream)
		default:
			s.heads(id)
		}
	}))
	p.maxPending = 1000
	var all sync.WaitGroup
	var mu sync.Mutex
	good := 0
	for range 40 {
		all.Go(func() {
			for range 50 {
				s, err := p.Open(0, time.Now(), in(3*time.Second))
				if err != nil {
					t.Error(err)
					return
				}
				if err = s.Send(h2.AppendField(nil, ":method", "GET"), false, 0); err == nil {
					err = s.read()
				}
				switch {
				case err == nil:
					mu.Lock()
					good++
					mu.Unlock()
				case !errors.Is(err, ErrLeft) && !errors.Is(err, ErrRefused) && !errors.Is(err, io.ErrUnexpectedEOF):
					t.Error(err)
				}
				p.Finish(s, time.Now())
			}
		})
	}
	all.Wait()
	if good < 500 {
		t.Errorf("%d answers", good)
	}
	soon(t, "exchanges are counted that are over", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		n := 0
		for _, l := range p.lines[0] {
			n += l.users
		}
		return p.open == 0 && n == 0 && p.wires == len(p.lines[0])
	})
}
