package ask

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/proxy/memo"
	"github.com/cellgate/cellgate/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func keyed(n int) memo.Key {
	h := memo.NewHash("t")
	return h.Text(fmt.Sprint(n)).Key()
}

func get(ctx context.Context, url string) (*http.Request, error) {
	return http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
}

func question(n int) Question {
	return Question{Key: keyed(n), Source: netip.MustParseAddr("192.0.2.1"), Known: true, Make: get}
}

// ok takes every 200.
func ok(status int, _ http.Header, body []byte, _ time.Time) (string, error) {
	if status != 200 {
		return "", errors.New("not well")
	}
	return string(body), nil
}

func serve(t *testing.T, h http.HandlerFunc) (*Services, string) {
	t.Helper()
	srv := httptest.NewServer(h)
	in := New(Options{Allow: snapshot.Loopback()})
	t.Cleanup(func() { in.Close(); srv.Close() })
	return in, srv.URL
}

func rule(url string) Rule {
	return Rule{Kind: "test", URL: url, Timeout: 10 * time.Second, InFlight: 4, PerSecond: 1000}
}

func TestAQuestionIsAskedOnceForAllWhoWait(t *testing.T) {
	var came atomic.Int64
	open := make(chan struct{})
	in, url := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		came.Add(1)
		<-open
		fmt.Fprint(w, "yes")
	})
	s := Of[string](in, rule(url))
	first := s.Ask(question(1), ok)
	for range 100 {
		if f := s.Ask(question(1), ok); f != first {
			t.Fatal("the same question is asked apart")
		}
	}
	close(open)
	<-first.Done()
	if v, good := first.Answer(); !good || v != "yes" || came.Load() != 1 {
		t.Errorf("%q %v after %d", v, good, came.Load())
	}
	if s.Ask(question(1), ok) == first {
		t.Error("an answer that has come is joined")
	}
	if again := Of[string](in, rule(url)); again != s {
		t.Error("an equal rule is another service")
	}
}

func TestFailuresAreNoAnswersAndAreNotRepeated(t *testing.T) {
	var came atomic.Int64
	in, url := serve(t, func(w http.ResponseWriter, r *http.Request) {
		came.Add(1)
		switch r.URL.Path {
		case "/large":
			fmt.Fprint(w, strings.Repeat("x", MaxAnswer+1))
		case "/redirect":
			http.Redirect(w, r, "/well", http.StatusFound)
		case "/torn":
			w.Header().Set("Content-Length", "10")
			fmt.Fprint(w, "x")
		case "/reset":
			panic(http.ErrAbortHandler)
		case "/slow":
			<-r.Context().Done()
		case "/well":
			fmt.Fprint(w, "well")
		default:
			w.WriteHeader(503)
		}
	})
	for path, want := range map[string]bool{"/well": true, "/down": false, "/large": false, "/redirect": false, "/torn": false, "/reset": false, "/slow": false} {
		r := rule(url + path)
		if path == "/slow" {
			r.Timeout = 50 * time.Millisecond
		}
		before := came.Load()
		f := Of[string](in, r).Ask(question(1), ok)
		<-f.Done()
		if _, good := f.Answer(); good != want || came.Load()-before != 1 {
			t.Errorf("%s: %v after %d requests", path, good, came.Load()-before)
		}
	}
}

// A service may close a kept connection at any time, also as the next question is on its way.
func TestAQuestionThatMeetsTheEndOfAKeptConnectionIsRepeated(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var came atomic.Int64
	var keys sync.Map // fields that only the client is to know
	var done sync.WaitGroup
	done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			in := bufio.NewReader(c)
			for first := true; ; first = false {
				r, err := http.ReadRequest(in)
				if err != nil {
					break
				}
				for name := range r.Header {
					keys.Store(name, true)
				}
				if came.Add(1); !first {
					break
				}
				body, _ := io.ReadAll(r.Body)
				fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			}
			c.Close()
		}
	})
	in := New(Options{Allow: snapshot.Loopback()})
	t.Cleanup(func() { in.Close(); l.Close(); done.Wait() })
	s := Of[string](in, rule("http://"+l.Addr().String()))
	for n := range 5 {
		q := question(n)
		q.Make = func(ctx context.Context, url string) (*http.Request, error) {
			return http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("who"))
		}
		f := s.Ask(q, ok)
		<-f.Done()
		if v, good := f.Answer(); !good || v != "who" {
			t.Errorf("question %d: %q %v", n, v, good)
		}
	}
	if came.Load() != 9 { // each but the first met a connection that ended
		t.Errorf("%d came of 5 questions", came.Load())
	}
	if _, sent := keys.Load("Idempotency-Key"); sent {
		t.Error("the service is sent a field that is for the client alone")
	}
}

func TestOnlyPermittedAddressesAreAsked(t *testing.T) {
	var came atomic.Int64
	in, url := serve(t, func(http.ResponseWriter, *http.Request) { came.Add(1) })
	strict := New(Options{Allow: snapshot.Allow{PlainURLs: true}})
	defer strict.Close()
	for _, c := range []struct {
		in  *Services
		url string
	}{{strict, url}, {in, "http://169.254.169.254/"}, {in, "https://169.254.169.254/"}, {in, "http://10.255.255.1/"}, {in, "file:///etc/passwd"}, {New(Options{}), url}} {
		r := rule(c.url)
		f := Of[string](c.in, r).Ask(question(1), ok)
		<-f.Done()
		if _, good := f.Answer(); good || came.Load() != 0 {
			t.Errorf("%s was asked", c.url)
		}
	}
}

func TestQuestionsAreBoundedAtOnceAndASecond(t *testing.T) {
	open := make(chan struct{})
	in, url := serve(t, func(http.ResponseWriter, *http.Request) { <-open })
	var log strings.Builder
	in.opt.Log = slog.New(slog.NewTextHandler(&log, nil))
	s := Of[string](in, rule(url))
	var all []*Flight[string]
	for n := range 10 {
		if f := s.Ask(question(n), ok); f != nil {
			all = append(all, f)
		}
	}
	if n := strings.Count(log.String(), "there is no room"); n != 1 || !strings.Contains(log.String(), "lookups_per_sec=1000") {
		t.Errorf("the log says %d times that there is no room:\n%s", n, log.String())
	}
	if st := in.Stats(); len(all) != 4 || len(st) != 1 || st[0].InFlight != 4 || st[0].Refused != 6 || st[0].Asked != 4 {
		t.Errorf("%d under way, %+v", len(all), st)
	}
	close(open)
	for _, f := range all {
		<-f.Done()
	}
	second := rule(url)
	second.Timeout++
	if Of[string](in, second) == s {
		t.Error("another rule is the same service")
	}
	if st := in.Stats(); len(st) != 1 || st[0].Answered != 4 || st[0].InFlight != 0 {
		t.Errorf("services of one kind at one host are counted apart, or wrong: %+v", st)
	}
}

// burst asks n different questions at one moment and says how many were taken.
func burst(s *Service[string], from, n int, known bool, source string) (taken int) {
	for i := range n {
		q := question(from + i)
		q.Known, q.Source = known, netip.MustParseAddr(source)
		s.mu.Lock()
		if s.take(q, s.in.start.Add(time.Minute)) {
			taken++
		}
		s.mu.Unlock()
	}
	return taken
}

func TestAFloodLeavesSomethingToOthers(t *testing.T) {
	r := rule("https://idp.example")
	r.PerSecond = 10
	in := New(Options{})
	defer in.Close()
	s := Of[string](in, r)
	if n := burst(s, 0, 100, false, "203.0.113.9"); n != 4 {
		t.Errorf("one source has %d of 10", n)
	}
	if n := burst(s, 100, 100, false, "198.51.100.2"); n != 4 {
		t.Errorf("another one has %d", n)
	}
	if n := burst(s, 200, 100, false, "198.51.100.3"); n != 0 {
		t.Errorf("strangers have %d more than eight of 10", n)
	}
	if n := burst(s, 300, 100, true, "203.0.113.9"); n != 2 {
		t.Errorf("%d are left to those who were right before", n)
	}
	other := Of[string](in, Rule{Kind: "test", URL: "https://other.example", InFlight: 1, PerSecond: 10})
	if n := burst(other, 0, 100, false, "127.0.0.1"); n != 8 {
		t.Errorf("loopback has %d at another service", n)
	}
}

func TestServicesAreBounded(t *testing.T) {
	in := New(Options{})
	defer in.Close()
	for n := range 2 * maxServices {
		s := Of[string](in, rule(fmt.Sprint("https://idp.example/", n)))
		if (s != nil) != (n < maxServices) {
			t.Fatalf("service %d: %v", n, s != nil)
		}
		if s != nil {
			s.used.Store(time.Now().UnixNano())
		}
	}
}

func TestAnyNumberMayAskAtOnce(t *testing.T) {
	in, url := serve(t, func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, r.URL.RawQuery) })
	r := rule(url)
	r.InFlight, r.PerSecond = 1000, 100_000
	s := Of[string](in, r)
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			for n := range 50 {
				k := (g + n) % 8
				q := question(k)
				q.Make = func(ctx context.Context, url string) (*http.Request, error) { return get(ctx, fmt.Sprint(url, "?", k)) }
				f := s.Ask(q, ok)
				if f == nil {
					t.Error("not asked")
					return
				}
				<-f.Done()
				if v, good := f.Answer(); !good || v != fmt.Sprint(k) {
					t.Errorf("question %d has the answer %q, %v", k, v, good)
				}
			}
		})
	}
	wg.Wait()
}

func TestAServiceThatFailsNowAndThenDoesntFillTheLog(t *testing.T) {
	var w word
	start, told := time.Now(), []string{}
	for i := range 100_000 { // one of three questions fails for 30 s, then all are answered, then none
		after := time.Duration(i) * time.Millisecond
		down := after < 30*time.Second && i%3 == 1 || after >= 60*time.Second
		if w.news(down, start.Add(after)) {
			told = append(told, fmt.Sprint(down, " ", after.Truncate(time.Second)))
		}
	}
	if got, want := strings.Join(told, ", "), "true 0s, false 10s, true 20s, false 30s, true 1m0s"; got != want {
		t.Errorf("told %s, want %s", got, want)
	}
}
