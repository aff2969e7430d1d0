package contract

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quic-go/quic-go/http3"

	"github.com/cellgate/cellgate/internal/handover"
	"github.com/cellgate/cellgate/test/harness"
)

// upgradable is a proxy that may be replaced, from a binary of its own.
type upgradable struct {
	t                  *testing.T
	bin, state, log    string
	http, https, admin string
	doc, cert, key, up string
	cmd                *exec.Cmd // the first process
	ended              chan struct{}
	successors         []int
}

// echoBackend answers requests, some of them slowly, and echoes what WebSocket clients send.
func echoBackend(t *testing.T) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") == "websocket" {
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")
			_, _ = io.Copy(c, rw) // frames masked as they came, which the test's client doesn't mind
			return
		}
		if strings.HasSuffix(r.URL.Path, "slow") {
			time.Sleep(500 * time.Millisecond)
		}
		_, _ = io.WriteString(w, strings.Repeat("x", 2000))
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func newUpgradable(t *testing.T, flags ...string) *upgradable {
	dir := t.TempDir()
	u := &upgradable{t: t, bin: filepath.Join(dir, "proxy"), state: filepath.Join(dir, "state"), log: filepath.Join(dir, "log"),
		http: harness.FreeAddr(t), https: harness.FreeAddr(t), admin: harness.FreeAddr(t), up: echoBackend(t), ended: make(chan struct{})}
	u.cert, u.key = edgeFiles(t)
	u.doc = harness.WriteFile(t, "doc.yaml", fmt.Sprintf("version: v1\nroutes: [{id: all, match: {host: api.example.com, path_prefix: /v1}, upstream: up, timeout: 10s}]\n"+
		"upstreams: [{id: up, endpoints: [%q], pool: {max_connections: 512}}]\n", u.up))
	u.install(harness.Bin(t, "proxy"))
	out, err := os.OpenFile(u.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600) // a pipe would end with the first process
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	args := []string{"serve", "--document", u.doc, "--http", u.http, "--https", u.https, "--cert", u.cert, "--key", u.key, "--h3", "--admin", u.admin, "--state", u.state}
	u.cmd = exec.Command(u.bin, append(args, flags...)...)
	u.cmd.Stdout, u.cmd.Stderr = out, out
	if err := u.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = u.cmd.Wait()
		close(u.ended)
	}()
	t.Cleanup(func() {
		_ = u.cmd.Process.Kill()
		for _, pid := range u.successors {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		<-u.ended
		if raw, err := os.ReadFile(u.log); t.Failed() {
			t.Logf("%v\n%s", err, raw)
		}
	})
	harness.Eventually(t, 5*time.Second, "the proxy to serve", func() bool {
		_, err := os.Stat(filepath.Join(u.state, "upgrade.sock"))
		return err == nil && oneOrder(http.DefaultTransport, u.http) == nil
	})
	return u
}

// install puts a binary in the place of the one that is there, as package managers do.
func (u *upgradable) install(from string) {
	u.t.Helper()
	// By another process: what a test beside forks meanwhile would hold a file of ours open for writing, which can't be run then.
	if out, err := exec.Command("install", "-m", "755", from, u.bin+".new").CombinedOutput(); err != nil {
		u.t.Fatalf("%v: %s", err, out)
	}
	if err := os.Rename(u.bin+".new", u.bin); err != nil {
		u.t.Fatal(err)
	}
}

// upgrade is the command; it notes the successor.
func (u *upgradable) upgrade(flags ...string) harness.Result {
	u.t.Helper()
	r := harness.Run(u.t, "proxy", append([]string{"upgrade", "--state", u.state}, flags...)...)
	var pid, old int
	if _, err := fmt.Sscanf(r.Stdout, "process %d took over from process %d\n", &pid, &old); err == nil {
		u.successors = append(u.successors, pid)
	}
	return r
}

// upgraded is an upgrade that must go well.
func (u *upgradable) upgraded() {
	u.t.Helper()
	if r := u.upgrade(); r.Code != 0 || len(u.successors) == 0 {
		u.t.Fatalf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// traffic is a load of every kind, whose clients take no failure.
type traffic struct {
	t    *testing.T
	stop atomic.Bool
	all  sync.WaitGroup
	n    [6]atomic.Int64

	without [6]bool
}

var kinds = [6]string{"h1", "h1 with a connection a request", "h1 over TLS", "h2", "h3", "WebSocket"}

func (u *upgradable) traffic(without ...int) *traffic {
	w := &traffic{t: u.t}
	for _, kind := range without {
		w.without[kind] = true
	}
	insecure := &tls.Config{InsecureSkipVerify: true}
	for i := range 24 {
		kind, path := i%len(kinds), "/v1/x"
		if i >= 18 {
			path = "/v1/slow"
		}
		if w.without[kind] {
			continue
		}
		w.all.Go(func() {
			var one func() error
			switch kind {
			case 0, 1, 2:
				c := &strict{addr: u.http, path: path, once: kind == 1}
				if kind == 2 {
					c.addr, c.tls = u.https, insecure
				}
				one = c.one
			case 3:
				alone := new(http.Protocols)
				alone.SetHTTP2(true)
				one = u.over(&http.Transport{TLSClientConfig: insecure.Clone(), Protocols: alone}, path)
			case 4:
				one = u.over(&http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, path)
			case 5:
				one = (&echoing{addr: u.http}).one
			}
			for !w.stop.Load() {
				if err := one(); err != nil {
					u.t.Errorf("%s: %v", kinds[kind], err)
					return
				}
				w.n[kind].Add(1)
			}
		})
	}
	return w
}

func (w *traffic) end(least int64) {
	w.stop.Store(true)
	w.all.Wait()
	for i, kind := range kinds {
		if w.without[i] {
			continue
		}
		if n := w.n[i].Load(); n < least {
			w.t.Errorf("only %d requests of %s", n, kind)
		}
	}
}

// over sends requests through a transport of its own, which follows GOAWAY and repeats nothing that may have been executed.
func (u *upgradable) over(rt http.RoundTripper, path string) func() error {
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		req, _ := http.NewRequestWithContext(ctx, "POST", "https://"+u.https+path, http.NoBody)
		req.Host = "api.example.com"
		res, err := rt.RoundTrip(req)
		if err != nil {
			return err
		}
		defer res.Body.Close()
		if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
			return fmt.Errorf("%s, %w", res.Status, err)
		}
		return nil
	}
}

// strict speaks HTTP/1.1 over one connection until it is asked to close it, and repeats nothing.
type strict struct {
	addr, path string
	tls        *tls.Config
	once       bool
	host       string
	token      string
	c          net.Conn
	r          *bufio.Reader
}

func (s *strict) one() (err error) {
	if s.c == nil {
		d := &net.Dialer{Timeout: 5 * time.Second}
		if s.tls != nil {
			s.c, err = tls.DialWithDialer(d, "tcp", s.addr, s.tls)
		} else {
			s.c, err = d.Dial("tcp", s.addr)
		}
		if err != nil {
			return err
		}
		s.r = bufio.NewReader(s.c)
	}
	_ = s.c.SetDeadline(time.Now().Add(10 * time.Second))
	req, _ := http.NewRequest("POST", "http://"+cmp.Or(s.host, "api.example.com")+s.path, http.NoBody)
	req.Close = s.once
	if s.token != "" {
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	if err := req.Write(s.c); err != nil {
		return err
	}
	res, err := http.ReadResponse(s.r, req)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != 200 {
		return fmt.Errorf("%s, %w", res.Status, err)
	}
	if res.Close {
		s.c.Close()
		s.c = nil
	}
	return nil
}

// echoing sends frames over a WebSocket connection and has them back, until it is asked to connect anew (1012).
type echoing struct {
	addr string
	c    net.Conn
	r    *bufio.Reader
}

func (e *echoing) one() error {
	if e.c == nil {
		c, err := net.DialTimeout("tcp", e.addr, 5*time.Second)
		if err != nil {
			return err
		}
		e.c, e.r = c, bufio.NewReader(c)
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = io.WriteString(c, "GET /v1/ws HTTP/1.1\r\nHost: api.example.com\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n")
		res, err := http.ReadResponse(e.r, &http.Request{Method: "GET"})
		if err != nil || res.StatusCode != 101 {
			return fmt.Errorf("handshake: %v %w", res, err)
		}
	}
	_ = e.c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := e.c.Write([]byte("\x82\x84\x00\x00\x00\x00ping")); err != nil {
		return err
	}
	time.Sleep(5 * time.Millisecond)
	head := make([]byte, 2)
	if _, err := io.ReadFull(e.r, head); err != nil {
		return err
	}
	rest := make([]byte, int(head[1]&0x7f)+int(head[1]>>7)*4)
	if _, err := io.ReadFull(e.r, rest); err != nil {
		return err
	}
	switch {
	case head[0] == 0x82 && string(rest[len(rest)-4:]) == "ping":
		return nil
	case head[0] == 0x88 && len(rest) >= 2 && int(rest[0])<<8|int(rest[1]) == 1012:
		e.c.Close()
		e.c = nil
		return nil
	}
	return fmt.Errorf("frame %x %x", head, rest)
}

// Two upgrades in a row under load of every kind: no request fails, on no connection, old or new (F8).
func TestProxyUpgradesUnderLoadWithoutAFailedRequest(t *testing.T) {
	for _, engine := range []string{"loop", "goroutine", "nethttp"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel() // most of it is waiting for drains
			u := newUpgradable(t, "--engine", engine)
			w := u.traffic(map[string][]int{"nethttp": {5}}[engine]...) // it opens no WebSockets
			time.Sleep(500 * time.Millisecond)
			u.upgraded()
			select {
			case <-u.ended:
			case <-time.After(harness.Slack * 10 * time.Second):
				t.Fatal("the first process doesn't end")
			}
			if code := u.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("the first process ended with %d", code)
			}
			harness.Eventually(t, 5*time.Second, "the first process to be known to be gone", func() bool { return u.upgrade().Code == 0 })
			time.Sleep(500 * time.Millisecond)
			w.end(20)
			if len(u.successors) != 2 {
				t.Errorf("successors %v", u.successors)
			}
		})
	}
}

// dieAt names the step at which this test binary, started as a successor, kills itself.
const dieAt = "CONTRACT_TEST_DIE_AT"

// die takes over as far as it should and ends as if by kill -9.
func die(dir, at string) {
	t, err := handover.Take(context.Background(), dir)
	if err == nil && at == "yielded" {
		_, err = t.Ready(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	time.Sleep(100 * time.Millisecond)
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
}

// A successor that is killed at any step, gives up or isn't ready in time changes nothing: no request fails, and the next
// upgrade goes well.
func TestAProxyGoesOnWhenItsSuccessorFails(t *testing.T) {
	u := newUpgradable(t)
	w := u.traffic()
	for _, at := range []string{"taken", "yielded"} {
		for range 3 {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), dieAt+"="+at, dieAt+"_DIR="+u.state)
			if out, err := cmd.CombinedOutput(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
				t.Fatalf("%s: %v %s", at, err, out)
			}
		}
	}
	for script, want := range map[string]string{
		"exit 7":                 "exit status 7",
		"kill -9 $$":             "signal: killed",
		"exec sleep 30":          "has not asked for the sockets within 100ms",
		"echo old | grep -q new": "exit status 1",
	} {
		u.install(harness.WriteFile(t, "script", "#!/bin/sh\n"+script+"\n"))
		within := "1m" // a shell may need a while to begin
		if strings.Contains(want, "within") {
			within = "100ms"
		}
		if r := u.upgrade("--within", within); r.Code != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit %d, %s", script, r.Code, r.Stderr)
		}
	}
	u.install(harness.Bin(t, "proxy"))
	doc, _ := os.ReadFile(u.doc)
	for text, want := range map[string]string{"version: v1\nroutes: 7\n": "document refused"} {
		if err := os.WriteFile(u.doc, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if r := u.upgrade(); r.Code != 1 || !strings.Contains(r.Stderr, want) {
			t.Errorf("exit %d, %s", r.Code, r.Stderr)
		}
	}
	if err := os.WriteFile(u.doc, doc, 0o600); err != nil {
		t.Fatal(err)
	}
	u.upgraded()
	<-u.ended
	w.end(20)
}

// heldUp is an upgrade whose successor has the sockets and waits for its document; the document lets it go on.
func (u *upgradable) heldUp() (goOn func(), outcome <-chan harness.Result) {
	u.t.Helper()
	doc, err := os.ReadFile(u.doc)
	if err == nil {
		err = errors.Join(os.Remove(u.doc), syscall.Mkfifo(u.doc, 0o600))
	}
	if err != nil {
		u.t.Fatal(err)
	}
	res := make(chan harness.Result, 1)
	go func() { res <- u.upgrade() }()
	harness.Eventually(u.t, 5*time.Second, "the successor to read its document", func() bool {
		f, err := os.OpenFile(u.doc, os.O_WRONLY|syscall.O_NONBLOCK, 0)
		if err == nil {
			goOn = func() {
				_, _ = f.Write(doc)
				f.Close()
				_ = os.Remove(u.doc)
				_ = os.WriteFile(u.doc, doc, 0o600)
			}
		}
		return err == nil
	})
	return goOn, res
}

// Of two upgrades at once one is refused and says why; the other goes well.
func TestProxyRefusesASecondUpgradeMeanwhile(t *testing.T) {
	u := newUpgradable(t)
	goOn, first := u.heldUp()
	if r := u.upgrade(); r.Code != 3 || !strings.Contains(r.Stderr, "another upgrade is under way, by process ") {
		t.Errorf("upgrade: exit %d, %s", r.Code, r.Stderr)
	}
	args := append(append([]string{}, u.cmd.Args...), "--takeover")
	if r := harness.Run(t, "proxy", args[1:]...); r.Code != 3 || !strings.Contains(r.Stderr, "another upgrade is under way") {
		t.Errorf("serve --takeover: exit %d, %s", r.Code, r.Stderr)
	}
	goOn()
	if r := <-first; r.Code != 0 {
		t.Errorf("the first: exit %d, %s", r.Code, r.Stderr)
	}
	if err := oneOrder(http.DefaultTransport, u.http); err != nil {
		t.Error(err)
	}
}

// A process that is killed while its successor gets ready leaves it everything.
func TestASuccessorGoesOnWhenTheProcessBeforeItDies(t *testing.T) {
	u := newUpgradable(t)
	goOn, _ := u.heldUp()
	_ = u.cmd.Process.Kill()
	<-u.ended
	c, err := net.Dial("tcp", u.http) // waits in the queue of a socket that nobody closes
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	goOn()
	s := &strict{addr: u.http, path: "/v1/x", c: c, r: bufio.NewReader(c)}
	if err := s.one(); err != nil {
		t.Error(err)
	}
	if err := u.over(&http3.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, "/v1/x")(); err != nil {
		t.Error(err)
	}
	u.upgraded()
}

// The directory has one owner, whose socket is for its user alone.
func TestAStateDirectoryBelongsToOneProcess(t *testing.T) {
	u := newUpgradable(t)
	info, err := os.Stat(filepath.Join(u.state, "upgrade.sock"))
	if err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("%v %v", info, err)
	}
	if r := harness.Run(t, "proxy", "serve", "--document", u.doc, "--http", harness.FreeAddr(t), "--state", u.state); r.Code != 1 || !strings.Contains(r.Stderr, "belongs to a process that runs") {
		t.Errorf("a second process: exit %d, %s", r.Code, r.Stderr)
	}
	empty := t.TempDir()
	if r := harness.Run(t, "proxy", "upgrade", "--state", empty); r.Code != 1 || !strings.Contains(r.Stderr, "no process runs with this directory") {
		t.Errorf("nobody there: exit %d, %s", r.Code, r.Stderr)
	}
	addr := harness.FreeAddr(t)
	harness.Start(t, "proxy", "serve", "--document", u.doc, "--http", addr, "--state", empty, "--takeover").WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
	for _, args := range [][]string{{"upgrade"}, {"upgrade", "--state", "a", "--bootstrap", "b"}, {"upgrade", "--state", "a", "--within", "0s"}, {"serve", "--document", u.doc, "--http", addr, "--takeover"}} {
		if r := harness.Run(t, "proxy", args...); r.Code != 2 {
			t.Errorf("%v: exit %d, %s", args, r.Code, r.Stderr)
		}
	}
}

// A process whose end its supervisor would take for the service's is not replaced behind its back. systemd is told.
func TestProxyTellsItsServiceManager(t *testing.T) {
	u := newUpgradable(t)
	for env, want := range map[string]string{"CELLGATE_UPGRADE=cellgate upgrade proxy/a": "cellgate upgrade proxy/a"} {
		dir, addr := t.TempDir(), harness.FreeAddr(t)
		harness.StartWith(t, []string{env}, "proxy", "serve", "--document", u.doc, "--http", addr, "--state", dir).WaitHTTP("http://"+addr+"/.well-known/cellgate/ready", 200)
		harness.Eventually(t, 5*time.Second, "the socket", func() bool { _, err := os.Stat(filepath.Join(dir, "upgrade.sock")); return err == nil })
		if r := harness.Run(t, "proxy", "upgrade", "--state", dir); r.Code != 3 || !strings.Contains(r.Stderr, want) {
			t.Errorf("%s: exit %d, %s", env, r.Code, r.Stderr)
		}
	}
	name := filepath.Join(t.TempDir(), "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	said := func() string {
		b := make([]byte, 200)
		_ = manager.SetReadDeadline(time.Now().Add(harness.Slack * 5 * time.Second))
		n, err := manager.Read(b)
		if err != nil {
			t.Error(err)
		}
		return string(b[:n])
	}
	t.Setenv("NOTIFY_SOCKET", name)
	u = newUpgradable(t)
	if word := said(); word != "READY=1" {
		t.Errorf("%q", word)
	}
	u.upgraded()
	words := map[string]bool{said(): true, said(): true}
	if !words["READY=1"] || !words[fmt.Sprintf("MAINPID=%d", u.successors[0])] {
		t.Errorf("%v", words)
	}
}

// A node of a world that is upgraded has not restarted: its boot id and its sequence go on, no request fails, versions that
// come while a successor has failed are applied, and no upgrade counts towards the poison rule, however young the version.
func TestAnUpgradeOfANodeOfAWorldIsNoRestart(t *testing.T) {
	g := newGateway(t)
	defer g.control()()
	g.publish(1)
	first := harness.Start(t, "proxy", "serve", "--bootstrap", g.file)
	g.becomes("version 1", g.shared("/open1"), "", 200, 10*time.Second)
	var life string
	var seq uint64
	reported := func(version uint64) {
		t.Helper()
		harness.Eventually(t, 10*time.Second, fmt.Sprintf("a report that version %d is served", version), func() bool {
			for _, n := range g.evidence.Nodes() {
				if r := n.Report; r.ID == theNode && r.Ready && r.Snapshot.Served == version && r.Seq > seq {
					if life == "" {
						life = r.Boot
					}
					if r.Boot != life || n.Boots != 1 {
						t.Fatalf("boot %s, then %s: %d", life, r.Boot, n.Boots)
					}
					seq = r.Seq
					return true
				}
			}
			return false
		})
	}
	reported(1)
	token, stop, failed := g.token(), make(chan struct{}), make(chan error, 1)
	go func() {
		s := &strict{addr: g.boot.SharedHTTP.String(), path: "/v1/orders", host: "api.gw.test", token: token}
		for {
			select {
			case <-stop:
				failed <- nil
				return
			default:
			}
			if err := s.one(); err != nil {
				failed <- err
				return
			}
		}
	}()
	for _, at := range []string{"taken", "yielded"} {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), dieAt+"="+at, dieAt+"_DIR="+g.boot.DataDir)
		_ = cmd.Run()
	}
	g.publish(2)
	reported(2)
	for range 2 { // each within ten seconds of the activation
		next := harness.Start(t, "proxy", "serve", "--bootstrap", g.file, "--takeover")
		if r := first.Wait(15 * time.Second); r.Code != 0 {
			t.Fatalf("exit %d", r.Code)
		}
		first = next
		reported(2)
		if status, _, _ := g.get(g.admin("/readyz"), "admin-token"); status != 200 {
			t.Errorf("readyz: %d", status)
		}
	}
	g.publish(3)
	reported(3)
	close(stop)
	if err := <-failed; err != nil {
		t.Error(err)
	}
	if r := first.Stop(15 * time.Second); r.Code != 0 {
		t.Errorf("SIGTERM: exit %d", r.Code)
	}
}
