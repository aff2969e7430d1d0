package decide

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cellgate/cellgate/proxy/ask"
	"github.com/cellgate/cellgate/proxy/auth"
	"github.com/cellgate/cellgate/proxy/http1"
	"github.com/cellgate/cellgate/reason"
	"github.com/cellgate/cellgate/snapshot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func head(t *testing.T, fields string) *http1.Head {
	t.Helper()
	var r http1.Request
	if n, err := r.Parse([]byte("GET / HTTP/1.1\r\nHost: a\r\n" + fields + "\r\n")); n == 0 || err != nil {
		t.Fatal(err)
	}
	return &r.Head
}

func TestAServiceDecidesByTheDeclaredInputsAlone(t *testing.T) {
	var says, told atomic.Pointer[string]
	var asked atomic.Int64
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, _ := io.ReadAll(r.Body)
		s := string(body)
		told.Store(&s)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, *says.Load())
	}))
	services := ask.New(ask.Options{Allow: snapshot.Loopback()})
	t.Cleanup(func() { services.Close(); srv.Close() })
	d, now := New(services, nil), time.Now()
	remote := snapshot.Remote{Timeout: 10 * time.Second, PerSecond: 1000}
	p := &snapshot.Decision{URL: srv.URL, Inputs: []string{"header:x-a", "scopes", "user"}, Remote: remote}
	kept := *p
	kept.MaxStale = time.Minute
	base := Case{Policy: p, Policies: "p", Head: head(t, "X-A: 1\r\nX-A: 2\r\nX-B: secret\r\n"), Tenant: "t", User: "alice", Consumer: "c", Facts: &auth.Identity{Scopes: []string{"s"}}}
	holds := func(what string, change func(*Case), answer string, want reason.Reason, asks int64) {
		t.Helper()
		says.Store(&answer)
		c, before := base, asked.Load()
		change(&c)
		why, wait := d.Decide(&c, now)
		if wait != nil {
			<-wait
			if why, wait = d.Decide(&c, now); wait != nil {
				t.Fatal("it waits twice")
			}
		}
		if why != want || asked.Load()-before != asks {
			t.Errorf("%s: %v after %d questions, want %v after %d", what, why, asked.Load()-before, want, asks)
		}
	}
	same, remembered := func(*Case) {}, func(c *Case) { c.Policy = &kept }
	holds("let in", same, `{"allow":true,"reason":"fine"}`, reason.None, 1)
	if got := *told.Load(); got != `{"header:x-a":["1","2"],"scopes":["s"],"user":"alice"}` {
		t.Errorf("told %s", got)
	}
	holds("not remembered without max_stale", same, `{"allow":false}`, reason.DecisionDenied, 1)
	for _, none := range []string{`{"allow":"true"}`, `{}`, `{"allow":true`, `{"allow":true,"allow":true}`, strings.Repeat(" ", 70<<10) + `{"allow":true}`} {
		holds("no answer", same, none, reason.DecisionUnavailable, 1)
	}
	holds("with max_stale", remembered, `{"allow":true}`, reason.None, 1)
	holds("remembered", remembered, `{"allow":false}`, reason.None, 0)
	for name, change := range map[string]func(*Case){
		"tenant": func(c *Case) { c.Tenant = "u" }, "policies": func(c *Case) { c.Policies = "q" }, "user": func(c *Case) { c.User = "bob" },
		"scopes": func(c *Case) { c.Facts = &auth.Identity{Scopes: []string{"s", "r"}} }, "no scopes": func(c *Case) { c.Facts = nil },
		"field": func(c *Case) { c.Head = head(t, "X-A: 1, 2\r\n") }, "no field": func(c *Case) { c.Head = head(t, "") },
	} {
		holds("another "+name, func(c *Case) { remembered(c); change(c) }, `{"allow":false}`, reason.DecisionDenied, 1)
	}
	holds("another consumer, which is no input", func(c *Case) { remembered(c); c.Consumer = "d" }, `{"allow":false}`, reason.None, 0)
	d.Purge()
	holds("purged", remembered, `{"allow":false}`, reason.DecisionDenied, 1)
	now = now.Add(61 * time.Second)
	holds("too old", remembered, `{"allow":true}`, reason.None, 1)
	now = time.Now()
	srv.Close()
	holds("remembered, service gone", remembered, "", reason.None, 0)
	holds("service gone", same, "", reason.DecisionUnavailable, 0)
	if why, wait := (*Decisions)(nil).Decide(&base, now); why != reason.DecisionUnavailable || wait != nil {
		t.Error("without anybody to ask a request passes")
	}
}
