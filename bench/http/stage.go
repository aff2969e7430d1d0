//go:build linux

package main

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// The ports on the stage's address.
const (
	backendPort = 8001 + iota
	nginxPlain
	nginxTLS
	nginxH2
	haproxyPlain
	haproxyTLS
	haproxyJWT
	ownPlain
	ownTLS
	ownBare
	ownSteady
	ownSwapping
	otherPlain
	otherTLS
)

// stage is the processes of the measurement: backend, peers, and ours with and without policies.
type stage struct {
	dir, addr, engine string
	other             string

	mu   sync.Mutex
	cmds map[string]*exec.Cmd

	far      io.Writer     // takes orders
	outcomes *bufio.Reader // gives what came of them
}

func (s *stage) path(name string) string { return filepath.Join(s.dir, name) }

func (s *stage) at(port int) string { return s.addr + ":" + strconv.Itoa(port) }

// start builds, writes all files, and waits until every candidate answers.
func (s *stage) start() error {
	if out, err := exec.Command("go", "build", "-o", s.path("proxy"), "./cmd/proxy").CombinedOutput(); err != nil {
		return fmt.Errorf("build: %w\n%s", err, out)
	}
	if err := s.files(); err != nil {
		return err
	}
	serve := func(binary, document string, flags ...string) []string {
		args := append([]string{"-c", "0", binary, "serve", "--document", s.path(document)}, flags...)
		if s.engine != "" {
			args = append(args, "--engine", s.engine)
		}
		return args
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	swapping := func(name string, port int, more ...string) []string {
		return append([]string{"-c", "0", self, "node", "--document", s.path("full.yaml"), "--http", s.at(port), "--dir", s.path(name)}, more...)
	}
	if err := s.startFar(self); err != nil {
		return err
	}
	all := map[string][]string{
		"nginx":   {"-c", "0", "nginx", "-c", s.path("nginx.conf")},
		"haproxy": {"-c", "0", "haproxy", "-db", "-f", s.path("haproxy.conf")},
		"cellgate": serve(s.path("proxy"), "full.yaml", "--http", s.at(ownPlain), "--https", s.at(ownTLS), "--cert", s.path("cert.pem"), "--key", s.path("key.pem"),
			"--access-log", s.path("access.log")),
		"bare":     serve(s.path("proxy"), "bare.yaml", "--http", s.at(ownBare)),
		"steady":   swapping("steady", ownSteady),
		"swapping": swapping("swapping", ownSwapping, "--swap"),
	}
	if s.other != "" {
		all["other"] = serve(s.other, "full.yaml", "--http", s.at(otherPlain), "--https", s.at(otherTLS), "--cert", s.path("cert.pem"), "--key", s.path("key.pem"),
			"--access-log", s.path("other.log"))
	}
	for name, args := range all {
		if err := s.spawn(name, args); err != nil {
			return err
		}
	}
	return s.ready()
}

// startFar starts the other side, whose standard streams are for orders and outcomes.
func (s *stage) startFar(self string) error {
	cmd := exec.Command("taskset", "-c", "1", self, "far", "--addr", s.at(backendPort), "--dir", s.dir)
	orders, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	outcomes, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	s.far, s.outcomes = orders, bufio.NewReader(outcomes)
	return s.run("far", cmd)
}

func (s *stage) spawn(name string, args []string) error {
	return s.run(name, exec.Command("taskset", args...))
}

// run starts a process. What it prints that nobody else reads goes to a file.
func (s *stage) run(name string, cmd *exec.Cmd) error {
	out, err := os.Create(s.path(name + ".out"))
	if err != nil {
		return err
	}
	defer out.Close()
	if cmd.Stderr = out; cmd.Stdout == nil {
		cmd.Stdout = out
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmds == nil {
		s.cmds = map[string]*exec.Cmd{}
	}
	s.cmds[name] = cmd
	return nil
}

// ready waits until every port answers a request of the load.
func (s *stage) ready() error {
	token, err := os.ReadFile(s.path("token"))
	if err != nil {
		return err
	}
	client := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // our own certificate of a minute ago
	last := ownSwapping
	if s.other != "" {
		last = otherTLS
	}
	for port := backendPort; port <= last; port++ {
		scheme := "http"
		if port == nginxTLS || port == nginxH2 || port == haproxyTLS || port == ownTLS || port == otherTLS {
			scheme = "https"
		}
		err := errors.New("not asked")
		for end := time.Now().Add(2 * time.Minute); err != nil && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			err = ask(client, scheme+"://"+s.at(port)+"/v1/s1/items/1", string(token))
		}
		if err != nil {
			return fmt.Errorf("port %d does not answer: %w\n%s", port, err, s.outputs())
		}
	}
	return nil
}

func ask(client *http.Client, url, token string) error {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Host = "h0.example.com"
	req.Header.Set("Authorization", "Bearer "+token)
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return errors.New(res.Status)
	}
	return nil
}

// outputs is what the processes have printed.
func (s *stage) outputs() string {
	var b strings.Builder
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.cmds {
		if raw, err := os.ReadFile(s.path(name + ".out")); err == nil && len(raw) > 0 {
			fmt.Fprintf(&b, "%s: %s\n", name, raw)
		}
	}
	return b.String()
}

func (s *stage) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, cmd := range s.cmds {
		_ = cmd.Process.Signal(syscall.SIGTERM)
	}
	for _, cmd := range s.cmds {
		kill := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		kill.Stop()
	}
	s.cmds = nil
}

// sample measures one candidate once.
func (s *stage) sample(r row, c candidate, o options) (sample, error) {
	s.mu.Lock()
	pid := s.cmds[c.process].Process.Pid
	s.mu.Unlock()
	before, err := threads(pid)
	if err != nil {
		return sample{}, err
	}
	d, err := r.load.drive(s, c.port, o.length)
	if err != nil {
		return sample{}, fmt.Errorf("%w\n%s", err, s.outputs())
	}
	after, err := threads(pid)
	if err != nil {
		return sample{}, err
	}
	memory, err := resident(pid)
	if err != nil {
		return sample{}, err
	}
	for _, log := range []string{"access.log", "steady/access.log", "swapping/access.log", "other.log"} {
		if err := os.Truncate(s.path(log), 0); err != nil && !os.IsNotExist(err) {
			return sample{}, err
		}
	}
	used, wanted := since(before, after)
	cost := used.run
	if r.user {
		cost = used.user
	}
	one := sample{cost: float64(cost.Nanoseconds()) / 1e3 / float64(max(d.answers, 1)), rate: float64(d.answers) / d.took.Seconds(),
		busy: used.run.Seconds() / d.took.Seconds(), wanted: wanted.Seconds() / d.took.Seconds(), memory: memory, p50: d.p50, p99: d.p99}
	switch {
	case d.failed || d.answers == 0:
		one.void = "void: errors"
	case one.wanted < saturated && c.name != ours && !r.user && !r.unfilled:
		one.void = "void: idle"
	}
	return one, nil
}

// saturated is the share of the time for which a candidate's busiest thread must have run, or have been ready to run: the rest is
// sleep for want of work. It is asked of the peers alone: where the load can't fill ours, the cost of a request is taken for what it
// is, which is no less than when it is full, since there is less to do at once. What other processes of the machine take from it meanwhile makes a round slow, and no less full.
const saturated = 0.9

// resident is a process's memory in MB.
func resident(pid int) (float64, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	pages, err := strconv.ParseFloat(strings.Fields(string(raw))[1], 64)
	return pages * float64(os.Getpagesize()) / 1e6, err
}

// spending is what a thread has had of its core: all time, exact from the scheduler; user time from clock ticks; and what it
// waited for the core while it was ready to run.
type spending struct{ run, user, wait time.Duration }

// threads are those of a process and its children, by their directory in /proc.
func threads(pid int) (map[string]spending, error) {
	all := map[string]spending{}
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(tasks) == 0 {
		return nil, fmt.Errorf("process %d has ended", pid)
	}
	for _, task := range tasks {
		if all[task], err = spendingOf(task); err != nil {
			delete(all, task) // a thread that has just ended
			continue
		}
		children, _ := os.ReadFile(task + "/children")
		for _, child := range strings.Fields(string(children)) {
			n, _ := strconv.Atoi(child)
			more, _ := threads(n) // nil if it has ended
			maps.Copy(all, more)
		}
	}
	return all, nil
}

// since is what all threads together have spent, and for how long the busiest one ran or was ready to.
func since(before, after map[string]spending) (sum spending, wanted time.Duration) {
	for task, now := range after {
		was := before[task]
		sum.run += now.run - was.run
		sum.user += now.user - was.user
		wanted = max(wanted, now.run-was.run+now.wait-was.wait)
	}
	return sum, wanted
}

// hertz is the kernel's unit of user time (proc(5), USER_HZ).
const hertz = 100

func spendingOf(task string) (s spending, err error) {
	raw, err := os.ReadFile(task + "/schedstat")
	if err != nil {
		return s, err
	}
	if _, err := fmt.Sscan(string(raw), &s.run, &s.wait); err != nil {
		return s, fmt.Errorf("%s: %w", task, err)
	}
	if raw, err = os.ReadFile(task + "/stat"); err != nil {
		return s, err
	}
	_, rest, _ := strings.Cut(string(raw), ") ") // the name may hold spaces
	const utime = 11                             // field 14 of the line
	ticks, err := strconv.ParseInt(strings.Fields(rest)[utime], 10, 64)
	s.user = time.Duration(ticks) * time.Second / hertz
	return s, err
}
