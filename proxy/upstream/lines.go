package upstream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/cellgate/cellgate/proxy/http2"
	"github.com/cellgate/cellgate/snapshot"
)

// Why no stream could be had although there was a connection.
var (
	// ErrProtocol: the endpoint doesn't speak HTTP/2. Nothing was sent that it could have taken for a request.
	ErrProtocol = errors.New("upstream: the endpoint doesn't speak HTTP/2")
	// ErrRefused: the endpoint says that it did nothing with the request.
	ErrRefused = errors.New("upstream: the endpoint refused the stream")
	// ErrNoConnect: it takes no extended CONNECT. Nothing was sent.
	ErrNoConnect = errors.New("upstream: the endpoint offers no extended CONNECT")
	// ErrLeft: so it says, because it closes the connection.
	ErrLeft = errors.New("upstream: the endpoint is closing the connection")
)

// patience of a pool with its lines.
type patience struct {
	ask  time.Duration // how long a line may be silent towards an exchange before it is asked whether it is there
	pong time.Duration // how long it may take to say so
}

var usualPatience = patience{2 * time.Second, 5 * time.Second}

// multiplex makes the pool one of lines.
func (p *Pool) multiplex(protocol string) {
	p.lines, p.offers, p.auto, p.patience = make([][]*line, len(p.places)), make([]int, len(p.places)), false, usualPatience
	if protocol == snapshot.ProtocolH2C {
		p.tls = nil
		return
	}
	p.tls.NextProtos = []string{"h2"}
}

// Multiplexed says whether the pool's connections carry many exchanges at once: Open is for them, Acquire for others.
func (p *Pool) Multiplexed() bool { return p.multi }

// Open gets a stream to endpoint: a place in the bulkhead, and a line that takes one more. A line is opened when all are
// full. Finish must follow.
func (p *Pool) Open(endpoint int, now, deadline time.Time) (*Stream, error) {
	if err := p.place(deadline); err != nil {
		return nil, err
	}
	for {
		l, err := p.line(endpoint, now)
		if err == nil {
			if err = l.ready(deadline); err != nil {
				p.leave(l, now)
			}
		}
		if err != nil {
			p.freeSlot()
			return nil, err
		}
		if s := p.board(l, now); s != nil {
			return s, nil
		}
	}
}

// place takes a place for one exchange, or waits for it.
func (p *Pool) place(deadline time.Time) error {
	p.mu.Lock()
	if p.open < p.max {
		p.open++
		p.mu.Unlock()
		return nil
	}
	_, err := p.wait(deadline) // unlocks
	return err
}

// line picks one that takes one more, the oldest first, so that those which aren't needed come to rest; or opens one.
// Whoever gets it counts as a user.
func (p *Pool) line(endpoint int, now time.Time) (*line, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var opening *line
	for _, l := range p.lines[endpoint] {
		switch {
		case now.Sub(l.born) > maxAge:
		case l.opening:
			if l.users < p.expected(endpoint) && opening == nil {
				opening = l
			}
		case l.users < int(l.most.Load()):
			l.users++
			return l, nil
		}
	}
	if opening == nil {
		if p.wires >= p.max && !p.dropResting() {
			return nil, ErrPoolFull
		}
		opening = newLine(p, endpoint, now)
		p.lines[endpoint] = append(p.lines[endpoint], opening)
		p.wires++
		go opening.run()
	}
	opening.users++
	return opening, nil
}

// expected is how many streams a line that is being opened will take: those that find no room would open the next one only when
// it is there, one round trip after the other. The lock is held.
func (p *Pool) expected(endpoint int) int {
	if n := p.offers[endpoint]; n > 0 {
		return n
	}
	return http2.MaxStreams
}

// board gives a user of an open line its stream; nil when there were too many of them.
func (p *Pool) board(l *line, now time.Time) *Stream {
	p.mu.Lock()
	over := l.users > int(l.most.Load())
	if over {
		p.leaveLocked(l, now)
	}
	p.mu.Unlock()
	if over {
		return nil
	}
	s := streams.Get().(*Stream)
	s.begin(l)
	return s
}

// leave ends the use of a line, which is closed when it isn't needed any more.
func (p *Pool) leave(l *line, now time.Time) {
	p.mu.Lock()
	p.leaveLocked(l, now)
	p.mu.Unlock()
}

func (p *Pool) leaveLocked(l *line, now time.Time) {
	if l.users--; l.users > 0 {
		return
	}
	l.rests = now
	if !l.opening && (p.retired.Load() || l.most.Load() == 0 || now.Sub(l.born) > maxAge) {
		p.drop(l)
	}
}

// drop closes a line that nobody uses. The lock is held.
func (p *Pool) drop(l *line) {
	if p.forget(l) {
		go l.close() // it may have to wait for a writer
	}
}

// forget takes a line out of the books, once.
func (p *Pool) forget(l *line) bool {
	i := slices.Index(p.lines[l.endpoint], l)
	if i < 0 {
		return false
	}
	p.lines[l.endpoint] = slices.Delete(p.lines[l.endpoint], i, i+1)
	p.wires--
	return true
}

// dropResting makes room for another line.
func (p *Pool) dropResting() bool {
	for _, all := range p.lines {
		for _, l := range all {
			if l.resting() {
				p.drop(l)
				return true
			}
		}
	}
	return false
}

// sweepLines closes lines that rest for too long or are too old, or all that rest.
func (p *Pool) sweepLines(now time.Time, all bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, lines := range p.lines {
		for _, l := range slices.Clone(lines) {
			if l.resting() && (all || now.Sub(l.rests) > idleTimeout || now.Sub(l.born) > maxAge) {
				p.drop(l)
			}
		}
	}
}

func (p *Pool) restingLines() (n int) {
	for _, lines := range p.lines {
		for _, l := range lines {
			if l.resting() {
				n++
			}
		}
	}
	return n
}

// dialLine opens the connection of a line and agrees on HTTP/2.
func (p *Pool) dialLine(ctx context.Context, endpoint int, now time.Time) (net.Conn, error) {
	nc, err := p.connect(ctx, p.places[endpoint], now)
	if noProtocol(err) {
		return nil, ErrProtocol
	}
	if err != nil {
		return nil, err
	}
	if tc, ok := nc.(*tls.Conn); ok && tc.ConnectionState().NegotiatedProtocol != "h2" {
		nc.Close()
		return nil, ErrProtocol
	}
	return nc, nil
}

// noProtocol says whether the endpoint ended the handshake because it has none of the protocols that it was offered
// (RFC 7301, section 3.2). The standard library's error has no other mark.
func noProtocol(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error" && op.Err.Error() == "tls: no application protocol"
}
