package consul

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
)

// agent answers GET /v1/health/service/NAME as Consul's does, as well as in ways that it must not be believed in.
type agent struct {
	mu      sync.Mutex
	entries []*api.ServiceEntry
	index   uint64
	leader  bool
	contact time.Duration // of stale answers
	answer  http.HandlerFunc
	changed chan struct{}
	asked   []*http.Request
}

func serve(t *testing.T) (*agent, string) {
	l, err := net.Listen("tcp", "127.34.3.1:0")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{index: 10, leader: true, changed: make(chan struct{})}
	s := &httptest.Server{Listener: l, Config: &http.Server{Handler: a}}
	s.Start()
	t.Cleanup(s.Close)
	return a, l.Addr().String()
}

// change changes the agent and wakes all who wait.
func (a *agent) change(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f()
	close(a.changed)
	a.changed = make(chan struct{})
}

func (a *agent) set(addresses ...string) {
	a.change(func() {
		a.index++
		a.entries = nil
		for _, at := range addresses {
			host, port, _ := strings.Cut(at, ":")
			n, _ := strconv.Atoi(port)
			a.entries = append(a.entries, &api.ServiceEntry{Node: &api.Node{Address: "10.9.9.9"}, Service: &api.AgentService{Address: host, Port: n}})
		}
	})
}

func (a *agent) questions() []*http.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.asked[:len(a.asked):len(a.asked)]
}

// await waits for n more questions, and gives them.
func (a *agent) await(t *testing.T, n int) []*http.Request {
	t.Helper()
	before := len(a.questions())
	for end := time.Now().Add(20 * time.Second); len(a.questions()) < before+n; time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d questions, not %d more than %d", len(a.questions()), n, before)
		}
	}
	return a.questions()[before:]
}

func (a *agent) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	a.asked = append(a.asked, r)
	wait, _ := time.ParseDuration(r.FormValue("wait"))
	index, _ := strconv.ParseUint(r.FormValue("index"), 10, 64)
	for index > 0 && index == a.index && a.answer == nil {
		changed := a.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(wait):
			wait, index = 0, 0
		case <-r.Context().Done():
			return
		}
		a.mu.Lock()
	}
	defer a.mu.Unlock()
	if a.answer != nil {
		a.answer(w, r)
		return
	}
	contact := a.contact
	if !r.URL.Query().Has("stale") {
		contact = 0
	}
	a.head(w, a.index, contact)
	_ = json.NewEncoder(w).Encode(a.entries)
}

func (a *agent) head(w http.ResponseWriter, index uint64, contact time.Duration) {
	w.Header().Set("X-Consul-Index", fmt.Sprint(index))
	w.Header().Set("X-Consul-Knownleader", fmt.Sprint(a.leader))
	w.Header().Set("X-Consul-Lastcontact", fmt.Sprint(contact.Milliseconds()))
}
