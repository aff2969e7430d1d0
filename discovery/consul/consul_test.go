package consul

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// follow follows a service, and gives the sets that are told.
func follow(t *testing.T, c *Catalogue, service string) chan []snapshot.Endpoint {
	told := make(chan []snapshot.Endpoint, 100)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.Follow(ctx, service, func(all []snapshot.Endpoint) { told <- all })
	}()
	t.Cleanup(func() { stop(); <-done })
	return told
}

// quick are options for tests that don't wait.
func quick(address string) Options { return Options{Address: address, least: 20 * time.Millisecond} }

func next(t *testing.T, told chan []snapshot.Endpoint, want ...string) []snapshot.Endpoint {
	t.Helper()
	select {
	case got := <-told:
		var names []string
		for _, e := range got {
			names = append(names, e.Address)
		}
		if !slices.Equal(names, want) {
			t.Fatalf("told %v, not %v", names, want)
		}
		return got
	case <-time.After(20 * time.Second):
		t.Fatalf("nothing told, not %v", want)
	}
	return nil
}

func TestPassingInstancesAreFollowed(t *testing.T) {
	a, at := serve(t)
	a.set("10.0.0.2:80", "10.0.0.1:80", ":8080", "10.0.0.2:80", "10.0.0.3:0", "orders.internal:80", "fd00::1")
	a.change(func() {
		a.index++
		a.entries = append(a.entries, nil, &api.ServiceEntry{}, &api.ServiceEntry{Service: &api.AgentService{Address: "fd00::1", Port: 80}})
	})
	told := follow(t, New(quick(at)), "orders")
	next(t, told, "10.0.0.1:80", "10.0.0.2:80", "10.9.9.9:8080", "[fd00::1]:80")
	if r := a.questions()[0]; r.URL.Path != "/v1/health/service/orders" || r.FormValue("passing") != "1" || !r.URL.Query().Has("stale") || r.FormValue("index") != "" {
		t.Fatalf("asked first: %s", r.URL)
	}
	for len(a.questions()) < 2 { // it waits behind the index now
		time.Sleep(time.Millisecond)
	}
	if r := a.questions()[1]; r.FormValue("index") != "12" || r.FormValue("wait") == "" {
		t.Fatalf("asked then: %s", r.URL)
	}
	a.set("10.0.0.3:80")
	next(t, told, "10.0.0.3:80")
}

func TestInstancesSayWhereTheyAre(t *testing.T) {
	a, at := serve(t)
	service := func(port int) *api.AgentService { return &api.AgentService{Address: "10.0.0.1", Port: port} }
	a.change(func() {
		node := &api.Node{Meta: map[string]string{"zone": "n"}, Locality: &api.Locality{Region: "r", Zone: "l"}}
		of := service(1)
		of.Meta = map[string]string{"region": "s", "zone": "s1"}
		placed := service(2)
		placed.Locality = &api.Locality{Region: "p", Zone: "p1"}
		a.entries = []*api.ServiceEntry{{Node: node, Service: of}, {Node: node, Service: placed}, {Node: node, Service: service(3)}, {Service: service(4)},
			{Service: service(5), Node: &api.Node{Locality: &api.Locality{Region: "q"}}}}
	})
	got := next(t, follow(t, New(quick(at)), "orders"), "10.0.0.1:1", "10.0.0.1:2", "10.0.0.1:3", "10.0.0.1:4", "10.0.0.1:5")
	for i, want := range []snapshot.Locality{{Region: "s", Zone: "s1"}, {Region: "p", Zone: "p1"}, {Zone: "n"}, {}, {Region: "q"}} {
		if got[i].Locality != want {
			t.Errorf("%s: %+v, not %+v", got[i].Address, got[i].Locality, want)
		}
	}
}

// An error is no empty set, in whatever form it comes; that there is none has to be said for a while.
func TestFailuresKeepWhatIsKnown(t *testing.T) {
	a, at := serve(t)
	a.set("10.0.0.1:80")
	o := quick(at)
	o.hold, o.least = 2*time.Second, 2*time.Millisecond
	told := follow(t, New(o), "orders")
	next(t, told, "10.0.0.1:80")
	text := func(code int, body string, more ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			a.head(w, 99, 0)
			for i := 0; i+1 < len(more); i += 2 {
				w.Header().Set(more[i], more[i+1])
			}
			w.WriteHeader(code)
			_, _ = w.Write([]byte(body))
		}
	}
	for name, answer := range map[string]http.HandlerFunc{
		"500":                  text(500, "No cluster leader"),
		"403":                  text(403, "ACL not found"),
		"429":                  text(429, ""),
		"elsewhere":            text(307, "", "Location", "http://"+at+"/v1/health/service/other"),
		"no JSON":              text(200, "<html>"),
		"half":                 text(200, `[{"Service":{"Address":"10.0.0.2"`),
		"not of an agent":      func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("[]")) },
		"filtered":             text(200, "[]", "X-Consul-Results-Filtered-By-Acls", "true"),
		"without a leader":     text(200, "[]", "X-Consul-Knownleader", "false"),
		"too long":             text(200, "["+strings.Repeat(" ", maxAnswer)+"]"),
		"a connection cut off": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		a.change(func() { a.answer = answer })
		a.await(t, 2)
		select {
		case got := <-told:
			t.Fatalf("%s: told %v", name, got)
		default:
		}
	}
	began := time.Now()
	a.change(func() { a.answer = nil; a.leader = true })
	a.set()
	next(t, told) // none, for long enough
	if d := time.Since(began); d < o.hold {
		t.Fatalf("that there is none was believed after %v", d)
	}
	a.set("10.0.0.1:80")
	next(t, told, "10.0.0.1:80")
}

// There are instances, wherever they are: that is not "there is none".
func TestInstancesAtNoAddressAreNoEmptySet(t *testing.T) {
	a, at := serve(t)
	a.set("10.0.0.1:80")
	o := quick(at)
	o.hold = 100 * time.Millisecond
	told := follow(t, New(o), "orders")
	next(t, told, "10.0.0.1:80")
	a.set("orders.internal:80", "10.0.0.2:0")
	for began := time.Now(); time.Since(began) < 3*o.hold; a.await(t, 1) {
		if len(told) > 0 {
			t.Fatalf("told %v", <-told)
		}
	}
	a.set()
	next(t, told)
}

func TestAnAgentThatBeginsAnewIsFollowedOn(t *testing.T) {
	a, at := serve(t)
	a.set("10.0.0.1:80")
	told := follow(t, New(quick(at)), "orders")
	next(t, told, "10.0.0.1:80")
	a.change(func() { a.index = 2; a.entries = a.entries[:0] }) // it lost its state
	for _, r := range a.await(t, 3) {
		if i := r.FormValue("index"); i != "" && i != "11" {
			t.Fatalf("waits behind %s", i)
		}
	}
	a.set("10.0.0.2:80") // at a lower index than before
	next(t, told, "10.0.0.2:80")
}

// An index of 0, which no agent may give, and one that changes all the time make no loop that is hotter than its bound.
func TestQuestionsAreBounded(t *testing.T) {
	a, at := serve(t)
	var counting uint64
	for name, index := range map[string]func() uint64{"zero": func() uint64 { return 0 }, "changing": func() uint64 { counting++; return counting }, "going back": func() uint64 { counting--; return counting }} {
		t.Run(name, func(t *testing.T) {
			a.change(func() {
				counting = 1000
				a.answer = func(w http.ResponseWriter, _ *http.Request) {
					a.head(w, index(), 0)
					_, _ = w.Write([]byte(`[{"Service":{"Address":"10.0.0.1","Port":80}}]`))
				}
			})
			before, began := len(a.questions()), time.Now()
			told := follow(t, New(quick(at)), "orders")
			next(t, told, "10.0.0.1:80")
			a.await(t, 10)
			n, most := len(a.questions())-before, int(time.Since(began)/(18*time.Millisecond))+2
			if n > most {
				t.Fatalf("%d questions, more than %d", n, most)
			}
		})
	}
}

// A server that has not heard of its leader for long is no witness; the leader is.
func TestTheLeaderIsAskedWhenAnAnswerIsOld(t *testing.T) {
	a, at := serve(t)
	a.set("10.0.0.1:80")
	a.change(func() { a.contact = mostStale + time.Second })
	told := follow(t, New(quick(at)), "orders")
	next(t, told, "10.0.0.1:80")
	if q := a.questions(); !q[0].URL.Query().Has("stale") || q[1].URL.Query().Has("stale") {
		t.Fatalf("asked %s, then %s", q[0].URL, q[1].URL)
	}
}

func TestTheTokenIsReadAnewAndLoggedNowhere(t *testing.T) {
	a, at := serve(t)
	a.set("10.0.0.1:80")
	file := filepath.Join(t.TempDir(), "token")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	o := quick(at)
	o.TokenFile, o.Log = file, slog.New(slog.NewTextHandler(&out, nil))
	c := New(o)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); c.Follow(ctx, "orders", func([]snapshot.Endpoint) {}) }()
	time.Sleep(5 * time.Millisecond) // there is no file yet
	write("first-secret\n")
	for len(a.questions()) == 0 {
		time.Sleep(time.Millisecond)
	}
	write("second-secret")
	a.change(func() {
		a.index++
		a.answer = func(w http.ResponseWriter, r *http.Request) { http.Error(w, "denied", http.StatusForbidden) }
	})
	all := a.await(t, 3)
	stop()
	<-done
	if got := a.questions()[0].Header.Get("X-Consul-Token"); got != "first-secret" {
		t.Errorf("asked with %q", got)
	}
	if got := all[len(all)-1].Header.Get("X-Consul-Token"); got != "second-secret" {
		t.Errorf("asked with %q then", got)
	}
	if text := out.String(); strings.Contains(text, "secret") || !strings.Contains(text, "403") {
		t.Errorf("logged %s", text)
	}
}

func TestMoreServicesThanMayWaitArePolled(t *testing.T) {
	a, at := serve(t)
	a.set("10.0.0.1:80")
	o := quick(at)
	o.waiting = 1
	c := New(o)
	next(t, follow(t, c, "first"), "10.0.0.1:80")
	for len(a.questions()) < 2 {
		time.Sleep(time.Millisecond)
	}
	next(t, follow(t, c, "second"), "10.0.0.1:80")
	if last := a.questions()[2]; last.FormValue("wait") != "" || last.FormValue("index") != "" {
		t.Fatalf("asked %s", last.URL)
	}
}

func TestEndpointsAreCutAtTheSamePlaceEverywhere(t *testing.T) {
	a, at := serve(t)
	many := []string{"orders.internal:80", "10.0.0.3:0"} // passed over
	for i := range maxEndpoints + 20 {
		many = append(many, fmt.Sprintf("10.0.%d.%d:80", i/200, 1+i%200))
	}
	a.set(many...)
	var log strings.Builder // written to before a set is told, read after the next
	o := quick(at)
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	told := follow(t, New(o), "orders")
	got := <-told
	if len(got) != maxEndpoints || !slices.IsSortedFunc(got, func(x, y snapshot.Endpoint) int { return strings.Compare(x.Address, y.Address) }) {
		t.Fatalf("%d endpoints", len(got))
	}
	for range 3 { // answers with the same set
		a.change(func() { a.index++ })
		a.await(t, 1)
	}
	a.set("10.0.0.1:80")
	next(t, told, "10.0.0.1:80")
	for _, words := range []string{"without an IP address", "too many endpoints"} {
		if n := strings.Count(log.String(), words); n != 1 {
			t.Errorf("%q: said %d times for one set", words, n)
		}
	}
}

func unix(t *testing.T, path string) net.Listener {
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestUnixSocketsAndFaultsOfTheOptions(t *testing.T) {
	a, at := serve(t)
	a.set("10.0.0.1:80")
	path := filepath.Join(t.TempDir(), "agent.sock")
	l := unix(t, path)
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: a}}
	s.Start()
	t.Cleanup(s.Close)
	for _, address := range []string{"unix://" + path, "http://" + at} {
		next(t, follow(t, New(quick(address)), "orders"), "10.0.0.1:80")
	}
	var out bytes.Buffer
	o := quick("ftp://" + at)
	o.Log = slog.New(slog.NewTextHandler(&out, nil))
	ctx, stop := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer stop()
	New(o).Follow(ctx, "orders", func([]snapshot.Endpoint) { t.Error("told") })
	if !strings.Contains(out.String(), "ftp") {
		t.Errorf("logged %s", out.String())
	}
}
