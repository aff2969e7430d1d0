package contract

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cellgate/cellgate/test/harness"
)

// introspected is a provider of opaque tokens that counts its questions, and whose answers the test sets by token.
type introspected struct {
	sync.Mutex
	asked  atomic.Int64
	answer map[string]string
	slow   time.Duration
}

func (p *introspected) says(token, answer string) {
	p.Lock()
	defer p.Unlock()
	p.answer[token] = answer
}

func (p *introspected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.asked.Add(1)
	p.Lock()
	answer, slow := p.answer[r.FormValue("token")], p.slow
	p.Unlock()
	time.Sleep(slow)
	if id, secret, ok := r.BasicAuth(); !ok || id != "gw" || secret != "s3cret%2F" || r.Method != http.MethodPost {
		w.WriteHeader(401)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if answer == "" {
		answer = `{"active":false}`
	}
	fmt.Fprint(w, answer)
}

func secretsDir(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o700), os.WriteFile(file, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// A document names a provider, its secret lies in a file of the node: tokens that the provider calls active pass, others are 401,
// and when the provider is gone what isn't known is 503 with a time, never asked twice, and never let in.
func TestOpaqueTokensAreAskedAbout(t *testing.T) {
	p := &introspected{answer: map[string]string{"good": `{"active":true,"sub":"alice","scope":"orders","exp":4102444800}`, "weak": `{"active":true,"sub":"bob"}`}}
	idp := httptest.NewServer(p)
	defer idp.Close()
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", fmt.Sprintf(`version: v1
routes: [{id: orders, match: {host: api.example.com, path: /v1/orders}, upstream: orders, auth: opaque}]
upstreams: [{id: orders, endpoints: [%q]}]
policies: [{id: opaque, introspection: {url: %q, client_id: gw, client_secret_file: idp.secret, scopes: [orders], timeout: 1s}}]
`, backend(t), idp.URL+"/introspect"))
	if out := run(t, "proxy", "serve", "--document", doc, "--http", addr); out.Code != 1 || !strings.Contains(out.Stderr, "secrets") {
		t.Fatalf("served without its secret: exit %d %s", out.Code, out.Stderr)
	}
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--secrets", secretsDir(t, map[string]string{"idp.secret": "s3cret/\n"}))
	url := "http://" + addr + "/v1/orders"
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	holds := func(token string, status int, reason string, asks int64) {
		t.Helper()
		before := p.asked.Load()
		res := askAs(t, http.DefaultClient, "GET", url, "Authorization", "Bearer "+token)
		if res.StatusCode != status || res.Header.Get("X-Cellgate-Reason") != reason || p.asked.Load()-before != asks {
			t.Errorf("%s: %d %v after %d questions %s", token, res.StatusCode, res.Header, p.asked.Load()-before, res.body)
		}
		if status == 503 && res.Header.Get("Retry-After") == "" {
			t.Errorf("%s: 503 without a time", token)
		}
	}
	holds("good", 200, "", 1)
	holds("good", 200, "", 0)
	holds("weak", 403, "scope_missing", 1)
	holds("bad", 401, "token_invalid", 1)
	holds("bad", 401, "token_invalid", 0)
	holds("no%token", 401, "token_invalid", 0)
	p.says("torn", `{"active":`)
	holds("torn", 503, "auth_unavailable", 1)
	idp.Close()
	holds("good", 200, "", 0)
	holds("new", 503, "auth_unavailable", 0)
	if log := d.Stderr(); strings.Contains(log, "s3cret") || strings.Contains(log, "Bearer") {
		t.Errorf("a secret is in the log:\n%s", log)
	}
}

// Many who come with one unknown token at once cause one question.
func TestOneQuestionServesAllWhoWaitForIt(t *testing.T) {
	p := &introspected{answer: map[string]string{"good": `{"active":true,"sub":"alice"}`}, slow: 100 * time.Millisecond}
	idp := httptest.NewServer(p)
	defer idp.Close()
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", fmt.Sprintf(`version: v1
routes: [{id: orders, match: {host: api.example.com, path: /v1/orders}, upstream: orders, auth: opaque}]
upstreams: [{id: orders, endpoints: [%q]}]
policies: [{id: opaque, introspection: {url: %q, client_id: gw, client_secret_file: default/idp.secret, timeout: 1s}}]
`, backend(t), idp.URL))
	foreign := harness.WriteFile(t, "foreign.yaml", strings.Replace(read(t, doc), "default/", "acme/", 1))
	if out := run(t, "regionctl", "config", "validate", foreign, "--allow-upstreams", "127.0.0.0/8"); out.Code != 1 || !strings.Contains(out.Stdout, `foreign.yaml:2: routes[0].auth: policy "opaque" names the secret "acme/idp.secret", and the route is of tenant "default"`) {
		t.Errorf("another tenant's secret: %+v", out)
	}
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--secrets", secretsDir(t, map[string]string{"default/idp.secret": "s3cret/"}))
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			if res := askAs(t, http.DefaultClient, "GET", "http://"+addr+"/v1/orders", "Authorization", "Bearer good"); res.StatusCode != 200 {
				t.Errorf("%d %s", res.StatusCode, res.body)
			}
		})
	}
	wg.Wait()
	if n := p.asked.Load(); n != 1 {
		t.Errorf("%d questions for one token", n)
	}
}

// What a provider sends without being asked is no answer, and isn't written to the log.
func TestWhatAProviderSendsUnaskedIsNotLogged(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	const answer = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 35\r\n\r\n" + `{"active":true,"sub":"unasked-for"}`
	closed := make(chan error, 1)
	go func() {
		conn, err := ln.Accept()
		if err != nil {
			closed <- err
			return
		}
		defer conn.Close()
		in := bufio.NewReader(conn)
		for err == nil {
			var req *http.Request
			if req, err = http.ReadRequest(in); err == nil {
				_, err = io.Copy(io.Discard, req.Body)
				fmt.Fprint(conn, answer)
				time.Sleep(50 * time.Millisecond) // until the connection is kept for the next question
				fmt.Fprint(conn, answer)
			}
		}
		closed <- err
	}()
	addr := harness.FreeAddr(t)
	doc := harness.WriteFile(t, "doc.yaml", fmt.Sprintf(`version: v1
routes: [{id: orders, match: {host: api.example.com, path: /v1/orders}, upstream: orders, auth: opaque}]
upstreams: [{id: orders, endpoints: [%q]}]
policies: [{id: opaque, introspection: {url: "http://%s/introspect", client_id: gw, client_secret_file: idp.secret, timeout: 1s}}]
`, backend(t), ln.Addr()))
	d := harness.Start(t, "proxy", "serve", "--document", doc, "--http", addr, "--secrets", secretsDir(t, map[string]string{"idp.secret": "s3cret/\n"}))
	d.WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	if res := askAs(t, http.DefaultClient, "GET", "http://"+addr+"/v1/orders", "Authorization", "Bearer good"); res.StatusCode != 200 {
		t.Fatal(res.StatusCode, string(res.body))
	}
	select {
	case <-closed: // the node has seen it
	case <-time.After(10 * time.Second):
		t.Fatal("the connection is kept")
	}
	if r := d.Stop(15 * time.Second); strings.Contains(r.Stderr+r.Stdout, "unasked-for") {
		t.Errorf("the log has what the provider sent: %s", r.Stderr)
	}
}
