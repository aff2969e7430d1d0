// Package ask puts the questions of requests to services beside the path: whose token this is, whether that may be done. A
// question is asked once for all who wait for it at the same time, within its own time, and repeated only if the connection was a
// kept one that closed before the answer began; of one service only so many are under way at once and begun in a second. Nothing is
// remembered here.
//
//	services := ask.New(ask.Options{Allow: …})
//	s := ask.Of[Answer](services, rule)          // the same for an equal rule, with its budgets, over snapshots
//	f := s.Ask(question, judge)                  // nil: not asked, for want of budget
//	<-f.Done()                                   // within rule.Timeout
//	v, ok := f.Answer()                          // what judge made of it; !ok: there was no answer in time
package ask

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cellgate/cellgate/proxy/limit"
	"github.com/cellgate/cellgate/proxy/memo"
	"github.com/cellgate/cellgate/snapshot"
)

// MaxAnswer bounds the body of an answer in bytes; a larger one is none.
const MaxAnswer = 64 << 10

const (
	sources     = 1 << 12 // whose questions are counted apart
	maxServices = 1 << 10 // beyond it, questions to further ones are not asked
)

// Options are what a Services needs.
type Options struct {
	Allow snapshot.Allow // addresses and schemes that may be asked
	Log   *slog.Logger   // when a service begins to fail and when it is back; nil = none
}

// Services are all that the node asks. It is safe for concurrent use.
type Services struct {
	opt          Options
	secure, open *http.Client
	start        time.Time
	budget       *limit.Table

	mu   sync.Mutex
	all  map[Rule]counted
	wait sync.WaitGroup // exchanges with services that are under way
}

// counted is a Service of whatever answers.
type counted interface {
	stats() Stats
	lastUsed() time.Time
}

// New makes it, without any service.
func New(opt Options) *Services {
	if opt.Log == nil {
		opt.Log = slog.New(slog.DiscardHandler)
	}
	return &Services{opt: opt, secure: client(opt.Allow, false), open: client(opt.Allow, true), start: time.Now(),
		budget: limit.New(sources), all: map[Rule]counted{}}
}

// Close waits for what is under way, which ends by its own time, and lets connections go.
func (s *Services) Close() {
	s.wait.Wait()
	s.secure.CloseIdleConnections()
	s.open.CloseIdleConnections()
}

// Rule says how a service is asked. Equal rules are one service.
type Rule struct {
	Kind     string // what it is asked, in a word
	URL      string
	Timeout  time.Duration // of a question as a whole
	InFlight int           // questions under way at once
	// PerSecond is how many are begun in a second, and at once. Those of callers who were never right get four fifths of them,
	// and those of one source two fifths, so that a flood leaves something to everybody else.
	PerSecond int
}

// Service is one that is asked, under one rule. V is what its answers come to.
type Service[V any] struct {
	in   *Services
	name string // for people: kind and host
	id   string // for budgets
	rule Rule
	keys [2]limit.Key // of all its questions, and of strangers' ones
	used atomic.Int64 // Unix ns

	mu      sync.Mutex
	flights map[memo.Key]*Flight[V]
	under   int
	said    word
	full    time.Time // when a question was last refused

	asked, joined, answered, failed, refused atomic.Uint64
}

// Of is the service of that rule. V goes with the kind. Nil when there are too many.
func Of[V any](in *Services, rule Rule) *Service[V] {
	in.mu.Lock()
	defer in.mu.Unlock()
	if s, ok := in.all[rule].(*Service[V]); ok {
		return s
	}
	if len(in.all) >= maxServices && !in.forget(time.Now()) {
		return nil
	}
	s := &Service[V]{in: in, name: rule.Kind, id: fmt.Sprint(rule), rule: rule, flights: map[memo.Key]*Flight[V]{}}
	if u, err := url.Parse(rule.URL); err == nil && u.Host != "" {
		s.name += " " + u.Host
	}
	s.keys = [2]limit.Key{in.budget.Key(limit.Lookup, "", s.id, ""), in.budget.Key(limit.Lookup, "", s.id, "strangers")}
	in.all[rule] = s
	return s
}

// forget makes room: services that nobody has asked for an hour go.
func (s *Services) forget(now time.Time) (some bool) {
	for rule, one := range s.all {
		if now.Sub(one.lastUsed()) > time.Hour {
			delete(s.all, rule)
			some = true
		}
	}
	return some
}

// Question is one.
type Question struct {
	Key    memo.Key   // of everything that the answer depends on
	Source netip.Addr // who causes it; loopback has no budget of its own
	Known  bool       // the caller was right before
	// Make makes the request, which has a context, an address and a client that follows no redirect. It is called once.
	Make func(ctx context.Context, url string) (*http.Request, error)
}

// Flight is a question under way, shared by all who ask the same meanwhile.
type Flight[V any] struct {
	done  chan struct{}
	once  sync.Once
	value V
	ok    bool
}

// Done is closed when there is an answer, or will be none.
func (f *Flight[V]) Done() <-chan struct{} { return f.done }

// Answer is what came of the question once Done is closed; ok is false when there was no answer that says anything.
func (f *Flight[V]) Answer() (v V, ok bool) { return f.value, f.ok }

func (f *Flight[V]) end(v V, ok bool) {
	f.once.Do(func() {
		f.value, f.ok = v, ok
		close(f.done)
	})
}

// Ask asks over HTTP, or joins those who ask the same. judge is called once, beside the path, before Done is closed; with an
// error its value is not used. Nil means that the service has no room now, or the question's source has asked too much.
func (s *Service[V]) Ask(q Question, judge func(status int, header http.Header, body []byte, now time.Time) (V, error)) *Flight[V] {
	return s.Do(q, func(ctx context.Context) (v V, err error) {
		status, header, body, err := s.in.exchange(ctx, s.rule.URL, q.Make)
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return v, err
		}
		return judge(status, header, body, time.Now())
	})
}

// Do is Ask of a service that is spoken to otherwise; it makes no use of the rule's URL and of q.Make.
func (s *Service[V]) Do(q Question, exchange func(ctx context.Context) (V, error)) *Flight[V] {
	now := time.Now()
	s.used.Store(now.UnixNano())
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.flights[q.Key]; f != nil {
		s.joined.Add(1)
		return f
	}
	if s.under >= s.rule.InFlight || !s.take(q, now) {
		s.refused.Add(1)
		if now.Sub(s.full) > lull {
			s.in.opt.Log.Warn("questions to a service are refused: there is no room for them", "service", s.name, "in_flight", s.rule.InFlight, "lookups_per_sec", s.rule.PerSecond)
		}
		s.full = now
		return nil
	}
	s.under++
	s.asked.Add(1)
	f := &Flight[V]{done: make(chan struct{})}
	s.flights[q.Key] = f
	s.in.wait.Go(func() { s.fly(f, q.Key, exchange) })
	return f
}

// fly is one question's way. Whoever waits is let go in time even if the exchange hangs, whose place is free only at its end.
func (s *Service[V]) fly(f *Flight[V], key memo.Key, exchange func(context.Context) (V, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), s.rule.Timeout)
	defer cancel()
	var none V
	late := time.AfterFunc(s.rule.Timeout, func() { s.leave(key, f); f.end(none, false) })
	defer late.Stop()
	v, err := exchange(ctx)
	s.mu.Lock()
	s.under--
	s.mu.Unlock()
	s.note(err)
	s.leave(key, f)
	f.end(v, err == nil)
}

// leave takes the question off the list of those that others can join.
func (s *Service[V]) leave(k memo.Key, f *Flight[V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.flights[k] == f {
		delete(s.flights, k)
	}
}

// note counts what came of a question and logs changes.
func (s *Service[V]) note(err error) {
	if err != nil {
		s.failed.Add(1)
	} else {
		s.answered.Add(1)
	}
	s.mu.Lock()
	news := s.said.news(err != nil, time.Now())
	s.mu.Unlock()
	switch {
	case !news:
	case err != nil:
		s.in.opt.Log.Warn("a service gives no answer", "service", s.name, "error", err)
	default:
		s.in.opt.Log.Info("a service answers again", "service", s.name)
	}
}

// word is what the log was last told of a service. The zero value is that it answers.
type word struct {
	down bool
	at   time.Time
}

// quiet is the least time between two words, so that a service that fails now and then, or at some callers' questions, doesn't
// fill the log.
const quiet = 10 * time.Second

// lull is how long no question must have been refused for the next one to be worth a word.
const lull = time.Minute

// news says whether the log is to be told, and takes it as told. A first change is news at once.
func (w *word) news(down bool, now time.Time) bool {
	if w.down == down || now.Sub(w.at) < quiet {
		return false
	}
	w.down, w.at = down, now
	return true
}
